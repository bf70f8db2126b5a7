//! Copies within this node's memory, a piece of each at a time.

use super::memory::Memory;
use std::collections::VecDeque;
use std::mem::take;
use transfer_core::memory::LocalSlice;
use transfer_core::plan::GatherList;
use transfer_core::tensor::{PackedRun, Packing};

/// The most bytes that are copied before other work has its turn.
const PIECE: u64 = 1 << 20;

/// The most runs that are copied before other work has its turn. Each may cost a miss of the processor's tables.
const RUNS: usize = 2048;

/// The pending copies. They take turns, so that a long one does not hold up the others.
#[derive(Default)]
pub(super) struct Copies(VecDeque<Copy>);

struct Copy {
    from: GatherList,
    packing: Packing,
    to: LocalSlice,
    tag: u64,
    /// The run that is being copied, what is left of it.
    run: Option<PackedRun>,
    /// The index of the range in which it lies, and the sum of the lengths of those before.
    range: usize,
    start: u64,
    /// The end of what is written to the target.
    end: u64,
}

impl Copies {
    pub(super) fn add(&mut self, from: GatherList, packing: Packing, to: LocalSlice, tag: u64) {
        self.0.push_back(Copy { from, packing, to, tag, run: None, range: 0, start: 0, end: 0 });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies one piece. Returns the tag of a copy that is done.
    pub(super) fn step(&mut self, memory: &Memory) -> Option<u64> {
        let mut copy = self.0.pop_front()?;
        if copy.piece(memory) {
            return Some(copy.tag);
        }
        self.0.push_back(copy);
        None
    }
}

impl Copy {
    /// Copies one piece. Returns whether all is copied.
    fn piece(&mut self, memory: &Memory) -> bool {
        let mut left = PIECE;
        for _ in 0..RUNS {
            if left == 0 {
                return false;
            }
            let Some(run) = take(&mut self.run).or_else(|| self.packing.next()) else {
                self.zeros_to(memory, self.to.len);
                return true;
            };
            self.zeros_to(memory, run.to);
            match self.copy(memory, run, left) {
                Some(len) => {
                    left -= len;
                    self.end = run.to + len;
                    let rest = PackedRun { from: run.from + len, to: run.to + len, len: run.len - len };
                    self.run = Some(rest).filter(|rest| rest.len > 0);
                }
                None => {
                    // The state machine names segments that exist, and ranges that lie within them.
                    debug_assert!(false, "{run:?} of {:?}", self.from);
                    return true;
                }
            }
        }
        false
    }

    /// Copies the first bytes of a run, at most `most`. Returns how many.
    fn copy(&mut self, memory: &Memory, run: PackedRun, most: u64) -> Option<u64> {
        let range = loop {
            let range = self.from.get(self.range)?;
            if run.from < self.start + range.len {
                break range;
            }
            self.start += range.len;
            self.range += 1;
        };
        let at = run.from - self.start;
        let len = run.len.min(most).min(range.len - at);
        let to = self.to.sub(run.to, len)?;
        let (source, target) = (memory.get(range.segment)?, memory.get(to.segment)?);
        target.mapping().copy_from(to.offset, source.mapping(), range.offset + at, len).ok()?;
        Some(len)
    }

    /// Writes zeros to the target up to this place.
    fn zeros_to(&mut self, memory: &Memory, upto: u64) {
        let gap = self.to.sub(self.end, upto.saturating_sub(self.end)).filter(|gap| gap.len > 0);
        if let Some(gap) = gap
            && let Some(target) = memory.get(gap.segment)
        {
            let zeroed = target.mapping().zero(gap.offset, gap.len);
            debug_assert!(zeroed.is_ok(), "{gap}");
        }
    }
}
