//! Named counters and barriers of the whole job.
//!
//! Each lives at its *home*: the node of the worker that first named it. The directory holds its name, in a namespace of its own,
//! with the home's node as the owner: whoever claims it first is the home, and whoever is refused is told the home. It stays for
//! as long as that sidecar lives, whoever leaves. A later one of the same name is another one, with another *identity*; what is
//! meant for the earlier one fails.
//!
//! # Layout
//! - `words`: the values of the counters that live here, and who may change them.
//! - `barrier`: who has arrived, as values.
//! - `home`: what lives here: operations of workers, requests of peers, grants.
//! - `away`: what lives elsewhere: requests to peers, and operations on their words.

mod away;
mod barrier;
mod home;
mod words;

use super::worker::CounterStage;
use super::worker::{Op, OpKind};
use crate::fabric::{AtomicOp, FabricKind, LinkId};
use crate::memory::LocalSlice;
use crate::op::{CounterAsk, CounterCommand, CounterPath, CounterReport, Failure, FailureCode, Reply};
use crate::protocol::action::HostAction;
use crate::protocol::control::{ClaimRefused, Control};
use crate::protocol::ids::OperationId;
use crate::protocol::ids::SessionId;
use crate::protocol::node::Node;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name, ReservedFor};
use crate::time::Time;
pub(super) use away::{LinkCounters, unsent};
use barrier::{Barrier, Waiter};
use hashbrown::HashMap;
pub(super) use home::Request;
use std::time::Duration;
use words::Words;

/// The most counters and barriers that live at one node, over the whole life of its sidecar.
pub const COUNTERS_PER_NODE: u32 = 4096;

/// The most of them that one tenant's workers have made: some are left to others.
const COUNTERS_PER_TENANT: u32 = COUNTERS_PER_NODE / 4 * 3;

/// Length of the registered memory that [`Node::use_words`] takes, in bytes.
pub const COUNTER_WORDS_BYTES: u64 = COUNTERS_PER_NODE as u64 * WORD_BYTES;

const WORD_BYTES: u64 = 8;

/// The most names that the directory is being asked for at a time.
const MAX_CLAIMS: usize = 4096;

/// The most homes elsewhere that are remembered; then they are asked for again.
const MAX_HOMES: usize = 1 << 16;

/// The counters of a node.
#[derive(Default)]
pub(super) struct Counters {
    by_key: HashMap<Key, Entry>,
    /// Where others live, as the directory said.
    homes: HashMap<Key, Name>,
    words: Words,
    /// How many live or lived here: a place is used once.
    made: u32,
    /// By tenant.
    made_for: HashMap<Tenant, u32>,
    claims: usize,
}

enum Entry {
    Claiming(Claiming),
    Home(Home),
}

/// Who waits for the directory's answer.
#[derive(Default)]
struct Claiming {
    /// For whom it is asked.
    tenant: Option<Tenant>,
    ops: Vec<OperationId>,
    /// Requests of peers, who heard of the answer before this node did.
    peers: Vec<(LinkId, u32)>,
}

/// One that lives here.
struct Home {
    identity: u64,
    /// Whose it is: workers of others may not have to do with it.
    tenant: Tenant,
    what: What,
}

enum What {
    /// Its place among the words.
    Counter(u32),
    Barrier(Barrier),
}

/// How people call it.
fn spoken(key: &Key) -> String {
    match key.reserved_for() {
        Some((ReservedFor::Counter, name)) => format!("counter {name:?}"),
        Some((ReservedFor::Barrier, name)) => format!("barrier {name:?}"),
        None => format!("key {key:?}"),
    }
}

/// Whether an operation changes its word.
fn changes(ask: &CounterAsk) -> bool {
    !matches!(ask, CounterAsk::Open | CounterAsk::Operate { op: AtomicOp::Load, .. })
}

impl Node {
    /// From here on the words of counters lie in this memory, of [`COUNTER_WORDS_BYTES`] and all zero, because the device of a
    /// fabric of that kind operates on them for peers. To be called before the first event. Without it the values lie in the node
    /// itself, and peers send messages.
    pub fn use_words(&mut self, words: LocalSlice, kind: FabricKind) {
        self.counters.words.lie_in(words, kind);
    }

    /// A worker's request.
    pub(super) fn counter(&mut self, now: Time, session: SessionId, command: CounterCommand) {
        let CounterCommand { op, name, ask, timeout } = command;
        if let Some(failure) = self.is_busy(session) {
            return self.refuse(session, op, failure);
        }
        let key = match &ask {
            CounterAsk::Wait { .. } => Key::of_barrier(&name),
            CounterAsk::Open | CounterAsk::Operate { .. } => Key::of_counter(&name),
        };
        let key = match key {
            Ok(key) if let Err(failure) = self.may_push(session, &key, None) => {
                return self.refuse(session, op, failure);
            }
            Ok(_) if ask == (CounterAsk::Wait { members: 0 }) => {
                let text = format!("barrier {name:?} was asked for 0 members; it needs at least 1");
                return self.refuse(session, op, Failure::new(FailureCode::Invalid, text));
            }
            Ok(key) => key,
            Err(e) => return self.refuse(session, op, Failure::new(FailureCode::Invalid, e.to_string())),
        };
        let kind = OpKind::Counter { ask, stage: CounterStage::Claiming };
        let id = self.keep_op(Op { session, id: op, key, since: now, deadline: now + timeout, require: None, kind });
        self.find_counter(now, id);
    }

    /// For whom an operation is.
    fn counter_tenant(&self, id: OperationId) -> Option<Tenant> {
        self.sessions.get(&self.ops.get(id)?.session).map(|s| s.domain)
    }

    /// Whether a counter or barrier that lives here is of this tenant.
    fn may_count(&self, key: &Key, tenant: Tenant) -> Result<(), Failure> {
        match self.counters.home(key).map(|home| home.tenant) {
            Some(owner) if owner != tenant => Err(self.of_another_tenant(&spoken(key), owner, tenant)),
            _ => Ok(()),
        }
    }

    fn counter_stage(&mut self, id: OperationId, next: CounterStage) {
        if let Some(Op { kind: OpKind::Counter { stage, .. }, .. }) = self.ops.get_mut(id) {
            *stage = next;
        }
    }

    /// What an operation asks for, and of what.
    fn counter_ask(&self, id: OperationId) -> Option<(Key, CounterAsk)> {
        match self.ops.get(id) {
            Some(Op { key, kind: OpKind::Counter { ask, .. }, .. }) => Some((key.clone(), ask.clone())),
            _ => None,
        }
    }

    /// Goes on with an operation: here, at the known home, or with a claim.
    fn find_counter(&mut self, now: Time, id: OperationId) {
        let Some((key, ask)) = self.counter_ask(id) else { return };
        // Whoever operates on a counter has opened it: a lost one is not made anew by that.
        if let CounterAsk::Operate { home, identity, op } = ask {
            return match home == self.config.name {
                true => self.operate_here(now, id, &key, identity, op),
                false => self.counter_at(now, id, &home),
            };
        }
        match self.counters.by_key.get_mut(&key) {
            Some(Entry::Home(_)) => return self.counter_here(now, id),
            Some(Entry::Claiming(claiming)) => {
                claiming.ops.push(id);
                return self.counter_stage(id, CounterStage::Claiming);
            }
            None => {}
        }
        if let Some(home) = self.counters.homes.get(&key).cloned() {
            return self.counter_at(now, id, &home);
        }
        if self.counters.claims >= MAX_CLAIMS {
            let text =
                format!("the directory is being asked for {MAX_CLAIMS} counters and barriers already, the limit");
            return self.fail_op(id, Failure::new(FailureCode::Busy, text));
        }
        let Some(tenant) = self.counter_tenant(id) else { return };
        self.counters.claims += 1;
        let claiming = Claiming { tenant: Some(tenant), ops: vec![id], peers: Vec::new() };
        self.counters.by_key.insert(key.clone(), Entry::Claiming(claiming));
        self.counter_stage(id, CounterStage::Claiming);
        self.actions.push(HostAction::Control(Control::Claim {
            key,
            owner: self.config.name.clone(),
            tenant: self.config.tenants.name(tenant),
            resident: false,
            takeover: false,
        }));
    }

    /// The directory answered a claim.
    pub(super) fn counter_claimed(&mut self, now: Time, key: &Key, result: Result<(), ClaimRefused>) {
        match self.counters.by_key.get_mut(key) {
            Some(Entry::Claiming(claiming)) => {
                let claiming = std::mem::take(claiming);
                self.counters.claims -= 1;
                self.counters.by_key.remove(key);
                self.claim_answered(now, key, claiming, result);
            }
            // It was claimed again, of a new directory, where another node was faster.
            Some(Entry::Home(_)) if matches!(result, Err(ClaimRefused::Owned { .. } | ClaimRefused::Denied(_))) => {
                self.counter_ended(key);
            }
            Some(Entry::Home(_)) => {}
            None if result.is_ok() => self.unclaim_counter(key),
            None => {}
        }
    }

    fn unclaim_counter(&mut self, key: &Key) {
        self.actions.push(HostAction::Control(Control::Unclaim { key: key.clone() }));
    }

    /// Which limit keeps this tenant from one more.
    fn too_many_counters(&self, tenant: Option<Tenant>) -> Option<String> {
        let node = &self.config.name;
        if self.counters.made >= COUNTERS_PER_NODE {
            return Some(format!("{COUNTERS_PER_NODE} counters and barriers live at node {node:?} already, the limit"));
        }
        let tenant = tenant?;
        let own = self.counters.made_for.get(&tenant).copied().unwrap_or(0);
        (own >= COUNTERS_PER_TENANT).then(|| {
            let who = self.config.tenants.in_words(tenant);
            format!("{own} counters and barriers of {who} live at node {node:?} already, the limit for one tenant")
        })
    }

    fn claim_answered(&mut self, now: Time, key: &Key, claiming: Claiming, result: Result<(), ClaimRefused>) {
        let refused = match result {
            Ok(()) if claiming.ops.is_empty() || claiming.tenant.is_none() => {
                // All who wanted it have given up.
                self.unclaim_counter(key);
                None
            }
            Ok(()) if let Some(limit) = self.too_many_counters(claiming.tenant) => {
                self.unclaim_counter(key);
                Some(Failure::new(FailureCode::Busy, format!("{} was not made: {limit}", spoken(key))))
            }
            Ok(()) => {
                if let Some(tenant) = claiming.tenant {
                    self.counters.make(key, tenant, &self.config.name, self.config.incarnation);
                }
                for id in claiming.ops {
                    self.counter_here(now, id);
                }
                for (link, index) in claiming.peers {
                    self.serve_claimed(now, link, index);
                }
                return;
            }
            Err(ClaimRefused::Owned { node, .. }) => {
                if self.counters.homes.len() >= MAX_HOMES {
                    self.counters.homes.clear();
                }
                self.counters.homes.insert(key.clone(), node.clone());
                for id in claiming.ops {
                    self.counter_at(now, id, &node);
                }
                self.not_home(key, claiming.peers);
                return;
            }
            Err(ClaimRefused::Denied(why)) => Some(Failure::new(FailureCode::PermissionDenied, why)),
            Err(ClaimRefused::Full(why)) => {
                let text = format!("{} is not entered: {why}", spoken(key));
                Some(Failure::new(FailureCode::Busy, text))
            }
            Err(ClaimRefused::Unreachable(why)) => {
                let text = format!("the directory cannot be asked where {} lives: {why}", spoken(key));
                Some(Failure::new(FailureCode::DirectoryUnreachable, text))
            }
        };
        if let Some(failure) = refused {
            for id in claiming.ops {
                self.fail_op(id, failure.clone());
            }
        }
        self.not_home(key, claiming.peers);
    }

    fn not_home(&mut self, key: &Key, peers: Vec<(LinkId, u32)>) {
        for (link, index) in peers {
            self.refuse_counter(link, index, self.no_home(key));
        }
    }

    fn no_home(&self, key: &Key) -> Failure {
        Failure::new(FailureCode::NotOwner, format!("{} does not live at node {:?}", spoken(key), self.config.name))
    }

    fn lost(&self, key: &Key, home: &Name) -> Failure {
        let text = format!(
            "{} does not live at node {home:?} any more: that sidecar was restarted, or has lost the name to another node; open it \
             again, which may make a new one at 0",
            spoken(key)
        );
        Failure::new(FailureCode::CounterLost, text)
    }

    /// Everything that lives here has to be entered again: the directory is a new one.
    pub(super) fn claim_all_counters(&mut self) {
        let homes = self.counters.by_key.iter().filter_map(|(key, entry)| match entry {
            Entry::Home(home) => Some((key.clone(), home.tenant)),
            Entry::Claiming(_) => None,
        });
        let mut keys: Vec<(Key, Tenant)> = homes.collect();
        keys.sort_unstable();
        for (key, tenant) in keys {
            self.actions.push(HostAction::Control(Control::Claim {
                key,
                owner: self.config.name.clone(),
                tenant: self.config.tenants.name(tenant),
                resident: false,
                takeover: false,
            }));
        }
    }

    /// It lives at another node.
    fn counter_at(&mut self, now: Time, id: OperationId, home: &Name) {
        match self.connect_for(id, home) {
            Some(link) => self.call_home(now, id, link),
            None => self.counter_stage(id, CounterStage::Connecting(home.clone())),
        }
    }

    /// The link to the home is up.
    pub(super) fn counter_connected(&mut self, now: Time, id: OperationId, link: LinkId) {
        self.call_home(now, id, link);
    }

    /// A node cannot be reached: the directory may know another home by now.
    pub(super) fn forget_home_of(&mut self, key: &Key) {
        self.counters.homes.remove(key);
    }

    /// What an operation that is given up was waiting for forgets it.
    pub(super) fn detach_counter(&mut self, id: OperationId, key: &Key, stage: &CounterStage) {
        match stage {
            CounterStage::Claiming => {
                if let Some(Entry::Claiming(claiming)) = self.counters.by_key.get_mut(key) {
                    claiming.ops.retain(|op| *op != id);
                }
            }
            CounterStage::Connecting(_) => {}
            CounterStage::Called(link, call) => self.give_up_call(*link, *call),
            CounterStage::Running(running) => self.counters.words.forget(*running),
            CounterStage::Arrived => self.withdraw(key, Waiter::Local(id)),
        }
    }

    /// An operation's time is over: what it waited for.
    pub(super) fn counter_deadline(&self, op: &Op, ask: &CounterAsk, stage: &CounterStage, after: Duration) -> Failure {
        let what = spoken(&op.key);
        let (code, text) = match stage {
            CounterStage::Claiming => (
                FailureCode::DirectoryUnreachable,
                format!("the directory did not say within {after:?} where {what} lives"),
            ),
            CounterStage::Connecting(node) => (
                FailureCode::PeerUnreachable,
                format!("{what} lives at node {node:?}, to which no link came up within {after:?}"),
            ),
            CounterStage::Called(link, call) => {
                let l = self.links.get(link);
                let home = l.map_or("", |l| l.peer.name.as_str());
                let opening = l.and_then(|l| l.counters.is_opening(*call)).unwrap_or(false);
                match ask {
                    CounterAsk::Wait { members } => (
                        FailureCode::Deadline,
                        format!(
                            "not all {members} members arrived at {what} within {after:?}; this arrival is withdrawn, unless the \
                             last of them came at this moment"
                        ),
                    ),
                    ask if changes(ask) && !opening => (
                        FailureCode::OutcomeUnknown,
                        format!(
                            "node {home:?} did not say within {after:?} that {what} was changed: it may have been, or not"
                        ),
                    ),
                    _ => (FailureCode::Deadline, format!("node {home:?} did not answer for {what} within {after:?}")),
                }
            }
            CounterStage::Running(running) if self.counters.words.is_posted(*running) && changes(ask) => (
                FailureCode::OutcomeUnknown,
                format!("the device did not say within {after:?} that {what} was changed: it may have been, or not"),
            ),
            CounterStage::Running(_) => (
                FailureCode::Deadline,
                format!("the device did not come to {what} within {after:?}; it was not changed"),
            ),
            CounterStage::Arrived => {
                let arrived = self.counters.barrier(&op.key).map_or(0, Barrier::arrived);
                let CounterAsk::Wait { members } = ask else {
                    return Failure::new(FailureCode::Deadline, format!("{what}: {after:?} went by"));
                };
                (
                    FailureCode::Deadline,
                    format!(
                        "{arrived} of {members} members arrived at {what} within {after:?}; this arrival is withdrawn"
                    ),
                )
            }
        };
        Failure::new(code, text)
    }

    /// Ends an operation on a counter with what the counter held before.
    fn counted(&mut self, now: Time, id: OperationId, old: u64, way: (CounterPath, FabricKind), posted: Time) {
        if let Some(op) = self.finish_op(id) {
            let report = counter_report(&op, way, posted, now);
            self.meters.counted_by(way.0);
            self.actions
                .push(HostAction::Reply { session: op.session, reply: Reply::Counted { op: op.id, old, report } });
        }
    }

    fn counter_is_open(&mut self, id: OperationId, home: Name, identity: u64) {
        if let Some(op) = self.finish_op(id) {
            let reply = Reply::CounterOpened { op: op.id, home, identity };
            self.actions.push(HostAction::Reply { session: op.session, reply });
        }
    }

    fn released(
        &mut self,
        now: Time,
        id: OperationId,
        round: (u64, bool),
        way: (CounterPath, FabricKind),
        posted: Time,
    ) {
        if let Some(op) = self.finish_op(id) {
            let report = counter_report(&op, way, posted, now);
            self.meters.released();
            let reply = Reply::Released { op: op.id, round: round.0, leader: round.1, report };
            self.actions.push(HostAction::Reply { session: op.session, reply });
        }
    }

    /// How many counters and barriers live here.
    #[must_use]
    /// How many have arrived at a barrier that lives here.
    pub(super) fn barrier_arrived(&self, key: &Key) -> usize {
        self.counters.barrier(key).map_or(0, Barrier::arrived)
    }

    pub(super) fn counters_here(&self) -> u64 {
        self.counters.by_key.values().filter(|entry| matches!(entry, Entry::Home(_))).count() as u64
    }

    /// The places and values of the counters that live here, where the values do not lie in registered memory; for tests.
    #[cfg(test)]
    pub(crate) fn counter_values(&self) -> Vec<(Key, u32, u64)> {
        let of = |(key, entry): (&Key, &Entry)| match entry {
            Entry::Home(Home { what: What::Counter(place), .. }) => {
                Some((key.clone(), *place, self.counters.words.value(*place)))
            }
            _ => None,
        };
        self.counters.by_key.iter().filter_map(of).collect()
    }

    /// What is under way: for tests, when nothing should be.
    #[cfg(test)]
    pub(super) fn counters_busy(&self) -> usize {
        let waiting = |entry: &Entry| match entry {
            Entry::Claiming(_) => 1,
            Entry::Home(Home { what: What::Barrier(barrier), .. }) => barrier.arrived(),
            Entry::Home(_) => 0,
        };
        let links: usize = self.links.values().map(|l| l.counters.busy()).sum();
        links
            + self.counters.claims
            + self.counters.words.busy()
            + self.counters.by_key.values().map(waiting).sum::<usize>()
    }
}

fn counter_report(op: &Op, (path, fabric): (CounterPath, FabricKind), posted: Time, now: Time) -> CounterReport {
    CounterReport { path, fabric, queued: posted.since(op.since), flew: now.since(posted) }
}

impl Counters {
    fn make(&mut self, key: &Key, tenant: Tenant, node: &Name, incarnation: u64) {
        let place = self.made;
        self.made += 1;
        *self.made_for.entry(tenant).or_default() += 1;
        let what = match key.reserved_for() {
            Some((ReservedFor::Barrier, _)) => What::Barrier(Barrier::default()),
            _ => What::Counter(place),
        };
        let home = Home { identity: identity(node, incarnation, place), tenant, what };
        self.by_key.insert(key.clone(), Entry::Home(home));
    }

    fn home(&self, key: &Key) -> Option<&Home> {
        match self.by_key.get(key) {
            Some(Entry::Home(home)) => Some(home),
            _ => None,
        }
    }

    fn barrier(&self, key: &Key) -> Option<&Barrier> {
        match self.home(key) {
            Some(Home { what: What::Barrier(barrier), .. }) => Some(barrier),
            _ => None,
        }
    }

    fn barrier_mut(&mut self, key: &Key) -> Option<&mut Barrier> {
        match self.by_key.get_mut(key) {
            Some(Entry::Home(Home { what: What::Barrier(barrier), .. })) => Some(barrier),
            _ => None,
        }
    }
}

/// Another number for each that was ever made in the job, but for chance: FNV-1a of what makes it one.
fn identity(node: &Name, incarnation: u64, place: u32) -> u64 {
    let numbers = incarnation.to_le_bytes().into_iter().chain(place.to_le_bytes());
    let bytes = node.as_str().bytes().chain(numbers);
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}
