//! An order of a partition's rows that depends on nothing but a seed and the rows' tasks and numbers.

use super::block::Decoded;
use super::partition::{xxh64, xxh64_u64};
use crate::BatchError;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat;
use arrow_select::interleave::interleave;
use arrow_select::take::take;
use std::num::NonZeroUsize;

/// Rows that are sorted together, about: few enough for the cache.
const ROWS_PER_BUCKET: usize = 512;

/// The rows of a partition in an order that a seed chooses: by XXH64 of the row's number with XXH64 of the task's number
/// as its seed, whose own seed is that of the order; equal ones by task and number. The blocks, their sizes and when
/// they were read have no influence, and neither have the other rows.
///
/// It holds all rows of the partition, and 8 bytes more for each. Columns of numbers are put together in memory of their
/// own, for rows are then taken from one array, which is three times as fast. If there are no others, the blocks are let go.
#[derive(Debug)]
pub(crate) struct Ordered {
    schema: SchemaRef,
    columns: Vec<Column>,
    /// The number of the first row of each batch, if the rows of all batches are counted.
    starts: Vec<u64>,
    /// The batch and the row in it.
    order: Vec<(u32, u32)>,
    at: usize,
    rows_per_batch: NonZeroUsize,
}

/// A column of all batches.
#[derive(Debug)]
enum Column {
    /// Put together.
    Whole(ArrayRef),
    /// As it came: an array for each batch.
    Parts(Vec<ArrayRef>),
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
        let order = order(seed, &blocks);
        let batches: Vec<_> = blocks.into_iter().map(|(_, block)| block.into_batch()).collect();
        let starts = batches.iter().scan(0, |rows, batch| {
            let start = *rows;
            *rows += batch.num_rows() as u64;
            Some(start)
        });
        let starts = starts.collect();
        let columns = (0..schema.fields().len()).map(|at| Column::of(&batches, at)).collect();
        Ordered { schema, columns, starts, order, at: 0, rows_per_batch }
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

    fn rows(&self, rows: &[(u32, u32)]) -> Result<RecordBatch, BatchError> {
        let (mut whole, mut parts) = (None, None);
        let columns = self.columns.iter().map(|column| match column {
            Column::Whole(array) => {
                let numbers = || rows.iter().map(|(batch, row)| self.starts[*batch as usize] + u64::from(*row));
                take(array, whole.get_or_insert_with(|| UInt64Array::from_iter_values(numbers())), None)
            }
            Column::Parts(arrays) => {
                let (used, indices) = parts.get_or_insert_with(|| used(rows));
                let arrays: Vec<&dyn Array> = used.iter().map(|batch| arrays[*batch as usize].as_ref()).collect();
                interleave(&arrays, indices)
            }
        });
        let columns = columns.collect::<Result<_, _>>().map_err(failed())?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(failed())
    }
}

impl Column {
    fn of(batches: &[RecordBatch], at: usize) -> Column {
        let parts: Vec<_> = batches.iter().map(|batch| batch.column(at).clone()).collect();
        // What has no fixed width would be copied once more, and may be too long for one array.
        let fixed = parts.first().is_some_and(|part| part.data_type().is_primitive());
        let whole = fixed.then(|| concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<_>>()));
        match whole {
            Some(Ok(whole)) => Column::Whole(whole),
            _ => Column::Parts(parts),
        }
    }
}

fn failed() -> impl FnOnce(arrow_schema::ArrowError) -> BatchError {
    BatchError::arrow("rows of different blocks cannot be put together")
}

/// The rows in their order: the block of each, and its place there.
fn order(seed: u64, blocks: &[(u32, Decoded)]) -> Vec<(u32, u32)> {
    // So that it has nothing in common with partitions at random with the same seed.
    let seed = xxh64(b"order", seed);
    let hashed = || {
        (0_u32..).zip(blocks).flat_map(move |(batch, (task, block))| {
            let seed = xxh64_u64(u64::from(*task), seed);
            block.row_numbers().zip(0_u32..).map(move |(number, row)| (xxh64_u64(number, seed), batch, row))
        })
    };
    // First by the upper bits of the hash, then within each of these buckets, which fits into the cache.
    let rows: usize = blocks.iter().map(|(_, block)| block.row_numbers().len()).sum();
    let bits = (rows / ROWS_PER_BUCKET).max(2).ilog2().min(20);
    let bucket = |hash: u64| (hash >> (64 - bits)) as usize;
    let mut ends = vec![0; 1 << bits];
    hashed().for_each(|(hash, ..)| ends[bucket(hash)] += 1);
    let mut start = 0;
    for end in &mut ends {
        start += std::mem::replace(end, start);
    }
    let mut sorted = vec![(0, 0, 0); rows];
    for entry in hashed() {
        let end = &mut ends[bucket(entry.0)];
        sorted[*end] = entry;
        *end += 1;
    }
    let mut start = 0;
    for end in ends {
        sorted[start..end].sort_unstable();
        start = end;
    }
    sorted.into_iter().map(|(_, batch, row)| (batch, row)).collect()
}

/// The batches that have some of these rows, and for each row the place of its batch among them, and its own there.
fn used(rows: &[(u32, u32)]) -> (Vec<u32>, Vec<(usize, usize)>) {
    let mut used: Vec<u32> = rows.iter().map(|(batch, _)| *batch).collect();
    used.sort_unstable();
    used.dedup();
    let index = |batch: u32| used.binary_search(&batch).unwrap_or_default();
    let indices = rows.iter().map(|(batch, row)| (index(*batch), *row as usize)).collect();
    (used, indices)
}
