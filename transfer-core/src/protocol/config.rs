//! What a node is told at its start.

use super::limits::Limits;
use super::tenant::Tenants;
use crate::fabric::FabricKind;
use crate::tensor::Name;

/// Limits and identity of one sidecar's state machine.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// This node's name in the cluster.
    pub name: Name,
    /// Another number at each start, so that peers can tell a restart.
    pub incarnation: u64,
    /// Landing slots that a receiver grants per key and sender. At least 2: "the newest stays" holds one of them.
    pub slots_per_flow: usize,
    /// The share of a pool, in percent, that fetches may hold for versions that are not known to be published.
    pub speculative_percent: u64,
    /// The most operations that one session may have waiting; more are refused with `Busy`. Fewer than `max_requests_per_link`, so that
    /// one worker alone does not keep the others of its node from a peer.
    pub max_ops_per_session: usize,
    /// The most ranges that the bodies which one session has pushed, and not got back, are made of together; more are refused with `Busy`.
    /// The node keeps 24 bytes of each.
    pub max_ranges_per_session: u64,
    /// The most requests that one peer may have waiting here, and that may wait at one peer; more are refused with `Busy`.
    pub max_requests_per_link: usize,
    /// The most messages and writes that may wait for a peer to take them; then its link ends.
    pub max_queued_per_link: usize,
    /// The most names that a link keeps numbered in each direction.
    pub max_names_per_link: usize,
    /// The most versions that peers may read by reference at a time, all of them together; beyond that they are sent.
    pub max_references: usize,
    /// How many keys and versions there may be.
    pub limits: Limits,
    /// What must carry transfers between nodes, for every caller that does not say itself.
    pub require: Option<FabricKind>,
    /// Names of tenants, and what is reserved for some.
    pub tenants: Tenants,
    /// Whether to take the time of transfers for the histograms of [`super::Meters`]; they are counted in any case.
    pub timed: bool,
    /// A rule to break.
    #[cfg(test)]
    pub(crate) broken: Option<super::broken::Broken>,
    /// Whether keys are watched also by who has not waited for them, so that more is announced.
    #[cfg(test)]
    pub(crate) watch_all: bool,
}

impl NodeConfig {
    /// The usual limits.
    #[must_use]
    pub fn new(name: Name, incarnation: u64) -> NodeConfig {
        NodeConfig {
            name,
            incarnation,
            slots_per_flow: 2,
            speculative_percent: 12,
            max_ops_per_session: 1 << 14,
            max_ranges_per_session: 1 << 22,
            max_requests_per_link: 1 << 16,
            max_queued_per_link: 1 << 19,
            max_names_per_link: 1 << 16,
            max_references: 1 << 16,
            limits: Limits::default(),
            require: None,
            tenants: Tenants::default(),
            timed: true,
            #[cfg(test)]
            broken: None,
            #[cfg(test)]
            watch_all: false,
        }
    }
}
