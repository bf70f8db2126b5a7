//! Counters, barriers and rosters: events of workers, peers and devices go to `protocol/counters`, and their effects are carried
//! out.

use super::Node;
use super::flows::Counting;
use crate::fabric::{AtomicOp, FabricKind, LinkId, WorkId};
use crate::memory::LocalSlice;
use crate::op::{Answer, CounterAsk, CounterCommand, CounterReport, Failure, FailureCode, OpId, RosterAsk};
use crate::protocol::counters::{Asked, AskedFor, Counters, Effect, Outcome, Request, Route};
use crate::protocol::directory::DirectoryRequest;
use crate::protocol::ids::{OperationId, SessionId};
use crate::protocol::links::Out;
use crate::protocol::sessions::{CounterOp, Op, OpKind};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use crate::time::Time;
use crate::wire::message::{Body, Message, NameRef, Role};
use hashbrown::HashSet;
use std::collections::VecDeque;

/// Returns the indices of the COUNTER_OP and BARRIER_WAIT messages that were not sent.
pub(super) fn unsent(outbox: &VecDeque<Out>) -> HashSet<u32> {
    let of = |out: &Out| match out {
        Out::Message(Message { index, body: Body::CounterOp { .. } | Body::BarrierWait { .. }, .. }) => Some(*index),
        _ => None,
    };
    outbox.iter().filter_map(of).collect()
}

impl Node {
    /// Puts the words of counters into this registered memory, because the device of a fabric of this kind operates on
    /// them for peers. The memory has [`COUNTER_WORDS_BYTES`](crate::protocol::COUNTER_WORDS_BYTES) bytes and is all
    /// zero. Must be called before the first event. Otherwise the node itself holds the values, and peers send
    /// messages.
    pub fn use_words(&mut self, words: LocalSlice, kind: FabricKind) {
        self.counters.use_words(words, kind);
    }

    /// Handles an operation on a peer's word that could not be posted: the device no longer reaches the peer, but the
    /// link does. The operation goes to the counter's home by message.
    pub(crate) fn atomic_refused(&mut self, link: LinkId, work: WorkId) {
        counting!(self).atomic_refused(link, work)
    }

    /// Handles the refusal of [`FabricAction::LocalAtomic`](crate::protocol::FabricAction::LocalAtomic) by the device.
    pub fn local_atomic_refused(&mut self, work: WorkId, why: &str) {
        counting!(self).local_atomic_refused(work, why)
    }
}

impl Counting<'_> {
    /// Forgets where an operation's key or target is, because that node cannot be reached. Later it may be elsewhere.
    pub(super) fn forget_node_of(&mut self, id: OperationId) {
        let Some(op) = self.sessions.op(id) else { return };
        if op.key.reserved_for().is_some() {
            return self.counters.forget_home_of(&op.key);
        }
        match op.target() {
            Some(to) => {
                let (session, to) = (op.session, to.clone());
                memory!(self).forget_node_of_worker(session, &to);
            }
            None => drop(self.keys.forget_location(&op.key)),
        }
    }

    /// Handles a worker's request about a counter or a barrier.
    pub(super) fn counter(&mut self, now: Time, session: SessionId, op: OpId, command: CounterCommand) {
        let CounterCommand { name, mut ask, timeout } = command;
        if let Some(failure) = access!(self).is_busy(session) {
            return replies!(self).refuse(session, op, failure);
        }
        let key = match &ask {
            CounterAsk::Wait { .. } => Key::of_barrier(&name),
            CounterAsk::Roster(_) => Key::of_roster(&name),
            CounterAsk::Open | CounterAsk::Operate { .. } => Key::of_counter(&name),
        };
        let key = match key {
            Ok(key) if let Err(failure) = access!(self).may_push(session, &key, None) => {
                return replies!(self).refuse(session, op, failure);
            }
            Ok(_) if ask == (CounterAsk::Wait { members: 0 }) => {
                let text = format!("barrier {name:?} was asked for 0 members; it needs at least 1");
                return replies!(self).refuse(session, op, Failure::new(FailureCode::Invalid, text));
            }
            Ok(key) => key,
            Err(e) => return replies!(self).refuse(session, op, Failure::new(FailureCode::Invalid, e.to_string())),
        };
        let Some(tenant) = self.sessions.tenant_of(session) else { return };
        if matches!(ask, CounterAsk::Roster(RosterAsk::Recite { .. })) {
            let text = format!("state {name:?}: nodes recite commits, and workers make them");
            return replies!(self).refuse(session, op, Failure::new(FailureCode::Invalid, text));
        }
        if let CounterAsk::Roster(RosterAsk::Commit(commit)) = &mut ask {
            commit.worker = self.sessions.get(session).map(|session| session.name().clone());
        }
        let of = (key.clone(), tenant);
        let kind = OpKind::Counter(CounterOp);
        let id =
            self.sessions.begin(Op { session, id: op, key, since: now, deadline: now + timeout, require: None, kind });
        self.count(now, |counters| counters.begin(now, id, of, ask));
    }

    /// Hands an event to the counters and carries out its effects.
    pub(super) fn count<R>(&mut self, now: Time, event: impl FnOnce(&mut Counters) -> R) -> R {
        let result = event(self.counters);
        for effect in self.counters.take_effects() {
            self.do_counted(now, effect);
        }
        result
    }

    fn do_counted(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::Do(action) => self.actions.push(action),
            Effect::Connect(id, node) => {
                if let Some(link) = sending!(self).connect_for(id, &node) {
                    self.count(now, |counters| counters.connected(now, id, link));
                }
            }
            Effect::Reach(node) => {
                if let Some(link) = self.links.reach(&node, self.actions) {
                    self.count(now, |counters| counters.reached(link));
                }
            }
            Effect::Send(link, index, body) => sending!(self).send(link, Role::Counter, index, body),
            Effect::Ask(link, index, asked) => self.ask_home(link, index, asked),
            Effect::Locate(tenant, worker) => {
                let tenant = self.config.tenants.name(tenant);
                self.actions.ask_directory(DirectoryRequest::ResolveWorker { worker, tenant });
            }
            Effect::TellEnded(link, key) => {
                let [name] = sending!(self).number(link, [&Name::from(key)]);
                sending!(self).send(link, Role::Counter, 0, Body::CounterEnded { name });
            }
            Effect::Violation(link, what) => sending!(self).violation(link, &what),
            // The counters have given the operation up already, and nothing else waits for it: so this needs nothing of what ends others.
            Effect::Failed(id, failure) => {
                if let Some(Op { session, id: op, .. }) = self.sessions.finish(id) {
                    replies!(self).refuse(session, op, failure);
                }
            }
            Effect::Ended(id, outcome) => self.counted(now, id, outcome),
        }
    }

    fn ask_home(&mut self, link: LinkId, index: u32, asked: Asked) {
        let (key, tenant) = (Name::from(asked.key), self.config.tenants.name(asked.tenant));
        let [name, tenant] = sending!(self).number(link, [&key, &tenant]);
        let body = match asked.what {
            AskedFor::Open { wants_grant } => Body::CounterOpen { name, tenant, wants_grant },
            AskedFor::Wait { members } => Body::BarrierWait { name, tenant, members },
            AskedFor::Operate { identity, op } => Body::CounterOp { name, tenant, identity, op },
            AskedFor::Roster(ask) => Body::RosterAsk { name, tenant, ask },
        };
        sending!(self).send(link, Role::Counter, index, body);
    }

    /// Ends an operation that was carried out, and answers its worker.
    fn counted(&mut self, now: Time, id: OperationId, outcome: Outcome) {
        let Some(Op { session, id: op, since, .. }) = self.sessions.finish(id) else { return };
        let report = |Route { path, fabric, posted }| CounterReport {
            path,
            fabric,
            queued: posted.since(since),
            in_flight: now.since(posted),
        };
        let answer = match outcome {
            Outcome::Opened(home, identity) => Answer::CounterOpened { home, identity },
            Outcome::Counted(old, way) => {
                self.meters.counted_by(way.path);
                Answer::Counted { old, report: report(way) }
            }
            Outcome::Released(round, leader, way) => {
                self.meters.released();
                Answer::Released { round, leader, report: report(way) }
            }
            Outcome::Roster(answer) => Answer::Roster(answer),
        };
        self.actions.answer(session, op, answer);
    }

    /// Checks a peer's request. Returns the counter's key and the tenant that asks for it. `None` if the request is
    /// already answered, or was a violation.
    fn counter_request(
        &mut self,
        link: LinkId,
        index: u32,
        (name, tenant): (NameRef, NameRef),
    ) -> Option<(Key, Tenant)> {
        let asked = match self.links.look_up(link, name).cloned().map(Key::from) {
            Err(what) => Err(what),
            Ok(key) => match self.counters.may_ask(link, index) {
                Ok(Ok(())) => access!(self).asked_for(link, tenant).map(|asked| asked.map(|tenant| (key, tenant))),
                Ok(Err(busy)) => Ok(Err(busy)),
                Err(what) => Err(what),
            },
        };
        match asked {
            Ok(Ok(asked)) => return Some(asked),
            Ok(Err(failure)) => sending!(self).send(link, Role::Counter, index, Body::ErrorStatus(failure)),
            Err(what) => sending!(self).violation(link, &what),
        }
        None
    }

    /// Handles the messages COUNTER_OPEN, BARRIER_WAIT and ROSTER_ASK.
    pub(super) fn counter_asked(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        names: (NameRef, NameRef),
        what: Request,
    ) {
        if what.is_recital() {
            return self.recited(now, link, names, what);
        }
        if let Some(of) = self.counter_request(link, index, names) {
            self.count(now, |counters| counters.asked(now, link, index, of, what));
        }
    }

    /// Handles what a peer recites in a ROSTER_ASK. It has no answer.
    fn recited(&mut self, now: Time, link: LinkId, (name, tenant): (NameRef, NameRef), what: Request) {
        let asked = match self.links.look_up(link, name).cloned().map(Key::from) {
            Err(what) => Err(what),
            Ok(key) => access!(self).asked_for(link, tenant).map(|asked| asked.map(|tenant| (key, tenant))),
        };
        match (asked, what) {
            (Ok(Ok(of)), Request::Roster(ask)) => self.count(now, |counters| counters.recited(now, link, of, ask)),
            // It is of a tenant for which the peer does not vouch.
            (Ok(_), _) => {}
            (Err(what), _) => sending!(self).violation(link, &what),
        }
    }

    /// Handles the message COUNTER_OP.
    pub(super) fn counter_op(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        names: (NameRef, NameRef),
        what: (u64, AtomicOp),
    ) {
        if let Some(of) = self.counter_request(link, index, names) {
            self.count(now, |counters| counters.asked_to_operate(now, link, index, of, what));
        }
    }

    /// Handles the message COUNTER_ENDED.
    pub(super) fn counter_ended_there(&mut self, now: Time, link: LinkId, name: NameRef) {
        match self.links.look_up(link, name).cloned().map(Key::from) {
            Ok(key) => self.count(now, |counters| counters.ended_there(now, link, &key)),
            Err(what) => sending!(self).violation(link, &what),
        }
    }

    /// Handles an operation on a peer's word that could not be posted: the device no longer reaches the peer, but the
    /// link does. The operation goes to the counter's home by message.
    fn atomic_refused(&mut self, link: LinkId, work: WorkId) {
        self.count(self.common.latest, |counters| counters.atomic_refused(link, work));
    }

    /// Handles the refusal of [`FabricAction::LocalAtomic`](crate::protocol::FabricAction::LocalAtomic) by the device.
    fn local_atomic_refused(&mut self, work: WorkId, why: &str) {
        self.count(self.common.latest, |counters| counters.local_atomic_refused(work, why));
    }
}
