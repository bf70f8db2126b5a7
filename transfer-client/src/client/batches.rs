//! What clients do with record batches.

use super::both_clients;
use crate::batch::{
    BatchBuilder, BatchStream, BatchStreamReader, FetchedBatch, FetchedTable, encode, large_batch, large_table,
    take_batch, take_table,
};
use crate::error::Error;
use crate::fetch::{Fetch, Subscriber};
use crate::push::Push;
use crate::request::{HasHandle, ToKey, to_key};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

both_clients! {
    /// Begins a record batch of that schema in the arena.
    ///
    /// # Errors
    /// [`Error::Batch`] if there can be no such batch; [`Error::ArenaFull`], [`Error::TooLargeForArena`].
    pub fn batch_builder(&self, schema: &SchemaRef) -> Result<BatchBuilder, Error> {
        BatchBuilder::new(self.handle().session(), schema)
    }

    /// Publishes a record batch under `key`. Frozen buffers in the arena are published in place: those of a
    /// [`BatchBuilder`](crate::BatchBuilder), arrays made of a [`Frozen`](crate::Frozen) tensor, and slices of either.
    /// Any other buffer is copied into the arena when the push is made, as in [`push_slice`](Self::push_slice). So are the few
    /// bytes that a slice needs anew: offsets that do not begin with 0, bits that do not begin in a whole byte. The
    /// report counts what was copied.
    pub fn push_batch(&self, key: impl ToKey, batch: &RecordBatch) -> Push<'static, Self> {
        self.push_table(key, batch.schema_ref(), std::slice::from_ref(batch))
    }

    /// Publishes record batches of one schema under `key`, as one version; see [`push_batch`](Self::push_batch). A shared
    /// dictionary is sent once; of a growing dictionary only the new values are sent.
    pub fn push_table<'a>(
        &self,
        key: impl ToKey,
        schema: &SchemaRef,
        batches: impl IntoIterator<Item = &'a RecordBatch>,
    ) -> Push<'static, Self> {
        Push::new(self.handle().session(), to_key(&key), encode(schema, batches))
    }

    /// Fetches the record batch under `key`, and waits until there is one. Its arrays share the memory where it landed,
    /// or where its owner built it. A version that does not fit the landing pool comes in [buckets](Fetch::bucket_bytes).
    pub fn fetch_batch(&self, key: impl ToKey) -> Fetch<Self, FetchedBatch> {
        Fetch::new(self.handle().session(), to_key(&key), take_batch).or_large(Some(large_batch))
    }

    /// Fetches record batches that were pushed as one version; see [`fetch_batch`](Self::fetch_batch).
    pub fn fetch_table(&self, key: impl ToKey) -> Fetch<Self, FetchedTable> {
        Fetch::new(self.handle().session(), to_key(&key), take_table).or_large(Some(large_table))
    }

    /// Makes a reader of the versions of `key` that [`push_batch`](Self::push_batch) publishes.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn batch_subscriber(&self, key: impl ToKey) -> Result<Subscriber<Self, FetchedBatch>, Error> {
        Ok(Subscriber::new(self.handle().connection(), &key, take_batch)?.or_large(large_batch))
    }

    /// Makes a reader of the versions of `key` that [`push_table`](Self::push_table) publishes.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn table_subscriber(&self, key: impl ToKey) -> Result<Subscriber<Self, FetchedTable>, Error> {
        Ok(Subscriber::new(self.handle().connection(), &key, take_table)?.or_large(large_table))
    }

    /// Begins a stream of batches under `key`, which belongs to this stream alone. Its batches are versions 1, 2, and
    /// so on. Each stays until its one reader has fetched it; see [`BatchStream::readers`]. When the arena is full of
    /// batches that were not fetched yet, a push waits.
    pub fn push_stream(&self, key: impl ToKey, schema: &SchemaRef) -> BatchStream<Self> {
        BatchStream::new(self.handle().connection().clone(), to_key(&key), schema)
    }

    /// Reads a stream of batches from its beginning. The stream need not exist yet.
    pub fn fetch_stream(&self, key: impl ToKey) -> BatchStreamReader<Self> {
        BatchStreamReader::new(self.handle().connection().clone(), to_key(&key))
    }
}
