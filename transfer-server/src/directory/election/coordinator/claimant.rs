//! What a host does to lead, and how long it may, where a coordinator says who does. No I/O and no clock.
//!
//! A host has a lease there. Its promise to lead is counted from before it has asked for the lease to be renewed, and is an eighth
//! shorter than the lease, so it ends before another host can have its place, also where the two clocks differ in rate.
//!
//! **A renewal alone promises nothing** in etcd: a member that led, and does not know that another one does, renews leases by itself. So
//! the promise is counted from before the last request that most members have agreed on, where that is earlier.
//!
//! **A record that is gone says nothing about its lease**: that may have been ended by hand, or by mistake. So who writes one where none was
//! grants nothing before the promise of who may have had it has ended.
//!
//! **A request without an answer may be done later.** After one that has written nodes, the host writes its record again: then that request
//! fails, and the answer says which nodes are there.

use super::outlook::{Held, Seen};
use super::record::Record;
use crate::directory::election::{Effect, Members};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// The most names that are written at once: etcd refuses more than 128 operations.
const MAX_BATCH: usize = 100;

/// The most entries that a host makes before it writes the number of the newest one: half of what the next one leaves out.
const UNWRITTEN_ENTRIES: u64 = 1 << 31;

/// How often a host that stands by looks who leads, unless its lease is short.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// What the coordinator is asked for. One request at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::directory) enum Request {
    /// For a lease.
    Grant { ttl: Duration },
    /// For the lease to last for its whole time again, and the record of this host's lead with it.
    Renew { lease: i64, leads: bool },
    /// For who leads, and who may.
    Look,
    /// For this host to be among those that may lead.
    Register { me: Record, lease: i64 },
    /// For the lead, if the record of who has it is as it was in this term; 0: there was none.
    Claim { me: Record, lease: i64, over: u64 },
    /// For changes of the nodes that the next host waits for, and of the newest entry's number.
    Write {
        term: u64,
        puts: Vec<Name>,
        deletes: Vec<Name>,
        newest: Option<u64>,
        /// The version of the members that stand there then. None: this is not all.
        completes: Option<u64>,
    },
    /// For the end of its own promise, or its heir's, who has this lease.
    Release { term: u64, heir: Option<(Record, i64)> },
    /// For the end of the lease, because the host ends.
    Revoke { lease: i64 },
}

/// What the coordinator has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::directory) enum Answer {
    Granted {
        lease: i64,
        ttl: Duration,
    },
    Renewed {
        ttl: Duration,
        /// Whether most members of the coordinator have agreed.
        is_agreed: bool,
    },
    Seen(Seen),
    Claimed {
        term: u64,
        nodes: Vec<Name>,
        newest: u64,
    },
    /// It is written, or released.
    Done,
    /// The record of who leads is not as it was.
    Outdated,
    /// The lease has ended.
    LeaseGone,
    /// There is no answer, or an error. It may have been done.
    Failed(String),
}

/// A lease at the coordinator.
#[derive(Debug, Clone, Copy)]
struct Lease {
    id: i64,
    ttl: Duration,
    /// The moment before the last request that has renewed it.
    renewed_at: Instant,
    /// The moment before the last request that most members of the coordinator have agreed on.
    agreed_at: Instant,
}

impl Lease {
    /// Before this it is no other host's.
    fn until(&self) -> Instant {
        self.renewed_at.min(self.agreed_at) + (self.ttl - self.ttl / 8)
    }
}

#[derive(Debug)]
enum Seat {
    StandsBy,
    Leads {
        term: u64,
        until: Instant,
        /// The nodes that stand there.
        nodes: BTreeSet<Name>,
        /// The version of the members that stands there.
        known: u64,
        /// What of that the directory was told.
        told: u64,
        newest: u64,
        /// A request to write has no answer, so `nodes` may be wrong.
        is_unsure: bool,
    },
}

/// Who comes next.
#[derive(Debug, Clone)]
enum Next {
    /// This host, or another one that is there.
    Heir(Option<Name>),
    /// The first host that claims the key. It waits as after the death of a host.
    AnyHost,
}

/// See the module.
#[derive(Debug)]
pub(in crate::directory) struct Claimant {
    me: Record,
    /// How long a lease is to last.
    ttl: Duration,
    lease: Option<Lease>,
    seat: Seat,
    /// The request under way, and when it was made.
    asked: Option<(Request, Instant)>,
    /// What was read last.
    seen: Seen,
    /// Whether nothing was tried since that was read.
    is_fresh: bool,
    looks_at: Instant,
    /// Nothing is asked before this, because the last request has failed.
    asks_at: Instant,
    /// It does not claim the key before this.
    rests_until: Instant,
    /// It grants nothing new before this, because another host may believe that it leads.
    grants_from: Instant,
    /// The term of its last claim that was answered; 0: none.
    claimed: u64,
    /// The nodes that stood there when it led last.
    left: BTreeSet<Name>,
    /// It leads, and is to give up; this host may lead before others.
    gives_up: Option<Option<Name>>,
    /// It has given up, and the coordinator does not know it yet. What was its term, and who comes next.
    released: Option<(u64, Next)>,
    ends: bool,
}

impl Claimant {
    pub(in crate::directory) fn new(now: Instant, me: Record, ttl: Duration) -> Claimant {
        Claimant {
            me,
            ttl,
            lease: None,
            seat: Seat::StandsBy,
            asked: None,
            seen: Seen::default(),
            is_fresh: false,
            looks_at: now,
            asks_at: now,
            rests_until: now,
            grants_from: now,
            claimed: 0,
            left: BTreeSet::new(),
            gives_up: None,
            released: None,
            ends: false,
        }
    }

    /// Returns who leads, as far as this host knows.
    pub(in crate::directory) fn leader(&self) -> Option<&Name> {
        let held = self.seen.held.as_ref()?;
        held.by.as_ref().ok().filter(|record| record.leads).map(|record| &record.node)
    }

    /// Returns the term of who leads, or comes next, that this host knows.
    pub(in crate::directory) fn term(&self) -> u64 {
        self.seen.held.as_ref().map_or(0, |held| held.term)
    }

    /// Returns the names of all hosts.
    pub(in crate::directory) fn hosts(&self) -> impl Iterator<Item = &Name> {
        self.seen.hosts.iter().map(|(host, _)| &host.node)
    }

    /// Gives up soon, if this host leads: so that this one leads at once, else another one.
    pub(in crate::directory) fn give_up(&mut self, heir: Option<Name>) {
        if matches!(self.seat, Seat::Leads { .. }) {
            self.gives_up = Some(heir);
        }
    }

    /// Leads no longer, and never again, and ends its lease.
    pub(in crate::directory) fn end(&mut self) {
        self.ends = true;
    }

    /// Whether nothing is left to do after [`Claimant::end`].
    pub(in crate::directory) fn has_ended(&self) -> bool {
        self.ends && self.lease.is_none() && self.asked.is_none()
    }

    /// How long a request may take: so short that another one can renew the lease in time.
    pub(in crate::directory) fn request_timeout(&self) -> Duration {
        self.ttl / 4
    }

    /// Does what is due. Call it again at the returned time, when the members change, and after each answer.
    pub(in crate::directory) fn poll(
        &mut self,
        now: Instant,
        members: &Members,
        effects: &mut Vec<Effect<Request>>,
    ) -> Instant {
        let has_settled = now >= self.grants_from;
        match &self.seat {
            Seat::Leads { until, .. } if now >= *until => self.stand_by(effects),
            // Its heir grants at once, so it has to be sure that no other host leads, and of its term.
            Seat::Leads { term, is_unsure, .. }
                if self.ends || self.gives_up.is_some() && has_settled && !is_unsure =>
            {
                let next = if has_settled { Next::Heir(self.gives_up.take().flatten()) } else { Next::AnyHost };
                self.released = Some((*term, next));
                self.rests_until = now + self.ttl;
                self.stand_by(effects);
            }
            _ => {}
        }
        if self.asked.is_none()
            && now >= self.asks_at
            && let Some(request) = self.next_request(now, members, effects)
        {
            self.asked = Some((request.clone(), now));
            effects.push(Effect::Ask(request));
        }
        self.due_at(now)
    }

    /// Handles the answer to the request under way.
    pub(in crate::directory) fn answered(&mut self, now: Instant, answer: Answer, effects: &mut Vec<Effect<Request>>) {
        let Some((request, asked_at)) = self.asked.take() else { return };
        let is_agreed = match answer {
            Answer::Renewed { is_agreed, .. } => is_agreed,
            _ => matches!(answer, Answer::Seen(_) | Answer::Claimed { .. } | Answer::Done | Answer::Outdated),
        };
        if let Some(lease) = self.lease.as_mut().filter(|_| is_agreed) {
            lease.agreed_at = asked_at;
        }
        match (answer, request) {
            (Answer::Granted { lease, ttl }, _) => {
                if ttl > self.ttl {
                    let takeover = ttl * 5 / 2;
                    tracing::warn!(asked = ?self.ttl, granted = ?ttl,
                        "etcd's leases last longer than asked for, so another host leads later than nodes expect it: give all nodes --directory-takeover {takeover:?}, or etcd a shorter election timeout");
                }
                self.lease = Some(Lease { id: lease, ttl, renewed_at: asked_at, agreed_at: asked_at });
                self.looks_at = now;
            }
            (Answer::Renewed { ttl, .. }, _) => {
                let Some(lease) = &mut self.lease else { return };
                (lease.ttl, lease.renewed_at) = (ttl, asked_at);
            }
            (Answer::Seen(seen), _) => self.see(now, seen, effects),
            (Answer::Claimed { term, nodes, newest }, Request::Claim { over, .. }) => {
                self.claimed(now, over, (term, nodes, newest), effects);
            }
            (Answer::Done, Request::Write { puts, deletes, newest, completes, .. }) => {
                if let Seat::Leads { nodes, newest: written, known, .. } = &mut self.seat {
                    nodes.extend(puts);
                    nodes.retain(|node| !deletes.contains(node));
                    *written = newest.unwrap_or(*written);
                    // Also where the members have changed since: else, while some come and go all the time, nobody is attached.
                    *known = completes.unwrap_or(*known);
                }
            }
            (Answer::Done, Request::Register { me, lease }) => {
                self.seen.hosts.retain(|(host, _)| host.node != me.node);
                self.seen.hosts.push((me, lease));
            }
            (Answer::Done, Request::Release { .. }) => (self.released, self.looks_at) = (None, now),
            (Answer::Claimed { .. } | Answer::Done, _) => {}
            // Who has it now is seen by the next look.
            (Answer::Outdated, request) => {
                let says_that_it_leads = matches!(request, Request::Write { .. } | Request::Renew { .. });
                if says_that_it_leads && matches!(self.seat, Seat::Leads { .. }) {
                    self.stand_by(effects);
                }
                // An heir that is gone has left the key to this one.
                (self.released, self.looks_at, self.rests_until) = (None, now, now);
            }
            (Answer::LeaseGone, _) => {
                self.lease = None;
                if matches!(self.seat, Seat::Leads { .. }) {
                    self.stand_by(effects);
                }
            }
            (Answer::Failed(_), request) => self.failed(now, &request),
        }
        self.renew(now, effects);
    }

    fn failed(&mut self, now: Instant, request: &Request) {
        self.asks_at = now + self.ttl / 20;
        // Another member is asked next. What this one has renewed since it was agreed with does not count.
        if let Some(lease) = &mut self.lease {
            lease.renewed_at = lease.renewed_at.min(lease.agreed_at);
        }
        match (request, &mut self.seat) {
            // It ends by itself.
            (Request::Revoke { .. }, _) => self.lease = None,
            (Request::Write { .. }, Seat::Leads { is_unsure, .. }) => *is_unsure = true,
            (Request::Claim { .. }, Seat::StandsBy) => self.rests_until = self.rests_until.max(now + self.ttl / 4),
            _ => {}
        }
    }

    /// Leads for as long as its promise lasts now.
    fn renew(&mut self, now: Instant, effects: &mut Vec<Effect<Request>>) {
        let (Some(lease), Seat::Leads { until, known, told, .. }) = (&self.lease, &mut self.seat) else { return };
        let news = (lease.until(), *known);
        if now < *until && (*until, *told) != news {
            (*until, *told) = news;
            effects.push(Effect::Renew { until: *until, known: *known });
        }
    }

    fn see(&mut self, now: Instant, seen: Seen, effects: &mut Vec<Effect<Request>>) {
        (self.seen, self.is_fresh) = (seen, true);
        let interval = LOOK_INTERVAL.min(self.ttl / 4);
        self.looks_at = now + interval;
        let Seat::Leads { term, is_unsure, .. } = &mut self.seat else { return };
        match &self.seen.held {
            Some(Held { by: Ok(record), term: at }) if at == term && record.is_of(&self.me) => {
                self.looks_at = now + self.ttl / 4;
            }
            // Its own claim, which had no answer.
            Some(Held { by: Ok(record), term: later })
                if *is_unsure && record.leads && record.is_of(&self.me) && later > term =>
            {
                *term = *later;
            }
            _ => {
                tracing::error!(host = %self.me.node, "another program has changed the record of who leads");
                self.stand_by(effects);
            }
        }
    }

    fn claimed(
        &mut self,
        now: Instant,
        over: u64,
        (term, nodes, newest): (u64, Vec<Name>, u64),
        effects: &mut Vec<Effect<Request>>,
    ) {
        let Some(lease) = self.lease else { return };
        let was = std::mem::replace(&mut self.claimed, term);
        let before = self.seen.held.replace(Held { by: Ok(Record { leads: true, ..self.me.clone() }), term });
        let nodes: BTreeSet<_> = nodes.into_iter().collect();
        if let Seat::Leads { term: at, nodes: known_nodes, newest: written, is_unsure, .. } = &mut self.seat {
            (*at, *known_nodes, *written, *is_unsure) = (term, nodes, newest, false);
            return;
        }
        let is_heir = |held: Held| held.term == over && held.by.is_ok_and(|by| by.is_of(&self.me) && !by.leads);
        // Nobody else has led since this one did, or the one that did has given up.
        let follows = over != 0 && (was == over || before.is_some_and(is_heir));
        if !follows {
            self.grants_from = now + lease.ttl;
        }
        let until = lease.until();
        if now >= until || self.ends {
            // The lead is this host's as long as its lease is. It claims it again when that is renewed.
            return;
        }
        let awaited = match over == 0 || over == was {
            // An older state may have been restored, or nodes deleted by hand.
            true => nodes.union(&self.left).cloned().collect(),
            false => nodes.clone(),
        };
        effects.push(Effect::Lead { until, grants_from: Some(self.grants_from), awaited, newest });
        self.left.clear();
        self.seat = Seat::Leads { term, until, nodes, known: 0, told: 0, newest, is_unsure: false };
        // This node waits for it, to attach here.
        self.looks_at = now;
    }

    fn stand_by(&mut self, effects: &mut Vec<Effect<Request>>) {
        if let Seat::Leads { nodes, .. } = std::mem::replace(&mut self.seat, Seat::StandsBy) {
            self.left = nodes;
        }
        (self.is_fresh, self.gives_up) = (false, None);
        effects.push(Effect::StandBy);
    }

    fn next_request(&mut self, now: Instant, members: &Members, effects: &mut Vec<Effect<Request>>) -> Option<Request> {
        let Some(lease) = self.lease else {
            return (!self.ends).then_some(Request::Grant { ttl: self.ttl });
        };
        if let Some((term, next)) = &self.released {
            let heir = match next {
                Next::Heir(named) => self.heir(named.as_ref()),
                Next::AnyHost => None,
            };
            return Some(Request::Release { term: *term, heir });
        }
        if self.ends {
            return Some(Request::Revoke { lease: lease.id });
        }
        if now >= lease.renewed_at + self.ttl / 4 {
            let leads = matches!(self.seat, Seat::Leads { .. });
            return Some(Request::Renew { lease: lease.id, leads });
        }
        if now >= self.looks_at {
            return Some(Request::Look);
        }
        let me = (Record { leads: false, ..self.me.clone() }, lease.id);
        if !self.seen.hosts.contains(&me) {
            return Some(Request::Register { me: me.0, lease: lease.id });
        }
        let over = match self.seat {
            Seat::Leads { term, is_unsure: true, .. } => term,
            Seat::Leads { .. } => return self.write(now, members, effects),
            Seat::StandsBy if std::mem::take(&mut self.is_fresh) => self.claims_over(now)?,
            Seat::StandsBy => return None,
        };
        Some(Request::Claim { me: Record { leads: true, ..self.me.clone() }, lease: lease.id, over })
    }

    /// The term over which this host may claim the lead.
    fn claims_over(&self, now: Instant) -> Option<u64> {
        let is_rested = now >= self.rests_until;
        match &self.seen.held {
            None => is_rested.then_some(0),
            // Where it does not lead yet, it is the heir.
            Some(Held { by: Ok(record), term }) if record.is_of(&self.me) => {
                (is_rested || !record.leads).then_some(*term)
            }
            Some(_) => None,
        }
    }

    /// The host that comes next: this one, else any other that is there.
    fn heir(&self, named: Option<&Name>) -> Option<(Record, i64)> {
        let mut others = self.seen.hosts.iter().filter(|(host, _)| host.node != self.me.node);
        let heir = others.find(|(host, _)| named.is_none_or(|named| host.node == *named));
        heir.map(|(host, lease)| (Record { leads: false, ..host.clone() }, *lease))
    }

    /// What has to be written, if this host leads. If nothing has, the members are known.
    fn write(&mut self, now: Instant, members: &Members, effects: &mut Vec<Effect<Request>>) -> Option<Request> {
        let Seat::Leads { term, nodes, known, newest, .. } = &mut self.seat else { return None };
        let is_far = members.newest.saturating_sub(*newest) > UNWRITTEN_ENTRIES;
        if *known == members.version && !is_far {
            return None;
        }
        let names: BTreeSet<_> = members.names.iter().collect();
        let puts: Vec<_> = names.iter().filter(|name| !nodes.contains(**name)).take(MAX_BATCH).collect();
        let left = MAX_BATCH - puts.len();
        let deletes: Vec<_> = nodes.iter().filter(|name| !names.contains(name)).take(left).cloned().collect();
        let puts: Vec<_> = puts.into_iter().map(|name| (*name).clone()).collect();
        if puts.is_empty() && deletes.is_empty() && !is_far {
            *known = members.version;
            self.renew(now, effects);
            return None;
        }
        let completes = (puts.len() + deletes.len() < MAX_BATCH).then_some(members.version);
        Some(Request::Write { term: *term, puts, deletes, newest: is_far.then_some(members.newest), completes })
    }

    fn due_at(&self, now: Instant) -> Instant {
        let until = match &self.seat {
            Seat::Leads { until, .. } => Some(*until),
            Seat::StandsBy => None,
        };
        let next = match (&self.asked, &self.lease) {
            // The answer comes first, or the end of the promise.
            (Some(_), _) => return until.unwrap_or(now + self.ttl),
            (None, None) => self.asks_at,
            (None, Some(lease)) => (lease.renewed_at + self.ttl / 4).min(self.looks_at).max(self.asks_at),
        };
        let gives_up = self.gives_up.as_ref().map(|_| self.grants_from).filter(|at| now < *at);
        [until, gives_up].into_iter().flatten().fold(next, Instant::min)
    }
}
