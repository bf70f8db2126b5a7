//! What becomes of requests for a version that spreads through its readers.

use crate::fabric::LinkId;
use crate::protocol::action::HostAction;
use crate::protocol::chunks::{chunk_at, chunk_bytes};
use crate::protocol::ids::BlobId;
use crate::protocol::keys::{Blob, DigestsDue, Fan};
use crate::protocol::node::flows::Answering;
use crate::protocol::relays::Proof;
use crate::protocol::transfers::Serve;
use crate::time::Time;
use crate::wire::message::{Body, Role};

impl Answering<'_> {
    /// Whether other nodes may get a version here, as far as is known from this request for it.
    pub(super) fn may_spread(&self, serve: &Serve, version: &Blob) -> bool {
        let is_whole = !serve.is_of_parts() && !serve.is_direct();
        let is_long = self.config.fan_out > 0 && version.meta.len_bytes() >= self.config.spreads_from;
        // Only its own tenant's nodes can send it on: who else may read it is known here.
        is_whole && is_long && version.domain == serve.reader()
    }

    /// Lets a peer ask for the chunks of a version that is published, and that its request holds: here, or of other nodes, if enough nodes
    /// get the version from here. Returns `false` if it is answered otherwise.
    pub(super) fn spreads(&mut self, now: Time, (link, index): (LinkId, u32), blob: BlobId) -> bool {
        let Some(serve) = self.transfers.serve(link, index) else { return false };
        let (Some(b), Some(peer)) = (self.keys.blob(blob), self.links.peer_of(link)) else { return false };
        let spreads = self.may_spread(serve, b) && serve.takes_deltas(b).is_none();
        let Some(identity) = self.keys.identity_of(blob).filter(|_| spreads) else { return false };
        let (peer, version, meta, key) = (peer.name.clone(), b.version, b.meta.clone(), serve.key().clone());
        let told = self.links.told(link, &key, &meta).or_else(|| self.links.tell(link, &key, &meta));
        let Some(metadata_id) = told else { return false };
        let links = &*self.links;
        let fan = Fan { out: self.config.fan_out, now, is_up: |to| links.get(to).is_some() };
        let nodes = self.keys.spread(blob, (link, &peer), &fan);
        let Some(serve) = self.transfers.serve_mut(link, index) else { return false };
        serve.describe(metadata_id);
        self.transfers.redirect(link, index, nodes.clone());
        if nodes.is_some() {
            self.meters.redirected();
        }
        let is_elsewhere = nodes.is_some();
        let [a, b, c] = &nodes.unwrap_or_else(|| std::array::from_fn(|_| self.config.name.clone()));
        let sources = sending!(self).number(link, [a, b, c]);
        let chunk_bytes = chunk_bytes(meta.len_bytes(), self.config.chunk_bytes);
        let body = Body::Redirect { version, identity, metadata_id, chunk_bytes, sources, meta };
        sending!(self).send(link, Role::Pull, index, body);
        if is_elsewhere {
            let (due, next) = self.keys.want_digests(blob, (link, index), self.chunk_count(blob));
            self.send_digests(due);
            if let Some(next) = next
                && self.keys.hold(blob).is_some()
            {
                self.make_digest(blob, next);
            }
        }
        true
    }

    /// Returns the number of chunks of a version.
    fn chunk_count(&self, blob: BlobId) -> usize {
        let len = self.keys.blob(blob).map_or(0, |b| b.meta.len_bytes());
        usize::try_from(len.div_ceil(chunk_bytes(len, self.config.chunk_bytes))).unwrap_or(usize::MAX)
    }

    fn make_digest(&mut self, blob: BlobId, number: usize) {
        let Some(b) = self.keys.blob(blob) else { return };
        let len = b.meta.len_bytes();
        let chunk = chunk_at(len, chunk_bytes(len, self.config.chunk_bytes), number);
        let of = chunk.map(|range| b.chunk(range).collect()).unwrap_or_default();
        let tag = self.proofs.insert(Proof::Published(blob)).to_u64();
        self.actions.push(HostAction::Digest { of, tag });
    }

    /// Handles the digest of the next chunk of a version. While it is made the version is held.
    pub(in crate::protocol::node) fn digest_made(&mut self, blob: BlobId, digest: [u8; 16]) {
        let (due, next) = self.keys.digest_made(blob, digest, self.chunk_count(blob));
        self.send_digests(due);
        match next {
            Some(next) => self.make_digest(blob, next),
            None => memory!(self).release(blob),
        }
    }

    fn send_digests(&mut self, due: Vec<DigestsDue>) {
        for ((link, index), first, digests) in due {
            let first = u32::try_from(first).unwrap_or(u32::MAX);
            sending!(self).send(link, Role::Pull, index, Body::Digests { first, digests });
        }
    }

    /// Handles the message SOURCE_FAILED: a node to which the peer was sent does not send the version. It is named to no others, unless
    /// it asks for the version again.
    pub(in crate::protocol::node) fn source_failed(&mut self, link: LinkId, index: u32, place: usize) {
        let Some(serve) = self.transfers.serve_mut(link, index) else { return };
        if let Some((blob, nodes)) = serve.fetching().zip(serve.source_failed(place)) {
            self.keys.source_failed(blob, nodes.each_ref());
        }
    }

    /// Ends the part that a request had in the spreading of its version, which `has_come` to the peer or not.
    pub(super) fn spread_ended(&mut self, (link, index): (LinkId, u32), serve: &Serve, has_come: bool) {
        if let Some((chunk, of)) = serve.chunk().and_then(|chunk| Some((chunk, chunk.of.as_ref()?))) {
            self.relays.forget(of, chunk.range.offset, (link, index));
        }
        let Some(blob) = serve.fetching().filter(|_| serve.is_redirected()) else { return };
        self.keys.spread_ended(blob, link, serve.sent_to(), has_come);
        if serve.sent_to().is_some() {
            self.meters.redirect_ended();
            self.keys.want_no_digests(blob, (link, index));
        }
    }
}
