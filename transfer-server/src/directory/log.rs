//! Unanswered claims, and the unclaims that follow them, in their order.

use super::item::NodeItem;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use transfer_core::protocol::{Claim, DirectoryRequest};
use transfer_core::tensor::Key;

#[derive(Debug)]
enum Logged {
    Claim { number: u64, claim: Claim, since: Instant },
    Unclaim { key: Key },
}

/// The unanswered claims in the order in which they will be answered, and the unclaims that follow them. Without the
/// unclaims, a directory that receives the claims again would keep keys that have ended.
#[derive(Debug, Default)]
pub(super) struct Log(VecDeque<Logged>);

impl Log {
    /// Records a claim. Returns the item to send.
    pub(super) fn claim(&mut self, number: u64, claim: Claim, now: Instant) -> NodeItem {
        self.0.push_back(Logged::Claim { number, claim: claim.clone(), since: now });
        NodeItem::Claim { number, claim }
    }

    /// Records the end of a key, if a repeated claim may enter the key again.
    pub(super) fn unclaim(&mut self, key: &Key) {
        if !self.0.is_empty() {
            self.0.push_back(Logged::Unclaim { key: key.clone() });
        }
    }

    /// Removes the claim that was answered. Returns its key.
    pub(super) fn answered(&mut self, answered: u64) -> Option<Key> {
        match self.0.front()? {
            Logged::Claim { number, .. } if *number == answered => self.pop().map(|(_, key)| key),
            _ => None,
        }
    }

    /// Removes the first claim, and the unclaims that follow it, which have nothing left to end.
    pub(super) fn pop(&mut self) -> Option<(u64, Key)> {
        let first = self.0.pop_front();
        while let Some(Logged::Unclaim { .. }) = self.0.front() {
            self.0.pop_front();
        }
        match first {
            Some(Logged::Claim { number, claim, .. }) => Some((number, claim.key)),
            _ => None,
        }
    }

    /// Removes the first claim if it has waited for `patience`.
    pub(super) fn pop_overdue(&mut self, now: Instant, patience: Duration) -> Option<(u64, Key)> {
        self.since().filter(|since| now.duration_since(*since) >= patience)?;
        self.pop()
    }

    /// Returns the time since which the first claim waits.
    pub(super) fn since(&self) -> Option<Instant> {
        match self.0.front()? {
            Logged::Claim { since, .. } => Some(*since),
            Logged::Unclaim { .. } => None,
        }
    }

    /// Returns all items again, in their order, for a new attachment.
    pub(super) fn replay(&mut self, now: Instant) -> impl Iterator<Item = NodeItem> {
        self.0.iter_mut().map(move |logged| match logged {
            Logged::Claim { number, claim, since } => {
                *since = now;
                NodeItem::Claim { number: *number, claim: claim.clone() }
            }
            Logged::Unclaim { key } => NodeItem::Request(DirectoryRequest::Unclaim { key: key.clone() }),
        })
    }
}
