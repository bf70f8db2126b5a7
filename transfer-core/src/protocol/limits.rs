//! The limits on the keys and versions of one worker, of one user and of the whole node, and on the partitions of an
//! exchange.
//!
//! Keys and versions are small, so the memory for tensors bounds neither: one range of 64 bytes can be pushed under any
//! number of keys. The node therefore counts the keys and versions of each worker.

use crate::exchange::MAX_PARTITIONS;

/// Limits of a node. Beyond each, pushes fail with `Busy`; beyond that of partitions with `Invalid`, because a retry does
/// not help; at that of unfinished versions they wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Keys that one worker owns.
    pub keys_per_worker: u64,
    /// Keys that all workers of one user own.
    pub keys_per_user: u64,
    /// Keys that the node knows, including keys that are only waited for.
    pub keys_per_node: u64,
    /// Versions that one worker has pushed and not got back.
    pub versions_per_worker: u64,
    /// Versions that all workers of one user have pushed and not got back.
    pub versions_per_user: u64,
    /// Versions that the node holds, including versions from other nodes.
    pub versions_per_node: u64,
    /// Partitions of one exchange that is opened here.
    pub partitions_per_exchange: u64,
    /// Versions of one sharded state that are not whole, if this node is the home of its roster. A rank that is further ahead waits.
    pub unfinished_versions: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            keys_per_worker: 1 << 20,
            keys_per_user: 1 << 21,
            keys_per_node: 1 << 22,
            versions_per_worker: 1 << 21,
            versions_per_user: 1 << 22,
            versions_per_node: 1 << 23,
            partitions_per_exchange: MAX_PARTITIONS.into(),
            unfinished_versions: 2,
        }
    }
}

/// The number of pushes that were refused at a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitsReached {
    /// Pushes refused at a limit of keys.
    pub keys: u64,
    /// Pushes refused at a limit of versions.
    pub versions: u64,
    /// Exchanges refused at the limit of partitions.
    pub partitions: u64,
}
