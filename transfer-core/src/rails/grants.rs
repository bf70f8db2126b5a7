//! The grants of a link with several rails. Each grant consists of one inner grant for each rail, under one name.

use super::MAX_RAILS;
use super::rail::Chore;
use crate::memory::{LocalSlice, RailKeys, RemoteKey, RemoteSlice};
use std::collections::{BTreeMap, HashMap};

/// The number of a grant. It is the tag of the inner grants.
pub(super) type GrantNo = u64;

type Keys = [Option<RemoteKey>; MAX_RAILS];

#[derive(Debug)]
struct Opening {
    tag: u64,
    range: LocalSlice,
    waiting: [bool; MAX_RAILS],
    address: Option<u64>,
    keys: Keys,
}

#[derive(Debug)]
struct Open {
    tag: u64,
    /// The key by which the user names the grant, beside its tag.
    key: RemoteKey,
    keys: Keys,
    /// The number of revokes that were requested.
    revokes: u32,
}

/// The result of a grant or of a revoke.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The grant is in force on every live rail.
    Granted { tag: u64, remote: RemoteSlice },
    /// The grant is closed on every rail. `times` is the number of revokes that were requested, at least 1.
    Revoked { key: RemoteKey, tag: u64, times: u32 },
    /// No rail opened the range.
    Refused,
}

/// A request to the inner fabric of a rail.
type Ask = (usize, Chore);

#[derive(Debug, Default)]
pub(super) struct Grants {
    next: GrantNo,
    opening: BTreeMap<GrantNo, Opening>,
    open: BTreeMap<GrantNo, Open>,
    /// The numbers of the open grants, by the user's tag.
    by_tag: HashMap<u64, GrantNo>,
}

impl Grants {
    /// Begins a grant over `rails`. Returns its number, which is the tag of the inner grants.
    pub(super) fn begin(&mut self, tag: u64, range: LocalSlice, rails: &[usize]) -> GrantNo {
        let number = self.next;
        self.next += 1;
        let mut waiting = [false; MAX_RAILS];
        for rail in rails {
            waiting[*rail] = true;
        }
        self.opening.insert(number, Opening { tag, range, waiting, address: None, keys: [None; MAX_RAILS] });
        number
    }

    /// Forgets a grant that was begun and could not be made.
    pub(super) fn abandon(&mut self, number: GrantNo) {
        self.opening.remove(&number);
    }

    /// Records the answer of a rail: `remote` if the rail opened the range, `None` if it refused.
    pub(super) fn answered(
        &mut self,
        rail: usize,
        number: GrantNo,
        remote: Option<RemoteSlice>,
        asks: &mut Vec<Ask>,
    ) -> Option<Outcome> {
        let opening = self.opening.get_mut(&number)?;
        opening.waiting[rail] = false;
        if let Some(remote) = remote {
            // One address serves all rails. A rail with another address for the range gets no key.
            if *opening.address.get_or_insert(remote.address) == remote.address {
                opening.keys[rail] = Some(remote.key());
            } else {
                asks.push((rail, Chore::Revoke { key: remote.key(), number }));
            }
        }
        self.finish(number)
    }

    /// Completes the grant if every rail has answered.
    fn finish(&mut self, number: GrantNo) -> Option<Outcome> {
        if self.opening.get(&number)?.waiting.contains(&true) {
            return None;
        }
        let Opening { tag, range, address, keys, .. } = self.opening.remove(&number)?;
        let (Some(rails), Some(address)) = (RailKeys::new(&keys), address) else { return Some(Outcome::Refused) };
        self.open.insert(number, Open { tag, key: rails.first(), keys, revokes: 0 });
        self.by_tag.insert(tag, number);
        Some(Outcome::Granted { tag, remote: RemoteSlice { address, len: range.len, keys: rails } })
    }

    /// Handles the user's revoke.
    pub(super) fn revoke(&mut self, key: RemoteKey, tag: u64, asks: &mut Vec<Ask>) -> Option<Outcome> {
        let number = self.by_tag.get(&tag).copied();
        let Some((number, open)) = number.and_then(|number| Some((number, self.open.get_mut(&number)?))) else {
            return Some(Outcome::Revoked { key, tag, times: 1 });
        };
        open.revokes += 1;
        if open.revokes == 1 {
            let keys = open.keys.iter().enumerate();
            asks.extend(keys.filter_map(|(rail, key)| Some((rail, Chore::Revoke { key: (*key)?, number }))));
        }
        self.closed(number)
    }

    /// Records that a rail has closed the grant.
    pub(super) fn revoked(&mut self, rail: usize, number: GrantNo) -> Option<Outcome> {
        self.open.get_mut(&number)?.keys[rail].take()?;
        self.closed(number)
    }

    /// Removes the grant if no rail has a key for it.
    fn closed(&mut self, number: GrantNo) -> Option<Outcome> {
        if self.open.get(&number)?.keys.iter().any(Option::is_some) {
            return None;
        }
        let Open { tag, key, revokes, .. } = self.open.remove(&number)?;
        self.by_tag.remove(&tag);
        Some(Outcome::Revoked { key, tag, times: revokes.max(1) })
    }

    /// Handles a rail that is dead and drained: its keys are gone.
    pub(super) fn rail_down(&mut self, rail: usize) -> Vec<Outcome> {
        for open in self.open.values_mut() {
            open.keys[rail] = None;
        }
        for opening in self.opening.values_mut() {
            opening.keys[rail] = None;
            opening.waiting[rail] = false;
        }
        let open: Vec<_> = self.open.keys().copied().collect();
        let opening: Vec<_> = self.opening.keys().copied().collect();
        let mut outcomes: Vec<_> = open.into_iter().filter_map(|number| self.closed(number)).collect();
        outcomes.extend(opening.into_iter().filter_map(|number| self.finish(number)));
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SegmentId;

    const RANGE: LocalSlice = LocalSlice { segment: SegmentId(1), offset: 0, len: 64 };

    fn remote(key: u32) -> Option<RemoteSlice> {
        Some(RemoteSlice::new(4096, 64, RemoteKey(key)))
    }

    fn granted(outcome: Option<Outcome>) -> RemoteSlice {
        match outcome {
            Some(Outcome::Granted { remote, .. }) => remote,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn grant_is_in_force_when_all_rails_have_it_and_gone_when_none_has() {
        let (mut grants, mut asks) = (Grants::default(), Vec::new());
        let number = grants.begin(5, RANGE, &[0, 1]);
        assert_eq!(grants.answered(1, number, remote(8), &mut asks), None);
        let slice = granted(grants.answered(0, number, remote(7), &mut asks));
        assert_eq!(slice.keys.all(), [Some(RemoteKey(7)), Some(RemoteKey(8)), None, None]);
        assert_eq!(grants.revoke(RemoteKey(7), 5, &mut asks), None);
        let asked = [(0, 7), (1, 8)].map(|(rail, key)| (rail, Chore::Revoke { key: RemoteKey(key), number }));
        assert_eq!(asks, asked);
        assert_eq!(grants.revoked(1, number), None);
        assert_eq!(grants.revoked(1, number), None, "once is enough");
        let gone = Outcome::Revoked { key: RemoteKey(7), tag: 5, times: 1 };
        assert_eq!(grants.revoked(0, number).as_ref(), Some(&gone));
        assert_eq!(grants.revoke(RemoteKey(7), 5, &mut asks), Some(gone), "gone already");
    }

    #[test]
    fn grants_with_the_same_key_are_told_apart_by_tag() {
        let (mut grants, mut asks) = (Grants::default(), Vec::new());
        let numbers = [1, 2].map(|tag| {
            let number = grants.begin(tag, RANGE, &[0, 1]);
            grants.answered(0, number, remote(7), &mut asks);
            granted(grants.answered(1, number, remote(8), &mut asks));
            number
        });
        assert_eq!(grants.revoke(RemoteKey(7), 1, &mut asks), None);
        assert_eq!(grants.revoked(0, numbers[0]), None);
        assert_eq!(grants.revoke(RemoteKey(7), 2, &mut asks), None);
        let gone = |tag| Some(Outcome::Revoked { key: RemoteKey(7), tag, times: 1 });
        assert_eq!(grants.revoked(1, numbers[0]), gone(1));
        // When a rail dies, its keys are gone.
        assert_eq!(grants.revoked(1, numbers[1]), None);
        assert_eq!(grants.rail_down(0), [gone(2).unwrap()]);
    }

    #[test]
    fn rail_that_refuses_has_no_key_and_grant_without_keys_fails() {
        let (mut grants, mut asks) = (Grants::default(), Vec::new());
        let number = grants.begin(1, RANGE, &[0, 1]);
        grants.answered(0, number, None, &mut asks);
        assert_eq!(granted(grants.answered(1, number, remote(8), &mut asks)).key(), RemoteKey(8));
        let number = grants.begin(2, RANGE, &[0]);
        assert_eq!(grants.answered(0, number, None, &mut asks), Some(Outcome::Refused));
        // A rail that dies counts as refusing the range, and its open keys are gone.
        let number = grants.begin(3, RANGE, &[0, 1]);
        assert_eq!(grants.answered(0, number, remote(9), &mut asks), None);
        let [gone, outcome] = <[_; 2]>::try_from(grants.rail_down(1)).unwrap();
        assert_eq!(gone, Outcome::Revoked { key: RemoteKey(8), tag: 1, times: 1 });
        assert_eq!(granted(Some(outcome)).key(), RemoteKey(9));
    }
}
