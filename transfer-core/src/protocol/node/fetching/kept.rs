//! Room in the landing pools that versions have which are kept for other nodes alone.

use crate::alloc::Allocation;
use crate::memory::LocalSlice;
use crate::protocol::node::flows::Fetching;
use crate::protocol::tenant::Tenant;

impl Fetching<'_> {
    /// Allocates a slot for a version that may not be published yet, where need be in the room of versions that are kept for other nodes.
    /// Also returns how many bytes are counted for it.
    pub(super) fn speculate(&mut self, domain: Tenant, len: u64) -> Option<(Allocation, u64)> {
        loop {
            let early = self.landing.speculate(domain, len);
            if early.is_some() || !self.landing.may_speculate(domain, len) || !self.give_up_relay(domain) {
                return early;
            }
        }
    }

    /// Allocates a range for a version that is made here, where need be in the room of versions that are kept for other nodes.
    pub(super) fn room_for_result(&mut self, domain: Tenant, len: u64) -> Option<(Allocation, LocalSlice)> {
        loop {
            let room = self.landing.allocate(domain, len);
            if room.is_some() {
                return room;
            }
            if !self.give_up_relay(domain) {
                let relayed = self.transfers.take_relayed_of(domain)?;
                memory!(self).release(relayed);
            }
        }
    }

    /// Gives up a version of a tenant that is kept for other nodes alone, and that nobody reads. Returns whether there was one.
    fn give_up_relay(&mut self, domain: Tenant) -> bool {
        let keys = &*self.keys;
        let is_free = |blob| keys.blob(blob).is_some_and(|b| b.holders() == 1);
        let relay = self.bases.give_up_relay(domain, is_free);
        relay.map(|blob| memory!(self).release(blob)).is_some()
    }
}
