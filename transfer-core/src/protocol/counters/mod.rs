//! Named counters and barriers of the whole job, and rosters of sharded states.
//!
//! Each lives at its *home*: the node of the worker that first named it. The directory holds its name, in a namespace
//! of its own, with the home's node as the owner: the first node to claim the name is the home, and all other nodes are
//! told the home. A counter or barrier lives as long as its home's sidecar, no matter which workers leave. A later one
//! of the same name has a different *identity*; requests that name the earlier identity fail.
//!
//! # Layout
//! - `op`: operations of workers: their requests, their stages, and their outcomes.
//! - `claims`: the homes of names, and the handling of the directory's answers.
//! - `words`: the values of the counters that live here, and the operations on them.
//! - `barrier`: the waiters that have arrived at a barrier. `roster`: the ranks that have committed versions of a sharded state.
//! - `home`: counters and barriers that live here: operations of workers, requests of peers, grants.
//! - `recital`: what this node knows of rosters, for their next homes.
//! - `away`: counters and barriers that live elsewhere: requests to peers, and operations on their words.

mod away;
mod barrier;
mod claims;
mod home;
mod op;
mod recital;
mod roster;
#[cfg(test)]
mod tests;
mod words;

pub(super) use home::Request;
pub(super) use op::{Outcome, Route};
#[cfg(test)]
pub(crate) use roster::RosterContents;

use super::action::Action;
use super::config::NodeConfig;
use super::control::PeerInfo;
use super::ids::{OperationId, of};
use super::limits::Limits;
use super::rules::Rules;
use super::slab::Slab;
use super::snapshot::UnfinishedVersion;
use super::tenant::{Tenant, Tenants};
use crate::fabric::{AtomicOp, FabricKind, LinkId};
use crate::memory::LocalSlice;
use crate::op::{Failure, RosterAsk};
use crate::tensor::{Key, Name, ReservedFor};
use crate::time::Time;
use crate::wire::message::Body;
use barrier::Barrier;
use claims::{Claims, Entry, Home, What};
use hashbrown::HashMap;
use home::{Serve, WordGrant};
use op::Op;
use recital::Recitals;
use roster::Roster;
use std::collections::BTreeMap;
use words::Words;

/// The most counters and barriers that can live at one node during the whole life of its sidecar.
pub const COUNTERS_PER_NODE: u32 = 4096;

/// Length of the registered memory that [`Node::use_words`](super::Node::use_words) takes, in bytes.
pub const COUNTER_WORDS_BYTES: u64 = COUNTERS_PER_NODE as u64 * WORD_BYTES;

const WORD_BYTES: u64 = 8;

/// The counters and barriers of a node, as a state machine.
///
/// It knows workers' operations and links only by their ids. The node that holds it
/// - hands it **events**: an operation begins ([`begin`](Counters::begin)) or is given up
///   ([`give_up`](Counters::give_up)), the directory answers ([`claimed`](Counters::claimed)), a link comes up, goes
///   down, or is ready for an operation ([`link_up`](Counters::link_up), [`link_down`](Counters::link_down),
///   [`connected`](Counters::connected), [`reached`](Counters::reached)), a worker is gone
///   ([`worker_gone`](Counters::worker_gone)), a peer's message arrives, a device completes an operation, or the time of
///   [`wake_at`](Counters::wake_at) has come ([`timeout`](Counters::timeout));
/// - then carries out all **effects** that [`take_effects`](Counters::take_effects) returns, in order. Where an effect
///   leads to another event, the effects of that event come before the rest.
///
/// **Getters** return what an operation waits for ([`waits_for`](Counters::waits_for),
/// [`other_node`](Counters::other_node)), and the failure of an operation whose deadline has passed
/// ([`deadline`](Counters::deadline)).
pub(super) struct Counters {
    /// The name of this node.
    name: Name,
    tenants: Tenants,
    /// The most requests that one peer may have waiting here, and that this node may have waiting at one peer.
    requests_per_link: usize,
    ops: HashMap<OperationId, Op>,
    by_key: HashMap<Key, Entry>,
    claims: Claims,
    recitals: Recitals,
    /// When [`timeout`](Counters::timeout) has something to do.
    wake_at: Option<Time>,
    words: Words,
    links: BTreeMap<LinkId, OfLink>,
    effects: Vec<Effect>,
    limits: Limits,
    rules: Rules,
}

/// The requests and grants between this node and one peer, over one link.
struct OfLink {
    peer: PeerInfo,
    kind: FabricKind,
    /// Whether the devices of both sides can operate on words.
    atomics: bool,
    /// Requests of this node to the peer.
    calls: Slab<away::Call, of::CounterCall>,
    /// Counters of the peer that this node has opened.
    opened: HashMap<Key, away::Opened>,
    /// Requests of the peer that are not answered yet, by index.
    serves: HashMap<u32, Serve>,
    /// Words of this node that are granted to the peer, by place.
    grants: HashMap<u32, WordGrant>,
}

/// An effect that the node must carry out.
#[derive(Debug)]
pub(super) enum Effect {
    /// An action for the fabric or for the host.
    Do(Action),
    /// An operation needs the link to that node; [`Counters::connected`] follows when it is up.
    Connect(OperationId, Name),
    /// The link to that node is needed, and by no operation; [`Counters::reached`] follows when it is up.
    Reach(Name),
    /// Send a message about the request with this index.
    Send(LinkId, u32, Body),
    /// Send a request with this index. Its key and its tenant must first be numbered on the link.
    Ask(LinkId, u32, Asked),
    /// Ask the directory for this tenant at which node the worker is; [`Counters::located`] follows.
    Locate(Tenant, Name),
    /// Tell a peer, which holds a grant of this counter's word or recites to this roster, that it does not live here.
    TellEnded(LinkId, Key),
    /// The peer broke the contract.
    Violation(LinkId, String),
    /// An operation was not carried out.
    Failed(OperationId, Failure),
    /// An operation was carried out.
    Ended(OperationId, Outcome),
}

/// A request to a peer: the key, the tenant that asks, and the kind of request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) key: Key,
    pub(super) tenant: Tenant,
    pub(super) what: AskedFor,
}

/// The kind of a request to a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AskedFor {
    /// COUNTER_OPEN.
    Open {
        /// Whether the requesting node can use a grant of the word.
        wants_grant: bool,
    },
    /// BARRIER_WAIT.
    Wait {
        /// The number of arrivals that complete a round.
        members: u32,
    },
    /// COUNTER_OP.
    Operate {
        /// The identity of the counter.
        identity: u64,
        /// The operation.
        op: AtomicOp,
    },
    /// ROSTER_ASK.
    Roster(RosterAsk),
}

/// Returns the name of a counter or barrier for messages to people.
fn spoken(key: &Key) -> String {
    match key.reserved_for() {
        Some((ReservedFor::Counter, name)) => format!("counter {name:?}"),
        Some((ReservedFor::Barrier, name)) => format!("barrier {name:?}"),
        Some((ReservedFor::Roster, name)) => format!("the roster of state {name:?}"),
        None => format!("key {key:?}"),
    }
}

impl Counters {
    /// Returns a machine without counters.
    pub(super) fn new(config: &NodeConfig) -> Counters {
        Counters {
            name: config.name.clone(),
            tenants: config.tenants.clone(),
            requests_per_link: config.max_requests_per_link,
            ops: HashMap::new(),
            by_key: HashMap::new(),
            claims: Claims::new(config.incarnation),
            recitals: Recitals::new(config.limits.unfinished_versions),
            wake_at: None,
            words: Words::default(),
            links: BTreeMap::new(),
            effects: Vec::new(),
            limits: config.limits,
            rules: config.rules,
        }
    }

    /// Puts the words of counters into this memory: see [`Node::use_words`](super::Node::use_words).
    pub(super) fn use_words(&mut self, words: LocalSlice, kind: FabricKind) {
        self.words.lie_in(words, kind);
    }

    /// Handles a new link. `atomics`: whether the devices of both sides can operate on words.
    pub(super) fn link_up(&mut self, link: LinkId, peer: PeerInfo, kind: FabricKind, atomics: bool) {
        let (calls, opened, serves, grants) = (Slab::default(), HashMap::new(), HashMap::new(), HashMap::new());
        self.links.insert(link, OfLink { peer, kind, atomics, calls, opened, serves, grants });
    }

    /// When the time comes for [`timeout`](Counters::timeout).
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.wake_at
    }

    /// Notes that there is something to do at this time.
    fn wake(&mut self, at: Option<Time>) {
        self.wake_at = self.wake_at.into_iter().chain(at).min();
    }

    /// Looks for the next homes of rosters, and looks again at what waits at rosters that are settled by now.
    pub(crate) fn timeout(&mut self, now: Time) {
        if self.wake_at.is_none_or(|at| at > now) {
            return;
        }
        self.wake_at = None;
        self.look_for_homes(now);
        let rosters = self.by_key.iter().filter_map(|(key, entry)| match entry {
            Entry::Home(Home { what: What::Roster(roster), .. }) => Some((key.clone(), roster.settles_at()?)),
            _ => None,
        });
        let mut rosters: Vec<_> = rosters.collect();
        rosters.sort_unstable();
        for (key, at) in rosters {
            match at <= now {
                true => self.settle(now, &key),
                false => self.wake(Some(at)),
            }
        }
        self.wake(self.recitals.due());
    }

    /// Takes the effects that have been collected.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn act(&mut self, action: impl Into<Action>) {
        self.effects.push(Effect::Do(action.into()));
    }

    fn send(&mut self, link: LinkId, index: u32, body: Body) {
        self.effects.push(Effect::Send(link, index, body));
    }

    fn violation(&mut self, link: LinkId, what: String) {
        self.effects.push(Effect::Violation(link, what));
    }

    fn home(&self, key: &Key) -> Option<&Home> {
        match self.by_key.get(key) {
            Some(Entry::Home(home)) => Some(home),
            _ => None,
        }
    }

    /// Returns the place of a counter that lives here and has this identity.
    fn place_of(&self, key: &Key, identity: u64) -> Option<u32> {
        match self.home(key) {
            Some(Home { what: What::Counter(place), identity: own, .. }) if *own == identity => Some(*place),
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

    fn roster(&self, key: &Key) -> Option<&Roster> {
        match self.home(key) {
            Some(Home { what: What::Roster(roster), .. }) => Some(roster),
            _ => None,
        }
    }

    /// Returns the number of counters, barriers and rosters that live here.
    pub(super) fn live_here(&self) -> u64 {
        self.by_key.values().filter(|entry| matches!(entry, Entry::Home(_))).count() as u64
    }

    /// Returns the number of rosters that live here, and their versions that are not whole, the oldest first.
    pub(super) fn unfinished(&self) -> (u64, Vec<UnfinishedVersion>) {
        let (mut rosters, mut unfinished) = (0, Vec::new());
        for (key, entry) in &self.by_key {
            if let (Some((_, name)), Entry::Home(Home { what: What::Roster(roster), .. })) = (key.reserved_for(), entry)
            {
                rosters += 1;
                unfinished.extend(roster.unfinished(name));
            }
        }
        unfinished.sort_unstable_by(|a, b| (a.since, &a.state, a.version).cmp(&(b.since, &b.state, b.version)));
        unfinished.truncate(UnfinishedVersion::MAX_LISTED);
        (rosters, unfinished)
    }

    /// Returns the places and values of the counters that live here, if the values do not lie in registered memory.
    #[cfg(test)]
    pub(super) fn values(&self) -> Vec<(Key, u32, u64)> {
        let of = |(key, entry): (&Key, &Entry)| match entry {
            Entry::Home(Home { what: What::Counter(place), .. }) => {
                Some((key.clone(), *place, self.words.value(*place)))
            }
            _ => None,
        };
        self.by_key.iter().filter_map(of).collect()
    }

    /// Returns the rosters that live here, with their identities.
    #[cfg(test)]
    pub(super) fn rosters(&self) -> Vec<(Key, u64, RosterContents)> {
        let contents = |(key, entry): (&Key, &Entry)| match entry {
            Entry::Home(Home { what: What::Roster(roster), identity, .. }) => {
                Some((key.clone(), *identity, roster.contents()))
            }
            _ => None,
        };
        self.by_key.iter().filter_map(contents).collect()
    }

    /// Returns the number of operations, requests, claims and arrivals in progress.
    #[cfg(test)]
    pub(super) fn busy(&self) -> usize {
        let waiting = |entry: &Entry| match entry {
            Entry::Claiming(_) => 1,
            Entry::Home(Home { what: What::Barrier(barrier), .. }) => barrier.arrived(),
            Entry::Home(Home { what: What::Roster(roster), .. }) => roster.waiting(),
            Entry::Home(_) => 0,
        };
        let links: usize = self.links.values().map(|l| l.calls.len() + l.serves.len()).sum();
        let claims = self.claims.open() + self.by_key.values().map(waiting).sum::<usize>();
        links + claims + self.words.busy() + self.ops.len() + self.recitals.len()
    }
}
