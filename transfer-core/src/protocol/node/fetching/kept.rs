//! Room in the landing pools that versions have which are kept for other nodes alone.

use crate::alloc::Allocation;
use crate::memory::LocalSlice;
use crate::protocol::keys::Source;
use crate::protocol::landing::Landing;
use crate::protocol::node::flows::Fetching;
use crate::protocol::passing::Publication;
use crate::protocol::relays::Spreading;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Held;
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;

/// Why a version is kept.
enum Kept {
    /// It is the last one of its key.
    Base(Spreading),
    /// Nodes are in the middle of it.
    Passing(Publication),
}

impl Fetching<'_> {
    /// Allocates a slot for a version that may not be published yet, where need be in the room of versions that are kept for other nodes.
    /// Also returns how many bytes are counted for it.
    pub(super) fn speculate(&mut self, domain: Tenant, len: u64) -> Option<(Allocation, u64)> {
        let early = self.landing.speculate(domain, len);
        if early.is_some() || !self.landing.may_speculate(domain, len) {
            return early;
        }
        self.room_of_relays(domain, len + HEADER_BYTES, |landing| landing.speculate(domain, len))
    }

    /// Allocates a range for a version that is made here, where need be in the room of versions that are kept for other nodes.
    pub(super) fn room_for_result(&mut self, domain: Tenant, len: u64) -> Option<(Allocation, LocalSlice)> {
        let room = self.landing.allocate(domain, len);
        room.or_else(|| self.room_of_relays(domain, len, |landing| landing.allocate(domain, len)))
    }

    /// Whether a version is kept as the last one of its key.
    pub(super) fn is_base(&self, of: &Spreading, held: Held) -> bool {
        self.bases.find(of).is_some_and(|(kept, _)| kept == held)
    }

    /// Holds a version of another node, of which nodes are in the middle, until then; but not where somebody waits for room.
    pub(in crate::protocol::node) fn pass_on(&mut self, of: Publication, (held, follow): (Held, bool), until: Time) {
        if self.landing.is_contended(of.2) || self.keys.hold(held.blob).is_none() {
            return;
        }
        if let Some(blob) = self.relays.passing.hold(of, (held.blob, follow), until) {
            memory!(self).release(blob);
        }
    }

    /// Gives up the versions of other nodes for which nobody has come back.
    pub(in crate::protocol::node) fn end_passing(&mut self, now: Time) {
        for blob in self.relays.passing.give_up_over(now) {
            memory!(self).release(blob);
        }
    }

    /// Gives up versions of a tenant that are kept for other nodes alone, and that nobody reads, until there is room. Gives up none if that
    /// would not make enough room.
    fn room_of_relays<T>(
        &mut self,
        domain: Tenant,
        len: u64,
        allocate: impl Fn(&mut Landing) -> Option<T>,
    ) -> Option<T> {
        let passing = self.relays.passing.of(domain).into_iter().map(|(of, blob)| (Kept::Passing(of), blob));
        let bases = self.bases.relays_of(domain).into_iter().map(|(of, blob)| (Kept::Base(of), blob));
        let mut kept: Vec<_> = bases.chain(passing).collect();
        let keys = &*self.keys;
        let mut free = self.landing.free_bytes(domain);
        kept.retain(|(_, blob)| {
            let Some(b) = keys.blob(*blob).filter(|b| b.holders() == 1) else { return false };
            if let Source::Pool(range) = &b.source {
                free += range.padded_len();
            }
            matches!(b.source, Source::Pool(_))
        });
        if free < len {
            return None;
        }
        for (of, _) in kept {
            let given_up = match of {
                Kept::Base(of) => self.bases.give_up(&of),
                Kept::Passing(of) => self.relays.passing.give_up(&of),
            };
            if let Some(blob) = given_up {
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
