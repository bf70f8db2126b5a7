//! The states of the memory windows of a link.
//!
//! This table, and not the device, keeps a window from being invalidated twice, which would panic the kernel of a
//! software device (docs/adr/0001). Only a window that the table knows as bound is invalidated, and only one that it
//! knows as free is bound. A link that dies consumes its table, and its windows are deallocated; none is bound or
//! invalidated again.

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
    /// The window opens nothing.
    Free,
    /// A grant of no bytes has the window's key. The window is not bound, because a device would refuse that.
    Hollow { key: u32, segment: SegmentId, tag: u64 },
    /// Bound, or its bind is posted.
    Bound { key: u32, segment: SegmentId, tag: u64 },
    /// Its invalidation is posted. `asked` is the number of revokes that asked for it.
    Invalidating { key: u32, segment: SegmentId, tag: u64, asked: u32 },
}

#[derive(Debug)]
struct Entry<W> {
    window: W,
    state: State,
    keys_used: u16,
}

/// The action that a revoke needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Revoke {
    /// Post the invalidation.
    Post(WindowIndex),
    /// The grant is gone already, or never existed.
    Gone,
    /// The grant is being invalidated.
    Posted,
}

/// A completed invalidation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Invalidated<W> {
    pub(super) key: u32,
    /// The tag of its grant.
    pub(super) tag: u64,
    /// The number of revokes that asked for it.
    pub(super) asked: u32,
    /// The window, if it has no fresh key left and must be deallocated.
    pub(super) worn: Option<W>,
}

/// The windows of one link.
#[derive(Debug)]
pub(super) struct Windows<W> {
    entries: Vec<Option<Entry<W>>>,
    /// The window that was freed first comes first: the longer a key rests, the better.
    free: VecDeque<WindowIndex>,
    vacant: Vec<WindowIndex>,
    by_key: HashMap<u32, WindowIndex>,
}

impl<W> Windows<W> {
    pub(super) fn new() -> Windows<W> {
        Windows { entries: Vec::new(), free: VecDeque::new(), vacant: Vec::new(), by_key: HashMap::new() }
    }

    /// Returns the number of windows.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// Returns the number of live grants.
    #[cfg(test)]
    pub(super) fn grants(&self) -> usize {
        self.by_key.len()
    }

    /// Returns the window to bind next, or `None` if one has to be allocated and [added](Windows::add).
    pub(super) fn next_free(&self) -> Option<WindowIndex> {
        self.free.front().copied()
    }

    /// Adds a new window, which is free and will be bound next.
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

    /// Records that the bind of a free window is posted, with this key. Returns whether the window was free, and the
    /// key not in use.
    pub(super) fn bound(&mut self, index: WindowIndex, key: u32, segment: SegmentId, tag: u64) -> bool {
        self.take_free(index, State::Bound { key, segment, tag }, key)
    }

    /// Records that a free window stands for a grant of no bytes, under this key, and is not bound. Returns whether
    /// the window was free, and the key not in use.
    pub(super) fn hollow(&mut self, index: WindowIndex, key: u32, segment: SegmentId, tag: u64) -> bool {
        self.take_free(index, State::Hollow { key, segment, tag }, key)
    }

    /// Returns the action that revoking a grant needs. After [`Revoke::Post`] the table assumes that the invalidation
    /// is posted.
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
                // The key was used, but never opened anything.
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

    /// Returns whether revoking the grant takes a work request that invalidates its key.
    pub(super) fn needs_invalidation(&self, key: u32, tag: u64) -> bool {
        let entry = self.by_key.get(&key).and_then(|index| self.entries.get(index.0 as usize)?.as_ref());
        matches!(entry, Some(Entry { state: State::Bound { tag: of, .. }, .. }) if *of == tag)
    }

    /// Returns the keys and tags of the grants into a segment that are not being revoked yet.
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

    /// Returns whether a grant into that segment is being revoked.
    pub(super) fn is_leaving(&self, id: SegmentId) -> bool {
        let mut entries = self.entries.iter().flatten();
        entries.any(|entry| matches!(entry.state, State::Invalidating { segment, .. } if segment == id))
    }

    /// Handles the completion of an invalidation. Returns `None` if none was posted.
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
    fn bound_windows_are_invalidated_once() {
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
    fn longest_rested_window_is_next_and_a_worn_one_is_removed() {
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
        /// Whatever is requested, no window is bound twice or invalidated twice, and each revoke is answered.
        #[test]
        fn table_matches_a_model(steps in proptest::collection::vec((0_u8..4, any::<u16>()), 0..600)) {
            let mut windows = Windows::new();
            let mut allocated = 0_u32;
            let mut next_key = 0_u32;
            // The key with which each window is bound, as the device would know it.
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
