//! What lives here: operations of workers, requests of peers, grants.

use super::barrier::{Arrival, Waiter};
use super::words::Who;
use super::{CounterStage, Entry, Home, What, spoken};
use crate::fabric::{AtomicOp, FabricKind, GrantAccess, LinkId};
use crate::memory::RemoteSlice;
use crate::op::{CounterAsk, CounterPath, Failure, FailureCode};
use crate::protocol::action::Post;
use crate::protocol::ids::OperationId;
use crate::protocol::node::Node;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use crate::time::Time;
use crate::wire::message::{Body, NameRef, Role};

/// Marks the tag of a counter's grant; the tags of landing slots have this bit zero, for a link has fewer of them.
const TAG: u64 = 1 << 31;

/// A request of a peer that is not answered yet.
pub(super) enum Serve {
    /// The directory's answer is awaited; then this is done.
    Claiming(Key, Tenant, Request),
    /// The grant of this place is awaited.
    Granting(u32, u64),
    /// The device is.
    Operating,
    /// The others are, at this barrier.
    Waiting(Key),
}

/// What a peer may ask for while the directory has not answered yet.
#[derive(Clone, Copy)]
pub(in super::super) enum Request {
    Open { wants_grant: bool },
    Wait { members: u32 },
}

/// A word that is, or is about to be, the peer's to operate on, until the link ends.
pub(super) enum WordGrant {
    Granting,
    Granted(RemoteSlice),
}

fn wrong_members(key: &Key, members: u32, asked: u32) -> Failure {
    let text = format!("{} is for {members} members, this caller says {asked}; all have to say the same", spoken(key));
    Failure::new(FailureCode::Invalid, text)
}

impl Node {
    /// A worker's request for what lives here.
    pub(super) fn counter_here(&mut self, now: Time, id: OperationId) {
        let Some((key, ask)) = self.counter_ask(id) else { return };
        if let Err(failure) = self.counter_tenant(id).map_or(Ok(()), |tenant| self.may_count(&key, tenant)) {
            return self.fail_op(id, failure);
        }
        match ask {
            CounterAsk::Wait { members } => {
                self.counter_stage(id, CounterStage::Arrived);
                if let Err(failure) = self.arrive(now, &key, Waiter::Local(id), members) {
                    self.fail_op(id, failure);
                }
            }
            CounterAsk::Open | CounterAsk::Operate { .. } => {
                let Some(identity) = self.counters.home(&key).map(|home| home.identity) else { return };
                self.counter_is_open(id, self.config.name.clone(), identity);
            }
        }
    }

    fn arrive(&mut self, now: Time, key: &Key, who: Waiter, members: u32) -> Result<(), Failure> {
        let no_home = self.no_home(key);
        let Some(barrier) = self.counters.barrier_mut(key) else { return Err(no_home) };
        match barrier.arrive(now, who, members) {
            Arrival::Waits => Ok(()),
            Arrival::WrongMembers(right) => Err(wrong_members(key, right, members)),
            Arrival::Completes(round, waiting) => {
                let last = waiting.len().saturating_sub(1);
                for (i, (waiter, since)) in waiting.into_iter().enumerate() {
                    let leader = i == last;
                    match waiter {
                        Waiter::Local(id) => {
                            let way = (CounterPath::Here, FabricKind::Local);
                            self.released(now, id, (round, leader), way, since);
                        }
                        Waiter::Peer(link, index) => {
                            if self.links.get_mut(&link).is_some_and(|l| l.counters.served(index)) {
                                self.send(link, Role::Counter, index, Body::BarrierReleased { round, leader });
                            }
                        }
                    }
                }
                Ok(())
            }
        }
    }

    pub(super) fn withdraw(&mut self, key: &Key, who: Waiter) {
        if let Some(barrier) = self.counters.barrier_mut(key) {
            barrier.withdraw(who);
        }
    }

    /// Another node has the name now: those who mean this one hear that it is lost.
    pub(super) fn counter_ended(&mut self, key: &Key) {
        let Some(Entry::Home(Home { what, .. })) = self.counters.by_key.remove(key) else { return };
        let lost = self.lost(key, &self.config.name);
        match what {
            What::Barrier(mut barrier) => {
                for (waiter, _) in barrier.take_waiting() {
                    match waiter {
                        Waiter::Local(id) => self.fail_op(id, lost.clone()),
                        Waiter::Peer(link, index) => self.refuse_counter(link, index, lost.clone()),
                    }
                }
            }
            // Its word stays as it is, for peers may be operating on it; no other counter ever lies there.
            What::Counter(place) => {
                let granted = self.links.iter().filter(|(_, l)| l.counters.grants.contains_key(&place));
                for link in granted.map(|(link, _)| *link).collect::<Vec<_>>() {
                    let [name] = self.number(link, [&Name::from(key.clone())]);
                    self.send(link, Role::Counter, 0, Body::CounterEnded { name });
                }
            }
        }
    }

    /// A peer's request: which counter it is about. `None` where there is nothing more to do.
    fn counter_request(
        &mut self,
        link: LinkId,
        index: u32,
        (name, tenant): (NameRef, NameRef),
    ) -> Option<(Key, Tenant)> {
        let limit = self.config.max_requests_per_link;
        let l = self.links.get_mut(&link)?;
        let Some(key) = l.numbers.names_in.look_up(name).cloned().map(Key::from) else {
            self.violation(link, &format!("it uses name {}.{}, which it never told", name.id, name.generation));
            return None;
        };
        if l.counters.serves.contains_key(&index) {
            self.violation(link, &format!("it uses counter request {index:#x} twice"));
            return None;
        }
        if l.counters.serves.len() >= limit {
            let text =
                format!("node {:?} answers at most {limit} counter requests of a peer at a time", self.config.name);
            let busy = Failure::new(FailureCode::Busy, text);
            self.send(link, Role::Counter, index, Body::ErrorStatus(busy));
            return None;
        }
        match self.asked_for(link, tenant) {
            Ok(Ok(tenant)) => Some((key, tenant)),
            Ok(Err(failure)) => {
                self.send(link, Role::Counter, index, Body::ErrorStatus(failure));
                None
            }
            Err(what) => {
                self.violation(link, &what);
                None
            }
        }
    }

    /// Ends a peer's request with a failure, where it still waits.
    pub(super) fn refuse_counter(&mut self, link: LinkId, index: u32, failure: Failure) {
        if let Some(l) = self.links.get_mut(&link)
            && l.counters.served(index)
        {
            self.send(link, Role::Counter, index, Body::ErrorStatus(failure));
        }
    }

    /// COUNTER_OPEN and BARRIER_WAIT.
    pub(in super::super) fn counter_asked(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        names: (NameRef, NameRef),
        what: Request,
    ) {
        let Some((key, tenant)) = self.counter_request(link, index, names) else { return };
        let is_barrier = matches!(what, Request::Wait { .. });
        match key.reserved_for() {
            Some((crate::tensor::ReservedFor::Counter, _)) if !is_barrier => {}
            Some((crate::tensor::ReservedFor::Barrier, _)) if is_barrier => {}
            _ => return self.violation(link, &format!("it asks for a counter or barrier by {key:?}, which is none")),
        }
        if matches!(what, Request::Wait { members: 0 }) {
            return self.violation(link, "it waits at a barrier for 0 members");
        }
        let Some(l) = self.links.get_mut(&link) else { return };
        l.counters.serves.insert(index, Serve::Claiming(key.clone(), tenant, what));
        match self.counters.by_key.get_mut(&key) {
            Some(Entry::Home(_)) => self.serve_claimed(now, link, index),
            Some(Entry::Claiming(claiming)) => claiming.peers.push((link, index)),
            None => {
                let no_home = self.no_home(&key);
                self.refuse_counter(link, index, no_home);
            }
        }
    }

    /// The name of a peer's request is this node's.
    pub(super) fn serve_claimed(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(Serve::Claiming(key, tenant, what)) = l.counters.serves.remove(&index) else { return };
        if let Err(failure) = self.may_count(&key, tenant) {
            return self.send(link, Role::Counter, index, Body::ErrorStatus(failure));
        }
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(Home { identity, what: home, .. }) = self.counters.home(&key) else { return };
        match (what, home) {
            (Request::Open { wants_grant }, What::Counter(place)) => {
                let (place, identity) = (*place, *identity);
                self.open_word(link, index, place, identity, wants_grant);
            }
            (Request::Wait { members }, What::Barrier(_)) => {
                l.counters.serves.insert(index, Serve::Waiting(key.clone()));
                if let Err(failure) = self.arrive(now, &key, Waiter::Peer(link, index), members) {
                    self.refuse_counter(link, index, failure);
                }
            }
            // A name says which of the two it is.
            _ => {}
        }
    }

    fn open_word(&mut self, link: LinkId, index: u32, place: u32, identity: u64, wants_grant: bool) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let word = match self.counters.words.word(place).filter(|_| wants_grant && l.limits.atomics) {
            None => None,
            Some(range) => match l.counters.grants.get(&place) {
                Some(WordGrant::Granted(remote)) => Some(*remote),
                Some(WordGrant::Granting) => {
                    l.counters.serves.insert(index, Serve::Granting(place, identity));
                    return;
                }
                None => {
                    l.counters.grants.insert(place, WordGrant::Granting);
                    l.counters.serves.insert(index, Serve::Granting(place, identity));
                    let (access, tag) = (GrantAccess::Atomic, TAG | u64::from(place));
                    self.actions.push(Post::Grant { link, range, access, tag });
                    return;
                }
            },
        };
        self.send(link, Role::Counter, index, Body::CounterOpened { identity, word });
    }

    /// A grant is in force: whether it is a counter's, by its tag. Those who wait for it are answered.
    pub(in super::super) fn word_granted(&mut self, link: LinkId, tag: u64, remote: RemoteSlice) -> bool {
        // The bit means something else in tags of landing slots only beyond the number of slots that a link can have.
        if tag & TAG == 0 || tag >> 32 != 0 {
            return false;
        }
        #[allow(clippy::cast_possible_truncation)]
        let place = (tag & !TAG) as u32;
        let Some(l) = self.links.get_mut(&link) else { return true };
        l.counters.grants.insert(place, WordGrant::Granted(remote));
        let waits = |serve: &Serve| match serve {
            Serve::Granting(p, identity) if *p == place => Some(*identity),
            _ => None,
        };
        let mut waiting: Vec<(u32, u64)> =
            l.counters.serves.iter().filter_map(|(index, serve)| Some((*index, waits(serve)?))).collect();
        waiting.sort_unstable();
        for (index, identity) in waiting {
            if let Some(l) = self.links.get_mut(&link) {
                l.counters.serves.remove(&index);
            }
            self.send(link, Role::Counter, index, Body::CounterOpened { identity, word: Some(remote) });
        }
        true
    }

    /// COUNTER_OP.
    pub(in super::super) fn counter_op(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        names: (NameRef, NameRef),
        identity: u64,
        op: AtomicOp,
    ) {
        let Some((key, tenant)) = self.counter_request(link, index, names) else { return };
        if let Err(failure) = self.may_count(&key, tenant) {
            return self.send(link, Role::Counter, index, Body::ErrorStatus(failure));
        }
        let found = self.counters.home(&key).filter(|home| home.identity == identity).map(|home| &home.what);
        let Some(What::Counter(place)) = found else {
            let lost = self.lost(&key, &self.config.name);
            return self.send(link, Role::Counter, index, Body::ErrorStatus(lost));
        };
        let place = *place;
        if let Some(l) = self.links.get_mut(&link) {
            l.counters.serves.insert(index, Serve::Operating);
        }
        // `operated` answers.
        let _ = self.operate_word(now, Who::Peer(link, index), place, op);
    }

    /// CANCEL: it waits at a barrier no more. Behind the release, if that was faster.
    pub(in super::super) fn cancel_wait(&mut self, link: LinkId, index: u32) {
        let Some(l) = self.links.get_mut(&link) else { return };
        match l.counters.serves.get(&index) {
            Some(Serve::Operating | Serve::Granting(..)) => {
                let what = format!("it cancels counter request {index:#x}, which is no wait");
                return self.violation(link, &what);
            }
            None => {}
            Some(Serve::Waiting(_) | Serve::Claiming(..)) => {
                if let Some(serve) = l.counters.serves.remove(&index) {
                    self.serve_gone(link, index, &serve);
                }
            }
        }
        self.send(link, Role::Counter, index, Body::Cancelled);
    }

    pub(super) fn serve_gone(&mut self, link: LinkId, index: u32, serve: &Serve) {
        match serve {
            Serve::Waiting(key) => self.withdraw(key, Waiter::Peer(link, index)),
            Serve::Claiming(key, _, _) => {
                if let Some(Entry::Claiming(claiming)) = self.counters.by_key.get_mut(key) {
                    claiming.peers.retain(|peer| *peer != (link, index));
                }
            }
            Serve::Granting(..) | Serve::Operating => {}
        }
    }
}
