//! The ranges of the arena that the sidecar holds, by push. They are needed to return each range to its allocation, and
//! to publish the versions again after the sidecar's restart.

use super::Lent;
use super::home::Former;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer_core::op::{Deltas, OpId, Push};
use transfer_core::tensor::{Key, Until, Version};

/// A pushed range.
#[derive(Debug)]
pub struct Loan {
    pub(crate) lent: Lent,
    /// The other lent allocations of the push; an allocation appears once for each time that it was lent.
    pub(crate) along: Vec<u64>,
    /// The earlier sessions in which the range was lent.
    pub(crate) formers: Vec<Arc<Former>>,
    /// The push as it was made; its version is set once it is known.
    pub(crate) push: Push,
    /// The rate at which the versions before it left the node, as the sidecar has answered.
    pub(crate) link_rate: u64,
    /// Its place in the order in which pushes were sent.
    sent: u64,
    state: State,
}

impl Loan {
    /// The same loan, once its deltas are freed.
    pub(crate) fn without_deltas(mut self) -> Loan {
        self.push.deltas = Deltas::None;
        self
    }

    /// The allocations of its deltas, which were lent with the push, and their lengths.
    pub(crate) fn deltas(&self) -> Vec<(u64, u64)> {
        match &self.push.deltas {
            Deltas::Of(of) => of.ranges().collect(),
            Deltas::None | Deltas::Follow | Deltas::Base => Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The push has no answer yet; or its version has failed and is still being read, was replaced, or has landed on
    /// another node.
    Held,
    /// It is published here; the number gives the order.
    Published(u64),
}

/// All loans, by their push.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    by_push: HashMap<OpId, Loan>,
    /// The published versions of each key, in order.
    published: HashMap<Key, Vec<OpId>>,
    /// The ranges into which fetches under way land.
    destinations: HashMap<OpId, Vec<Lent>>,
    /// The keys of the deletions under way.
    deleting: HashMap<OpId, Key>,
    next: u64,
}

impl Loans {
    pub(crate) fn lend(&mut self, op: OpId, push: &Push, lent: Lent, along: Vec<u64>, formers: Vec<Arc<Former>>) {
        self.next += 1;
        let (push, sent, state) = (push.clone(), self.next, State::Held);
        self.by_push.insert(op, Loan { lent, along, formers, push, link_rate: 0, sent, state });
    }

    /// Records the ranges into which a fetch lands.
    pub(crate) fn land(&mut self, op: OpId, lent: Vec<Lent>) {
        self.destinations.insert(op, lent);
    }

    /// Removes the ranges of a fetch that has ended, if it had some.
    pub(crate) fn end_landing(&mut self, op: OpId) -> Vec<Lent> {
        self.destinations.remove(&op).unwrap_or_default()
    }

    /// Takes the ranges of the fetches that were under way when the session ended.
    pub(crate) fn take_destinations(&mut self) -> Vec<Lent> {
        std::mem::take(&mut self.destinations).into_values().flatten().collect()
    }

    /// Records that a push is published at this sidecar.
    pub(crate) fn published(&mut self, push: OpId, version: Version, link_rate: u64) {
        let Some(loan) = self.by_push.get_mut(&push) else { return };
        loan.link_rate = link_rate;
        self.next += 1;
        loan.state = State::Published(self.next);
        loan.push.version = Some(version);
        // The key is copied only for its first version.
        let ops = match self.published.get_mut(&loan.push.key) {
            Some(ops) => ops,
            None => self.published.entry(loan.push.key.clone()).or_default(),
        };
        ops.retain(|op| match self.by_push.get_mut(op) {
            // A version that stays until it is replaced is replaced now.
            Some(before) if before.push.retention.until == Until::Replaced => {
                before.state = State::Held;
                false
            }
            before => before.is_some(),
        });
        ops.push(push);
    }

    /// The push of a range that the sidecar still holds.
    pub(crate) fn push(&self, op: OpId) -> Option<&Push> {
        self.by_push.get(&op).map(|loan| &loan.push)
    }

    /// Records that a deletion is under way.
    pub(crate) fn deleting(&mut self, op: OpId, key: &Key) {
        self.deleting.insert(op, key.clone());
    }

    /// Records that a deletion has ended.
    pub(crate) fn deleted(&mut self, op: OpId, well: bool) {
        if let Some(key) = self.deleting.remove(&op)
            && well
        {
            for op in self.published.remove(&key).unwrap_or_default() {
                if let Some(loan) = self.by_push.get_mut(&op) {
                    loan.state = State::Held;
                }
            }
        }
    }

    /// Removes a loan that the sidecar has returned.
    pub(crate) fn end(&mut self, push: OpId) -> Option<Loan> {
        let loan = self.by_push.remove(&push)?;
        if let State::Published(_) = loan.state
            && let Some(ops) = self.published.get_mut(&loan.push.key)
        {
            ops.retain(|op| *op != push);
            if ops.is_empty() {
                self.published.remove(&loan.push.key);
            }
        }
        Some(loan)
    }

    /// The published version of a key: that one, or the newest.
    pub(crate) fn find(&self, key: &Key, version: Option<Version>) -> Option<&Loan> {
        let ops = self.published.get(key)?;
        let loans = ops.iter().rev().filter_map(|op| self.by_push.get(op));
        loans.into_iter().find(|loan| version.is_none() || loan.push.version == version)
    }

    /// The push of a key that was sent last and has not come back.
    pub(crate) fn sent_last(&self, key: &Key) -> Option<&Loan> {
        // Numbers of operations come again.
        let is_one = |loan: &&Loan| loan.push.key == *key && loan.push.deltas != Deltas::Base;
        self.by_push.values().filter(is_one).max_by_key(|loan| loan.sent)
    }

    /// Takes all loans at the end of a session: the published ones in their order, and the others.
    pub(crate) fn take(&mut self) -> (Vec<Loan>, Vec<Loan>) {
        self.published.clear();
        self.deleting.clear();
        let (mut published, mut held) = (BTreeMap::new(), Vec::new());
        for loan in std::mem::take(&mut self.by_push).into_values() {
            match loan.state {
                State::Published(at) => drop(published.insert(at, loan)),
                State::Held => held.push(loan),
            }
        }
        (published.into_values().collect(), held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_core::tensor::{DType, Retention, TensorMeta};

    fn lend(loans: &mut Loans, op: u64, key: &str, until: Until) {
        let push = Push {
            retention: Retention { until, ..Retention::default() },
            ..Push::new(Key::new(key).unwrap(), TensorMeta::of(DType::U8, &[1]).unwrap(), op * 64)
        };
        let lent = Lent { offset: op * 64, allocation: op * 64, owned: true };
        loans.lend(OpId(op), &push, lent, Vec::new(), Vec::new());
    }

    #[test]
    fn published_loans_keep_their_order_and_forget_replaced_and_deleted_versions() {
        let mut loans = Loans::default();
        for (op, key, until) in [
            (1, "a", Until::Replaced),
            (2, "a", Until::Deleted),
            (3, "b", Until::Replaced),
            (4, "a", Until::Replaced),
            (5, "a", Until::Replaced),
            (6, "gone", Until::Deleted),
        ] {
            lend(&mut loans, op, key, until);
            if op != 5 {
                loans.published(OpId(op), Version(op), 0);
            }
        }
        loans.deleting(OpId(7), &Key::new("gone").unwrap());
        loans.deleted(OpId(7), true);
        assert_eq!(loans.find(&Key::new("a").unwrap(), None).unwrap().push.version, Some(Version(4)));
        assert_eq!(loans.sent_last(&Key::new("a").unwrap()).unwrap().push.offset, 5 * 64);
        assert!(loans.sent_last(&Key::new("c").unwrap()).is_none());
        assert!(loans.end(OpId(3)).is_some() && loans.end(OpId(3)).is_none());
        let (published, mut held) = loans.take();
        let versions: Vec<_> = published.iter().map(|l| l.push.version.unwrap().0).collect();
        assert_eq!(versions, [2, 4]);
        held.sort_by_key(|l| l.lent.offset);
        assert_eq!(held.iter().map(|l| l.lent.offset / 64).collect::<Vec<_>>(), [1, 5, 6]);
    }
}
