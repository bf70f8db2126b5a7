//! Draining: the node is about to leave. It finishes what runs and takes nothing new.
//!
//! New work that a worker or a peer asks for fails with [`FailureCode::Draining`]. So do, at once, the fetches and
//! requests that wait for an unpublished version: no worker will publish it here. Idle landing slots are called back,
//! so that peers learn of the drain before they write. Counters and barriers that live here work until the end.

use super::Node;
use crate::op::{Failure, FailureCode};
use crate::protocol::sessions::{FetchStage, OpKind};
use crate::time::Time;

/// The work that a draining node has left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// Operations of its workers.
    pub operations: u64,
    /// Requests of peers that it has not answered.
    pub requests: u64,
    /// Writes and messages that wait to be posted, and posted writes that are not complete.
    pub outgoing: u64,
    /// Keys that a peer may still write here, or that have landed and are not published yet.
    pub landing: u64,
}

impl Unfinished {
    /// Returns whether no work is left.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Unfinished::default()
    }
}

impl Node {
    /// Starts draining: the node takes nothing new from here on. A drain cannot be undone.
    pub fn drain(&mut self, now: Time) {
        self.latest = now;
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        self.keys.close_boards(&mut self.actions);
        let failure = self.is_draining();
        let waiting =
            self.sessions.operations().ids(|op| matches!(op.kind, OpKind::Fetch { stage: FetchStage::Waiting, .. }));
        for id in waiting {
            self.fail_op(id, failure.clone());
        }
        let links: Vec<_> = self.links.all().keys().copied().collect();
        for link in links {
            self.refuse_waiting_serves(now, link, &failure);
        }
        self.recall_idle_slots();
    }

    /// Returns the work that a draining node has left.
    #[must_use]
    pub fn unfinished(&self) -> Unfinished {
        let landing = self.landing.flows_where(|flow| flow.state.lands() || flow.holds_unpublished()).len() as u64;
        let mut left =
            Unfinished { operations: self.sessions.operations().len() as u64, landing, ..Unfinished::default() };
        for (link, l) in self.links.all() {
            left.requests += self.transfers.of(*link).map_or(0, |l| l.serves().len() as u64);
            left.outgoing += (l.queued() + l.in_flight()) as u64;
        }
        left
    }

    /// Returns the failure that answers new work while the node drains.
    pub(super) fn is_draining(&self) -> Failure {
        let text = format!(
            "the sidecar of node {:?} is draining: it finishes what runs, takes nothing new, and leaves; try again when it is back, \
             or at another node",
            self.config.name
        );
        Failure::new(FailureCode::Draining, text)
    }
}
