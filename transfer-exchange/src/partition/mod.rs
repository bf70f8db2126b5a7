//! The choice of a partition for each row.
//!
//! # Layout
//! - this file: the ways to choose, and those that look at no column. `hash`, `range`, `column`: the others.
//! - `prefix`: the first bytes of values as numbers that have their order.

mod column;
mod hash;
mod prefix;
mod range;

use crate::error::PartitionError;
pub use range::Bounds;

// XXH64 is fixed by its [specification](https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), so every host and
// every version of this library gives a row the same partition, and so can any other program.
pub(super) use xxhash_rust::xxh64::xxh64;

/// The hash of the 8 bytes of a number, the lowest byte first.
#[inline]
pub(super) fn xxh64_u64(number: u64, seed: u64) -> u64 {
    xxh64(&number.to_le_bytes(), seed)
}

use arrow_array::{ArrayRef, RecordBatch};

/// How the partition of a row is chosen. All but `RoundRobin` and `Random` look at nothing but the row.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum By<'a> {
    /// By a hash of these columns: rows with equal values have the same partition, on every host and with every
    /// version.
    ///
    /// The hash of a value is XXH64 with seed 0. Integers, booleans, dates, times and intervals of months are hashed as
    /// the 8 bytes of the number, floats as the 8 bytes of the double, decimals as 16 bytes (a value that needs more:
    /// 32), strings and bytes as they are. So the width of a type does not matter, and `-0.0` equals `0.0`, and every
    /// NaN every other. A value of a dictionary is hashed like the value itself. Null is hashed as no bytes with seed 1.
    /// A struct, a list, and more than one column: `h = XXH64(h of the next one, seed h so far)`; a struct begins with
    /// 0, a list with the hash of its length, columns with the hash of the first. The partition is
    /// `h * partitions / 2^64`. Maps and unions cannot be hashed.
    ///
    /// What is hashed is the number that the column has, without the scale or unit of its type: 1.5 of scale 1 is 15,
    /// and 1.50 of scale 2 is 150; an instant has another number in seconds than in microseconds. Integers, floats and
    /// decimals have different hashes, too. So cast the columns of two sides to one type before their rows are to meet.
    /// The hash does not do that, because tasks of two versions would send equal keys to different partitions.
    Hash(&'a [&'a str]),
    /// By bounds: partition 0 has the rows below the first bound, partition n those from bound n - 1 up to bound n.
    Range(&'a Bounds),
    /// By an integer column that names the partition.
    Column(&'a str),
    /// At random, by a seed: the partition depends on the seed, the task, and the row's number within its task.
    Random(u64),
    /// In turn: the task's row n has partition `(task + n) % partitions`.
    RoundRobin,
}

/// The rows whose partitions are chosen: those of one batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowPosition {
    pub(super) partitions: u32,
    pub(super) task: u32,
    /// The number of the batch's first row within its task.
    pub(super) first_row: u64,
}

impl By<'_> {
    /// Writes the partition of each row into `chosen`, which is overwritten.
    pub(super) fn choose(
        &self,
        batch: &RecordBatch,
        place: RowPosition,
        chosen: &mut Vec<u32>,
    ) -> Result<(), PartitionError> {
        let RowPosition { partitions, task, first_row } = place;
        let rows = batch.num_rows() as u64;
        chosen.clear();
        match *self {
            By::Hash(columns) => hash::choose(batch, columns, partitions, chosen)?,
            By::Range(bounds) => bounds.choose(batch, partitions, chosen)?,
            By::Column(column) => column::choose(batch, column, partitions, chosen)?,
            By::Random(seed) => {
                let seed = xxh64_u64(u64::from(task), seed);
                chosen.extend((0..rows).map(|row| scale(xxh64_u64(first_row.wrapping_add(row), seed), partitions)));
            }
            By::RoundRobin => {
                let partitions = u64::from(partitions);
                let first = (u64::from(task) % partitions + first_row % partitions) % partitions;
                chosen.extend((0..rows).map(|row| ((first + row) % partitions) as u32));
            }
        }
        Ok(())
    }
}

/// The partition of a hash.
#[inline]
fn scale(hash: u64, partitions: u32) -> u32 {
    ((u128::from(hash) * u128::from(partitions)) >> 64) as u32
}

fn find<'a>(batch: &'a RecordBatch, column: &str) -> Result<&'a ArrayRef, PartitionError> {
    batch.column_by_name(column).ok_or_else(|| {
        let columns: Vec<String> = batch.schema_ref().fields().iter().map(|f| format!("{:?}", f.name())).collect();
        PartitionError::NoColumn { column: column.to_owned(), columns: columns.join(", ") }
    })
}

#[cfg(test)]
mod tests;
