//! A directory that is one of several hosts: what its election does with it.

use super::connection::Place;
use super::election::coordinator::{Claimant, Coordinator, Outlook, Record};
use super::election::{Ballot, Campaign, Candidate, Effect, Members, Purpose, Takeover, Vote};
use super::host::{Detached, Directory, SILENCE_LIMIT, State, put};
use super::item::Answer;
use super::lost::Lost;
use super::registry::{AttachRefused, Registry};
use super::settling::{Deferred, Settling};
use super::standing::Standing;
use crate::events::unix_nanos;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use transfer_core::protocol::Tenants;
use transfer_core::tensor::Name;

/// How far behind the last number that it knows a new host begins: more than its predecessor can have given since.
const UNKNOWN_ENTRIES: u64 = 1 << 32;

/// A host's part in the election of the one that answers.
#[derive(Debug)]
pub(super) struct Election {
    promises: Promises,
    takeover: Takeover,
    /// The version of the members that the next host will know.
    known: watch::Sender<u64>,
    /// The host that leads by its own word.
    leads: watch::Sender<Option<Name>>,
    /// Notified when the members change, or the directory is closed.
    changed: Notify,
    /// Whether nothing is left of it.
    is_over: watch::Sender<bool>,
}

/// Who says which host leads.
#[derive(Debug)]
enum Promises {
    /// More than half of these hosts.
    Ballots { hosts: Vec<Name>, campaign: Mutex<Campaign> },
    /// An etcd, or Kubernetes.
    Coordinator(Mutex<Claimant>),
}

impl Promises {
    fn hosts(&self) -> Vec<Name> {
        match self {
            Promises::Ballots { hosts, .. } => hosts.clone(),
            Promises::Coordinator(claimant) => claimant.lock().hosts().cloned().collect(),
        }
    }

    /// The host that leads, as far as this one knows.
    fn leader(&self) -> Option<Name> {
        match self {
            Promises::Ballots { campaign, .. } => campaign.lock().leader(Instant::now()).cloned(),
            Promises::Coordinator(claimant) => claimant.lock().leader().cloned(),
        }
    }

    fn term(&self) -> u64 {
        match self {
            Promises::Ballots { campaign, .. } => campaign.lock().term(),
            Promises::Coordinator(claimant) => claimant.lock().term(),
        }
    }

    fn give_up(&self, heir: Option<Name>) {
        match self {
            Promises::Ballots { campaign, .. } => campaign.lock().give_up(heir),
            Promises::Coordinator(claimant) => claimant.lock().give_up(heir),
        }
    }
}

/// What a host knows of the election.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ElectionState {
    /// The host that leads.
    pub(crate) leader: Option<Name>,
    /// The highest term that it has promised.
    pub(crate) term: u64,
    /// If it leads: the nodes that have not recited.
    pub(crate) awaited: Vec<Name>,
}

/// A host cannot let another one lead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandOverError {
    #[error(
        "the directory has one host only, so there is none to which it could move: --directory static:NODE=HOST:PORT,... names several, \
         and with --directory etcd:URL,... or kubernetes:NAMESPACE/NAME each node with --directory-host is one"
    )]
    OnlyHost,
    #[error("node {node:?} is none of the directory's hosts, which are {}", names(hosts))]
    NoHost { node: Name, hosts: Vec<Name> },
    #[error("node {host:?} does not lead the directory; {}", match leader {
        Some(leader) => format!("{leader:?} does: ask that one"),
        None => "no host does, as far as it knows: ask again".to_owned(),
    })]
    StandsBy { host: Name, leader: Option<Name> },
    #[error(
        "node {heir:?} has not taken the directory over, and {leads:?} leads it now: is {heir:?} up, and can the other hosts reach it?"
    )]
    Another { heir: Name, leads: Name },
    #[error(
        "no other host could take the directory over, and this one leads it again: its log says why they do not vote"
    )]
    NobodyElse,
    #[error("no host has taken the directory over within {within:?}: their logs say why they do not vote")]
    NobodyYet { within: Duration },
}

/// A host cannot vote for another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoVote {
    #[error(
        "node {node:?} is not among the other hosts of the directory at {host:?}: give all of them the same --directory"
    )]
    NoHost { node: Name, host: Name },
    #[error(
        "the promises of node {node:?} last {theirs:?} and those of {host:?} {ours:?}: give all hosts the same --directory-takeover"
    )]
    OtherLease { node: Name, theirs: Duration, host: Name, ours: Duration },
    #[error("node {host:?} is stopping")]
    Stops { host: Name },
}

impl From<NoVote> for tonic::Status {
    fn from(why: NoVote) -> tonic::Status {
        let code = match why {
            NoVote::NoHost { .. } => tonic::Code::PermissionDenied,
            NoVote::OtherLease { .. } => tonic::Code::FailedPrecondition,
            NoVote::Stops { .. } => tonic::Code::Unavailable,
        };
        tonic::Status::new(code, why.to_string())
    }
}

fn names(hosts: &[Name]) -> String {
    hosts.iter().map(|host| format!("{host:?}")).collect::<Vec<_>>().join(", ")
}

impl Directory {
    /// Makes one of several hosts, which stands by until it is elected.
    pub(crate) fn among(
        hosts: Vec<Name>,
        me: Candidate,
        takeover: Takeover,
        local: Arc<str>,
        tenants: Tenants,
    ) -> Directory {
        let rank = hosts.iter().take_while(|host| **host != me.node).count();
        let host = me.node.clone();
        let place = (u32::try_from(rank).unwrap_or(0), hosts.len());
        let campaign = Mutex::new(Campaign::new(Instant::now(), me, place, takeover.lease()));
        let promises = Promises::Ballots { hosts, campaign };
        Directory::elected(host, promises, takeover, local, tenants)
    }

    /// Makes one of several hosts, which stands by until a coordinator says that it leads. Promises last for whole seconds.
    pub(crate) fn by_coordinator(me: Record, takeover: Takeover, local: Arc<str>, tenants: Tenants) -> Directory {
        let host = me.node.clone();
        let claimant = Mutex::new(Claimant::new(Instant::now(), me, takeover.lease()));
        Directory::elected(host, Promises::Coordinator(claimant), takeover, local, tenants)
    }

    fn elected(host: Name, promises: Promises, takeover: Takeover, local: Arc<str>, tenants: Tenants) -> Directory {
        let (known, leads, is_over) = (watch::Sender::new(0), watch::Sender::new(None), watch::Sender::new(false));
        let election = Election { promises, takeover, known, leads, changed: Notify::new(), is_over };
        Directory::made(host, local, tenants, SILENCE_LIMIT, Some(election))
    }

    /// Starts to ask the coordinator, on the current runtime.
    pub(crate) fn stand_at(&self, coordinator: Coordinator, outlook: Outlook) {
        tokio::spawn(super::election::coordinator::run(self.clone(), coordinator, outlook));
    }

    /// Starts the election, on the current runtime. `hosts` are all hosts.
    pub(crate) fn stand_for_election(&self, hosts: &[(Name, Place)]) {
        let others = hosts.iter().filter(|(node, _)| node != self.host()).cloned().collect();
        if let Some(election) = &self.0.election {
            tokio::spawn(super::election::run(self.clone(), others, election.takeover.lease()));
        }
    }

    /// Lets another host lead: `heir`, or whichever is first. Returns it as soon as it leads.
    ///
    /// # Errors
    /// [`HandOverError`]: this host does not lead, or nobody else does yet.
    pub(crate) async fn hand_over(&self, heir: Option<Name>) -> Result<Name, HandOverError> {
        let Some(election) = &self.0.election else {
            return Err(HandOverError::OnlyHost);
        };
        let hosts = election.promises.hosts();
        if let Some(node) = heir.as_ref().filter(|heir| !hosts.contains(heir)) {
            return Err(HandOverError::NoHost { node: node.clone(), hosts });
        }
        if self.answers().is_err() {
            return Err(HandOverError::StandsBy { host: self.host().clone(), leader: self.leader() });
        }
        if heir.as_ref() == Some(self.host()) {
            return Ok(self.host().clone());
        }
        if hosts.iter().all(|host| host == self.host()) {
            return Err(HandOverError::OnlyHost);
        }
        let mut leads = election.leads.subscribe();
        election.promises.give_up(heir.clone());
        self.changes();
        let within = election.takeover.0;
        match tokio::time::timeout(within, leads.changed()).await {
            Ok(Ok(())) => {}
            _ => return Err(HandOverError::NobodyYet { within }),
        }
        let leads = leads.borrow().clone().unwrap_or_else(|| self.host().clone());
        match heir {
            _ if leads == *self.host() => Err(HandOverError::NobodyElse),
            Some(heir) if heir != leads => Err(HandOverError::Another { heir, leads }),
            _ => Ok(leads),
        }
    }

    /// Returns an error if another host answers at present.
    pub(super) fn answers(&self) -> Result<(), AttachRefused> {
        match self.0.state.lock().standing.leads(Instant::now()) {
            true => Ok(()),
            false => Err(AttachRefused::StandsBy { host: self.host().clone(), leader: self.leader() }),
        }
    }

    /// The time after which nodes give this host up if it says nothing. `None`: it is the only one.
    pub(super) fn silence(&self) -> Option<Duration> {
        self.0.election.as_ref().map(|election| election.takeover.lease())
    }

    /// Returns the host that leads, if this one knows it, and is not it.
    fn leader(&self) -> Option<Name> {
        self.0.election.as_ref()?.promises.leader().filter(|leader| leader != self.host())
    }

    /// Returns what this host knows of the election. `None`: it is the only host.
    pub(crate) fn election(&self) -> Option<ElectionState> {
        let promises = &self.0.election.as_ref()?.promises;
        let (leader, term) = (promises.leader(), promises.term());
        let mut state = self.0.state.lock();
        let leads = state.standing.leads(Instant::now());
        let awaited = state.standing.settling().filter(|_| leads).into_iter();
        let awaited = awaited.flat_map(|settling| settling.awaited().cloned()).collect();
        Some(ElectionState { leader, term, awaited })
    }

    /// Waits until more than half of the hosts know who is attached, so the next one to lead waits for what they recite.
    pub(super) async fn make_known(&self) -> Result<(), AttachRefused> {
        let Some(election) = &self.0.election else { return Ok(()) };
        let changes = self.0.state.lock().changes;
        let mut known = election.known.subscribe();
        // Who gives up says so by it, too.
        let is_over = |known: &u64| *known >= changes || self.answers().is_err();
        match tokio::time::timeout(election.takeover.lease(), known.wait_for(is_over)).await {
            Ok(_) => self.answers(),
            Err(_) => Err(AttachRefused::StandsBy { host: self.host().clone(), leader: self.leader() }),
        }
    }

    /// Tells the election that the members have changed.
    pub(super) fn changes(&self) {
        if let Some(election) = &self.0.election {
            election.changed.notify_one();
        }
    }

    /// Waits until the members change, or the directory is closed.
    pub(super) async fn changed(&self) {
        match &self.0.election {
            Some(election) => election.changed.notified().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.state.lock().closed
    }

    /// Updates the nodes that are attached or awaited here, if there are others.
    pub(super) fn update(&self, members: &mut Members) {
        let mut state = self.0.state.lock();
        members.newest = state.registry.newest();
        if members.version == state.changes {
            return;
        }
        let mut names: BTreeSet<Name> = state.registry.nodes().map(|at| at.node.clone()).collect();
        names.extend(state.standing.settling().into_iter().flat_map(|settling| settling.awaited().cloned()));
        (members.version, members.names) = (state.changes, names.into_iter().collect());
    }

    /// Lends the campaign of this host, if the hosts vote.
    pub(super) fn campaign<T>(&self, what: impl FnOnce(&mut Campaign) -> T) -> Option<T> {
        match &self.0.election.as_ref()?.promises {
            Promises::Ballots { campaign, .. } => Some(what(&mut campaign.lock())),
            Promises::Coordinator(_) => None,
        }
    }

    /// Lends what this host does at the coordinator, if one says who leads.
    pub(super) fn claimant<T>(&self, what: impl FnOnce(&mut Claimant) -> T) -> Option<T> {
        match &self.0.election.as_ref()?.promises {
            Promises::Coordinator(claimant) => Some(what(&mut claimant.lock())),
            Promises::Ballots { .. } => None,
        }
    }

    /// Does what the election has decided. Returns what it asks.
    pub(super) fn take_effect<Ask>(&self, effect: Effect<Ask>) -> Option<Ask> {
        match effect {
            Effect::Ask(ask) => return Some(ask),
            Effect::Lead { until, grants_from, awaited, newest } => self.lead(until, grants_from, awaited, newest),
            Effect::Renew { until, known } => self.renew(until, known),
            Effect::StandBy => self.stand_by(),
        }
        None
    }

    /// Tells who waits for it which host leads, if this is known.
    pub(super) fn tell_leader(&self) {
        let Some(election) = &self.0.election else { return };
        let leads = match &election.promises {
            Promises::Ballots { campaign, .. } => campaign.lock().leads(Instant::now()).cloned(),
            Promises::Coordinator(claimant) => claimant.lock().leader().cloned(),
        };
        election.leads.send_if_modified(|known| {
            let is_other = leads.is_some() && *known != leads;
            if is_other {
                *known = leads;
            }
            is_other
        });
    }

    /// The election has nothing left to do.
    pub(super) fn has_ended(&self) {
        if let Some(election) = &self.0.election {
            election.is_over.send_replace(true);
        }
    }

    /// Waits, after [`Directory::close`], until the coordinator knows that this host has ended, if one says who leads.
    pub(crate) async fn ended(&self) {
        if let Some(election) = self.0.election.as_ref().filter(|e| matches!(e.promises, Promises::Coordinator(_))) {
            // The sender lives as long as this.
            let _ = election.is_over.subscribe().wait_for(|is_over| *is_over).await;
        }
    }

    /// Answers another host.
    ///
    /// # Errors
    /// [`NoVote`]: the two hosts have not the same configuration.
    pub(super) fn vote(&self, ballot: &Ballot) -> Result<Vote, NoVote> {
        let (node, host) = (&ballot.candidate.node, self.host());
        let voting = self.0.election.as_ref().and_then(|election| match &election.promises {
            Promises::Ballots { hosts, campaign } if node != host && hosts.contains(node) => {
                Some((campaign, election.takeover.lease()))
            }
            _ => None,
        });
        let Some((campaign, lease)) = voting else {
            return Err(NoVote::NoHost { node: node.clone(), host: host.clone() });
        };
        if self.is_closed() {
            return Err(NoVote::Stops { host: host.clone() });
        }
        if ballot.lease != lease {
            let (host, theirs) = (host.clone(), ballot.lease);
            return Err(NoVote::OtherLease { node: node.clone(), theirs, host, ours: lease });
        }
        let vote = campaign.lock().vote(Instant::now(), ballot);
        self.tell_leader();
        if vote.granted && matches!(ballot.purpose, Purpose::GiveUp { .. }) {
            self.changes();
        }
        Ok(vote)
    }

    /// Begins to answer, with an empty registry. Nothing new is granted before `grants_from`.
    fn lead(&self, until: Instant, grants_from: Option<Instant>, awaited: BTreeSet<Name>, newest: u64) {
        let first = unix_nanos(SystemTime::now()).max(newest.saturating_add(UNKNOWN_ENTRIES).min(u64::MAX / 2));
        let Some(election) = &self.0.election else { return };
        let settling = election.takeover.settling();
        election.leads.send_replace(Some(self.host().clone()));
        let mut state = self.0.state.lock();
        let entries = state.stand_by();
        state.registry = state.registry.begin_again(first);
        // Whom it lost when it led before may have left another host since.
        state.lost = Lost::default();
        tracing::info!(host = %self.host(), nodes = awaited.len(), "leads the directory: the nodes recite what they have");
        let settling = Some(Settling::new(grants_from, Instant::now() + settling, awaited));
        state.standing = Standing::Leads { until, settling, alive_at: Instant::now() };
        state.changes += 1;
        state.settle();
        drop(state);
        drop(entries);
    }

    /// Goes on answering.
    fn renew(&self, until: Instant, known: u64) {
        let Some(election) = &self.0.election else { return };
        let mut state = self.0.state.lock();
        let State { standing, outboxes, .. } = &mut *state;
        if let Standing::Leads { until: before, alive_at, .. } = standing {
            *before = until;
            let now = Instant::now();
            // Nodes give up a host that is silent. While they attach there are many renewals.
            if now >= *alive_at + election.takeover.lease() / 8 {
                *alive_at = now;
                outboxes.values().for_each(|outbox| outbox.put(Answer::Alive));
            }
        }
        drop(state);
        election.known.send_replace(known);
    }

    /// Answers no longer.
    fn stand_by(&self) {
        tracing::warn!(host = %self.host(), "leads the directory no longer");
        let entries = self.0.state.lock().stand_by();
        // A million take a while, and nobody has to wait for that.
        drop(entries);
        // Those that attach wait for that.
        self.0.election.iter().for_each(|election| election.known.send_modify(|_| ()));
    }

    /// Ends what is over: the time in which the nodes recite. Returns when to look again.
    pub(super) fn keep(&self) -> Option<Instant> {
        let mut state = self.0.state.lock();
        state.settle();
        state.standing.settling().map(|settling| settling.until())
    }
}

impl State {
    /// Ends all attachments, unless this is the only host. Forgets all entries at once, because the end of each attachment would look
    /// for its node's among all. Returns them, to be dropped without the lock.
    pub(super) fn stand_by(&mut self) -> Registry {
        self.standing = Standing::StandsBy;
        for outbox in self.outboxes.values() {
            outbox.end(Detached::StandsBy);
        }
        let empty = self.registry.begin_again(self.registry.newest());
        std::mem::replace(&mut self.registry, empty)
    }

    /// Does what has waited, if all nodes have recited or the time for it is over.
    pub(super) fn settle(&mut self) {
        let State { registry, outboxes, standing, changes, .. } = self;
        // The caller has the lock already, so nobody has waited since.
        let now = Instant::now();
        let Standing::Leads { until, settling, .. } = standing else { return };
        if now >= *until {
            return;
        }
        let Some(over) = settling.take_if(|settling| settling.is_over(now)) else { return };
        let missing: Vec<_> = over.awaited().map(ToString::to_string).collect();
        if !missing.is_empty() {
            tracing::warn!(?missing, "nodes have not recited to the new host of the directory");
        }
        *changes += 1;
        for (node, what) in over.end() {
            match what {
                Deferred::Answer(answer) => put(outboxes, node, answer),
                Deferred::Item(item) => registry.apply(node, item, &mut |to, answer| put(outboxes, to, answer)),
            }
        }
        // Those whose items were not read any more.
        for outbox in outboxes.values() {
            outbox.drained.notify_one();
        }
    }
}
