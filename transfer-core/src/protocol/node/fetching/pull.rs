//! Pulling, the receiver's side: send a request, grant a slot, wait for the write.

use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode, Report};
use crate::protocol::ids::{OperationId, PullId, SlotId};
use crate::protocol::keys::{Blob, Source};
use crate::protocol::landing::{LandedTensor, Want};
use crate::protocol::meters::Operation;
use crate::protocol::node::flows::Fetching;
use crate::protocol::node::replies::WorkersTransfer;
use crate::protocol::references::Referred;
use crate::protocol::sessions::{FetchOp, FetchStage, OpKind};
use crate::protocol::transfers::{OfLink, Pull, PullState};
use crate::tensor::{TensorMeta, Version};
use crate::time::Time;
use crate::wire::landing::HEADER_BYTES;
use crate::wire::message::{Body, Role};
use std::time::Duration;

impl Fetching<'_> {
    /// Asks a peer for a version. The request offers a slot if the tensor's description is known and the pool's
    /// speculative share has room.
    pub(in crate::protocol::node) fn start_pull(&mut self, now: Time, op_id: OperationId, link: LinkId) {
        let Some(op) = self.sessions.op(op_id) else { return };
        let OpKind::Fetch(FetchOp { select, ref excerpt, ref gathered, .. }) = op.kind else { return };
        let (excerpt, gathered) = (excerpt.clone(), gathered.clone());
        let (key, require) = (op.key.clone(), op.require.or(self.config.require));
        let Some(domain) = self.sessions.tenant_of(op.session) else { return };
        let Some(l) = self.links.get(link) else { return };
        if let Some(failure) = l.unmet(require) {
            return answering!(self).fail_op(op_id, failure);
        }
        if let Err(failure) = access!(self).vouched(link, domain) {
            return answering!(self).fail_op(op_id, failure);
        }
        let limit = self.config.max_requests_per_link;
        let Some(pulls) = self.transfers.of(link).map(OfLink::pulls) else { return };
        if pulls.len() >= limit || !pulls.has_short_room() {
            let (peer, under_way) = (&l.peer().name, pulls.len());
            let text = format!(
                "{under_way} requests to node {peer:?} are under way or being called off, the limit is {limit}"
            );
            return answering!(self).fail_op(op_id, Failure::new(FailureCode::Busy, text));
        }
        // The length of a part is known only to the owner.
        let is_whole = excerpt.is_none() && gathered.is_none();
        let described = self.links.heard(link, &key).filter(|_| is_whole).cloned();
        let early = described.as_ref().and_then(|(_, meta)| {
            let (range, bytes) = self.landing.speculate(domain, meta.len_bytes())?;
            Some((range, meta.len_bytes(), bytes))
        });
        let speculative = early.as_ref().map_or(0, |(_, _, bytes)| *bytes);
        let pull = Pull::new(now, op_id, (key, select, excerpt), domain, described, speculative).for_gathered(gathered);
        let Some(pull) = self.transfers.begin_pull(link, pull) else { return };
        self.sessions.set_fetch_stage(op_id, FetchStage::Pulling(link, pull));
        match early {
            Some((range, capacity, _)) => {
                let slot = pull_slots!(self).open_pull_slot(link, pull, (domain, capacity, range));
                if let Some(p) = self.transfers.pull_mut(link, pull) {
                    p.slot = slot;
                }
            }
            None => pull_slots!(self).ask(now, link, pull, None),
        }
    }

    /// Handles the message META_DATA_UPDATE: the version is published, has this description, and needs a slot.
    pub(in crate::protocol::node) fn pull_described(
        &mut self,
        _now: Time,
        link: LinkId,
        index: u32,
        version: Version,
        metadata_id: u32,
        meta: TensorMeta,
    ) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        if !p.is_for_parts() {
            self.links.hear(link, &p.key, metadata_id, meta.clone());
        }
        if p.state == PullState::Cancelling {
            return;
        }
        if self.landing.has_landed(link, p.slot) || !p.takes(version) || !p.may_be(metadata_id, &meta) {
            return sending!(self)
                .violation(link, &format!("META_DATA_UPDATE for request {index:#x}, which did not ask for it"));
        }
        let len = meta.len_bytes();
        p.described = Some((metadata_id, meta));
        p.state = PullState::WaitingForRoom;
        let (old, domain, op, key) = (p.slot.take(), p.domain, p.op, p.key.clone());
        if let Some(old) = old {
            // META_DATA_UPDATE says that the peer did not use the slot.
            pull_slots!(self).settle_speculation(link, id);
            room!(self).drop_slot(link, old);
        }
        if !self.landing.could_hold(domain, len, 1) {
            let room = self.landing.pool_bytes(domain);
            let whose = self.config.tenants.in_words(domain);
            let text = format!("key {key:?} has {len} bytes, the landing pool of {whose} only {room}");
            if let Some(op) = op {
                answering!(self).fail_op(op, Failure::new(FailureCode::TooLarge, text));
            }
            return;
        }
        if self.landing.is_contended(domain) || !pull_slots!(self).try_pull_slot(domain, link, id) {
            room!(self).want(domain, Want::Pull(link, id));
        }
    }

    /// Delivers a tensor that has landed for a request. Its slot is closed, so the peer can no longer write to it.
    pub(in crate::protocol::node) fn pull_landed(
        &mut self,
        now: Time,
        link: LinkId,
        id: PullId,
        slot: SlotId,
        landed: LandedTensor,
    ) {
        let LandedTensor { header, meta, copied, .. } = landed;
        pull_slots!(self).settle_speculation(link, id);
        let Some(l) = self.links.get(link) else { return };
        let (kind, path, sender_copies) = (l.kind(), l.path(), u64::from(l.limits().sender_copies));
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        let Some(op) = p.op.take() else {
            // The request was given up meanwhile. CANCELLED is still due.
            p.slot = None;
            return self.landing.free_slot(link, slot);
        };
        let (Some(pull), Some(slot)) = (self.transfers.end_pull(link, id), self.landing.take_slot(link, slot)) else {
            return;
        };
        let waited = Duration::from_micros(u64::from(header.waited_us));
        let bytes = meta.len_bytes();
        self.links.carried_in(link, bytes);
        let Some(mut slice) = self.landing.slice(slot.domain, &slot.range) else { return };
        slice.offset += HEADER_BYTES;
        slice.len = bytes;
        let blob = Blob::new(slice, meta, slot.domain, Source::Pool(Box::new(slot.range)));
        let origin = pull.origin_of(header.version);
        let blob = self.keys.insert(blob.at(header.version, origin));
        if let Some(op) = self.sessions.finish(op) {
            let report = Report {
                fabric: kind,
                bytes,
                copied: copied + bytes * (sender_copies + u64::from(header.packed)),
                queued: pull.asked.since(op.since),
                waited,
                flew: now.since(pull.asked).saturating_sub(waited),
                origin,
            };
            // The session is the one that asked, so the tenants match.
            let lent = memory!(self).lend((op.session, op.id), blob, pull.is_for_parts(), path, report);
            memory!(self).read_stream_of_peer(op.session, &op.key, op.select(), link);
            let (operation, session, key, version) = (Operation::Fetch, op.session, &op.key, Some(header.version));
            let outcome = lent.map(|()| report).map_err(|failure| failure.code);
            let trace = access!(self).trace_of(&op);
            replies!(self).note_ended(
                now,
                WorkersTransfer { operation, session, key, version, path, outcome, since: op.since, trace },
            );
        }
        memory!(self).release(blob);
    }

    /// Handles the message BY_REFERENCE: the version can be read in the peer's memory until it is released.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn pull_referred(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        referred: Referred,
        version: Version,
        waited_us: u32,
        meta: TensorMeta,
    ) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull(link, id) else { return };
        let slice = match self.references.find(link, &referred, &meta) {
            Ok(slice) => slice,
            Err(what) => return sending!(self).violation(link, &what),
        };
        if p.state == PullState::Cancelling {
            // CANCELLED is still due, and ends the request.
            return sending!(self).send(link, Role::Pull, index, Body::ReleaseReference { lease: referred.lease });
        }
        if self.landing.has_landed(link, p.slot) || !p.takes(version) || p.gathered.is_some() {
            return sending!(self)
                .violation(link, &format!("BY_REFERENCE for request {index:#x}, which did not ask for it"));
        }
        pull_slots!(self).settle_speculation(link, id);
        let Some((kind, path)) = self.links.get(link).map(|l| (l.kind(), l.path())) else { return };
        let Some(p) = self.transfers.end_pull(link, id) else { return };
        // A reference needs no slot. Without a description, the next request for this key offers none.
        self.links.forget_heard(link, &p.key);
        let source = Source::Reference { link, lease: referred.lease, ranges: referred.ranges };
        let origin = p.origin_of(version);
        let blob = Blob::new(slice, meta, p.domain, source).at(version, origin);
        let bytes = blob.len_of(p.excerpt.as_deref());
        self.links.carried_in(link, bytes);
        if let Some(slot) = p.slot {
            room!(self).drop_slot(link, slot);
        }
        self.references.begin_reading(slice.segment);
        let blob = self.keys.insert(blob);
        if let Some(op) = p.op.and_then(|op| self.sessions.finish(op)) {
            let waited = Duration::from_micros(waited_us.into());
            let (queued, flew) = (p.asked.since(op.since), now.since(p.asked).saturating_sub(waited));
            let report = Report { fabric: kind, bytes, copied: 0, queued, waited, flew, origin };
            // The session is the one that asked, so the tenants match.
            let lent = memory!(self).lend((op.session, op.id), blob, false, path, report);
            let (operation, session, key) = (Operation::Fetch, op.session, &op.key);
            let outcome = lent.map(|()| report).map_err(|failure| failure.code);
            let (version, trace) = (Some(version), access!(self).trace_of(&op));
            replies!(self).note_ended(
                now,
                WorkersTransfer { operation, session, key, version, path, outcome, since: op.since, trace },
            );
        }
        memory!(self).release(blob);
    }

    /// Handles the message ERROR_STATUS: the version will not come.
    pub(in crate::protocol::node) fn pull_failed(&mut self, now: Time, link: LinkId, index: u32, failure: Failure) {
        let Some(id) = pull_slots!(self).pull_of(link, index) else { return };
        let Some(p) = self.transfers.pull_mut(link, id) else { return };
        if p.state == PullState::Cancelling {
            // CANCELLED is still due, and ends the request.
            return;
        }
        if p.state == PullState::Preparing || self.landing.has_landed(link, p.slot) {
            return sending!(self).violation(
                link,
                &format!("ERROR_STATUS for request {index:#x}, which it does not know or has answered"),
            );
        }
        let (op, slot, domain, is_gathered) = (p.op.take(), p.slot.take(), p.domain, p.gathered.is_some());
        pull_slots!(self).settle_speculation(link, id);
        // The request may have been the first in the queue for room.
        self.landing.serve_later(domain);
        self.transfers.end_pull(link, id);
        if let Some(slot) = slot {
            room!(self).drop_slot(link, slot);
        }
        let Some(op) = op else { return };
        // Where the other keys are, the directory's answer about one of them does not tell.
        if failure.code == FailureCode::NotOwner && !is_gathered {
            self.wrong_owner(now, op, failure);
        } else {
            self.sessions.set_fetch_stage(op, FetchStage::Waiting);
            answering!(self).fail_op(op, failure);
        }
    }

    pub(in crate::protocol::node) fn pull_lost(&mut self, pull: &Pull, failure: &Failure) {
        self.landing.settle_speculation(pull.domain, pull.speculative);
        if let Some(op) = pull.op {
            self.sessions.set_fetch_stage(op, FetchStage::Waiting);
            let text = format!("while key {:?} was being fetched, {}", pull.key, failure.text);
            // When the peer comes back, the key may have another owner.
            self.keys.forget_location(&pull.key);
            answering!(self).fail_op(op, Failure::new(failure.code, text));
        }
    }
}
