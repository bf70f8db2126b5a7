//! Invariants of a node that has nothing left to do, and single steps that tests take.

use super::Node;
use crate::fabric::LinkId;
use crate::memory::SegmentId;
#[cfg(test)]
use crate::protocol::counters::RosterContents;
use crate::protocol::directory::ClaimRefused;
use crate::protocol::keys::Owner;
#[cfg(test)]
use crate::protocol::relays::Proof;
#[cfg(test)]
use crate::protocol::slab::Id;
use crate::tensor::{Key, Name};
use crate::time::Time;
use crate::wire::message::{Body, Role};

impl Node {
    /// Whether the digest with this tag is of a chunk that has not come from its owner.
    #[cfg(test)]
    pub(crate) fn is_of_relay(&self, tag: u64) -> bool {
        matches!(self.proofs.get(Id::from_u64(tag)), Some(Proof::Came(..)))
    }

    /// Checks the invariants that hold whenever no action is left.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        self.landing.settle();
        for (domain, pool) in self.landing.pools() {
            let Some(front) = pool.wants().next() else { continue };
            match needs!(self).room_for(front) {
                None => return Err(format!("{domain:?}: the first in the queue for room is gone: {front:?}")),
                Some(need) if need <= pool.alloc().largest_free() => {
                    return Err(format!("{domain:?}: {front:?} waits for {need} bytes, which are there"));
                }
                Some(_) => {}
            }
            if needs!(self).idle_would_do(*domain, front)
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
        let searches = self.transfers.searches_where(|_| true).len();
        if self.relays.waiting() > 0 || self.proofs.len() > 0 || self.transfers.stalls_at().is_some() || searches > 0 {
            let (waiting, proofs) = (self.relays.waiting(), self.proofs.len());
            return Err(format!(
                "{waiting} requests wait for versions of other nodes, {proofs} digests are being made, {searches} versions are searched for"
            ));
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

    /// Returns every key that a worker of this node publishes, with that worker's name. Tests compare nodes by it.
    #[cfg(test)]
    pub(crate) fn owners(&self) -> Vec<(Key, Name)> {
        let records = self.keys.records().iter().map(|(_, record)| record);
        let resident = records.filter(|r| matches!(r.owner(), Owner::Session(_)));
        resident.filter_map(|r| Some((r.key().clone(), self.sessions.owner_name(r.owner())?.clone()))).collect()
    }

    /// Returns the names of the workers that can be found by name at this node.
    #[cfg(test)]
    pub(crate) fn worker_names(&self) -> Vec<Name> {
        self.sessions.names()
    }

    /// Returns the places and values of the counters that live here, unless registered memory holds them; for tests.
    #[cfg(test)]
    pub(crate) fn counter_values(&self) -> Vec<(Key, u32, u64)> {
        self.counters.values()
    }

    /// Returns the rosters that live here, with their identities; for tests.
    #[cfg(test)]
    pub(crate) fn rosters(&self) -> Vec<(Key, u64, RosterContents)> {
        self.counters.rosters()
    }

    /// Checks that as many versions are counted as lie in arenas; for tests.
    #[cfg(test)]
    pub(super) fn check_limits(&self) -> Result<(), String> {
        let versions = self.keys.versions_counted();
        let blobs: u64 = self.sessions.in_arenas().into_iter().sum();
        match blobs == versions {
            true => Ok(()),
            false => Err(format!("{versions} versions, and {blobs} in arenas")),
        }
    }

    /// Handles the loss of a key: the directory has given it to another owner.
    pub(in crate::protocol) fn key_lost(&mut self, now: Time, key: &Key, owner: &Name) {
        ownership!(self).key_lost(now, key, owner)
    }

    /// Handles the directory's answer to a claim.
    pub(in crate::protocol) fn claimed(&mut self, now: Time, key: &Key, result: Result<u64, ClaimRefused>) {
        ownership!(self).claimed(now, key, result)
    }

    /// Claims all keys of this node again, because the directory is a new one. Locations from an earlier directory are
    /// forgotten: its sequence numbers mean nothing to the new one, whose clock may have been set back.
    pub(in crate::protocol) fn claim_all(&mut self) {
        ownership!(self).claim_all()
    }

    /// Handles the directory's answer about where a key is.
    pub(in crate::protocol) fn located(&mut self, now: Time, key: &Key, node: &Name, sequence: u64) {
        fetching!(self).located(now, key, node, sequence)
    }

    /// Handles the directory's answer to a tenant about where a worker is.
    pub(in crate::protocol) fn worker_located(&mut self, now: Time, named: (&Name, &Name), node: Option<&Name>) {
        ownership!(self).worker_located(now, named, node)
    }

    pub(crate) fn send(&mut self, link: LinkId, role: Role, index: u32, body: Body) {
        sending!(self).send(link, role, index, body)
    }

    /// Returns the mark of the link over which a peer's segment came.
    pub(crate) fn mark_of(&self, segment: SegmentId) -> Option<u64> {
        self.references.mark_of(segment)
    }
}
