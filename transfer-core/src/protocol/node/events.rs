//! What the node tells without being asked, each at most so often.

use super::Node;
use crate::op::{Failure, FailureCode};
use crate::protocol::action::HostAction;
use crate::protocol::control::Control;
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::SessionId;

impl Node {
    pub(super) fn tell(&mut self, event: NodeEvent) {
        self.actions.push(HostAction::Control(Control::Event(event)));
    }

    /// An operation of that worker has failed.
    pub(super) fn failed(&mut self, session: SessionId, failure: &Failure) {
        self.meters.failed(failure.code);
        // Whoever gives something up knows.
        if failure.code == FailureCode::Cancelled {
            return;
        }
        let Some(worker) = self.sessions.get(session).map(|s| s.name().clone()) else { return };
        if let Some(untold) = self.failures_told.next(self.latest) {
            self.tell(NodeEvent::Failed { worker, failure: failure.clone(), untold });
        }
    }
}
