//! The arenas of workers, and the versions that lie in them.

use super::Sessions;
use crate::fabric::FabricKind;
use crate::memory::SegmentId;
use crate::protocol::ids::SessionId;

/// An arena: a segment that one worker writes. It outlives its worker until no version in it is in use, and no range of it is
/// open to a peer.
pub(super) struct Arena {
    session: SessionId,
    /// The number of versions that lie in the arena.
    blobs: u64,
    /// The number of ranges that their bodies consist of, for which the node keeps tables. A body in one piece counts
    /// no range.
    ranges: u64,
    /// The number of ranges that are open to peers, for fetches of the worker.
    open: u64,
    /// Whether the sidecar cannot write the arena: the worker has brought it along from the last one.
    is_returned: bool,
    /// Whether the worker is gone.
    abandoned: bool,
}

impl Arena {
    pub(super) fn new(session: SessionId) -> Arena {
        Arena { session, blobs: 0, ranges: 0, open: 0, is_returned: false, abandoned: false }
    }
}

impl Sessions {
    /// Returns the session whose arena it is, while the session is open.
    pub(crate) fn of_arena(&self, arena: SegmentId) -> Option<SessionId> {
        let session = self.arenas.get(&arena)?.session;
        self.get(session).filter(|s| !s.is_leaving()).map(|_| session)
    }

    /// Returns the number of versions that lie in an arena, and whether its worker is gone.
    pub(crate) fn arena(&self, arena: SegmentId) -> Option<(u64, bool)> {
        self.arenas.get(&arena).map(|arena| (arena.blobs, arena.abandoned))
    }

    /// Returns the number of ranges that the versions in an arena consist of.
    pub(crate) fn ranges_in(&self, arena: SegmentId) -> Option<u64> {
        self.arenas.get(&arena).map(|arena| arena.ranges)
    }

    /// Notes that the sidecar cannot write an arena.
    pub(crate) fn arena_is_returned(&mut self, arena: SegmentId) {
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.is_returned = true;
        }
    }

    /// Notes that a fabric cannot read an arena.
    pub(crate) fn arena_is_unreadable(&mut self, arena: SegmentId, by: FabricKind) {
        self.unreadable.push((arena, by));
    }

    /// Returns the arenas that a fabric cannot read. There are none but after a restart of the sidecar.
    pub(crate) fn unreadable(&self, by: FabricKind) -> impl Iterator<Item = SegmentId> {
        self.unreadable.iter().filter(move |(_, kind)| *kind == by).map(|(arena, _)| *arena)
    }

    /// Whether peers may write into an arena.
    pub(crate) fn lands_in(&self, arena: SegmentId) -> bool {
        self.arenas.get(&arena).is_some_and(|arena| !arena.is_returned)
    }

    /// Counts a range of an arena that is opened to a peer.
    pub(crate) fn open_range(&mut self, arena: SegmentId) {
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.open += 1;
        }
    }

    /// Stops counting a range that is closed. Returns `true` if the arena is now unused, as [`vacate`](Sessions::vacate) does.
    pub(crate) fn close_range(&mut self, arena: SegmentId) -> bool {
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.open = arena.open.saturating_sub(1);
        }
        self.tidy_arena(arena)
    }

    /// Counts a version that now lies in an arena.
    pub(crate) fn occupy(&mut self, arena: SegmentId, ranges: u32) {
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.blobs += 1;
            arena.ranges += u64::from(ranges);
        }
    }

    /// Removes a version from an arena. Returns `true` if the arena is now unused, because its worker is gone too; the
    /// arena is then forgotten.
    pub(crate) fn vacate(&mut self, arena: SegmentId, ranges: u32) -> bool {
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.blobs = arena.blobs.saturating_sub(1);
            arena.ranges = arena.ranges.saturating_sub(ranges.into());
        }
        self.tidy_arena(arena)
    }

    /// Marks the worker of an arena as gone. Returns `true` if the arena is now unused, because no version lies in it;
    /// the arena is then forgotten.
    pub(crate) fn abandon(&mut self, arena: SegmentId) -> bool {
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.abandoned = true;
        }
        self.tidy_arena(arena)
    }

    fn tidy_arena(&mut self, segment: SegmentId) -> bool {
        let is_unused =
            self.arenas.get(&segment).is_some_and(|arena| arena.abandoned && arena.blobs == 0 && arena.open == 0);
        if is_unused {
            self.arenas.remove(&segment);
            self.unreadable.retain(|(arena, _)| *arena != segment);
        }
        is_unused
    }

    /// Returns the number of versions in each arena.
    #[cfg(test)]
    pub(crate) fn in_arenas(&self) -> Vec<u64> {
        self.arenas.values().map(|arena| arena.blobs).collect()
    }
}
