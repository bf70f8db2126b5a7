//! Landing pools: where writes of peers land, one for each trust domain.

use super::ids::{CopyId, FlowAt, InFlowId, PullId};
use crate::alloc::{AllocError, Allocation, Allocator};
use crate::fabric::LinkId;
use crate::memory::{LocalSlice, SegmentId, padded};
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;
use std::collections::VecDeque;

/// Who waits for room. Served in order, so that nobody starves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// One slot for a pull.
    Pull(LinkId, PullId),
    /// All slots of a push flow.
    Flow(LinkId, InFlowId),
    /// A copy for a reader of another tenant.
    Copy(CopyId),
}

impl Want {
    /// The flow that waits, where it is one.
    pub(super) fn flow(self) -> Option<FlowAt> {
        match self {
            Want::Flow(link, flow) => Some((link, flow)),
            Want::Pull(..) | Want::Copy(_) => None,
        }
    }
}

/// How long a queue may be before those that have ended are taken out of it.
pub(super) const TIDY_AT: usize = 64;

pub(super) struct Pool {
    pub(super) segment: SegmentId,
    pub(super) alloc: Allocator,
    pub(super) wants: VecDeque<Want>,
    /// At this length of the queue those that do not wait any more are taken out.
    pub(super) tidy_at: usize,
    /// Bytes that requests hold for versions which may not be published yet.
    pub(super) speculative: u64,
    /// Since when somebody has been waiting, whoever that was.
    pub(super) full_since: Option<Time>,
    /// Whether and when it was told that it is full.
    pub(super) told: Told,
}

/// What was told of a pool without being asked.
#[derive(Clone, Copy, Default)]
pub(super) struct Told {
    /// That it is full, and not yet that it is so no more.
    pub(super) full: bool,
    /// When that was told last.
    pub(super) at: Option<Time>,
}

/// The length of a slot for a body of this length.
pub(super) fn slot_bytes(body: u64) -> Option<u64> {
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

    /// Whether `count` slots for bodies of this length can ever be had.
    pub(super) fn could_hold(&self, body: u64, count: u64) -> bool {
        slot_bytes(body).and_then(|n| n.checked_mul(count)).is_some_and(|n| n <= self.alloc.len_bytes())
    }
}
