//! The first seconds of a host that has taken over: it enters what the nodes had before, and grants nothing new until all nodes
//! that its predecessor knew have recited, or the time is over.

use super::entries::NodeNo;
use super::item::{Answer, NodeItem};
use hashbrown::HashMap;
use std::collections::{BTreeSet, VecDeque};
use tokio::time::Instant;
use transfer_core::protocol::DirectoryRequest;
use transfer_core::tensor::Name;

/// Beyond this many deferred items of a node, nothing more is read from it.
pub(super) const MAX_DEFERRED: usize = 64 * super::host::MAX_BATCH;

/// What waits until the host has settled.
#[derive(Debug)]
pub(super) enum Deferred {
    Item(NodeItem),
    /// The answer to what a node had before. It stands behind deferred items of that node, because answers come in order.
    Answer(Answer),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Settling {
    /// Another host may grant something before this.
    grants_from: Option<Instant>,
    until: Instant,
    awaited: BTreeSet<Name>,
    deferred: VecDeque<(NodeNo, Deferred)>,
    /// How many are of each node.
    of_node: HashMap<NodeNo, usize>,
}

impl Settling {
    /// `grants_from`: it lasts until then, also if all have recited.
    pub(super) fn new(grants_from: Option<Instant>, until: Instant, awaited: BTreeSet<Name>) -> Settling {
        let until = grants_from.map_or(until, |from| from.max(until));
        Settling { grants_from, until, awaited, deferred: VecDeque::new(), of_node: HashMap::new() }
    }

    /// Returns whether an item waits: what is not a recital might take what another node is about to recite.
    pub(super) fn defers(item: &NodeItem) -> bool {
        match item {
            NodeItem::Claim { claim, .. } => claim.entered == 0,
            NodeItem::WorkerUp { entered, .. } => *entered == 0,
            NodeItem::Pong { .. } | NodeItem::Leave | NodeItem::Request(DirectoryRequest::Recited) => false,
            _ => true,
        }
    }

    pub(super) fn defer(&mut self, node: NodeNo, what: Deferred) {
        self.deferred.push_back((node, what));
        *self.of_node.entry(node).or_default() += 1;
    }

    /// Drops what has waited for a node, which is detached.
    pub(super) fn forget(&mut self, node: NodeNo) {
        if self.of_node.remove(&node).is_some() {
            self.deferred.retain(|(of, _)| *of != node);
        }
    }

    /// Returns the number of deferred items and answers of a node.
    pub(super) fn of_node(&self, node: NodeNo) -> usize {
        self.of_node.get(&node).copied().unwrap_or(0)
    }

    /// Handles that a node has recited everything, or has left.
    pub(super) fn recited(&mut self, node: &Name) {
        self.awaited.remove(node);
    }

    /// Returns the nodes that have not recited.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &Name> {
        self.awaited.iter()
    }

    /// When it is over, unless more nodes recite before.
    pub(super) fn until(&self) -> Instant {
        self.grants_from.filter(|_| self.awaited.is_empty()).unwrap_or(self.until)
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until || self.awaited.is_empty() && self.grants_from.is_none_or(|from| now >= from)
    }

    /// Returns what has waited, in its order.
    pub(super) fn end(self) -> VecDeque<(NodeNo, Deferred)> {
        self.deferred
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    // Promise: one-leading-host
    #[test]
    fn nothing_new_is_granted_while_another_host_may_though_all_have_recited() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let a = Name::new("a").unwrap();
        let mut settling = Settling::new(Some(now + 2 * second), now + second, BTreeSet::from([a.clone()]));
        assert!(!settling.is_over(now + second));
        settling.recited(&a);
        assert_eq!(settling.until(), now + 2 * second);
        assert!(!settling.is_over(now + second) && settling.is_over(now + 2 * second));
        let settling = Settling::new(None, now + second, BTreeSet::new());
        assert!(settling.is_over(now));
    }
}
