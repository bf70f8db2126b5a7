//! An order of a partition's rows that depends on nothing but a seed and the rows' tasks and numbers.

use super::block::Decoded;
use super::partition::{xxh64, xxh64_u64};
use crate::BatchError;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::interleave::interleave_record_batch;
use std::num::NonZeroUsize;

/// The rows of a partition in an order that a seed chooses: by XXH64 of the row's number with XXH64 of the task's number
/// as its seed, whose own seed is that of the order; equal ones by task and number. The blocks, their sizes and when
/// they were read have no influence, and neither have the other rows.
///
/// It holds all blocks of the partition, and 8 bytes for each row.
#[derive(Debug)]
pub(crate) struct Ordered {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    /// The batch and the row in it.
    order: Vec<(u32, u32)>,
    at: usize,
    rows_per_batch: NonZeroUsize,
}

impl Ordered {
    /// Orders the rows of these blocks, each with the number of its task. Batches will have `rows_per_batch` rows, and
    /// the last one what is left.
    pub(crate) fn new(
        schema: SchemaRef,
        seed: u64,
        mut blocks: Vec<(u32, Decoded)>,
        rows_per_batch: NonZeroUsize,
    ) -> Ordered {
        // Equal hashes are then in the order of tasks and rows.
        blocks.sort_by_key(|(task, block)| (*task, block.row_numbers().next()));
        // So that it has nothing in common with partitions at random with the same seed.
        let seed = xxh64(b"order", seed);
        let rows = blocks.iter().map(|(_, block)| block.batch().num_rows()).sum();
        let mut hashed = Vec::with_capacity(rows);
        for (batch, (task, block)) in (0_u32..).zip(&blocks) {
            let seed = xxh64_u64(u64::from(*task), seed);
            let rows = block.row_numbers().zip(0_u32..);
            hashed.extend(rows.map(|(number, row)| (xxh64_u64(number, seed), batch, row)));
        }
        hashed.sort_unstable();
        let order = hashed.into_iter().map(|(_, batch, row)| (batch, row)).collect();
        let batches = blocks.into_iter().map(|(_, block)| block.into_batch()).collect();
        Ordered { schema, batches, order, at: 0, rows_per_batch }
    }

    /// The number of rows.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The number of rows that were returned or skipped.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Goes on from the row at this position, or ends if there is none.
    pub(crate) fn seek(&mut self, position: usize) {
        self.at = position.min(self.order.len());
    }

    /// The next rows. `None` at the end.
    ///
    /// # Errors
    /// [`BatchError`] if Arrow cannot put them together, as with dictionaries that together have more values than keys.
    /// The position stays.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>, BatchError> {
        let end = self.order.len().min(self.at.saturating_add(self.rows_per_batch.get()));
        if self.at == end {
            return Ok(None);
        }
        let batch = self.rows(&self.order[self.at..end])?;
        self.at = end;
        Ok(Some(batch))
    }

    /// Puts rows together, of only those batches that have some of them.
    fn rows(&self, rows: &[(u32, u32)]) -> Result<RecordBatch, BatchError> {
        let mut used: Vec<u32> = rows.iter().map(|(batch, _)| *batch).collect();
        used.sort_unstable();
        used.dedup();
        let batches: Vec<&RecordBatch> = used.iter().map(|batch| &self.batches[*batch as usize]).collect();
        let index = |batch: u32| used.binary_search(&batch).unwrap_or_default();
        let indices: Vec<(usize, usize)> = rows.iter().map(|(batch, row)| (index(*batch), *row as usize)).collect();
        let failed = BatchError::arrow("rows of different blocks cannot be put together");
        match self.schema.fields().is_empty() {
            true => self.without_columns(rows.len()),
            false => interleave_record_batch(&batches, &indices).map_err(failed),
        }
    }

    fn without_columns(&self, rows: usize) -> Result<RecordBatch, BatchError> {
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), Vec::new(), &options)
            .map_err(BatchError::arrow("rows without columns"))
    }
}
