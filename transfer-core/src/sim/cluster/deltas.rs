//! Deltas that are applied. That takes its time, in which their fetches, workers and links may end.

use super::{Cluster, Happening};
use crate::memory::LocalSlice;
use crate::plan::GatherList;
use crate::protocol::HostDone;

/// A delta that is being applied.
#[derive(Debug)]
pub(super) struct Apply {
    pub(super) base: GatherList,
    pub(super) delta: LocalSlice,
    pub(super) to: LocalSlice,
    pub(super) tag: u64,
}

impl Cluster {
    /// Applies a delta later.
    pub(super) fn apply_later(&mut self, node: usize, apply: Apply) {
        let at = self.soon();
        self.later(at, Happening::Apply(node, apply));
    }

    pub(super) fn apply(&mut self, node: usize, Apply { base, delta, to, tag }: Apply) -> Result<(), String> {
        let made = self.nodes[node].memory.apply(&base, delta, to);
        self.tally.deltas += 1;
        if let (Err(why), 0) = (&made, self.play.late_packets + self.play.lies) {
            return Err(format!("node {node} has a base and an honest delta: {why}"));
        }
        let now = self.clock(node);
        self.nodes[node].driver.node.host_done(now, tag, HostDone::Applied(made));
        Ok(())
    }
}
