//! Unanswered claims, and the unclaims after them, in their order.

use super::item::NodeItem;
use super::names::Owner;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use transfer_core::tensor::Key;

#[derive(Debug)]
enum Logged {
    Claim { claim: u64, key: Key, owner: Owner, resident: bool, takeover: bool, since: Instant },
    Unclaim { key: Key },
}

/// Claims are answered in their order. The log has the unanswered ones, and the unclaims after them. If it forgot the
/// unclaims, a directory that gets the claims again would keep keys that have ended.
#[derive(Debug, Default)]
pub(super) struct Log(VecDeque<Logged>);

impl Log {
    /// Records a claim, and makes its item.
    pub(super) fn claim(&mut self, claim: u64, key: Key, owner: Owner, how: How, now: Instant) -> NodeItem {
        let How { resident, takeover } = how;
        let (logged, owned) = (key.clone(), owner.clone());
        self.0.push_back(Logged::Claim { claim, key: logged, owner: owned, resident, takeover, since: now });
        let (owner, tenant) = owner;
        NodeItem::Claim { claim, key, owner, tenant, resident, takeover }
    }

    /// Records the end of a key, if a claim may enter it again.
    pub(super) fn unclaim(&mut self, key: &Key) {
        if !self.0.is_empty() {
            self.0.push_back(Logged::Unclaim { key: key.clone() });
        }
    }

    /// Removes the claim that was answered.
    pub(super) fn answered(&mut self, answered: u64) -> Option<Key> {
        match self.0.front()? {
            Logged::Claim { claim, .. } if *claim == answered => self.pop().map(|(_, key)| key),
            _ => None,
        }
    }

    /// Removes the first claim, and the unclaims that follow it: nothing is left that they could end.
    pub(super) fn pop(&mut self) -> Option<(u64, Key)> {
        let first = self.0.pop_front();
        while let Some(Logged::Unclaim { .. }) = self.0.front() {
            self.0.pop_front();
        }
        match first {
            Some(Logged::Claim { claim, key, .. }) => Some((claim, key)),
            _ => None,
        }
    }

    /// Removes the first claim if it has waited for that long.
    pub(super) fn pop_overdue(&mut self, now: Instant, patience: Duration) -> Option<(u64, Key)> {
        self.since().filter(|since| now.duration_since(*since) >= patience)?;
        self.pop()
    }

    /// The time since which the first claim waits.
    pub(super) fn since(&self) -> Option<Instant> {
        match self.0.front()? {
            Logged::Claim { since, .. } => Some(*since),
            Logged::Unclaim { .. } => None,
        }
    }

    /// All items again, in their order, for a new attachment.
    pub(super) fn replay(&mut self, now: Instant) -> impl Iterator<Item = NodeItem> {
        self.0.iter_mut().map(move |logged| match logged {
            Logged::Claim { claim, key, owner, resident, takeover, since } => {
                *since = now;
                let (claim, resident, takeover) = (*claim, *resident, *takeover);
                let (owner, tenant) = owner.clone();
                NodeItem::Claim { claim, key: key.clone(), owner, tenant, resident, takeover }
            }
            Logged::Unclaim { key } => NodeItem::Unclaim { key: key.clone() },
        })
    }
}

/// See [`NodeItem::Claim`].
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) resident: bool,
    pub(super) takeover: bool,
}
