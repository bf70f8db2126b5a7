//! What lies in the memory of workers.

use super::Sessions;
use crate::memory::SegmentId;

/// A segment that a worker writes. It outlives its worker while somebody reads from it.
#[derive(Default)]
pub(super) struct Arena {
    /// Blobs that lie in it.
    blobs: u64,
    /// How many ranges their bodies are made of, those of one piece not counted: what the node keeps tables of.
    ranges: u64,
    /// Its worker is gone.
    abandoned: bool,
}

impl Sessions {
    /// Of an arena: how many versions lie in it, and whether its worker is gone.
    pub(crate) fn arena(&self, arena: SegmentId) -> Option<(u64, bool)> {
        self.arenas.get(&arena).map(|arena| (arena.blobs, arena.abandoned))
    }

    /// How many ranges the versions in an arena are made of.
    pub(crate) fn ranges_in(&self, arena: SegmentId) -> Option<u64> {
        self.arenas.get(&arena).map(|arena| arena.ranges)
    }

    /// A version lies in an arena.
    pub(crate) fn occupy(&mut self, arena: SegmentId, ranges: u32) {
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.blobs += 1;
            arena.ranges += u64::from(ranges);
        }
    }

    /// A version has left an arena. Whether nobody can reach that arena any more: then it is forgotten.
    pub(crate) fn vacate(&mut self, arena: SegmentId, ranges: u32) -> bool {
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.blobs = arena.blobs.saturating_sub(1);
            arena.ranges = arena.ranges.saturating_sub(ranges.into());
        }
        self.tidy_arena(arena)
    }

    /// The worker of an arena is gone. Whether nobody can reach that arena any more: then it is forgotten.
    pub(crate) fn abandon(&mut self, arena: SegmentId) -> bool {
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.abandoned = true;
        }
        self.tidy_arena(arena)
    }

    fn tidy_arena(&mut self, segment: SegmentId) -> bool {
        let is_unused = self.arenas.get(&segment).is_some_and(|arena| arena.abandoned && arena.blobs == 0);
        if is_unused {
            self.arenas.remove(&segment);
        }
        is_unused
    }

    /// How many versions lie in each arena.
    #[cfg(test)]
    pub(crate) fn in_arenas(&self) -> Vec<u64> {
        self.arenas.values().map(|arena| arena.blobs).collect()
    }
}
