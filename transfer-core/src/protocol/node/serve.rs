//! Pulling, the owner's side: wait until the version is published, then write it into the receiver's slot.

use super::Node;
use super::ended::PeersTransfer;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode, Report};
use crate::protocol::ids::BlobId;
use crate::protocol::keys::{Concerned, Record, Waiter};
use crate::protocol::links::{Out, OutWrite, Purpose};
use crate::protocol::meters::Operation;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Retention, Select};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::{Header, SlotGrant};
use crate::wire::message::{Body, NameRef, Role};
use hashbrown::HashMap;
use std::time::Duration;

/// A peer's request.
pub(crate) struct Serve {
    pub(super) key: Key,
    name: u32,
    metadata_id: u32,
    /// The tenant whose workers are to read it.
    pub(super) reader: Tenant,
    slot: Option<SlotGrant>,
    pub(super) since: Time,
    pub(super) waited_us: u32,
    /// Set once the version is there; it is held until the write is posted, or the request ends.
    pub(super) blob: Option<BlobId>,
    /// The same, until the request ends: it counts as being fetched.
    fetching: Option<BlobId>,
    /// The peer has given it up while the write was on its way.
    cancelled: bool,
    /// The write is posted, or about to be, and owns the reference.
    writing: bool,
    /// What asks for it, where that said so.
    pub(super) trace: Option<TraceContext>,
    /// It is answered by reference once the peer has the segment.
    pub(super) sharing: bool,
}

#[cfg(test)]
impl Serve {
    pub(crate) fn state(&self) -> &'static str {
        match (self.writing, self.blob, self.slot) {
            (true, _, _) => "Writing",
            (false, Some(_), _) if self.sharing => "Sharing",
            (false, Some(_), _) => "Described",
            (false, None, None) => "Waiting",
            (false, None, Some(_)) => "Waiting, slot",
        }
    }
}

impl Node {
    /// TENSOR_REQUEST.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn tensor_request(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        name: NameRef,
        tenant: NameRef,
        mut select: Select,
        metadata_id: u32,
        slot: Option<SlotGrant>,
        trace: Option<TraceContext>,
    ) {
        let limit = self.config.max_requests_per_link;
        if self.draining {
            return self.send(link, Role::Pull, index, Body::ErrorStatus(self.is_draining()));
        }
        let Some(l) = self.links.get(&link) else { return };
        let Some(key) = l.numbers.names_in.look_up(name).cloned().map(Key::from) else {
            return self.violation(link, &format!("it uses name {}.{}, which it never told", name.id, name.generation));
        };
        let reader = match self.asked_for(link, tenant) {
            Ok(Ok(reader)) => reader,
            Ok(Err(failure)) => return self.send(link, Role::Pull, index, Body::ErrorStatus(failure)),
            Err(what) => return self.violation(link, &what),
        };
        let record_id = self.keys.find(&key);
        if let Some(record) = record_id {
            select = self.resolve_latest(record, select);
        }
        let Some(l) = self.links.get_mut(&link) else { return };
        if l.serves.contains_key(&index) {
            return self.violation(link, &format!("it uses request {index:#x} twice"));
        }
        if l.serves.len() >= limit {
            let text = format!("node {:?} answers at most {limit} requests of a peer at a time", self.config.name);
            return self.send(link, Role::Pull, index, Body::ErrorStatus(Failure::new(FailureCode::Busy, text)));
        }
        let serve = Serve {
            key: key.clone(),
            name: name.id,
            metadata_id,
            reader,
            slot,
            since: now,
            waited_us: 0,
            blob: None,
            fetching: None,
            cancelled: false,
            writing: false,
            sharing: false,
            trace,
        };
        l.serves.insert(index, serve);
        match record_id.filter(|id| self.keys.record(*id).is_some_and(Record::is_owned)) {
            Some(record) => {
                self.keys.wait(record, Waiter::Remote(link, index), select);
                self.serve(now, record, Concerned::One(Waiter::Remote(link, index)));
            }
            None => self.not_owner(now, link, index, &key),
        }
    }

    /// The version that a request waits for is there.
    pub(super) fn serve_published(&mut self, now: Time, link: LinkId, index: u32, blob: BlobId) {
        let limit = self.config.max_names_per_link;
        let Some(serve) = self.links.get(&link).and_then(|l| l.serves.get(&index)) else { return };
        if let Err(failure) = self.may_read(serve.reader, &serve.key, blob) {
            return self.end_serve(now, link, index, failure);
        }
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(serve) = l.serves.get_mut(&index) else { return };
        let Some(b) = self.keys.hold(blob) else { return };
        serve.blob = Some(blob);
        serve.fetching = Some(blob);
        serve.waited_us = u32::try_from(now.since(serve.since).as_micros()).unwrap_or(u32::MAX);
        let (version, meta, key) = (b.version, b.meta.clone(), serve.key.clone());
        self.keys.fetch_begins(&key, blob);
        if self.serve_by_reference(now, link, index) {
            return;
        }
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(serve) = l.serves.get_mut(&index) else { return };
        let known = l.numbers.descriptions.told(&serve.key, &meta);
        let fits = serve.slot.as_ref().is_some_and(|s| s.capacity >= meta.len_bytes());
        if fits && known == Some(serve.metadata_id) {
            return self.write_served(link, index);
        }
        let metadata_id = known.unwrap_or_else(|| l.numbers.descriptions.tell(&serve.key, &meta, limit));
        serve.metadata_id = metadata_id;
        serve.slot = None;
        self.send(link, Role::Pull, index, Body::MetaDataUpdate { version, metadata_id, meta });
    }

    /// TENSOR_RE_REQUEST.
    pub(super) fn tensor_re_request(&mut self, link: LinkId, index: u32, slot: SlotGrant) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(serve) = l.serves.get_mut(&index) else {
            return self.violation(link, &format!("TENSOR_RE_REQUEST for request {index:#x}, which is not under way"));
        };
        let Some(blob) = serve.blob.filter(|_| !serve.writing && !serve.sharing && serve.slot.is_none()) else {
            return self.violation(link, &format!("TENSOR_RE_REQUEST for request {index:#x}, which was not told to"));
        };
        let len = self.keys.blob(blob).map_or(0, |b| b.meta.len_bytes());
        if slot.capacity < len {
            let what = format!("its slot for request {index:#x} has {} bytes, {len} are needed", slot.capacity);
            return self.violation(link, &what);
        }
        serve.slot = Some(slot);
        self.write_served(link, index);
    }

    /// Requests of a peer whose version is not there fail: it will not be.
    pub(super) fn refuse_waiting_serves(&mut self, now: Time, link: LinkId, failure: &Failure) {
        let Some(l) = self.links.get(&link) else { return };
        let waiting = l.serves.iter().filter(|(_, s)| s.fetching.is_none()).map(|(index, s)| (*index, s.key.clone()));
        let mut waiting: Vec<_> = waiting.collect();
        waiting.sort_unstable_by_key(|(index, _)| *index);
        for (index, key) in waiting {
            self.forget_remote_waiter(link, index, &key);
            self.end_serve(now, link, index, failure.clone());
        }
    }

    fn write_served(&mut self, link: LinkId, index: u32) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(serve) = l.serves.get_mut(&index) else { return };
        let (Some(slot), Some(blob)) = (serve.slot.take(), serve.blob.take()) else { return };
        let Some(b) = self.keys.blob(blob) else { return };
        let (version, origin) = (b.version, b.trace);
        serve.writing = true;
        let header = Header {
            slot: slot.number,
            index,
            metadata_id: serve.metadata_id,
            version,
            body_len: b.meta.len_bytes(),
            pieces: 1,
            waited_us: serve.waited_us,
            name: serve.name,
            retention: Retention::default(),
        };
        let body = b.body();
        if let Some(context) = origin {
            self.send(link, Role::Pull, index, Body::Trace { version, context });
        }
        self.post(link, Out::Write(OutWrite { blob, body, slot, header, purpose: Purpose::Serve(index) }));
    }

    /// CANCEL. The answer goes behind whatever data is on its way.
    pub(super) fn cancel_serve(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(l) = self.links.get_mut(&link) else { return };
        match l.serves.get_mut(&index) {
            Some(serve) if serve.writing => serve.cancelled = true,
            _ => {
                if let Some(serve) = l.serves.remove(&index) {
                    if serve.blob.is_none() {
                        self.forget_remote_waiter(link, index, &serve.key);
                    }
                    self.serve_ended(now, &serve, false);
                }
            }
        }
        self.send(link, Role::Pull, index, Body::Cancelled);
    }

    /// The write is placed at the peer.
    pub(super) fn serve_written(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(l) = self.links.get_mut(&link) else { return };
        if let Some(serve) = l.serves.remove(&index) {
            let (path, copies) = (l.path, u64::from(l.limits.sender_copies + l.limits.receiver_copies));
            if let Some(blob) = serve.fetching.filter(|_| !serve.cancelled).and_then(|b| self.keys.blob(b)) {
                let bytes = blob.meta.len_bytes();
                l.traffic.outward.add(bytes);
                let waited = Duration::from_micros(serve.waited_us.into());
                let took = now.since(serve.since).saturating_sub(waited);
                self.meters.served(path, bytes, bytes * copies, took);
                let report = Report {
                    fabric: l.kind,
                    bytes,
                    copied: bytes * copies,
                    queued: Duration::ZERO,
                    waited,
                    flew: took,
                    origin: blob.trace,
                };
                let (operation, version) = (Operation::Serve, blob.version);
                let (key, worker, since, trace) = (&serve.key, None, serve.since, serve.trace);
                self.note_for_peer(now, link, PeersTransfer { operation, key, worker, version, report, since, trace });
            }
            self.serve_ended(now, &serve, !serve.cancelled);
        }
    }

    /// A request has ended: what it still holds is let go, and it counts as a fetch where it went `well`.
    pub(super) fn serve_ended(&mut self, now: Time, serve: &Serve, well: bool) {
        if let Some(blob) = serve.fetching {
            self.fetch_of_ends(now, &serve.key, blob, well);
        }
        if let Some(blob) = serve.blob {
            self.unhold(blob);
        }
    }

    fn forget_remote_waiter(&mut self, link: LinkId, index: u32, key: &Key) {
        self.keys.forget_waiter(key, Waiter::Remote(link, index), &mut self.actions);
    }

    pub(super) fn serves_lost(&mut self, now: Time, link: LinkId, serves: HashMap<u32, Serve>) {
        let mut serves: Vec<_> = serves.into_iter().collect();
        serves.sort_unstable_by_key(|(index, _)| *index);
        for (index, serve) in serves {
            if serve.fetching.is_none() {
                self.forget_remote_waiter(link, index, &serve.key);
            }
            self.serve_ended(now, &serve, false);
        }
    }
}
