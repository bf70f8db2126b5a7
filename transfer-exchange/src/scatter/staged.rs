//! Rows that wait on the heap until there are enough of them for a block, for schemas with a type that only Arrow's own
//! kernels can take apart.

use super::{Block, FIRST_BLOCK_BYTES, Groups};
use crate::block::{ALIGNMENT, HEADER_BYTES, Header, write_head};
use crate::taken::rows_of;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::ArrowError;
use arrow_select::concat::concat_batches;
use transfer_client::{BatchError, EncodedBatch, TensorMut};

/// The rows of a task that wait on the heap.
#[derive(Debug)]
pub(super) struct Staged {
    largest_block: usize,
    stages: Vec<Stage>,
}

/// The rows of a partition that wait.
#[derive(Debug)]
struct Stage {
    taken: Vec<Taken>,
    bytes: usize,
    /// The number of bytes from which they are a block.
    target: usize,
}

/// Rows of one batch.
#[derive(Debug)]
struct Taken {
    batch: RecordBatch,
    /// Their numbers within the task.
    rows: Vec<u64>,
    bytes: usize,
}

/// What waits after a batch, and the rows of it and of earlier ones that are a block now.
#[derive(Debug, Default)]
pub(super) struct Plan {
    next: Vec<Next>,
    packed: Vec<(usize, Packed)>,
}

/// What waits in a partition.
#[derive(Debug)]
struct Next {
    partition: usize,
    /// Whether that which waited before is a block now.
    is_packed: bool,
    /// The rows that wait, behind those that waited before unless they are a block.
    stage: Stage,
}

/// An encoded block, still on the heap.
#[derive(Debug)]
struct Packed {
    encoded: EncodedBatch,
    rows: Vec<u64>,
}

impl Staged {
    pub(super) fn new(partitions: usize, largest_block: usize) -> Staged {
        let stage = || Stage { taken: Vec::new(), bytes: 0, target: FIRST_BLOCK_BYTES };
        Staged { largest_block, stages: (0..partitions).map(|_| stage()).collect() }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.stages.iter().all(|stage| stage.taken.is_empty())
    }

    pub(super) fn prepare(
        &self,
        batch: &RecordBatch,
        groups: &Groups,
        first_row: u64,
    ) -> Result<(Vec<u64>, Plan), BatchError> {
        let mut plan = Plan::default();
        for (partition, range) in groups.ranges() {
            self.stage(partition, batch, &groups.rows[range], first_row, &mut plan)?;
        }
        Ok((plan.sizes(), plan))
    }

    /// Takes rows of a partition, as many at once as a block has.
    fn stage(
        &self,
        partition: usize,
        batch: &RecordBatch,
        rows: &[u32],
        first_row: u64,
        plan: &mut Plan,
    ) -> Result<(), BatchError> {
        let waited = &self.stages[partition];
        let all = Taken::new(batch, rows, first_row).map_err(failed)?;
        // A power of two, unless that would be too large.
        let needed = (waited.bytes + all.bytes).min(self.largest_block).next_power_of_two();
        let target = waited.target.max(needed).min(self.largest_block);
        let stage = Stage { taken: Vec::new(), bytes: waited.bytes, target };
        let mut next = Next { partition, is_packed: false, stage };
        let mut left = match all.bytes > target {
            true => rows,
            false => {
                self.add(&mut next, all, plan)?;
                plan.next.push(next);
                return Ok(());
            }
        };
        while !left.is_empty() {
            let count = next.stage.target as u128 * rows.len() as u128 / all.bytes as u128;
            let (rows, after) = left.split_at(left.len().min(count.max(1) as usize));
            left = after;
            self.add(&mut next, Taken::new(batch, rows, first_row).map_err(failed)?, plan)?;
        }
        plan.next.push(next);
        Ok(())
    }

    /// Adds rows to what waits, and packs it if it is enough for a block.
    fn add(&self, next: &mut Next, taken: Taken, plan: &mut Plan) -> Result<(), BatchError> {
        let first = self.waiting(next).next().map(Taken::first);
        let is_far = |first| taken.last() - first > u64::from(u32::MAX);
        let is_too_much = next.stage.bytes + taken.bytes > next.stage.target + next.stage.target / 8;
        if first.is_some_and(|first| is_far(first) || is_too_much) {
            self.pack(next, plan)?;
        }
        next.stage.bytes += taken.bytes;
        next.stage.taken.push(taken);
        match next.stage.bytes >= next.stage.target {
            true => self.pack(next, plan),
            false => Ok(()),
        }
    }

    /// What waits in a partition, in its order.
    fn waiting<'a>(&'a self, next: &'a Next) -> impl Iterator<Item = &'a Taken> {
        let before = if next.is_packed { &[][..] } else { &self.stages[next.partition].taken };
        before.iter().chain(&next.stage.taken)
    }

    /// Makes a block of what waits.
    fn pack(&self, next: &mut Next, plan: &mut Plan) -> Result<(), BatchError> {
        pack(next.partition, &self.waiting(next).collect::<Vec<_>>(), &mut plan.packed)?;
        let target = next.stage.target.saturating_mul(2).min(self.largest_block);
        next.stage = Stage { taken: Vec::new(), bytes: 0, target };
        next.is_packed = true;
        Ok(())
    }

    pub(super) fn prepare_rest(&self) -> Result<(Vec<u64>, Plan), BatchError> {
        let mut plan = Plan::default();
        for (partition, stage) in self.stages.iter().enumerate().filter(|(_, stage)| !stage.taken.is_empty()) {
            let stage = Stage { taken: Vec::new(), bytes: stage.bytes, target: stage.target };
            let mut next = Next { partition, is_packed: false, stage };
            self.pack(&mut next, &mut plan)?;
            plan.next.push(next);
        }
        Ok((plan.sizes(), plan))
    }

    pub(super) fn place(&mut self, plan: Plan, tensors: Vec<TensorMut>, complete: &mut [Vec<Block>]) {
        for ((partition, packed), tensor) in plan.packed.into_iter().zip(tensors) {
            complete[partition].push(packed.write(tensor));
        }
        for Next { partition, is_packed, stage: Stage { taken, bytes, target } } in plan.next {
            let stage = &mut self.stages[partition];
            if is_packed {
                stage.taken.clear();
            }
            stage.taken.extend(taken);
            (stage.bytes, stage.target) = (bytes, target);
        }
    }
}

impl Plan {
    fn sizes(&self) -> Vec<u64> {
        self.packed.iter().map(|(_, packed)| packed.len() as u64).collect()
    }
}

/// Makes a block of these rows: several if Arrow cannot put them together, as with dictionaries that together have more
/// values than keys.
fn pack(partition: usize, taken: &[&Taken], packed: &mut Vec<(usize, Packed)>) -> Result<(), BatchError> {
    let Some(first) = taken.first() else { return Ok(()) };
    let schema = first.batch.schema_ref();
    let together = match taken {
        [one] => Ok(one.batch.clone()),
        many => concat_batches(schema, many.iter().map(|taken| &taken.batch)),
    };
    let Ok(batch) = together else {
        let (before, after) = taken.split_at(taken.len() / 2);
        pack(partition, before, packed)?;
        return pack(partition, after, packed);
    };
    let encoded = EncodedBatch::new(&batch)?;
    let rows = taken.iter().flat_map(|taken| taken.rows.iter().copied()).collect();
    packed.push((partition, Packed { encoded, rows }));
    Ok(())
}

impl Taken {
    fn new(batch: &RecordBatch, rows: &[u32], first_row: u64) -> Result<Taken, ArrowError> {
        let batch = rows_of(batch, rows)?;
        let bytes = (bytes_of(&batch) + rows.len() * 4).max(1);
        Ok(Taken { batch, rows: rows.iter().map(|row| first_row + u64::from(*row)).collect(), bytes })
    }

    fn first(&self) -> u64 {
        self.rows.first().copied().unwrap_or(0)
    }

    fn last(&self) -> u64 {
        self.rows.last().copied().unwrap_or(0)
    }
}

impl Packed {
    fn row_numbers_at(&self) -> usize {
        (HEADER_BYTES + self.encoded.messages.len()).next_multiple_of(ALIGNMENT)
    }

    fn body_at(&self) -> usize {
        (self.row_numbers_at() + self.rows.len() * 4).next_multiple_of(ALIGNMENT)
    }

    fn len(&self) -> usize {
        let buffers = self.encoded.buffers.iter().map(|buffer| buffer.len().next_multiple_of(ALIGNMENT));
        self.body_at() + buffers.sum::<usize>()
    }

    fn write(self, mut tensor: TensorMut) -> Block {
        let (row_numbers_at, body_at, len) = (self.row_numbers_at(), self.body_at(), self.len());
        let Packed { encoded: EncodedBatch { messages, buffers }, rows } = self;
        let first_row = rows.first().copied().unwrap_or(0);
        let bytes = tensor.as_mut_bytes();
        let header = Header {
            rows: rows.len() as u64,
            first_row,
            row_numbers_at: row_numbers_at as u64,
            body_at: body_at as u64,
        };
        write_head(bytes, &header, &messages, messages.len());
        let (numbers, rest) = bytes[row_numbers_at..body_at].split_at_mut(rows.len() * 4);
        for (place, row) in numbers.as_chunks_mut::<4>().0.iter_mut().zip(&rows) {
            // Fits: a stage is packed before its numbers are too far apart.
            *place = ((row - first_row) as u32).to_ne_bytes();
        }
        rest.fill(0);
        let mut at = body_at;
        for buffer in &buffers {
            let end = at + buffer.len();
            bytes[at..end].copy_from_slice(buffer);
            at = end.next_multiple_of(ALIGNMENT);
            bytes[end..at].fill(0);
        }
        bytes[at..len].fill(0);
        Block::new(tensor, len)
    }
}

fn failed(e: ArrowError) -> BatchError {
    BatchError::arrow("the rows of a partition cannot be taken")(e)
}

/// The bytes of a batch, about.
fn bytes_of(batch: &RecordBatch) -> usize {
    let bytes_of =
        |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size());
    batch.columns().iter().map(bytes_of).sum()
}
