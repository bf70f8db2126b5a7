//! What lives elsewhere: requests to peers, and operations on their words.

use super::home::{Serve, WordGrant};
use super::{COUNTERS_PER_NODE, CounterStage, WORD_BYTES, changes, spoken};
use crate::fabric::{LinkId, WorkId};
use crate::memory::RemoteSlice;
use crate::op::{CounterAsk, CounterPath, Failure, FailureCode};
use crate::protocol::action::Post;
use crate::protocol::ids::OperationId;
use crate::protocol::ids::{CounterCallId, of};
use crate::protocol::links::Out;
use crate::protocol::node::Node;
use crate::protocol::slab::{Id, Slab};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use crate::time::Time;
use crate::wire::message::{Body, Message, NameRef, Role};
use hashbrown::{HashMap, HashSet};

/// What two nodes have to do with each other's counters, over one link.
#[derive(Default)]
pub(in super::super) struct LinkCounters {
    /// Requests of ours.
    pub(super) calls: Slab<Call, of::CounterCall>,
    /// The peer's counters that were opened.
    pub(super) opened: HashMap<Key, Opened>,
    /// Requests of the peer.
    pub(super) serves: HashMap<u32, Serve>,
    /// Our words that the peer operates on, by place.
    pub(super) grants: HashMap<u32, WordGrant>,
}

/// A counter of the peer.
pub(super) struct Opened {
    identity: u64,
    /// The tenants for whom the home has opened it.
    tenants: Vec<Tenant>,
    /// Where both sides' devices can operate on words.
    word: Option<RemoteSlice>,
}

/// A request of ours to a peer. It lives until nothing more comes of it.
pub(in super::super) struct Call {
    /// `None` once the operation has ended; then this only waits for the answer.
    op: Option<OperationId>,
    key: Key,
    tenant: Tenant,
    state: CallState,
    posted: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CallState {
    /// COUNTER_OPEN was sent.
    Opening,
    /// COUNTER_OP was sent.
    Asked,
    /// The device operates on the peer's word.
    Posted,
    /// BARRIER_WAIT was sent.
    Waiting,
    /// CANCEL was sent behind it.
    Cancelling,
}

impl LinkCounters {
    /// A request of the peer is about to be answered. Whether there is one.
    pub(super) fn served(&mut self, index: u32) -> bool {
        self.serves.remove(&index).is_some()
    }

    /// Whether a request of ours asks for nothing but to open. `None`: there is no such request.
    pub(super) fn is_opening(&self, call: CounterCallId) -> Option<bool> {
        self.calls.get(call).map(|c| c.state == CallState::Opening)
    }

    #[cfg(test)]
    pub(super) fn busy(&self) -> usize {
        self.calls.len() + self.serves.len()
    }
}

impl Node {
    /// Asks the home of a counter or barrier, or operates on its word.
    pub(super) fn call_home(&mut self, now: Time, id: OperationId, link: LinkId) {
        let Some((key, ask)) = self.counter_ask(id) else { return };
        let limit = self.config.max_requests_per_link;
        let Some(l) = self.links.get(&link) else { return };
        if l.counters.calls.len() >= limit || !l.counters.calls.has_short_room() {
            let text = format!("{limit} counter requests to node {:?} are under way, the limit", l.peer.name);
            return self.fail_op(id, Failure::new(FailureCode::Busy, text));
        }
        let Some(tenant) = self.counter_tenant(id) else { return };
        if let Err(failure) = self.vouched(link, tenant) {
            return self.fail_op(id, failure);
        }
        let home = l.peer.name.clone();
        let opened = l.counters.opened.get(&key).filter(|opened| opened.tenants.contains(&tenant));
        let atomics = l.limits.atomics;
        match (ask, opened) {
            (CounterAsk::Wait { members }, _) => {
                self.call(now, id, link, CallState::Waiting, |name, tenant| Body::BarrierWait {
                    name,
                    tenant,
                    members,
                });
            }
            (CounterAsk::Open, Some(opened)) => {
                let identity = opened.identity;
                self.counter_is_open(id, home, identity);
            }
            (CounterAsk::Operate { identity, .. }, Some(opened)) if opened.identity != identity => {
                let lost = self.lost(&key, &home);
                self.fail_op(id, lost);
            }
            (CounterAsk::Operate { op, .. }, Some(Opened { word: Some(word), .. })) => {
                let remote = *word;
                if let Some(call) = self.begin_call(now, id, link, CallState::Posted) {
                    self.actions.push(Post::Atomic { link, work: WorkId(call.to_u64()), remote, op });
                }
            }
            (CounterAsk::Open, None) => self.open_there(now, id, link, atomics),
            (CounterAsk::Operate { .. }, None) if atomics => self.open_there(now, id, link, true),
            (CounterAsk::Operate { identity, op, .. }, _) => {
                self.call(now, id, link, CallState::Asked, |name, tenant| Body::CounterOp {
                    name,
                    tenant,
                    identity,
                    op,
                });
            }
        }
    }

    fn open_there(&mut self, now: Time, id: OperationId, link: LinkId, wants_grant: bool) {
        self.call(now, id, link, CallState::Opening, |name, tenant| Body::CounterOpen { name, tenant, wants_grant });
    }

    fn begin_call(&mut self, now: Time, id: OperationId, link: LinkId, state: CallState) -> Option<CounterCallId> {
        let (key, tenant) = (self.ops.get(id)?.key.clone(), self.counter_tenant(id)?);
        let l = self.links.get_mut(&link)?;
        let call = l.counters.calls.insert(Call { op: Some(id), key, tenant, state, posted: now });
        self.counter_stage(id, CounterStage::Called(link, call));
        Some(call)
    }

    fn call(
        &mut self,
        now: Time,
        id: OperationId,
        link: LinkId,
        state: CallState,
        body: impl FnOnce(NameRef, NameRef) -> Body,
    ) {
        let Some(call) = self.begin_call(now, id, link, state) else { return };
        let Some(key) = self.ops.get(id).map(|op| Name::from(op.key.clone())) else { return };
        let Some(tenant) = self.counter_tenant(id).map(|tenant| self.config.tenants.name(tenant)) else { return };
        let [name, tenant] = self.number(link, [&key, &tenant]);
        self.send(link, Role::Counter, call.short(), body(name, tenant));
    }

    /// The request that a peer answers by this index. A wrong one is a violation.
    fn call_of(&mut self, link: LinkId, index: u32, what: &str, right: &[CallState]) -> Option<CounterCallId> {
        let calls = &self.links.get(&link)?.counters.calls;
        let found = calls.lengthen(index).filter(|id| calls.get(*id).is_some_and(|c| right.contains(&c.state)));
        if found.is_none() {
            self.violation(link, &format!("{what} for counter request {index:#x}, which does not wait for that"));
        }
        found
    }

    fn forget_call(&mut self, link: LinkId, id: CounterCallId) -> Option<Call> {
        self.links.get_mut(&link)?.counters.calls.remove(id)
    }

    /// COUNTER_OPENED.
    pub(in super::super) fn counter_opened(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        identity: u64,
        word: Option<RemoteSlice>,
    ) {
        let Some(id) = self.call_of(link, index, "COUNTER_OPENED", &[CallState::Opening]) else { return };
        if let Some(word) = word.filter(|w| !w.address.is_multiple_of(WORD_BYTES) || w.len != WORD_BYTES) {
            return self.violation(link, &format!("COUNTER_OPENED with the word {word:?}, which is none"));
        }
        let Some(call) = self.forget_call(link, id) else { return };
        let Some(l) = self.links.get_mut(&link) else { return };
        let word = word.filter(|_| l.limits.atomics);
        let opened = l.counters.opened.entry(call.key);
        let opened = opened.or_insert_with(|| Opened { identity, tenants: Vec::new(), word });
        if opened.identity != identity {
            opened.tenants.clear();
        }
        (opened.identity, opened.word) = (identity, word);
        if !opened.tenants.contains(&call.tenant) {
            opened.tenants.push(call.tenant);
        }
        if l.counters.opened.len() > COUNTERS_PER_NODE as usize {
            return self.violation(link, &format!("it has opened more than {COUNTERS_PER_NODE} counters"));
        }
        // What the operation really asks for comes now.
        if let Some(op) = call.op {
            self.call_home(now, op, link);
        }
    }

    /// COUNTER_RESULT.
    pub(in super::super) fn counter_result(&mut self, now: Time, link: LinkId, index: u32, old: u64) {
        let Some(id) = self.call_of(link, index, "COUNTER_RESULT", &[CallState::Asked]) else { return };
        self.call_counted(now, link, id, old, CounterPath::Message);
    }

    /// The device has operated on a word of the peer.
    pub(in super::super) fn atomic_done(&mut self, now: Time, link: LinkId, work: WorkId, old: u64) {
        self.call_counted(now, link, Id::from_u64(work.0), old, CounterPath::OneSided);
    }

    /// The device that operates on words does not reach the peer any more, the link does: the home is asked.
    pub(crate) fn atomic_refused(&mut self, link: LinkId, work: WorkId) {
        let Some(call) = self.forget_call(link, Id::from_u64(work.0)) else { return };
        let Some((id, (_, ask))) = call.op.and_then(|op| Some((op, self.counter_ask(op)?))) else { return };
        if let CounterAsk::Operate { identity, op, .. } = ask {
            self.call(call.posted, id, link, CallState::Asked, |name, tenant| Body::CounterOp {
                name,
                tenant,
                identity,
                op,
            });
        }
    }

    fn call_counted(&mut self, now: Time, link: LinkId, id: CounterCallId, old: u64, path: CounterPath) {
        let Some(call) = self.forget_call(link, id) else { return };
        let Some(kind) = self.links.get(&link).map(|l| l.kind) else { return };
        if let Some(op) = call.op {
            self.counted(now, op, old, (path, kind), call.posted);
        }
    }

    /// BARRIER_RELEASED.
    pub(in super::super) fn barrier_released(&mut self, now: Time, link: LinkId, index: u32, round: u64, leader: bool) {
        let right = [CallState::Waiting, CallState::Cancelling];
        let Some(id) = self.call_of(link, index, "BARRIER_RELEASED", &right) else { return };
        let Some(l) = self.links.get_mut(&link) else { return };
        let kind = l.kind;
        if l.counters.calls.get(id).is_some_and(|c| c.state == CallState::Cancelling) {
            // CANCELLED still comes.
            return;
        }
        let Some(call) = self.forget_call(link, id) else { return };
        if let Some(op) = call.op {
            self.released(now, op, (round, leader), (CounterPath::Message, kind), call.posted);
        }
    }

    /// ERROR_STATUS: it is not done.
    pub(in super::super) fn counter_refused(&mut self, now: Time, link: LinkId, index: u32, failure: Failure) {
        use CallState::{Asked, Cancelling, Opening, Waiting};
        let right = [Opening, Asked, Waiting, Cancelling];
        let Some(id) = self.call_of(link, index, "ERROR_STATUS", &right) else { return };
        let Some(l) = self.links.get_mut(&link) else { return };
        if l.counters.calls.get(id).is_some_and(|c| c.state == Cancelling) {
            return;
        }
        let home = l.peer.name.clone();
        let Some(call) = self.forget_call(link, id) else { return };
        if matches!(failure.code, FailureCode::NotOwner | FailureCode::CounterLost) {
            self.forget_opened(link, &call.key);
            if self.counters.homes.get(&call.key) == Some(&home) {
                self.counters.homes.remove(&call.key);
            }
        }
        let Some((op, (_, ask))) = call.op.and_then(|op| Some((op, self.counter_ask(op)?))) else { return };
        match (failure.code, ask) {
            (FailureCode::NotOwner, CounterAsk::Operate { .. }) => {
                let lost = self.lost(&call.key, &home);
                self.fail_op(op, lost);
            }
            // The directory knows better by now.
            (FailureCode::NotOwner, _) => self.find_counter(now, op),
            _ => self.fail_op(op, failure),
        }
    }

    fn forget_opened(&mut self, link: LinkId, key: &Key) {
        if let Some(l) = self.links.get_mut(&link) {
            l.counters.opened.remove(key);
        }
    }

    /// COUNTER_ENDED: it has lost its name; what was granted is of no use.
    pub(in super::super) fn counter_ended_there(&mut self, link: LinkId, name: NameRef) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(key) = l.numbers.names_in.look_up(name).cloned().map(Key::from) else {
            return self.violation(link, &format!("it uses name {}.{}, which it never told", name.id, name.generation));
        };
        self.forget_opened(link, &key);
        self.forget_home_of(&key);
    }

    /// CANCELLED, behind whatever was said before.
    pub(in super::super) fn wait_cancelled(&mut self, link: LinkId, index: u32) {
        if let Some(id) = self.call_of(link, index, "CANCELLED", &[CallState::Cancelling]) {
            self.forget_call(link, id);
        }
    }

    /// The operation has ended without an answer. A wait is withdrawn; everything else is answered some time.
    pub(super) fn give_up_call(&mut self, link: LinkId, id: CounterCallId) {
        let Some(call) = self.links.get_mut(&link).and_then(|l| l.counters.calls.get_mut(id)) else { return };
        call.op = None;
        if call.state == CallState::Waiting {
            call.state = CallState::Cancelling;
            self.send(link, Role::Counter, id.short(), Body::Cancel);
        }
    }

    /// The link is gone: what was certainly not said was not done; of what else changes something nobody knows.
    pub(in super::super) fn counters_lost(
        &mut self,
        link: LinkId,
        peer: &Name,
        mut counters: LinkCounters,
        unsent: &HashSet<u32>,
        why: &str,
    ) {
        self.counters.words.forget_peer(link);
        let mut serves: Vec<_> = counters.serves.into_iter().collect();
        serves.sort_unstable_by_key(|(index, _)| *index);
        for (index, serve) in serves {
            self.serve_gone(link, index, &serve);
        }
        self.counters.homes.retain(|_, home| home != peer);
        for id in counters.calls.ids(|_| true) {
            let Some(call) = counters.calls.remove(id) else { continue };
            let Some((op, (key, ask))) = call.op.and_then(|op| Some((op, self.counter_ask(op)?))) else { continue };
            let what = spoken(&key);
            #[cfg(test)]
            let unsent = match self.config.broken {
                Some(crate::protocol::broken::Broken::DeniesLostAdds) => &HashSet::from([id.short()]),
                _ => unsent,
            };
            let said = call.state != CallState::Opening && !unsent.contains(&id.short());
            let failure = match ask {
                CounterAsk::Wait { .. } if said => Failure::new(
                    FailureCode::OutcomeUnknown,
                    format!(
                        "the link to node {peer:?}, the home of {what}, was lost: {why}; this arrival is withdrawn, unless its round \
                         was complete before"
                    ),
                ),
                ask if said && changes(&ask) => Failure::new(
                    FailureCode::OutcomeUnknown,
                    format!(
                        "the link to node {peer:?}, the home of {what}, was lost: {why}; {what} may have been changed, or not"
                    ),
                ),
                _ => Failure::new(
                    FailureCode::PeerLost,
                    format!("the link to node {peer:?}, the home of {what}, was lost: {why}; nothing was changed"),
                ),
            };
            self.fail_op(op, failure);
        }
    }
}

/// The counter requests of these messages: what is still here was not said.
pub(in super::super) fn unsent(outbox: &std::collections::VecDeque<Out>) -> HashSet<u32> {
    let of = |out: &Out| match out {
        Out::Message(Message { index, body: Body::CounterOp { .. } | Body::BarrierWait { .. }, .. }) => Some(*index),
        _ => None,
    };
    outbox.iter().filter_map(of).collect()
}
