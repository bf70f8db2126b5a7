//! Versions that other nodes own, and that are sent on from here.

use crate::fabric::LinkId;
use crate::protocol::ids::BlobId;
use crate::protocol::keys::Fan;
use crate::protocol::node::flows::Answering;
use crate::protocol::relays::{Spreading, no_room, not_here};
use crate::protocol::transfers::{Held, Serve};
use crate::tensor::{Key, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::message::{Body, NameRef, Role};
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
        (version, identity): (Version, NonZeroU64),
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
        self.transfers.begin_serve(link, index, serve.relaying(of, version, identity));
        self.relay(now, link, index);
    }

    /// Answers a request for a version of another node, if it is here: lets it wait, if the version may be on its way here, or refuses it.
    fn relay(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(relayed) = self.transfers.serve(link, index).and_then(Serve::relays) else { return };
        let (of, version, identity) = (relayed.of.clone(), relayed.version, relayed.identity);
        let found = self.bases.find(&of).filter(|(held, _)| held.identity == identity);
        if found.is_some_and(|found| self.send_on(now, (link, index), found)) {
            return;
        }
        match self.transfers.await_version(&of, version, identity) {
            true => self.relays.wait(of, (link, index)),
            false => self.not_relayed(now, link, index),
        }
    }

    /// Answers a request for a version of another node, which is here. Deltas of it may follow, or not.
    fn send_on(&mut self, now: Time, (link, index): (LinkId, u32), (held, deltas_follow): (Held, bool)) -> bool {
        let Some(serve) = self.transfers.serve_mut(link, index) else { return false };
        if self.keys.hold(held.blob).is_none() {
            return false;
        }
        serve.publish(now, held.blob);
        serve.pass_on(deltas_follow);
        self.transfers.hold_relayed(link, index);
        self.answer_published(link, index);
        true
    }

    /// Answers the requests that wait for a version of another node, which has come.
    pub(in crate::protocol::node) fn relay_come(&mut self, now: Time, of: &Spreading, came: (Held, bool)) {
        for (link, index) in self.relays.take(of) {
            let relayed = self.transfers.serve(link, index).and_then(Serve::relays);
            let is_it = relayed.is_some_and(|relayed| relayed.identity == came.0.identity);
            if !is_it || !self.send_on(now, (link, index), came) {
                self.relays.wait(of.clone(), (link, index));
            }
        }
    }

    /// Looks again at the requests that wait for versions of other nodes, where a request of this node has ended, and at those that wait
    /// for the digest of a version of this one, where a send of it has.
    pub(in crate::protocol::node) fn look_at_relays(&mut self) {
        while let Some(blob) = self.relays.take_ended_send() {
            self.answer_unproved(self.common.latest, blob);
        }
        while let Some(of) = self.transfers.take_awaited_ended() {
            for (link, index) in self.relays.take(&of) {
                self.relay(self.common.latest, link, index);
            }
        }
    }

    /// Answers a peer that has asked for a version of another node here, and for a sign of life. If no room was left here for that version when
    /// it did so before, and none is, the peer had better ask elsewhere.
    pub(in crate::protocol::node) fn sign_of_life(&mut self, now: Time, link: LinkId, index: u32) {
        sending!(self).send(link, Role::Counter, index, Body::Pong);
        let waiting = self.transfers.serve(link, index).filter(|serve| !serve.is_published()).and_then(Serve::relays);
        let is_full = waiting
            .is_some_and(|relayed| self.transfers.waits_for_room(&relayed.of, relayed.version, relayed.identity));
        let Some(serve) = self.transfers.serve_mut(link, index) else { return };
        if serve.is_full_again(is_full) {
            let failure = no_room(&self.config.name, serve.key());
            self.end_serve(now, link, index, failure);
        }
    }

    fn not_relayed(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(serve) = self.transfers.serve(link, index) else { return };
        let failure = not_here(&self.config.name, serve.key());
        self.end_serve(now, link, index, failure);
    }

    /// Answers the requests that wait for the digest of a version, of which a send has ended: there is a place before it is made.
    fn answer_unproved(&mut self, now: Time, blob: BlobId) {
        while let Some((link, index)) = self.next_unproved(now, blob) {
            let waited = self.transfers.serve_mut(link, index).is_some_and(|serve| serve.has_proof(blob));
            if waited && !self.spreads(now, (link, index), blob, false) {
                self.answer_published(link, index);
            }
        }
    }

    fn next_unproved(&mut self, now: Time, blob: BlobId) -> Option<(LinkId, u32)> {
        let links = &*self.links;
        let fan = Fan { out: self.config.fan_out, now, is_up: |to| links.get(to).is_some() };
        self.keys.next_unproved(blob, &fan)
    }
}
