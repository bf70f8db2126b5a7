//! Pushes and fetches of batches.

use super::BatchError;
use super::encode::{Encoded, Encoder};
use super::messages::{Decoded, Decoder};
use crate::face::Face;
use crate::fetch::Fetch;
use crate::gathered::Body;
use crate::handle::to_key;
use crate::keys::ToKey;
use crate::push::{Push, Source};
use crate::subscriber::Subscriber;
use crate::tensor::Lease;
use crate::{Error, Handle};
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

fn take_batch(lease: Arc<Lease>, tensor: FetchedTensor) -> Result<FetchedBatch, Error> {
    let decoded = Decoder::default().decode(&body(lease, &tensor)?)?;
    Ok(FetchedBatch::of(decoded, tensor.version.0, tensor.report)?)
}

fn take_table(lease: Arc<Lease>, tensor: FetchedTensor) -> Result<FetchedTable, Error> {
    let Decoded { schema, batches, .. } = Decoder::default().decode(&body(lease, &tensor)?)?;
    Ok(FetchedTable { schema, batches, version: tensor.version.0, report: tensor.report })
}

pub(super) fn source(encoded: Result<Encoded, BatchError>) -> Result<Source<'static>, Error> {
    Ok(Source::Pieces(Box::new(encoded?)))
}

impl<F: Face> Handle<F> {
    /// Publishes a record batch under `key`. Frozen buffers in the arena are published in place: those of a
    /// [`BatchBuilder`](crate::BatchBuilder), arrays made of a [`Frozen`](crate::Frozen) tensor, and slices of either.
    /// Any other buffer is copied into the arena when the push is made, as in [`Handle::push_slice`]. So are the few
    /// bytes that a slice needs anew: offsets that do not begin with 0, bits that do not begin in a whole byte. The
    /// report counts what was copied.
    pub fn push_batch(&self, key: impl ToKey, batch: &RecordBatch) -> Push<'static, F> {
        self.push_table(key, batch.schema_ref(), std::slice::from_ref(batch))
    }

    /// Publishes record batches of one schema under `key`, as one version; see [`Handle::push_batch`]. A shared
    /// dictionary is sent once; of a growing dictionary only the new values are sent.
    pub fn push_table<'a>(
        &self,
        key: impl ToKey,
        schema: &SchemaRef,
        batches: impl IntoIterator<Item = &'a RecordBatch>,
    ) -> Push<'static, F> {
        let encoded = Encoder::new(schema).and_then(|mut encoder| encoder.encode(batches));
        self.push(key, source(encoded))
    }

    /// Fetches the record batch under `key`, and waits until there is one. Its arrays share the memory where it landed,
    /// or where its owner built it.
    pub fn fetch_batch(&self, key: impl ToKey) -> Fetch<F, FetchedBatch> {
        Fetch::new(self.session(), to_key(&key), take_batch)
    }

    /// Fetches record batches that were pushed as one version; see [`Handle::fetch_batch`].
    pub fn fetch_table(&self, key: impl ToKey) -> Fetch<F, FetchedTable> {
        Fetch::new(self.session(), to_key(&key), take_table)
    }

    /// Makes a reader of the versions of `key` that [`push_batch`](Self::push_batch) publishes.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn batch_subscriber(&self, key: impl ToKey) -> Result<Subscriber<F, FetchedBatch>, Error> {
        Subscriber::new(self, &key, take_batch)
    }

    /// Makes a reader of the versions of `key` that [`push_table`](Self::push_table) publishes.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn table_subscriber(&self, key: impl ToKey) -> Result<Subscriber<F, FetchedTable>, Error> {
        Subscriber::new(self, &key, take_table)
    }
}
