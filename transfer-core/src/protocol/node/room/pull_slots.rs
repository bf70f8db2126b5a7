//! The landing slots of requests to peers: how one is opened, granted, and given up.

use crate::alloc::Allocation;
use crate::fabric::LinkId;
use crate::protocol::ids::{BlobId, PullId, SlotId};
use crate::protocol::landing::SlotUser;
use crate::protocol::node::flows::PullSlots;
use crate::protocol::relays::Redirect;
use crate::protocol::rules::Broken;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::{Pull, PullState};
use crate::tensor::{Name, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::SlotGrant;
use crate::wire::message::{Body, Role};

impl PullSlots<'_> {
    pub(in crate::protocol::node) fn open_pull_slot(
        &mut self,
        link: LinkId,
        pull: PullId,
        room: (Tenant, u64, Allocation),
    ) -> Option<SlotId> {
        let memory = self.transfers.pull_mut(link, pull).map_or_else(Vec::new, Pull::open_memory);
        self.sessions.open_memory(&memory);
        self.landing.open_slot(self.common.latest, link, room, &memory, SlotUser::Pull(pull), self.actions)
    }

    pub(in crate::protocol::node) fn ask(&mut self, now: Time, link: LinkId, pull: PullId, slot: Option<SlotGrant>) {
        let Some(p) = self.transfers.pull_mut(link, pull) else { return };
        p.ask(now);
        let (key, select, excerpt, reader) = (Name::from(p.key.clone()), p.select, p.excerpt.clone(), p.domain);
        let (gathered, redirect, direct) = (p.gathered.clone(), p.redirect().cloned(), p.is_direct);
        let (metadata_id, held) = (p.described.as_ref().map_or(0, |(id, _)| *id), p.identity());
        // One to a node that the owner has named is for the fetches of the request to the owner.
        let of = p.of_fetches((link, pull));
        let readers = self.transfers.pull(of.0, of.1).map_or(&[][..], Pull::readers);
        let first = readers.iter().find_map(|op| self.sessions.op(*op));
        let trace = first.and_then(|op| access!(self).trace_of(op));
        let tenant = self.config.tenants.name(reader);
        let request = match gathered {
            None if let Some(redirect) = redirect => {
                let names = [&key, &tenant, &redirect.owner_name];
                let [key, tenant, owner] = sending!(self).number(link, names);
                let Redirect { incarnation, version, identity, .. } = *redirect;
                Body::RelayRequest { key, tenant, owner, incarnation, version, identity, trace }
            }
            Some(gathered) => {
                let [stem, tenant] = sending!(self).number(link, [gathered.stem(), &tenant]);
                Body::GatherRequest { stem, tenant, parts: gathered.parts().to_vec(), trace }
            }
            None => {
                let [key, tenant] = sending!(self).number(link, [&key, &tenant]);
                Body::TensorRequest { key, tenant, select, metadata_id, excerpt, slot, held, direct, trace }
            }
        };
        sending!(self).send(link, Role::Pull, pull.short(), request);
    }

    /// Handles the opening of a request's slot: the peer gets the grant.
    pub(in crate::protocol::node) fn pull_granted(&mut self, now: Time, link: LinkId, pull: PullId, slot: SlotId) {
        let Some(p) = self.transfers.pull_mut(link, pull) else { return };
        let Some(grant) = self.landing.grant_of(link, slot) else { return };
        match p.state {
            PullState::Preparing => self.ask(now, link, pull, Some(grant)),
            PullState::Granting => {
                p.ask(now);
                p.tell_of_memory();
                let search = self.transfers.search_for_named(link, pull);
                let deadline = search.and_then(|(link, id)| self.first_deadline(link, id));
                if let Some((link, id)) = search {
                    let fan_out = self.config.fan_out;
                    // Without fetches the request has ended, or ends.
                    let deadline = deadline.unwrap_or(now);
                    self.transfers.change_search(link, id, |search| search.begin_sending(now, deadline, fan_out));
                }
                sending!(self).send(link, Role::Pull, pull.short(), Body::TensorReRequest { slot: grant });
            }
            // The request was given up meanwhile, and the peer does not know the slot.
            PullState::Asked
            | PullState::Redirected
            | PullState::WaitingForRoom
            | PullState::Cancelling
            | PullState::Applying
            | PullState::Proving
            | PullState::Closing => {
                room!(self).drop_slot(link, slot);
            }
        }
    }

    /// Returns when the first of the fetches ends that wait for a request.
    fn first_deadline(&self, link: LinkId, id: PullId) -> Option<Time> {
        let readers = self.transfers.pull(link, id)?.readers();
        readers.iter().filter_map(|op| self.sessions.op(*op)).map(|op| op.deadline).min()
    }

    /// Returns the request that a peer names by this index. An unknown index is a violation.
    pub(in crate::protocol::node) fn pull_of(&mut self, link: LinkId, index: u32) -> Option<PullId> {
        let found = self.transfers.pull_named(link, index);
        if found.is_none() {
            sending!(self).violation(link, &format!("it names request {index:#x}, which is not under way"));
        }
        found
    }

    /// Handles the message TRACE: the trace context of the push whose version is about to land.
    pub(in crate::protocol::node) fn pull_traced(
        &mut self,
        link: LinkId,
        index: u32,
        version: Version,
        context: TraceContext,
    ) {
        let Some(id) = self.pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        match p.state {
            PullState::Asked if !self.landing.has_landed(link, p.slot) => p.tell(version, context),
            PullState::Cancelling => {}
            _ => sending!(self).violation(link, &format!("TRACE for request {index:#x}, which it does not write to")),
        }
    }

    /// Allocates room for a request whose version is described. Returns `true` if it has room or no longer needs any.
    pub(in crate::protocol::node) fn try_pull_slot(&mut self, domain: Tenant, link: LinkId, id: PullId) -> bool {
        let Some(p) = self.transfers.pull_mut(link, id).filter(|p| p.wants_room()) else { return true };
        let Some((len, room)) = p.len_bytes().zip(p.pool_bytes()) else { return true };
        let Some(range) = self.landing.room_for_slot(domain, room) else { return false };
        p.state = PullState::Granting;
        let slot = self.open_pull_slot(link, id, (domain, len, range));
        if let Some(p) = self.transfers.pull_mut(link, id) {
            p.slot = slot;
        }
        true
    }

    /// Handles the end of one of the fetches that wait for a request. The last one gives it up. Returns a version that the
    /// caller releases.
    #[must_use]
    pub(in crate::protocol::node) fn leave_pull(&mut self, link: LinkId, id: PullId) -> Option<BlobId> {
        match self.transfers.pull_mut(link, id)?.leave() {
            true => self.cancel_pull(link, id),
            false => None,
        }
    }

    /// Gives up a request whose fetches have ended without the data. If the peer knows the request, it has to confirm the
    /// end before the slot is used again. Returns a version that the caller releases.
    #[must_use]
    pub(in crate::protocol::node) fn cancel_pull(&mut self, link: LinkId, id: PullId) -> Option<BlobId> {
        let held = self.transfers.take_held(link, id);
        self.stop_search(link, id);
        self.transfers.close_pull(link, id);
        self.stop_pull(link, id, Body::Cancel);
        held
    }

    /// Ends the search for a version at other nodes, with the request to the one that is asked.
    pub(in crate::protocol::node) fn stop_search(&mut self, link: LinkId, id: PullId) {
        let search = self.transfers.end_search(link, id);
        // A request to a node that an owner has named may have the search itself.
        if let Some((to, named)) = search.and_then(|search| search.asked()).filter(|asked| *asked != (link, id)) {
            self.cancel_named(to, named);
        }
    }

    /// Gives up a request to a node that an owner has named. It holds no version.
    pub(in crate::protocol::node) fn cancel_named(&mut self, to: LinkId, named: PullId) {
        self.transfers.close_pull(to, named);
        self.stop_pull(to, named, Body::Cancel);
    }

    /// Tells the owner that a version has come from another node, and ends the request for it.
    pub(in crate::protocol::node) fn taken(&mut self, link: LinkId, id: PullId) {
        self.stop_search(link, id);
        self.transfers.close_pull(link, id);
        self.stop_pull(link, id, Body::Taken);
    }

    /// Ends a request. `told` says to a peer that knows it why.
    fn stop_pull(&mut self, link: LinkId, id: PullId, told: Body) {
        let latest = self.common.latest;
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        p.asked = latest;
        let (slot, domain) = (p.slot, p.domain);
        match p.state {
            PullState::Preparing => {
                self.settle_speculation(link, id);
                self.transfers.end_pull(link, id);
                if let Some(slot) = slot {
                    room!(self).drop_slot(link, slot);
                }
            }
            state @ (PullState::Asked | PullState::Redirected | PullState::WaitingForRoom | PullState::Granting) => {
                p.state = PullState::Cancelling;
                if self.config.rules.breaks(Broken::SkipsQuarantine)
                    && let Some(slot) = slot
                {
                    room!(self).drop_slot(link, slot);
                }
                let Some(p) = self.transfers.pull_mut(link, id) else { return };
                if state == PullState::Granting {
                    // The peer was not told of this slot. In the memory of a worker, its end is waited for all the same.
                    p.slot = slot.filter(|_| p.opened_memory().is_some());
                    if let Some(slot) = slot {
                        room!(self).drop_slot(link, slot);
                    }
                }
                sending!(self).send(link, Role::Pull, id.short(), told);
                self.landing.serve_later(domain);
            }
            // What is made is freed once it is made.
            PullState::Applying | PullState::Proving => drop(self.transfers.end_pull(link, id)),
            PullState::Cancelling | PullState::Closing => {}
        }
    }

    /// Handles the message CANCELLED, which comes behind all data of the request.
    pub(in crate::protocol::node) fn pull_cancelled(&mut self, link: LinkId, index: u32) {
        let Some(id) = self.pull_of(link, index) else { return };
        if self.transfers.pull(link, id).is_none_or(|p| p.state != PullState::Cancelling) {
            return sending!(self)
                .violation(link, &format!("CANCELLED for request {index:#x}, which was not cancelled"));
        }
        self.settle_speculation(link, id);
        if let Some(p) = self.transfers.pull_mut(link, id)
            && let Some(slot) = p.slot.filter(|_| p.opened_memory().is_some())
        {
            p.state = PullState::Closing;
            return room!(self).drop_slot(link, slot);
        }
        let slot = self.transfers.end_pull(link, id).and_then(|p| p.slot);
        if let Some(slot) = slot {
            room!(self).drop_slot(link, slot);
        }
    }

    /// Handles the message BEHIND: what is asked for is not the next version.
    pub(in crate::protocol::node) fn pull_behind(&mut self, link: LinkId, index: u32, newest: Version) {
        let Some(id) = self.pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        if p.state != PullState::Cancelling && !p.is_behind(newest) {
            sending!(self)
                .violation(link, &format!("BEHIND for request {index:#x}, which does not wait for a later version"));
        }
    }

    pub(in crate::protocol::node) fn settle_speculation(&mut self, link: LinkId, id: PullId) {
        if self.config.rules.breaks(Broken::KeepsSpeculation) {
            return;
        }
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let (bytes, domain) = (std::mem::take(&mut p.speculative), p.domain);
        self.landing.settle_speculation(domain, bytes);
    }
}
