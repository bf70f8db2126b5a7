//! Versions that other nodes own, and that are sent on from here.

use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::BlobId;
use crate::protocol::node::flows::Answering;
use crate::protocol::relays::Spreading;
use crate::protocol::transfers::{Held, Serve};
use crate::tensor::Key;
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::message::NameRef;
use std::num::NonZeroU64;

impl Answering<'_> {
    /// Goes on with the requests that have waited for the digest of a version.
    pub(in crate::protocol::node) fn version_proved(&mut self, now: Time, blob: BlobId, digest: [u8; 16]) {
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
}
