//! What a node tells without being asked, for whoever watches it: rare things, each at most so often. Nothing of it is on the way of
//! a transfer that goes well.

use super::tenant::Tenant;
use crate::op::Failure;
use crate::tensor::{Key, Name};
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
