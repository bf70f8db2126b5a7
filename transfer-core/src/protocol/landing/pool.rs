//! Landing pools: where writes of peers land, one for each trust domain, and who waits for room there.

use super::Landing;
use crate::alloc::{AllocError, Allocation, Allocator};
use crate::fabric::LinkId;
use crate::memory::{LocalSlice, SegmentId, padded};
use crate::protocol::ids::{CopyId, FlowAt, InFlowId, PullId};
use crate::protocol::tenant::Tenant;
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;
use std::collections::VecDeque;
use std::time::Duration;

/// A pool that is full again within this time is not told of again.
const POOL_PAUSE: Duration = Duration::from_secs(1);

/// Who waits for room. Served in order, so that nobody starves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// One slot for a pull.
    Pull(LinkId, PullId),
    /// All slots of a push flow.
    Flow(LinkId, InFlowId),
    /// A copy for a reader of another tenant.
    Copy(CopyId),
}

impl Want {
    /// The flow that waits, where it is one.
    pub(crate) fn flow(self) -> Option<FlowAt> {
        match self {
            Want::Flow(link, flow) => Some((link, flow)),
            Want::Pull(..) | Want::Copy(_) => None,
        }
    }
}

/// How long a queue may be before those that have ended are taken out of it.
const TIDY_AT: usize = 64;

pub(crate) struct Pool {
    segment: SegmentId,
    pub(super) alloc: Allocator,
    pub(super) wants: VecDeque<Want>,
    /// At this length of the queue those that do not wait any more are taken out.
    tidy_at: usize,
    /// Bytes that requests hold for versions which may not be published yet.
    speculative: u64,
    /// Since when somebody has been waiting, whoever that was.
    full_since: Option<Time>,
    /// Whether and when it was told that it is full.
    told: Told,
}

/// What was told of a pool without being asked.
#[derive(Clone, Copy, Default)]
struct Told {
    /// That it is full, and not yet that it is so no more.
    full: bool,
    /// When that was told last.
    at: Option<Time>,
}

/// The length of a slot for a body of this length.
pub(crate) fn slot_bytes(body: u64) -> Option<u64> {
    padded(body)?.checked_add(HEADER_BYTES)
}

impl Pool {
    pub(super) fn new(segment: SegmentId, len_bytes: u64) -> Pool {
        Pool {
            segment,
            alloc: Allocator::new(len_bytes),
            wants: VecDeque::new(),
            tidy_at: TIDY_AT,
            speculative: 0,
            full_since: None,
            told: Told::default(),
        }
    }

    pub(super) fn slot(&mut self, body: u64) -> Result<Allocation, AllocError> {
        self.alloc.allocate(slot_bytes(body).unwrap_or(u64::MAX))
    }

    pub(super) fn slice(&self, allocation: &Allocation) -> LocalSlice {
        LocalSlice { segment: self.segment, offset: allocation.offset(), len: allocation.len() }
    }

    /// The allocator of its memory, to look at.
    pub(crate) fn alloc(&self) -> &Allocator {
        &self.alloc
    }

    /// Who waits for room, in order.
    pub(crate) fn wants(&self) -> &VecDeque<Want> {
        &self.wants
    }

    /// Since when somebody has been waiting for room.
    pub(crate) fn full_since(&self) -> Option<Time> {
        self.full_since
    }

    /// Bytes that requests hold for versions which may not be published yet.
    #[cfg(test)]
    pub(crate) fn speculative(&self) -> u64 {
        self.speculative
    }
}

impl Landing {
    /// How large a pool is, in bytes; 0 where there is none.
    pub(crate) fn pool_bytes(&self, domain: Tenant) -> u64 {
        self.pools.get(&domain).map_or(0, |pool| pool.alloc.len_bytes())
    }

    /// Whether `count` slots for bodies of this length can ever be had.
    pub(crate) fn could_hold(&self, domain: Tenant, body: u64, count: u64) -> bool {
        let needs = slot_bytes(body).and_then(|n| n.checked_mul(count));
        self.pools.contains_key(&domain) && needs.is_some_and(|n| n <= self.pool_bytes(domain))
    }

    /// Whether somebody waits for room there already.
    pub(crate) fn is_contended(&self, domain: Tenant) -> bool {
        self.pools.get(&domain).is_some_and(|pool| !pool.wants.is_empty())
    }

    /// Room for a slot whose body has this length.
    pub(crate) fn room_for_slot(&mut self, domain: Tenant, body: u64) -> Option<Allocation> {
        self.pools.get_mut(&domain)?.slot(body).ok()
    }

    /// The same for a version that is not known to be published: all of these hold a part of the pool at most. Also how many bytes it
    /// counts there, to be [given back](Landing::settle_speculation).
    pub(crate) fn speculate(&mut self, domain: Tenant, body: u64) -> Option<(Allocation, u64)> {
        let percent = self.speculative_percent;
        let pool = self.pools.get_mut(&domain)?;
        let bytes = body + HEADER_BYTES;
        if !pool.wants.is_empty() || pool.speculative + bytes > pool.alloc.len_bytes() / 100 * percent {
            return None;
        }
        let range = pool.slot(body).ok()?;
        pool.speculative += bytes;
        Some((range, bytes))
    }

    /// What was set aside for a version is known to be needed, or not to be.
    pub(crate) fn settle_speculation(&mut self, domain: Tenant, bytes: u64) {
        if let Some(pool) = self.pools.get_mut(&domain) {
            pool.speculative = pool.speculative.saturating_sub(bytes);
        }
    }

    /// Room of this length, and where it is.
    pub(crate) fn allocate(&mut self, domain: Tenant, len: u64) -> Option<(Allocation, LocalSlice)> {
        let pool = self.pools.get_mut(&domain)?;
        let range = pool.alloc.allocate(len).ok()?;
        let slice = pool.slice(&range);
        Some((range, slice))
    }

    /// Where a range of a pool lies.
    pub(crate) fn slice(&self, domain: Tenant, range: &Allocation) -> Option<LocalSlice> {
        self.pools.get(&domain).map(|pool| pool.slice(range))
    }

    /// A range that nobody can reach goes back to its pool.
    pub(crate) fn free(&mut self, domain: Tenant, range: Allocation) {
        if let Some(pool) = self.pools.get_mut(&domain) {
            // The allocator lent it, so it takes it back.
            let _ = pool.alloc.free(range);
        }
        self.serve_later(domain);
    }

    /// There may be room for those who wait for it, or the first of them does not want it any more.
    pub(crate) fn serve_later(&mut self, domain: Tenant) {
        if self.is_contended(domain) && !self.to_serve.contains(&domain) {
            self.to_serve.push(domain);
        }
    }

    /// The same of all pools.
    pub(crate) fn serve_all_later(&mut self) {
        for domain in self.pools.keys().copied().collect::<Vec<_>>() {
            self.serve_later(domain);
        }
    }

    /// Somebody stands in line for room. `waits` says of a pull or a copy whether it still does. Returns the pool's length where whoever runs
    /// the sidecar is to be told that it is full.
    pub(crate) fn want(&mut self, now: Time, domain: Tenant, want: Want, waits: impl Fn(Want) -> bool) -> Option<u64> {
        let Landing { pools, links, .. } = self;
        let pool = pools.get_mut(&domain)?;
        if pool.wants.len() >= pool.tidy_at {
            // While the first waits, those behind it may come and go.
            pool.wants.retain(|want| match *want {
                Want::Flow(link, id) => {
                    links.get(&link).and_then(|l| l.flows.get(id)).is_some_and(|f| f.wants_room(domain))
                }
                want => waits(want),
            });
            pool.tidy_at = (2 * pool.wants.len()).max(TIDY_AT);
        }
        pool.wants.push_back(want);
        pool.full_since.get_or_insert(now);
        let mut told = None;
        if !pool.told.full && pool.told.at.is_none_or(|at| now.since(at) >= POOL_PAUSE) {
            pool.told = Told { full: true, at: Some(now) };
            told = Some(pool.alloc.len_bytes());
        }
        // Those before may not want it any more, and others may hold room that they do not use.
        self.serve_later(domain);
        told
    }

    /// The pools whose queues are to be served.
    pub(crate) fn take_to_serve(&mut self) -> Vec<Tenant> {
        std::mem::take(&mut self.to_serve)
    }

    /// Who is first in a queue.
    pub(crate) fn first(&self, domain: Tenant) -> Option<Want> {
        self.pools.get(&domain)?.wants.front().copied()
    }

    /// The first one has what it waited for, or does not wait.
    pub(crate) fn pop_first(&mut self, domain: Tenant) {
        if let Some(pool) = self.pools.get_mut(&domain) {
            pool.wants.pop_front();
        }
    }

    /// A queue was served, as far as it went. Returns how long somebody waited, where it was told that the pool is full and it is so no more.
    pub(crate) fn served(&mut self, now: Time, domain: Tenant) -> Option<Duration> {
        let pool = self.pools.get_mut(&domain).filter(|pool| pool.wants.is_empty())?;
        let since = pool.full_since.take();
        let was_told = std::mem::take(&mut pool.told.full);
        was_told.then(|| since.map_or(Duration::ZERO, |since| now.since(since)))
    }

    /// Whether there would be room in one piece if all that lies idle were called back.
    pub(crate) fn idle_would_do(&self, domain: Tenant, need: u64, but: Option<FlowAt>) -> bool {
        let free = self.pools.get(&domain).map(|pool| pool.alloc.free_bytes());
        free.is_some_and(|free| free.saturating_add(self.idle.bytes(domain, but)) >= need)
    }
}
