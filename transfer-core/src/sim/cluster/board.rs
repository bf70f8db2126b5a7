//! A model of a board as its readers see it: the entries, the hazard pointers, and the withdrawn entries that a hazard
//! pointer still holds. The real boards lie in shared memory; their own tests check that they behave like this model.

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
    /// The notices of the workers.
    pub(super) notices: BTreeMap<(SessionId, u16), Noticed>,
}

impl Board {
    /// Shows an entry. It replaces the entry of the same key.
    pub(crate) fn show(&mut self, shown: Shown) {
        self.shown.insert((shown.domain, shown.key.to_string()), shown);
    }

    /// Withdraws the entry with this ticket. Returns whether no hazard pointer holds the ticket.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> bool {
        self.shown.retain(|_, s| s.ticket != ticket);
        let is_free = !self.marks.contains_key(&ticket);
        if !is_free {
            self.pending.insert(ticket);
        }
        is_free
    }

    /// Returns the entry of a key.
    pub(crate) fn find(&self, domain: Tenant, key: &str) -> Option<&Shown> {
        self.shown.get(&(domain, key.to_owned()))
    }

    /// Returns the version that a reader of the entry finds: the entry's own, or that of the notice that the entry
    /// names.
    fn look_up(&self, domain: Tenant, key: &str) -> Option<Noticed> {
        let Shown { ticket, version, meta, slice, notice, .. } = self.find(domain, key)?;
        match notice {
            None => Some(Noticed { ticket: *ticket, version: *version, meta: meta.clone(), slice: *slice }),
            Some(at) => self.notices.get(&(at.session, at.notice)).cloned(),
        }
    }

    /// Sets a hazard pointer to a ticket.
    pub(crate) fn mark(&mut self, ticket: u64) {
        *self.marks.entry(ticket).or_default() += 1;
    }

    /// Clears a hazard pointer to a ticket. Returns whether the ticket is withdrawn and this was its last hazard
    /// pointer.
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
    /// Looks a key up on the worker's board, instead of asking the sidecar. Returns whether the worker found a version.
    pub(super) fn look_up(&mut self, worker: usize, key: &Key, select: Select) -> Result<bool, String> {
        let w = &self.workers[worker];
        let (node, domain) = (w.node, w.domain);
        // A worker that has a push or a delete in flight asks the sidecar, so that it gets its answer behind that.
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

    /// Clears the hazard pointer of a worker that is done with a version it had found.
    pub(super) fn unmark(&mut self, node: usize, ticket: u64) {
        if self.nodes[node].board.unmark(ticket) {
            self.nodes[node].driver.node.withdrawn(ticket);
        }
    }
}
