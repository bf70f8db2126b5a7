//! A block that is being filled.

use super::copy::{bits, fixed, offsets, ones, row_numbers, views};
use super::layout::{Layout, Shape, Slot};
use super::sources::Source;
use crate::block::{ALIGNMENT, Block, Header, record_batch_message, write_head};
use transfer_client::TensorMut;

/// The part of a block, as 1 / `GAP_SHARE`, that may be gaps before its buffers are moved together.
const GAP_SHARE: usize = 8;

#[derive(Debug)]
pub(super) struct Building {
    tensor: TensorMut,
    shape: Shape,
    rows: usize,
    /// The number of the block's first row within its task.
    first_row: u64,
    /// The used bytes of each `Data` slot.
    used: Vec<usize>,
    /// The number of nulls of each node.
    nulls: Vec<usize>,
}

impl Building {
    /// Begins a block in a tensor that is as long as its shape.
    pub(super) fn new(tensor: TensorMut, shape: Shape, layout: &Layout, first_row: u64) -> Building {
        let (used, nulls) = (vec![0; layout.data()], vec![0; layout.nodes().len()]);
        Building { tensor, shape, rows: 0, first_row, used, nulls }
    }

    pub(super) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn first_row(&self) -> u64 {
        self.first_row
    }

    pub(super) fn used(&self) -> &[usize] {
        &self.used
    }

    /// Copies rows of one slot, behind the rows that the block has. `first_row` is the number of the batch's first row.
    ///
    /// There must be room, and all slots must get the same rows before [`Building::added`] is called.
    pub(super) fn append(&mut self, at: usize, slot: Slot, source: &Source, rows: &[u32], first_row: u64) {
        let (start, before) = (self.shape.starts[at], self.rows);
        let bytes = &mut self.tensor.as_mut_bytes()[start..];
        match (slot, source) {
            (Slot::RowNumbers, _) => {
                // Both fit 32 bits: a block ends before its numbers do not.
                let base = first_row.wrapping_sub(self.first_row) as u32;
                row_numbers(&mut bytes[before * 4..], rows, base);
            }
            (Slot::Validity { is_nullable: false, .. }, _) => {}
            (Slot::Validity { per_row, .. }, Source::Validity(None)) => {
                ones(bytes, before * per_row, rows.len() * per_row);
            }
            (Slot::Validity { node, per_row, .. }, Source::Validity(Some(nulls))) => {
                self.nulls[node] += bits(bytes, before * per_row, nulls.inner(), rows, per_row);
            }
            (Slot::Bits { per_row }, Source::Bits(source)) => {
                bits(bytes, before * per_row, source, rows, per_row);
            }
            (Slot::Fixed { width }, Source::Fixed(source)) => fixed(&mut bytes[before * width..], source, rows, width),
            (Slot::Offsets { data, .. }, Source::Offsets32(source, values)) => {
                let (places, room) = bytes.split_at_mut(self.shape.starts[at + 1] - start);
                let used = &mut self.used[data];
                *used = offsets(places, room, (before, *used), (source.typed_data::<i32>(), values), rows);
            }
            (Slot::Offsets { data, .. }, Source::Offsets64(source, values)) => {
                let (places, room) = bytes.split_at_mut(self.shape.starts[at + 1] - start);
                let used = &mut self.used[data];
                *used = offsets(places, room, (before, *used), (source.typed_data::<i64>(), values), rows);
            }
            (Slot::Views { data }, Source::Views(source)) => {
                let (places, room) = bytes.split_at_mut(self.shape.starts[at + 1] - start);
                let used = &mut self.used[data];
                *used = views(places, room, (before, *used), source, rows);
            }
            // The bytes of `Data` are copied with the slot before. Other pairs do not exist: both follow the schema.
            _ => {}
        }
    }

    /// Counts rows that have been copied into every slot.
    pub(super) fn added(&mut self, rows: usize) {
        self.rows += rows;
    }

    /// Ends the block: moves its buffers together if too much of it is gaps, and writes its message and header.
    pub(super) fn close(self, layout: &Layout) -> Block {
        let Building { mut tensor, shape, rows, first_row, used, nulls } = self;
        let bytes = tensor.as_mut_bytes();
        let lens: Vec<usize> = layout.slots().iter().map(|slot| used_bytes(*slot, rows, &used, &nulls)).collect();
        let starts = move_together(bytes, shape.starts, &lens);
        let body_at = starts.first().map_or(0, |first| first + lens[0]).next_multiple_of(ALIGNMENT);
        let end = starts.iter().zip(&lens).map(|(start, len)| start + len).max().unwrap_or(0).max(body_at);
        let end = end.next_multiple_of(ALIGNMENT);
        // What is left of an earlier tensor is not for the readers of this one.
        let mut at = starts.first().copied().unwrap_or(0);
        for (start, len) in starts.iter().zip(&lens).filter(|(_, len)| **len > 0) {
            bytes[at..*start].fill(0);
            at = start + len;
        }
        bytes[at..end].fill(0);
        let nodes: Vec<(usize, usize)> =
            layout.nodes().iter().zip(&nulls).map(|(per_row, nulls)| (rows * per_row, *nulls)).collect();
        let place = |(start, len): (&usize, &usize)| if *len > 0 { (start - body_at, *len) } else { (0, 0) };
        let buffers: Vec<(usize, usize)> = starts.iter().zip(&lens).skip(1).map(place).collect();
        // An array of views has one buffer besides its views, which may be empty.
        let message = record_batch_message(rows, &nodes, &buffers, &vec![1; layout.views()], end - body_at);
        let header = Header {
            rows: rows as u64,
            first_row,
            row_numbers_at: starts.first().copied().unwrap_or(0) as u64,
            body_at: body_at as u64,
        };
        write_head(bytes, &header, &message, layout.message_len());
        Block::new(tensor, end)
    }
}

/// The length of a slot's buffer in the message.
fn used_bytes(slot: Slot, rows: usize, used: &[usize], nulls: &[usize]) -> usize {
    match slot {
        Slot::Data { index } => used[index],
        Slot::Validity { node, .. } if nulls[node] == 0 => 0,
        other => other.len(rows),
    }
}

/// Moves the buffers together if that makes the block much smaller. Returns their starts.
fn move_together(bytes: &mut [u8], mut starts: Vec<usize>, lens: &[usize]) -> Vec<usize> {
    let first = starts.first().copied().unwrap_or(0);
    let together = lens.iter().fold(first, |at, len| (at + len).next_multiple_of(ALIGNMENT));
    let end = starts.iter().zip(lens).filter(|(_, len)| **len > 0).map(|(start, len)| start + len).max().unwrap_or(0);
    if end.saturating_sub(together) * GAP_SHARE <= end {
        return starts;
    }
    let mut at = first;
    for (start, len) in starts.iter_mut().zip(lens) {
        bytes.copy_within(*start..*start + len, at);
        *start = at;
        at = (at + len).next_multiple_of(ALIGNMENT);
    }
    starts
}
