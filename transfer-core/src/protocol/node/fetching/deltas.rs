//! Versions that come as deltas of ones that are kept here.
//!
//! The delta lands like any version. It is applied beside its base, never in it: workers may be reading that. While this is done
//! the request goes on, so fetches of the same may join, and its end gives up the result. Nothing waits for room for the
//! result, for which what is kept for other nodes alone is given up, and a request that waits for a slot loses its base when a waiter finds no room. From its slot on it keeps it. Without a
//! base, without room for the result, or where anything else is not as it should be, the version is asked for as a whole.

use crate::delta::{NotApplied, head_bytes};
use crate::fabric::LinkId;
use crate::memory::{LocalSlice, padded};
use crate::protocol::action::HostAction;
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::{OperationId, PullId, SlotId};
use crate::protocol::keys::{Blob, Source};
use crate::protocol::landing::{LandedTensor, Want};
use crate::protocol::meters::WhyWhole;
use crate::protocol::node::answering::{CopyReader, Copying, LandedDelta};
use crate::protocol::node::flows::Fetching;
use crate::protocol::node::replies::Carried;
use crate::protocol::slab::Id;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::{Held, Pull, PullState, Wanted};
use crate::tensor::{TensorMeta, Version};
use crate::time::Time;
use crate::wire::landing::{HEADER_BYTES, Header};

impl Fetching<'_> {
    /// Returns the version that a request for this may name, with a reference.
    pub(in crate::protocol::node) fn kept_base(&mut self, link: LinkId, wanted: &Wanted) -> Option<Held> {
        let Wanted { domain, key, excerpt: None, .. } = wanted else { return None };
        let found = self.bases.find(&(link, *domain, key.clone()));
        let (held, _) = found.filter(|(_, deltas_follow)| *deltas_follow)?;
        self.keys.hold(held.blob).map(|_| held)
    }

    /// Returns the version that the worker of a fetch lends as a base, with a reference. What it says of the bytes is not proved: a delta is.
    pub(in crate::protocol::node) fn lent_base(&mut self, fetch: OperationId) -> Option<Held> {
        let op = self.sessions.op(fetch)?;
        let lending = self.sessions.get(op.session)?.op(op.named_base()?)?;
        let (blob, content) = self.sessions.op(lending)?.lent_base()?;
        self.keys.hold(blob)?;
        Some(Held { blob, identity: content.number() })
    }

    /// Keeps the version that has come last of a key, if deltas of it may follow or other nodes may ask for it, and gives up the one
    /// before. It is kept only where the pool could hold the next one beside it, and the shortest delta, and as long as its owner is there.
    pub(in crate::protocol::node) fn keep_base(
        &mut self,
        link: LinkId,
        pull: &Pull,
        held: Option<Held>,
        header: &Header,
    ) {
        let Some(of) = pull.spreading(link) else { return };
        let asked = pull.redirect().and_then(|redirect| self.transfers.pull(redirect.owner, redirect.request));
        let asked = asked.map_or(pull.asked, |request| request.asked);
        if self.bases.has_later(&of, header.version, pull.redirect().map(|_| asked)) {
            return;
        }
        let is_asked_for = header.spreads || self.relays.is_awaited(&of);
        let is_kept = self.links.get(of.0).is_some() && (header.deltas_follow || is_asked_for);
        let held = held.filter(|_| is_kept);
        let len = held.and_then(|held| Some(self.keys.blob(held.blob)?.meta.len_bytes()));
        let len = len.filter(|len| self.could_apply(pull.domain, *len, head_bytes(*len)));
        let bytes = len.filter(|_| !self.landing.is_contended(pull.domain)).and_then(padded);
        let bytes = bytes.filter(|bytes| self.bases.may_keep(*bytes));
        let now = self.common.latest;
        if let Some(until) = self.bases.asked_until(&of).filter(|until| *until > now)
            && let Some((before, follow)) = self.bases.find(&of)
            && let Some(owner) = self.links.peer_of(of.0)
        {
            let publication = (owner.name.clone(), owner.incarnation, of.1, before.identity);
            self.pass_on(publication, (before, follow), until);
        }
        let given_up = match held.zip(bytes) {
            Some((held, bytes)) if self.keys.hold(held.blob).is_some() => {
                let given_up =
                    self.bases.keep(of.clone(), header.version, (held, header.deltas_follow), (bytes, asked));
                if header.spreads {
                    self.bases.ask_until(&of, now);
                }
                given_up
            }
            _ => self.bases.give_up(&of).into_iter().collect(),
        };
        given_up.into_iter().for_each(|blob| memory!(self).release(blob));
    }

    /// Whether a pool is large enough for a version of this length, a delta, and the version that comes of them.
    fn could_apply(&self, domain: Tenant, len: u64, delta: u64) -> bool {
        let needs = padded(len).and_then(|len| len.checked_mul(2)?.checked_add(delta));
        needs.is_some_and(|needs| self.landing.could_hold(domain, needs, 1))
    }

    /// Handles the message DELTA: the version is published, and its delta of the one that the request has named needs a slot.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn delta_described(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        version: Version,
        metadata_id: u32,
        len: u64,
        meta: TensorMeta,
    ) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        self.links.hear(link, &p.key, metadata_id, meta.clone());
        if p.state == PullState::Cancelling {
            return;
        }
        if !p.is_conditional || p.is_for_parts() || !p.takes(version) {
            return sending!(self).violation(link, &format!("DELTA for request {index:#x}, which names no base"));
        }
        let (domain, version_len) = (p.domain, meta.len_bytes());
        p.describe_delta((version, metadata_id), meta, len);
        if !p.holds() {
            return self.ask_for_whole(now, link, id, WhyWhole::BaseGone);
        }
        if !self.could_apply(domain, version_len, len) {
            return self.ask_for_whole(now, link, id, WhyWhole::NoRoom);
        }
        if self.landing.is_contended(domain) || !pull_slots!(self).try_pull_slot(domain, link, id) {
            room!(self).want(domain, Want::Pull(link, id));
        }
    }

    /// Begins to apply a delta that has landed. Its slot is closed.
    pub(in crate::protocol::node) fn delta_landed(
        &mut self,
        link: LinkId,
        id: PullId,
        slot: SlotId,
        landed: LandedTensor,
        mut carried: Carried,
    ) {
        let LandedTensor { header, meta, .. } = landed;
        let now = self.common.latest;
        let base = self.transfers.take_held(link, id);
        let (Some(slot), Some(p)) = (self.landing.take_slot(link, slot), self.transfers.pull_mut(link, id)) else {
            return base.into_iter().for_each(|base| memory!(self).release(base));
        };
        (p.slot, p.state) = (None, PullState::Applying);
        let (reader, len, key) = (slot.domain, meta.len_bytes(), p.key.clone());
        self.links.carried_in(link, header.body_len);
        let Some(from) = base else {
            self.landing.free(reader, slot.range);
            return self.ask_for_whole(now, link, id, WhyWhole::BaseGone);
        };
        let is_like_it = self.keys.blob(from).is_some_and(|b| b.meta.len_bytes() == len);
        let room = padded(len).filter(|_| is_like_it).and_then(|len| self.room_for_result(reader, len));
        let (Some((to, target)), Some(mut delta)) = (room, self.landing.slice(reader, &slot.range)) else {
            self.landing.free(reader, slot.range);
            memory!(self).release(from);
            let why = if is_like_it { WhyWhole::NoRoom } else { WhyWhole::Malformed };
            return self.ask_for_whole(now, link, id, why);
        };
        (delta.offset, delta.len) = (delta.offset + HEADER_BYTES, header.body_len);
        (carried.delta, carried.copied) = (header.body_len, carried.copied + len);
        let came = LandedDelta { range: slot.range, header, meta, carried };
        let tag = self.copies.insert(Copying {
            wanted_by: Some(CopyReader::Pull(link, id)),
            also: Vec::new(),
            key,
            from,
            excerpt: None,
            reader,
            len,
            to: Some(to),
            began: now,
            is_fetch: false,
            place: None,
            delta: Some(Box::new(came)),
        });
        let base = self.keys.body_of(from, None);
        self.actions.push(HostAction::Apply { base, delta, to: target, len, tag: tag.to_u64() });
    }

    pub(in crate::protocol::node) fn delta_applied(&mut self, now: Time, tag: u64, result: Result<(), NotApplied>) {
        let Some(Copying {
            wanted_by: Some(CopyReader::Pull(link, id)),
            from,
            reader,
            len,
            to: Some(range),
            delta: Some(came),
            ..
        }) = self.copies.remove(Id::from_u64(tag))
        else {
            return;
        };
        let LandedDelta { range: delta, header, meta, carried } = *came;
        self.landing.free(reader, delta);
        memory!(self).release(from);
        if self.transfers.pull(link, id).is_none_or(|p| p.state != PullState::Applying) {
            // Nobody waits for it any more.
            return self.landing.free(reader, range);
        }
        if let Err(why) = result {
            self.landing.free(reader, range);
            return self.delta_refused(now, link, id, &why);
        }
        let (pull, slice) = (self.transfers.end_pull(link, id), self.landing.slice(reader, &range));
        let (Some(pull), Some(slice)) = (pull, slice) else { return self.landing.free(reader, range) };
        self.meters.delta(len, header.body_len);
        let blob = Blob::new(LocalSlice { len, ..slice }, meta, reader, Source::Pool(Box::new(range)));
        self.came(now, link, pull, blob, &header, carried);
    }

    /// Handles a delta that does not make its version: an operator has to know.
    fn delta_refused(&mut self, now: Time, link: LinkId, id: PullId, why: &NotApplied) {
        let (peer, key) = (
            self.links.peer_of(link).map(|peer| peer.name.clone()),
            self.transfers.pull(link, id).map(|p| p.key.clone()),
        );
        if let Some((peer, key)) = peer.zip(key)
            && let Some(untold) = self.failure_rate.next(now)
        {
            self.actions.report(NodeEvent::DeltaRefused { key, peer, why: why.to_string(), untold });
        }
        let why = match why {
            NotApplied::Malformed(_) => WhyWhole::Malformed,
            NotApplied::OtherBytes => WhyWhole::OtherBytes,
            NotApplied::Internal => WhyWhole::Internal,
        };
        self.ask_for_whole(now, link, id, why);
    }

    /// Gives up a delta, and asks for the version as a whole, for the same fetches.
    pub(super) fn ask_for_whole(&mut self, now: Time, link: LinkId, id: PullId, why: WhyWhole) {
        self.meters.delta_given_up(why);
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let (wanted, (mut readers, next)) = (p.wanted(), p.take_readers());
        readers.extend(next);
        if let Some(held) = pull_slots!(self).cancel_pull(link, id) {
            memory!(self).release(held);
        }
        if let Some(base) = self.bases.give_up(&(link, wanted.domain, wanted.key.clone())) {
            memory!(self).release(base);
        }
        self.begin_pull(now, link, readers, wanted, None, None);
    }
}
