//! The values of the counters that live here, and the operations on them.
//!
//! If a fabric's device operates on words for peers, the device also operates on them for this node, because the atomic
//! operations of a device and those of a processor are not atomic to each other. The words then lie in registered
//! memory, and this module never accesses them. Otherwise a value is a number in a table that only the node's own
//! thread accesses.

use super::op::{Outcome, Route, changes};
use super::{Counters, WORD_BYTES};
use crate::fabric::{AtomicOp, FabricKind, LinkId, WorkId};
use crate::memory::LocalSlice;
use crate::op::{CounterPath, Failure, FailureCode};
use crate::protocol::action::FabricAction;
use crate::protocol::ids::{OperationId, RunningId, of};
use crate::protocol::slab::{Id, Slab};
use crate::time::Time;
use crate::wire::message::Body;
use std::collections::VecDeque;

/// The most operations that the device is given at a time. The others wait in a queue.
const AT_ONCE: usize = 64;

/// An operation that is in the queue for the device, or that the device has.
pub(super) struct Running {
    who: Who,
    place: u32,
    op: AtomicOp,
    since: Time,
    posted: bool,
}

/// The requester of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Local(OperationId),
    /// The request with this index of the link's peer.
    Peer(LinkId, u32),
}

#[derive(Default)]
pub(super) struct Words {
    /// The memory of the words, and the fabric whose device operates on them.
    device: Option<(LocalSlice, FabricKind)>,
    /// The values by place, if there is no device.
    values: Vec<u64>,
    running: Slab<Running, of::Running>,
    line: VecDeque<RunningId>,
    posted: usize,
}

impl Words {
    pub(super) fn lie_in(&mut self, words: LocalSlice, kind: FabricKind) {
        self.device = Some((words, kind));
    }

    /// Returns the word at a place, if the words lie in registered memory.
    pub(super) fn word(&self, place: u32) -> Option<LocalSlice> {
        self.device.and_then(|(words, _)| words.sub(u64::from(place) * WORD_BYTES, WORD_BYTES))
    }

    fn route(&self, posted: Time) -> Route {
        let here = (CounterPath::Here, FabricKind::Local);
        let (path, fabric) = self.device.map_or(here, |(_, kind)| (CounterPath::Device, kind));
        Route { path, fabric, posted }
    }

    /// Operates on a value in the table.
    fn operate(&mut self, place: u32, op: AtomicOp) -> u64 {
        let place = place as usize;
        if place >= self.values.len() {
            self.values.resize(place + 1, 0);
        }
        let value = &mut self.values[place];
        let old = *value;
        match op {
            AtomicOp::Load => {}
            AtomicOp::FetchAdd(n) => *value = old.wrapping_add(n),
            AtomicOp::CompareSwap { expected, new } if old == expected => *value = new,
            AtomicOp::CompareSwap { .. } => {}
        }
        old
    }

    /// Drops an operation whose requester has gone, unless the device already has it.
    pub(super) fn forget(&mut self, id: RunningId) {
        if self.running.get(id).is_some_and(|r| !r.posted) {
            self.running.remove(id);
            self.line.retain(|other| *other != id);
        }
    }

    /// Drops all operations that a link's peer requested, unless the device already has them.
    pub(super) fn forget_peer(&mut self, link: LinkId) {
        for id in self.running.ids(|r| matches!(r.who, Who::Peer(l, _) if l == link)) {
            self.forget(id);
        }
    }

    pub(super) fn is_posted(&self, id: RunningId) -> bool {
        self.running.get(id).is_some_and(|r| r.posted)
    }

    #[cfg(test)]
    pub(super) fn value(&self, place: u32) -> u64 {
        self.values.get(place as usize).copied().unwrap_or(0)
    }

    #[cfg(test)]
    pub(super) fn busy(&self) -> usize {
        self.running.len() + self.line.len() + self.posted
    }
}

impl Counters {
    /// Operates on a word of this node, directly or by the device. `None`: the operation is complete.
    pub(super) fn operate(&mut self, now: Time, who: Who, place: u32, op: AtomicOp) -> Option<RunningId> {
        let words = &mut self.words;
        if words.device.is_none() {
            let old = words.operate(place, op);
            self.operated(who, now, Ok(old));
            return None;
        }
        let id = words.running.insert(Running { who, place, op, since: now, posted: false });
        words.line.push_back(id);
        self.feed_device();
        Some(id)
    }

    fn feed_device(&mut self) {
        while self.words.posted < AT_ONCE
            && let Some(id) = self.words.line.pop_front()
        {
            let Some(running) = self.words.running.get_mut(id) else { continue };
            running.posted = true;
            let (place, op) = (running.place, running.op);
            let Some(word) = self.words.word(place) else { continue };
            self.words.posted += 1;
            self.act(FabricAction::LocalAtomic { work: WorkId(id.to_u64()), word, op });
        }
    }

    /// Removes an operation that the device has completed or refused, and gives the device the next one from the queue.
    fn device_done(&mut self, work: WorkId) -> Option<Running> {
        let running = self.words.running.remove(Id::from_u64(work.0))?;
        self.words.posted -= 1;
        self.feed_device();
        Some(running)
    }

    /// Handles a completion of the device on a word of this node.
    pub(crate) fn local_atomic_done(&mut self, work: WorkId, result: Result<u64, String>) {
        if let Some(running) = self.device_done(work) {
            self.operated(running.who, running.since, result);
        }
    }

    /// Handles a refusal: the device did not take an operation that [`FabricAction::LocalAtomic`] asked for.
    pub(crate) fn local_atomic_refused(&mut self, work: WorkId, why: &str) {
        if let Some(running) = self.device_done(work) {
            let text = format!("node {:?} cannot operate on its counters: {why}; nothing was changed", self.name);
            self.operation_failed(running.who, Failure::new(FailureCode::Busy, text));
        }
    }

    fn operated(&mut self, who: Who, since: Time, result: Result<u64, String>) {
        match (result, who) {
            (Ok(old), Who::Local(id)) => {
                let route = self.words.route(since);
                self.end(id, Outcome::Counted(old, route));
            }
            (Ok(old), Who::Peer(link, index)) => self.answer(link, index, Body::CounterResult { old }),
            (Err(why), who) => {
                let text = format!("the device of node {:?} failed: {why}", self.name);
                let is_read = match who {
                    Who::Local(id) => self.ops.get(&id).is_some_and(|op| !changes(&op.ask)),
                    Who::Peer(..) => false,
                };
                let code = if is_read { FailureCode::PeerLost } else { FailureCode::OutcomeUnknown };
                self.operation_failed(who, Failure::new(code, text));
            }
        }
    }

    fn operation_failed(&mut self, who: Who, failure: Failure) {
        match who {
            Who::Local(id) => self.fail(id, failure),
            Who::Peer(link, index) => self.refuse(link, index, failure),
        }
    }
}
