//! Commits of workers that have moved: a worker of that name has committed the same rank at another node.
//!
//! One of the two commits is of a process that is gone, and it may have been on its way for longer than the other. So the directory is
//! asked at which node the worker is, and only a commit of that node takes the place of the one before.

use super::Asker;
use crate::op::RankCommit;
use crate::protocol::counters::barrier::Waiter;
use crate::tensor::Name;

/// The answers to wait for. The first may be that to an earlier question, asked for somebody else.
const ANSWERS: u8 = 2;

/// A commit that waits for the directory.
#[derive(Debug)]
pub(super) struct Relocation {
    pub(super) who: Asker,
    pub(super) commit: RankCommit,
    worker: Name,
    answers_left: u8,
}

/// The commits that wait for the directory, and the workers that it has to be asked for.
#[derive(Debug, Default)]
pub(super) struct Relocations {
    waiting: Vec<Relocation>,
    unasked: Vec<Name>,
}

impl Relocations {
    /// Adds the commit of a worker, for which the directory has to be asked.
    pub(super) fn add(&mut self, who: Asker, commit: RankCommit, worker: Name) {
        self.ask(worker.clone());
        self.waiting.push(Relocation { who, commit, worker, answers_left: ANSWERS });
    }

    fn ask(&mut self, worker: Name) {
        if !self.unasked.contains(&worker) {
            self.unasked.push(worker);
        }
    }

    /// Handles an answer about a worker. Returns the commits that it decides.
    pub(super) fn located(&mut self, worker: &Name) -> Vec<Relocation> {
        for relocation in self.waiting.iter_mut().filter(|relocation| relocation.worker == *worker) {
            relocation.answers_left -= 1;
        }
        let decided = self.waiting.extract_if(.., |relocation| relocation.answers_left == 0).collect();
        if self.waiting.iter().any(|relocation| relocation.worker == *worker) {
            self.ask(worker.clone());
        }
        decided
    }

    /// Takes the workers that the directory has to be asked for.
    pub(super) fn take_unasked(&mut self) -> Vec<Name> {
        std::mem::take(&mut self.unasked)
    }

    /// Forgets a commit.
    pub(super) fn withdraw(&mut self, who: Waiter) {
        self.waiting.retain(|relocation| relocation.who.waiter != who);
    }

    /// Takes all who wait.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = Waiter> {
        std::mem::take(&mut self.waiting).into_iter().map(|relocation| relocation.who.waiter)
    }

    /// The number of commits that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}
