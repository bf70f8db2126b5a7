//! A roster: the ranks that have committed each version of a sharded state, and who holds versions.
//!
//! A version is *complete* when all its ranks have committed, and *whole* once its manifest is published. Whole versions rise.
//! When one becomes whole, all earlier ones that are not whole end. So at most
//! [`Limits::unfinished_versions`](crate::protocol::Limits) versions are kept, and a commit of another one waits.

mod commit;
mod relocations;
mod unfinished;

use super::barrier::Waiter;
use crate::op::{CommittedRank, Failure, FailureCode, MAX_LISTED_RANKS, MAX_WORLD_SIZE};
use crate::op::{RankCommit, RosterAnswer, RosterAsk};
use crate::protocol::rules::{Broken, Rules};
use crate::protocol::snapshot::UnfinishedVersion;
use crate::tensor::{Name, Version};
use crate::time::Time;
use crate::wire::roster::{MAX_LIST_BYTES, rank_bytes};
use commit::Committing;
use relocations::Relocations;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;
use unfinished::{Committed, Unfinished};

/// The most commits that all rosters of one node hold. Those of one tenant may hold three quarters of them.
pub(super) const MAX_COMMITS: usize = 1 << 18;

/// The time in which a roster that is new hears what most nodes recite of the one before: questions wait so long.
const SETTLING: Duration = Duration::from_secs(5);

/// The time in which all others have noticed, too, that a home is lost, and have said what they know. Links notice a silent host 15 to
/// 20 s after its last packet. Nothing is deleted before.
const HEARING: Duration = Duration::from_secs(10);

/// The instances of ranks.
type RankInstances = BTreeMap<u32, u64>;

/// What a roster has, for tests: versions with the instances of their ranks.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct RosterContents {
    pub(crate) restart: u64,
    pub(crate) whole: Option<(Version, RankInstances)>,
    pub(crate) unfinished: BTreeMap<Version, RankInstances>,
}

#[derive(Debug)]
pub(super) struct Roster {
    /// The number with which the versions have begun: the highest that a rank has said.
    restart: u64,
    whole: Option<Version>,
    /// The instances of the ranks of that version.
    whole_ranks: RankInstances,
    /// The digest with which it was published.
    whole_digest: u64,
    unfinished: BTreeMap<Version, Unfinished>,
    waiting: Vec<Waiting>,
    relocations: Relocations,
    holds: Vec<(Waiter, Version)>,
    /// When it was made, perhaps in the place of one that was lost with its home.
    made_at: Time,
    /// Whether a version was published here.
    has_published: bool,
    /// Whether a version was forgotten here that was whole.
    has_forgotten: bool,
    /// Whether a node has recited: there was a home before this one, with holds that come again.
    has_heard: bool,
    /// Whether questions wait no longer for what others recite.
    is_settled: bool,
    /// Whether it is there for so long that all others have recited what they know.
    has_heard_all: bool,
    /// The most versions that are not whole.
    unfinished_versions: u64,
    rules: Rules,
}

/// A question that waits.
#[derive(Debug)]
struct Waiting {
    who: Asker,
    ask: RosterAsk,
}

/// Who asks.
#[derive(Debug, Clone)]
pub(super) struct Asker {
    pub(super) waiter: Waiter,
    /// The node of its worker.
    pub(super) node: Name,
    pub(super) now: Time,
}

/// The answer to a question, which may have waited.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) waiter: Waiter,
    pub(super) result: Result<RosterAnswer, Failure>,
}

impl Roster {
    pub(super) fn new(unfinished_versions: u64, rules: Rules, now: Time) -> Roster {
        Roster {
            restart: 0,
            whole: None,
            whole_ranks: RankInstances::new(),
            whole_digest: 0,
            unfinished: BTreeMap::new(),
            waiting: Vec::new(),
            relocations: Relocations::default(),
            holds: Vec::new(),
            made_at: now,
            has_published: false,
            has_forgotten: false,
            has_heard: false,
            is_settled: false,
            has_heard_all: false,
            unfinished_versions,
            rules,
        }
    }

    /// Whether there is room for another version that is not whole.
    fn has_room(&self) -> bool {
        (self.unfinished.len() as u64) < self.unfinished_versions
    }

    /// Handles a question about the state of this name. Returns its answer, unless it waits, and the answers of those that waited
    /// for it.
    pub(super) fn ask(&mut self, name: &str, who: Asker, ask: RosterAsk) -> Vec<Answered> {
        let mut answered = Vec::new();
        let now = who.now;
        self.one(name, now, who, ask, &mut answered);
        answered
    }

    /// Hears what another node recites of the last home. Returns the answers of those that waited for it. A commit that is here already
    /// stays, and a few more versions than usual may be unfinished: this is their last chance. What is whole, and which restart is the
    /// newest, a roster knows better that has lived for so long, or was told so by those who publish.
    pub(super) fn recite(&mut self, name: &str, now: Time, node: Name, recited: RosterAsk) -> Vec<Answered> {
        let mut answered = Vec::new();
        let RosterAsk::Recite { restart, whole, commit } = recited else { return answered };
        self.pass(now);
        let is_certain = self.has_published || self.has_forgotten || self.has_heard_all;
        self.has_heard |= !is_certain;
        if restart < self.restart || is_certain && restart > self.restart {
            return answered;
        }
        if restart > self.restart {
            self.begin_again(name, restart, &mut answered);
        }
        let mut has_changed = whole > self.whole && !is_certain;
        if has_changed {
            (self.whole, self.whole_digest) = (whole, 0);
            self.whole_ranks.clear();
            self.unfinished.retain(|version, _| Some(*version) > whole);
        }
        if let Some(commit) = commit {
            has_changed |= self.recite_commit(now, node, commit);
        }
        if has_changed {
            self.look_again(name, now, &mut answered);
        }
        answered
    }

    /// Returns whether the version is complete by it.
    fn recite_commit(&mut self, now: Time, node: Name, commit: RankCommit) -> bool {
        let RankCommit { version, rank, world_size, instance, layout, worker, .. } = commit;
        let is_valid = (1..=MAX_WORLD_SIZE).contains(&world_size) && rank < world_size;
        let is_new = !self.unfinished.contains_key(&version);
        let has_room = (self.unfinished.len() as u64) < self.unfinished_versions.saturating_mul(2);
        if !is_valid || Some(version) <= self.whole || is_new && !has_room {
            return false;
        }
        let unfinished = self.unfinished.entry(version).or_insert_with(|| Unfinished {
            world_size,
            ranks: BTreeMap::new(),
            last: None,
            since: now,
        });
        if unfinished.world_size != world_size || unfinished.ranks.contains_key(&rank) {
            return false;
        }
        let worker = worker.unwrap_or_else(|| node.clone());
        unfinished.ranks.insert(rank, Committed { instance, layout, worker, node });
        unfinished.is_complete()
    }

    /// When questions that wait are to be looked at again because the roster is settled then. `None`: none waits for that.
    pub(super) fn settles_at(&self) -> Option<Time> {
        (!self.is_settled && !self.waiting.is_empty()).then(|| self.made_at + SETTLING)
    }

    /// Looks at the questions that wait, since time has passed.
    pub(super) fn settle(&mut self, name: &str, now: Time) -> Vec<Answered> {
        let mut answered = Vec::new();
        self.pass(now);
        self.look_again(name, now, &mut answered);
        answered
    }

    /// Notes that time has passed.
    fn pass(&mut self, now: Time) {
        self.is_settled |= now >= self.made_at + SETTLING;
        self.has_heard_all |= now >= self.made_at + HEARING;
    }

    fn one(&mut self, name: &str, now: Time, who: Asker, ask: RosterAsk, answered: &mut Vec<Answered>) {
        self.pass(now);
        if self.waits(&ask) {
            return self.waiting.push(Waiting { who, ask });
        }
        let result = match &ask {
            RosterAsk::Commit(commit) => match self.commit(name, &who, commit, false, answered) {
                Committing::Answer(result) => result,
                Committing::WaitsForRoom => return self.waiting.push(Waiting { who, ask }),
                Committing::Moves(worker) => return self.relocations.add(who, commit.clone(), worker),
            },
            RosterAsk::UntilWhole { restart, version, rank } => self.until_whole(name, *restart, *version, *rank),
            // Nobody asks so.
            RosterAsk::Recite { .. } => Ok(self.state()),
            RosterAsk::Withdraw { version, rank, instance } => {
                // All have committed it here, and not at a home before: so it was whole nowhere.
                let is_own = !self.has_heard && self.unfinished.get(version).is_some_and(Unfinished::is_complete);
                self.take_back(*version, *rank, *instance);
                self.look_again(name, now, answered);
                Ok(self.state_of(is_own || self.knows_all()))
            }
            RosterAsk::Published { version, ranks } => self.published(name, now, (*version, *ranks), answered),
            RosterAsk::Forget { restart, version } => {
                if (self.restart, self.whole) == (*restart, Some(*version)) {
                    self.end_whole();
                    self.has_forgotten = true;
                }
                Ok(self.state())
            }
            RosterAsk::Ranks { version, from } => Ok(self.ranks(*version, *from)),
            RosterAsk::Missing { version } => Ok(self.missing(*version)),
            RosterAsk::Look => Ok(self.state()),
            RosterAsk::Hold { version } => return self.holds.push((who.waiter, *version)),
        };
        answered.push(Answered { waiter: who.waiter, result });
    }

    /// Begins the versions again: nothing of before is whole, or becomes whole.
    fn begin_again(&mut self, name: &str, restart: u64, answered: &mut Vec<Answered>) {
        // A roster that is new has ended nothing, and hears of the attempts in any order: what waits may be about the versions that begin.
        let had_any = self.is_settled && (self.whole.is_some() || !self.unfinished.is_empty());
        let before = std::mem::replace(&mut self.restart, restart);
        self.end_whole();
        self.unfinished.clear();
        for Waiting { who, .. } in
            self.waiting.extract_if(.., |waiting| !waiting.ask.restart().map_or(!had_any, |of| of >= restart))
        {
            let text = format!(
                "restart {before} of state {name:?} has ended: its versions have begun again with restart {restart}"
            );
            let result = Err(Failure::new(FailureCode::VersionGone, text));
            answered.push(Answered { waiter: who.waiter, result });
        }
    }

    fn end_whole(&mut self) {
        self.whole = None;
        self.whole_ranks.clear();
    }

    fn published(
        &mut self,
        name: &str,
        now: Time,
        (version, ranks): (Version, u64),
        answered: &mut Vec<Answered>,
    ) -> Result<RosterAnswer, Failure> {
        if self.whole == Some(version) && self.whole_digest == ranks {
            return Ok(self.state());
        }
        let takes_any = self.rules.breaks(Broken::PublishesOtherRanks);
        let is_this = |unfinished: &Unfinished| unfinished.is_complete() && (takes_any || unfinished.digest() == ranks);
        if !self.unfinished.get(&version).is_some_and(is_this) {
            let text =
                format!("version {} of state {name:?} ended, or a rank of it changed, before it was whole", version.0);
            return Err(Failure::new(FailureCode::VersionGone, text));
        }
        (self.whole, self.whole_digest) = (Some(version), ranks);
        (self.has_published, self.is_settled) = (true, true);
        let ranks = self.unfinished.remove(&version).map(|unfinished| unfinished.ranks).unwrap_or_default();
        self.whole_ranks = ranks.into_iter().map(|(rank, committed)| (rank, committed.instance)).collect();
        self.unfinished.retain(|other, _| *other > version);
        self.look_again(name, now, answered);
        Ok(self.state())
    }

    /// Asks again what waited.
    fn look_again(&mut self, name: &str, now: Time, answered: &mut Vec<Answered>) {
        for Waiting { who, ask } in std::mem::take(&mut self.waiting) {
            self.one(name, now, who, ask, answered);
        }
    }

    /// Whether a question has to wait for what others say. Until the roster is settled, commits of before may come that are recited.
    fn waits(&self, ask: &RosterAsk) -> bool {
        let complete = |version: &Version| self.unfinished.get(version).filter(|unfinished| unfinished.is_complete());
        match ask {
            RosterAsk::UntilWhole { restart, .. } if self.restart > *restart => false,
            RosterAsk::UntilWhole { restart, version, .. }
                if self.restart == *restart && self.whole >= Some(*version) =>
            {
                false
            }
            // It has a manifest. Where nobody knows more of it, as when a whole node has begun anew, that is enough.
            RosterAsk::UntilWhole { version, rank: None, .. } => {
                let knows_nothing = self.whole.is_none() && !self.unfinished.contains_key(version);
                !self.is_settled || self.has_published || !knows_nothing
            }
            // Nobody publishes it, or this rank had to and did not hear so, or has failed.
            RosterAsk::UntilWhole { restart, version, rank } => {
                let is_orphan = complete(version).is_some_and(|of| of.last.is_none() || of.last == *rank);
                !self.is_settled || self.restart < *restart || !is_orphan
            }
            // A later whole version may be one of an attempt before.
            RosterAsk::Published { version, .. } | RosterAsk::Ranks { version, .. } => {
                !self.is_settled && self.whole != Some(*version) && complete(version).is_none()
            }
            _ => false,
        }
    }

    /// Answers that a version is whole, or that this rank has to publish it.
    fn until_whole(
        &mut self,
        name: &str,
        restart: u64,
        version: Version,
        rank: Option<u32>,
    ) -> Result<RosterAnswer, Failure> {
        if restart < self.restart {
            let newer = self.restart;
            let text = format!(
                "restart {restart} of state {name:?} has ended: its versions have begun again with restart {newer}"
            );
            return Err(Failure::new(FailureCode::VersionGone, text));
        }
        match (self.unfinished.get_mut(&version), rank) {
            (Some(unfinished), Some(rank)) if self.whole < Some(version) => {
                unfinished.last = Some(rank);
                Ok(RosterAnswer::Committed { is_last: true, whole: self.whole, ranks: unfinished.digest() })
            }
            _ => Ok(self.state()),
        }
    }

    fn take_back(&mut self, version: Version, rank: u32, instance: u64) {
        let Some(unfinished) = self.unfinished.get_mut(&version) else { return };
        if unfinished.ranks.get(&rank).is_some_and(|own| own.instance == instance) {
            unfinished.ranks.remove(&rank);
            unfinished.last = None;
        }
        if unfinished.ranks.is_empty() {
            self.unfinished.remove(&version);
        }
    }

    /// Whether it knows of what was whole and held at a home before it.
    fn knows_all(&self) -> bool {
        self.has_heard_all || self.has_published && !self.has_heard
    }

    fn state(&self) -> RosterAnswer {
        self.state_of(self.knows_all())
    }

    fn state_of(&self, settled: bool) -> RosterAnswer {
        let mut held: Vec<Version> = self.holds.iter().map(|(_, version)| *version).collect();
        held.sort_unstable_by(|a, b| b.cmp(a));
        held.dedup();
        held.truncate(if self.rules.breaks(Broken::ForgetsHolds) { 0 } else { MAX_LISTED_RANKS });
        RosterAnswer::State { restart: self.restart, whole: self.whole, settled, held }
    }

    fn ranks(&self, version: Version, from: u32) -> RosterAnswer {
        let Some(unfinished) = self.unfinished.get(&version) else {
            return RosterAnswer::Ranks { world_size: 0, next: None, ranks: Vec::new() };
        };
        let (mut ranks, mut bytes) = (Vec::new(), 0);
        for (rank, Committed { instance, layout, node, .. }) in unfinished.ranks.range(from..) {
            let rank = CommittedRank { rank: *rank, instance: *instance, layout: *layout, node: node.clone() };
            bytes += rank_bytes(&rank);
            if bytes > MAX_LIST_BYTES || ranks.len() == MAX_LISTED_RANKS {
                return RosterAnswer::Ranks { world_size: unfinished.world_size, next: Some(rank.rank), ranks };
            }
            ranks.push(rank);
        }
        RosterAnswer::Ranks { world_size: unfinished.world_size, next: None, ranks }
    }

    fn missing(&self, version: Version) -> RosterAnswer {
        let Some(Unfinished { world_size, ranks, .. }) = self.unfinished.get(&version) else {
            return RosterAnswer::Missing { world_size: 0, count: 0, first: Vec::new() };
        };
        let first = (0..*world_size).filter(|rank| !ranks.contains_key(rank)).take(MAX_LISTED_RANKS).collect();
        // At most as many have committed as there are ranks.
        let count = world_size - u32::try_from(ranks.len()).unwrap_or(*world_size);
        RosterAnswer::Missing { world_size: *world_size, count, first }
    }

    /// Forgets a question that waits, or a hold.
    pub(super) fn withdraw(&mut self, who: Waiter) {
        self.waiting.retain(|waiting| waiting.who.waiter != who);
        self.holds.retain(|(holder, _)| *holder != who);
        self.relocations.withdraw(who);
    }

    /// Returns all that wait and hold.
    pub(super) fn take_waiting(&mut self) -> Vec<Waiter> {
        let waiting = std::mem::take(&mut self.waiting).into_iter().map(|waiting| waiting.who.waiter);
        let holds = std::mem::take(&mut self.holds).into_iter().map(|(holder, _)| holder);
        waiting.chain(holds).chain(self.relocations.take_waiting()).collect()
    }

    /// The versions that are not whole.
    pub(super) fn unfinished(&self, state: &str) -> impl Iterator<Item = UnfinishedVersion> {
        self.unfinished.iter().map(move |(version, unfinished)| {
            let missing = (0..unfinished.world_size).filter(|rank| !unfinished.ranks.contains_key(rank));
            UnfinishedVersion {
                state: state.to_owned(),
                version: *version,
                world_size: unfinished.world_size,
                committed: u32::try_from(unfinished.ranks.len()).unwrap_or(u32::MAX),
                missing: missing.take(UnfinishedVersion::MAX_MISSING).collect(),
                since: unfinished.since,
            }
        })
    }

    /// The number of commits of versions that are not whole.
    pub(super) fn commits(&self) -> usize {
        self.unfinished.values().map(|unfinished| unfinished.ranks.len()).sum()
    }

    /// Who has committed what.
    #[cfg(test)]
    pub(super) fn contents(&self) -> RosterContents {
        let of = |unfinished: &Unfinished| unfinished.ranks.iter().map(|(rank, own)| (*rank, own.instance)).collect();
        let unfinished = self.unfinished.iter().map(|(version, unfinished)| (*version, of(unfinished))).collect();
        RosterContents {
            restart: self.restart,
            whole: self.whole.map(|version| (version, self.whole_ranks.clone())),
            unfinished,
        }
    }

    /// Whether a question waits here, or somebody holds a version.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty() || !self.holds.is_empty() || self.relocations.len() > 0
    }

    /// The number of questions that wait, and of holds.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len() + self.holds.len() + self.relocations.len()
    }

    /// Returns what a question waits for, in words.
    pub(super) fn waits_for(&self, ask: &RosterAsk) -> String {
        match ask {
            RosterAsk::Hold { version } => format!("the end of its hold of version {}", version.0),
            RosterAsk::UntilWhole { version, .. }
            | RosterAsk::Published { version, .. }
            | RosterAsk::Ranks { version, .. } => {
                let mut text = format!("version {} to be whole: ", version.0);
                self.describe(*version, &mut text);
                text
            }
            _ => {
                let most = self.unfinished_versions;
                let mut text =
                    format!("one of {most} unfinished versions to be whole, the limit by --unfinished-versions here");
                for version in self.unfinished.keys() {
                    let _ = write!(text, "; version {}: ", version.0);
                    self.describe(*version, &mut text);
                }
                text
            }
        }
    }

    /// Writes which ranks of a version are missing.
    fn describe(&self, version: Version, text: &mut String) {
        let RosterAnswer::Missing { world_size, count, first } = self.missing(version) else { return };
        let _ = match (world_size, count) {
            (0, _) => write!(text, "no rank has committed it"),
            (_, 0) => write!(text, "all {world_size} ranks have committed it, and its manifest is not published"),
            _ => write!(text, "{count} of {world_size} ranks have not committed it, rank {} is the first", first[0]),
        };
    }
}

#[cfg(test)]
mod tests;
