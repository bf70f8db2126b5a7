//! Counters and barriers that live here: operations of workers, requests of peers, grants.

use super::barrier::{Arrival, Waiter};
use super::claims::{Entry, Home, What};
use super::op::{Outcome, Route, Stage};
use super::roster::{Answered, Asker, MAX_COMMITS};
use super::words::Who;
use super::{Counters, Effect, spoken};
use crate::fabric::{AtomicOp, FabricKind, GrantAccess, LinkId};
use crate::memory::RemoteSlice;
use crate::op::{CounterAsk, CounterPath, Failure, FailureCode, RosterAsk};
use crate::protocol::action::Post;
use crate::protocol::ids::OperationId;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name, ReservedFor};
use crate::time::Time;
use crate::wire::message::Body;

/// The bit that marks the tag of a counter's grant. It is zero in the tags of landing slots, because a link has fewer
/// slots.
const TAG: u64 = 1 << 31;

/// A request of a peer that is not answered yet.
pub(super) enum Serve {
    /// Waits for the directory's answer to the claim of the key. Then the request is served.
    Claiming(Key, Tenant, Request),
    /// Waits for the grant of the word at this place. Also holds the counter's identity.
    Granting(u32, u64),
    /// Waits for the device, which operates on the word.
    Operating,
    /// Waits at this barrier for the other members, or at this roster.
    Waiting(Key),
}

/// A request that a peer may make while the directory's answer to the claim is still open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Open { wants_grant: bool },
    Wait { members: u32 },
    Roster(RosterAsk),
}

/// A word that is granted, or about to be granted, to the peer until the link ends.
pub(super) enum WordGrant {
    Granting,
    Granted(RemoteSlice),
}

fn wrong_members(key: &Key, members: u32, asked: u32) -> Failure {
    let text = format!("{} is for {members} members, this caller says {asked}; all have to say the same", spoken(key));
    Failure::new(FailureCode::Invalid, text)
}

impl Counters {
    /// Handles a worker's request to open a counter, or to wait at a barrier, that lives here.
    pub(super) fn here(&mut self, now: Time, id: OperationId) {
        let Some(op) = self.ops.get(&id) else { return };
        let (key, tenant) = (op.key.clone(), op.tenant);
        let ask = op.ask.clone();
        if let Err(failure) = self.may_count(&key, tenant) {
            return self.fail(id, failure);
        }
        match ask {
            CounterAsk::Wait { members } => {
                self.set_stage(id, Stage::Arrived);
                if let Err(failure) = self.arrive(now, &key, Waiter::Local(id), members) {
                    self.fail(id, failure);
                }
            }
            CounterAsk::Roster(ask) => {
                self.set_stage(id, Stage::Arrived);
                let who = Asker { waiter: Waiter::Local(id), node: self.name.clone(), now };
                // It may have been forgotten since it was claimed for this question and others.
                match self.roster(&key) {
                    Some(_) => self.ask_roster((&key, tenant), who, ask),
                    None => self.find(now, id),
                }
            }
            CounterAsk::Open | CounterAsk::Operate { .. } => {
                let Some(identity) = self.home(&key).map(|home| home.identity) else { return };
                self.end(id, Outcome::Opened(self.name.clone(), identity));
            }
        }
    }

    /// Handles a worker's operation on a counter that lives, or lived, here.
    pub(super) fn operate_here(&mut self, now: Time, id: OperationId, identity: u64, op: AtomicOp) {
        let Some((key, tenant)) = self.ops.get(&id).map(|op| (op.key.clone(), op.tenant)) else { return };
        let Some(place) = self.place_of(&key, identity) else {
            return self.fail(id, Counters::lost(&key, &self.name));
        };
        if let Err(failure) = self.may_count(&key, tenant) {
            return self.fail(id, failure);
        }
        if let Some(running) = self.operate(now, Who::Local(id), place, op) {
            self.set_stage(id, Stage::Running(running));
        }
    }

    fn arrive(&mut self, now: Time, key: &Key, who: Waiter, members: u32) -> Result<(), Failure> {
        let no_home = self.no_home(key);
        let Some(barrier) = self.barrier_mut(key) else { return Err(no_home) };
        match barrier.arrive(now, who, members) {
            Arrival::Waits => Ok(()),
            Arrival::WrongMembers(right) => Err(wrong_members(key, right, members)),
            Arrival::Completes(round, waiting) => {
                let last = waiting.len().saturating_sub(1);
                for (i, (waiter, posted)) in waiting.into_iter().enumerate() {
                    let leader = i == last;
                    match waiter {
                        Waiter::Local(id) => {
                            let route = Route { path: CounterPath::Here, fabric: FabricKind::Local, posted };
                            self.end(id, Outcome::Released(round, leader, route));
                        }
                        Waiter::Peer(link, index) => {
                            self.answer(link, index, Body::BarrierReleased { round, leader });
                        }
                    }
                }
                Ok(())
            }
        }
    }

    /// Asks a roster that lives here, and answers all who have an answer by that.
    fn ask_roster(&mut self, (key, tenant): (&Key, Tenant), who: Asker, ask: RosterAsk) {
        let Some((_, name)) = key.reserved_for() else { return };
        if matches!(ask, RosterAsk::Commit(_))
            && let Err(failure) = self.may_commit(key, name, tenant)
        {
            return self.lose(vec![who.waiter], &failure);
        }
        let Some(Entry::Home(Home { what: What::Roster(roster), .. })) = self.by_key.get_mut(key) else { return };
        let answered = roster.ask(name, who, ask);
        let settles_at = roster.settles_at();
        self.wake(settles_at);
        self.answer_all(key, answered);
        self.forget_unused(key);
    }

    /// Handles the directory's answer about where a worker is.
    pub(crate) fn located(&mut self, tenant: Tenant, worker: &Name, node: Option<&Name>) {
        let of_tenant = |entry: &Entry| matches!(entry, Entry::Home(Home { what: What::Roster(_), tenant: of, .. }) if *of == tenant);
        let mut keys: Vec<Key> =
            self.by_key.iter().filter(|(_, entry)| of_tenant(entry)).map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        for key in keys {
            let Some((_, name)) = key.reserved_for() else { continue };
            let Some(Entry::Home(Home { what: What::Roster(roster), .. })) = self.by_key.get_mut(&key) else {
                continue;
            };
            let answered = roster.located(name, worker, node);
            self.answer_all(&key, answered);
        }
    }

    /// Hears what a node recites. What cannot be, or has no room, is lost: its version ends with the next one.
    pub(super) fn hear(&mut self, now: Time, (key, tenant): (&Key, Tenant), node: Name, ask: RosterAsk) {
        let Some((_, name)) = key.reserved_for() else { return };
        if self.may_count(key, tenant).and_then(|()| self.may_commit(key, name, tenant)).is_err() {
            return;
        }
        let Some(Entry::Home(Home { what: What::Roster(roster), .. })) = self.by_key.get_mut(key) else { return };
        let answered = roster.recite(name, now, node, ask);
        self.answer_all(key, answered);
    }

    /// Looks again at what waits at a roster that is settled by now.
    pub(super) fn settle(&mut self, now: Time, key: &Key) {
        let Some((_, name)) = key.reserved_for() else { return };
        let Some(Entry::Home(Home { what: What::Roster(roster), .. })) = self.by_key.get_mut(key) else { return };
        let answered = roster.settle(name, now);
        self.answer_all(key, answered);
        self.forget_unused(key);
    }

    /// Answers what a roster has decided, and asks the directory for the workers that it has to know of.
    fn answer_all(&mut self, key: &Key, answered: Vec<Answered>) {
        if let Some(Entry::Home(Home { what: What::Roster(roster), tenant, .. })) = self.by_key.get_mut(key) {
            let tenant = *tenant;
            self.effects.extend(roster.take_unasked().into_iter().map(|worker| Effect::Locate(tenant, worker)));
        }
        for Answered { waiter, result } in answered {
            match (waiter, result) {
                (Waiter::Local(id), Ok(answer)) => self.end(id, Outcome::Roster(answer)),
                (Waiter::Local(id), Err(failure)) => self.fail(id, failure),
                (Waiter::Peer(link, index), Ok(answer)) => self.answer(link, index, Body::RosterAnswer(answer)),
                (Waiter::Peer(link, index), Err(failure)) => self.refuse(link, index, failure),
            }
        }
    }

    /// Whether a worker of this tenant may commit. The error is that there is another roster too many, or that all rosters of this
    /// node, or those of its tenant, have as many commits as they may.
    fn may_commit(&mut self, key: &Key, name: &str, tenant: Tenant) -> Result<(), Failure> {
        self.make_roster(key, tenant)?;
        let (mut all, mut own) = (0, 0);
        for entry in self.by_key.values() {
            if let Entry::Home(Home { what: What::Roster(roster), tenant: of, .. }) = entry {
                all += roster.commits();
                own += if *of == tenant { roster.commits() } else { 0 };
            }
        }
        let text = format!(
            "the home of state {name:?} holds {all} commits of unfinished versions, the limit for all or for one tenant"
        );
        match all >= MAX_COMMITS || own >= MAX_COMMITS / 4 * 3 {
            true => Err(Failure::new(FailureCode::Busy, text)),
            false => Ok(()),
        }
    }

    pub(super) fn withdraw(&mut self, key: &Key, who: Waiter) {
        match self.by_key.get_mut(key) {
            Some(Entry::Home(Home { what: What::Barrier(barrier), .. })) => barrier.withdraw(who),
            Some(Entry::Home(Home { what: What::Roster(roster), .. })) => {
                roster.withdraw(who);
                self.forget_unused(key);
            }
            _ => {}
        }
    }

    /// Ends a counter or barrier whose name now belongs to another node. Its waiters, and the peers that hold a grant
    /// of its word, are told that it is lost.
    pub(super) fn ended(&mut self, now: Time, key: &Key) {
        let Some(Entry::Home(Home { what, .. })) = self.by_key.remove(key) else { return };
        let lost = Counters::lost(key, &self.name);
        match what {
            What::Barrier(mut barrier) => {
                self.lose(barrier.take_waiting().into_iter().map(|(waiter, _)| waiter).collect(), &lost);
            }
            What::Roster(mut roster) => {
                self.lose(roster.take_waiting(), &lost);
                self.effects.extend(self.links.keys().map(|link| Effect::TellEnded(*link, key.clone())));
                self.lost_here(now, key);
            }
            // The word stays as it is, because peers may still be operating on it. No other counter ever lies at this
            // place.
            What::Counter(place) => {
                let granted = self.links.iter().filter(|(_, l)| l.grants.contains_key(&place)).map(|(link, _)| *link);
                self.effects.extend(granted.map(|link| Effect::TellEnded(link, key.clone())));
            }
        }
    }

    fn lose(&mut self, waiting: Vec<Waiter>, lost: &Failure) {
        for waiter in waiting {
            match waiter {
                Waiter::Local(id) => self.fail(id, lost.clone()),
                Waiter::Peer(link, index) => self.refuse(link, index, lost.clone()),
            }
        }
    }

    /// Answers a request of a peer, if the request still waits.
    pub(super) fn answer(&mut self, link: LinkId, index: u32, body: Body) {
        if self.links.get_mut(&link).is_some_and(|l| l.serves.remove(&index).is_some()) {
            self.send(link, index, body);
        }
    }

    /// Fails a request of a peer, if the request still waits.
    pub(super) fn refuse(&mut self, link: LinkId, index: u32, failure: Failure) {
        self.answer(link, index, Body::ErrorStatus(failure));
    }

    /// Returns whether a peer may make a request with this index now. The outer error says how the peer broke the
    /// contract; the inner error is the answer to the request.
    pub(crate) fn may_ask(&self, link: LinkId, index: u32) -> Result<Result<(), Failure>, String> {
        let Some(l) = self.links.get(&link) else { return Err("its link is gone".to_owned()) };
        if l.serves.contains_key(&index) {
            return Err(format!("it uses counter request {index:#x} twice"));
        }
        if l.serves.len() >= self.requests_per_link {
            let (node, limit) = (&self.name, self.requests_per_link);
            let text = format!("node {node:?} answers at most {limit} counter requests of a peer at a time");
            return Ok(Err(Failure::new(FailureCode::Busy, text)));
        }
        Ok(Ok(()))
    }

    /// Handles the messages COUNTER_OPEN, BARRIER_WAIT and ROSTER_ASK of a peer that [may ask](Counters::may_ask).
    pub(crate) fn asked(&mut self, now: Time, link: LinkId, index: u32, (key, tenant): (Key, Tenant), what: Request) {
        let right = match what {
            Request::Open { .. } => ReservedFor::Counter,
            Request::Wait { .. } => ReservedFor::Barrier,
            Request::Roster(_) => ReservedFor::Roster,
        };
        if !key.reserved_for().is_some_and(|(found, _)| found == right) {
            return self.violation(link, format!("it asks for a {} by {key:?}, which is none", right.noun()));
        }
        if matches!(what, Request::Wait { members: 0 }) {
            return self.violation(link, "it waits at a barrier for 0 members".to_owned());
        }
        let Some(l) = self.links.get_mut(&link) else { return };
        l.serves.insert(index, Serve::Claiming(key.clone(), tenant, what));
        match self.by_key.get_mut(&key) {
            Some(Entry::Home(_)) => self.serve_claimed(now, link, index),
            Some(Entry::Claiming(claiming)) => claiming.peers.push((link, index)),
            None => self.refuse(link, index, self.no_home(&key)),
        }
    }

    /// Serves a request that waited for its claim: the name belongs to this node.
    pub(super) fn serve_claimed(&mut self, now: Time, link: LinkId, index: u32) {
        let serve = self.links.get_mut(&link).and_then(|l| l.serves.remove(&index));
        let Some(Serve::Claiming(key, tenant, what)) = serve else { return };
        if let Err(failure) = self.may_count(&key, tenant) {
            return self.send(link, index, Body::ErrorStatus(failure));
        }
        let Some(Home { identity, what: home, .. }) = self.home(&key) else {
            // It was forgotten after an earlier question.
            return self.send(link, index, Body::ErrorStatus(self.no_home(&key)));
        };
        match (what, home) {
            (Request::Open { wants_grant }, What::Counter(place)) => {
                let (place, identity) = (*place, *identity);
                self.open_word(link, index, place, identity, wants_grant);
            }
            (Request::Wait { members }, What::Barrier(_)) => {
                if let Some(l) = self.links.get_mut(&link) {
                    l.serves.insert(index, Serve::Waiting(key.clone()));
                }
                if let Err(failure) = self.arrive(now, &key, Waiter::Peer(link, index), members) {
                    self.refuse(link, index, failure);
                }
            }
            (Request::Roster(ask), What::Roster(_)) => {
                let Some(l) = self.links.get_mut(&link) else { return };
                l.serves.insert(index, Serve::Waiting(key.clone()));
                let who = Asker { waiter: Waiter::Peer(link, index), node: l.peer.name.clone(), now };
                self.ask_roster((&key, tenant), who, ask);
            }
            // The reserved key says what it names.
            _ => {}
        }
    }

    fn open_word(&mut self, link: LinkId, index: u32, place: u32, identity: u64, wants_grant: bool) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let word = match self.words.word(place).filter(|_| wants_grant && l.atomics) {
            None => None,
            Some(range) => match l.grants.get(&place) {
                Some(WordGrant::Granted(remote)) => Some(*remote),
                Some(WordGrant::Granting) => {
                    l.serves.insert(index, Serve::Granting(place, identity));
                    return;
                }
                None => {
                    l.grants.insert(place, WordGrant::Granting);
                    l.serves.insert(index, Serve::Granting(place, identity));
                    let (access, tag) = (GrantAccess::Atomic, TAG | u64::from(place));
                    return self.act(Post::Grant { link, range, access, tag });
                }
            },
        };
        self.send(link, index, Body::CounterOpened { identity, word });
    }

    /// Handles a grant that is now in force. Returns whether its tag is that of a counter's grant; if so, the requests
    /// that wait for the grant are answered.
    pub(crate) fn granted(&mut self, link: LinkId, tag: u64, remote: RemoteSlice) -> bool {
        // The tag of a landing slot would have this bit only beyond the number of slots that a link can have.
        if tag & TAG == 0 || tag >> 32 != 0 {
            return false;
        }
        #[allow(clippy::cast_possible_truncation)]
        let place = (tag & !TAG) as u32;
        let Some(l) = self.links.get_mut(&link) else { return true };
        l.grants.insert(place, WordGrant::Granted(remote));
        let waits = |(index, serve): (&u32, &Serve)| match serve {
            Serve::Granting(p, identity) if *p == place => Some((*index, *identity)),
            _ => None,
        };
        let mut waiting: Vec<(u32, u64)> = l.serves.iter().filter_map(waits).collect();
        waiting.sort_unstable();
        for (index, identity) in waiting {
            self.answer(link, index, Body::CounterOpened { identity, word: Some(remote) });
        }
        true
    }

    /// Handles the message COUNTER_OP of a peer that [may ask](Counters::may_ask).
    pub(crate) fn asked_to_operate(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        (key, tenant): (Key, Tenant),
        (identity, op): (u64, AtomicOp),
    ) {
        if let Err(failure) = self.may_count(&key, tenant) {
            return self.send(link, index, Body::ErrorStatus(failure));
        }
        let Some(place) = self.place_of(&key, identity) else {
            return self.send(link, index, Body::ErrorStatus(Counters::lost(&key, &self.name)));
        };
        if let Some(l) = self.links.get_mut(&link) {
            l.serves.insert(index, Serve::Operating);
        }
        // `operated` sends the answer.
        let _ = self.operate(now, Who::Peer(link, index), place, op);
    }

    /// Handles the message CANCEL: withdraws the request from its barrier. If the barrier was released before, the
    /// answer CANCELLED follows the release.
    pub(crate) fn cancel(&mut self, link: LinkId, index: u32) {
        let Some(l) = self.links.get_mut(&link) else { return };
        match l.serves.get(&index) {
            Some(Serve::Operating | Serve::Granting(..)) => {
                return self.violation(link, format!("it cancels counter request {index:#x}, which is no wait"));
            }
            None => {}
            Some(Serve::Waiting(_) | Serve::Claiming(..)) => {
                if let Some(serve) = l.serves.remove(&index) {
                    self.serve_gone(link, index, &serve);
                }
            }
        }
        self.send(link, index, Body::Cancelled);
    }

    pub(super) fn serve_gone(&mut self, link: LinkId, index: u32, serve: &Serve) {
        match serve {
            Serve::Waiting(key) => self.withdraw(key, Waiter::Peer(link, index)),
            Serve::Claiming(key, _, _) => {
                if let Some(Entry::Claiming(claiming)) = self.by_key.get_mut(key) {
                    claiming.peers.retain(|peer| *peer != (link, index));
                }
            }
            Serve::Granting(..) | Serve::Operating => {}
        }
    }
}
