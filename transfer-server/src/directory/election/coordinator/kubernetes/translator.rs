//! The calls of Kubernetes' API that a request of the claimant takes, one after the other. No I/O and no clock.
//!
//! What it knows of an object is what it has read or written last. After a call without an answer it does not know that object any more, and
//! reads it before it writes it again: so what was sent late fails, whenever it comes.

use super::lease::{LABEL, Lease, of_host};
use crate::directory::election::coordinator::claimant::{Answer, Request};
use crate::directory::election::coordinator::outlook::{Held, Seen};
use crate::directory::election::coordinator::record::Record;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// The number of a host's lease: it has one.
const LEASE: i64 = 1;

/// How many promises long a host is there that says nothing. It says once in a promise that it is.
const HOST_PROMISES: u32 = 3;

/// How often a request begins again because an object has changed meanwhile.
const MAX_CONFLICTS: u32 = 3;

/// A call of the API. What is written is written over the version that it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    Get(String),
    /// For the Leases of all hosts.
    ListHosts,
    Create(Lease),
    Update(Lease),
    Delete(String),
}

/// What the API has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// The object, as it is now.
    Lease(Lease),
    Leases(Vec<Lease>),
    Deleted,
    NotFound,
    /// It is there already, or has another version.
    Conflict,
    /// There is no answer, or an error. It may have been done.
    Failed(String),
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Call(Call),
    Answer(Answer),
}

/// What is known of the Lease of who leads.
#[derive(Debug)]
enum Known {
    Unknown,
    Absent,
    Present(Lease),
}

/// A request under way.
#[derive(Debug)]
struct Task {
    request: Request,
    last: Call,
    conflicts: u32,
    /// With a claim: the term with which the lead was written.
    term: Option<u64>,
}

/// The time now: since some moment, and since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) instant: Instant,
    pub(super) unix_ms: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Translator {
    directory: String,
    /// How long a promise lasts.
    ttl: Duration,
    /// This host, once it has registered.
    me: Option<Record>,
    leader: Known,
    /// The nodes, as this host has written them since it has the lead.
    nodes: Option<Lease>,
    /// This host's Lease, as it has written it, and when it is due to be written again.
    host: Option<(Lease, Instant)>,
    /// The other hosts, and when they are to be listed again.
    hosts: Vec<Record>,
    lists_at: Option<Instant>,
    /// When each Lease was first seen as it is.
    first_seen: BTreeMap<String, (String, Instant)>,
    /// The highest term that it has seen.
    highest: u64,
    task: Option<Task>,
}

impl Translator {
    pub(super) fn new(directory: String, ttl: Duration) -> Translator {
        Translator {
            directory,
            ttl,
            me: None,
            leader: Known::Unknown,
            nodes: None,
            host: None,
            hosts: Vec::new(),
            lists_at: None,
            first_seen: BTreeMap::new(),
            highest: 0,
            task: None,
        }
    }

    /// Begins a request. One that has no answer yet is given up.
    pub(super) fn begin(&mut self, now: Now, request: &Request) -> Step {
        if let Some(task) = self.task.take() {
            self.forget(&task.last);
        }
        let step = match request {
            Request::Grant { ttl } => Step::Answer(Answer::Granted { lease: LEASE, ttl: *ttl }),
            Request::Renew { leads: true, .. } => self.renew(),
            Request::Renew { leads: false, .. } => self.renew_host(now),
            Request::Look => Step::Call(Call::Get(self.directory.clone())),
            Request::Register { me, .. } => {
                (self.me, self.lists_at) = (Some(me.clone()), None);
                self.register(me)
            }
            Request::Claim { over, .. } => match self.may_claim(now, *over) {
                true => Step::Call(Call::Get(self.nodes_name())),
                false => Step::Answer(Answer::Outdated),
            },
            Request::Write { puts, deletes, newest, .. } => self.write(puts, deletes, *newest),
            Request::Release { heir, .. } => self.release(now, heir.as_ref().map(|(heir, _)| heir)),
            Request::Revoke { .. } => match self.me.take() {
                Some(me) => Step::Call(Call::Delete(of_host(&self.directory, &me.node))),
                None => Step::Answer(Answer::LeaseGone),
            },
        };
        self.goes_on(step, |last| Task { request: request.clone(), last, conflicts: 0, term: None })
    }

    /// Handles the answer to a call.
    pub(super) fn answered(&mut self, now: Now, reply: Reply) -> Step {
        let Some(mut task) = self.task.take() else {
            return Step::Answer(Answer::Failed("an answer to no call".to_owned()));
        };
        if let Reply::Failed(why) = reply {
            self.forget(&task.last);
            return Step::Answer(Answer::Failed(why));
        }
        if matches!(reply, Reply::Conflict) {
            task.conflicts += 1;
            if task.conflicts >= MAX_CONFLICTS {
                self.forget(&task.last);
                return Step::Answer(Answer::Failed("others write the same object all the time".to_owned()));
            }
        }
        if let (Call::Update(sent), Reply::Lease(lease)) = (&task.last, &reply)
            && (lease.version == sent.version || lease.name != sent.name)
        {
            // As where the time in it is the same: nobody would see that it was renewed.
            self.forget(&task.last);
            return Step::Answer(Answer::Failed(format!("writing Lease {} has changed nothing", sent.name)));
        }
        let is_of_leader = match &task.last {
            Call::Get(name) | Call::Delete(name) => *name == self.directory,
            Call::Create(lease) | Call::Update(lease) => lease.name == self.directory,
            Call::ListHosts => false,
        };
        if is_of_leader {
            self.see_leader(now, &reply);
        }
        let step = match (&task.request, reply) {
            (Request::Look, Reply::Leases(leases)) => {
                self.see_hosts(now, leases);
                self.seen(now)
            }
            (Request::Look, _) if self.lists_at.is_none_or(|at| now.instant >= at) => Step::Call(Call::ListHosts),
            (Request::Look, _) => self.seen(now),
            (Request::Register { me, .. }, reply) => match (reply, &task.last) {
                (Reply::Lease(lease), Call::Get(_)) => Step::Call(self.host_call(me, Some(lease))),
                (Reply::Lease(lease), _) => {
                    self.host = Some((lease, now.instant + self.ttl));
                    Step::Answer(Answer::Done)
                }
                (Reply::NotFound, Call::Get(_)) => Step::Call(self.host_call(me, None)),
                _ => Step::Call(Call::Get(of_host(&self.directory, &me.node))),
            },
            (Request::Claim { .. }, Reply::Lease(lease)) if is_of_leader => {
                task.term = Some(lease.term());
                self.take_nodes(lease.term())
            }
            (Request::Claim { .. }, _) if is_of_leader => Step::Answer(Answer::Outdated),
            (Request::Claim { me, .. }, reply) => match (reply, &task.last, task.term) {
                // Another host has taken the lead since.
                (Reply::Lease(lease), Call::Get(_), Some(term)) if lease.term() >= term => {
                    (self.leader, self.nodes) = (Known::Unknown, None);
                    Step::Answer(Answer::Outdated)
                }
                (reply @ (Reply::Lease(_) | Reply::NotFound), Call::Get(_), term) => {
                    self.nodes = match reply {
                        Reply::Lease(lease) => Some(lease),
                        _ => None,
                    };
                    term.map_or_else(|| self.take_lead(now, me), |term| self.take_nodes(term))
                }
                (Reply::Lease(lease), _, Some(term)) => {
                    let (nodes, newest) = (lease.nodes(), lease.newest());
                    self.nodes = Some(lease);
                    Step::Answer(Answer::Claimed { term, nodes, newest })
                }
                _ => Step::Call(Call::Get(self.nodes_name())),
            },
            (Request::Renew { .. }, reply) if is_of_leader => match (reply, &task.last) {
                (Reply::Lease(_), Call::Update(_)) => self.renew_host(now),
                _ => self.renew(),
            },
            (Request::Renew { .. }, reply) => {
                // Without it this host registers again.
                self.host = match reply {
                    Reply::Lease(lease) => Some((lease, now.instant + self.ttl)),
                    _ => None,
                };
                self.renewed()
            }
            (Request::Write { .. }, Reply::Lease(lease)) => {
                self.nodes = Some(lease);
                Step::Answer(Answer::Done)
            }
            (Request::Write { .. }, _) => {
                self.nodes = None;
                Step::Answer(Answer::Outdated)
            }
            (Request::Release { .. }, Reply::Lease(_)) if matches!(task.last, Call::Update(_)) => {
                Step::Answer(Answer::Done)
            }
            (Request::Release { heir, .. }, _) => self.release(now, heir.as_ref().map(|(heir, _)| heir)),
            (Request::Revoke { .. } | Request::Grant { .. }, _) => {
                self.host = None;
                Step::Answer(Answer::LeaseGone)
            }
        };
        self.goes_on(step, |last| Task { last, ..task })
    }

    fn goes_on(&mut self, step: Step, task: impl FnOnce(Call) -> Task) -> Step {
        if let Step::Call(call) = &step {
            self.task = Some(task(call.clone()));
        }
        step
    }

    /// What a call may have changed is not known any more.
    fn forget(&mut self, call: &Call) {
        let (Call::Create(Lease { name, .. }) | Call::Update(Lease { name, .. })) = call else { return };
        if *name == self.directory {
            self.leader = Known::Unknown;
        } else if *name == self.nodes_name() {
            self.nodes = None;
        } else {
            self.host = None;
        }
    }

    fn nodes_name(&self) -> String {
        format!("{}-nodes", self.directory)
    }

    fn see_leader(&mut self, now: Now, reply: &Reply) {
        self.leader = match reply {
            Reply::Lease(lease) => {
                self.see(now, lease);
                self.highest = self.highest.max(lease.term());
                Known::Present(lease.clone())
            }
            Reply::NotFound => Known::Absent,
            _ => Known::Unknown,
        };
    }

    fn see(&mut self, now: Now, lease: &Lease) {
        let is_known = self.first_seen.get(&lease.name).is_some_and(|(version, _)| *version == lease.version);
        if !is_known {
            self.first_seen.insert(lease.name.clone(), (lease.version.clone(), now.instant));
        }
    }

    /// Whether it was not written for all of its duration. Its holder gives up before that.
    fn has_ended(&self, now: Now, lease: &Lease) -> bool {
        let first = self.first_seen.get(&lease.name).filter(|(version, _)| *version == lease.version);
        first.is_some_and(|(_, first)| now.instant >= *first + lease.duration)
    }

    fn see_hosts(&mut self, now: Now, leases: Vec<Lease>) {
        // Other nodes only show them.
        self.lists_at = Some(now.instant + self.ttl * if self.me.is_some() { 1 } else { 10 });
        let names: BTreeSet<_> =
            leases.iter().map(|lease| lease.name.clone()).chain([self.directory.clone()]).collect();
        self.first_seen.retain(|name, _| names.contains(name));
        leases.iter().for_each(|lease| self.see(now, lease));
        let lives = |lease: &&Lease| !self.has_ended(now, lease);
        self.hosts = leases.iter().filter(lives).filter_map(|lease| lease.record()?.ok()).collect();
    }

    fn seen(&self, now: Now) -> Step {
        let held = match &self.leader {
            Known::Present(lease) => lease.record().map(|by| Held { by, term: lease.term() }),
            Known::Unknown | Known::Absent => None,
        };
        let is_mine = |held: &Held| held.by.as_ref().is_ok_and(|by| self.me.as_ref().is_some_and(|me| by.is_of(me)));
        let held = held.filter(|held| held.by.is_err() || is_mine(held) || !self.leader_has_ended(now));
        let me = self.me.as_ref();
        let others = self.hosts.iter().filter(|host| me.is_none_or(|me| me.node != host.node)).cloned();
        // This host registers again where it is missing.
        let mut hosts: Vec<_> = others.chain(self.host.as_ref().and(self.me.clone())).collect();
        hosts.sort_by(|a, b| a.node.cmp(&b.node));
        Step::Answer(Answer::Seen(Seen { held, hosts: hosts.into_iter().map(|host| (host, LEASE)).collect() }))
    }

    fn leader_has_ended(&self, now: Now) -> bool {
        matches!(&self.leader, Known::Present(lease) if self.has_ended(now, lease))
    }

    /// The Lease of who leads, if that is this host.
    fn lead(&self) -> Option<&Lease> {
        let Known::Present(lease) = &self.leader else { return None };
        let Ok(record) = lease.record()? else { return None };
        (record.leads && record.is_of(self.me.as_ref()?)).then_some(lease)
    }

    fn renew(&self) -> Step {
        match (&self.leader, self.lead()) {
            (_, Some(lease)) => Step::Call(Call::Update(lease.clone())),
            (Known::Unknown, None) => Step::Call(Call::Get(self.directory.clone())),
            _ => Step::Answer(Answer::Outdated),
        }
    }

    fn renew_host(&self, now: Now) -> Step {
        match &self.host {
            Some((lease, due)) if now.instant >= *due => Step::Call(Call::Update(lease.clone())),
            _ => self.renewed(),
        }
    }

    fn renewed(&self) -> Step {
        Step::Answer(Answer::Renewed { ttl: self.ttl, is_agreed: true })
    }

    fn register(&self, me: &Record) -> Step {
        match &self.host {
            Some((lease, _)) => Step::Call(self.host_call(me, Some(lease.clone()))),
            None => Step::Call(Call::Get(of_host(&self.directory, &me.node))),
        }
    }

    fn host_call(&self, me: &Record, known: Option<Lease>) -> Call {
        self.written(known, of_host(&self.directory, &me.node), |lease| {
            lease.labels.insert(LABEL.to_owned(), self.directory.clone());
            lease.give(Some(me), self.ttl * HOST_PROMISES);
        })
    }

    /// The call that writes a Lease over this one.
    fn written(&self, known: Option<Lease>, name: String, change: impl FnOnce(&mut Lease)) -> Call {
        let is_new = known.is_none();
        let mut lease = known.unwrap_or_else(|| Lease::new(name));
        change(&mut lease);
        if is_new { Call::Create(lease) } else { Call::Update(lease) }
    }

    /// Whether the lead is as the claimant has seen it.
    fn may_claim(&self, now: Now, over: u64) -> bool {
        match (&self.leader, over) {
            (Known::Unknown, _) => false,
            (Known::Absent, over) => over == 0,
            (Known::Present(lease), 0) => match lease.record() {
                None => true,
                Some(by) => by.is_ok() && self.has_ended(now, lease),
            },
            (Known::Present(lease), over) => lease.term() == over && lease.record().is_some_and(|by| by.is_ok()),
        }
    }

    fn take_lead(&self, now: Now, me: &Record) -> Step {
        let known = match &self.leader {
            Known::Present(lease) => Some(lease.clone()),
            Known::Unknown | Known::Absent => None,
        };
        let nodes = self.nodes.as_ref().map_or(0, Lease::term);
        // It rises also where somebody has deleted the objects.
        let term = self.highest.max(nodes).saturating_add(1).max(now.unix_ms);
        Step::Call(self.written(known, self.directory.clone(), |lease| {
            lease.give(Some(me), self.ttl);
            lease.set_term(term);
        }))
    }

    /// Writes the term into the nodes, so nothing can be written there that an earlier host has sent.
    fn take_nodes(&self, term: u64) -> Step {
        Step::Call(self.written(self.nodes.clone(), self.nodes_name(), |lease| {
            lease.give(self.me.as_ref(), self.ttl);
            lease.set_term(term);
        }))
    }

    fn write(&self, puts: &[Name], deletes: &[Name], newest: Option<u64>) -> Step {
        let Some(mut lease) = self.nodes.clone() else {
            return Step::Answer(Answer::Failed("the nodes have to be read again".to_owned()));
        };
        let mut nodes: BTreeSet<_> = lease.nodes().into_iter().collect();
        nodes.extend(puts.iter().cloned());
        nodes.retain(|node| !deletes.contains(node));
        if let Err(why) = lease.set_nodes(nodes.iter()) {
            return Step::Answer(Answer::Failed(why));
        }
        if let Some(newest) = newest {
            lease.set_newest(newest);
        }
        Step::Call(Call::Update(lease))
    }

    fn release(&self, now: Now, heir: Option<&Record>) -> Step {
        match (&self.leader, self.lead()) {
            (_, Some(lease)) => {
                let term = lease.term().saturating_add(1).max(now.unix_ms);
                Step::Call(self.written(Some(lease.clone()), String::new(), |lease| {
                    lease.give(heir, self.ttl);
                    lease.set_term(term);
                }))
            }
            (Known::Unknown, None) => Step::Call(Call::Get(self.directory.clone())),
            _ => Step::Answer(Answer::Outdated),
        }
    }
}
