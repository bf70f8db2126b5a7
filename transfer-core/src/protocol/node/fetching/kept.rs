//! Room in the landing pools that versions have which are kept for other nodes alone.

use crate::alloc::Allocation;
use crate::fabric::LinkId;
use crate::memory::LocalSlice;
use crate::protocol::ids::BlobId;
use crate::protocol::keys::Source;
use crate::protocol::landing::Landing;
use crate::protocol::node::flows::Fetching;
use crate::protocol::relays::Spreading;
use crate::protocol::tenant::Tenant;
use crate::wire::landing::HEADER_BYTES;
use hashbrown::HashMap;

/// Those who keep a version for other nodes alone.
#[derive(Default)]
struct Keepers {
    /// The key or series under which it is kept.
    base: Option<Spreading>,
    /// The requests of peers that hold it, and have no room.
    requests: Vec<(LinkId, u32)>,
}

impl Keepers {
    /// Returns how many references to the version they have.
    fn count(&self) -> usize {
        usize::from(self.base.is_some()) + self.requests.len()
    }
}

impl Fetching<'_> {
    /// Allocates a slot for a version that may not be published yet, where need be in the room of versions that are kept for other nodes.
    /// Also returns how many bytes are counted for it.
    pub(super) fn speculate(&mut self, domain: Tenant, len: u64) -> Option<(Allocation, u64)> {
        let early = self.landing.speculate(domain, len);
        if early.is_some() || !self.landing.may_speculate(domain, len) {
            return early;
        }
        self.room_of_relays(domain, len + HEADER_BYTES, false, |landing| landing.speculate(domain, len))
    }

    /// Allocates a range for a version that is made here, where need be in the room of versions that are kept for other nodes.
    pub(super) fn room_for_result(&mut self, domain: Tenant, len: u64) -> Option<(Allocation, LocalSlice)> {
        let room = self.landing.allocate(domain, len);
        room.or_else(|| self.room_of_relays(domain, len, true, |landing| landing.allocate(domain, len)))
    }

    /// Gives up versions of a tenant that are kept for other nodes alone, and that nobody reads, until there is room: also those that peers
    /// hold which have no room, if that is said. Gives up none if that would not make enough room.
    fn room_of_relays<T>(
        &mut self,
        domain: Tenant,
        len: u64,
        and_of_requests: bool,
        allocate: impl Fn(&mut Landing) -> Option<T>,
    ) -> Option<T> {
        let mut kept: Vec<(BlobId, Keepers)> = Vec::new();
        for (of, blob) in self.bases.relays_of(domain, self.relays.awaited()) {
            kept.push((blob, Keepers { base: Some(of), requests: Vec::new() }));
        }
        if and_of_requests {
            let mut at: HashMap<BlobId, usize> = kept.iter().enumerate().map(|(at, (blob, _))| (*blob, at)).collect();
            for (request, blob) in self.transfers.relayed_of(domain) {
                let at = *at.entry(blob).or_insert(kept.len());
                if at == kept.len() {
                    kept.push((blob, Keepers::default()));
                }
                kept[at].1.requests.push(request);
            }
        }
        let keys = &*self.keys;
        let mut free = self.landing.free_bytes(domain);
        kept.retain(|(blob, keepers)| {
            let Some(b) = keys.blob(*blob).filter(|b| b.holders() as usize == keepers.count()) else { return false };
            if let Source::Pool(range) = &b.source {
                free += range.padded_len();
            }
            matches!(b.source, Source::Pool(_))
        });
        if free < len {
            return None;
        }
        // Those first for which nobody has asked.
        kept.sort_by_key(|(_, keepers)| !keepers.requests.is_empty());
        for (_, Keepers { base, requests }) in kept {
            let base = base.and_then(|of| self.bases.give_up(&of));
            let held = requests.into_iter().filter_map(|request| self.transfers.take_relayed(request));
            for blob in base.into_iter().chain(held.collect::<Vec<_>>()) {
                memory!(self).release(blob);
            }
            let room = allocate(self.landing);
            if room.is_some() {
                return room;
            }
        }
        None
    }
}
