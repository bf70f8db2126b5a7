//! The node at a glance: the counters behind the admin calls. What there may be many of is in `listing`.

use super::node::Node;
use super::{LinkWork, PathStatus, PoolStatus, Snapshot};
use crate::fabric::FabricKind;
use crate::time::Time;

impl Node {
    /// The counters. After all sessions are gone, what is "now" is zero. Only [`crate::drive::Driver::snapshot`] knows the links'
    /// rails; here all of them live.
    #[must_use]
    pub fn snapshot(&self, now: Time) -> Snapshot {
        let mut on_links = LinkWork::default();
        self.links.values().for_each(|l| on_links += l.work());
        let pools = self
            .pools
            .iter()
            .map(|(domain, p)| PoolStatus {
                domain: *domain,
                bytes: p.alloc.len_bytes(),
                used: p.alloc.used_bytes(),
                waiting: p.wants.len() as u64,
                full_for: p.full_since.map(|since| now.since(since)),
            })
            .collect();
        let finished = self.finished.iter().filter_map(|(kind, f)| {
            let fabric = FabricKind::from_wire(*kind)?;
            Some(PathStatus { fabric, transfers: f.transfers, bytes: f.bytes, copied: f.copied })
        });
        Snapshot {
            sessions: self.sessions.len() as u64,
            links: self.links.len() as u64,
            on_links,
            impaired: 0,
            tensors: self.store.published,
            blobs: self.store.blobs.len() as u64,
            leases: self.sessions.values().map(|s| s.lent).sum(),
            operations: self.ops.len() as u64,
            slots: self.links.values().map(|l| l.slots.len() as u64).sum(),
            counters: self.counters_here(),
            finished: finished.collect(),
            failed: self.failed,
            draining: self.draining,
            pools,
        }
    }
}
