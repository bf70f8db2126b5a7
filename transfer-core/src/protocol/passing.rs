//! Versions of other nodes that are held a while longer than they would be kept, because nodes get them from here, chunk by chunk, and are in
//! the middle of it.

use super::ids::BlobId;
use super::search::silent_for;
use super::tenant::Tenant;
use crate::tensor::Name;
use crate::time::Time;
use hashbrown::HashMap;
use std::num::NonZeroU64;

/// The most versions that are held.
const MAX_PASSING: usize = 64;

/// A publication of another node: the name and the incarnation of that, the tenant whose workers read it, and its identity. Unlike the
/// link to its owner, it lasts when the owner has died.
pub(super) type Publication = (Name, u64, Tenant, NonZeroU64);

/// Returns until when a node may come back that has asked for a chunk of this length at this time, while others are on their way to it.
pub(super) fn comes_back_until(now: Time, len_bytes: u64) -> Time {
    now + silent_for(len_bytes.saturating_mul(4))
}

/// The versions that are held, each with a reference, until a time that each request for a chunk puts off. Its caller releases what it gives
/// up: what is held is no base, and goes before anybody waits for room.
#[derive(Default)]
pub(super) struct Passing {
    held: HashMap<Publication, Passed>,
}

#[derive(Clone, Copy)]
struct Passed {
    blob: BlobId,
    deltas_follow: bool,
    until: Time,
}

impl Passing {
    /// Holds a version, to which the caller has a reference for this. Returns what is to be released.
    pub(super) fn hold(
        &mut self,
        of: Publication,
        (blob, deltas_follow): (BlobId, bool),
        until: Time,
    ) -> Option<BlobId> {
        if self.held.len() >= MAX_PASSING && !self.held.contains_key(&of) {
            return Some(blob);
        }
        self.held.insert(of, Passed { blob, deltas_follow, until }).map(|before| before.blob)
    }

    /// Returns the version that is held of a publication, and whether deltas of it may follow. It is held until then, at least.
    pub(super) fn find(&mut self, of: &Publication, until: Time) -> Option<(BlobId, bool)> {
        let held = self.held.get_mut(of)?;
        held.until = held.until.max(until);
        Some((held.blob, held.deltas_follow))
    }

    /// Returns when the next one is given up.
    pub(super) fn ends_at(&self) -> Option<Time> {
        self.held.values().map(|held| held.until).min()
    }

    /// Returns the versions of a tenant, the one first that is given up first.
    pub(super) fn of(&self, tenant: Tenant) -> Vec<(Publication, BlobId)> {
        let mut these: Vec<_> = self.held.iter().filter(|(of, _)| of.2 == tenant).collect();
        these.sort_unstable_by(|(a, held), (b, other)| (held.until, *a).cmp(&(other.until, *b)));
        these.into_iter().map(|(of, held)| (of.clone(), held.blob)).collect()
    }

    /// Gives up a version.
    pub(super) fn give_up(&mut self, of: &Publication) -> Option<BlobId> {
        self.held.remove(of).map(|held| held.blob)
    }

    /// Gives up the versions of a tenant.
    pub(super) fn give_up_all(&mut self, tenant: Tenant) -> Vec<BlobId> {
        self.of(tenant).iter().filter_map(|(of, _)| self.give_up(of)).collect()
    }

    /// Gives up the versions for which nobody has come back.
    pub(super) fn give_up_over(&mut self, now: Time) -> Vec<BlobId> {
        let mut over: Vec<_> = self.held.extract_if(|_, held| held.until <= now).collect();
        over.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        over.into_iter().map(|(_, held)| held.blob).collect()
    }
}
