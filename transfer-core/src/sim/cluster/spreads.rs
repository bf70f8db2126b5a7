//! Digests of versions that spread through their readers. To compute one takes its time, in which fetches, workers and links may end. What
//! has come from another node than its owner may be damaged.

use super::{Cluster, Happening};
use crate::plan::GatherList;
use crate::protocol::HostDone;
use rand::Rng;

/// The percentage of versions from other nodes than their owner that are damaged.
const DAMAGED: u32 = 10;

/// A digest that is being computed.
#[derive(Debug)]
pub(super) struct Digested {
    pub(super) of: GatherList,
    pub(super) tag: u64,
}

impl Cluster {
    /// Computes a digest later.
    pub(super) fn digest_later(&mut self, node: usize, of: Digested) -> Result<(), String> {
        let at = self.soon();
        self.later(at, Happening::Digest(node, of));
        Ok(())
    }

    pub(super) fn digest(&mut self, node: usize, Digested { of, tag }: Digested) {
        let is_relayed = self.nodes[node].driver.node.is_of_relay(tag);
        self.tally.relayed += u64::from(is_relayed);
        let damage = self.rng.random_range(0..100) < DAMAGED && is_relayed && !self.play.calm;
        if let Some(first) = of.first().filter(|first| first.len > 0 && damage) {
            self.tally.damaged += 1;
            let memory = &self.nodes[node].memory;
            let at = crate::memory::LocalSlice { len: 1, ..*first };
            let was = memory.read(at).map_or(0, |bytes| bytes[0]);
            memory.write(at, &[was ^ 0x55]);
        }
        let digest = self.nodes[node].memory.digest(&of);
        let now = self.clock(node);
        self.nodes[node].driver.node.host_done(now, tag, HostDone::Digest(digest));
    }
}
