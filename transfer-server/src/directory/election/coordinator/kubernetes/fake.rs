//! An API server with Leases in memory, for tests.

use super::lease::Lease;
use super::translator::{self, Call, Now, Reply, Translator};
use crate::directory::election::coordinator::claimant::Request;
use crate::directory::election::coordinator::world::{Fake, Step, TTL};
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// The names of its objects.
pub(super) const LEADER: &str = "d";
pub(super) const NODES: &str = "d-nodes";

#[derive(Default)]
pub(super) struct FakeApi {
    revision: u64,
    pub(super) leases: BTreeMap<String, Lease>,
}

impl FakeApi {
    pub(super) fn answer(&mut self, call: &Call) -> Reply {
        let found = |name: &str| self.leases.get(name).cloned();
        match call {
            Call::Get(name) => found(name).map_or(Reply::NotFound, Reply::Lease),
            Call::ListHosts => {
                Reply::Leases(self.leases.values().filter(|lease| !lease.labels.is_empty()).cloned().collect())
            }
            Call::Create(lease) => match found(&lease.name) {
                Some(_) => Reply::Conflict,
                None => self.put(lease),
            },
            Call::Update(lease) => match found(&lease.name) {
                // An update may make an object, but not where it says which one it is of.
                None => Reply::Conflict,
                Some(now) if now.version != lease.version || !now.is_same_object(lease) => Reply::Conflict,
                Some(_) => self.put(lease),
            },
            Call::Delete(name) => match self.leases.remove(name) {
                Some(_) => Reply::Deleted,
                None => Reply::NotFound,
            },
        }
    }

    fn put(&mut self, lease: &Lease) -> Reply {
        self.revision += 1;
        let lease = lease.stored(self.revision);
        self.leases.insert(lease.name.clone(), lease.clone());
        Reply::Lease(lease)
    }
}

/// A host's end.
pub(super) struct Client(pub(super) Translator);

impl Default for Client {
    fn default() -> Client {
        Client(Translator::new(LEADER.to_owned(), TTL))
    }
}

fn step(step: translator::Step) -> Step<Call> {
    match step {
        translator::Step::Call(call) => Step::Call(call),
        translator::Step::Answer(answer) => Step::Answer(answer),
    }
}

impl Fake for FakeApi {
    type Client = Client;
    type Call = Call;
    type Reply = Reply;

    fn begin(client: &mut Client, instant: Instant, unix_ms: u64, request: &Request) -> Step<Call> {
        step(client.0.begin(Now { instant, unix_ms }, request))
    }

    fn answered(client: &mut Client, instant: Instant, unix_ms: u64, reply: Reply) -> Step<Call> {
        step(client.0.answered(Now { instant, unix_ms }, reply))
    }

    /// It ends nothing by itself.
    fn expire(&mut self, _: u64) {}

    fn done(&mut self, call: &Call, _: u64) -> Reply {
        self.answer(call)
    }

    /// An API server that reaches no etcd answers errors.
    fn answer_of_cut_off(_: &Call) -> Option<Reply> {
        Some(Reply::Failed("500: etcdserver: request timed out".to_owned()))
    }

    fn is_of_lead(call: &Call) -> bool {
        match call {
            Call::Create(lease) | Call::Update(lease) => lease.labels.is_empty(),
            Call::Get(_) | Call::ListHosts | Call::Delete(_) => false,
        }
    }

    /// The object is deleted by hand.
    fn revoke(&mut self) -> bool {
        self.leases.remove(LEADER).is_some()
    }

    fn lose_member(&mut self, _: u64) {}

    fn nodes(&self) -> BTreeSet<Name> {
        self.leases.get(NODES).into_iter().flat_map(Lease::nodes).collect()
    }

    fn newest(&self) -> u64 {
        self.leases.get(NODES).map_or(0, Lease::newest)
    }

    fn is_at(&self, term: u64) -> bool {
        self.leases.get(LEADER).map_or(0, Lease::term) == term
    }
}
