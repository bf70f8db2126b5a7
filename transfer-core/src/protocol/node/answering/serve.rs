//! Pulling, the owner's side: wait until the version is published, then write it into the receiver's slot.

use super::copying::CopyReader;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode, Report};
use crate::protocol::ids::{BlobId, RecordId};
use crate::protocol::keys::{Blob, Concerned, Picked, Record, Waiter};
use crate::protocol::links::{Out, OutWrite, Purpose};
use crate::protocol::meters::Operation;
use crate::protocol::node::flows::Answering;
use crate::protocol::node::replies::PeersTransfer;
use crate::protocol::rules::Broken;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::{OfLink, Serve};
use crate::tensor::{Excerpt, Key, Select};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::SlotGrant;
use crate::wire::message::{Body, NameRef, Role};
use std::num::NonZeroU64;
use std::time::Duration;

/// Returns the length of what is sent of a version: all of it, what is still to be cut out of it, or its deltas.
fn sent_bytes(serve: &Serve, version: &Blob) -> u64 {
    match serve.deltas() {
        0 => version.len_of(serve.part()),
        count => version.deltas(count).iter().map(|delta| delta.len).sum(),
    }
}

impl Answering<'_> {
    pub(in crate::protocol::node) fn not_owner(&mut self, now: Time, link: LinkId, index: u32, key: &Key) {
        let text = format!("node {:?} does not own key {key:?}", self.config.name);
        self.end_serve(now, link, index, Failure::new(FailureCode::NotOwner, text));
    }

    pub(in crate::protocol::node) fn end_serve(&mut self, now: Time, link: LinkId, index: u32, failure: Failure) {
        if let Some(serve) = self.transfers.end_serve(link, index) {
            self.serve_ended(now, (link, index), &serve, false);
            self.spread_ended((link, index), &serve, false);
        }
        sending!(self).send(link, Role::Pull, index, Body::ErrorStatus(failure));
    }

    /// Handles the message TENSOR_REQUEST: a peer fetches a version.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::protocol::node) fn tensor_request(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        name: NameRef,
        tenant: NameRef,
        mut select: Select,
        metadata_id: u32,
        excerpt: Option<Box<Excerpt>>,
        (slot, held, direct): (Option<SlotGrant>, Option<NonZeroU64>, bool),
        trace: Option<TraceContext>,
    ) {
        let key = match self.links.look_up(link, name) {
            Ok(name) => Key::from(name.clone()),
            Err(what) => return sending!(self).violation(link, &what),
        };
        let Some(reader) = self.admits(link, index, tenant, false) else { return };
        let record_id = self.keys.find(&key);
        let asked = select;
        if let Some(record) = record_id {
            select = lookup!(self).resolve_latest(record, select);
        }
        let not_yet = record_id.is_none_or(|record| self.keys.pick(record, select) == Picked::NotYet);
        if let Some(failure) = lookup!(self).ended_stream(reader, &key, select).filter(|_| not_yet) {
            return sending!(self).send(link, Role::Pull, index, Body::ErrorStatus(failure));
        }
        let serve = Serve::new(now, (key.clone(), name.id), reader, (metadata_id, excerpt), slot, trace);
        self.transfers.begin_serve(link, index, serve.holding(held).directly(direct));
        match record_id.filter(|id| self.keys.record(*id).is_some_and(Record::is_owned)) {
            Some(record) => {
                self.keys.wait(record, Waiter::Remote(link, index), select);
                self.serve(now, record, Concerned::One(Waiter::Remote(link, index)));
                self.tell_behind(link, index, record, asked);
            }
            None => self.not_owner(now, link, index, &key),
        }
    }

    /// Tells a peer the newest version, if its request waits for more than the one behind that: the owner may have begun again.
    fn tell_behind(&mut self, link: LinkId, index: u32, record: RecordId, select: Select) {
        let (Select::AtLeast(wanted), Some(serve)) = (select, self.transfers.serve(link, index)) else { return };
        let Some(newest) = access!(self).readable_newest(serve.reader(), record) else { return };
        if !serve.is_published() && newest.0.saturating_add(1) < wanted.0 {
            sending!(self).send(link, Role::Pull, index, Body::Behind { newest });
        }
    }

    /// Checks whether a peer may ask something new by this index, for workers of a tenant, or something of what is held for it. If not,
    /// answers it. Returns the tenant.
    pub(in crate::protocol::node) fn admits(
        &mut self,
        link: LinkId,
        index: u32,
        tenant: NameRef,
        is_held: bool,
    ) -> Option<Tenant> {
        let limit = self.config.max_requests_per_link;
        let serves = self.transfers.of(link).map(OfLink::serves)?;
        let (is_used, is_full) = (serves.contains_key(&index), serves.len() >= limit);
        let failure = match access!(self).asked_for(link, tenant) {
            Err(what) => {
                sending!(self).violation(link, &what);
                return None;
            }
            Ok(_) if is_used => {
                sending!(self).violation(link, &format!("it uses request {index:#x} twice"));
                return None;
            }
            Ok(_) if self.common.draining && !is_held => access!(self).is_draining(),
            Ok(Err(failure)) => failure,
            Ok(Ok(_)) if is_full => {
                let text = format!("node {:?} answers at most {limit} requests of a peer at a time", self.config.name);
                Failure::new(FailureCode::Busy, text)
            }
            Ok(Ok(reader)) => return Some(reader),
        };
        sending!(self).send(link, Role::Pull, index, Body::ErrorStatus(failure));
        None
    }

    /// Serves a request whose version is published: by reference, by a write, or by a description that asks for a slot.
    pub(in crate::protocol::node) fn serve_published(&mut self, now: Time, link: LinkId, index: u32, blob: BlobId) {
        let Some(serve) = self.transfers.serve(link, index) else { return };
        let may_read = access!(self).may_read(serve.reader(), serve.key(), blob);
        if let Err(failure) = may_read.and_then(|()| access!(self).has_excerpt(serve.key(), blob, serve.excerpt())) {
            return self.end_serve(now, link, index, failure);
        }
        if serve.has(self.keys.identity_of(blob))
            && let Some(version) = self.keys.blob(blob).map(|b| b.version)
        {
            self.transfers.end_serve(link, index);
            return sending!(self).send(link, Role::Pull, index, Body::Unchanged { version });
        }
        let Some(serve) = self.transfers.serve_mut(link, index) else { return };
        if self.keys.hold(blob).is_none() {
            return;
        }
        serve.publish(now, blob);
        let key = serve.key().clone();
        self.keys.fetch_begins(&key, blob);
        let is_part = self.transfers.serve(link, index).is_some_and(|serve| serve.part().is_some());
        let is_on_disk = self.keys.blob(blob).is_some_and(|b| b.on_disk().is_some());
        match is_on_disk || access!(self).is_unreadable(link, blob) {
            // A part is read or copied once the peer has granted its slot.
            true if is_part => self.answer_published(link, index),
            true => self.copy_for_peer(now, link, index),
            false if self.serve_by_reference(now, link, index) => {}
            false if self.spreads(now, (link, index), blob) => {}
            false => self.answer_published(link, index),
        }
    }

    /// Sends the version that a request holds, or its description, which asks for a slot.
    pub(in crate::protocol::node) fn answer_published(&mut self, link: LinkId, index: u32) {
        let Some(serve) = self.transfers.serve_mut(link, index) else { return };
        let Some(b) = serve.blob.and_then(|blob| self.keys.blob(blob)) else { return };
        let (version, meta, key) = (b.version, b.meta_of(serve.part()), serve.key().clone());
        // A part's description serves one request, and has no number.
        let known = if serve.is_of_parts() { Some(0) } else { self.links.told(link, &key, &meta) };
        if serve.fits(meta.len_bytes(), known) {
            return self.cut_and_write(link, index);
        }
        let Some(metadata_id) = known.or_else(|| self.links.tell(link, &key, &meta)) else { return };
        serve.describe(metadata_id);
        let sends_to_all = self.config.rules.breaks(Broken::SendsDeltasToAll) && serve.has_any();
        if let Some(count) = serve.takes_deltas(b).or(sends_to_all.then_some(1)).filter(|_| !b.deltas(1).is_empty()) {
            serve.send_deltas(count);
            let len = sent_bytes(serve, b);
            return sending!(self).send(link, Role::Pull, index, Body::Delta { version, metadata_id, len, meta });
        }
        sending!(self).send(link, Role::Pull, index, Body::MetaDataUpdate { version, metadata_id, meta });
    }

    /// Handles the message TENSOR_RE_REQUEST: the peer grants a slot for the version that was described to it.
    pub(in crate::protocol::node) fn tensor_re_request(&mut self, link: LinkId, index: u32, slot: SlotGrant) {
        let Some(serve) = self.transfers.serve_mut(link, index) else {
            return sending!(self)
                .violation(link, &format!("TENSOR_RE_REQUEST for request {index:#x}, which is not under way"));
        };
        let Some(blob) = serve.waits_for_slot() else {
            return sending!(self)
                .violation(link, &format!("TENSOR_RE_REQUEST for request {index:#x}, which was not told to"));
        };
        let len = self.keys.blob(blob).map_or(0, |b| sent_bytes(serve, b));
        if slot.capacity < len {
            let what = format!("its slot for request {index:#x} has {} bytes, {len} are needed", slot.capacity);
            return sending!(self).violation(link, &what);
        }
        serve.grant(slot);
        self.cut_and_write(link, index);
    }

    /// Fails the requests of a peer that wait for an unpublished version, because it will not be published.
    pub(in crate::protocol::node) fn refuse_waiting_serves(&mut self, now: Time, link: LinkId, failure: &Failure) {
        for (index, key) in self.transfers.waiting_serves(link) {
            self.forget_remote_waiter(link, index, &key);
            self.end_serve(now, link, index, failure.clone());
        }
    }

    /// Writes the version into the slot that the peer has granted. What is packed, or lies in very many ranges, waits for a
    /// place first.
    fn cut_and_write(&mut self, link: LinkId, index: u32) {
        let sends_delta = self.transfers.serve(link, index).is_some_and(|serve| serve.deltas() > 0);
        match self.takes_place(link, index).filter(|_| !sends_delta) {
            None => self.write_served(link, index),
            Some(Ok(())) => self.transfers.line_up(link, index),
            Some(Err(failure)) => self.end_serve(self.common.latest, link, index, failure),
        }
    }

    pub(in crate::protocol::node) fn write_served(&mut self, link: LinkId, index: u32) {
        let Some(serve) = self.transfers.serve(link, index) else { return };
        let spreads = serve.blob.and_then(|blob| self.keys.blob(blob)).is_some_and(|b| self.may_spread(serve, b));
        let Some(serve) = self.transfers.serve_mut(link, index) else { return };
        let Some((slot, blob)) = serve.write(self.common.latest) else { return };
        let Some(b) = self.keys.blob(blob) else { return };
        let follow = (b.deltas_follow(), spreads);
        let (version, origin) = (b.version, b.trace());
        // What is sent may be a copy of the version, or of a part of it.
        let identity = serve.fetching().and_then(|published| self.keys.identity_of(published));
        let header = serve.header(index, &slot, (version, identity), follow, sent_bytes(serve, b));
        let body = match serve.deltas() {
            0 => self.keys.body_of(blob, serve.part()),
            count => b.deltas(count),
        };
        if let Some(context) = origin {
            sending!(self).send(link, Role::Pull, index, Body::Trace { version, context });
        }
        sending!(self).post(link, Out::Write(OutWrite { blob, body, slot, header, purpose: Purpose::Serve(index) }));
    }

    /// Handles the message CANCEL, or TAKEN where the version `has_come` from another node. CANCELLED goes behind the data that is on
    /// its way.
    pub(in crate::protocol::node) fn cancel_serve(&mut self, now: Time, link: LinkId, index: u32, has_come: bool) {
        let is_later = self.transfers.serve_mut(link, index).is_some_and(Serve::cancel);
        if !is_later && let Some(serve) = self.transfers.end_serve(link, index) {
            if serve.blob.is_none() {
                self.forget_remote_waiter(link, index, serve.key());
            }
            if has_come && serve.is_redirected() && serve.sent_to().is_none() {
                self.has_left_in_chunks(now, link, &serve);
            }
            self.serve_ended(now, (link, index), &serve, false);
            self.spread_ended((link, index), &serve, has_come);
        }
        sending!(self).send(link, Role::Pull, index, Body::Cancelled);
    }

    /// Completes a request whose write is placed at the peer.
    pub(in crate::protocol::node) fn serve_written(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(l) = self.links.get(link) else { return };
        if let Some(serve) = self.transfers.end_serve(link, index) {
            let (fabric, path) = (l.kind(), l.path());
            let copies = u64::from(l.limits().sender_copies + l.limits().receiver_copies);
            let sent = serve.fetching().filter(|_| !serve.is_cancelled());
            if let Some((chunk, blob)) = serve.chunk().zip(sent.and_then(|b| self.keys.blob(b))) {
                let is_last = chunk.range.offset + chunk.range.len == blob.meta.len_bytes();
                self.links.carried_out(link, chunk.range.len);
                self.meters.served_chunk(path, chunk.range.len, chunk.range.len * copies);
                if chunk.of.is_some() {
                    self.meters.relayed(chunk.range.len, is_last);
                }
            } else if let Some(blob) = sent.and_then(|b| self.keys.blob(b)) {
                let bytes = if serve.deltas() > 0 { sent_bytes(&serve, blob) } else { blob.len_of(serve.excerpt()) };
                let copies = copies + u64::from(serve.is_packed());
                self.links.carried_out(link, bytes);
                let waited = Duration::from_micros(serve.waited_us.into());
                let took = now.since(serve.since).saturating_sub(waited);
                self.meters.served(path, bytes, bytes * copies, took);
                let report = Report::of_sent(fabric, bytes, bytes * copies, (waited, took), blob.trace());
                let (operation, version) = (Operation::Serve, blob.version);
                if let Some(sent) = serve.fetching() {
                    self.keys.has_left(sent, bytes, now.since(serve.posted));
                }
                let (key, worker, since, trace) = (serve.key(), None, serve.since, serve.trace);
                replies!(self).note_for_peer(
                    now,
                    link,
                    PeersTransfer { operation, key, worker, version, report, since, trace },
                );
            }
            self.serve_ended(now, (link, index), &serve, !serve.is_cancelled());
            self.spread_ended((link, index), &serve, !serve.is_cancelled());
        }
    }

    /// Notes that a peer has a version, whose chunks it has got from here.
    fn has_left_in_chunks(&mut self, now: Time, link: LinkId, serve: &Serve) {
        let Some(l) = self.links.get(link) else { return };
        let (fabric, copies) = (l.kind(), u64::from(l.limits().sender_copies + l.limits().receiver_copies));
        let Some((sent, blob)) = serve.fetching().and_then(|sent| Some((sent, self.keys.blob(sent)?))) else { return };
        let (bytes, version, origin) = (blob.meta.len_bytes(), blob.version, blob.trace());
        let waited = Duration::from_micros(serve.waited_us.into());
        let took = now.since(serve.since).saturating_sub(waited);
        let report = Report::of_sent(fabric, bytes, bytes * copies, (waited, took), origin);
        self.keys.has_left(sent, bytes, took);
        let (operation, key, since, trace) = (Operation::Serve, serve.key(), serve.since, serve.trace);
        let ended = PeersTransfer { operation, key, worker: None, version, report, since, trace };
        replies!(self).note_for_peer(now, link, ended);
    }

    /// Releases what an ended request holds. The request counts as a fetch if it went `well`.
    fn serve_ended(&mut self, now: Time, (link, index): (LinkId, u32), serve: &Serve, well: bool) {
        if let Some(blob) = serve.fetching() {
            self.fetch_of_ends(now, serve.key(), blob, well);
        }
        if let Some(blob) = serve.blob {
            memory!(self).release(blob);
        }
        if let Some(copying) = serve.copying() {
            self.copy_unwanted(copying, CopyReader::Peer(link, index));
        }
        if let Some(number) = serve.number_in_line() {
            self.transfers.leave_line(link, number);
        }
        self.free_place(Some(link).filter(|_| serve.has_place()));
    }

    fn forget_remote_waiter(&mut self, link: LinkId, index: u32, key: &Key) {
        self.keys.forget_waiter(key, Waiter::Remote(link, index), self.actions);
    }

    pub(in crate::protocol::node) fn serve_lost(&mut self, now: Time, link: LinkId, index: u32, serve: &Serve) {
        if !serve.is_published() {
            self.forget_remote_waiter(link, index, serve.key());
        }
        self.serve_ended(now, (link, index), serve, false);
        self.spread_ended((link, index), serve, false);
    }
}
