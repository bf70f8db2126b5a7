//! Registered memory for the landing headers of writes that are under way.

use crate::fabric::LinkId;
use crate::memory::LocalSlice;
use crate::wire::landing::HEADER_BYTES;

/// The cells of outgoing landing headers: one for each write that is posted and not done.
///
/// - Getters: [`share`](HeaderCells::share), [`slice`](HeaderCells::slice).
/// - Commands: [`take`](HeaderCells::take) before a write, [`give_back`](HeaderCells::give_back) after it.
#[derive(Debug)]
pub(super) struct HeaderCells {
    memory: LocalSlice,
    free: Vec<u32>,
    /// Links that wait for a free cell, or for one of their own share.
    starved: Vec<LinkId>,
}

impl HeaderCells {
    /// As many as fit into this memory.
    pub(super) fn new(memory: LocalSlice) -> HeaderCells {
        let cells = u32::try_from(memory.len / HEADER_BYTES).unwrap_or(u32::MAX);
        HeaderCells { memory, free: (0..cells).rev().collect(), starved: Vec::new() }
    }

    fn all(&self) -> usize {
        usize::try_from(self.memory.len / HEADER_BYTES).unwrap_or(usize::MAX)
    }

    /// How many writes have one.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.all() - self.free.len()
    }

    /// How many cells one of so many links may have: an equal part for each, and one part is left for the next link. So a peer
    /// that takes what it is sent as slowly as it likes leaves others theirs.
    pub(super) fn share(&self, links: usize) -> usize {
        (self.all() / (links + 1)).max(1)
    }

    /// Takes a cell for a link that has `has` of its `share`. `None`: the link waits, and a later
    /// [`give_back`](HeaderCells::give_back) names it.
    pub(super) fn take(&mut self, link: LinkId, has: usize, share: usize) -> Option<u32> {
        let cell = if has < share { self.free.pop() } else { None };
        if cell.is_none() {
            self.starved.push(link);
        }
        cell
    }

    /// The memory of a cell.
    pub(super) fn slice(&self, cell: u32) -> LocalSlice {
        let offset = self.memory.offset + u64::from(cell) * HEADER_BYTES;
        LocalSlice { segment: self.memory.segment, offset, len: HEADER_BYTES }
    }

    /// Takes a cell back. Returns the links that wait for one.
    #[must_use]
    pub(super) fn give_back(&mut self, cell: u32) -> Vec<LinkId> {
        self.free.push(cell);
        std::mem::take(&mut self.starved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SegmentId;

    #[test]
    fn a_link_waits_for_its_share_and_is_named_when_a_cell_is_free() {
        let memory = LocalSlice { segment: SegmentId(3), offset: 4096, len: 4 * HEADER_BYTES };
        let mut cells = HeaderCells::new(memory);
        let (a, b) = (LinkId(1), LinkId(2));
        let share = cells.share(1);
        assert_eq!(share, 2);
        let first = cells.take(a, 0, share).unwrap();
        assert_eq!(cells.slice(first), LocalSlice { segment: SegmentId(3), offset: 4096, len: HEADER_BYTES });
        assert!(cells.take(a, 1, share).is_some());
        assert_eq!((cells.take(a, 2, share), cells.in_use()), (None, 2));
        assert!(cells.take(b, 0, share).is_some(), "another link has a share of its own");
        assert_eq!(cells.give_back(first), [a]);
        assert_eq!(cells.give_back(1), [], "a link is named once");
        assert_eq!(cells.share(100), 1, "nobody goes without");
    }
}
