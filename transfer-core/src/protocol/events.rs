//! Events that a node reports to its operator without being asked. They are rare: failures and full pools are reported
//! at limited rates. A transfer that meets no obstacle reports nothing.

use super::tenant::Tenant;
use crate::op::Failure;
use crate::tensor::{Key, Name};
use crate::time::Time;
use std::time::Duration;

/// An event that the operator of the sidecar may want to know at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEvent {
    /// A key of this node has another owner.
    KeyTakenOver {
        /// The key.
        key: Key,
        /// The former owner.
        from: Name,
        /// The new owner.
        to: Name,
    },
    /// A landing pool has too little room: a request, a flow or a copy waits for room in it.
    PoolFull {
        /// The tenant whose pool it is.
        domain: Tenant,
        /// The name of the tenant.
        tenant: Name,
        /// The size of the pool in bytes.
        bytes: u64,
    },
    /// A landing pool that was reported full has no waiter left.
    PoolFree {
        /// The tenant whose pool it is.
        domain: Tenant,
        /// The name of the tenant.
        tenant: Name,
        /// The time during which the pool had waiters.
        after: Duration,
    },
    /// A delta did not make its version, which is asked for as a whole.
    DeltaRefused {
        /// The key.
        key: Key,
        /// The node that has sent it.
        peer: Name,
        /// What is wrong.
        why: String,
        /// The number of such events and failures since the last reported one that were not reported.
        untold: u64,
    },
    /// A version that came from another node than its owner was not that of its owner. It is fetched from another one.
    RelayRefused {
        /// The key.
        key: Key,
        /// The node that has sent it.
        peer: Name,
        /// The number of such events and failures since the last reported one that were not reported.
        untold: u64,
    },
    /// An operation of a worker failed.
    Failed {
        /// The worker.
        worker: Name,
        /// The failure. Its text names the key.
        failure: Failure,
        /// The number of failures since the last reported one that were not reported.
        untold: u64,
    },
}

/// The most failures that are reported in one window, and the length of the window.
const FAILURE_RATE: (u32, Duration) = (10, Duration::from_secs(1));

/// The failures of the current window: reported ones and unreported ones.
#[derive(Default)]
pub(super) struct FailureRateLimit {
    since: Time,
    reported: u32,
    untold: u64,
}

impl FailureRateLimit {
    /// Decides whether to report a failure. If so, returns the number of unreported failures before it.
    pub(super) fn next(&mut self, now: Time) -> Option<u64> {
        let (most, window) = FAILURE_RATE;
        if now.since(self.since) >= window {
            (self.since, self.reported) = (now, 0);
        }
        if self.reported >= most {
            self.untold += 1;
            return None;
        }
        self.reported += 1;
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_at_a_limited_rate_and_the_rest_is_counted() {
        let mut reported = FailureRateLimit::default();
        let at = |ms: u64| Time(ms * 1_000_000);
        let first: Vec<_> = (0..25).map(|_| reported.next(at(5))).collect();
        assert_eq!((first[9], first[10]), (Some(0), None));
        assert_eq!(reported.next(at(999)), None);
        assert_eq!(reported.next(at(1006)), Some(16));
        assert_eq!(reported.next(at(1006)), Some(0));
    }
}
