//! What a node tells without being asked, for whoever watches it: rare things, each at most so often. Nothing of it is on the way of
//! a transfer that goes well.

use super::tenant::Tenant;
use crate::op::Failure;
use crate::tensor::{Key, Name};
use crate::time::Time;
use std::time::Duration;

/// Something that whoever runs the sidecar may want to know at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEvent {
    /// A key of this node has another owner.
    KeyTakenOver {
        /// The key.
        key: Key,
        /// Whose it was.
        from: Name,
        /// Whose it is.
        to: Name,
    },
    /// Somebody waits for room in a landing pool.
    PoolFull {
        /// Whose pool.
        domain: Tenant,
        /// What that tenant is called.
        tenant: Name,
        /// How large it is, in bytes.
        bytes: u64,
    },
    /// Nobody waits for room in it any more.
    PoolFree {
        /// Whose pool.
        domain: Tenant,
        /// What that tenant is called.
        tenant: Name,
        /// How long somebody did.
        after: Duration,
    },
    /// An operation of a worker failed.
    Failed {
        /// The worker.
        worker: Name,
        /// Why, with the key in its text.
        failure: Failure,
        /// How many failed since the last one that was told, and were not.
        untold: u64,
    },
}

/// At most so many failures are told within this time.
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
    pub(super) fn next(&mut self, now: Time) -> Option<u64> {
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
