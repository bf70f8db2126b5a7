//! Partitioning alone, for `benches/micro`.

use super::partition::By;
use super::scatter::{LARGEST_BLOCK_BYTES, Scatter};
use crate::{BlockingClient, DType, Error, PartitionError};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::num::NonZeroU32;

/// A task whose blocks are not published: what writing into an exchange costs without the exchange.
#[doc(hidden)]
#[derive(Debug)]
pub struct MeasuredTask {
    client: BlockingClient,
    scatter: Scatter,
}

/// The reason why a measured task failed.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MeasureError {
    #[error(transparent)]
    Client(#[from] Error),
    #[error(transparent)]
    Partition(#[from] PartitionError),
}

impl MeasuredTask {
    #[doc(hidden)]
    pub fn new(
        client: &BlockingClient,
        schema: &SchemaRef,
        partitions: NonZeroU32,
    ) -> Result<MeasuredTask, MeasureError> {
        let scatter = Scatter::new(schema, partitions, 0, LARGEST_BLOCK_BYTES).map_err(PartitionError::from)?;
        Ok(MeasuredTask { client: client.clone(), scatter })
    }

    #[doc(hidden)]
    pub fn write(&mut self, batch: &RecordBatch, by: By<'_>) -> Result<(), MeasureError> {
        let placement = self.scatter.prepare(batch, &by)?;
        let blocks = placement.sizes().iter().map(|size| self.client.allocate(DType::U8, [*size]));
        let blocks = blocks.collect::<Result<_, _>>()?;
        self.scatter.place(placement, blocks);
        Ok(())
    }

    /// Returns the number of blocks, and of their bytes.
    #[doc(hidden)]
    pub fn finish(self) -> (u64, u64) {
        let blocks = self.scatter.finish().partitions.into_iter().flatten();
        blocks.fold((0, 0), |(blocks, bytes), block| (blocks + 1, bytes + block.len_bytes()))
    }
}
