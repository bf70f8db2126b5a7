//! The commit of a rank.

use super::relocations::Relocation;
use super::unfinished::{Committed, Unfinished};
use super::{Answered, Asker, Roster, Waiting};
use crate::op::{Failure, FailureCode, MAX_WORLD_SIZE, RankCommit, RosterAnswer, RosterAsk};
use crate::protocol::rules::Broken;
use crate::tensor::Name;
use std::collections::BTreeMap;

/// What becomes of a commit.
pub(super) enum Committing {
    Answer(Result<RosterAnswer, Failure>),
    /// It waits until another version is whole.
    WaitsForRoom,
    /// A worker of this name has committed the rank at another node: the directory says where it is now.
    Moves(Name),
}

impl Roster {
    /// Commits. `is_located`: the directory says that the worker is at the node of the asker.
    pub(super) fn commit(
        &mut self,
        name: &str,
        who: &Asker,
        commit: &RankCommit,
        is_located: bool,
        answered: &mut Vec<Answered>,
    ) -> Committing {
        let RankCommit { version, rank, world_size, restart, instance, layout, .. } = *commit;
        let refused = |code, text: String| Committing::Answer(Err(Failure::new(code, text)));
        let invalid = |text| refused(FailureCode::Invalid, text);
        if !(1..=MAX_WORLD_SIZE).contains(&world_size) || rank >= world_size {
            return invalid(format!(
                "rank {rank} of {world_size} of state {name:?}: a state has 1 to {MAX_WORLD_SIZE} ranks, counted from 0"
            ));
        }
        if restart > self.restart {
            self.begin_again(name, restart, answered);
        } else if restart < self.restart && !self.rules.breaks(Broken::AcceptsOlderRestarts) {
            let newer = self.restart;
            let text = format!(
                "restart {restart} of rank {rank} of state {name:?} is older than restart {newer}, with which its versions have begun again; the \
                 ranks of one attempt all say the same number, and those of the next a higher one"
            );
            return refused(FailureCode::VersionGone, text);
        }
        let own = self.unfinished.get(&version).and_then(|unfinished| unfinished.ranks.get(&rank));
        let is_again = own.is_some_and(|own| own.instance == instance);
        if self.whole == Some(version) && self.whole_ranks.get(&rank) == Some(&instance) {
            // Its answer was lost, and the others have made the version whole meanwhile.
            let answer = RosterAnswer::Committed { is_last: false, whole: self.whole, ranks: 0 };
            return Committing::Answer(Ok(answer));
        }
        if let Some(whole) = self.whole.filter(|whole| version <= *whole) {
            let (version, whole) = (version.0, whole.0);
            let text = format!(
                "version {version} of state {name:?} is not newer than version {whole}, which is whole; a push with a restart higher than {restart} begins the versions again"
            );
            return refused(FailureCode::VersionNotRising, text);
        }
        let worker = commit.worker.clone().unwrap_or_else(|| who.node.clone());
        let is_new = !self.unfinished.contains_key(&version);
        if is_new && !self.has_room() {
            return Committing::WaitsForRoom;
        }
        let unfinished = self.unfinished.entry(version).or_insert_with(|| Unfinished {
            world_size,
            ranks: BTreeMap::new(),
            last: None,
            since: who.now,
        });
        if unfinished.world_size != world_size {
            let (version, first) = (version.0, unfinished.world_size);
            return invalid(format!(
                "version {version} of state {name:?} has {first} ranks, and rank {rank} says that it has {world_size}; all have to say the same"
            ));
        }
        // A worker of the same name has taken the place of one that is gone.
        let other = unfinished.ranks.get(&rank).filter(|other| other.instance != instance);
        if other.is_some_and(|other| other.worker == worker && other.node != who.node)
            && !(is_located || self.rules.breaks(Broken::ReplacesMovedRanks))
        {
            return Committing::Moves(worker);
        }
        if let Some(Committed { worker, node, .. }) = other.filter(|other| other.worker != worker) {
            let version = version.0;
            let text = format!(
                "rank {rank} of version {version} of state {name:?} was committed by worker {worker:?} of node {node:?}"
            );
            return refused(FailureCode::KeyOwned, text);
        }
        unfinished.ranks.insert(rank, Committed { instance, layout, worker, node: who.node.clone() });
        if unfinished.is_complete() && !is_again {
            unfinished.last = Some(rank);
        }
        let is_last = unfinished.is_complete() && unfinished.last == Some(rank);
        Committing::Answer(Ok(RosterAnswer::Committed { is_last, whole: self.whole, ranks: unfinished.digest() }))
    }

    /// Handles the directory's answer about a worker that had committed at another node. Returns the answers of those that waited
    /// for it.
    pub(in crate::protocol::counters) fn located(
        &mut self,
        name: &str,
        worker: &Name,
        node: Option<&Name>,
    ) -> Vec<Answered> {
        let mut answered = Vec::new();
        for Relocation { who, commit, .. } in self.relocations.located(worker) {
            let result = if node == Some(&who.node) {
                match self.commit(name, &who, &commit, true, &mut answered) {
                    Committing::Answer(result) => result,
                    _ => {
                        self.waiting.push(Waiting { who, ask: RosterAsk::Commit(commit) });
                        continue;
                    }
                }
            } else {
                Err(not_located(name, &commit, worker, &who.node, node))
            };
            answered.push(Answered { waiter: who.waiter, result });
        }
        answered
    }

    /// Takes the workers that the directory has to be asked for.
    pub(in crate::protocol::counters) fn take_unasked(&mut self) -> Vec<Name> {
        self.relocations.take_unasked()
    }
}

/// The failure of a commit of a node at which its worker is not.
fn not_located(name: &str, commit: &RankCommit, worker: &Name, node: &Name, at: Option<&Name>) -> Failure {
    let (rank, version) = (commit.rank, commit.version.0);
    let of = format!(
        "rank {rank} of version {version} of state {name:?}: worker {worker:?} has committed it at another node"
    );
    match at {
        Some(at) => Failure::new(FailureCode::KeyOwned, format!("{of}, and is at node {at:?}, not at {node:?}")),
        None => Failure::new(
            FailureCode::Busy,
            format!(
                "{of}, and the directory knows of no worker of that name at {node:?}; push again when this node is attached to it"
            ),
        ),
    }
}
