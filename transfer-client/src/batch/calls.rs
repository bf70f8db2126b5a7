//! Pushes and fetches of batches.

use super::encode::{Encoded, Encoder};
use super::messages::{Decoded, Decoder};
use crate::digest::Proof;
use crate::error::{BatchError, Error};
use crate::gathered::Body;
use crate::push::Source;
use crate::session::Lease;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::sync::Arc;
use transfer_core::op::FetchedTensor;
use transfer_core::op::Report;
use transfer_core::wire::bundle::BundleTable;

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

const NOT_PROVABLE: &str = "record batches have no digests yet: push tensors as a bundle to have them proved";

pub(crate) fn take_batch(lease: Arc<Lease>, tensor: FetchedTensor, proof: &Proof<'_>) -> Result<FetchedBatch, Error> {
    proof.refuse(NOT_PROVABLE)?;
    let decoded = Decoder::default().decode(&body(lease, &tensor)?)?;
    Ok(FetchedBatch::of(decoded, tensor.version.0, tensor.report)?)
}

pub(crate) fn take_table(lease: Arc<Lease>, tensor: FetchedTensor, proof: &Proof<'_>) -> Result<FetchedTable, Error> {
    proof.refuse(NOT_PROVABLE)?;
    let Decoded { schema, batches, .. } = Decoder::default().decode(&body(lease, &tensor)?)?;
    Ok(FetchedTable { schema, batches, version: tensor.version.0, report: tensor.report })
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
