//! What becomes of requests for a version that spreads through its readers.

use crate::fabric::LinkId;
use crate::protocol::action::HostAction;
use crate::protocol::ids::BlobId;
use crate::protocol::keys::Spreads;
use crate::protocol::node::flows::Answering;
use crate::protocol::relays::Proof;
use crate::protocol::transfers::Serve;
use crate::wire::message::Body;

/// What becomes of a request.
pub(super) enum Spread {
    /// It is answered from here.
    Here,
    /// It waits for the digest of the version.
    Waits,
    /// It is answered by this message, and goes to another node.
    Elsewhere(Body),
}

impl Answering<'_> {
    /// Decides what becomes of a request for a version that is published, and that the request holds. If enough nodes get the version from
    /// here, it goes to another one. For one that has waited for the digest, this `is_decided`.
    pub(super) fn spread(&mut self, (link, index): (LinkId, u32), blob: BlobId, is_decided: bool) -> Spread {
        let Some(serve) = self.transfers.serve(link, index) else { return Spread::Here };
        let (Some(b), Some(peer)) = (self.keys.blob(blob), self.links.peer_of(link)) else { return Spread::Here };
        let is_whole = !serve.is_of_parts() && !serve.is_direct() && !serve.takes_delta(b.base());
        let is_long = self.config.fan_out > 0 && b.meta.len_bytes() >= self.config.spreads_from;
        // Only its own tenant's nodes can send it on: who else may read it is known here.
        let identity = self.keys.identity_of(blob).filter(|_| b.domain == serve.reader());
        let Some(identity) = identity.filter(|_| is_whole && is_long) else { return Spread::Here };
        let (name, version, meta) = (peer.name.clone(), b.version, b.meta.clone());
        let links = &*self.links;
        let (fan_out, is_up) = (self.config.fan_out, |to| links.get(to).is_some());
        let decided = self.keys.spread(blob, (link, index, &name), fan_out, is_decided, is_up);
        let Some(serve) = self.transfers.serve_mut(link, index) else { return Spread::Here };
        match decided {
            Spreads::Send => {
                serve.count();
                self.keys.send_begins(blob, link, &name);
                return Spread::Here;
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
                self.meters.redirected();
                return Spread::Elsewhere(Body::Redirect { version, identity, digest, sources, meta });
            }
        }
        Spread::Waits
    }

    /// Ends the part that a request had in the spreading of its version.
    pub(super) fn spread_ended(&mut self, link: LinkId, index: u32, serve: &Serve) {
        if let Some((of, _)) = serve.relays() {
            self.relays.forget(of, (link, index));
        }
        let Some(blob) = serve.fetching() else { return };
        match serve.is_counted() {
            true => self.keys.send_ends(blob, link),
            false => self.keys.waits_no_more(blob, (link, index)),
        }
    }
}
