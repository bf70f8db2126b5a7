//! What the node tells without being asked, each at most so often.

use super::Node;
use crate::op::{Failure, FailureCode};
use crate::protocol::action::HostAction;
use crate::protocol::control::Control;
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::SessionId;
use crate::time::Time;
use std::time::Duration;

/// So many failures are told in so long.
const FAILURES: (u32, Duration) = (10, Duration::from_secs(1));

/// How many failures were told of late.
#[derive(Default)]
pub(super) struct FailuresTold {
    since: Time,
    told: u32,
    untold: u64,
}

impl FailuresTold {
    /// Whether this one may be told: then how many were not before it.
    fn next(&mut self, now: Time) -> Option<u64> {
        let (most, window) = FAILURES;
        if now.since(self.since) >= window {
            (self.since, self.told) = (now, 0);
        }
        if self.told >= most {
            self.untold += 1;
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

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
        let Some(worker) = self.sessions.get(&session).map(|s| s.name.clone()) else { return };
        if let Some(untold) = self.failures_told.next(self.latest) {
            self.tell(NodeEvent::Failed { worker, failure: failure.clone(), untold });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_so_often_and_the_rest_is_counted() {
        let mut told = FailuresTold::default();
        let at = |ms: u64| Time(ms * 1_000_000);
        let first: Vec<_> = (0..25).map(|_| told.next(at(5))).collect();
        assert_eq!((first[9], first[10]), (Some(0), None));
        assert_eq!(told.next(at(999)), None);
        assert_eq!(told.next(at(1006)), Some(16));
        assert_eq!(told.next(at(1006)), Some(0));
    }
}
