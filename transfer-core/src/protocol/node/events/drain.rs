//! Draining: the node is about to leave. It finishes what runs and takes nothing new.
//!
//! New work that a worker or a peer asks for fails with [`FailureCode::Draining`](crate::op::FailureCode::Draining). So do, at once, the fetches and
//! requests that wait for an unpublished version: no worker will publish it here. Idle landing slots are called back,
//! so that peers learn of the drain before they write. Counters and barriers that live here work until the end.

use crate::protocol::node::Node;
use crate::protocol::sessions::{FetchOp, FetchStage, OpKind};
use crate::time::Time;

impl Node {
    /// Starts draining: the node takes nothing new from here on. A drain cannot be undone.
    pub fn drain(&mut self, now: Time) {
        self.common.latest = now;
        if std::mem::replace(&mut self.common.draining, true) {
            return;
        }
        self.keys.close_boards(&mut self.actions);
        let failure = access!(self).is_draining();
        let waiting = self
            .sessions
            .operations()
            .ids(|op| matches!(op.kind, OpKind::Fetch(FetchOp { stage: FetchStage::Waiting, .. })));
        // A base is lent until its worker gives it up, which may be never.
        let lending = self.sessions.operations().ids(|op| op.lent_base().is_some());
        for id in waiting.into_iter().chain(lending) {
            answering!(self).fail_op(id, failure.clone());
        }
        let links: Vec<_> = self.links.all().keys().copied().collect();
        for link in links {
            answering!(self).refuse_waiting_serves(now, link, &failure);
        }
        room!(self).recall_idle_slots();
    }
}
