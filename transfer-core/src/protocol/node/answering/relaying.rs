//! Chunks of versions that peers ask for: of this node's own, and of those of other nodes, which are sent on from here.

use crate::fabric::LinkId;
use crate::protocol::ids::BlobId;
use crate::protocol::keys::Blob;
use crate::protocol::links::{Out, OutWrite, Purpose};
use crate::protocol::node::flows::Answering;
use crate::protocol::passing::comes_back_until;
use crate::protocol::relays::{Spreading, not_here};
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::{AskedChunk, Serve};
use crate::tensor::{BodyRange, Key, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::SlotGrant;
use crate::wire::message::{Body, NameRef, Role};
use std::num::NonZeroU64;

impl Answering<'_> {
    /// Handles the message CHUNK_REQUEST: a peer asks for a chunk of a version, of this node or of another one that has sent the peer here.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn chunk_request(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        [key, tenant, owner]: [NameRef; 3],
        incarnation: u64,
        (version, identity, offset): (Version, NonZeroU64, u64),
        (slot, trace): (SlotGrant, Option<TraceContext>),
    ) {
        let names = self.links.look_up(link, key).and_then(|key| Ok((key, self.links.look_up(link, owner)?)));
        let (text, owner) = match names {
            Ok((text, owner)) => (Key::from(text.clone()), owner.clone()),
            Err(what) => return sending!(self).violation(link, &what),
        };
        let is_own = owner == self.config.name && incarnation == self.config.incarnation;
        // What is held for the peer is sent to it, though this node may drain.
        let held = self.keys.identified(identity).filter(|blob| is_own && self.transfers.is_held_for(link, *blob));
        let Some(reader) = self.admits(link, index, tenant, held.is_some()) else { return };
        let range = BodyRange { offset, len: slot.capacity };
        let publication = (owner.clone(), incarnation, reader, identity);
        let of = self.links.up_to(&owner, incarnation).map(|to| (to, reader, text.clone()));
        // Its owner may have died: what has come, and what comes from others, is sent on all the same.
        let is_searched = of.as_ref().is_some_and(|of| self.transfers.search_for(of, identity).is_some());
        let orphan = (!is_searched).then(|| self.transfers.orphan_of(&text, &publication)).flatten();
        let chunk = AskedChunk { of: orphan.or(of), publication, version, identity, range, deltas_follow: false };
        let serve = Serve::new(now, (text, key.id), reader, (0, None), Some(slot), trace).for_chunk(chunk);
        self.transfers.begin_serve(link, index, serve);
        match held {
            Some(blob) if self.is_of(blob, reader, version) => self.send_chunk(now, (link, index), blob, false),
            Some(_) => self.not_relayed(now, link, index),
            None => self.relay(now, (link, index)),
        }
    }

    fn is_of(&self, blob: BlobId, reader: Tenant, version: Version) -> bool {
        self.keys.blob(blob).is_some_and(|b| (b.domain, b.version) == (reader, version))
    }

    /// Answers a request for a chunk of a version of another node, if it is here: lets it wait, if the version may be on its way here, or
    /// refuses it.
    fn relay(&mut self, now: Time, (link, index): (LinkId, u32)) {
        let Some(chunk) = self.transfers.serve(link, index).and_then(Serve::chunk) else { return };
        let (version, identity, range, publication) =
            (chunk.version, chunk.identity, chunk.range, chunk.publication.clone());
        let of = chunk.of.clone();
        let until = comes_back_until(now, range.len);
        if let Some((blob, follow)) = self.relays.passing.find(&publication, until) {
            return self.send_chunk(now, (link, index), blob, follow);
        }
        let Some(of) = of else { return self.not_relayed(now, link, index) };
        if let Some((held, follow)) = self.bases.find(&of).filter(|(held, _)| held.identity == identity) {
            self.bases.ask_until(&of, until);
            return self.send_chunk(now, (link, index), held.blob, follow);
        }
        let search = self.transfers.search_of(&of, &publication);
        let goes_on = search.as_ref().is_some_and(|search| !search.has_owner);
        if let Some(search) = search
            && let Some(chunks) = search.chunks.as_deref()
        {
            search.asked_until = search.asked_until.max(Some(until));
            let (blob, number) = (chunks.blob, chunks.number_of(range));
            let follow = chunks.header.as_ref().is_some_and(|header| header.deltas_follow);
            match number {
                None => return self.not_relayed(now, link, index),
                Some(number) if chunks.is_here(number) => return self.send_chunk(now, (link, index), blob, follow),
                Some(_) => {}
            }
        }
        match goes_on || self.transfers.await_version(&of, version, identity) {
            true => self.relays.wait(of, range.offset, (link, index)),
            false => self.not_relayed(now, link, index),
        }
    }

    /// Writes a chunk into the slot that its request has brought along. Deltas of the version may follow, or not.
    fn send_chunk(&mut self, now: Time, (link, index): (LinkId, u32), blob: BlobId, deltas_follow: bool) {
        let Some(b) = self.keys.hold(blob) else { return self.not_relayed(now, link, index) };
        let (len, version, trace, follow) = (b.meta.len_bytes(), b.version, b.trace(), Blob::deltas_follow(b));
        let Some(serve) = self.transfers.serve_mut(link, index) else { return memory!(self).release(blob) };
        serve.publish(now, blob);
        serve.pass_on(deltas_follow);
        let Some(range) = serve.chunk().map(|chunk| chunk.range) else { return };
        if range.len == 0 || range.offset.checked_add(range.len).is_none_or(|end| end > len) {
            let what = format!("CHUNK_REQUEST {index:#x} for {range:?} of a version of {len} bytes");
            return sending!(self).violation(link, &what);
        }
        let Some((slot, blob)) = serve.write(now) else { return };
        let identity = serve.chunk().map(|chunk| chunk.identity);
        let header = serve.header(index, &slot, (version, identity), (follow, true), range.len);
        let body = self.keys.blob(blob).map(|b| b.chunk(range).collect()).unwrap_or_default();
        self.keys.chunk_asked(now, blob, link);
        if let Some(context) = trace.filter(|_| range.offset == 0) {
            sending!(self).send(link, Role::Pull, index, Body::Trace { version, context });
        }
        sending!(self).post(link, Out::Write(OutWrite { blob, body, slot, header, purpose: Purpose::Serve(index) }));
    }

    /// Answers the requests that wait for a chunk of a version of another node, which is here.
    pub(in crate::protocol::node) fn chunk_come(
        &mut self,
        now: Time,
        of: &Spreading,
        identity: NonZeroU64,
        range: Option<BodyRange>,
        (blob, deltas_follow): (BlobId, bool),
    ) {
        for (link, index) in self.relays.take(of, range.map(|range| range.offset)) {
            let Some(chunk) = self.transfers.serve(link, index).and_then(Serve::chunk) else { continue };
            let offset = chunk.range.offset;
            let is_it = chunk.identity == identity && range.is_none_or(|range| chunk.range == range);
            match is_it {
                true => self.send_chunk(now, (link, index), blob, deltas_follow),
                false => self.relays.wait(of.clone(), offset, (link, index)),
            }
        }
    }

    /// Looks again at the requests that wait for versions of other nodes, where a request of this node has ended.
    pub(in crate::protocol::node) fn look_at_relays(&mut self) {
        while let Some(of) = self.transfers.take_awaited_ended() {
            for request in self.relays.take(&of, None) {
                self.relay(self.common.latest, request);
            }
        }
    }

    fn not_relayed(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(serve) = self.transfers.serve(link, index) else { return };
        let failure = not_here(&self.config.name, serve.key());
        self.end_serve(now, link, index, failure);
    }
}
