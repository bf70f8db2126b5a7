//! What becomes of requests for a version that spreads through its readers.

use crate::fabric::LinkId;
use crate::protocol::action::HostAction;
use crate::protocol::ids::BlobId;
use crate::protocol::keys::{Blob, Fan, Spreads};
use crate::protocol::node::flows::Answering;
use crate::protocol::relays::{Proof, relay_limit};
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

    /// Decides what becomes of a request for a version that is published, and that the request holds. If enough nodes get the version
    /// from here, it is sent to another one, or waits for the digest of the version. For one that has waited for it, this `is_decided`.
    /// Returns `false` if it is answered from here.
    pub(in crate::protocol::node) fn spreads(
        &mut self,
        now: Time,
        (link, index): (LinkId, u32),
        blob: BlobId,
        is_decided: bool,
    ) -> bool {
        let Some(serve) = self.transfers.serve(link, index) else { return false };
        let (Some(b), Some(peer)) = (self.keys.blob(blob), self.links.peer_of(link)) else { return false };
        let spreads = self.may_spread(serve, b) && serve.takes_deltas(b).is_none();
        let Some(identity) = self.keys.identity_of(blob).filter(|_| spreads) else { return false };
        let (name, version, meta) = (peer.name.clone(), b.version, b.meta.clone());
        let links = &*self.links;
        let fan = Fan { out: self.config.fan_out, now, is_up: |to| links.get(to).is_some() };
        let decided = self.keys.spread(blob, (link, index, &name), is_decided, &fan);
        let Some(serve) = self.transfers.serve_mut(link, index) else { return false };
        match decided {
            Spreads::Send => {
                serve.count();
                self.keys.send_begins(now, blob, link, &name);
                return false;
            }
            Spreads::Prove(begins) => {
                serve.prove();
                if begins && self.keys.hold(blob).is_some() {
                    let (of, tag) =
                        (self.keys.body_of(blob, None), self.proofs.insert(Proof::Published(blob)).to_u64());
                    self.actions.push(HostAction::Digest { of, tag });
                }
            }
            Spreads::Redirect(digest, names) => {
                let [a, b, c] = &names;
                let key = serve.key().clone();
                let told = self.links.told(link, &key, &meta).or_else(|| self.links.tell(link, &key, &meta));
                let Some(metadata_id) = told else { return true };
                serve.describe(metadata_id);
                serve.send_elsewhere(names.clone());
                self.meters.redirected();
                let sources = sending!(self).number(link, [a, b, c]);
                let body = Body::Redirect { version, identity, metadata_id, digest, sources, meta };
                sending!(self).send(link, Role::Pull, index, body);
            }
        }
        true
    }

    /// Notes that a peer has granted a slot for a version that may spread. If it was sent to other nodes before, it takes the version
    /// from here.
    pub(super) fn send_flows(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(serve) = self.transfers.serve_mut(link, index) else { return };
        let (Some(blob), Some(peer)) = (serve.fetching(), self.links.peer_of(link)) else { return };
        if let Some(first) = serve.sent_to().cloned() {
            serve.count();
            self.meters.redirect_ended();
            self.keys.sent_node_ends(blob, link, &first, false);
            self.keys.send_begins(now, blob, link, &peer.name);
        }
        if serve.is_counted() {
            let len = self.keys.blob(blob).map_or(0, |b| b.meta.len_bytes());
            self.keys.send_flows(blob, link, now + relay_limit(len, self.config.fan_out));
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
        if let Some(relayed) = serve.relays() {
            self.relays.forget(&relayed.of, (link, index));
        }
        let Some(blob) = serve.fetching() else { return };
        if let Some(first) = serve.sent_to() {
            self.meters.redirect_ended();
            self.keys.sent_node_ends(blob, link, first, has_come);
        }
        match serve.is_counted() {
            true => self.keys.send_ends(blob, link, has_come),
            false => self.keys.waits_no_more(blob, (link, index)),
        }
        if self.keys.has_unproved(blob) {
            self.relays.ended_send(blob);
        }
    }
}
