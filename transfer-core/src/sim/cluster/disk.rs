//! Disks: they answer later, and may be full.

use super::{Cluster, Happening};
use crate::protocol::SpillId;

/// What a disk has done. A write may have failed.
#[derive(Debug)]
pub(super) enum Done {
    Written(SpillId, bool),
    Read(u64),
}

impl Cluster {
    /// Reports later what the disk of a node has done.
    pub(super) fn after_disk(&mut self, node: usize, done: Done) {
        let at = self.soon();
        self.later(at, Happening::Disk(node, done));
    }

    pub(super) fn disk_done(&mut self, node: usize, done: Done) {
        let now = self.clock(node);
        let node = &mut self.nodes[node].driver.node;
        match done {
            Done::Written(id, well) => node.spill_written(now, id, well),
            Done::Read(tag) => node.spill_read(now, tag, Ok(())),
        }
    }
}
