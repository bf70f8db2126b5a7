//! The landing slots of requests to peers: how one is opened, granted, and given up.

use crate::alloc::Allocation;
use crate::fabric::LinkId;
use crate::protocol::chunks::Chunks;
use crate::protocol::ids::{BlobId, PullId, SlotId};
use crate::protocol::keys::{Released, Source};
use crate::protocol::landing::SlotUser;
use crate::protocol::node::flows::PullSlots;
use crate::protocol::relays::Redirect;
use crate::protocol::rules::Broken;
use crate::protocol::search::Search;
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
        let p = self.transfers.pull_mut(link, pull);
        let memory = match p.as_ref().and_then(|p| p.chunk()) {
            Some(chunk) => vec![chunk.slice],
            None => {
                let memory = p.map_or_else(Vec::new, Pull::open_memory);
                self.sessions.open_memory(&memory);
                memory
            }
        };
        self.landing.open_slot(self.common.latest, link, room, &memory, SlotUser::Pull(pull), self.actions)
    }

    pub(in crate::protocol::node) fn ask(&mut self, now: Time, link: LinkId, pull: PullId, slot: Option<SlotGrant>) {
        let Some(p) = self.transfers.pull_mut(link, pull) else { return };
        p.ask(now);
        let (key, select, excerpt, reader) = (Name::from(p.key.clone()), p.select, p.excerpt.clone(), p.domain);
        let (gathered, redirect, direct) = (p.gathered.clone(), p.redirect().cloned(), p.is_direct);
        let (metadata_id, held) = (p.described.as_ref().map_or(0, |(id, _)| *id), p.identity());
        let chunk = p.chunk();
        // One for a chunk is for the fetches of the request that has the search.
        let of = chunk.and_then(|chunk| self.transfers.home_of(chunk.blob)).unwrap_or((link, pull));
        let readers = self.transfers.pull(of.0, of.1).map_or(&[][..], Pull::readers);
        let first = readers.iter().find_map(|op| self.sessions.op(*op));
        let trace = first.and_then(|op| access!(self).trace_of(op));
        let tenant = self.config.tenants.name(reader);
        let request = match gathered {
            None if let (Some(redirect), Some(chunk), Some(slot)) = (redirect, chunk, &slot) => {
                let names = [&key, &tenant, &redirect.owner_name];
                let [key, tenant, owner] = sending!(self).number(link, names);
                let Redirect { incarnation, version, identity, .. } = *redirect;
                let (offset, slot) = (chunk.range.offset, slot.clone());
                Body::ChunkRequest { key, tenant, owner, incarnation, version, identity, offset, slot, trace }
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
                sending!(self).send(link, Role::Pull, pull.short(), Body::TensorReRequest { slot: grant });
            }
            // The request was given up meanwhile, and the peer does not know the slot.
            PullState::Asked
            | PullState::Redirected
            | PullState::WaitingForRoom
            | PullState::Cancelling
            | PullState::Applying
            | PullState::Closing => {
                room!(self).drop_slot(link, slot);
            }
        }
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

    /// Ends the search for a version, with the requests for its chunks.
    pub(in crate::protocol::node) fn stop_search(&mut self, link: LinkId, id: PullId) {
        if let Some(search) = self.transfers.end_search(link, id) {
            self.drop_search(*search);
        }
    }

    /// Gives up the requests for the chunks of a search that has ended, and what has come.
    pub(in crate::protocol::node) fn drop_search(&mut self, search: Search) {
        if !search.has_owner {
            self.transfers.search_dropped(search.redirect.spreading());
        }
        let Some(mut chunks) = search.chunks else { return };
        for (to, asked) in chunks.give_up() {
            self.cancel_chunk(to, asked);
        }
        self.free_cell(&mut chunks);
        for blob in std::iter::once(chunks.blob).chain(search.moving.map(|(to, _)| to)) {
            self.release_chunks(blob);
        }
    }

    /// Frees the range for the header of a chunk, which is needed no more.
    pub(in crate::protocol::node) fn free_cell(&mut self, chunks: &mut Chunks) {
        let domain = self.keys.blob(chunks.blob).map(|b| b.domain);
        if let Some((domain, cell)) = domain.zip(chunks.cell.take()) {
            self.landing.free(domain, cell);
        }
    }

    /// Ends a reference to a blob where chunks land. Its memory goes back with the last one, when no peer can write there.
    pub(in crate::protocol::node) fn release_chunks(&mut self, blob: BlobId) {
        if let Released::Ended(blob) = self.keys.release(blob)
            && let Source::Pool(range) = blob.source
        {
            self.landing.free(blob.domain, *range);
        }
    }

    /// Gives up a request for a chunk.
    pub(in crate::protocol::node) fn cancel_chunk(&mut self, to: LinkId, asked: PullId) {
        self.stop_pull(to, asked, Body::Cancel);
    }

    /// Tells the owner that a version is here, all of its chunks, and ends the request for it.
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
            PullState::Preparing if p.chunk().is_some() => {
                // It ends when its slot is closed, which is still being opened.
                p.state = PullState::Closing;
                if let Some(slot) = slot {
                    room!(self).drop_slot(link, slot);
                }
            }
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
            PullState::Applying => drop(self.transfers.end_pull(link, id)),
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
