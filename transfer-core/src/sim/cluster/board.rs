//! A board as its readers see it: what is shown, who has marked what, and what waits for its marks to go. The real ones lie in shared
//! memory; what is tried of them there is that they are this.

use super::notices::Noticed;
use super::worker::What;
use super::{Cluster, Tenant};
use crate::protocol::{SessionId, Shown};
use crate::tensor::{Key, Select};
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// All boards of one sidecar.
#[derive(Debug, Default)]
pub(crate) struct Board {
    shown: BTreeMap<(Tenant, String), Shown>,
    marks: BTreeMap<u64, u32>,
    pending: BTreeSet<u64>,
    /// What the workers themselves show.
    pub(super) notices: BTreeMap<(SessionId, u16), Noticed>,
}

impl Board {
    /// Shows it in the place of what was shown under its key.
    pub(crate) fn show(&mut self, shown: Shown) {
        self.shown.insert((shown.domain, shown.key.to_string()), shown);
    }

    /// Shows it no more. Whether nobody has marked it.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> bool {
        self.shown.retain(|_, s| s.ticket != ticket);
        let is_free = !self.marks.contains_key(&ticket);
        if !is_free {
            self.pending.insert(ticket);
        }
        is_free
    }

    /// What is shown.
    pub(crate) fn find(&self, domain: Tenant, key: &str) -> Option<&Shown> {
        self.shown.get(&(domain, key.to_owned()))
    }

    /// What is found: what is shown, or what the notice shows that is named there.
    fn look_up(&self, domain: Tenant, key: &str) -> Option<Noticed> {
        let Shown { ticket, version, meta, slice, notice, .. } = self.find(domain, key)?;
        match notice {
            None => Some(Noticed { ticket: *ticket, version: *version, meta: meta.clone(), slice: *slice }),
            Some(at) => self.notices.get(&(at.session, at.notice)).cloned(),
        }
    }

    /// Somebody reads it.
    pub(crate) fn mark(&mut self, ticket: u64) {
        *self.marks.entry(ticket).or_default() += 1;
    }

    /// ... and not any more. Whether it was shown no more, and nobody reads it now.
    pub(crate) fn unmark(&mut self, ticket: u64) -> bool {
        if let Some(marks) = self.marks.get_mut(&ticket) {
            *marks -= 1;
            if *marks == 0 {
                self.marks.remove(&ticket);
                return self.pending.remove(&ticket);
            }
        }
        false
    }
}

impl Cluster {
    /// A worker looks for a key on its board, instead of asking for it. Whether it was there.
    pub(super) fn look_up(&mut self, worker: usize, key: &Key, select: Select) -> Result<bool, String> {
        let w = &self.workers[worker];
        let (node, domain) = (w.node, w.domain);
        // Who has commanded something under this key wants the answer behind that.
        let is_behind = w.ops.values().any(|asked| matches!(asked.what, What::Push { .. } | What::Delete));
        if w.session.is_none() || is_behind || self.rng.random_range(0..4) == 0 {
            return Ok(false);
        }
        let board = &self.nodes[node].board;
        let Some(shown) = board.look_up(domain, key.as_str()).filter(|s| select.takes(s.version)) else {
            return Ok(false);
        };
        let is_noticed = board.find(domain, key.as_str()).is_some_and(|s| s.notice.is_some());
        self.tally.noticed += u64::from(is_noticed);
        self.world.note(|| format!("{} finds {shown:?}", self.workers[worker].name));
        self.identify((node, domain), key, shown.version, &shown.meta, shown.slice)?;
        let newest = self.workers[worker].seen.entry(key.to_string()).or_insert(shown.version);
        if self.play.calm && shown.version < *newest {
            return Err(format!("{} of {key} is found after {newest}", shown.version));
        }
        *newest = shown.version.max(*newest);
        let newest = self.found.entry(key.to_string()).or_insert(shown.version);
        *newest = shown.version.max(*newest);
        self.tally.look_ups += 1;
        self.nodes[node].board.mark(shown.ticket);
        self.hold(worker, super::worker::Hold::Mark(shown.ticket), shown.slice)?;
        Ok(true)
    }

    /// A worker reads no more what it had found.
    pub(super) fn unmark(&mut self, node: usize, ticket: u64) {
        if self.nodes[node].board.unmark(ticket) {
            self.nodes[node].driver.node.withdrawn(ticket);
        }
    }
}
