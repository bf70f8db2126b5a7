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
use transfer_core::tensor::{TensorMeta, Version};
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

/// Returns the body if it was pushed as batches.
pub(super) fn body(body: Body, meta: &TensorMeta) -> Result<Body, Error> {
    match body.metadata.is_empty() || BundleTable::is_bundle(&body.metadata) {
        true => Err(BatchError::NotABatch { meta: meta.clone() }.into()),
        false => Ok(body),
    }
}

/// Compares the body of batches with its digests. Returns how many bytes were compared.
pub(super) fn prove(
    body: &Body,
    version: Version,
    meta: &TensorMeta,
    is_moved: bool,
    proof: &Proof<'_>,
) -> Result<u64, Error> {
    let digests = Digests::read_marked(behind_messages(&body.metadata), body.len).map_err(|e| {
        let (key, version) = (proof.key.as_str().to_owned(), version.0);
        DigestError::Malformed { key, version, reason: e.to_string() }
    })?;
    let head = (version, meta, &body.metadata[..]);
    proof.compare(head, digests.as_ref(), is_moved, copy_threads(), body.pieces())
}

/// The body of batches, with its version and the report of its fetch.
pub(super) struct NamedBody {
    pub(super) body: Body,
    pub(super) version: Version,
    pub(super) report: Report,
}

impl NamedBody {
    /// Finds the body of a version, and compares it with its digests.
    fn take(lease: Arc<Lease>, tensor: &FetchedTensor, proof: &Proof<'_>) -> Result<NamedBody, Error> {
        let body = body(Body::new::<BatchError>(lease, tensor)?, &tensor.meta)?;
        // What lies in ranges lies in the arena of its pusher.
        let verified = prove(&body, tensor.version, &tensor.meta, tensor.ranges == 0, proof)?;
        Ok(NamedBody { body, version: tensor.version, report: Report { verified, ..tensor.report } })
    }

    /// The one batch that it has.
    pub(super) fn batch(&self) -> Result<FetchedBatch, Error> {
        let decoded = Decoder::default().decode(&self.body)?;
        Ok(FetchedBatch::of(decoded, self.version.0, self.report)?)
    }

    /// All batches that it has.
    pub(super) fn table(&self) -> Result<FetchedTable, Error> {
        let Decoded { schema, batches, .. } = Decoder::default().decode(&self.body)?;
        Ok(FetchedTable { schema, batches, version: self.version.0, report: self.report })
    }
}

pub(crate) fn take_batch(lease: Arc<Lease>, tensor: FetchedTensor, proof: &Proof<'_>) -> Result<FetchedBatch, Error> {
    NamedBody::take(lease, &tensor, proof)?.batch()
}

pub(crate) fn take_table(lease: Arc<Lease>, tensor: FetchedTensor, proof: &Proof<'_>) -> Result<FetchedTable, Error> {
    NamedBody::take(lease, &tensor, proof)?.table()
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
