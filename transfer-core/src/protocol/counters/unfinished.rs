//! Versions of a sharded state that are not whole.

use crate::tensor::Name;
use crate::time::Time;
use std::collections::BTreeMap;

/// A version that is not whole.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) world_size: u32,
    pub(super) ranks: BTreeMap<u32, Committed>,
    /// The rank that completed it, whose worker publishes the manifest.
    pub(super) last: Option<u32>,
    /// When its first rank committed.
    pub(super) since: Time,
}

impl Unfinished {
    pub(super) fn is_complete(&self) -> bool {
        self.ranks.len() == self.world_size as usize
    }

    /// FNV-1a of its ranks, with their instances, layouts and nodes. 0 until it is complete.
    pub(super) fn digest(&self) -> u64 {
        if !self.is_complete() {
            return 0;
        }
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for (rank, Committed { instance, layout, node, .. }) in &self.ranks {
            let numbers = rank.to_le_bytes().into_iter().chain(instance.to_le_bytes()).chain(layout.to_le_bytes());
            for byte in numbers.chain(node.as_str().bytes()) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
        hash
    }
}

/// The commit of a rank.
#[derive(Debug)]
pub(super) struct Committed {
    pub(super) instance: u64,
    pub(super) layout: u64,
    pub(super) worker: Name,
    pub(super) node: Name,
}
