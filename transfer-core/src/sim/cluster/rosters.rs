//! Sharded states: ranks that commit versions and make them whole, readers that ask and hold, and the checks of the answers.
//!
//! A worker does what the client's library does, without the bytes: it commits; if it was the last, it lists the ranks, which are the
//! manifest, and says that this is published. The workers of a tenant are the ranks of one state. A restart begins its versions again:
//! each *epoch* has the same versions and a restart of its own. Here a version has a number that says both, see [`epoch_of`].

mod checks;

use super::Cluster;
use super::worker::{What, Worker};
use crate::op::{Command, CommittedRank, CounterAsk, CounterCommand, Failure, FailureCode, OpId, RankCommit, Request};
use crate::op::{RosterAnswer, RosterAsk, digest_of_ranks};
use crate::protocol::Tenant;
use crate::tensor::{Key, Name, Version};
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The versions that each rank makes in a calm schedule.
const CALM_VERSIONS: u64 = 3;

/// The versions of an epoch, as they are numbered here.
const VERSIONS: u64 = 1000;

/// A set of ranks: the instance of each.
type Ranks = BTreeMap<u32, u64>;

/// The first version of an epoch.
fn first_of(epoch: u64) -> u64 {
    epoch * VERSIONS
}

/// The epoch of a version.
fn epoch_of(version: u64) -> u64 {
    version / VERSIONS
}

/// The version as its roster knows it.
fn in_epoch(version: u64) -> Version {
    Version(version % VERSIONS)
}

/// What is known of all states.
#[derive(Default)]
pub(super) struct Rosters {
    states: BTreeMap<Tenant, State>,
    /// The restart of the first epoch.
    first_restart: u64,
    next_instance: u64,
    /// The newest whole version that each roster has had, by its identity.
    whole_at: BTreeMap<u64, u64>,
}

impl Rosters {
    pub(super) fn new(seed: u64) -> Rosters {
        Rosters { first_restart: seed % 2, ..Rosters::default() }
    }

    fn restart_of(&self, epoch: u64) -> u64 {
        self.first_restart + epoch
    }

    /// The number of a version that a roster with this restart names.
    fn version(&self, restart: u64, Version(version): Version) -> u64 {
        first_of(restart.saturating_sub(self.first_restart)) + version
    }
}

#[derive(Default)]
struct State {
    /// The epoch that the ranks are to be in.
    epoch: u64,
    /// The newest epoch for which a commit was sent.
    sent_epoch: u64,
    /// The newest epoch of a commit that was answered.
    answered_epoch: u64,
    /// The instances of each rank of each version for which a commit was sent.
    sent: BTreeMap<(u64, u32), BTreeSet<u64>>,
    /// Commits that were answered, are the last of their rank, and were not taken back.
    answered: BTreeMap<(u64, u32), u64>,
    /// The manifests of each version of which a home was told.
    published: BTreeMap<u64, Vec<Ranks>>,
    /// The manifest of each version that is whole, as its worker has been told.
    whole: BTreeMap<u64, Ranks>,
    /// The newest version that was said to be whole.
    seen: Option<u64>,
}

impl State {
    /// Whether commits of this version were sent for all of these ranks.
    fn are_sent(&self, version: u64, ranks: &Ranks) -> bool {
        let is_sent = |(rank, instance): (&u32, &u64)| {
            self.sent.get(&(version, *rank)).is_some_and(|instances| instances.contains(instance))
        };
        ranks.iter().all(is_sent)
    }
}

/// A worker as a rank.
#[derive(Debug, Default)]
pub(super) struct Rank {
    epoch: u64,
    version: u64,
    instance: u64,
    next: Next,
    /// Holds that a later answer has confirmed.
    held: BTreeSet<OpId>,
    /// A commit was answered.
    has_home: bool,
}

/// What a rank does next.
#[derive(Debug, Default, Clone)]
enum Next {
    #[default]
    Commit,
    Withdraw,
    /// List the ranks of a version that was complete with this digest.
    List(u64),
    Publish(u64, Ranks),
    /// Wait until the version is whole.
    Await,
    /// Wait for the answer.
    Nothing,
}

/// A question to a roster.
pub(super) struct Question {
    ask: RosterAsk,
    /// The version that is asked about, with its epoch.
    version: u64,
    /// The newest epoch of a commit that was answered before.
    epoch: u64,
    /// The newest version that was known to be whole when it was asked.
    floor: Option<u64>,
    /// A commit of this worker was answered before, so the state has its home, and its node knows it.
    has_home: bool,
    /// Holds that have to be listed if they last until the answer.
    held: Vec<(usize, OpId)>,
    /// Ranks whose commits of the version were answered before.
    committed: Vec<(u32, u64)>,
    /// The homes of the state when it was asked.
    homes: BTreeSet<u64>,
    digest: u64,
    manifest: Ranks,
}

impl Cluster {
    fn rank_of(&self, worker: usize) -> (u32, u32) {
        let of = |w: &Worker| w.domain == self.workers[worker].domain;
        let rank = self.workers[..worker].iter().filter(|w| of(w)).count();
        (u32::try_from(rank).unwrap(), u32::try_from(self.workers.iter().filter(|w| of(w)).count()).unwrap())
    }

    fn workers_of(&self, of: Tenant) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(move |w| w.domain == of)
    }

    fn state(&mut self, worker: usize) -> &mut State {
        self.rosters.states.entry(self.workers[worker].domain).or_default()
    }

    /// Whether a rank has made all versions of a calm schedule.
    pub(super) fn is_rank_done(&self, worker: usize) -> bool {
        self.workers[worker].rank.version > first_of(0) + CALM_VERSIONS
    }

    /// Does the next step of a rank, or asks something.
    pub(super) fn act_as_rank(&mut self, worker: usize) {
        let begins = self.workers[worker].rank.version == 0;
        let is_idle = matches!(self.workers[worker].rank.next, Next::Commit);
        if begins || is_idle && !self.play.calm && self.chance(3) {
            self.begin_epoch(worker, begins);
        } else if is_idle && !self.play.calm && self.chance(10) {
            self.commit_again(worker);
        }
        let next = match self.workers[worker].rank.next.clone() {
            Next::Commit if self.play.calm && self.is_rank_done(worker) => Next::Nothing,
            _ if self.chance(25) => Next::Nothing,
            next => next,
        };
        let version = self.workers[worker].rank.version;
        let (rank, instance) = (self.rank_of(worker).0, self.workers[worker].rank.instance);
        match next {
            Next::Commit => self.commit(worker),
            Next::Withdraw => {
                self.state(worker).answered.remove(&(version, rank));
                let ask = RosterAsk::Withdraw { version: in_epoch(version), rank, instance };
                self.ask_next(worker, version, ask, 0, Ranks::new());
            }
            Next::List(digest) => {
                let ask = RosterAsk::Ranks { version: in_epoch(version), from: 0 };
                self.ask_next(worker, version, ask, digest, Ranks::new());
            }
            Next::Publish(digest, ranks) => self.publish(worker, version, digest, ranks),
            Next::Await => {
                let restart = self.rosters.restart_of(epoch_of(version));
                let ask = RosterAsk::UntilWhole { restart, version: in_epoch(version), rank: Some(rank) };
                self.ask_next(worker, version, ask, 0, Ranks::new());
            }
            Next::Nothing => self.ask_as_reader(worker),
        }
    }

    /// Moves a rank into the epoch of its state, which may be a new one.
    fn begin_epoch(&mut self, worker: usize, begins: bool) {
        let state = self.rosters.states.entry(self.workers[worker].domain).or_default();
        if !begins {
            state.epoch += 1;
        }
        let rank = &mut self.workers[worker].rank;
        (rank.epoch, rank.version) = (state.epoch, first_of(state.epoch) + 1);
        rank.next = Next::Commit;
        self.rosters.next_instance += 1;
        rank.instance = self.rosters.next_instance;
    }

    /// Makes a rank commit its last version again, as a worker does that comes back. The version may be complete by now.
    fn commit_again(&mut self, worker: usize) {
        self.rosters.next_instance += 1;
        let rank = &mut self.workers[worker].rank;
        if rank.version > first_of(rank.epoch) + 1 {
            (rank.version, rank.instance) = (rank.version - 1, self.rosters.next_instance);
        }
    }

    fn commit(&mut self, worker: usize) {
        let (number, world_size) = self.rank_of(worker);
        // Some are left over from an earlier epoch.
        if self.workers[worker].rank.epoch < self.state(worker).epoch && (self.play.calm || self.chance(70)) {
            self.begin_epoch(worker, true);
        }
        let &Rank { epoch, version, instance, .. } = &self.workers[worker].rank;
        let state = self.state(worker);
        state.sent_epoch = state.sent_epoch.max(epoch);
        let sent = state.sent.entry((version, number)).or_default();
        if sent.insert(instance) && sent.len() > 1 {
            state.answered.remove(&(version, number));
        }
        let (layout, restart) = (instance % 2, self.rosters.restart_of(epoch));
        let (rank, worker_name) = (number, None);
        let commit =
            RankCommit { version: in_epoch(version), rank, world_size, restart, instance, layout, worker: worker_name };
        self.ask_next(worker, version, RosterAsk::Commit(commit), 0, Ranks::new());
    }

    fn publish(&mut self, worker: usize, version: u64, digest: u64, ranks: Ranks) {
        let restarts = self.play.restarts;
        let state = self.state(worker);
        // The manifest of a home that was lost is still there, and no other takes its place under the key of the state.
        let is_refused = |published: &Vec<Ranks>| restarts && !published.contains(&ranks);
        if state.published.get(&version).is_some_and(is_refused) {
            return self.go_on(worker);
        }
        let manifests = state.published.entry(version).or_default();
        if !manifests.contains(&ranks) {
            manifests.push(ranks.clone());
        }
        let ask = RosterAsk::Published { version: in_epoch(version), ranks: digest };
        self.ask_next(worker, version, ask, digest, ranks);
    }

    /// Goes on with the next version.
    fn go_on(&mut self, worker: usize) {
        self.rosters.next_instance += 1;
        let rank = &mut self.workers[worker].rank;
        (rank.version, rank.instance, rank.next) = (rank.version + 1, self.rosters.next_instance, Next::Commit);
    }

    fn ask_next(&mut self, worker: usize, version: u64, ask: RosterAsk, digest: u64, manifest: Ranks) {
        self.workers[worker].rank.next = Next::Nothing;
        let timeout = self.timeout();
        let of = self.workers[worker].domain;
        self.ask_roster(worker, (of, version), ask, (digest, manifest), timeout);
    }

    fn ask_as_reader(&mut self, worker: usize) {
        let number = (self.workers[worker].rank.version + self.rng.random_range(0..3)).saturating_sub(2);
        let version = in_epoch(number);
        let (ask, timeout) = match self.rng.random_range(0..9) {
            0..2 => (RosterAsk::Hold { version }, self.delay * [5, 30, 300][self.rng.random_range(0..3)]),
            2 => (RosterAsk::Missing { version }, self.timeout()),
            3 => (RosterAsk::Ranks { version, from: 0 }, self.timeout()),
            8 if self.play.restarts => (RosterAsk::Missing { version }, self.timeout()),
            _ => (RosterAsk::Look, self.timeout()),
        };
        let of = self.workers[worker].domain;
        self.ask_roster(worker, (of, number), ask, (0, Ranks::new()), timeout);
        let holds: Vec<OpId> = self.holds_of(worker).map(|(op, _)| op).collect();
        if !holds.is_empty() && self.chance(20) {
            let op = holds[self.rng.random_range(0..holds.len())];
            self.request(worker, Request::Cancel { op });
        }
    }

    fn ask_roster(
        &mut self,
        worker: usize,
        (of, version): (Tenant, u64),
        ask: RosterAsk,
        (digest, manifest): (u64, Ranks),
        timeout: Duration,
    ) {
        let mut held = Vec::new();
        // A link that is lost ends a hold at its home before its worker knows.
        if self.play.calm {
            held.extend(self.holds_of(worker).map(|(op, _)| (worker, op)));
            held.extend((0..self.workers.len()).filter(|other| self.workers[*other].domain == of).flat_map(|other| {
                let confirmed = self.workers[other].rank.held.iter();
                confirmed.map(move |op| (other, *op))
            }));
        }
        let mut committed = Vec::new();
        if let RosterAsk::Missing { .. } = &ask {
            let answered = self.state(worker).answered.range((version, 0)..=(version, u32::MAX));
            committed.extend(answered.map(|((_, rank), instance)| (*rank, *instance)));
            if self.play.restarts {
                // Others may not have recited theirs to a home that is new.
                let node = self.workers[worker].node;
                let is_beside = |rank| self.workers_of(of).nth(rank as usize).is_some_and(|w| w.node == node);
                committed.retain(|(rank, _)| is_beside(*rank));
            }
        }
        let state = self.state(worker);
        let (floor, epoch) = (state.seen, state.answered_epoch);
        let has_home = self.workers[worker].rank.has_home;
        let homes = self.homes_of(of);
        let question =
            Question { ask: ask.clone(), version, epoch, floor, has_home, held, committed, homes, digest, manifest };
        let op = self.ask(worker, What::Roster(Box::new(question)), timeout);
        let name = Name::new(&name_of(of)).unwrap();
        self.command(worker, op, Command::Counter(CounterCommand { name, ask: CounterAsk::Roster(ask), timeout }));
    }

    /// The identities of the rosters of a state.
    fn homes_of(&self, of: Tenant) -> BTreeSet<u64> {
        let rosters = self.nodes.iter().flat_map(|node| node.driver.node.rosters());
        rosters.filter(|(key, ..)| is_of(key, of)).map(|(_, identity, _)| identity).collect()
    }

    /// The holds of a worker that have not ended. Those count that were begun when the state had its home.
    fn holds_of(&self, worker: usize) -> impl Iterator<Item = (OpId, Version)> {
        self.workers[worker].ops.iter().filter_map(|(op, asked)| match &asked.what {
            What::Roster(question) => match question.ask {
                RosterAsk::Hold { version } if question.has_home => Some((*op, version)),
                _ => None,
            },
            _ => None,
        })
    }

    pub(super) fn roster_answered(&mut self, worker: usize, op: OpId, answer: RosterAnswer) -> Result<(), String> {
        let What::Roster(question) = self.ended(worker, op)? else {
            return Err(format!("{op:?} is answered by a roster, and asked none"));
        };
        let Question { ask, version, epoch, floor, held, committed, homes, digest, manifest, .. } = *question;
        match (ask, answer) {
            (RosterAsk::Commit(commit), RosterAnswer::Committed { is_last, whole, ranks }) => {
                self.check_whole(worker, floor, (commit.restart, whole))?;
                if epoch > epoch_of(version) && !self.play.restarts {
                    return Err(format!("{commit:?} is counted after one of epoch {epoch}"));
                }
                self.committed(worker, version, &commit, (is_last, ranks))
            }
            (RosterAsk::Withdraw { .. }, RosterAnswer::State { restart, whole, .. }) => {
                self.check_whole(worker, floor, (restart, whole))?;
                if self.chance(50) {
                    self.go_on(worker);
                } else {
                    self.rosters.next_instance += 1;
                    let rank = &mut self.workers[worker].rank;
                    (rank.instance, rank.next) = (self.rosters.next_instance, Next::Commit);
                }
                Ok(())
            }
            (RosterAsk::Ranks { .. }, RosterAnswer::Ranks { world_size, next, ranks }) => {
                let found: Ranks = ranks.iter().map(|rank| (rank.rank, rank.instance)).collect();
                self.check_sent(worker, version, &found)?;
                if digest != 0 {
                    let is_all = next.is_none() && found.len() == world_size as usize && world_size > 0;
                    match is_all {
                        true => {
                            let digest = digest_of_ranks(ranks.iter().map(CommittedRank::digested));
                            self.workers[worker].rank.next = Next::Publish(digest, found);
                        }
                        false => self.go_on(worker),
                    }
                }
                Ok(())
            }
            (RosterAsk::Published { .. }, RosterAnswer::State { restart, whole, .. }) => {
                self.check_whole(worker, floor, (restart, whole))?;
                self.is_whole(worker, version, manifest)
            }
            (RosterAsk::Missing { .. }, RosterAnswer::Missing { first, .. }) => {
                // A home that was made meanwhile may have been asked before this node knew that the one before was lost.
                match self.homes_of(self.workers[worker].domain).is_subset(&homes) {
                    true => self.check_missing(worker, version, &committed, &first),
                    false => Ok(()),
                }
            }
            (RosterAsk::UntilWhole { .. }, RosterAnswer::State { restart, whole, .. }) => {
                self.check_whole(worker, floor, (restart, whole))?;
                let whole = whole.map(|whole| self.rosters.version(restart, whole));
                if whole < Some(version) {
                    return Err(format!("{version} is awaited, and {whole:?} is whole"));
                }
                self.go_on(worker);
                Ok(())
            }
            (RosterAsk::UntilWhole { .. }, RosterAnswer::Committed { is_last: true, ranks, .. }) => {
                self.workers[worker].rank.next = Next::List(ranks);
                Ok(())
            }
            (RosterAsk::Look, RosterAnswer::State { restart, whole, held: listed, .. }) => {
                self.check_whole(worker, floor, (restart, whole))?;
                self.check_held(&held, &listed)
            }
            (ask, answer) => Err(format!("{ask:?} is answered by {answer:?}")),
        }
    }

    fn committed(
        &mut self,
        worker: usize,
        version: u64,
        commit: &RankCommit,
        (is_last, digest): (bool, u64),
    ) -> Result<(), String> {
        let RankCommit { rank, world_size, instance, .. } = *commit;
        self.tally.committed += 1;
        self.workers[worker].rank.has_home = true;
        let state = self.state(worker);
        state.answered_epoch = state.answered_epoch.max(epoch_of(version));
        state.answered.insert((version, rank), instance);
        let missing = (0..world_size).find(|rank| !state.sent.contains_key(&(version, *rank)));
        if let Some(missing) = missing.filter(|_| is_last || digest != 0) {
            return Err(format!("{version} is complete, and rank {missing} has not committed it"));
        }
        match is_last {
            true => self.workers[worker].rank.next = Next::List(digest),
            false if self.chance(30) => self.workers[worker].rank.next = Next::Await,
            false => self.go_on(worker),
        }
        Ok(())
    }

    fn is_whole(&mut self, worker: usize, version: u64, manifest: Ranks) -> Result<(), String> {
        self.tally.whole += 1;
        let whole = self.state(worker).whole.entry(version).or_insert_with(|| manifest.clone());
        if *whole != manifest {
            return Err(format!("version {version} is whole for {whole:?}, and for {manifest:?}"));
        }
        self.go_on(worker);
        Ok(())
    }

    /// Handles a question that has failed, or whose worker is gone.
    pub(super) fn roster_failed(&mut self, worker: usize, what: &What, failure: Option<&Failure>) {
        let What::Roster(question) = what else { return };
        let Question { ask, digest, manifest, .. } = &**question;
        let code = failure.map(|failure| failure.code);
        let next = match ask {
            // Sometimes again, since its answer may be lost.
            RosterAsk::Commit(_) if code == Some(FailureCode::VersionNotRising) => return self.go_on(worker),
            RosterAsk::Commit(_) if self.chance(50) => Next::Commit,
            RosterAsk::Commit(_) | RosterAsk::Withdraw { .. } => Next::Withdraw,
            RosterAsk::Published { .. } if code == Some(FailureCode::VersionGone) => return self.go_on(worker),
            RosterAsk::Published { .. } => Next::Publish(*digest, manifest.clone()),
            RosterAsk::Ranks { .. } if *digest != 0 => Next::List(*digest),
            RosterAsk::UntilWhole { .. } => return self.go_on(worker),
            _ => return,
        };
        self.workers[worker].rank.next = next;
    }

    /// A worker is gone, and what it has published. Its node does not recite its commits any more.
    pub(super) fn rank_is_gone(&mut self, worker: usize) {
        if self.play.restarts && self.play.rosters {
            let (number, _) = self.rank_of(worker);
            self.state(worker).answered.retain(|(_, rank), _| *rank != number);
        }
    }

    /// Makes a worker that was gone a new process: of what it has committed it knows the version.
    pub(super) fn rank_is_new(&mut self, worker: usize) {
        if self.workers[worker].rank.version == 0 {
            return;
        }
        self.workers[worker].rank.held.clear();
        if self.chance(30) {
            return self.go_on(worker);
        }
        self.rosters.next_instance += 1;
        let rank = &mut self.workers[worker].rank;
        (rank.instance, rank.next) = (self.rosters.next_instance, Next::Commit);
    }

    pub(super) fn can_roster_fail(&self, what: &What, code: FailureCode) -> bool {
        let What::Roster(question) = what else { return false };
        match (&question.ask, code) {
            (RosterAsk::Commit(_), FailureCode::VersionNotRising | FailureCode::VersionGone) => true,
            // Its worker has moved, or the directory does not hear its node.
            (RosterAsk::Commit(_), FailureCode::KeyOwned) => !self.play.calm,
            (RosterAsk::Published { .. } | RosterAsk::UntilWhole { .. }, FailureCode::VersionGone) => true,
            (RosterAsk::Ranks { .. }, FailureCode::VersionGone) => true,
            // Some end before they have begun.
            (RosterAsk::Hold { .. }, FailureCode::Deadline | FailureCode::Cancelled) => true,
            (RosterAsk::Hold { .. }, FailureCode::DirectoryUnreachable | FailureCode::PeerUnreachable) => true,
            (_, FailureCode::CounterLost) => self.play.restarts,
            _ => false,
        }
    }
}

fn name_of(tenant: Tenant) -> String {
    format!("state{}", tenant.user_id().unwrap_or_default())
}

fn is_of(key: &Key, tenant: Tenant) -> bool {
    key.reserved_for().is_some_and(|(_, name)| name == name_of(tenant))
}
