//! Recitals: what a node knows of sharded states by its own workers, said to the next home of a roster.
//!
//! A roster is lost with its home. So each node remembers the commits of its workers that were answered, and the version that it knows
//! to be whole. It says both to the next home, before any other question about that state, and also if no worker asks anything.

use super::claims::{Claiming, Entry as Claimed};
use super::home::Request;
use super::op::{Op, Outcome, Stage};
use super::{Asked, AskedFor, Counters, Effect};
use crate::fabric::LinkId;
use crate::op::{CounterAsk, RankCommit, RosterAnswer, RosterAsk};
use crate::protocol::rules::Broken;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name, Version};
use crate::time::Time;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

/// The most states of which a node remembers something, and the most ranks and commits in all. Of others it recites nothing.
const MAX_STATES: usize = 4096;
const MAX_REMEMBERED: usize = 1 << 16;

/// The time until the next home of a state is looked for again, if it was not found, or was lost at once.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What is remembered of all states. It ends with the workers that have committed.
pub(super) struct Recitals {
    states: BTreeMap<Key, State>,
    /// The number of ranks and commits.
    len: usize,
    /// The most versions of a rank whose commits are remembered.
    versions: usize,
}

struct State {
    tenant: Tenant,
    restart: u64,
    whole: Option<Version>,
    ranks: BTreeMap<u32, Remembered>,
    /// The number of these, and of their commits.
    len: usize,
    /// The home that knows all of this. `None`: the next one has to be found.
    told: Option<HomeAt>,
    /// When it is looked for next.
    due: Option<Time>,
    /// The first time at which it may be looked for.
    may_look_at: Time,
}

/// The commits of a rank, and the worker that has made them.
struct Remembered {
    worker: Name,
    versions: BTreeMap<Version, RankCommit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HomeAt {
    Here,
    Over(LinkId),
}

impl State {
    /// Counts what is remembered again, after many of it were forgotten.
    fn count(&mut self) {
        self.len = self.ranks.values().map(|rank| 1 + rank.versions.len()).sum();
    }

    /// Has to tell all to another home, which is looked for, but not all the time.
    fn tell_again(&mut self, now: Time) {
        (self.told, self.due) = (None, Some(now.max(self.may_look_at)));
    }

    /// Notes what a roster has said. What has ended is forgotten.
    fn learn(&mut self, restart: u64, whole: Option<Version>) {
        if restart > self.restart {
            (self.restart, self.whole) = (restart, None);
            self.ranks.values_mut().for_each(|rank| rank.versions.clear());
            self.count();
        }
        if restart == self.restart && whole > self.whole {
            self.whole = whole;
            self.ranks.values_mut().for_each(|rank| rank.versions.retain(|version, _| Some(*version) > whole));
            self.count();
        }
    }

    /// Remembers a commit, for which there may be some room.
    fn remember(&mut self, commit: &RankCommit, worker: Name, versions: usize, room: usize) {
        let rank = match self.ranks.entry(commit.rank) {
            Entry::Occupied(rank) => rank.into_mut(),
            Entry::Vacant(_) if room == 0 => return,
            Entry::Vacant(rank) => {
                self.len += 1;
                rank.insert(Remembered { worker: worker.clone(), versions: BTreeMap::new() })
            }
        };
        rank.worker = worker;
        if Some(commit.version) > self.whole && room > 1 {
            self.len += usize::from(rank.versions.insert(commit.version, commit.clone()).is_none());
            while rank.versions.len() > versions {
                rank.versions.pop_first();
                self.len -= 1;
            }
        }
    }
}

impl Recitals {
    pub(super) fn new(unfinished_versions: u64) -> Recitals {
        let versions = usize::try_from(unfinished_versions).unwrap_or(usize::MAX);
        Recitals { states: BTreeMap::new(), len: 0, versions }
    }

    /// The number of states of which something is remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    /// Changes what is remembered of a state.
    fn change(&mut self, key: &Key, change: impl FnOnce(&mut State)) {
        if let Some(state) = self.states.get_mut(key) {
            let before = state.len;
            change(state);
            self.len = self.len + state.len - before;
            if state.ranks.is_empty() {
                self.states.remove(key);
            }
        }
    }

    /// A commit was answered by this home.
    fn committed(&mut self, (key, tenant): (&Key, Tenant), at: HomeAt, commit: &RankCommit, whole: Option<Version>) {
        let Some(worker) = commit.worker.clone() else { return };
        if !self.states.contains_key(key) {
            if self.states.len() >= MAX_STATES {
                return;
            }
            let (restart, ranks) = (commit.restart, BTreeMap::new());
            let state =
                State { tenant, restart, whole, ranks, len: 0, told: Some(at), due: None, may_look_at: Time(0) };
            self.states.insert(key.clone(), state);
        }
        let (versions, room) = (self.versions, MAX_REMEMBERED.saturating_sub(self.len));
        self.change(key, |state| {
            if state.tenant != tenant {
                return;
            }
            let is_told = state.told == Some(at);
            if !is_told {
                // Another home was told meanwhile.
                state.tell_again(Time(0));
            }
            state.learn(commit.restart, whole);
            if commit.restart < state.restart {
                return;
            }
            if is_told && Some(commit.version) > whole {
                // The roster has forgotten a later one, which nobody publishes any more.
                state.whole = whole;
            }
            state.remember(commit, worker, versions, room);
        });
    }

    /// A worker takes a commit back.
    pub(super) fn withdraw(&mut self, key: &Key, version: Version, rank: u32, instance: u64) {
        self.change(key, |state| {
            let Some(of) = state.ranks.get_mut(&rank) else { return };
            if of.versions.get(&version).is_some_and(|commit| commit.instance == instance) {
                of.versions.remove(&version);
                state.len -= 1;
            }
            // What is whole is worth to be said also by a rank that has no other commit.
            if of.versions.is_empty() && state.whole.is_none() {
                state.ranks.remove(&rank);
                state.len -= 1;
            }
        });
    }

    /// The home of a state is lost, unless it is another one.
    fn lost(&mut self, now: Time, at: HomeAt, of: impl Fn(&Key) -> bool) {
        for (_, state) in self.states.iter_mut().filter(|(key, state)| state.told == Some(at) && of(key)) {
            state.tell_again(now);
        }
    }

    /// What is to be said of a state to a home that does not know it.
    fn of(&mut self, key: &Key, at: HomeAt) -> Option<(Tenant, Vec<RosterAsk>)> {
        let state = self.states.get_mut(key).filter(|state| state.told != Some(at))?;
        (state.told, state.due) = (Some(at), None);
        let recite = |commit| RosterAsk::Recite { restart: state.restart, whole: state.whole, commit };
        let commits = state.ranks.values().flat_map(|rank| rank.versions.values());
        let mut asks: Vec<_> = commits.map(|commit| recite(Some(commit.clone()))).collect();
        if asks.is_empty() && state.whole.is_some() {
            asks.push(recite(None));
        }
        Some((state.tenant, asks))
    }

    /// When the home of a state is looked for next.
    pub(super) fn due(&self) -> Option<Time> {
        self.states.values().filter_map(|state| state.due).min()
    }
}

impl Counters {
    /// Remembers the answer of a roster to a worker of this node.
    pub(super) fn remember(&mut self, op: &Op, outcome: &Outcome) {
        let Outcome::Roster(answer) = outcome else { return };
        let at = match op.stage {
            Stage::Called(link, _) => HomeAt::Over(link),
            _ => HomeAt::Here,
        };
        match (&op.ask, answer) {
            (CounterAsk::Roster(RosterAsk::Commit(commit)), RosterAnswer::Committed { whole, .. }) => {
                self.recitals.committed((&op.key, op.tenant), at, commit, *whole);
                self.wake(self.recitals.states.get(&op.key).and_then(|state| state.due));
            }
            (CounterAsk::Roster(RosterAsk::Forget { .. }), RosterAnswer::State { restart, whole, .. }) => {
                self.recitals.change(&op.key, |state| {
                    if *restart == state.restart && state.tenant == op.tenant {
                        state.whole = *whole;
                    }
                });
            }
            (_, RosterAnswer::State { restart, whole, .. }) => {
                self.recitals.change(&op.key, |state| {
                    if state.tenant == op.tenant {
                        state.learn(*restart, *whole);
                    }
                });
            }
            _ => {}
        }
    }

    /// Forgets the commits of a worker that has gone, with its shards.
    pub(crate) fn worker_gone(&mut self, name: &Name, tenant: Tenant) {
        let keys: Vec<Key> = self.recitals.states.keys().cloned().collect();
        for key in keys {
            self.recitals.change(&key, |state| {
                let is_other = state.tenant != tenant;
                state.ranks.retain(|_, rank| is_other || rank.worker != *name);
                state.count();
            });
        }
    }

    /// The home at the other end of this link is lost, or lives there no longer.
    pub(super) fn home_lost(&mut self, now: Time, link: LinkId, key: Option<&Key>) {
        self.recitals.lost(now, HomeAt::Over(link), |of| key.is_none_or(|key| key == of));
        self.wake(self.recitals.due());
    }

    /// The roster of this state lives here no longer.
    pub(super) fn lost_here(&mut self, now: Time, key: &Key) {
        self.recitals.lost(now, HomeAt::Here, |of| of == key);
        self.wake(self.recitals.due());
    }

    /// Says to a new roster that lives here what this node knows.
    pub(super) fn recite_here(&mut self, now: Time, key: &Key) {
        let Some((tenant, asks)) = self.recitals.of(key, HomeAt::Here) else { return };
        if !self.rules.breaks(Broken::ForgetsCommits) {
            for ask in asks {
                self.hear(now, (key, tenant), self.name.clone(), ask);
            }
        }
    }

    /// Says to the home at the other end of this link what this node knows, unless it has said so before.
    pub(super) fn recite_to(&mut self, link: LinkId, key: &Key) {
        let Some((tenant, asks)) = self.recitals.of(key, HomeAt::Over(link)) else { return };
        let Some(peer) = self.links.get(&link).map(|l| &l.peer) else { return };
        let may_say = self.tenants.vouched(&self.name, (&peer.name, &peer.vouches), tenant).is_ok();
        if may_say && !self.rules.breaks(Broken::ForgetsCommits) {
            let say = |ask| Effect::Ask(link, 0, Asked { key: key.clone(), tenant, what: AskedFor::Roster(ask) });
            self.effects.extend(asks.into_iter().map(say));
        }
    }

    /// Handles a link that is up: says what its peer has to know as the next home.
    pub(crate) fn reached(&mut self, link: LinkId) {
        let Some(peer) = self.links.get(&link).map(|l| l.peer.name.clone()) else { return };
        let is_due = |(key, state): (&Key, &State)| {
            (state.told.is_none() && self.claims.home_of(key) == Some(&peer)).then(|| key.clone())
        };
        let keys: Vec<Key> = self.recitals.states.iter().filter_map(is_due).collect();
        for key in keys {
            self.recite_to(link, &key);
        }
    }

    /// Handles what another node recites. It is not answered. A node that is not the home says so.
    pub(crate) fn recited(&mut self, now: Time, link: LinkId, (key, tenant): (Key, Tenant), ask: RosterAsk) {
        let Some(node) = self.links.get(&link).map(|l| l.peer.name.clone()) else { return };
        match self.by_key.get_mut(&key) {
            Some(Claimed::Home(_)) => self.hear(now, (&key, tenant), node, ask),
            Some(Claimed::Claiming(claiming)) if claiming.recited.len() < Claiming::MAX_RECITED => {
                claiming.recited.push((link, tenant, ask));
            }
            _ => self.effects.push(Effect::TellEnded(link, key)),
        }
    }

    /// Looks for the homes that are due.
    pub(super) fn look_for_homes(&mut self, now: Time) {
        let due = |(key, state): (&Key, &mut State)| {
            state.due.filter(|due| *due <= now)?;
            state.may_look_at = now + RETRY_INTERVAL;
            state.due = Some(state.may_look_at);
            Some((key.clone(), state.tenant))
        };
        let due: Vec<_> = self.recitals.states.iter_mut().filter_map(due).collect();
        for (key, tenant) in due {
            // What was known may be the lost one.
            self.forget_home_of(&key);
            self.look_for_home(now, key, tenant);
        }
    }

    fn look_for_home(&mut self, now: Time, key: Key, tenant: Tenant) {
        match self.by_key.get_mut(&key) {
            Some(Claimed::Home(_)) => self.recite_here(now, &key),
            Some(Claimed::Claiming(claiming)) => claiming.recites = true,
            None => {
                let claiming = Claiming { recites: true, ..Claiming::default() };
                self.begin_claim(key, tenant, claiming);
            }
        }
    }
}

impl Request {
    /// Whether it is no question, and has no answer.
    pub(crate) fn is_recital(&self) -> bool {
        matches!(self, Request::Roster(RosterAsk::Recite { .. }))
    }
}

#[cfg(test)]
#[path = "recital_tests.rs"]
mod tests;
