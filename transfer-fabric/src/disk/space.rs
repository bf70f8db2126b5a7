//! Which parts of a file are free.

use std::collections::BTreeMap;

/// The free parts of a file, by their offsets. All behind `end` is free, too.
#[derive(Debug, Default)]
pub(super) struct Space {
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Space {
    /// Takes a part of this length: the first one that is large enough.
    pub(super) fn take(&mut self, len: u64) -> u64 {
        let found = self.free.iter().find(|(_, free)| **free >= len).map(|(at, free)| (*at, *free));
        let Some((at, free)) = found else {
            let at = self.end;
            self.end += len;
            return at;
        };
        self.free.remove(&at);
        if free > len {
            self.free.insert(at + len, free - len);
        }
        at
    }

    /// Gives a part back. Returns the new end if it was the last part.
    pub(super) fn give_back(&mut self, mut at: u64, mut len: u64) -> Option<u64> {
        if let Some((before, free)) = self.free.range(..at).next_back().map(|(at, len)| (*at, *len))
            && before + free == at
        {
            self.free.remove(&before);
            (at, len) = (before, len + free);
        }
        if let Some(free) = self.free.remove(&(at + len)) {
            len += free;
        }
        if at + len == self.end {
            self.end = at;
            return Some(at);
        }
        self.free.insert(at, len);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_never_overlap_and_all_come_back(steps in prop::collection::vec((any::<bool>(), 1_u64..20), 1..200)) {
            let (mut space, mut taken) = (Space::default(), Vec::<(u64, u64)>::new());
            for (take, n) in steps {
                if take || taken.is_empty() {
                    let at = space.take(n);
                    prop_assert!(taken.iter().all(|(other, len)| at + n <= *other || other + len <= at));
                    taken.push((at, n));
                } else {
                    let (at, len) = taken.swap_remove(n as usize % taken.len());
                    space.give_back(at, len);
                }
                let used: u64 = taken.iter().map(|(_, len)| len).sum();
                let free: u64 = space.free.values().sum();
                prop_assert_eq!(used + free, space.end);
            }
            for (at, len) in taken {
                space.give_back(at, len);
            }
            prop_assert_eq!((space.end, space.free.len()), (0, 0));
        }
    }
}
