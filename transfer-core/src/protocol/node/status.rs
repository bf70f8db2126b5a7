//! The state of the node at a glance: the counters behind the admin calls. Tables that may be long are in `listing`.

use super::Node;
use crate::fabric::FabricKind;
use crate::protocol::exchanges::ExchangeTotals;
use crate::protocol::meters::Meters;
use crate::protocol::meters::{Operation, PathMeter};
use crate::protocol::snapshot::{LinkWork, PathStatus, PoolStatus, PublishedStatus, Snapshot};
use crate::time::Time;
use std::collections::BTreeMap;

impl Node {
    /// Returns the meters, which count since the start.
    #[must_use]
    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    /// Returns the counters. After all sessions are gone, the numbers of sessions, leases and operations are zero. Only
    /// [`crate::drive::Driver::snapshot`] knows the links' rails; here all of them live.
    #[must_use]
    pub fn snapshot(&self, now: Time) -> Snapshot {
        let mut on_links = LinkWork::default();
        self.links.all().iter().for_each(|(link, l)| on_links += self.work_of(*link, l));
        let pools = self
            .landing
            .pools()
            .iter()
            .map(|(domain, p)| PoolStatus {
                domain: *domain,
                tenant: self.config.tenants.name(*domain),
                bytes: p.alloc().len_bytes(),
                used: p.alloc().used_bytes(),
                waiting: p.wants().len() as u64,
                full_for: p.full_since().map(|since| now.since(since)),
            })
            .collect();
        Snapshot {
            sessions: self.sessions.all().len() as u64,
            links: self.links.all().len() as u64,
            on_links,
            impaired: 0,
            tensors: self.keys.published_count(),
            blobs: self.keys.blobs().len() as u64,
            spilled: self.spills.status(),
            exchanges: ExchangeTotals { reads_waiting: self.sessions.exchange_reads(), ..self.exchanges.totals() },
            leases: self.sessions.lent(),
            operations: self.sessions.operations().len() as u64,
            slots: self.landing.slots().map(|(_, slots)| slots.len() as u64).sum(),
            counters: self.counters.live_here(),
            finished: finished(self.meters.paths()),
            published: published(self.meters.paths()),
            failed: self.meters.all_failed(),
            draining: self.draining,
            limits_reached: self.limits_reached(),
            pools,
        }
    }
}

/// Sums up the pushes that stay at this sidecar.
fn published(paths: &[PathMeter]) -> PublishedStatus {
    let mut published = PublishedStatus::default();
    for path in paths.iter().filter(|path| path.fabric == FabricKind::Local) {
        for (_, meter) in Operation::ALL.into_iter().zip(&path.operations).filter(|(op, _)| *op == Operation::Push) {
            published.pushes += meter.transfers;
            published.bytes += meter.bytes;
            published.copied += meter.copied;
        }
    }
    published
}

/// Sums up the transfers by fabric. A push that stays at this sidecar is not one, because nothing carries it.
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
