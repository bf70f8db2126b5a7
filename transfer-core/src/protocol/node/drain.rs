//! Draining: the node finishes what runs and takes nothing new, because it is about to leave.
//!
//! What a worker or a peer asks for from then on fails with [`FailureCode::Draining`], and so does at once what only waits for a
//! version that is not there: nobody will publish it here any more. Landing slots that lie idle are called back, so that
//! peers hear it before they write. Counters and barriers that live here go on until the end.

use super::Node;
use crate::op::{Failure, FailureCode};
use crate::protocol::sessions::{FetchStage, OpKind};
use crate::time::Time;

/// What a draining node has still to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// Operations of its workers.
    pub operations: u64,
    /// Requests of peers that it answers.
    pub requests: u64,
    /// Writes and messages that wait for a peer to take them, or are not placed there yet.
    pub outgoing: u64,
    /// Keys of which a peer may still be writing something here.
    pub landing: u64,
}

impl Unfinished {
    /// Whether there is nothing.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Unfinished::default()
    }
}

impl Node {
    /// Takes nothing new from here on. Once per life: there is no way back.
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

    /// What a draining node still has to do.
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

    /// What is answered instead of beginning something.
    pub(super) fn is_draining(&self) -> Failure {
        let text = format!(
            "the sidecar of node {:?} is draining: it finishes what runs, takes nothing new, and leaves; try again when it is back, \
             or at another node",
            self.config.name
        );
        Failure::new(FailureCode::Draining, text)
    }
}
