//! Rows of record batches, copied into blocks: one open block for each partition.
//!
//! Rows of most types are copied once, a column at a time, from the batch that is written straight into the block:
//! numbers, booleans, decimals, dates and times, strings and bytes (views, too), bytes of fixed size, nulls, and structs
//! and fixed-size lists of these (fixed-size lists only of those that have a fixed width). A batch that also has a column
//! of another type is copied twice, all columns of it: rows of lists, maps, unions, dictionaries and runs are first taken
//! apart by Arrow's own kernels, on the heap, and are copied into a block when there are enough of them.
//!
//! Writing has three steps. [`Scatter::choose`] chooses the partitions. [`Scatter::plan`] says which blocks are needed, and
//! changes nothing, so that the caller may wait for their memory, or give up. [`Scatter::place`] copies the rows.
//! [`Scatter::take`] takes what there is, so that its memory can be freed before the end.
//!
//! # Layout
//! - this file: the steps. `layout`: which buffers a block has. `sources`: those of a batch. `direct`: rows that are
//!   copied straight into blocks. `building`: a block that is being filled; `copy`: its loops. `staged`: rows that wait
//!   on the heap.

mod building;
mod copy;
mod direct;
mod layout;
mod sources;
mod staged;
#[cfg(test)]
mod tests;

use crate::block::Block;
use crate::error::PartitionError;
use crate::partition::{By, RowPosition};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use direct::Direct;
use layout::Layout;
use staged::Staged;
use std::num::NonZeroU32;
use std::ops::Range;
use transfer_client::{BatchDecoder, BatchError, TensorMut};

/// The size of a partition's first block, if its rows are few. Each further one has twice the size of the one before.
const FIRST_BLOCK_BYTES: usize = 4096;

/// The size up to which blocks double.
pub(crate) const LARGEST_BLOCK_BYTES: usize = 1 << 20;

/// The partitions of one task that is being written.
#[derive(Debug)]
pub(crate) struct Scatter {
    schema: SchemaRef,
    schema_message: Vec<u8>,
    partitions: NonZeroU32,
    task: u32,
    /// The number of rows so far.
    rows: u64,
    placing: Placing,
    /// The complete blocks of each partition.
    complete: Vec<Vec<Block>>,
}

#[derive(Debug)]
enum Placing {
    Direct(Direct),
    Staged(Staged),
}

/// The rows of a batch whose partitions are chosen.
#[derive(Debug)]
pub(crate) struct Chosen {
    batch: RecordBatch,
    groups: Groups,
}

/// Rows whose partitions and blocks are chosen, and that are not copied yet.
#[derive(Debug)]
pub(crate) struct Placement {
    /// The rows; `None` for those that wait on the heap alone.
    chosen: Option<Chosen>,
    /// The number of rows before it: another placement must not come between.
    after: u64,
    sizes: Vec<u64>,
    placing: Plan,
}

#[derive(Debug)]
enum Plan {
    Direct(direct::Plan),
    Staged(staged::Plan),
}

impl Placement {
    /// The sizes of the blocks that are needed, in bytes.
    pub(crate) fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// Gives the rows back, to plan again.
    pub(crate) fn into_chosen(self) -> Option<Chosen> {
        self.chosen
    }
}

/// What a task wrote.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Finished {
    /// The number of its rows.
    pub(crate) rows: u64,
    /// The blocks of each partition, in the order of their rows.
    pub(crate) partitions: Vec<Vec<Block>>,
}

impl Scatter {
    /// Begins a task. Blocks double up to `largest_block` bytes, which is [`LARGEST_BLOCK_BYTES`] usually.
    ///
    /// # Errors
    /// [`BatchError`] if there can be no batches of that schema.
    pub(crate) fn new(
        schema: &SchemaRef,
        partitions: NonZeroU32,
        task: u32,
        largest_block: usize,
    ) -> Result<Scatter, BatchError> {
        let schema_message = BatchDecoder::schema_message(schema)?;
        // Offsets of 32 bits reach everything in a block.
        let largest_block = largest_block.clamp(FIRST_BLOCK_BYTES, 1 << 30);
        let count = partitions.get() as usize;
        let placing = match Layout::new(schema) {
            Some(layout) => Placing::Direct(Direct::new(layout, count, largest_block)),
            None => Placing::Staged(Staged::new(count, largest_block)),
        };
        let complete = (0..count).map(|_| Vec::new()).collect();
        Ok(Scatter { schema: schema.clone(), schema_message, partitions, task, rows: 0, placing, complete })
    }

    /// The message of the schema, for [`BlockReader::new`](super::block::BlockReader::new).
    pub(crate) fn schema_message(&self) -> &[u8] {
        &self.schema_message
    }

    /// The number of rows that were written.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Chooses the partition and the block of each row. Nothing changes until [`Scatter::place`].
    ///
    /// # Errors
    /// [`PartitionError`] if the batch cannot be partitioned like that. Nothing of it is written then.
    #[cfg(test)]
    pub(crate) fn prepare(&self, batch: &RecordBatch, by: &By<'_>) -> Result<Placement, PartitionError> {
        Ok(self.plan(self.choose(batch, by)?)?)
    }

    /// Chooses the partition of each row.
    ///
    /// # Errors
    /// [`PartitionError`] if the batch cannot be partitioned like that.
    pub(crate) fn choose(&self, batch: &RecordBatch, by: &By<'_>) -> Result<Chosen, PartitionError> {
        if batch.schema_ref() != &self.schema {
            let (expected, found) = (self.schema.to_string(), batch.schema_ref().to_string());
            return Err(BatchError::OtherSchema { expected, found }.into());
        }
        if u32::try_from(batch.num_rows()).is_err() {
            return Err(PartitionError::TooManyRows { rows: batch.num_rows() });
        }
        let place = RowPosition { partitions: self.partitions.get(), task: self.task, first_row: self.rows };
        let mut chosen = Vec::new();
        by.choose(batch, place, &mut chosen)?;
        let groups = Groups::new(&chosen, self.partitions.get() as usize);
        Ok(Chosen { batch: batch.clone(), groups })
    }

    /// Chooses the block of each row. Nothing changes until [`Scatter::place`]. If blocks are [taken](Scatter::take)
    /// meanwhile, the rows have to be planned again.
    ///
    /// # Errors
    /// [`BatchError`] if Arrow cannot encode them.
    pub(crate) fn plan(&self, chosen: Chosen) -> Result<Placement, BatchError> {
        let Chosen { batch, groups } = &chosen;
        let (sizes, placing) = match &self.placing {
            Placing::Direct(direct) => {
                let (sizes, plan) = direct.prepare(batch, groups, self.rows);
                (sizes, Plan::Direct(plan))
            }
            Placing::Staged(staged) => {
                let (sizes, plan) = staged.prepare(batch, groups, self.rows)?;
                (sizes, Plan::Staged(plan))
            }
        };
        Ok(Placement { chosen: Some(chosen), after: self.rows, sizes, placing })
    }

    /// Says which blocks are still needed for rows that wait on the heap, at the end of the task.
    ///
    /// # Errors
    /// [`BatchError`] if Arrow cannot encode them.
    pub(crate) fn prepare_rest(&self) -> Result<Placement, BatchError> {
        let (sizes, placing) = match &self.placing {
            Placing::Direct(_) => (Vec::new(), Plan::Direct(direct::Plan::default())),
            Placing::Staged(staged) => {
                let (sizes, plan) = staged.prepare_rest()?;
                (sizes, Plan::Staged(plan))
            }
        };
        Ok(Placement { chosen: None, after: self.rows, sizes, placing })
    }

    /// Copies the rows of a placement. `blocks` are tensors of bytes of the sizes that it needs.
    ///
    /// # Panics
    /// If the blocks have other sizes, or other rows were placed since the placement was prepared.
    pub(crate) fn place(&mut self, placement: Placement, blocks: Vec<TensorMut>) {
        let Placement { chosen, after, sizes, placing } = placement;
        let none = Groups::default();
        let groups = chosen.as_ref().map_or(&none, |chosen| &chosen.groups);
        assert_eq!(after, self.rows, "rows were placed since this placement was prepared");
        assert!(
            blocks.iter().map(|block| block.meta().len_bytes()).eq(sizes),
            "the blocks are not those that are needed"
        );
        match (&mut self.placing, placing) {
            (Placing::Direct(direct), Plan::Direct(plan)) => {
                direct.place(plan, groups, blocks, after, &mut self.complete)
            }
            (Placing::Staged(staged), Plan::Staged(plan)) => staged.place(plan, blocks, &mut self.complete),
            _ => unreachable!("a placement of another task"),
        }
        self.rows += chosen.map_or(0, |chosen| chosen.batch.num_rows() as u64);
    }

    /// Takes all blocks, also those that are not full, each with its partition, in the order of partitions. Later rows
    /// go into new ones.
    pub(crate) fn take(&mut self) -> Vec<(usize, Block)> {
        if let Placing::Direct(direct) = &mut self.placing {
            direct.close(&mut self.complete);
        }
        let each = self.complete.iter_mut().enumerate();
        each.flat_map(|(partition, blocks)| blocks.drain(..).map(move |block| (partition, block))).collect()
    }

    /// Gives blocks back that were taken, before any others come.
    pub(crate) fn give_back(&mut self, blocks: impl IntoIterator<Item = (usize, Block)>) {
        for (partition, block) in blocks {
            self.complete[partition].push(block);
        }
    }

    /// How much memory its blocks take, in bytes.
    pub(crate) fn block_bytes(&self) -> u64 {
        let open = match &self.placing {
            Placing::Direct(direct) => direct.open_bytes(),
            Placing::Staged(_) => 0,
        };
        open + self.complete.iter().flatten().map(Block::len_bytes).sum::<u64>()
    }

    /// Ends the task: completes the blocks that are not full. What [`Scatter::prepare_rest`] asks for must have been
    /// placed.
    #[cfg(test)]
    pub(crate) fn finish(mut self) -> Finished {
        let mut partitions: Vec<_> = self.complete.iter().map(|_| Vec::new()).collect();
        self.take().into_iter().for_each(|(partition, block)| partitions[partition].push(block));
        if let Placing::Staged(staged) = &self.placing {
            assert!(staged.is_empty(), "rows still wait on the heap");
        }
        Finished { rows: self.rows, partitions }
    }
}

/// The rows of a batch, sorted by partition; those of one partition ascend.
#[derive(Debug, Default)]
struct Groups {
    rows: Vec<u32>,
    /// The end of each partition in `rows`.
    ends: Vec<u32>,
}

impl Groups {
    fn new(chosen: &[u32], partitions: usize) -> Groups {
        // One more, so that each partition's start turns into its end.
        let mut ends = vec![0_u32; partitions + 1];
        for partition in chosen {
            ends[*partition as usize + 1] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum;
        }
        let mut rows = vec![0_u32; chosen.len()];
        for (row, partition) in (0_u32..).zip(chosen) {
            let place = &mut ends[*partition as usize];
            rows[*place as usize] = row;
            *place += 1;
        }
        ends.truncate(partitions);
        Groups { rows, ends }
    }

    /// The partitions that have rows, and the ranges of them.
    fn ranges(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut start = 0;
        let ranges = self.ends.iter().enumerate().map(move |(partition, end)| {
            let range = start..*end as usize;
            start = range.end;
            (partition, range)
        });
        ranges.filter(|(_, range)| !range.is_empty())
    }
}
