//! A key of a worker of ours that is pushed to a peer.

use crate::protocol::ids::{OperationId, SessionId};
use crate::tensor::{Key, Name, TensorMeta};
use crate::wire::landing::SlotGrant;
use std::collections::VecDeque;

/// From this length on, operations that have ended are taken out of a queue.
const TIDY_AT: usize = 64;

/// One key of one worker of ours that lands at another node. Its target changes with what is pushed; the peer is asked anew then.
pub(crate) struct OutFlow {
    pub(crate) key: Key,
    pub(crate) target: Name,
    pub(crate) session: SessionId,
    pub(crate) state: FlowState,
    /// A call asks for its slots, and its answer comes in no order with the messages of the link.
    pub(crate) calling: bool,
    /// Room of the granted slots.
    pub(crate) capacity: u64,
    /// The number of the key on this link.
    pub(crate) name: u32,
    metadata_id: u32,
    meta: TensorMeta,
    idle: VecDeque<SlotGrant>,
    queue: VecDeque<OperationId>,
    /// At this length of the queue those that have ended are taken out.
    tidy_at: usize,
    pub(crate) next_version: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FlowState {
    /// The peer knows nothing of it, or has refused it.
    New,
    /// BUFFER_REQUEST is sent.
    Requested,
    /// Slots are granted.
    Ready,
}

impl OutFlow {
    /// A flow that the peer does not know.
    pub(crate) fn new((session, key): (SessionId, Key), target: Name, meta: TensorMeta) -> OutFlow {
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
        }
    }

    /// Whose key it is.
    pub(crate) fn of(&self) -> (SessionId, Key) {
        (self.session, self.key.clone())
    }

    /// The key and the worker that it goes to: versions rise for each of these.
    pub(crate) fn way(&self) -> (Key, Name) {
        (self.key.clone(), self.target.clone())
    }

    /// Puts an operation in line. `is_there` tells those that have ended: while the first waits, those behind it come and go.
    pub(crate) fn enqueue(&mut self, id: OperationId, is_there: impl Fn(OperationId) -> bool) {
        if self.queue.len() >= self.tidy_at {
            self.queue.retain(|id| is_there(*id));
            self.tidy_at = (2 * self.queue.len()).max(TIDY_AT);
        }
        self.queue.push_back(id);
    }

    /// The operation that is next, where the flow does not wait for the peer.
    pub(crate) fn next(&self) -> Option<OperationId> {
        self.queue.front().copied().filter(|_| self.state != FlowState::Requested && !self.calling)
    }

    /// The first operation is done with the flow, or has ended.
    pub(crate) fn drop_first(&mut self) {
        self.queue.pop_front();
    }

    /// Whether a slot is free.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Slots are asked for, for what looks like this; those that were granted before are gone. Returns the number of the description, and
    /// whether it is the first.
    pub(crate) fn request(&mut self, meta: TensorMeta) -> (u32, bool) {
        let is_first = self.metadata_id == 0;
        (self.state, self.capacity) = (FlowState::Requested, meta.len_bytes());
        self.metadata_id += 1;
        self.meta = meta;
        self.idle.clear();
        (self.metadata_id, is_first)
    }

    /// The peer has granted slots. The error is the room of one that is too small, if that is what is wrong.
    pub(crate) fn grant(&mut self, slots: Vec<SlotGrant>) -> Result<(), Option<u64>> {
        let short = slots.iter().find(|slot| slot.capacity < self.capacity).map(|slot| slot.capacity);
        if self.state != FlowState::Requested || self.calling || short.is_some() {
            return Err(short);
        }
        self.state = FlowState::Ready;
        self.idle.extend(slots);
        Ok(())
    }

    /// The peer gives a slot back. `false`: it crossed a request for larger ones, which takes it back.
    pub(crate) fn give_back(&mut self, slot: SlotGrant) -> bool {
        let counts = self.state == FlowState::Ready && slot.capacity >= self.capacity;
        if counts {
            self.idle.push_back(slot);
        }
        counts
    }

    /// Takes a slot for the first operation's version. Returns it with the number of the description, and whether that is new to the peer.
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

    /// The peer grants nothing. Returns those that wait for it.
    pub(crate) fn refuse(&mut self) -> VecDeque<OperationId> {
        self.state = FlowState::New;
        self.idle.clear();
        std::mem::take(&mut self.queue)
    }

    /// The peer takes back what lies idle.
    pub(crate) fn recall(&mut self) {
        self.idle.clear();
        // A request that crossed it asks for other slots already. The answer to a call may be of before or after: it does not count.
        if self.state != FlowState::Requested || self.calling {
            self.state = FlowState::New;
        }
    }

    /// Those that wait in it.
    pub(crate) fn queue(&self) -> &VecDeque<OperationId> {
        &self.queue
    }

    #[cfg(test)]
    pub(crate) fn state(&self) -> String {
        format!("{:?}{}", self.state, if self.calling { ", call" } else { "" })
    }
}
