//! Landing slots: what follows a grant, a landing and freed room.

use super::Node;
use crate::fabric::LinkId;
use crate::memory::{LocalSlice, RemoteSlice};
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::{BlobId, FlowAt, SlotId};
use crate::protocol::keys::Source;
use crate::protocol::landing::{Granted, LandedTensor, Revoked, SlotUser, Want};
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Pull;
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;
use crate::wire::message::{Body, Role};

impl Node {
    /// Returns where the header of a slot lies. The caller copies the header out before [`Node::fabric_event`] gets the
    /// immediate. `None` if no such slot is open to that link.
    #[must_use]
    pub fn landing_header(&self, link: LinkId, immediate: u32) -> Option<LocalSlice> {
        self.landing.header_of(link, immediate)
    }

    pub(super) fn immediate(
        &mut self,
        link: LinkId,
        value: u32,
        header: Option<&[u8; HEADER_BYTES as usize]>,
        copied: u64,
    ) {
        if !self.links.slot_used(link, &mut self.actions) {
            return;
        }
        let checked = self.landing.check(link, value, header).and_then(|(slot, key, user, header)| {
            let meta = match user {
                SlotUser::Pull(id) => {
                    let pull = self.transfers.pull(link, id).ok_or("the slot's request is gone")?;
                    pull.check_landing(id, &header)?
                }
                SlotUser::Flow(flow, _) => self.landing.check_flow((link, flow), &header)?,
                SlotUser::Nobody => None,
            };
            Ok(((slot, key), meta.map(|meta| LandedTensor { header, meta, copied, trace: None })))
        });
        match checked {
            Ok((slot, landed)) => self.landing.landed(self.latest, link, slot, landed, &mut self.actions),
            Err(what) => self.violation(link, &what),
        }
    }

    pub(super) fn granted(&mut self, now: Time, link: LinkId, id: SlotId, remote: RemoteSlice) {
        match self.landing.granted(link, id, remote) {
            Some(SlotUser::Pull(pull)) => self.pull_granted(now, link, pull, id),
            Some(SlotUser::Flow(flow, round)) => {
                match self.landing.flow_granted(self.latest, (link, flow), round, id, &mut self.actions) {
                    Granted::Nothing => {}
                    Granted::All(index, slots) => self.answer_flow(link, index, Ok(slots)),
                    Granted::Idle(index, slot) => self.send(link, Role::Push, index, Body::BufferIdle { slot }),
                }
            }
            Some(SlotUser::Nobody) => self.drop_slot(link, id),
            None => {}
        }
    }

    pub(super) fn revoked(&mut self, now: Time, link: LinkId, id: SlotId) {
        match self.landing.revoked(link, id) {
            Revoked::Nothing => {}
            Revoked::Pull(pull, landed) => self.pull_landed(now, link, pull, id, landed),
            Revoked::Flow(flow) => self.deliver_flow(now, (link, flow), id),
        }
    }

    /// Drops a slot that is no longer wanted and that the peer will not write to.
    pub(super) fn drop_slot(&mut self, link: LinkId, id: SlotId) {
        self.landing.drop_slot(self.latest, link, id, &mut self.actions);
    }

    /// Allocates room for all slots of a flow, or makes the flow wait for it.
    pub(super) fn give_room(&mut self, at: FlowAt) {
        let Some(domain) = self.landing.wants_slots(at) else { return };
        let contended = self.landing.is_contended(domain);
        if contended || !self.landing.try_slots(self.latest, domain, at, &mut self.actions) {
            self.want(domain, Want::Flow(at.0, at.1));
        }
    }

    /// Keeps a landed version beside newer ones: its range belongs to the tensor from here on, and the flow gets
    /// another slot instead.
    pub(super) fn keep_slot(&mut self, link: LinkId, slot: SlotId, blob: BlobId) {
        let Some((range, asks)) = self.landing.keep_slot(link, slot) else { return };
        self.keys.set_source(blob, Source::Pool(Box::new(range)));
        let Some((domain, flow)) = asks else { return };
        let want = Want::Flow(link, flow);
        let waits = self.landing.pools().get(&domain).is_none_or(|pool| pool.wants().contains(&want));
        let contended = self.landing.is_contended(domain);
        if !waits && (contended || !self.landing.try_slots(self.latest, domain, (link, flow), &mut self.actions)) {
            self.want(domain, want);
        }
    }

    /// Puts a waiter into the queue for room in a pool.
    pub(super) fn want(&mut self, domain: Tenant, want: Want) {
        let Node { transfers, copies, .. } = self;
        let waits = |want| match want {
            Want::Pull(link, id) => transfers.pull(link, id).is_some_and(Pull::wants_room),
            Want::Copy(id) => copies.get(id).is_some_and(|copying| copying.needs().is_some()),
            Want::Flow(..) => true,
        };
        if let Some(bytes) = self.landing.want(self.latest, domain, want, waits) {
            let tenant = self.config.tenants.name(domain);
            self.actions.report(NodeEvent::PoolFull { domain, tenant, bytes });
        }
    }

    /// Gives freed room to the waiters of each pool, in order.
    pub(super) fn serve_pool_waiters(&mut self) {
        for domain in self.landing.take_to_serve() {
            while let Some(want) = self.landing.first(domain) {
                let served = match want {
                    Want::Pull(link, pull) => self.try_pull_slot(domain, link, pull),
                    Want::Flow(link, flow) => {
                        self.landing.try_slots(self.latest, domain, (link, flow), &mut self.actions)
                    }
                    Want::Copy(copying) => self.try_copy(domain, copying),
                };
                if !served {
                    self.reclaim(domain, want);
                    break;
                }
                self.landing.pop_first(domain);
            }
            if let Some(after) = self.landing.served(self.latest, domain) {
                let tenant = self.config.tenants.name(domain);
                self.actions.report(NodeEvent::PoolFree { domain, tenant, after });
            }
        }
    }
}
