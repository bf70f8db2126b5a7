//! A flow: a key of a worker of this node that is pushed to a peer.

use crate::protocol::ids::{OperationId, SessionId};
use crate::tensor::{Key, Name, TensorMeta};
use crate::wire::landing::SlotGrant;
use std::collections::VecDeque;

/// The least length of a queue at which ended operations are removed from it.
const TIDY_AT: usize = 64;

/// The flow of one key of one worker of this node to another node. If a push goes to another target there, the peer is
/// asked for slots again.
pub(crate) struct OutFlow {
    pub(crate) key: Key,
    pub(crate) target: Name,
    pub(crate) session: SessionId,
    pub(crate) state: FlowState,
    /// A call asks for the flow's slots. Its answer is not ordered with the messages of the link.
    pub(crate) calling: bool,
    /// The capacity, in bytes, that each granted slot must have.
    pub(crate) capacity: u64,
    /// The number of the key on this link.
    pub(crate) name: u32,
    metadata_id: u32,
    meta: TensorMeta,
    idle: VecDeque<SlotGrant>,
    queue: VecDeque<OperationId>,
    /// The length of the queue at which ended operations are removed.
    tidy_at: usize,
    /// The lowest version that may be pushed next. A new flow takes any version: a push that was lost with the link may be
    /// repeated.
    pub(crate) next_version: u64,
    first_number: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlowState {
    /// No slots are requested: the flow is new, the peer refused it or recalled its slots, or its target changed.
    New,
    /// BUFFER_REQUEST or a call has asked for slots.
    Requested,
    /// Slots are granted.
    Ready,
}

impl OutFlow {
    /// Creates a flow that the peer does not know. `first_number` is the version of its first push that names none.
    pub(crate) fn new((session, key): (SessionId, Key), target: Name, meta: TensorMeta, first_number: u64) -> OutFlow {
        OutFlow {
            key,
            target,
            session,
            state: FlowState::New,
            calling: false,
            capacity: 0,
            name: 0,
            metadata_id: 0,
            meta,
            idle: VecDeque::new(),
            queue: VecDeque::new(),
            tidy_at: TIDY_AT,
            next_version: 0,
            first_number,
        }
    }

    /// Returns the version of the next push that names none. It rises across links, so that no reader waits in vain for
    /// a version above the one that it has.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_version.max(self.first_number)
    }

    /// Returns the worker and the key that the flow belongs to.
    pub(crate) fn of(&self) -> (SessionId, Key) {
        (self.session, self.key.clone())
    }

    /// Returns the key and the worker that it is pushed to. Versions rise for each such pair.
    pub(crate) fn way(&self) -> (Key, Name) {
        (self.key.clone(), self.target.clone())
    }

    /// Appends an operation to the queue. `is_there` returns whether an operation has not ended; operations behind the
    /// first one may end while it waits.
    pub(crate) fn enqueue(&mut self, id: OperationId, is_there: impl Fn(OperationId) -> bool) {
        if self.queue.len() >= self.tidy_at {
            self.queue.retain(|id| is_there(*id));
            self.tidy_at = (2 * self.queue.len()).max(TIDY_AT);
        }
        self.queue.push_back(id);
    }

    /// Returns the next operation, unless the flow waits for the peer.
    pub(crate) fn next(&self) -> Option<OperationId> {
        self.queue.front().copied().filter(|_| self.state != FlowState::Requested && !self.calling)
    }

    /// Removes the first operation, which has ended or needs no more of the flow.
    pub(crate) fn drop_first(&mut self) {
        self.queue.pop_front();
    }

    /// Whether a slot is free.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Begins a request for slots for tensors with this description; the slots that were granted before are gone.
    /// Returns the number of the description, and whether it is the flow's first one.
    pub(crate) fn request(&mut self, meta: TensorMeta) -> (u32, bool) {
        let is_first = self.metadata_id == 0;
        (self.state, self.capacity) = (FlowState::Requested, meta.len_bytes());
        self.metadata_id += 1;
        self.meta = meta;
        self.idle.clear();
        (self.metadata_id, is_first)
    }

    /// Takes the slots that the peer has granted. The error holds the capacity of a slot that is too small, or `None`
    /// if the grant was not asked for.
    pub(crate) fn grant(&mut self, slots: Vec<SlotGrant>) -> Result<(), Option<u64>> {
        let short = slots.iter().find(|slot| slot.capacity < self.capacity).map(|slot| slot.capacity);
        if self.state != FlowState::Requested || self.calling || short.is_some() {
            return Err(short);
        }
        self.state = FlowState::Ready;
        self.idle.extend(slots);
        Ok(())
    }

    /// Takes a slot that the peer gives back. Returns `false` if it does not count: it crossed a request for larger
    /// slots, and the peer takes it back because of that request.
    pub(crate) fn give_back(&mut self, slot: SlotGrant) -> bool {
        let counts = self.state == FlowState::Ready && slot.capacity >= self.capacity;
        if counts {
            self.idle.push_back(slot);
        }
        counts
    }

    /// Takes an idle slot for the version of the first operation. Returns the slot, the number of the description, and
    /// whether the description is new to the peer.
    pub(crate) fn write(&mut self, version: u64, meta: &TensorMeta) -> Option<(SlotGrant, u32, bool)> {
        self.queue.pop_front();
        self.next_version = version.saturating_add(1);
        let changed = self.meta != *meta;
        if changed {
            self.metadata_id += 1;
            self.meta = meta.clone();
        }
        Some((self.idle.pop_front()?, self.metadata_id, changed))
    }

    /// Handles the peer's refusal to grant slots. Returns the operations that wait for them.
    pub(crate) fn refuse(&mut self) -> VecDeque<OperationId> {
        self.state = FlowState::New;
        self.idle.clear();
        std::mem::take(&mut self.queue)
    }

    /// Forgets the idle slots, which the peer has recalled.
    pub(crate) fn recall(&mut self) {
        self.idle.clear();
        // A request that crossed the recall already asks for other slots. The answer to a call may be from before or
        // after the recall, so it does not count.
        if self.state != FlowState::Requested || self.calling {
            self.state = FlowState::New;
        }
    }

    /// Returns the operations that wait in the flow.
    pub(crate) fn queue(&self) -> &VecDeque<OperationId> {
        &self.queue
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> String {
        format!("{:?}{}", self.state, if self.calling { ", call" } else { "" })
    }
}
