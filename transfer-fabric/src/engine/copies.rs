//! Copies from one tenant's memory into another's, a piece at a time.

use super::memory::Memory;
use std::collections::VecDeque;
use transfer_core::memory::{ALIGNMENT, LocalSlice};
use transfer_core::plan::GatherList;

/// The most bytes that are copied before other work has its turn.
const PIECE: u64 = 1 << 20;

/// The pending copies, first come, first served.
#[derive(Default)]
pub(super) struct Copies(VecDeque<Copy>);

struct Copy {
    from: GatherList,
    to: LocalSlice,
    tag: u64,
    /// The index of the current range, the number of its bytes that are copied, and the next offset in the target
    /// segment.
    next: usize,
    done: u64,
    at: u64,
}

impl Copies {
    pub(super) fn add(&mut self, from: GatherList, to: LocalSlice, tag: u64) {
        self.0.push_back(Copy { from, to, tag, next: 0, done: 0, at: to.offset });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Copies one piece. Returns the tag of a copy that is done.
    pub(super) fn step(&mut self, memory: &Memory) -> Option<u64> {
        let copy = self.0.front_mut()?;
        copy.piece(memory);
        if copy.next < copy.from.len() {
            return None;
        }
        self.0.pop_front().map(|copy| copy.tag)
    }
}

impl Copy {
    fn piece(&mut self, memory: &Memory) {
        let Some(range) = self.from.get(self.next) else { return };
        let end = self.to.offset + self.to.len;
        let len = (range.len - self.done).min(PIECE).min(end.saturating_sub(self.at));
        let segments = memory.get(range.segment).zip(memory.get(self.to.segment));
        // The state machine names segments that exist, and ranges that lie within them.
        let copied = segments.is_some_and(|(from, to)| {
            to.mapping().copy_from(self.at, from.mapping(), range.offset + self.done, len).is_ok()
        });
        debug_assert!(copied, "{range:?}");
        (self.done, self.at) = (self.done + len, self.at + len);
        if self.done >= range.len || len == 0 {
            // Each range begins at a multiple of the alignment, as when it lands from another node.
            self.at = self.at.next_multiple_of(ALIGNMENT);
            (self.next, self.done) = (self.next + 1, 0);
        }
    }
}
