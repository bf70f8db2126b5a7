//! An etcd in memory, for tests.

use crate::directory::election::coordinator::claimant::{Answer, Request};
use crate::directory::election::coordinator::outlook::{Held, Seen};
use crate::directory::election::coordinator::record::Record;
use crate::directory::election::coordinator::world::{Fake, Step, TTL};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;
use transfer_core::tensor::Name;

#[derive(Default)]
pub(super) struct FakeEtcd {
    pub(super) revision: u64,
    pub(super) leases: BTreeMap<i64, u64>,
    pub(super) next_lease: i64,
    pub(super) leader: Option<(Record, i64, u64)>,
    pub(super) hosts: BTreeMap<Name, (Record, i64)>,
    pub(super) nodes: BTreeSet<Name>,
    pub(super) newest: u64,
}

impl Fake for FakeEtcd {
    type Client = ();
    type Call = Request;
    type Reply = Answer;

    fn begin((): &mut (), _: Instant, _: u64, request: &Request) -> Step<Request> {
        Step::Call(request.clone())
    }

    fn answered((): &mut (), _: Instant, _: u64, reply: Answer) -> Step<Request> {
        Step::Answer(reply)
    }

    /// It renews leases, which the others do not hear, and does nothing else.
    fn answer_of_cut_off(call: &Request) -> Option<Answer> {
        matches!(call, Request::Renew { .. }).then_some(Answer::Renewed { ttl: TTL, is_agreed: false })
    }

    fn is_of_lead(call: &Request) -> bool {
        matches!(call, Request::Write { .. } | Request::Claim { .. })
    }

    /// Its lease ends too early.
    fn revoke(&mut self) -> bool {
        let Some((_, lease, _)) = &self.leader else { return false };
        self.leases.remove(lease);
        true
    }

    /// Another member leads, and lets all leases last for their whole time again.
    fn lose_member(&mut self, now: u64) {
        let until = now + TTL.as_millis() as u64;
        self.leases.values_mut().for_each(|ends| *ends = until);
    }

    fn nodes(&self) -> BTreeSet<Name> {
        self.nodes.clone()
    }

    fn newest(&self) -> u64 {
        self.newest
    }

    fn expire(&mut self, now: u64) {
        self.leases.retain(|_, until| now < *until);
        let leases = &self.leases;
        self.hosts.retain(|_, (_, lease)| leases.contains_key(lease));
        self.leader.take_if(|(_, lease, _)| !leases.contains_key(lease));
    }

    fn is_at(&self, term: u64) -> bool {
        self.leader.as_ref().map_or(0, |(.., revision)| *revision) == term
    }

    fn done(&mut self, request: &Request, now: u64) -> Answer {
        let until = now + TTL.as_millis() as u64;
        match request {
            Request::Grant { ttl } => {
                self.next_lease += 1;
                self.leases.insert(self.next_lease, until);
                Answer::Granted { lease: self.next_lease, ttl: *ttl }
            }
            Request::Renew { lease, .. } => match self.leases.get_mut(lease) {
                Some(ends) => {
                    *ends = until;
                    Answer::Renewed { ttl: TTL, is_agreed: false }
                }
                None => Answer::LeaseGone,
            },
            Request::Revoke { lease } => {
                self.leases.remove(lease);
                self.expire(now);
                Answer::LeaseGone
            }
            Request::Register { lease, .. } if !self.leases.contains_key(lease) => Answer::LeaseGone,
            Request::Register { me, lease } => {
                self.hosts.insert(me.node.clone(), (me.clone(), *lease));
                Answer::Done
            }
            Request::Look => {
                let held = self.leader.as_ref().map(|(by, _, term)| Held { by: Ok(by.clone()), term: *term });
                Answer::Seen(Seen { held, hosts: self.hosts.values().cloned().collect() })
            }
            Request::Claim { lease, .. } if !self.leases.contains_key(lease) => Answer::LeaseGone,
            Request::Claim { over: term, .. } | Request::Write { term, .. } | Request::Release { term, .. }
                if !self.is_at(*term) =>
            {
                Answer::Outdated
            }
            Request::Claim { me, lease, .. } => {
                self.revision += 1;
                self.leader = Some((me.clone(), *lease, self.revision));
                let nodes = self.nodes.iter().cloned().collect();
                Answer::Claimed { term: self.revision, nodes, newest: self.newest }
            }
            Request::Write { puts, deletes, newest, .. } => {
                self.revision += 1;
                self.nodes.extend(puts.iter().cloned());
                self.nodes.retain(|node| !deletes.contains(node));
                self.newest = newest.unwrap_or(self.newest);
                Answer::Done
            }
            Request::Release { heir: Some((heir, lease)), .. } => {
                if self.hosts.get(&heir.node).is_none_or(|(_, has)| has != lease) {
                    return Answer::Outdated;
                }
                self.revision += 1;
                self.leader = Some((heir.clone(), *lease, self.revision));
                Answer::Done
            }
            Request::Release { heir: None, .. } => {
                self.revision += 1;
                self.leader = None;
                Answer::Done
            }
        }
    }
}
