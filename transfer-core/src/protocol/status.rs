//! Looking at a node: the counters and listings behind the admin calls.

use super::node::Node;
use super::store::Owner;
use super::{LinkStatus, Operation, PathMeter, PathStatus, PoolStatus, SessionStatus, Snapshot, TensorStatus};
use crate::fabric::FabricKind;
use std::collections::BTreeMap;

impl Node {
    /// The counters. After all sessions are gone, what is "now" is zero. Only [`crate::drive::Driver::snapshot`] knows the links'
    /// rails; here each has one.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let sessions: Vec<_> = self
            .sessions
            .iter()
            .map(|(id, s)| SessionStatus {
                session: *id,
                name: s.name.clone(),
                domain: s.domain,
                arena_bytes: s.arena_len,
                leases: s.held,
                operations: s.ops.len() as u64,
            })
            .collect();
        let links: Vec<_> = self
            .links
            .iter()
            .map(|(id, l)| LinkStatus {
                link: *id,
                peer: l.peer.name.clone(),
                fabric: l.kind,
                passed_over: l.peer.passed_over.clone(),
                rails: 1,
                rails_live: 1,
                credits: l.credits,
                queued: l.outbox.len() as u64,
                pulls: l.pulls.len() as u64,
                serves: l.serves.len() as u64,
                flows_out: l.flows_out.len() as u64,
                flows_in: l.flows_in.len() as u64,
            })
            .collect();
        let pools = self
            .pools
            .iter()
            .map(|(domain, p)| PoolStatus {
                domain: *domain,
                bytes: p.alloc.len_bytes(),
                used: p.alloc.used_bytes(),
                waiting: p.wants.len() as u64,
            })
            .collect();
        Snapshot {
            tensors: self.store.published,
            blobs: self.store.blobs.len() as u64,
            leases: sessions.iter().map(|s| s.leases).sum(),
            operations: self.ops.len() as u64,
            slots: self.links.values().map(|l| l.slots.len() as u64).sum(),
            counters: self.counters_here(),
            finished: finished(self.meters.paths()),
            failed: self.meters.all_failed(),
            sessions,
            links,
            pools,
        }
    }

    /// Published tensors whose key starts with `prefix` and sorts after `after`, in the order of their keys, at most `limit`.
    #[must_use]
    pub fn tensors(&self, prefix: &str, after: &str, limit: usize) -> Vec<TensorStatus> {
        let mut keys: Vec<_> = self
            .store
            .records
            .iter()
            .filter(|(_, r)| r.newest().is_some() && r.key.as_str().starts_with(prefix) && r.key.as_str() > after)
            .map(|(id, r)| (r.key.as_str(), id))
            .collect();
        if keys.len() > limit {
            keys.select_nth_unstable(limit);
            keys.truncate(limit);
        }
        keys.sort_unstable();
        keys.into_iter()
            .filter_map(|(_, id)| {
                let record = self.store.records.get(id)?;
                let blob = self.store.blobs.get(record.newest()?)?;
                let owner = match &record.owner {
                    Owner::Session(s) => self.sessions.get(s)?.name.clone(),
                    Owner::Landed(l) => l.owner.clone(),
                    Owner::Outlived(o) => o.owner.clone(),
                    Owner::Claiming(c) => c.owner.clone(),
                    Owner::Nobody => return None,
                };
                Some(TensorStatus {
                    key: record.key.clone(),
                    owner,
                    version: blob.version,
                    meta: blob.meta.clone(),
                    slice: blob.slice,
                    readers: blob.refs - 1,
                    retention: blob.retention,
                    older: record.count() - 1,
                })
            })
            .collect()
    }
}

/// Transfers by what carried them. A push that stays at this sidecar is none: nothing was carried.
fn finished(paths: &[PathMeter]) -> Vec<PathStatus> {
    let mut finished = BTreeMap::<u8, PathStatus>::new();
    for path in paths {
        for (operation, meter) in Operation::ALL.into_iter().zip(&path.operations) {
            let counts = match operation {
                Operation::Push => path.fabric != FabricKind::Local,
                Operation::Fetch | Operation::Land => true,
                Operation::Serve => false,
            };
            if counts && meter.transfers > 0 {
                let fabric = path.fabric;
                let none = PathStatus { fabric, transfers: 0, bytes: 0, copied: 0 };
                let sum = finished.entry(fabric as u8).or_insert(none);
                sum.transfers += meter.transfers;
                sum.bytes += meter.bytes;
                sum.copied += meter.copied;
            }
        }
    }
    finished.into_values().collect()
}
