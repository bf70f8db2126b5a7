//! Who waits for versions of a key, in an order in which those whom an event concerns are found without a look at the others.
//!
//! - Who takes a version *from a certain one on* ([`Select::Latest`]: any) stands by the lowest that it takes: a version concerns those at
//!   its start.
//! - Who takes *one version and no other* stands by that version.
//!
//! Among those who stand by the same version, who came first is served first.

use crate::fabric::LinkId;
use crate::protocol::ids::OperationId;
use crate::tensor::{Select, Version};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// Who waits for a version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Waiter {
    Local(OperationId),
    /// The request of this index of that link's peer.
    Remote(LinkId, u32),
}

/// Which waiters an event concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Concerned {
    /// All whose version is there, or can never be.
    All,
    /// This one has just come.
    One(Waiter),
    /// A version may be fetched again, or has ended.
    Version(Version),
}

/// A version, and a number that rises with each waiter that comes.
type Place = (u64, u64);

#[derive(Default)]
pub(super) struct Waiters {
    /// The number of the next one.
    next: u64,
    places: HashMap<Waiter, (Select, u64)>,
    rising: BTreeMap<Place, Waiter>,
    exactly: BTreeMap<Place, Waiter>,
    /// How many are operations of workers of this sidecar.
    local: usize,
    /// Those who wait for exactly one version up to this one were looked at when it came.
    looked_at: Option<u64>,
}

fn place(select: Select, number: u64) -> Place {
    match select {
        Select::Latest => (0, number),
        Select::AtLeast(version) | Select::Exactly(version) => (version.0, number),
    }
}

impl Waiters {
    fn line(&mut self, select: Select) -> &mut BTreeMap<Place, Waiter> {
        match select {
            Select::Latest | Select::AtLeast(_) => &mut self.rising,
            Select::Exactly(_) => &mut self.exactly,
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

    /// What it waits for, if it does.
    pub(super) fn remove(&mut self, waiter: Waiter) -> Option<Select> {
        let (select, number) = self.places.remove(&waiter)?;
        self.line(select).remove(&place(select, number));
        self.local -= usize::from(matches!(waiter, Waiter::Local(_)));
        Some(select)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether a worker of this sidecar is among them.
    pub(super) fn has_local(&self) -> bool {
        self.local > 0
    }

    /// What one of them waits for.
    pub(super) fn select(&self, waiter: Waiter) -> Option<Select> {
        self.places.get(&waiter).map(|(select, _)| *select)
    }

    /// The first one that takes this version and would take a later one as well.
    pub(super) fn first_rising(&self, version: Version) -> Option<Waiter> {
        let ((lowest, _), waiter) = self.rising.first_key_value()?;
        (*lowest <= version.0).then_some(*waiter)
    }

    /// The first one that waits for exactly this version.
    pub(super) fn first_exactly(&self, version: Version) -> Option<Waiter> {
        self.exactly.range((version.0, 0)..=(version.0, u64::MAX)).next().map(|(_, waiter)| *waiter)
    }

    /// The versions that a new one, `newest`, concerns of those for which somebody waits exactly: it is that one, or it came and went since
    /// the last look.
    pub(super) fn exactly_until(&mut self, newest: Version) -> Vec<Version> {
        let begin = match self.looked_at.replace(newest.0) {
            // Each of the earlier ones comes back if those fail who are getting it.
            Some(before) if before < newest.0 => before + 1,
            Some(before) if before == newest.0 => before,
            // The key's versions have begun anew.
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

    /// All of them, in the order in which they came.
    pub(super) fn into_all(self) -> Vec<Waiter> {
        let mut all: Vec<_> = self.places.into_iter().map(|(waiter, (_, number))| (number, waiter)).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, waiter)| waiter).collect()
    }

    /// All of them and what each waits for.
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
    fn each_version_finds_those_whom_it_concerns() {
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
        assert_eq!(all.first_rising(Version(0)), Some(waiter(1)));
        assert_eq!(all.remove(waiter(1)), Some(Select::Latest));
        assert_eq!(all.remove(waiter(1)), None);
        assert_eq!(all.first_rising(Version(9)), Some(waiter(5)));
        all.remove(waiter(5));
        assert_eq!((all.first_rising(Version(1)), all.first_rising(Version(2))), (None, Some(waiter(4))));
        assert_eq!((all.first_exactly(Version(5)), all.first_exactly(Version(4))), (Some(waiter(2)), None));
        assert_eq!(all.exactly_until(Version(4)), [Version(3)]);
        assert_eq!(all.exactly_until(Version(6)), [Version(5)], "the other one was looked at");
        assert_eq!(all.exactly_until(Version(5)), [Version(3), Version(5)], "its versions begin anew");
        assert_eq!(all.into_all(), [0, 2, 3, 4].map(waiter));
    }

    #[test]
    fn who_comes_again_stands_in_one_place() {
        let mut all = Waiters::default();
        all.add(waiter(1), Select::Latest);
        all.add(waiter(1), Select::Exactly(Version(3)));
        assert_eq!(all.first_rising(Version(9)), None);
        assert_eq!(all.select(waiter(1)), Some(Select::Exactly(Version(3))));
        all.remove(waiter(1));
        assert!(all.is_empty() && all.first_exactly(Version(3)).is_none());
    }
}
