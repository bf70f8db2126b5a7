//! Versions of a sharded state that are not whole.

use crate::op::digest_of_ranks;
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

    /// The digest of its ranks. 0 until it is complete.
    pub(super) fn digest(&self) -> u64 {
        if !self.is_complete() {
            return 0;
        }
        digest_of_ranks(self.ranks.iter().map(|(rank, own)| (*rank, own.instance, own.layout, &own.node)))
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
