//! A version that spreads through its readers: the owner sends nodes to those that have it, and these send it on.

use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::action::HostAction;
use crate::protocol::ids::BlobId;
use crate::protocol::keys::Spreads;
use crate::protocol::node::Node;
use crate::protocol::node::flows::Answering;
use crate::protocol::relays::{Proof, Spreading};
use crate::protocol::slab::Id;
use crate::protocol::transfers::{Held, Serve};
use crate::tensor::Key;
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::message::{Body, NameRef, Role};
use std::num::NonZeroU64;

impl Node {
    /// Handles the answer to [`HostAction::Digest`].
    pub fn digested(&mut self, now: Time, tag: u64, digest: [u8; 16]) {
        self.common.latest = now;
        match self.proofs.remove(Id::from_u64(tag)) {
            Some(Proof::Published(blob)) => answering!(self).version_proved(now, blob, digest),
            Some(Proof::Came(link, pull, blob, header)) => {
                fetching!(self).relayed_proved(now, (link, pull), blob, *header, digest);
            }
            None => {}
        }
    }
}

#[cfg(test)]
impl Node {
    /// Whether a digest is one of a version that did not come from its owner; for tests.
    pub(crate) fn proves_relayed(&self, tag: u64) -> bool {
        matches!(self.proofs.get(Id::from_u64(tag)), Some(Proof::Came(..)))
    }
}

impl Answering<'_> {
    /// Sends a request for a version that is published, and that the request holds, to another node, if enough nodes get the version
    /// from here. For one that has waited for the digest, this `is_decided`. Returns `false` if it is to be answered from here.
    pub(in crate::protocol::node) fn spreads(
        &mut self,
        now: Time,
        (link, index): (LinkId, u32),
        blob: BlobId,
        is_decided: bool,
    ) -> bool {
        let Some(serve) = self.transfers.serve(link, index) else { return false };
        let (Some(b), Some(peer)) = (self.keys.blob(blob), self.links.peer_of(link)) else { return false };
        let is_whole = !serve.is_of_parts() && !serve.is_direct() && !serve.takes_delta(b.base());
        let is_long = self.config.fan_out > 0 && b.meta.len_bytes() >= self.config.spreads_from;
        // Only its own tenant's nodes can send it on: who else may read it is known here.
        let identity = self.keys.identity_of(blob).filter(|_| b.domain == serve.reader());
        let Some(identity) = identity.filter(|_| is_whole && is_long) else { return false };
        let (name, version, meta) = (peer.name.clone(), b.version, b.meta.clone());
        let links = &*self.links;
        let (fan_out, is_up) = (self.config.fan_out, |to| links.get(to).is_some());
        let decided = self.keys.spread(blob, (link, index, &name), fan_out, is_decided, is_up);
        let Some(serve) = self.transfers.serve_mut(link, index) else { return false };
        match decided {
            Spreads::Send => {
                serve.count();
                self.keys.send_begins(blob, link, &name);
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
                let sources = sending!(self).number(link, [a, b, c]);
                if let Some(serve) = self.transfers.end_serve(link, index) {
                    self.serve_ended(now, link, &serve, false);
                }
                self.meters.redirected();
                let body = Body::Redirect { version, identity, digest, sources, meta };
                sending!(self).send(link, Role::Pull, index, body);
            }
        }
        true
    }

    /// Goes on with the requests that have waited for the digest of a version.
    fn version_proved(&mut self, now: Time, blob: BlobId, digest: [u8; 16]) {
        for (link, index) in self.keys.proved(blob, digest) {
            let waited = self.transfers.serve_mut(link, index).is_some_and(|serve| serve.has_proof(blob));
            if waited && !self.spreads(now, (link, index), blob, true) {
                self.answer_published(link, index);
            }
        }
        memory!(self).release(blob);
    }

    /// Handles the message RELAY_REQUEST: a peer asks for a version that another node owns, because that has sent it here.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn relay_request(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        [key, tenant, owner]: [NameRef; 3],
        incarnation: u64,
        identity: NonZeroU64,
        trace: Option<TraceContext>,
    ) {
        let names = self.links.look_up(link, key).and_then(|key| Ok((key, self.links.look_up(link, owner)?)));
        let (text, owner) = match names {
            Ok((text, owner)) => (Key::from(text.clone()), owner.clone()),
            Err(what) => return sending!(self).violation(link, &what),
        };
        let Some(reader) = self.admits(link, index, tenant) else { return };
        let serve = Serve::new(now, (text.clone(), key.id), reader, (0, None), None, trace);
        let Some(to_owner) = self.links.up_to(&owner, incarnation) else {
            self.transfers.begin_serve(link, index, serve);
            return self.not_relayed(now, link, index);
        };
        let of = (to_owner, reader, text);
        self.transfers.begin_serve(link, index, serve.relaying(of.clone(), identity));
        self.relay(now, link, index, None);
    }

    /// Answers a request for a version of another node, if it is here: lets it wait, if the version may be on its way here, or refuses it.
    /// `came` is a version that has just landed, and whether deltas of it may follow.
    fn relay(&mut self, now: Time, link: LinkId, index: u32, came: Option<(Held, bool)>) {
        let Some((of, identity)) = self.transfers.serve(link, index).and_then(Serve::relays) else { return };
        let of = of.clone();
        let found = came.or_else(|| self.bases.find(&of)).filter(|(held, _)| held.identity == identity);
        if let Some((held, deltas_follow)) = found
            && self.keys.hold(held.blob).is_some()
            && let Some(serve) = self.transfers.serve_mut(link, index)
        {
            serve.publish(now, held.blob);
            serve.pass_on(deltas_follow);
            return self.answer_published(link, index);
        }
        match self.transfers.is_coming(&of) || self.relays.is_sought(&of) {
            true => self.relays.wait(of, (link, index)),
            false => self.not_relayed(now, link, index),
        }
    }

    /// Looks again at the requests that wait for a version of another node: one has come, or none comes any more.
    pub(in crate::protocol::node) fn relay_all(&mut self, now: Time, of: &Spreading, came: Option<(Held, bool)>) {
        for (link, index) in self.relays.take(of) {
            self.relay(now, link, index, came);
        }
    }

    fn not_relayed(&mut self, now: Time, link: LinkId, index: u32) {
        let key = self.transfers.serve(link, index).map(|serve| serve.key().clone());
        let text = format!(
            "node {:?} does not have this version of key {:?}, which its owner has sent to it",
            self.config.name,
            key.as_ref().map_or("", Key::as_str)
        );
        self.end_serve(now, link, index, Failure::new(FailureCode::VersionGone, text));
    }

    /// Ends the part that a request had in the spreading of its version.
    pub(in crate::protocol::node) fn spread_ended(&mut self, link: LinkId, index: u32, serve: &Serve) {
        if let Some((of, _)) = serve.relays() {
            self.relays.forget(of, (link, index));
        }
        if let Some(blob) = serve.fetching().filter(|_| serve.is_counted()) {
            self.keys.send_ends(blob, link);
        }
    }
}
