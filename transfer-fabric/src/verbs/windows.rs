//! Which memory window of a link is in which state.
//!
//! This table, and not the device, is what keeps a window from being invalidated twice, which would panic the kernel of a software
//! device (docs/adr/0001): only what it knows as bound is invalidated, only what it knows as free is bound. A link that dies consumes
//! its table, and its windows are deallocated; none is bound or invalidated again.

use hashbrown::HashMap;
use std::collections::VecDeque;
use transfer_core::memory::SegmentId;

/// Only the low 8 bits of a window's key change from bind to bind.
const KEYS_OF_A_WINDOW: u16 = 256;

/// A window's place in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WindowIndex(u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is opened by it.
    Free,
    /// A grant of no bytes has its key; a device would refuse to bind that.
    Hollow { key: u32, segment: SegmentId, tag: u64 },
    /// Bound, or its bind is posted.
    Bound { key: u32, segment: SegmentId, tag: u64 },
    /// Its invalidation is posted; so many have asked for it.
    Invalidating { key: u32, segment: SegmentId, tag: u64, asked: u32 },
}

#[derive(Debug)]
struct Entry<W> {
    window: W,
    state: State,
    keys_used: u16,
}

/// What a revoke has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Revoke {
    /// Post the invalidation.
    Post(WindowIndex),
    /// It is gone already, or was never there.
    Gone,
    /// It is being invalidated.
    Posted,
}

/// An invalidation has completed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Invalidated<W> {
    pub(super) key: u32,
    /// What its grant was called.
    pub(super) tag: u64,
    /// How many asked for it.
    pub(super) asked: u32,
    /// The window, where it has no fresh key left and must be deallocated.
    pub(super) worn: Option<W>,
}

/// The windows of one link.
#[derive(Debug)]
pub(super) struct Windows<W> {
    entries: Vec<Option<Entry<W>>>,
    /// The one that was freed first comes first: the longer a key rests, the better.
    free: VecDeque<WindowIndex>,
    vacant: Vec<WindowIndex>,
    by_key: HashMap<u32, WindowIndex>,
}

impl<W> Windows<W> {
    pub(super) fn new() -> Windows<W> {
        Windows { entries: Vec::new(), free: VecDeque::new(), vacant: Vec::new(), by_key: HashMap::new() }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// How many grants live.
    #[cfg(test)]
    pub(super) fn grants(&self) -> usize {
        self.by_key.len()
    }

    /// The window to bind next. `None`: one has to be allocated and [added](Windows::add).
    pub(super) fn next_free(&self) -> Option<WindowIndex> {
        self.free.front().copied()
    }

    /// Takes a new window in, free, to be bound next.
    pub(super) fn add(&mut self, window: W) -> WindowIndex {
        let entry = Some(Entry { window, state: State::Free, keys_used: 0 });
        let index = self.vacant.pop().unwrap_or(WindowIndex(self.entries.len() as u32));
        match self.entries.get_mut(index.0 as usize) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        self.free.push_front(index);
        index
    }

    fn entry(&mut self, index: WindowIndex) -> Option<&mut Entry<W>> {
        self.entries.get_mut(index.0 as usize)?.as_mut()
    }

    pub(super) fn window(&self, index: WindowIndex) -> Option<&W> {
        Some(&self.entries.get(index.0 as usize)?.as_ref()?.window)
    }

    fn take_free(&mut self, index: WindowIndex, state: State, key: u32) -> bool {
        let Some(at) = self.free.iter().position(|free| *free == index) else { return false };
        if self.by_key.contains_key(&key) {
            return false;
        }
        let Some(entry) = self.entry(index) else { return false };
        entry.state = state;
        entry.keys_used += 1;
        self.free.remove(at);
        self.by_key.insert(key, index);
        true
    }

    /// The bind of a free window is posted, with this key. Whether it was free, and the key not in use.
    pub(super) fn bound(&mut self, index: WindowIndex, key: u32, segment: SegmentId, tag: u64) -> bool {
        self.take_free(index, State::Bound { key, segment, tag }, key)
    }

    /// A free window stands for a grant of no bytes, under this key, and is not bound.
    pub(super) fn hollow(&mut self, index: WindowIndex, key: u32, segment: SegmentId, tag: u64) -> bool {
        self.take_free(index, State::Hollow { key, segment, tag }, key)
    }

    /// What to do about a grant that is to be revoked; after [`Revoke::Post`] the table takes it for done.
    pub(super) fn revoke(&mut self, key: u32, tag: u64) -> Revoke {
        let Some(index) = self.by_key.get(&key).copied() else { return Revoke::Gone };
        let Some(entry) = self.entry(index) else { return Revoke::Gone };
        match &mut entry.state {
            // A later grant has the key of one that is gone.
            State::Hollow { tag: of, .. } | State::Bound { tag: of, .. } | State::Invalidating { tag: of, .. }
                if *of != tag =>
            {
                Revoke::Gone
            }
            State::Free => Revoke::Gone,
            State::Hollow { .. } => {
                entry.state = State::Free;
                // Its key was used, but nothing was ever open with it.
                entry.keys_used -= 1;
                self.by_key.remove(&key);
                self.free.push_back(index);
                Revoke::Gone
            }
            State::Bound { segment, .. } => {
                entry.state = State::Invalidating { key, segment: *segment, tag, asked: 1 };
                Revoke::Post(index)
            }
            State::Invalidating { asked, .. } => {
                *asked += 1;
                Revoke::Posted
            }
        }
    }

    /// Whether the key opens something that a revoke would have to invalidate by a work request.
    pub(super) fn needs_invalidation(&self, key: u32, tag: u64) -> bool {
        let entry = self.by_key.get(&key).and_then(|index| self.entries.get(index.0 as usize)?.as_ref());
        matches!(entry, Some(Entry { state: State::Bound { tag: of, .. }, .. }) if *of == tag)
    }

    /// The keys and tags of the grants into a segment that are not being taken back yet.
    pub(super) fn keys_into(&self, id: SegmentId) -> Vec<(u32, u64)> {
        let entries = self.entries.iter().flatten();
        let keys = entries.filter_map(|entry| match entry.state {
            State::Hollow { key, segment, tag } | State::Bound { key, segment, tag } if segment == id => {
                Some((key, tag))
            }
            _ => None,
        });
        keys.collect()
    }

    /// Whether a grant into that segment is being taken back.
    pub(super) fn is_leaving(&self, id: SegmentId) -> bool {
        let mut entries = self.entries.iter().flatten();
        entries.any(|entry| matches!(entry.state, State::Invalidating { segment, .. } if segment == id))
    }

    /// The posted invalidation has completed. `None` where none was posted.
    pub(super) fn invalidated(&mut self, index: WindowIndex) -> Option<Invalidated<W>> {
        let entry = self.entry(index)?;
        let State::Invalidating { key, tag, asked, .. } = entry.state else { return None };
        entry.state = State::Free;
        let worn = entry.keys_used >= KEYS_OF_A_WINDOW;
        self.by_key.remove(&key);
        let worn = if worn {
            self.vacant.push(index);
            self.entries.get_mut(index.0 as usize)?.take().map(|entry| entry.window)
        } else {
            self.free.push_back(index);
            None
        };
        Some(Invalidated { key, tag, asked, worn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: SegmentId = SegmentId(3);
    const TAG: u64 = 5;

    #[test]
    fn only_what_is_bound_is_invalidated_and_only_once() {
        let mut windows = Windows::new();
        assert_eq!(windows.revoke(7, TAG), Revoke::Gone);
        let index = windows.add('w');
        assert_eq!(windows.invalidated(index), None);
        assert!(windows.bound(index, 7, SEGMENT, TAG));
        assert!(!windows.bound(index, 8, SEGMENT, TAG), "it is bound already");
        assert_eq!(windows.invalidated(index), None);
        assert_eq!(windows.revoke(7, 6), Revoke::Gone, "another grant's");
        assert!(!windows.is_leaving(SEGMENT));
        assert_eq!(windows.revoke(7, TAG), Revoke::Post(index));
        assert!(windows.is_leaving(SEGMENT) && !windows.is_leaving(SegmentId(4)), "another segment's is no concern");
        assert_eq!(windows.revoke(7, TAG), Revoke::Posted);
        assert!(!windows.bound(index, 8, SEGMENT, TAG), "it is being invalidated");
        assert_eq!(windows.invalidated(index), Some(Invalidated { key: 7, tag: TAG, asked: 2, worn: None }));
        assert_eq!(windows.invalidated(index), None);
        assert_eq!(windows.revoke(7, TAG), Revoke::Gone);
        assert!(windows.bound(index, 8, SEGMENT, TAG));
    }

    #[test]
    fn a_grant_of_nothing_is_never_invalidated() {
        let mut windows = Windows::new();
        let index = windows.add('w');
        assert!(windows.hollow(index, 7, SEGMENT, TAG));
        assert!(!windows.needs_invalidation(7, TAG));
        assert_eq!(windows.keys_into(SEGMENT), [(7, TAG)]);
        assert_eq!(windows.revoke(7, TAG), Revoke::Gone);
        assert_eq!((windows.next_free(), windows.grants()), (Some(index), 0));
    }

    #[test]
    fn the_one_that_rested_longest_is_next_and_a_worn_one_goes() {
        let mut windows = Windows::new();
        let a = windows.add('a');
        assert!(windows.bound(a, 0x100, SEGMENT, TAG));
        let b = windows.add('b');
        assert!(windows.bound(b, 0x200, SEGMENT, TAG));
        for (key, index) in [(0x200, b), (0x100, a)] {
            assert_eq!(windows.revoke(key, TAG), Revoke::Post(index));
            windows.invalidated(index).unwrap();
        }
        assert_eq!(windows.next_free(), Some(b));
        for n in 1..=256 {
            let index = windows.next_free().unwrap();
            assert_eq!(index, if n % 2 == 1 { b } else { a });
            let key = 0x1_0000 + n;
            assert!(windows.bound(index, key, SEGMENT, TAG));
            assert_eq!(windows.revoke(key, TAG), Revoke::Post(index));
            assert_eq!(windows.invalidated(index).unwrap().worn, None);
        }
        let rest: u32 = 2 * 256 - 256 - 2;
        let worn: Vec<char> = (0..rest)
            .filter_map(|n| {
                let index = windows.next_free().unwrap();
                assert!(windows.bound(index, 0x2_0000 + n, SEGMENT, TAG));
                windows.revoke(0x2_0000 + n, TAG);
                windows.invalidated(index).unwrap().worn
            })
            .collect();
        assert_eq!(worn, ['b', 'a']);
        assert_eq!((windows.next_free(), windows.len()), (None, 0));
        let c = windows.add('c');
        assert_eq!((windows.window(c), windows.len()), (Some(&'c'), 1));
    }

    proptest! {
        /// Whatever is asked, no window is bound twice or invalidated twice, and each revoke is answered.
        #[test]
        fn against_a_model(steps in proptest::collection::vec((0_u8..4, any::<u16>()), 0..600)) {
            let mut windows = Windows::new();
            let mut allocated = 0_u32;
            let mut next_key = 0_u32;
            // What the device would know: which key each window is bound with.
            let mut bound: Vec<(WindowIndex, u32)> = Vec::new();
            let mut posted: VecDeque<(WindowIndex, u32, u32)> = VecDeque::new();
            for (step, pick) in steps {
                match step {
                    0 => {
                        let index = windows.next_free().unwrap_or_else(|| {
                            allocated += 1;
                            windows.add(allocated)
                        });
                        next_key += 1;
                        prop_assert!(windows.bound(index, next_key, SEGMENT, TAG));
                        prop_assert!(!bound.iter().any(|(other, _)| *other == index));
                        prop_assert!(!posted.iter().any(|(other, ..)| *other == index));
                        bound.push((index, next_key));
                    }
                    1 => {
                        let key = u32::from(pick) % (next_key + 2);
                        match windows.revoke(key, TAG) {
                            Revoke::Post(index) => {
                                let at = bound.iter().position(|b| *b == (index, key));
                                prop_assert!(at.is_some(), "what is not bound was invalidated");
                                bound.remove(at.unwrap());
                                posted.push_back((index, key, 1));
                            }
                            Revoke::Posted => posted.iter_mut().find(|(_, k, _)| *k == key).unwrap().2 += 1,
                            Revoke::Gone => prop_assert!(!bound.iter().any(|(_, k)| *k == key)),
                        }
                    }
                    _ => {
                        if let Some((index, key, asked)) = posted.pop_front() {
                            let done = windows.invalidated(index).unwrap();
                            prop_assert_eq!((done.key, done.asked), (key, asked));
                        }
                    }
                }
                prop_assert_eq!(windows.grants(), bound.len() + posted.len());
            }
        }
    }
}
