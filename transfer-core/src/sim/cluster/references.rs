//! A model of the kernel's reader marks: the segments of other nodes that a node keeps for reading by reference.

use super::{Cluster, MemoryId};
use crate::memory::SegmentId;
use crate::protocol::Tenant;

impl Cluster {
    /// Records that a node keeps a peer's segment, under a number of its own.
    pub(super) fn segment_kept(&mut self, node: usize, segment: SegmentId, memory: MemoryId) {
        let whose = self.nodes.iter().flat_map(|n| n.segments.values()).find(|(m, _)| *m == memory).map(|(_, d)| *d);
        let n = &mut self.nodes[node];
        if let Some(mark) = n.driver.node.mark_of(segment) {
            // A segment that is neither an arena nor a pool gets a tenant that no worker has.
            n.segments.insert(segment, (memory, whose.unwrap_or(Tenant::User(u32::MAX))));
            n.kept.insert(segment, mark);
        }
    }

    /// Returns whether a node keeps that segment with the mark of that link.
    pub(super) fn is_referenced(&self, node: usize, segment: SegmentId, mark: u64) -> bool {
        let Some((memory, _)) = self.nodes[node].segments.get(&segment) else { return false };
        let keeps = |n: &super::Sidecar, s: &SegmentId| {
            n.kept.get(s) == Some(&mark) && n.segments.get(s).is_some_and(|(m, _)| m == memory)
        };
        self.nodes.iter().any(|n| n.kept.keys().any(|s| keeps(n, s)))
    }
}
