//! An order of a partition's rows that depends on nothing but a seed and the rows' tasks and numbers.

use crate::block::Decoded;
use crate::partition::{xxh64, xxh64_u64};
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray, RecordBatch, RecordBatchOptions, UInt64Array,
    downcast_primitive,
};
use arrow_buffer::ScalarBuffer;
use arrow_schema::{DataType, SchemaRef};
use arrow_select::interleave::interleave;
use arrow_select::take::take;
use std::sync::Arc;
use transfer_client::BatchError;

/// Rows of one bucket, about: their values of a column are in the nearest cache when they are put in order.
const ROWS_PER_BUCKET: usize = 512;

/// The rows of a partition in an order that a seed chooses: by XXH64 of the row's number with XXH64 of the task's number
/// as its seed, whose own seed is that of the order; equal ones by task and number. The blocks, their sizes and when
/// they were read have no influence, and neither have the other rows.
///
/// It holds all rows of the partition, and 8 bytes more for each, or 16 if there are columns of other types than numbers.
/// Columns of numbers without null are moved into buckets first, from one end of the blocks to the other: rows that follow
/// each other are then near each other. Rows anywhere in a large column would each wait for the memory.
#[derive(Debug)]
pub(crate) struct Ordered {
    schema: SchemaRef,
    columns: Vec<Column>,
    /// The places of the rows in buckets.
    order: ScalarBuffer<u64>,
    /// The batch of the row at each place, and its number there. Empty if no column needs it.
    sources: Vec<(u32, u32)>,
    at: usize,
}

/// A column of all batches.
#[derive(Debug)]
enum Column {
    /// In buckets.
    Whole(ArrayRef),
    /// As it came: an array for each batch.
    Parts(Vec<ArrayRef>),
}

impl Ordered {
    /// Orders the rows of these blocks, each with the number of its task.
    pub(crate) fn new(schema: SchemaRef, seed: u64, mut blocks: Vec<(u32, Decoded)>) -> Ordered {
        // Equal hashes are then in the order of tasks and rows.
        blocks.sort_by_key(|(task, block)| (*task, block.row_numbers().next()));
        let Buckets { order, places } = Buckets::of(seed, &blocks);
        let batches: Vec<_> = blocks.into_iter().map(|(_, block)| block.into_batch()).collect();
        let columns: Vec<_> = (0..schema.fields().len()).map(|at| Column::of(&batches, at, &places)).collect();
        let mut sources = Vec::new();
        if columns.iter().any(|column| matches!(column, Column::Parts(_))) {
            sources.resize(places.len(), (0, 0));
            let rows =
                (0_u32..).zip(&batches).flat_map(|(batch, of)| (0..of.num_rows() as u32).map(move |row| (batch, row)));
            rows.zip(&places).for_each(|(row, place)| sources[*place as usize] = row);
        }
        Ordered { schema, columns, order: order.into(), sources, at: 0 }
    }

    /// The number of rows.
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

    /// The next rows: so many, or what is left. `None` at the end.
    ///
    /// # Errors
    /// [`BatchError`] if Arrow cannot put them together, as with dictionaries that together have more values than keys.
    /// The position stays.
    pub(crate) fn next(&mut self, most: usize) -> Result<Option<RecordBatch>, BatchError> {
        let end = self.order.len().min(self.at.saturating_add(most));
        if self.at == end {
            return Ok(None);
        }
        let batch = self.rows(self.order.slice(self.at, end - self.at))?;
        self.at = end;
        Ok(Some(batch))
    }

    fn rows(&self, places: ScalarBuffer<u64>) -> Result<RecordBatch, BatchError> {
        let failed = BatchError::arrow("rows of different blocks cannot be put together");
        let places = UInt64Array::new(places, None);
        let mut parts = None;
        let columns = self.columns.iter().map(|column| match column {
            Column::Whole(array) => take(array, &places, None),
            Column::Parts(arrays) => {
                let (used, indices) = parts.get_or_insert_with(|| self.used(places.values()));
                let arrays: Vec<&dyn Array> = used.iter().map(|batch| arrays[*batch as usize].as_ref()).collect();
                interleave(&arrays, indices)
            }
        });
        let columns = columns.collect::<Result<_, _>>().map_err(&failed)?;
        let options = RecordBatchOptions::new().with_row_count(Some(places.len()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(failed)
    }

    /// The batches that have some of these rows, and for each row the place of its batch among them, and its own there.
    fn used(&self, places: &[u64]) -> (Vec<u32>, Vec<(usize, usize)>) {
        let rows = || places.iter().map(|place| self.sources[*place as usize]);
        let mut used: Vec<u32> = rows().map(|(batch, _)| batch).collect();
        used.sort_unstable();
        used.dedup();
        let index = |batch: u32| used.binary_search(&batch).unwrap_or_default();
        let indices = rows().map(|(batch, row)| (index(batch), row as usize)).collect();
        (used, indices)
    }
}

/// The rows in buckets by the upper bits of their hashes, and within each as they lie in the blocks.
struct Buckets {
    /// The places of the rows, in the order of the seed.
    order: Vec<u64>,
    /// The place of each row, as they lie in the blocks.
    places: Vec<u64>,
}

/// The hashes of the rows of a block, by which they are ordered.
pub(super) fn hashes(seed: u64, task: u32, block: &Decoded) -> impl Iterator<Item = u64> {
    // So that it has nothing in common with partitions at random with the same seed.
    let seed = xxh64_u64(u64::from(task), xxh64(b"order", seed));
    block.row_numbers().map(move |number| xxh64_u64(number, seed))
}

impl Buckets {
    fn of(seed: u64, blocks: &[(u32, Decoded)]) -> Buckets {
        let hashes = || blocks.iter().flat_map(move |(task, block)| hashes(seed, *task, block));
        let rows: usize = blocks.iter().map(|(_, block)| block.row_numbers().len()).sum();
        let bits = (rows / ROWS_PER_BUCKET).max(2).ilog2().min(20);
        let bucket = |hash: u64| (hash >> (64 - bits)) as usize;
        let mut ends = vec![0_u64; 1 << bits];
        hashes().for_each(|hash| ends[bucket(hash)] += 1);
        let mut start = 0;
        for end in &mut ends {
            start += std::mem::replace(end, start);
        }
        let mut sorted = vec![(0, 0); rows];
        let mut places = Vec::with_capacity(rows);
        for hash in hashes() {
            let end = &mut ends[bucket(hash)];
            sorted[*end as usize] = (hash, *end);
            places.push(*end);
            *end += 1;
        }
        let mut start = 0;
        for end in ends {
            sorted[start..end as usize].sort_unstable();
            start = end as usize;
        }
        Buckets { order: sorted.into_iter().map(|(_, place)| place).collect(), places }
    }
}

impl Column {
    fn of(batches: &[RecordBatch], at: usize, places: &[u64]) -> Column {
        let parts: Vec<_> = batches.iter().map(|batch| batch.column(at).clone()).collect();
        match in_buckets(&parts, places) {
            Some(whole) => Column::Whole(whole),
            None => Column::Parts(parts),
        }
    }
}

/// The values of all arrays, each at its place. `None` if they are not all numbers.
fn in_buckets(parts: &[ArrayRef], places: &[u64]) -> Option<ArrayRef> {
    fn of<T: ArrowPrimitiveType>(parts: &[ArrayRef], data_type: &DataType, places: &[u64]) -> Option<ArrayRef> {
        let mut whole = vec![T::Native::default(); places.len()];
        let mut places = places.iter();
        for part in parts {
            let part = part.as_primitive_opt::<T>().filter(|part| part.null_count() == 0)?;
            part.values().iter().zip(&mut places).for_each(|(value, place)| whole[*place as usize] = *value);
        }
        Some(Arc::new(PrimitiveArray::<T>::new(whole.into(), None).with_data_type(data_type.clone())))
    }
    macro_rules! of {
        ($t:ty, $data_type:expr) => {
            of::<$t>(parts, $data_type, places)
        };
    }
    let data_type = parts.first()?.data_type();
    downcast_primitive! {
        data_type => (of, data_type),
        _ => None
    }
}
