//! Pushes and fetches of batches.

use super::encode::{Encoded, Encoder};
use super::messages::{Decoded, Decoder, behind_messages};
use crate::digest::Proof;
use crate::error::{BatchError, DigestError, Error};
use crate::gathered::{Body, copy_threads};
use crate::push::Source;
use crate::session::Lease;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::sync::Arc;
use transfer_core::op::FetchedTensor;
use transfer_core::op::Report;
use transfer_core::wire::bundle::BundleTable;
use transfer_core::wire::digests::Digests;

/// A fetched record batch. Its arrays lie in the sidecar's memory, and keep it.
#[derive(Debug, Clone)]
pub struct FetchedBatch {
    batch: RecordBatch,
    version: u64,
    report: Report,
}

/// Record batches that were pushed as one; see [`FetchedBatch`].
#[derive(Debug, Clone)]
pub struct FetchedTable {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    version: u64,
    report: Report,
}

impl FetchedBatch {
    /// The batch.
    #[must_use]
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// The batch, without the report of the fetch.
    #[must_use]
    pub fn into_batch(self) -> RecordBatch {
        self.batch
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The report of the fetch: which fabric carried it, what was copied, and where the time went.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    pub(super) fn of(decoded: Decoded, version: u64, report: Report) -> Result<FetchedBatch, BatchError> {
        match <[RecordBatch; 1]>::try_from(decoded.batches) {
            Ok([batch]) => Ok(FetchedBatch { batch, version, report }),
            Err(batches) => Err(BatchError::NotOne { found: batches.len() }),
        }
    }
}

impl FetchedTable {
    /// The schema of all batches.
    #[must_use]
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The batches, in the order in which they were pushed.
    #[must_use]
    pub fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// The batches, without the report of the fetch.
    #[must_use]
    pub fn into_batches(self) -> Vec<RecordBatch> {
        self.batches
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The report of the fetch: which fabric carried it, what was copied, and where the time went.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }
}

/// Finds the body of a version that was pushed as batches.
pub(super) fn body(lease: Arc<Lease>, tensor: &FetchedTensor) -> Result<Body, Error> {
    let body = Body::new::<BatchError>(lease, tensor)?;
    match body.metadata.is_empty() || BundleTable::is_bundle(&body.metadata) {
        true => Err(BatchError::NotABatch { meta: tensor.meta.clone() }.into()),
        false => Ok(body),
    }
}

/// Finds the body of batches, and compares it with its digests. Returns what the report says then.
fn proved_body(lease: Arc<Lease>, tensor: &FetchedTensor, proof: &Proof<'_>) -> Result<(Body, Report), Error> {
    let (body, mut report) = (body(lease, tensor)?, tensor.report);
    let digests = Digests::read_marked(behind_messages(&body.metadata), body.len).map_err(|e| {
        let (key, version) = (proof.key.as_str().to_owned(), tensor.version.0);
        DigestError::Malformed { key, version, reason: e.to_string() }
    })?;
    let head = (tensor.version, &tensor.meta, &body.metadata[..]);
    // What lies in ranges lies in the arena of its pusher.
    report.verified = proof.compare(head, digests.as_ref(), tensor.ranges == 0, copy_threads(), body.pieces())?;
    Ok((body, report))
}

pub(crate) fn take_batch(lease: Arc<Lease>, tensor: FetchedTensor, proof: &Proof<'_>) -> Result<FetchedBatch, Error> {
    let (body, report) = proved_body(lease, &tensor, proof)?;
    let decoded = Decoder::default().decode(&body)?;
    Ok(FetchedBatch::of(decoded, tensor.version.0, report)?)
}

pub(crate) fn take_table(lease: Arc<Lease>, tensor: FetchedTensor, proof: &Proof<'_>) -> Result<FetchedTable, Error> {
    let (body, report) = proved_body(lease, &tensor, proof)?;
    let Decoded { schema, batches, .. } = Decoder::default().decode(&body)?;
    Ok(FetchedTable { schema, batches, version: tensor.version.0, report })
}

/// These batches, to be pushed as one version.
pub(crate) fn encode<'a>(
    schema: &SchemaRef,
    batches: impl IntoIterator<Item = &'a RecordBatch>,
) -> Result<Source<'static>, Error> {
    source(Encoder::new(schema).and_then(|mut encoder| encoder.encode(batches)))
}

pub(super) fn source(encoded: Result<Encoded, BatchError>) -> Result<Source<'static>, Error> {
    Ok(Source::Pieces(Box::new(encoded?)))
}
