//! Rows that are copied straight into blocks.

use super::building::Building;
use super::layout::{Layout, Shape, Slot};
use super::sources::{Source, sources};
use super::{Block, FIRST_BLOCK_BYTES, Groups};
use arrow_array::RecordBatch;
use std::ops::Range;
use transfer_client::TensorMut;

/// The number of rows of a block from which they are copied a column at a time.
const FEW_ROWS: usize = 32;

/// The open blocks of a task.
#[derive(Debug)]
pub(super) struct Direct {
    layout: Layout,
    largest_block: usize,
    open: Vec<Option<Building>>,
}

/// The blocks to which the rows of a batch go.
#[derive(Debug, Default)]
pub(super) struct Plan {
    batch: Option<Vec<Source>>,
    parts: Vec<Part>,
    new: Vec<New>,
}

/// Rows that go into one block.
#[derive(Debug)]
struct Part {
    partition: usize,
    /// The range of the rows in the groups.
    rows: Range<usize>,
    /// The index of the new block; else they go into the open one.
    new: Option<usize>,
}

#[derive(Debug)]
struct New {
    partition: usize,
    shape: Shape,
    first_row: u64,
}

/// What a block has room for.
struct Room<'a> {
    shape: &'a Shape,
    rows: usize,
    used: &'a [usize],
    first_row: u64,
}

impl Direct {
    pub(super) fn new(layout: Layout, partitions: usize, largest_block: usize) -> Direct {
        // Of a schema with thousands of columns, a message alone may be larger.
        let largest_block = largest_block.max((layout.overhead() * 8).next_power_of_two());
        Direct { layout, largest_block, open: (0..partitions).map(|_| None).collect() }
    }

    pub(super) fn prepare(&self, batch: &RecordBatch, groups: &Groups, first_row: u64) -> (Vec<u64>, Plan) {
        let sources = sources(batch);
        let data: Vec<&Source> = self.data(&sources).collect();
        let rows = batch.num_rows();
        let mean: Vec<usize> = data.iter().map(|source| source.len_of_all(rows).div_ceil(rows.max(1))).collect();
        let (mut parts, mut new) = (Vec::new(), Vec::<New>::new());
        for (partition, range) in groups.ranges() {
            let mut left = range;
            let open = self.open[partition].as_ref();
            // Strings of a partition are often of other lengths than those of others: its last block says how long.
            let mean = match open {
                Some(open) => open.used().iter().map(|used| used.div_ceil(open.rows().max(1))).collect(),
                None => mean.clone(),
            };
            let mut last_size = open.map(|open| open.shape().size);
            if let Some(open) = open {
                let room =
                    Room { shape: open.shape(), rows: open.rows(), used: open.used(), first_row: open.first_row() };
                let count = room.count(&groups.rows[left.clone()], &data, first_row);
                if count > 0 {
                    parts.push(Part { partition, rows: left.start..left.start + count, new: None });
                    left.start += count;
                }
            }
            while !left.is_empty() {
                let rows = &groups.rows[left.clone()];
                let first: Vec<usize> = data.iter().map(|source| source.len_of(rows[0] as usize)).collect();
                let shape = self.layout.shape(self.target(last_size, rows.len(), &mean), &mean, &first);
                let none = vec![0; first.len()];
                let block_first_row = first_row + u64::from(rows[0]);
                let room = Room { shape: &shape, rows: 0, used: &none, first_row: block_first_row };
                // There is room for the first row.
                let count = room.count(rows, &data, first_row).max(1);
                last_size = Some(shape.size);
                parts.push(Part { partition, rows: left.start..left.start + count, new: Some(new.len()) });
                new.push(New { partition, shape, first_row: block_first_row });
                left.start += count;
            }
        }
        let sizes = new.iter().map(|new| new.shape.size as u64).collect();
        (sizes, Plan { batch: Some(sources), parts, new })
    }

    /// The sources that have bytes in a `Data` slot.
    fn data<'a>(&'a self, sources: &'a [Source]) -> impl Iterator<Item = &'a Source> {
        let slots = self.layout.slots().iter().zip(sources);
        slots.filter(|(slot, _)| matches!(slot, Slot::Offsets { .. } | Slot::Views { .. })).map(|(_, source)| source)
    }

    /// The size of a partition's next block, for so many rows.
    fn target(&self, last_size: Option<usize>, rows: usize, mean: &[usize]) -> usize {
        let data = mean.iter().map(|bytes| bytes.saturating_mul(rows)).fold(0_usize, usize::saturating_add);
        let needed = self.layout.bytes_of_rows(rows).saturating_add(data);
        let doubled = last_size.map_or(FIRST_BLOCK_BYTES, |size| size.saturating_mul(2));
        // A power of two, unless that would be too large.
        let needed = needed.min(self.largest_block).next_power_of_two();
        doubled.max(needed).min(self.largest_block)
    }

    pub(super) fn place(
        &mut self,
        plan: Plan,
        groups: &Groups,
        tensors: Vec<TensorMut>,
        first_row: u64,
        complete: &mut [Vec<Block>],
    ) {
        let Plan { batch, parts, new } = plan;
        let Some(sources) = batch else { return };
        let mut fresh: Vec<(usize, Building)> = Vec::with_capacity(new.len());
        for (New { partition, shape, first_row }, tensor) in new.into_iter().zip(tensors) {
            fresh.push((partition, Building::new(tensor, shape, &self.layout, first_row)));
        }
        let slots: Vec<(usize, (&Slot, &Source))> = self.layout.slots().iter().zip(&sources).enumerate().collect();
        // With few rows for each block, finding the block costs more than finding the column.
        let slots_at_once = if groups.rows.len() < parts.len() * FEW_ROWS { slots.len() } else { 1 };
        for slots in slots.chunks(slots_at_once) {
            for Part { partition, rows, new } in &parts {
                let Some(block) = block(&mut self.open, &mut fresh, *partition, *new) else { continue };
                for (at, (slot, source)) in slots {
                    block.append(*at, **slot, source, &groups.rows[rows.clone()], first_row);
                }
            }
        }
        for Part { partition, rows, new } in &parts {
            if let Some(block) = block(&mut self.open, &mut fresh, *partition, *new) {
                block.added(rows.len());
            }
        }
        for (partition, block) in fresh {
            if let Some(full) = self.open[partition].replace(block) {
                complete[partition].push(full.close(&self.layout));
            }
        }
    }

    /// Completes the open blocks.
    pub(super) fn close(&mut self, complete: &mut [Vec<Block>]) {
        for (open, complete) in self.open.iter_mut().zip(complete) {
            complete.extend(open.take().map(|open| open.close(&self.layout)));
        }
    }

    /// How much memory the open blocks take, in bytes.
    pub(super) fn open_bytes(&self) -> u64 {
        self.open.iter().flatten().map(|open| open.shape().size as u64).sum()
    }
}

/// The block of a part: the new one of that index, or the open one.
fn block<'a>(
    open: &'a mut [Option<Building>],
    fresh: &'a mut [(usize, Building)],
    partition: usize,
    new: Option<usize>,
) -> Option<&'a mut Building> {
    match new {
        None => open.get_mut(partition)?.as_mut(),
        Some(new) => fresh.get_mut(new).map(|(_, block)| block),
    }
}

impl Room<'_> {
    /// How many of these rows there is room for.
    fn count(&self, rows: &[u32], data: &[&Source], first_row: u64) -> usize {
        let mut count = rows.len().min(self.shape.rows - self.rows);
        // Row numbers are differences of 32 bits.
        let reach = |row: &u32| first_row + u64::from(*row) - self.first_row <= u64::from(u32::MAX);
        if !rows[..count].last().is_none_or(reach) {
            count = rows[..count].partition_point(reach);
        }
        for ((source, used), room) in data.iter().zip(self.used).zip(&self.shape.room) {
            let left = room - used;
            let lens = rows[..count].iter().map(|row| source.len_of(*row as usize));
            if lens.clone().sum::<usize>() > left {
                let fit = lens.scan(0, |sum, len| {
                    *sum += len;
                    Some(*sum)
                });
                count = fit.take_while(|sum| *sum <= left).count();
            }
        }
        count
    }
}
