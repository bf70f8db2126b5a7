//! The state of the node at a glance: the counters behind the admin calls. Tables that may be long are in `listing`.

use crate::fabric::FabricKind;
use crate::fabric::LinkId;
use crate::memory::SegmentId;
use crate::op::FailureCode;
use crate::protocol::control::PeerInfo;
use crate::protocol::exchanges::ExchangeTotals;
use crate::protocol::keys::Owner;
use crate::protocol::limits::LimitsReached;
use crate::protocol::meters::{Meters, Operation, PathMeter};
use crate::protocol::node::flows::NodeState;
use crate::protocol::snapshot::{LinkWork, PathStatus, PoolStatus, PublishedStatus, Snapshot};
use crate::protocol::tenant::Tenant;
use crate::tensor::Key;
use crate::tensor::Name;
use crate::time::Time;
use std::collections::BTreeMap;

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

/// The work that a draining node has left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// Operations of its workers.
    pub operations: u64,
    /// Requests of peers that it has not answered.
    pub requests: u64,
    /// Writes and messages that wait to be posted, and posted writes that are not complete.
    pub outgoing: u64,
    /// Keys that a peer may still write here, or that have landed and are not published yet.
    pub landing: u64,
}

impl Unfinished {
    /// Returns whether no work is left.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Unfinished::default()
    }
}

impl<'a> NodeState<'a> {
    /// Returns this node's name.
    #[must_use]
    pub fn name(&self) -> &'a Name {
        &self.config.name
    }

    /// Returns the peer of a link that is up.
    #[must_use]
    pub fn peer_of(&self, link: LinkId) -> Option<&'a PeerInfo> {
        self.links.peer_of(link)
    }

    /// Returns the links that are up.
    #[must_use]
    pub fn link_ids(&self) -> Vec<LinkId> {
        self.links.all().keys().copied().collect()
    }

    /// Returns the name of a tenant.
    #[must_use]
    pub fn tenant_name(&self, tenant: Tenant) -> Name {
        self.config.tenants.name(tenant)
    }

    /// Whether ended transfers are recorded.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns the work that a draining node has left.
    #[must_use]
    pub fn unfinished(&self) -> Unfinished {
        let landing = self.landing.flows_where(|flow| flow.state.lands() || flow.holds_unpublished()).len() as u64;
        let mut left =
            Unfinished { operations: self.sessions.operations().len() as u64, landing, ..Unfinished::default() };
        for (link, l) in self.links.all() {
            left.requests += self.transfers.of(*link).map_or(0, |l| l.serves().len() as u64);
            left.outgoing += (l.queued() + l.in_flight()) as u64;
        }
        left
    }

    /// Returns how many versions in an arena can still be reached, and whether the arena's worker is gone.
    #[must_use]
    pub fn arena_reach(&self, segment: SegmentId) -> Option<(u64, bool)> {
        self.sessions.arena(segment)
    }

    /// Returns how often pushes were refused at a limit.
    #[must_use]
    pub fn limits_reached(&self) -> LimitsReached {
        self.keys.limits_reached()
    }

    /// Returns the meters, which count since the start.
    #[must_use]
    pub fn meters(&self) -> &'a Meters {
        self.meters
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
        let (rosters, unfinished) = self.counters.unfinished();
        Snapshot {
            sessions: self.sessions.all().len() as u64,
            links: self.links.all().len() as u64,
            on_links,
            impaired: 0,
            tensors: self.keys.published_count(),
            blobs: self.keys.blobs().len() as u64,
            base_bytes: self.bases.bytes(),
            spilled: self.spills.status(),
            exchanges: ExchangeTotals { reads_waiting: self.sessions.exchange_reads(), ..self.exchanges.totals() },
            leases: self.sessions.lent(),
            operations: self.sessions.operations().len() as u64,
            slots: self.landing.slots().map(|(_, slots)| slots.len() as u64).sum(),
            counters: self.counters.live_here(),
            rosters,
            unfinished,
            finished: finished(self.meters.paths()),
            published: published(self.meters.paths()),
            failed: self.meters.all_failed(),
            wrong_digests: self.meters.failed_with(FailureCode::WrongDigest),
            draining: self.common.draining,
            limits_reached: self.limits_reached(),
            pools,
        }
    }

    /// Returns whether versions of this key land here by a device that acknowledges a write to the sender before it is
    /// reported here.
    #[must_use]
    pub fn lands_unannounced(&self, key: &Key) -> bool {
        let Some(Owner::Landed(landed)) = self.keys.owner(key) else { return false };
        let link = landed.flow.and_then(|(link, _)| self.links.get(link));
        link.is_some_and(|link| link.limits().acknowledges_unannounced)
    }
}
