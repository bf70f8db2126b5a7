//! The waiters for versions of a key, sorted so that an event finds its waiters without a look at the others.
//!
//! - A waiter that takes any version *from a certain one on* is sorted by the lowest version that it takes
//!   ([`Select::Latest`]: 0). A new version concerns the waiters at the start of this order.
//! - A waiter that takes *exactly one version* is sorted by that version.
//! - A waiter that takes *another version than the one it has seen* is sorted by that one. A new version concerns the
//!   waiters at the start of this order, as it is newer; one that is lower, because the key's versions have begun again,
//!   concerns those at the end.
//!
//! Among waiters that are sorted by the same version, the first to come is served first.

use crate::fabric::LinkId;
use crate::protocol::ids::OperationId;
use crate::tensor::{Select, Version};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// A waiter for a version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Waiter {
    Local(OperationId),
    /// The request with this index, of the peer of this link.
    Remote(LinkId, u32),
}

/// The waiters that an event concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concerned {
    /// All waiters whose version is published, or can no longer come.
    All,
    /// This waiter, which has just come.
    One(Waiter),
    /// The waiters that take this version: it has fetches left again, or has ended.
    Version(Version),
}

/// A version, and a number that rises with each waiter that comes.
type WaitOrder = (u64, u64);

#[derive(Default)]
pub(super) struct Waiters {
    /// The number of the next waiter.
    next: u64,
    places: HashMap<Waiter, (Select, u64)>,
    rising: BTreeMap<WaitOrder, Waiter>,
    exactly: BTreeMap<WaitOrder, Waiter>,
    after: BTreeMap<WaitOrder, Waiter>,
    /// How many waiters are operations of this sidecar's workers.
    local: usize,
    /// The newest version at the last call of `exactly_until`. Waiters for exactly one version up to this one were
    /// looked at then.
    looked_at: Option<u64>,
}

fn place(select: Select, number: u64) -> WaitOrder {
    match select {
        Select::Latest => (0, number),
        Select::AtLeast(version) | Select::Exactly(version) | Select::Following(version) | Select::After(version) => {
            (version.0, number)
        }
    }
}

impl Waiters {
    fn line(&mut self, select: Select) -> &mut BTreeMap<WaitOrder, Waiter> {
        match select {
            Select::Latest | Select::AtLeast(_) => &mut self.rising,
            Select::Exactly(_) | Select::Following(_) => &mut self.exactly,
            Select::After(_) => &mut self.after,
        }
    }

    pub(super) fn add(&mut self, waiter: Waiter, select: Select) {
        self.remove(waiter);
        let number = self.next;
        self.next += 1;
        self.places.insert(waiter, (select, number));
        self.line(select).insert(place(select, number), waiter);
        self.local += usize::from(matches!(waiter, Waiter::Local(_)));
    }

    /// Removes a waiter. Returns what it waited for, if it was here.
    pub(super) fn remove(&mut self, waiter: Waiter) -> Option<Select> {
        let (select, number) = self.places.remove(&waiter)?;
        self.line(select).remove(&place(select, number));
        self.local -= usize::from(matches!(waiter, Waiter::Local(_)));
        Some(select)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether a worker of this sidecar is among the waiters.
    pub(super) fn has_local(&self) -> bool {
        self.local > 0
    }

    /// Returns what a waiter waits for.
    pub(super) fn select(&self, waiter: Waiter) -> Option<Select> {
        self.places.get(&waiter).map(|(select, _)| *select)
    }

    /// Returns the first waiter that takes this version and would take a later one as well. `newest` is the key's newest
    /// version, which may have ended.
    pub(super) fn first_rising(&self, version: Version, newest: Version) -> Option<Waiter> {
        let rising = self.rising.first_key_value().filter(|((lowest, _), _)| *lowest <= version.0);
        let newer = || self.after.first_key_value().filter(|((seen, _), _)| *seen < version.0);
        let again = || self.after.range((newest.0, u64::MAX)..).next();
        rising.or_else(newer).or_else(again).map(|(_, waiter)| *waiter)
    }

    /// Returns the first waiter that takes exactly this version.
    pub(super) fn first_exactly(&self, version: Version) -> Option<Waiter> {
        self.exactly.range((version.0, 0)..=(version.0, u64::MAX)).next().map(|(_, waiter)| *waiter)
    }

    /// Returns the versions that waiters wait for exactly, and that the new version `newest` concerns: `newest` itself,
    /// and those that came and went since the last call.
    pub(super) fn exactly_until(&mut self, newest: Version) -> Vec<Version> {
        let begin = match self.looked_at.replace(newest.0) {
            // If a waiter still waits for an earlier version, that version is being fetched: it comes back if the fetch
            // fails.
            Some(before) if before < newest.0 => before + 1,
            Some(before) if before == newest.0 => before,
            // The first call, or the key's versions have begun anew.
            _ => 0,
        };
        let mut versions: Vec<_> = Vec::new();
        let mut next = self.exactly.range((begin, 0)..=(newest.0, u64::MAX)).next();
        while let Some(((version, _), _)) = next {
            versions.push(Version(*version));
            let Some(begin) = version.checked_add(1).filter(|begin| *begin <= newest.0) else { break };
            next = self.exactly.range((begin, 0)..=(newest.0, u64::MAX)).next();
        }
        versions
    }

    /// Returns the waiters that follow the key's owner.
    pub(super) fn following(&self) -> Vec<Waiter> {
        let follows = |waiter: &&Waiter| matches!(self.select(**waiter), Some(Select::Following(_)));
        self.exactly.values().filter(follows).copied().collect()
    }

    /// Returns all waiters, in the order in which they came.
    pub(super) fn into_all(self) -> Vec<Waiter> {
        let mut all: Vec<_> = self.places.into_iter().map(|(waiter, (_, number))| (number, waiter)).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, waiter)| waiter).collect()
    }

    /// Returns all waiters, and what each of them waits for.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (Waiter, Select)> + '_ {
        self.places.iter().map(|(waiter, (select, _))| (*waiter, *select))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(n: u32) -> Waiter {
        Waiter::Remote(LinkId(1), n)
    }

    #[test]
    fn version_finds_the_waiters_that_it_concerns() {
        let mut all = Waiters::default();
        let selects = [
            Select::AtLeast(Version(5)),
            Select::Latest,
            Select::Exactly(Version(5)),
            Select::Exactly(Version(3)),
            Select::AtLeast(Version(2)),
            Select::Latest,
        ];
        for (n, select) in (0..).zip(selects) {
            all.add(waiter(n), select);
        }
        assert_eq!(all.first_rising(Version(0), Version(0)), Some(waiter(1)));
        assert_eq!(all.remove(waiter(1)), Some(Select::Latest));
        assert_eq!(all.remove(waiter(1)), None);
        assert_eq!(all.first_rising(Version(9), Version(9)), Some(waiter(5)));
        all.remove(waiter(5));
        assert_eq!(
            (all.first_rising(Version(1), Version(1)), all.first_rising(Version(2), Version(2))),
            (None, Some(waiter(4)))
        );
        assert_eq!((all.first_exactly(Version(5)), all.first_exactly(Version(4))), (Some(waiter(2)), None));
        assert_eq!(all.exactly_until(Version(4)), [Version(3)]);
        assert_eq!(all.exactly_until(Version(6)), [Version(5)], "the other one was looked at");
        assert_eq!(all.exactly_until(Version(5)), [Version(3), Version(5)], "its versions begin anew");
        assert_eq!(all.into_all(), [0, 2, 3, 4].map(waiter));
    }

    #[test]
    fn waiters_for_another_version_are_served_by_newer_ones_and_by_lower_newest_ones() {
        let mut all = Waiters::default();
        for (n, seen) in [(0, 5), (1, 8), (2, 5)] {
            all.add(waiter(n), Select::After(Version(seen)));
        }
        let first = |all: &Waiters, version, newest| all.first_rising(Version(version), Version(newest));
        assert_eq!(first(&all, 6, 6), Some(waiter(0)), "it is newer than what that one has seen");
        assert_eq!(first(&all, 5, 5), Some(waiter(1)), "the key has begun again since 8");
        assert_eq!(first(&all, 5, 8), None, "8 was published in this epoch, and has ended");
        all.remove(waiter(1));
        assert_eq!(first(&all, 5, 5), None);
        assert_eq!(first(&all, 0, 0), Some(waiter(0)));
        all.remove(waiter(0));
        assert_eq!(first(&all, 0, 4), Some(waiter(2)));
        all.remove(waiter(2));
        assert!(all.is_empty());
    }

    #[test]
    fn waiter_that_comes_again_has_one_place() {
        let mut all = Waiters::default();
        all.add(waiter(1), Select::Latest);
        all.add(waiter(1), Select::Exactly(Version(3)));
        assert_eq!(all.first_rising(Version(9), Version(9)), None);
        assert_eq!(all.select(waiter(1)), Some(Select::Exactly(Version(3))));
        all.remove(waiter(1));
        assert!(all.is_empty() && all.first_exactly(Version(3)).is_none());
    }
}
