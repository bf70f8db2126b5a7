//! The arenas of workers, and the versions that lie in them.

use super::{Session, Sessions};
use crate::fabric::FabricKind;
use crate::memory::{ALIGNMENT, LocalSlice, SegmentId, padded};
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
    /// The number of fetches of the worker whose memory is open to peers.
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

/// Memory of a worker's own that is registered. It counts as a part of the worker's arena, and ends with that at the latest.
pub(super) struct Region {
    arena: SegmentId,
    /// The place by which the worker names it, behind its arena.
    start: u64,
    /// The number of ranges of versions that lie there, and of those that are open to peers.
    uses: u64,
    /// Whether it ends with the last of them.
    is_released: bool,
}

impl Session {
    /// Returns where bytes lie that the worker names by their place: in its arena, or in memory that it has registered.
    pub(crate) fn locate(&self, place: u64, len: u64) -> Option<LocalSlice> {
        let (segment, arena_len) = self.arena();
        let end = place.checked_add(len)?;
        if end <= arena_len {
            return Some(LocalSlice { segment, offset: place, len });
        }
        let (start, (segment, region_len)) = self.regions.range(..=place).next_back()?;
        (end <= start.checked_add(*region_len)?).then(|| LocalSlice { segment: *segment, offset: place - start, len })
    }
}

impl Sessions {
    /// Adds memory that a worker has registered. Returns the place by which the worker names it. `None` if the session is over, or
    /// there are no places left.
    pub(crate) fn add_region(&mut self, session: SessionId, segment: SegmentId, len: u64) -> Option<u64> {
        let s = self.sessions.get_mut(&session).filter(|s| !s.is_leaving())?;
        let (arena, arena_len) = s.arena();
        let end = s.regions.last_key_value().map_or(Some(arena_len), |(start, (_, len))| start.checked_add(*len))?;
        // Apart, so that no range goes on in another memory.
        let start = s.next_region.max(padded(end)?.checked_add(ALIGNMENT)?);
        s.next_region = padded(start.checked_add(len)?)?.checked_add(ALIGNMENT)?;
        s.regions.insert(start, (segment, len));
        self.regions.insert(segment, Region { arena, start, uses: 0, is_released: false });
        Some(start)
    }

    /// Counts the ranges of a version, or of what is open to a peer, that lie in registered memory.
    pub(crate) fn use_regions(&mut self, slices: impl Iterator<Item = LocalSlice>) {
        for slice in slices {
            if let Some(region) = self.regions.get_mut(&slice.segment) {
                region.uses += 1;
            }
        }
    }

    /// Stops counting the ranges of a version that has ended, or of what is closed. Returns the memory that has ended with it.
    pub(crate) fn leave_regions(&mut self, slices: impl Iterator<Item = LocalSlice>) -> Vec<SegmentId> {
        let mut ended = Vec::new();
        for slice in slices {
            if let Some(region) = self.regions.get_mut(&slice.segment) {
                region.uses = region.uses.saturating_sub(1);
                if region.uses == 0 && region.is_released && self.remove_region(slice.segment) {
                    ended.push(slice.segment);
                }
            }
        }
        ended
    }

    /// Releases registered memory. Returns whether it ends now. Memory in which versions lie, or that is open to a peer, ends with the last of
    /// these, and that of a worker that is gone, which something may still reach, with its arena.
    pub(crate) fn release_region(&mut self, segment: SegmentId) -> bool {
        let is_open = self.of_arena(segment).is_some();
        let Some(region) = self.regions.get_mut(&segment).filter(|_| is_open) else { return false };
        region.is_released = true;
        region.uses == 0 && self.remove_region(segment)
    }

    fn remove_region(&mut self, segment: SegmentId) -> bool {
        let Some(Region { arena, start, .. }) = self.regions.remove(&segment) else { return false };
        if let Some(session) = self.arenas.get(&arena).map(|arena| arena.session)
            && let Some(s) = self.sessions.get_mut(&session)
        {
            s.regions.remove(&start);
        }
        self.unreadable.retain(|(of, _)| *of != segment);
        true
    }

    /// Removes an arena that is unused. Returns it, and the memory that was registered beside it.
    pub(crate) fn take_unused(&mut self, segment: SegmentId) -> (SegmentId, Vec<SegmentId>) {
        let arena = self.home_of(segment);
        let mut regions: Vec<_> =
            self.regions.iter().filter(|(_, region)| region.arena == arena).map(|(id, _)| *id).collect();
        regions.sort_unstable();
        for region in &regions {
            self.remove_region(*region);
        }
        (arena, regions)
    }

    /// Returns the place by which a worker names bytes of its arena, or of memory that it has registered.
    pub(crate) fn place_of(&self, slice: LocalSlice) -> u64 {
        slice.offset + self.regions.get(&slice.segment).map_or(0, |region| region.start)
    }

    /// Returns the arena beside which memory is registered, or the arena itself.
    fn home_of(&self, segment: SegmentId) -> SegmentId {
        self.regions.get(&segment).map_or(segment, |region| region.arena)
    }

    /// Returns the session whose arena it is, while the session is open.
    pub(crate) fn of_arena(&self, arena: SegmentId) -> Option<SessionId> {
        let session = self.arenas.get(&self.home_of(arena))?.session;
        self.get(session).filter(|s| !s.is_leaving()).map(|_| session)
    }

    /// Returns the number of versions that lie in an arena, and whether its worker is gone.
    pub(crate) fn arena(&self, arena: SegmentId) -> Option<(u64, bool)> {
        self.arenas.get(&self.home_of(arena)).map(|arena| (arena.blobs, arena.abandoned))
    }

    /// Returns the number of ranges that the versions in an arena consist of.
    pub(crate) fn ranges_in(&self, arena: SegmentId) -> Option<u64> {
        self.arenas.get(&self.home_of(arena)).map(|arena| arena.ranges)
    }

    /// Notes that the sidecar cannot write an arena.
    pub(crate) fn arena_is_returned(&mut self, arena: SegmentId) {
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.is_returned = true;
        }
    }

    /// Notes that a fabric cannot read an arena, or registered memory.
    pub(crate) fn arena_is_unreadable(&mut self, arena: SegmentId, by: FabricKind) {
        self.unreadable.insert((arena, by));
    }

    /// Whether there is memory that a fabric cannot read.
    pub(crate) fn has_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// Whether a fabric can read all of these ranges.
    pub(crate) fn can_read(&self, slices: &[LocalSlice], by: FabricKind) -> bool {
        slices.iter().all(|slice| !self.unreadable.contains(&(slice.segment, by)))
    }

    /// Whether peers may write into an arena.
    pub(crate) fn lands_in(&self, arena: SegmentId) -> bool {
        self.arenas.get(&arena).is_some_and(|arena| !arena.is_returned)
    }

    /// Counts the memory of a fetch that is opened to a peer: its ranges lie in one arena, and in memory that is registered beside it.
    pub(crate) fn open_memory(&mut self, slices: &[LocalSlice]) {
        let Some(first) = slices.first() else { return };
        let arena = self.home_of(first.segment);
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.open += 1;
        }
        self.use_regions(slices.iter().copied());
    }

    /// Stops counting the memory of a fetch that is closed. Returns `true` if the arena is now unused, as [`vacate`](Sessions::vacate) does.
    pub(crate) fn close_memory(&mut self, arena: SegmentId) -> bool {
        let arena = self.home_of(arena);
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.open = arena.open.saturating_sub(1);
        }
        self.tidy_arena(arena)
    }

    /// Counts a version that now lies in an arena.
    pub(crate) fn occupy(&mut self, arena: SegmentId, ranges: u32) {
        let arena = self.home_of(arena);
        if let Some(arena) = self.arenas.get_mut(&arena) {
            arena.blobs += 1;
            arena.ranges += u64::from(ranges);
        }
    }

    /// Removes a version from an arena. Returns `true` if the arena is now unused, because its worker is gone too; the
    /// arena is then forgotten.
    pub(crate) fn vacate(&mut self, arena: SegmentId, ranges: u32) -> bool {
        let arena = self.home_of(arena);
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
