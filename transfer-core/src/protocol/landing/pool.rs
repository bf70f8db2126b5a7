//! Landing pools: the memory into which peers write, one pool for each tenant, and the requests that wait for room.

use super::Landing;
use crate::alloc::{AllocError, Allocation, Allocator};
use crate::fabric::LinkId;
use crate::memory::{LocalSlice, SegmentId, padded};
use crate::protocol::ids::{CopyId, FlowAt, InFlowId, PullId};
use crate::protocol::tenant::Tenant;
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;
use std::collections::BTreeMap;
use std::time::Duration;

/// The shortest time between two reports that a pool is full.
const POOL_PAUSE: Duration = Duration::from_secs(1);

/// A request that waits for room. Requests are served in order, so none of them starves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// One slot for a pull.
    Pull(LinkId, PullId),
    /// All missing slots of a push flow.
    Flow(LinkId, InFlowId),
    /// A copy for a reader of another tenant.
    Copy(CopyId),
}

impl Want {
    /// Returns the flow, if this is the request of a flow.
    pub(crate) fn flow(self) -> Option<FlowAt> {
        match self {
            Want::Flow(link, flow) => Some((link, flow)),
            Want::Pull(..) | Want::Copy(_) => None,
        }
    }
}

/// The shortest queue from which requests that have ended are removed.
const TIDY_AT: usize = 64;

pub(crate) struct Pool {
    segment: SegmentId,
    pub(super) alloc: Allocator,
    /// The requests that wait, by their numbers.
    pub(super) wants: BTreeMap<u64, Want>,
    next_number: u64,
    /// At this length of the queue, requests that no longer wait are removed.
    tidy_at: usize,
    /// Bytes that requests hold for versions that may not be published yet.
    speculative: u64,
    /// Since when requests have been waiting without a pause.
    full_since: Option<Time>,
    /// Whether and when the pool was reported as full.
    told: ReportedState,
}

/// The events that reported a pool as full.
#[derive(Clone, Copy, Default)]
struct ReportedState {
    /// `PoolFull` was sent; `PoolFree` is still due.
    full: bool,
    /// When `PoolFull` was sent last.
    at: Option<Time>,
}

/// Returns the length of a slot for a body of this length.
pub(crate) fn slot_bytes(body: u64) -> Option<u64> {
    padded(body)?.checked_add(HEADER_BYTES)
}

impl Pool {
    pub(super) fn new(segment: SegmentId, len_bytes: u64) -> Pool {
        Pool {
            segment,
            alloc: Allocator::new(len_bytes),
            wants: BTreeMap::new(),
            next_number: 0,
            tidy_at: TIDY_AT,
            speculative: 0,
            full_since: None,
            told: ReportedState::default(),
        }
    }

    pub(super) fn slot(&mut self, body: u64) -> Result<Allocation, AllocError> {
        self.alloc.allocate(slot_bytes(body).unwrap_or(u64::MAX))
    }

    pub(super) fn slice(&self, allocation: &Allocation) -> LocalSlice {
        LocalSlice { segment: self.segment, offset: allocation.offset(), len: allocation.len() }
    }

    /// Returns the allocator of the pool's memory.
    pub(crate) fn alloc(&self) -> &Allocator {
        &self.alloc
    }

    /// Returns the requests that wait for room, in order.
    pub(crate) fn wants(&self) -> impl ExactSizeIterator<Item = Want> {
        self.wants.values().copied()
    }

    /// Returns since when requests have been waiting without a pause.
    pub(crate) fn full_since(&self) -> Option<Time> {
        self.full_since
    }

    /// Returns how many bytes requests hold for versions that may not be published yet.
    #[cfg(test)]
    pub(crate) fn speculative(&self) -> u64 {
        self.speculative
    }
}

impl Landing {
    /// Returns the size of a pool in bytes; 0 if there is none.
    pub(crate) fn pool_bytes(&self, domain: Tenant) -> u64 {
        self.pools.get(&domain).map_or(0, |pool| pool.alloc.len_bytes())
    }

    /// Whether the pool is large enough for `count` slots with bodies of this length.
    pub(crate) fn could_hold(&self, domain: Tenant, body: u64, count: u64) -> bool {
        let needs = slot_bytes(body).and_then(|n| n.checked_mul(count));
        self.pools.contains_key(&domain) && needs.is_some_and(|n| n <= self.pool_bytes(domain))
    }

    /// Whether requests already wait for room in this pool.
    pub(crate) fn is_contended(&self, domain: Tenant) -> bool {
        self.pools.get(&domain).is_some_and(|pool| !pool.wants.is_empty())
    }

    /// Allocates a slot for a body of this length.
    pub(crate) fn room_for_slot(&mut self, domain: Tenant, body: u64) -> Option<Allocation> {
        self.pools.get_mut(&domain)?.slot(body).ok()
    }

    /// Allocates a slot for a version that may not be published yet. All slots of this kind together hold at most a
    /// part of the pool. Also returns how many bytes are counted for the slot, until the caller
    /// [settles](Landing::settle_speculation) them.
    pub(crate) fn speculate(&mut self, domain: Tenant, body: u64) -> Option<(Allocation, u64)> {
        if !self.may_speculate(domain, body) {
            return None;
        }
        let pool = self.pools.get_mut(&domain)?;
        let (range, bytes) = (pool.slot(body).ok()?, body + HEADER_BYTES);
        pool.speculative += bytes;
        Some((range, bytes))
    }

    /// Returns how many bytes of a pool are free.
    pub(crate) fn free_bytes(&self, domain: Tenant) -> u64 {
        self.pools.get(&domain).map_or(0, |pool| pool.alloc.free_bytes())
    }

    /// Whether a slot of that kind may be opened, if there is room for it.
    pub(crate) fn may_speculate(&self, domain: Tenant, body: u64) -> bool {
        let is_within = |pool: &Pool| {
            let bytes = pool.speculative + body + HEADER_BYTES;
            pool.wants.is_empty() && bytes <= pool.alloc.len_bytes() / 100 * self.speculative_percent
        };
        self.pools.get(&domain).is_some_and(is_within)
    }

    /// Stops counting bytes for a version that is now known to be needed, or not to be.
    pub(crate) fn settle_speculation(&mut self, domain: Tenant, bytes: u64) {
        if let Some(pool) = self.pools.get_mut(&domain) {
            pool.speculative = pool.speculative.saturating_sub(bytes);
        }
    }

    /// Allocates a range of this length. Returns it, and where it lies.
    pub(crate) fn allocate(&mut self, domain: Tenant, len: u64) -> Option<(Allocation, LocalSlice)> {
        let pool = self.pools.get_mut(&domain)?;
        let range = pool.alloc.allocate(len).ok()?;
        let slice = pool.slice(&range);
        Some((range, slice))
    }

    /// Allocates room for a version of this length whose chunks land apart from their headers, and for the header of one chunk. Also returns
    /// where the version lies.
    pub(crate) fn room_for_chunks(&mut self, domain: Tenant, len: u64) -> Option<(Allocation, LocalSlice, Allocation)> {
        let pool = self.pools.get_mut(&domain)?;
        let range = pool.alloc.allocate(padded(len)?).ok()?;
        let Ok(cell) = pool.alloc.allocate(HEADER_BYTES) else {
            // The allocator made this range, so it accepts it.
            let _ = pool.alloc.free(range);
            return None;
        };
        let slice = LocalSlice { len, ..pool.slice(&range) };
        Some((range, slice, cell))
    }

    /// Returns where a range of a pool lies.
    pub(crate) fn slice(&self, domain: Tenant, range: &Allocation) -> Option<LocalSlice> {
        self.pools.get(&domain).map(|pool| pool.slice(range))
    }

    /// Gives back to its pool a range that no reader and no write can reach.
    pub(crate) fn free(&mut self, domain: Tenant, range: Allocation) {
        if let Some(pool) = self.pools.get_mut(&domain) {
            // The allocator made this range, so it accepts it.
            let _ = pool.alloc.free(range);
        }
        self.serve_later(domain);
    }

    /// Notes that a pool may have room for its requests, or that the first of them no longer waits.
    pub(crate) fn serve_later(&mut self, domain: Tenant) {
        if self.is_contended(domain) && !self.to_serve.contains(&domain) {
            self.to_serve.push(domain);
        }
    }

    /// Notes that each pool may have room for its requests.
    pub(crate) fn serve_all_later(&mut self) {
        for domain in self.pools.keys().copied().collect::<Vec<_>>() {
            self.serve_later(domain);
        }
    }

    /// Returns a number in the queue for room, behind all others.
    pub(crate) fn number_in_queue(&mut self, domain: Tenant) -> Option<u64> {
        let pool = self.pools.get_mut(&domain)?;
        pool.next_number += 1;
        Some(pool.next_number)
    }

    /// Adds a request for room to the queue, by its number if it has one. `waits` tells whether a pull or a copy in the queue still
    /// waits.
    pub(crate) fn want(
        &mut self,
        now: Time,
        domain: Tenant,
        (number, want): (Option<u64>, Want),
        waits: impl Fn(Want) -> bool,
    ) {
        let Some(number) = number.or_else(|| self.number_in_queue(domain)) else { return };
        let Landing { pools, links, .. } = self;
        let Some(pool) = pools.get_mut(&domain) else { return };
        if pool.wants.len() >= pool.tidy_at {
            // While the first request waits, those behind it may come and end.
            pool.wants.retain(|_, want| match *want {
                Want::Flow(link, id) => {
                    links.get(&link).and_then(|l| l.flows.get(id)).is_some_and(|f| f.wants_room(domain))
                }
                want => waits(want),
            });
            pool.tidy_at = (2 * pool.wants.len()).max(TIDY_AT);
        }
        pool.wants.insert(number, want);
        pool.full_since.get_or_insert(now);
        // Earlier requests may no longer want their room, and other flows may hold room that they do not use.
        self.serve_later(domain);
    }

    /// Notes that the first request has to wait: nothing is left that is kept and could be given up. Returns the length of the pool if
    /// the operator is to be told that it is full.
    pub(crate) fn is_full(&mut self, now: Time, domain: Tenant) -> Option<u64> {
        let pool = self.pools.get_mut(&domain)?;
        let is_due = !pool.told.full && pool.told.at.is_none_or(|at| now.since(at) >= POOL_PAUSE);
        is_due.then(|| {
            pool.told = ReportedState { full: true, at: Some(now) };
            pool.alloc.len_bytes()
        })
    }

    /// Whether there are pools whose queues are to be served, or many flows whose idle slots are to be counted again.
    pub(crate) fn is_to_serve(&self) -> bool {
        !self.to_serve.is_empty() || self.is_to_settle()
    }

    /// Removes and returns the list of pools whose queues are to be served. The sums of idle slots are up to date then.
    pub(crate) fn take_to_serve(&mut self) -> Vec<Tenant> {
        self.settle();
        std::mem::take(&mut self.to_serve)
    }

    /// Returns the first request of a queue.
    pub(crate) fn first(&self, domain: Tenant) -> Option<Want> {
        self.pools.get(&domain)?.wants.values().next().copied()
    }

    /// Removes the first request, which has its room or no longer waits.
    pub(crate) fn pop_first(&mut self, domain: Tenant) {
        if let Some(pool) = self.pools.get_mut(&domain) {
            pool.wants.pop_first();
        }
    }

    /// Ends one round of serving a queue. If the queue is empty and `PoolFull` was sent, returns how long requests
    /// waited.
    pub(crate) fn served(&mut self, now: Time, domain: Tenant) -> Option<Duration> {
        let pool = self.pools.get_mut(&domain).filter(|pool| pool.wants.is_empty())?;
        let since = pool.full_since.take();
        let was_told = std::mem::take(&mut pool.told.full);
        was_told.then(|| since.map_or(Duration::ZERO, |since| now.since(since)))
    }

    /// Whether free memory and idle slots, without those of the flow `but`, add up to `need` bytes.
    pub(crate) fn idle_would_do(&self, domain: Tenant, need: u64, but: Option<FlowAt>) -> bool {
        let free = self.pools.get(&domain).map(|pool| pool.alloc.free_bytes());
        free.is_some_and(|free| free.saturating_add(self.idle.bytes(domain, but)) >= need)
    }
}
