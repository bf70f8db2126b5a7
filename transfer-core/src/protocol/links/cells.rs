//! Registered memory for the landing headers of writes in flight.

use crate::fabric::LinkId;
use crate::memory::LocalSlice;
use crate::wire::landing::HEADER_BYTES;

/// The cells of outgoing landing headers: one for each write that is posted and has not completed.
///
/// - Getters: [`share`](HeaderCells::share), [`slice`](HeaderCells::slice).
/// - Commands: [`take`](HeaderCells::take) before a write, [`give_back`](HeaderCells::give_back) after it.
#[derive(Debug)]
pub(super) struct HeaderCells {
    memory: LocalSlice,
    free: Vec<u32>,
    /// Links that wait for a free cell, or that have used up their share.
    starved: Vec<LinkId>,
}

impl HeaderCells {
    /// Divides this memory into as many cells as fit.
    pub(super) fn new(memory: LocalSlice) -> HeaderCells {
        let cells = u32::try_from(memory.len / HEADER_BYTES).unwrap_or(u32::MAX);
        HeaderCells { memory, free: (0..cells).rev().collect(), starved: Vec::new() }
    }

    fn all(&self) -> usize {
        usize::try_from(self.memory.len / HEADER_BYTES).unwrap_or(usize::MAX)
    }

    /// Returns how many cells are in use.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.all() - self.free.len()
    }

    /// Returns how many cells each of `links` links may have. The cells are divided equally between these links and one
    /// more, which leaves a part for the next link. So a peer that takes its writes slowly leaves the other links their
    /// cells.
    pub(super) fn share(&self, links: usize) -> usize {
        (self.all() / (links + 1)).max(1)
    }

    /// Takes a cell for a link that has `has` cells of its `share`. Returns `None` if the link has to wait; a later
    /// [`give_back`](HeaderCells::give_back) names it.
    pub(super) fn take(&mut self, link: LinkId, has: usize, share: usize) -> Option<u32> {
        let cell = if has < share { self.free.pop() } else { None };
        if cell.is_none() {
            self.starved.push(link);
        }
        cell
    }

    /// Returns the memory of a cell.
    pub(super) fn slice(&self, cell: u32) -> LocalSlice {
        let offset = self.memory.offset + u64::from(cell) * HEADER_BYTES;
        LocalSlice { segment: self.memory.segment, offset, len: HEADER_BYTES }
    }

    /// Takes a cell back. Returns the links that were waiting for one.
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
    fn link_with_its_full_share_waits_until_a_cell_is_given_back() {
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
