//! The requests of a peer whose parts take much memory until they are sent: they are packed, or have long gather lists.

use std::collections::BTreeMap;

/// The most of them at a time. Each takes room in a landing pool, or a list, until it is sent.
pub(crate) const MAX_PACKS_PER_LINK: usize = 8;

/// The places of one link, and its requests that wait for one, first come, first served.
///
/// A place is taken when the copy or the write begins, and is free again once its bytes are sent or dropped. A peer that gives its
/// request up has no other place before that.
#[derive(Default)]
pub(crate) struct Packs {
    /// By their numbers in the order in which they came.
    line: BTreeMap<u64, u32>,
    last: u64,
    taken: usize,
}

impl Packs {
    /// Adds a request to the line. Returns its number there.
    pub(crate) fn line_up(&mut self, index: u32) -> u64 {
        self.last += 1;
        self.line.insert(self.last, index);
        self.last
    }

    /// Takes a request that has ended out of the line.
    pub(crate) fn leave(&mut self, number: u64) {
        self.line.remove(&number);
    }

    /// Takes a place for the first request in line. `None` if there is no such request or no place.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let index = match self.taken < MAX_PACKS_PER_LINK {
            true => self.line.pop_first().map(|(_, index)| index),
            false => None,
        };
        self.taken += usize::from(index.is_some());
        index
    }

    /// Frees a place.
    pub(crate) fn free(&mut self) {
        self.taken = self.taken.saturating_sub(1);
    }

    /// Returns the number of places that are taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_wait_in_line_for_a_place() {
        let mut packs = Packs::default();
        let all = 0..MAX_PACKS_PER_LINK as u32 + 3;
        let numbers: Vec<_> = all.clone().map(|index| packs.line_up(index)).collect();
        for index in 0..MAX_PACKS_PER_LINK as u32 {
            assert_eq!(packs.take(), Some(index));
        }
        assert_eq!(packs.take(), None);
        packs.leave(numbers[MAX_PACKS_PER_LINK]);
        packs.free();
        assert_eq!((packs.take(), packs.take()), (Some(MAX_PACKS_PER_LINK as u32 + 1), None));
        (0..=MAX_PACKS_PER_LINK).for_each(|_| packs.free());
        assert_eq!((packs.taken(), packs.take(), packs.take()), (0, all.last(), None));
    }
}
