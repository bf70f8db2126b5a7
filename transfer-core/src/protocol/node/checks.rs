//! Invariants of a node that has nothing left to do, for tests.

use super::Node;
use crate::fabric::LinkId;

impl Node {
    /// Checks the invariants that hold whenever no action is left.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        self.landing.settle();
        for (domain, pool) in self.landing.pools() {
            let Some(front) = pool.wants().front() else { continue };
            match self.room_for(*front) {
                None => return Err(format!("{domain:?}: the first in the queue for room is gone: {front:?}")),
                Some(need) if need <= pool.alloc().largest_free() => {
                    return Err(format!("{domain:?}: {front:?} waits for {need} bytes, which are there"));
                }
                Some(_) => {}
            }
            if self.idle_would_do(*domain, *front)
                && let Some((link, _)) = self.landing.to_ask(*domain, front.flow()).first()
            {
                return Err(format!(
                    "{domain:?}: {front:?} waits for room, and flows of {link} hold some that they do not use"
                ));
            }
        }
        self.check_limits()?;
        self.landing.check_all()?;
        self.keys.check()
    }

    /// Checks the invariants that hold when all sessions are gone and nothing is in flight.
    pub(crate) fn check_idle(&self) -> Result<(), String> {
        let speculative: u64 = self.landing.pools().values().map(|p| p.speculative()).sum();
        let records = self.keys.records().len();
        let (timers, (cells, flights)) = (self.sessions.deadlines(), self.links.in_use());
        let arenas = self.sessions.in_arenas().len();
        let left = (speculative, records, timers, cells, arenas, flights, self.counters.busy(), self.keys.tickets());
        let evicted = self.sessions.evicted();
        if self.is_ending() {
            return Err("something that has ended is not done".to_owned());
        }
        let packed: usize = self.links.all().keys().map(|link| self.transfers.places_taken(*link)).sum();
        if packed > 0 || !self.packs_waiting.is_empty() {
            return Err(format!("{packed} parts are being packed, {} wait for room", self.packs_waiting.len()));
        }
        if !evicted.is_empty() {
            return Err(format!("{evicted:?} are thrown out and have not gone"));
        }
        if self.references.counts() != (0, 0) || self.references.look_at().is_some() {
            return Err(format!("references here and there: {:?}", self.references.counts()));
        }
        if left != (0, 0, 0, 0, 0, 0, 0, 0) {
            return Err(format!("speculative, records, timers, cells, arenas, flights, counters, tickets: {left:?}"));
        }
        Ok(())
    }

    /// Returns the length of the longest queue that may still hold entries that have ended.
    pub(crate) fn longest_queue(&self) -> usize {
        let of_link = |link: &LinkId| self.transfers.of(*link)?.flows().iter().map(|(_, f)| f.queue().len()).max();
        let flows = self.links.all().keys().filter_map(of_link);
        flows.chain(self.landing.pools().values().map(|p| p.wants().len())).max().unwrap_or(0)
    }

    /// Returns how many parts of a link's peer are being packed, or were packed and are not sent.
    pub(crate) fn places_taken(&self, link: LinkId) -> usize {
        self.transfers.places_taken(link)
    }

    /// Returns the credits of this side, the receive slots owed to the peer, and how many slots the peer has in all.
    pub(crate) fn credits(&self, link: LinkId) -> Option<(u32, u32, u32)> {
        self.links.credits(link)
    }
}
