//! Reading a partition in an order of its own, with a bound on the memory that this takes.
//!
//! As long as the rows that have come take less than the bound, they are held, and put in order when all have come. A larger
//! partition is read several times. The first pass counts its rows by the upper bits of their hashes. Each later one
//! keeps the rows of as many neighbouring hashes as the memory is enough for, and these rows are returned.

use crate::block::Decoded;
use crate::order::{Ordered, hashes};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use std::num::NonZeroUsize;
use std::ops::Range;
use transfer_client::BatchError;

/// The number of rows of a batch, unless the reader says another one.
const ROWS_PER_BATCH: NonZeroUsize = NonZeroUsize::new(8192).expect("not 0");

/// The bytes that rows may take, unless the reader says another number.
const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;

/// What a row takes besides its values while rows are put in order: its hash, its place, and where it came from.
const BYTES_PER_ROW: u64 = 40;

/// The upper bits of a hash by which rows are counted.
const COUNTED_HASH_BITS: u32 = 16;

/// The rows of a partition, in the order of a seed.
pub(super) struct InOrder {
    seed: u64,
    pub(super) rows_per_batch: NonZeroUsize,
    /// The bytes that rows may take.
    pub(super) memory: u64,
    /// The number of rows that were returned or skipped.
    pub(super) position: u64,
    /// Rows that are next, and too few for a batch. The first ones of the next pass follow them.
    begun: Option<RecordBatch>,
    state: State,
}

enum State {
    /// The first pass, while its rows can be held.
    Holding { blocks: Vec<(u32, Decoded)>, size: Size },
    /// The first pass, when they cannot.
    Counting(Counts),
    /// A later pass.
    Picking { counts: Counts, window: Window, blocks: Vec<(u32, Decoded)> },
    /// Rows are being returned. The counts are there if others follow.
    Returning { ordered: Ordered, counts: Option<Counts> },
    /// A pass has found another number of rows than the first one.
    Changed { expected: u64, found: u64 },
}

/// What is to be done when all tasks have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// All of them have to be read again.
    ReadAgain,
    /// There may be rows to return.
    Return,
    End,
    /// A pass has found another number of rows than the first one, so there is no order any more.
    Changed {
        expected: u64,
        found: u64,
    },
}

impl InOrder {
    pub(super) fn new(seed: u64) -> InOrder {
        let state = State::Holding { blocks: Vec::new(), size: Size::default() };
        InOrder { seed, rows_per_batch: ROWS_PER_BATCH, memory: DEFAULT_MEMORY_BYTES, position: 0, begun: None, state }
    }

    /// Takes a block of a task. With `to_copy` it holds nothing of the memory in which the block lies.
    ///
    /// # Errors
    /// [`BatchError`] if Arrow cannot copy its rows. The block is not taken.
    pub(super) fn take(&mut self, task: u32, block: &Decoded, to_copy: bool) -> Result<(), BatchError> {
        let seed = self.seed;
        match &mut self.state {
            State::Holding { blocks, size } => {
                let together = size.and(block);
                if together.in_memory() <= self.memory {
                    blocks.push((task, if to_copy { block.copied()? } else { block.clone() }));
                    *size = together;
                } else {
                    let mut counts = Counts::default();
                    blocks.iter().for_each(|(task, block)| counts.add(seed, *task, block));
                    counts.add(seed, task, block);
                    self.state = State::Counting(counts);
                }
            }
            State::Counting(counts) => counts.add(seed, task, block),
            State::Picking { window, blocks, .. } => {
                let rows = (0..).zip(hashes(seed, task, block));
                let rows = rows.filter(|(_, hash)| window.buckets.contains(&bucket(*hash))).map(|(row, _)| row);
                let rows: Vec<u32> = rows.collect();
                if !rows.is_empty() {
                    blocks.push((task, block.copied_rows(&rows)?));
                }
            }
            State::Returning { .. } | State::Changed { .. } => {}
        }
        Ok(())
    }

    /// The next batch. `None` if there is none before [`go_on`](Self::go_on).
    ///
    /// # Errors
    /// [`BatchError`] if Arrow cannot put its rows together. The position stays.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>, BatchError> {
        let State::Returning { ordered, counts } = &mut self.state else { return Ok(None) };
        let most = self.rows_per_batch.get();
        let (at, begun) = (ordered.position(), self.begun.as_ref());
        let more = ordered.next(most - begun.map_or(0, RecordBatch::num_rows))?;
        let batch = match (begun, more) {
            (None, None) => return Ok(None),
            (None, Some(batch)) => batch,
            (Some(begun), None) => begun.clone(),
            (Some(begun), Some(more)) => concat_batches(&begun.schema(), [begun, &more]).map_err(|e| {
                ordered.seek(at);
                BatchError::arrow("rows of different blocks cannot be put together")(e)
            })?,
        };
        // Only the last batch of all may have fewer rows.
        if counts.is_some() && batch.num_rows() < most {
            self.begun = Some(batch);
            return Ok(None);
        }
        self.begun = None;
        self.position += batch.num_rows() as u64;
        Ok(Some(batch))
    }

    /// Goes on when all tasks have come and [`next`](Self::next) has nothing.
    pub(super) fn go_on(&mut self, schema: &SchemaRef) -> Then {
        let nothing = State::Holding { blocks: Vec::new(), size: Size::default() };
        let (state, then) = match std::mem::replace(&mut self.state, nothing) {
            State::Holding { blocks, .. } => {
                let mut ordered = Ordered::new(schema.clone(), self.seed, blocks);
                self.position = self.position.min(ordered.len() as u64);
                ordered.seek(self.position as usize);
                (State::Returning { ordered, counts: None }, Then::Return)
            }
            State::Picking { counts, window, blocks } => {
                let found = blocks.iter().map(|(_, block)| block.row_numbers().len() as u64).sum();
                if window.rows == found {
                    let mut ordered = Ordered::new(schema.clone(), self.seed, blocks);
                    ordered.seek(window.skipped as usize);
                    let counts = (counts.rows_before(window.buckets.end) < counts.size.rows).then_some(counts);
                    (State::Returning { ordered, counts }, Then::Return)
                } else {
                    let expected = window.rows;
                    (State::Changed { expected, found }, Then::Changed { expected, found })
                }
            }
            State::Counting(counts) | State::Returning { counts: Some(counts), .. } => {
                self.position = self.position.min(counts.size.rows);
                let next = self.position + self.begun.as_ref().map_or(0, |begun| begun.num_rows() as u64);
                match counts.window_at(next, self.memory) {
                    Some(window) => (State::Picking { counts, window, blocks: Vec::new() }, Then::ReadAgain),
                    None => (State::Counting(counts), Then::End),
                }
            }
            returning @ State::Returning { .. } => (returning, Then::End),
            State::Changed { expected, found } => {
                (State::Changed { expected, found }, Then::Changed { expected, found })
            }
        };
        self.state = state;
        then
    }
}

#[cfg(test)]
impl InOrder {
    /// The rows that are held.
    pub(super) fn held_rows(&self) -> usize {
        match &self.state {
            State::Holding { blocks, .. } | State::Picking { blocks, .. } => {
                blocks.iter().map(|(_, block)| block.row_numbers().len()).sum()
            }
            State::Returning { ordered, .. } => ordered.len(),
            State::Counting(_) | State::Changed { .. } => 0,
        }
    }
}

/// The size of rows.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    rows: u64,
    bytes: u64,
}

impl Size {
    /// The size of these rows and those of a block.
    fn and(self, block: &Decoded) -> Size {
        Size { rows: self.rows + block.row_numbers().len() as u64, bytes: self.bytes + block.len_bytes() }
    }

    /// The bytes that they take while they are put in order: each column is then there twice.
    fn in_memory(&self) -> u64 {
        self.bytes.saturating_mul(2).saturating_add(self.rows.saturating_mul(BYTES_PER_ROW))
    }
}

/// The rows of a partition, counted by the upper bits of their hashes.
struct Counts {
    of: Vec<u64>,
    size: Size,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { of: vec![0; 1 << COUNTED_HASH_BITS], size: Size::default() }
    }
}

/// Rows that follow each other.
#[derive(Debug, PartialEq, Eq)]
struct Window {
    buckets: Range<usize>,
    rows: u64,
    /// Those of them that were returned before.
    skipped: u64,
}

/// The bucket of a row with this hash.
fn bucket(hash: u64) -> usize {
    (hash >> (u64::BITS - COUNTED_HASH_BITS)) as usize
}

impl Counts {
    fn add(&mut self, seed: u64, task: u32, block: &Decoded) {
        self.size = self.size.and(block);
        hashes(seed, task, block).for_each(|hash| self.of[bucket(hash)] += 1);
    }

    /// The number of rows in the buckets before this one.
    fn rows_before(&self, bucket: usize) -> u64 {
        self.of[..bucket].iter().sum()
    }

    /// As many rows as this memory is enough for, and a bucket at least, from the bucket with the row at this position.
    /// `None` if there is no such row.
    fn window_at(&self, position: u64, memory: u64) -> Option<Window> {
        let (mut start, mut before) = (0, 0);
        while before + self.of.get(start)? <= position {
            before += self.of[start];
            start += 1;
        }
        let most = u128::from(memory) * u128::from(self.size.rows) / u128::from(self.size.in_memory().max(1));
        let (mut end, mut rows) = (start + 1, self.of[start]);
        while let Some(more) = self.of.get(end).filter(|more| u128::from(rows + **more) <= most) {
            rows += more;
            end += 1;
        }
        Some(Window { buckets: start..end, rows, skipped: position - before })
    }
}
