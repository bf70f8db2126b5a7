//! Room in the landing pools: slots for flows, and who waits.

use crate::fabric::LinkId;
use crate::protocol::ids::{BlobId, FlowAt, SlotId};
use crate::protocol::keys::Source;
use crate::protocol::landing::Want;
use crate::protocol::node::flows::Room;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Pull;

impl Room<'_> {
    /// Drops a slot that is no longer wanted and that the peer will not write to.
    pub(in crate::protocol::node) fn drop_slot(&mut self, link: LinkId, id: SlotId) {
        self.landing.drop_slot(self.common.latest, link, id, self.actions);
    }

    /// Allocates room for all slots of a flow, or makes the flow wait for it.
    pub(in crate::protocol::node) fn give_room(&mut self, at: FlowAt) {
        let Some(domain) = self.landing.wants_slots(at) else { return };
        let contended = self.landing.is_contended(domain);
        if contended || !self.landing.try_slots(self.common.latest, domain, at, self.actions) {
            self.want(domain, Want::Flow(at.0, at.1));
        }
    }

    /// Keeps a landed version beside newer ones: its range belongs to the tensor from here on, and the flow gets
    /// another slot instead.
    pub(in crate::protocol::node) fn keep_slot(&mut self, link: LinkId, slot: SlotId, blob: BlobId) {
        let Some((range, asks)) = self.landing.keep_slot(link, slot) else { return };
        self.keys.set_source(blob, Source::Pool(Box::new(range)));
        let Some((domain, flow)) = asks else { return };
        let want = Want::Flow(link, flow);
        let waits = self.landing.pools().get(&domain).is_none_or(|pool| pool.wants().any(|other| other == want));
        let contended = self.landing.is_contended(domain);
        if !waits && (contended || !self.landing.try_slots(self.common.latest, domain, (link, flow), self.actions)) {
            self.want(domain, want);
        }
    }

    /// Puts a waiter into the queue for room in a pool.
    pub(in crate::protocol::node) fn want(&mut self, domain: Tenant, want: Want) {
        let Room { transfers, copies, .. } = self;
        let waits = |want| match want {
            Want::Pull(link, id) => transfers.pull(link, id).is_some_and(Pull::wants_room),
            Want::Copy(id) => copies.get(id).is_some_and(|copying| copying.needs().is_some()),
            Want::Flow(..) => true,
        };
        let number = match want {
            Want::Pull(link, id) => {
                transfers.pull(link, id).and_then(|pull| pull.search.as_ref()).and_then(|search| search.number_in_queue)
            }
            Want::Flow(..) | Want::Copy(_) => None,
        };
        self.landing.want(self.common.latest, domain, (number, want), waits);
    }
}
