//! Grants of a link with several rails: one inner grant for each rail, one name for all.

use super::MAX_RAILS;
use super::rail::Chore;
use crate::fabric::GrantAccess;
use crate::memory::{LocalSlice, RailKeys, RemoteKey, RemoteSlice};
use std::collections::{BTreeMap, HashMap};

/// The number of a grant that is being made: the tag of its inner grants.
pub(super) type GrantNo = u64;

type Keys = [Option<RemoteKey>; MAX_RAILS];

#[derive(Debug)]
struct Opening {
    tag: u64,
    range: LocalSlice,
    access: GrantAccess,
    waiting: [bool; MAX_RAILS],
    address: Option<u64>,
    keys: Keys,
}

#[derive(Debug)]
struct Open {
    keys: Keys,
    /// How often its end was asked for.
    revokes: u32,
}

/// What has become of a grant.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// In force on every live rail.
    Granted { tag: u64, remote: RemoteSlice },
    /// Closed on every rail. As often as that was asked for.
    Revoked { key: RemoteKey, times: u32 },
    /// No rail would open it.
    Refused,
}

/// What is to be asked of a rail's inner fabric.
type Ask = (usize, Chore);

#[derive(Debug, Default)]
pub(super) struct Grants {
    next: GrantNo,
    opening: BTreeMap<GrantNo, Opening>,
    /// By the key that the user knows it by.
    open: BTreeMap<u32, Open>,
    /// By the rail and its key: what the user knows it by.
    names: HashMap<(usize, u32), u32>,
}

impl Grants {
    /// Begins a grant over `rails`. Its number is the tag of the inner grants.
    pub(super) fn begin(&mut self, tag: u64, range: LocalSlice, access: GrantAccess, rails: &[usize]) -> GrantNo {
        let number = self.next;
        self.next += 1;
        let mut waiting = [false; MAX_RAILS];
        for rail in rails {
            waiting[*rail] = true;
        }
        self.opening.insert(number, Opening { tag, range, access, waiting, address: None, keys: [None; MAX_RAILS] });
        number
    }

    /// A grant that was begun and could not be made.
    pub(super) fn abandon(&mut self, number: GrantNo) {
        self.opening.remove(&number);
    }

    /// A rail has opened it: `remote`; or will not.
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
            // One address serves every rail; a rail that calls the range otherwise goes without.
            if *opening.address.get_or_insert(remote.address) == remote.address {
                opening.keys[rail] = Some(remote.key());
            } else {
                asks.push((rail, Chore::Revoke(remote.key())));
            }
        }
        self.finish(number, asks)
    }

    /// Where every rail has answered.
    fn finish(&mut self, number: GrantNo, asks: &mut Vec<Ask>) -> Option<Outcome> {
        let opening = self.opening.get_mut(&number)?;
        if opening.waiting.contains(&true) {
            return None;
        }
        let keys = RailKeys::new(&opening.keys);
        if let Some(keys) = keys
            && self.open.contains_key(&keys.first().0)
        {
            // A rail's key that another rail's, dead by now, has given its name to. A second one, taken while the first is held, differs.
            let rail = opening.keys.iter().position(Option::is_some)?;
            let taken = opening.keys[rail].take()?;
            opening.waiting[rail] = true;
            asks.push((rail, Chore::Grant { range: opening.range, access: opening.access, number }));
            asks.push((rail, Chore::Revoke(taken)));
            return None;
        }
        let opening = self.opening.remove(&number)?;
        let (Some(keys), Some(address)) = (keys, opening.address) else { return Some(Outcome::Refused) };
        let name = keys.first();
        for (rail, key) in opening.keys.iter().enumerate() {
            if let Some(key) = key {
                self.names.insert((rail, key.0), name.0);
            }
        }
        self.open.insert(name.0, Open { keys: opening.keys, revokes: 0 });
        Some(Outcome::Granted { tag: opening.tag, remote: RemoteSlice { address, len: opening.range.len, keys } })
    }

    /// The user wants it closed.
    pub(super) fn revoke(&mut self, key: RemoteKey, asks: &mut Vec<Ask>) -> Option<Outcome> {
        let Some(open) = self.open.get_mut(&key.0) else { return Some(Outcome::Revoked { key, times: 1 }) };
        open.revokes += 1;
        if open.revokes == 1 {
            let keys = open.keys.iter().enumerate();
            asks.extend(keys.filter_map(|(rail, key)| Some((rail, Chore::Revoke((*key)?)))));
        }
        self.closed(key.0)
    }

    /// A rail's key is closed.
    pub(super) fn revoked(&mut self, rail: usize, key: RemoteKey) -> Option<Outcome> {
        let name = self.names.remove(&(rail, key.0))?;
        self.open.get_mut(&name)?.keys[rail] = None;
        self.closed(name)
    }

    /// Where no rail has a key for it any more.
    fn closed(&mut self, name: u32) -> Option<Outcome> {
        if self.open.get(&name)?.keys.iter().any(Option::is_some) {
            return None;
        }
        let times = self.open.remove(&name)?.revokes.max(1);
        Some(Outcome::Revoked { key: RemoteKey(name), times })
    }

    /// A rail is dead and drained: its keys are gone.
    pub(super) fn rail_down(&mut self, rail: usize, asks: &mut Vec<Ask>) -> Vec<Outcome> {
        self.names.retain(|(of, _), _| *of != rail);
        for open in self.open.values_mut() {
            open.keys[rail] = None;
        }
        for opening in self.opening.values_mut() {
            opening.keys[rail] = None;
            opening.waiting[rail] = false;
        }
        let names: Vec<_> = self.open.keys().copied().collect();
        let numbers: Vec<_> = self.opening.keys().copied().collect();
        let mut outcomes: Vec<_> = names.into_iter().filter_map(|name| self.closed(name)).collect();
        outcomes.extend(numbers.into_iter().filter_map(|number| self.finish(number, asks)));
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
    fn a_grant_is_in_force_when_every_rail_has_it_and_gone_when_none_has() {
        let (mut grants, mut asks) = (Grants::default(), Vec::new());
        let number = grants.begin(5, RANGE, GrantAccess::Write, &[0, 1]);
        assert_eq!(grants.answered(1, number, remote(8), &mut asks), None);
        let slice = granted(grants.answered(0, number, remote(7), &mut asks));
        assert_eq!((slice.keys.rail(0), slice.keys.rail(1)), (Some(RemoteKey(7)), Some(RemoteKey(8))));
        assert_eq!(grants.revoke(RemoteKey(7), &mut asks), None);
        assert_eq!(asks.len(), 2);
        assert_eq!(grants.revoked(1, RemoteKey(8)), None);
        let gone = Outcome::Revoked { key: RemoteKey(7), times: 1 };
        assert_eq!(grants.revoked(0, RemoteKey(7)).as_ref(), Some(&gone));
        assert_eq!(grants.revoke(RemoteKey(7), &mut asks), Some(gone), "gone already");
    }

    #[test]
    fn a_dead_rail_counts_no_more() {
        let (mut grants, mut asks) = (Grants::default(), Vec::new());
        let first = grants.begin(1, RANGE, GrantAccess::Write, &[0, 1]);
        grants.answered(0, first, remote(7), &mut asks);
        granted(grants.answered(1, first, remote(8), &mut asks));
        let second = grants.begin(2, RANGE, GrantAccess::Write, &[0, 1]);
        grants.answered(1, second, remote(9), &mut asks);
        let [outcome] = <[_; 1]>::try_from(grants.rail_down(0, &mut asks)).unwrap();
        assert_eq!(granted(Some(outcome)).key(), RemoteKey(9));
        assert!(asks.is_empty());
        // It keeps the name that the dead rail gave it; another that would get the same takes another key.
        let third = grants.begin(3, RANGE, GrantAccess::Write, &[1]);
        assert_eq!(grants.answered(1, third, remote(7), &mut asks), None);
        let again = Chore::Grant { range: RANGE, access: GrantAccess::Write, number: third };
        assert_eq!(asks, [(1, again), (1, Chore::Revoke(RemoteKey(7)))]);
        assert_eq!(granted(grants.answered(1, third, remote(10), &mut asks)).key(), RemoteKey(10));
        assert_eq!(grants.revoked(1, RemoteKey(7)), None);
        asks.clear();
        assert_eq!(grants.revoke(RemoteKey(7), &mut asks), None);
        assert_eq!(asks, [(1, Chore::Revoke(RemoteKey(8)))]);
        assert!(matches!(grants.revoked(1, RemoteKey(8)), Some(Outcome::Revoked { key: RemoteKey(7), .. })));
    }

    #[test]
    fn a_rail_that_will_not_goes_without() {
        let (mut grants, mut asks) = (Grants::default(), Vec::new());
        let number = grants.begin(1, RANGE, GrantAccess::Write, &[0, 1]);
        grants.answered(0, number, None, &mut asks);
        assert_eq!(granted(grants.answered(1, number, remote(8), &mut asks)).key(), RemoteKey(8));
        let number = grants.begin(1, RANGE, GrantAccess::Write, &[0]);
        assert_eq!(grants.answered(0, number, None, &mut asks), Some(Outcome::Refused));
    }
}
