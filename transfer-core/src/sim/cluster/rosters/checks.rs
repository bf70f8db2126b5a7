//! The checks of what rosters answer, and of what they have.

use super::{CALM_VERSIONS, Cluster, Ranks, State, epoch_of, first_of, in_epoch, is_of};
use crate::op::OpId;
use crate::tensor::Version;

impl Cluster {
    /// Checks that commits of one epoch were sent for ranks that are listed.
    pub(super) fn check_sent(&mut self, worker: usize, version: u64, found: &Ranks) -> Result<(), String> {
        let state = self.state(worker);
        let of = |epoch| first_of(epoch) + in_epoch(version).0;
        match (0..=state.sent_epoch).any(|epoch| state.are_sent(of(epoch), found)) {
            true => Ok(()),
            false => Err(format!("version {version} has {found:?}, which were committed in no epoch")),
        }
    }

    /// Checks the version that is said to be whole.
    pub(super) fn check_whole(
        &mut self,
        worker: usize,
        floor: Option<u64>,
        (restart, whole): (u64, Option<Version>),
    ) -> Result<(), String> {
        let homes_die = self.play.restarts;
        let whole = whole.map(|version| self.rosters.version(restart, version));
        let state = self.state(worker);
        if let Some(version) = whole {
            if !state.published.contains_key(&version) {
                return Err(format!("version {version} is said to be whole, and nobody has published it"));
            }
            if !homes_die && floor.is_some_and(|floor| version < floor) {
                return Err(format!("version {version} is said to be whole after {floor:?}"));
            }
            if state.seen.is_none_or(|seen| version > seen) {
                state.seen = Some(version);
            }
        } else if let Some(floor) = floor.filter(|floor| state.sent_epoch <= epoch_of(*floor) && !homes_die) {
            return Err(format!("no version is said to be whole after {floor}"));
        }
        Ok(())
    }

    pub(super) fn check_held(&mut self, held: &[(usize, OpId)], listed: &[Version]) -> Result<(), String> {
        for (holder, op) in held {
            let Some((_, version)) = self.holds_of(*holder).find(|(hold, _)| hold == op) else { continue };
            if !listed.contains(&version) {
                return Err(format!("{version} is held by worker {holder} ({op:?}), and {listed:?} are listed"));
            }
            self.tally.held += 1;
            self.workers[*holder].rank.held.insert(*op);
        }
        Ok(())
    }

    pub(super) fn check_missing(
        &mut self,
        worker: usize,
        version: u64,
        committed: &[(u32, u64)],
        missing: &[u32],
    ) -> Result<(), String> {
        let state = &self.rosters.states[&self.workers[worker].domain];
        for (rank, instance) in committed.iter().filter(|(rank, _)| missing.contains(rank)) {
            if self.is_kept(state, version, *rank, *instance) {
                return Err(format!("rank {rank} is said to be missing, and has committed {version}"));
            }
        }
        Ok(())
    }

    /// Whether a commit that was answered has to be there, or its version whole.
    pub(super) fn is_kept(&self, state: &State, version: u64, rank: u32, instance: u64) -> bool {
        let has_ended = state.sent_epoch > epoch_of(version);
        !has_ended && state.answered.get(&(version, rank)) == Some(&instance)
    }

    /// Checks all rosters where they live.
    pub(in crate::sim::cluster) fn check_rosters(&mut self) -> Result<(), String> {
        for node in &self.nodes {
            // Twice as many at the next home, and where a link was lost: nodes recite what they have committed.
            let most = if self.play.calm { 1 } else { 2 };
            for (key, identity, roster) in node.driver.node.rosters() {
                let Some((_, state)) = self.rosters.states.iter().find(|(of, _)| is_of(&key, **of)) else { continue };
                if roster.unfinished.len() as u64 > node.config.limits.unfinished_versions * most {
                    return Err(format!("{key:?} has {} unfinished versions", roster.unfinished.len()));
                }
                for (version, ranks) in &roster.unfinished {
                    let version = self.rosters.version(roster.restart, *version);
                    if !state.are_sent(version, ranks) {
                        return Err(format!("version {version} has {ranks:?}, which were not committed in its epoch"));
                    }
                }
                let Some((version, ranks)) = roster.whole else { continue };
                let version = self.rosters.version(roster.restart, version);
                let manifests = state.published.get(&version);
                // A home that was told of it does not know its ranks.
                let is_told = self.play.restarts && ranks.is_empty();
                if !manifests.is_some_and(|manifests| manifests.contains(&ranks) || is_told) {
                    return Err(format!("version {version} is whole for {ranks:?}, and published are {manifests:?}"));
                }
                let before = self.rosters.whole_at.insert(identity, version).filter(|before| version < *before);
                if let Some(before) = before {
                    return Err(format!("version {version} is whole after {before}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that no commit was lost that was answered.
    pub(in crate::sim::cluster) fn check_commits(&self) -> Result<(), String> {
        for (of, state) in &self.rosters.states {
            let rosters = self.nodes.iter().flat_map(|node| node.driver.node.rosters());
            let Some((_, _, roster)) = rosters.into_iter().find(|(key, ..)| is_of(key, *of)) else { continue };
            let whole = roster.whole.map(|(version, _)| self.rosters.version(roster.restart, version));
            for ((version, rank), instance) in &state.answered {
                let is_old = whole.is_some_and(|whole| whole >= *version);
                let there = roster.unfinished.get(&in_epoch(*version)).and_then(|ranks| ranks.get(rank));
                if !is_old && there != Some(instance) && self.is_kept(state, *version, *rank, *instance) {
                    return Err(format!("the commit of rank {rank} of version {version} is lost: {there:?} is there"));
                }
            }
            let last = first_of(0) + CALM_VERSIONS;
            if self.play.calm && whole.is_none_or(|whole| whole < last) {
                return Err(format!("{whole:?} is whole at the end, not {last}"));
            }
        }
        Ok(())
    }
}
