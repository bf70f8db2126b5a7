//! The configuration of a node, fixed at its start.

use super::limits::Limits;
use super::rules::Rules;
use super::spill::SpillConfig;
use super::tenant::Tenants;
use crate::fabric::FabricKind;
use crate::tensor::Name;

/// The identity and the limits of one sidecar's state machine.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The node's name in the cluster.
    pub name: Name,
    /// A number that differs at each start, so that peers can detect a restart.
    pub incarnation: u64,
    /// Landing slots that a receiver grants per key and sender. At least 2, because the newest version stays in one of
    /// them.
    pub slots_per_flow: usize,
    /// The share of a pool, in percent, that fetches may hold for versions that may not be published yet.
    pub speculative_percent: u64,
    /// The most operations that one session may have waiting; more are refused with `Busy`. Less than
    /// `max_requests_per_link`, so that one worker alone cannot keep the other workers of its node from a peer.
    pub max_ops_per_session: usize,
    /// The most ranges, in total, of the bodies that one session has pushed and not got back; more are refused with
    /// `Busy`. The node keeps 24 bytes for each range.
    pub max_ranges_per_session: u64,
    /// The most requests that one peer may have waiting here, and that this node may have waiting at one peer; more are
    /// refused with `Busy`.
    pub max_requests_per_link: usize,
    /// The most messages and writes that may wait until a peer takes them. Beyond that, the link ends.
    pub max_queued_per_link: usize,
    /// The most names that a link keeps numbered in each direction.
    pub max_names_per_link: usize,
    /// The most versions that all peers together may read by reference at a time. Beyond that, versions are sent.
    pub max_references: usize,
    /// The most bytes of versions that are kept because deltas of them may follow, or because other nodes may ask for them here. They
    /// lie in the landing pools, and are given up before anybody waits for room there. 0: none are kept.
    pub base_bytes: u64,
    /// How many other nodes get a version from here at a time. The next ones are sent to nodes that have it or are receiving it. 0: no
    /// node is sent to another one.
    pub fan_out: usize,
    /// The length, in bytes, of the chunks in which such versions are sent. It is longer for versions that would have more than 1,024.
    pub chunk_bytes: u64,
    /// The length, in bytes, of the shortest version for which nodes are sent to others.
    pub spreads_from: u64,
    /// The limits on keys and versions.
    pub limits: Limits,
    /// The fabric that must carry transfers between nodes, unless a request names one itself.
    pub require: Option<FabricKind>,
    /// The names of tenants, and the prefixes reserved for some tenants.
    pub tenants: Tenants,
    /// Whether and when versions are written to disk. `None`: never.
    pub spill: Option<SpillConfig>,
    /// Whether transfers are timed for the histograms of [`super::Meters`]. They are counted in any case.
    pub timed: bool,
    /// The rules of the protocol that it keeps: all, but in tests.
    pub(crate) rules: Rules,
    /// Whether a fetch watches its key even if it need not wait, so that more versions are announced. Schedules choose it.
    pub(crate) watch_all: bool,
}

impl NodeConfig {
    /// Creates a configuration with the default limits.
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
            base_bytes: 4 << 30,
            fan_out: 0,
            chunk_bytes: 4 << 20,
            spreads_from: 4 << 20,
            limits: Limits::default(),
            require: None,
            tenants: Tenants::default(),
            spill: None,
            timed: true,
            rules: Rules::default(),
            watch_all: false,
        }
    }
}
