//! Copies of versions that cannot be read where they lie, on the node where they lie.
//!
//! - **For workers of another tenant.** A process that is passed a segment can read all of it. So no segment of one tenant
//!   is passed to another: the bytes are copied once, into the reader's own landing pool, and the reader gets a lease on
//!   the copy. The host of the node copies one piece at a time, so that a large tensor delays no other work.
//! - **Of versions on disk**, or of parts of them. The copy lies in the landing pool of the reader, or, for a request of a
//!   peer, in that of the version's tenant, from where it is sent.
//! - **Of parts that are packed** before they are sent to a peer; see `packing`.
//!
//! A copy waits for room like a landing slot.

use super::copying::{CopyReader, Copying};
use crate::alloc::Allocation;
use crate::fabric::{FabricKind, LinkId};
use crate::memory::padded;
use crate::op::{Failure, FailureCode, Report};
use crate::protocol::action::HostAction;
use crate::protocol::ids::{BlobId, CopyId};
use crate::protocol::keys::{Blob, Source};
use crate::protocol::landing::Want;
use crate::protocol::meters::PathId;
use crate::protocol::node::Node;
use crate::protocol::node::flows::Answering;
use crate::protocol::sessions::{FetchOp, FetchStage, Op, OpKind};
use crate::protocol::slab::Id;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Excerpt, Key};
use crate::time::Time;
use std::time::Duration;

impl Node {
    /// Handles the answer to [`HostAction::Copy`]: all bytes are copied.
    pub fn copied(&mut self, now: Time, tag: u64) {
        self.common.latest = now;
        answering!(self).copied(now, tag);
    }
}

impl Answering<'_> {
    /// Answers a fetch of a version that its reader cannot read where it lies: with a copy if the reader may read it,
    /// else with a failure.
    pub(in crate::protocol::node) fn hand_over_copy(&mut self, now: Time, op: Op, blob: BlobId) {
        let Some(reader) = self.sessions.tenant_of(op.session) else { return };
        match access!(self).may_read(reader, &op.key, blob) {
            Ok(()) => self.fetch_copy(now, op, blob),
            Err(failure) => replies!(self).refuse(op.session, op.id, failure),
        }
    }

    /// Starts a copy for a fetch that may read the version.
    fn fetch_copy(&mut self, now: Time, mut op: Op, blob: BlobId) {
        let (session, id) = (op.session, op.id);
        let Some(reader) = self.sessions.tenant_of(session) else { return };
        if let Some(kind) = op.require.filter(|kind| *kind != FabricKind::Local) {
            let text = format!("{kind} is required, but the tensor lies at this worker's own sidecar, which copies it");
            return replies!(self).refuse(session, id, Failure::new(FailureCode::RequireUnmet, text));
        }
        if let Err(failure) = access!(self).has_excerpt(&op.key, blob, op.excerpt()) {
            return replies!(self).refuse(session, id, failure);
        }
        let excerpt = op.excerpt().cloned();
        let Some(len) = self.keys.blob(blob).map(|b| b.len_of(excerpt.as_ref())) else { return };
        let room = self.landing.pool_bytes(reader);
        if padded(len).is_none_or(|len| len > room) {
            let whose = self.config.tenants.in_words(reader);
            let text = format!("key {:?} has {len} bytes, the landing pool of {whose} only {room}", op.key);
            return replies!(self).refuse(session, id, Failure::new(FailureCode::TooLarge, text));
        }
        self.keys.hold(blob);
        let key = op.key.clone();
        self.keys.fetch_begins(&key, blob);
        let copying = self.copies.insert(Copying {
            wanted_by: None,
            key,
            from: blob,
            excerpt,
            reader,
            len,
            to: None,
            began: now,
            place: None,
        });
        if let OpKind::Fetch(FetchOp { stage, .. }) = &mut op.kind {
            *stage = FetchStage::Copying(copying);
        }
        let op = self.sessions.begin(op);
        if let Some(c) = self.copies.get_mut(copying) {
            c.wanted_by = Some(CopyReader::Op(op));
        }
        if self.landing.is_contended(reader) || !self.try_copy(reader, copying) {
            room!(self).want(reader, Want::Copy(copying));
        }
    }

    /// Allocates room for a copy and starts it. Returns `true` if the copy has room or no longer needs any.
    pub(in crate::protocol::node) fn try_copy(&mut self, reader: Tenant, id: CopyId) -> bool {
        let Some(copying) = self.copies.get_mut(id).filter(|c| c.to.is_none()) else { return true };
        let len = padded(copying.len).unwrap_or(u64::MAX);
        let Some((range, to)) = self.landing.allocate(reader, len) else { return false };
        copying.to = Some(range);
        copying.began = self.common.latest;
        self.waits_no_longer(id);
        let Some(copying) = self.copies.get(id) else { return true };
        if let Some(b) = self.keys.blob(copying.from) {
            let (packing, tag) = (Box::new(b.packing_of(copying.excerpt.as_ref())), id.to_u64());
            self.actions.push(match b.on_disk() {
                Some(id) => HostAction::SpillRead { id, packing, to, tag },
                None => HostAction::Copy { from: self.keys.body_of(copying.from, None), packing, to, tag },
            });
        }
        true
    }

    /// Handles the end of the fetch or the request that wanted a copy. A copy without room is dropped; one in progress is
    /// freed when it is complete.
    pub(in crate::protocol::node) fn copy_unwanted(&mut self, id: CopyId) {
        let Some(copying) = self.copies.get_mut(id) else { return };
        copying.wanted_by = None;
        if copying.to.is_none()
            && let Some(Copying { key, from, reader, place, .. }) = self.copies.remove(id)
        {
            self.copied_from(self.common.latest, &key, from, false);
            self.landing.serve_later(reader);
            self.free_place(place);
            self.waits_no_longer(id);
        }
    }

    /// Handles the answer to [`HostAction::Copy`]: all bytes are copied.
    pub(in crate::protocol::node) fn copied(&mut self, now: Time, tag: u64) {
        let id = Id::from_u64(tag);
        let Some(Copying { wanted_by, key, from, excerpt, reader, len, to: Some(range), began, place }) =
            self.copies.remove(id)
        else {
            return;
        };
        let op = match wanted_by {
            Some(CopyReader::Op(op)) => self.sessions.finish(op),
            Some(CopyReader::Peer(link, index)) => {
                self.copied_for_peer((link, index), (id, place), (from, excerpt.as_ref()), (reader, range));
                return self.copied_from(now, &key, from, true);
            }
            None => None,
        };
        let made = op.zip(self.keys.blob(from).map(|b| (b.meta_of(excerpt.as_ref()), b.version, b.trace())));
        let Some((op, (meta, version, trace))) = made else {
            self.landing.free(reader, range);
            self.free_place(place);
            return self.copied_from(now, &key, from, false);
        };
        let Some(slice) = self.landing.slice(reader, &range) else { return };
        let blob = Blob::new(slice, meta, reader, Source::Pool(Box::new(range))).at(version, trace);
        let blob = self.keys.insert(blob);
        let report = Report {
            fabric: FabricKind::Local,
            bytes: len,
            copied: len,
            queued: Duration::ZERO,
            waited: began.since(op.since),
            in_flight: now.since(began),
            origin: trace,
        };
        match memory!(self).lend((op.session, op.id), blob, excerpt.is_some(), PathId::HERE, report) {
            Ok(()) => {
                let asked = access!(self).trace_of(&op);
                replies!(self).note_handed_over(now, op.session, &op.key, version, report, asked);
                memory!(self).read_stream_here(op.session, &op.key, op.select());
                self.copied_from(now, &key, from, true);
            }
            Err(failure) => {
                replies!(self).refuse(op.session, op.id, failure);
                self.copied_from(now, &key, from, false);
            }
        }
        // The lease has a reference of its own.
        memory!(self).release(blob);
    }

    /// Reads all of a version on disk back for a request of a peer.
    pub(in crate::protocol::node) fn copy_for_peer(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(serve) = self.transfers.serve(link, index) else { return };
        let key = serve.key().clone();
        let Some((from, b)) = serve.blob.and_then(|id| Some((id, self.keys.blob(id)?))) else { return };
        let (len, domain) = (b.meta.len_bytes(), b.domain);
        let room = self.landing.pool_bytes(domain);
        if padded(len).is_none_or(|len| len > room) {
            let name = &self.config.name;
            let text = format!(
                "key {key:?} lies on the disk of node {name:?}, and its {len} bytes do not fit the landing pool of {room} there"
            );
            return self.end_serve(now, link, index, Failure::new(FailureCode::TooLarge, text));
        }
        self.keys.hold(from);
        let wanted_by = Some(CopyReader::Peer(link, index));
        let (excerpt, place) = (None, None);
        let copying = Copying { wanted_by, key, from, excerpt, reader: domain, len, to: None, began: now, place };
        let copying = self.copies.insert(copying);
        if let Some(serve) = self.transfers.serve_mut(link, index) {
            serve.copy(copying);
        }
        if self.landing.is_contended(domain) || !self.try_copy(domain, copying) {
            room!(self).want(domain, Want::Copy(copying));
        }
    }

    /// Answers a request of a peer with the copy that was made for it.
    fn copied_for_peer(
        &mut self,
        (link, index): (LinkId, u32),
        (id, place): (CopyId, Option<LinkId>),
        (from, excerpt): (BlobId, Option<&Excerpt>),
        (domain, range): (Tenant, Allocation),
    ) {
        let made = self.keys.blob(from).map(|b| (b.meta_of(excerpt), b.version, b.trace()));
        let waits = self.transfers.serve(link, index).is_some_and(|serve| serve.waits_for_copy(id));
        let slice = self.landing.slice(domain, &range);
        let (Some((meta, version, trace)), Some(slice), true) = (made, slice, waits) else {
            self.free_place(place);
            return self.landing.free(domain, range);
        };
        let blob = Blob::new(slice, meta, domain, Source::Pool(Box::new(range))).at(version, trace);
        let blob = self.keys.insert(blob);
        let serve = self.transfers.serve_mut(link, index);
        if let Some(before) = serve.and_then(|serve| serve.copied(blob, place.is_some())) {
            memory!(self).release(before);
        }
        self.answer_published(link, index);
    }

    /// Releases the version that was copied. It counts as a fetch if the copy went `well`.
    pub(in crate::protocol::node) fn copied_from(&mut self, now: Time, key: &Key, from: BlobId, well: bool) {
        self.fetch_of_ends(now, key, from, well);
        memory!(self).release(from);
    }
}
