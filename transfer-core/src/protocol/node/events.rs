//! Events that the node reports without being asked. Failures and full pools are reported at a limited rate.

use super::Node;
use crate::op::{Failure, FailureCode};
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::SessionId;

impl Node {
    /// Counts a worker's failed operation and reports it, unless its caller gave it up or the rate limit is reached.
    pub(super) fn failed(&mut self, session: SessionId, failure: &Failure) {
        self.meters.failed(failure.code);
        // The caller gave the operation up and knows of it.
        if failure.code == FailureCode::Cancelled {
            return;
        }
        let Some(worker) = self.sessions.get(session).map(|s| s.name().clone()) else { return };
        if let Some(untold) = self.failures_told.next(self.latest) {
            self.actions.report(NodeEvent::Failed { worker, failure: failure.clone(), untold });
        }
    }
}
