//! The values of the counters that live here, and who may change them.
//!
//! Where a fabric's device operates on words for peers, it also does so for this node: a device's atomic operations and a
//! processor's are not atomic to each other. The words lie in registered memory then, and nothing here touches them. Elsewhere a
//! value is a number in a table, which only the node's own thread knows.

use super::super::link::Link;
use super::{WORD_BYTES, changes};
use crate::fabric::{AtomicOp, FabricKind, LinkId, WorkId};
use crate::memory::LocalSlice;
use crate::op::{CounterAsk, CounterPath, Failure, FailureCode};
use crate::protocol::action::FabricAction;
use crate::protocol::ids::OperationId;
use crate::protocol::ids::{RunningId, of};
use crate::protocol::node::Node;
use crate::protocol::slab::{Id, Slab};
use crate::time::Time;
use crate::wire::message::{Body, Role};
use std::collections::VecDeque;

/// Operations that the device is given at a time; others stand in line.
const AT_ONCE: usize = 64;

/// An operation that stands in line for the device, or is with it.
pub(in super::super) struct Running {
    who: Who,
    place: u32,
    op: AtomicOp,
    since: Time,
    posted: bool,
}

/// For whom.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Local(OperationId),
    /// The request of this index of that link's peer.
    Peer(LinkId, u32),
}

#[derive(Default)]
pub(super) struct Words {
    /// Where the words lie, and whose device operates on them.
    device: Option<(LocalSlice, FabricKind)>,
    /// By place; without a device.
    values: Vec<u64>,
    running: Slab<Running, of::Running>,
    line: VecDeque<RunningId>,
    posted: usize,
}

impl Words {
    pub(super) fn lie_in(&mut self, words: LocalSlice, kind: FabricKind) {
        self.device = Some((words, kind));
    }

    /// The word of a place, where it lies in registered memory.
    pub(super) fn word(&self, place: u32) -> Option<LocalSlice> {
        self.device.and_then(|(words, _)| words.sub(u64::from(place) * WORD_BYTES, WORD_BYTES))
    }

    fn way(&self) -> (CounterPath, FabricKind) {
        self.device.map_or((CounterPath::Here, FabricKind::Local), |(_, kind)| (CounterPath::Device, kind))
    }

    /// Operates on a value that lies in the table.
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

    /// Whoever wanted it has gone: what the device does not know yet is not done.
    pub(super) fn forget(&mut self, id: RunningId) {
        if self.running.get(id).is_some_and(|r| !r.posted) {
            self.running.remove(id);
            self.line.retain(|other| *other != id);
        }
    }

    /// The same for all requests of a link's peer.
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

impl Node {
    /// Operates on a word here: at once, or by the device. `None`: it is done.
    pub(super) fn operate_word(&mut self, now: Time, who: Who, place: u32, op: AtomicOp) -> Option<RunningId> {
        let words = &mut self.counters.words;
        if words.device.is_none() {
            let old = words.operate(place, op);
            self.operated(now, who, now, Ok(old));
            return None;
        }
        let id = words.running.insert(Running { who, place, op, since: now, posted: false });
        words.line.push_back(id);
        self.feed_device();
        Some(id)
    }

    fn feed_device(&mut self) {
        let words = &mut self.counters.words;
        while words.posted < AT_ONCE
            && let Some(id) = words.line.pop_front()
        {
            let Some(running) = words.running.get_mut(id) else { continue };
            running.posted = true;
            let (place, op) = (running.place, running.op);
            let Some(word) = words.word(place) else { continue };
            words.posted += 1;
            self.actions.push(FabricAction::LocalAtomic { work: WorkId(id.to_u64()), word, op });
        }
    }

    /// The device is done with a word here.
    pub(in super::super) fn local_atomic_done(&mut self, now: Time, work: WorkId, result: Result<u64, String>) {
        let Some(running) = self.counters.words.running.remove(Id::from_u64(work.0)) else { return };
        self.counters.words.posted -= 1;
        self.feed_device();
        self.operated(now, running.who, running.since, result);
    }

    /// The device did not take an operation that [`FabricAction::LocalAtomic`] asked for.
    pub fn local_atomic_refused(&mut self, work: WorkId, why: &str) {
        let Some(running) = self.counters.words.running.remove(Id::from_u64(work.0)) else { return };
        self.counters.words.posted -= 1;
        self.feed_device();
        let text = format!("node {:?} cannot operate on its counters: {why}; nothing was changed", self.config.name);
        self.operation_failed(running.who, Failure::new(FailureCode::Busy, text));
    }

    fn operated(&mut self, now: Time, who: Who, since: Time, result: Result<u64, String>) {
        let way = self.counters.words.way();
        match (result, who) {
            (Ok(old), Who::Local(id)) => self.counted(now, id, old, way, since),
            (Ok(old), Who::Peer(link, index)) => {
                if self.links.get_mut(&link).is_some_and(|l: &mut Link| l.counters.served(index)) {
                    self.send(link, Role::Counter, index, Body::CounterResult { old });
                }
            }
            (Err(why), who) => {
                let text = format!("the device of node {:?} failed: {why}", self.config.name);
                let code = match who {
                    Who::Local(id) => match self.counter_ask(id) {
                        Some((_, ask)) if !changes(&ask) => FailureCode::PeerLost,
                        _ => FailureCode::OutcomeUnknown,
                    },
                    Who::Peer(..) => FailureCode::OutcomeUnknown,
                };
                self.operation_failed(who, Failure::new(code, text));
            }
        }
    }

    fn operation_failed(&mut self, who: Who, failure: Failure) {
        match who {
            Who::Local(id) => self.fail_op(id, failure),
            Who::Peer(link, index) => self.refuse_counter(link, index, failure),
        }
    }

    /// A worker's operation on a counter that lives, or lived, here.
    pub(super) fn operate_here(
        &mut self,
        now: Time,
        id: OperationId,
        key: &crate::tensor::Key,
        identity: u64,
        op: AtomicOp,
    ) {
        let found = self.counters.home(key).filter(|home| home.identity == identity).map(|home| &home.what);
        let Some(super::What::Counter(place)) = found else {
            let failure = self.lost(key, &self.config.name);
            return self.fail_op(id, failure);
        };
        let place = *place;
        if let Err(failure) = self.counter_tenant(id).map_or(Ok(()), |tenant| self.may_count(key, tenant)) {
            return self.fail_op(id, failure);
        }
        debug_assert!(matches!(self.counter_ask(id), Some((_, CounterAsk::Operate { .. }))));
        if let Some(running) = self.operate_word(now, Who::Local(id), place, op) {
            self.counter_stage(id, super::CounterStage::Running(running));
        }
    }
}
