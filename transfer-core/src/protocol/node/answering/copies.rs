//! Copies of versions that cannot be read where they lie, on the node where they lie.
//!
//! - **For workers of another tenant.** A process that is passed a segment can read all of it. So no segment of one tenant
//!   is passed to another: the bytes are copied once, into the reader's own landing pool, and the reader gets a lease on
//!   the copy. The host of the node copies one piece at a time, so that a large tensor delays no other work.
//! - **Of versions in registered memory**, which no other process can map. Such a copy is made once for the workers of a tenant, who share
//!   it, and stays until its version ends, or others want its room.
//! - **Of versions on disk**, or of parts of them. The copy lies in the landing pool of the reader, or, for a request of a
//!   peer, in that of the version's tenant, from where it is sent.
//! - **Of versions in memory that a fabric cannot read**, before it sends them: an arena that a worker has brought along from the
//!   sidecar before is mapped read-only, and Linux before 6.2 registers no such memory with an RDMA device.
//! - **Of parts that are packed** before they are sent to a peer; see `packing`.
//!
//! A copy waits for room like a landing slot.

use super::copying::{CopyReader, Copying};
use crate::fabric::{FabricKind, LinkId};
use crate::memory::padded;
use crate::op::{Failure, FailureCode, Report};
use crate::protocol::action::HostAction;
use crate::protocol::ids::{BlobId, CopyId, OperationId, OutFlowId, publication};
use crate::protocol::keys::{Blob, SharedCopy, Source};
use crate::protocol::landing::Want;
use crate::protocol::meters::PathId;
use crate::protocol::node::flows::Answering;
use crate::protocol::sessions::{FetchOp, FetchStage, Op, OpKind, PushStage};
use crate::protocol::slab::Id;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Excerpt, Key};
use crate::time::Time;
use std::time::Duration;

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
        match self.keys.shared_copy(blob, reader, excerpt.as_ref()) {
            Some(SharedCopy::Made { copy, is_part }) => return self.fetch_made(now, &op, blob, (copy, is_part)),
            Some(SharedCopy::Copying(copying)) => return self.fetch_being_made(op, blob, copying),
            None => {}
        }
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
            also: Vec::new(),
            key,
            from: blob,
            excerpt: excerpt.clone(),
            reader,
            len,
            to: None,
            began: now,
            place: None,
            is_fetch: true,
            delta: None,
        });
        self.share(blob, reader, excerpt, copying);
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

    /// Lets others share a copy that is about to be made, if it is one of registered memory.
    fn share(&mut self, from: BlobId, reader: Tenant, excerpt: Option<Excerpt>, copying: CopyId) {
        if self.keys.blob(from).is_some_and(Blob::is_registered) {
            self.keys.copy_begins(from, reader, excerpt, copying);
        }
    }

    /// Answers a fetch with a copy that others have made, of the part that it asks for alone or of all of the version.
    fn fetch_made(&mut self, now: Time, op: &Op, from: BlobId, (copy, is_part): (BlobId, bool)) {
        self.keys.fetch_begins(&op.key, from);
        let well = self.lend_copy(now, op, (copy, from, is_part), (0, now));
        self.fetch_of_ends(now, &op.key, from, well);
    }

    /// Lets a fetch wait for a copy that is being made for another one.
    fn fetch_being_made(&mut self, mut op: Op, from: BlobId, copying: CopyId) {
        self.keys.fetch_begins(&op.key, from);
        if let OpKind::Fetch(FetchOp { stage, .. }) = &mut op.kind {
            *stage = FetchStage::Copying(copying);
        }
        let op = self.sessions.begin(op);
        if let Some(c) = self.copies.get_mut(copying) {
            c.also.push(CopyReader::Op(op));
        }
    }

    /// Allocates room for a copy and starts it. Returns `true` if the copy has room or no longer needs any.
    pub(in crate::protocol::node) fn try_copy(&mut self, reader: Tenant, id: CopyId) -> bool {
        let Some(copying) = self.copies.get_mut(id).filter(|c| c.to.is_none()) else { return true };
        let len = padded(copying.len).unwrap_or(u64::MAX);
        let (range, to) = loop {
            if let Some(found) = self.landing.allocate(reader, len) {
                break found;
            }
            // What is kept for those who ask next is given up first.
            let Some(kept) = self.keys.take_oldest_copy(reader) else { return false };
            memory!(self).release(kept);
        };
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

    /// Handles the end of the fetch or the request that wanted a copy. Without others that share it, a copy without room is dropped, and
    /// one in progress is freed when it is complete.
    pub(in crate::protocol::node) fn copy_unwanted(&mut self, id: CopyId, by: CopyReader) {
        let Some(copying) = self.copies.get_mut(id) else { return };
        let (key, from) = (copying.key.clone(), copying.from);
        if let Some(at) = copying.also.iter().position(|reader| *reader == by) {
            copying.also.swap_remove(at);
            return self.shared_fetch_ends(self.common.latest, (&key, from), by, false);
        }
        if let Some(next) = copying.also.pop() {
            copying.wanted_by = Some(next);
            copying.is_fetch = matches!(next, CopyReader::Op(_));
            return self.shared_fetch_ends(self.common.latest, (&key, from), by, false);
        }
        copying.wanted_by = None;
        self.keys.copy_dropped(from, id);
        let Some(copying) = self.copies.get_mut(id) else { return };
        if copying.to.is_none()
            && let Some(Copying { key, from, reader, place, is_fetch, .. }) = self.copies.remove(id)
        {
            self.copied_from(self.common.latest, (&key, is_fetch), from, false);
            self.landing.serve_later(reader);
            self.free_place(place);
            self.waits_no_longer(id);
        }
    }

    /// Handles the answer to [`HostAction::Copy`]: all bytes are copied. Returns the flow whose next push has its copy now.
    pub(in crate::protocol::node) fn copied(&mut self, now: Time, tag: u64) -> Option<(LinkId, OutFlowId)> {
        let id = Id::from_u64(tag);
        if self.keys.shares_copy(self.copies.get(id)?.from, id) {
            self.copied_for_all(now, id);
            return None;
        }
        match self.copies.get(id)?.wanted_by {
            Some(CopyReader::Peer(link, index)) => self.copied_for_peer(now, id, (link, index)),
            Some(CopyReader::Push(op, link, flow)) => {
                self.copied_for_push(now, id, op, (link, flow));
                return Some((link, flow));
            }
            Some(CopyReader::Op(op)) => self.copied_for_fetch(now, id, Some(op)),
            // A delta is applied, not copied.
            Some(CopyReader::Pull(..)) => {}
            None => self.copied_for_fetch(now, id, None),
        }
        None
    }

    /// Answers a fetch with the copy that was made for it. Without a fetch, the copy is freed.
    fn copied_for_fetch(&mut self, now: Time, id: CopyId, op: Option<OperationId>) {
        let Some(Copying { key, from, excerpt, reader, len, to: Some(range), began, place, is_fetch, .. }) =
            self.copies.remove(id)
        else {
            return;
        };
        let key = (&key, is_fetch);
        let op = op.and_then(|op| self.sessions.finish(op));
        let made = op.zip(self.keys.blob(from).map(|b| (b.meta_of(excerpt.as_ref()), b.version, b.trace())));
        let Some((op, (meta, version, trace))) = made else {
            self.landing.free(reader, range);
            self.free_place(place);
            return self.copied_from(now, key, from, false);
        };
        let Some(slice) = self.landing.slice(reader, &range) else { return };
        let blob = Blob::new(slice, meta, reader, Source::Pool(Box::new(range))).at(version, trace);
        let blob = self.keys.insert(blob);
        let well = self.lend_copy(now, &op, (blob, from, excerpt.is_some()), (len, began));
        self.copied_from(now, key, from, well);
        // The lease has a reference of its own.
        memory!(self).release(blob);
    }

    /// Answers a fetch with a copy of what is published here, of the part that it asks for alone or of all of it. `copied` bytes were copied for it, since
    /// `began`. Returns whether it has the copy.
    fn lend_copy(
        &mut self,
        now: Time,
        op: &Op,
        (copy, from, is_part): (BlobId, BlobId, bool),
        (copied, began): (u64, Time),
    ) -> bool {
        let excerpt = op.excerpt().filter(|_| !is_part);
        let Some((bytes, version, origin)) = self.keys.blob(copy).map(|b| (b.len_of(excerpt), b.version, b.trace()))
        else {
            return false;
        };
        let report = Report {
            fabric: FabricKind::Local,
            bytes,
            copied,
            verified: 0,
            relayed: 0,
            delta: 0,
            queued: Duration::ZERO,
            waited: began.since(op.since),
            in_flight: now.since(began.max(op.since)),
            origin,
        };
        let identity = self.keys.identity_of(from);
        let publication = identity.map_or(0, |own| publication(&self.config.name, self.config.incarnation, own));
        if let Err(failure) =
            memory!(self).lend((op.session, op.id), copy, is_part.then_some(publication), PathId::HERE, report)
        {
            replies!(self).refuse(op.session, op.id, failure);
            return false;
        }
        let asked = access!(self).trace_of(op);
        replies!(self).note_handed_over(now, op.session, &op.key, version, report, asked);
        memory!(self).read_stream_here(op.session, &op.key, op.select());
        true
    }

    /// Gives a copy that is made to all who share it, and keeps it for those who ask next. The first of them counts the bytes.
    fn copied_for_all(&mut self, now: Time, id: CopyId) {
        let Some(Copying { wanted_by, also, key, from, excerpt, reader, to: Some(range), began, .. }) =
            self.copies.remove(id)
        else {
            return;
        };
        let made = self.keys.blob(from).map(|b| (b.meta_of(excerpt.as_ref()), b.version, b.trace()));
        let Some(((meta, version, trace), slice)) = made.zip(self.landing.slice(reader, &range)) else { return };
        let mut copied = meta.len_bytes();
        let blob = Blob::new(slice, meta, reader, Source::Pool(Box::new(range))).at(version, trace);
        let blob = self.keys.insert(blob);
        let given_up = self.keys.copy_made(from, id, blob);
        for by in wanted_by.into_iter().chain(also) {
            let well = match by {
                CopyReader::Op(op) => self.sessions.finish(op).is_some_and(|op| {
                    self.lend_copy(now, &op, (blob, from, excerpt.is_some()), (std::mem::take(&mut copied), began))
                }),
                CopyReader::Peer(link, index) => {
                    let waits = self.transfers.serve(link, index).is_some_and(|serve| serve.waits_for_copy(id));
                    waits && self.send_copy((link, index), blob, std::mem::take(&mut copied) > 0)
                }
                CopyReader::Push(..) | CopyReader::Pull(..) => false,
            };
            self.shared_fetch_ends(now, (&key, from), by, well);
        }
        for held in given_up.into_iter().chain([blob, from]) {
            memory!(self).release(held);
        }
    }

    /// Ends the fetch that shared a copy. A request of a peer counts by itself.
    fn shared_fetch_ends(&mut self, now: Time, (key, from): (&Key, BlobId), by: CopyReader, well: bool) {
        if matches!(by, CopyReader::Op(_)) {
            self.fetch_of_ends(now, key, from, well);
        }
    }

    /// Answers a request of a peer with a copy that others share, and that `is_made_for` it. Returns whether it has it.
    fn send_copy(&mut self, (link, index): (LinkId, u32), copy: BlobId, is_made_for: bool) -> bool {
        let Some(serve) = self.transfers.serve_mut(link, index) else { return false };
        self.keys.hold(copy);
        if let Some(before) = serve.copied(copy, false, is_made_for) {
            memory!(self).release(before);
        }
        self.answer_published(link, index);
        true
    }

    /// Copies all of a version for a request of a peer, because it lies on disk, or in memory that the fabric cannot read.
    pub(in crate::protocol::node) fn copy_for_peer(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(serve) = self.transfers.serve(link, index) else { return };
        let key = serve.key().clone();
        let Some((from, b)) = serve.blob.and_then(|id| Some((id, self.keys.blob(id)?))) else { return };
        let (len, domain) = (b.meta.len_bytes(), b.domain);
        match self.keys.shared_copy(from, domain, None) {
            Some(SharedCopy::Made { copy, .. }) => {
                self.send_copy((link, index), copy, false);
                return;
            }
            Some(SharedCopy::Copying(copying)) => {
                if let (Some(serve), Some(c)) = (self.transfers.serve_mut(link, index), self.copies.get_mut(copying)) {
                    serve.copy(copying);
                    c.also.push(CopyReader::Peer(link, index));
                }
                return;
            }
            None => {}
        }
        let what = format!("key {key:?} lies {}", self.where_copied_from(link, from).unwrap_or("elsewhere"));
        if let Err(failure) = self.has_room_to_copy(domain, len, &what) {
            return self.end_serve(now, link, index, failure);
        }
        let copying = self.copy_to_send(key, from, domain, len, CopyReader::Peer(link, index));
        self.share(from, domain, None, copying);
        if let Some(serve) = self.transfers.serve_mut(link, index) {
            serve.copy(copying);
        }
        self.copy_or_wait(domain, copying);
    }

    /// Copies what a push sends, because it lies in memory that the fabric cannot read. Returns whether it fits the landing pool.
    pub(in crate::protocol::node) fn copy_for_push(
        &mut self,
        op: OperationId,
        from: BlobId,
        (link, flow): (LinkId, OutFlowId),
    ) -> Result<(), Failure> {
        let found = self.sessions.op(op).map(|op| op.key.clone()).zip(self.keys.blob(from));
        let Some((key, b)) = found else { return Ok(()) };
        let (len, domain) = (b.meta.len_bytes(), b.domain);
        let what = format!("key {key:?} lies {}", self.where_copied_from(link, from).unwrap_or("elsewhere"));
        self.has_room_to_copy(domain, len, &what)?;
        let copying = self.copy_to_send(key, from, domain, len, CopyReader::Push(op, link, flow));
        self.sessions.set_push_stage(op, PushStage::Copying(copying));
        self.copy_or_wait(domain, copying);
        Ok(())
    }

    /// Makes a copy of all of a version, from which it is sent.
    fn copy_to_send(&mut self, key: Key, from: BlobId, reader: Tenant, len: u64, wanted_by: CopyReader) -> CopyId {
        self.keys.hold(from);
        let (wanted_by, began) = (Some(wanted_by), self.common.latest);
        self.copies.insert(Copying {
            wanted_by,
            also: Vec::new(),
            key,
            from,
            excerpt: None,
            reader,
            len,
            to: None,
            began,
            place: None,
            is_fetch: false,
            delta: None,
        })
    }

    fn copy_or_wait(&mut self, domain: Tenant, copying: CopyId) {
        if self.landing.is_contended(domain) || !self.try_copy(domain, copying) {
            room!(self).want(domain, Want::Copy(copying));
        }
    }

    /// Answers a request of a peer with the copy that was made for it.
    fn copied_for_peer(&mut self, now: Time, id: CopyId, (link, index): (LinkId, u32)) {
        let Some(Copying { key, from, excerpt, reader, to: Some(range), place, is_fetch, .. }) = self.copies.remove(id)
        else {
            return;
        };
        let made = self.keys.blob(from).map(|b| (b.meta_of(excerpt.as_ref()), b.version, b.trace(), b.on_disk()));
        let waits = self.transfers.serve(link, index).is_some_and(|serve| serve.waits_for_copy(id));
        let slice = self.landing.slice(reader, &range);
        if let (Some((meta, version, trace, on_disk)), Some(slice), true) = (made, slice, waits) {
            let blob = Blob::new(slice, meta, reader, Source::Pool(Box::new(range))).at(version, trace);
            let blob = self.keys.insert(blob);
            let is_packed = place.is_some() || on_disk.is_none();
            let serve = self.transfers.serve_mut(link, index);
            if let Some(before) = serve.and_then(|serve| serve.copied(blob, place.is_some(), is_packed)) {
                memory!(self).release(before);
            }
            self.answer_published(link, index);
        } else {
            self.free_place(place);
            self.landing.free(reader, range);
        }
        self.copied_from(now, (&key, is_fetch), from, true);
    }

    /// Lets a push send the copy that was made for it. It is back in the queue of its flow.
    fn copied_for_push(&mut self, now: Time, id: CopyId, op: OperationId, (link, flow): (LinkId, OutFlowId)) {
        let Some(Copying { key, from, reader, to: Some(range), is_fetch, .. }) = self.copies.remove(id) else { return };
        let made = self.landing.slice(reader, &range).zip(self.keys.blob(from));
        match (made, self.sessions.op_mut(op).map(|op| &mut op.kind)) {
            (Some((slice, b)), Some(OpKind::Push(push))) => {
                let copy = b.moved_to(slice, Source::Pool(Box::new(range)));
                (push.copy, push.stage) = (Some(self.keys.insert(copy)), PushStage::Queued(link, flow));
            }
            _ => self.landing.free(reader, range),
        }
        self.copied_from(now, (&key, is_fetch), from, true);
    }

    /// Releases the version that was copied. If the copy counts as a fetch, it ends, and stays counted if it went `well`.
    pub(in crate::protocol::node) fn copied_from(
        &mut self,
        now: Time,
        (key, is_fetch): (&Key, bool),
        from: BlobId,
        well: bool,
    ) {
        if is_fetch {
            self.fetch_of_ends(now, key, from, well);
        }
        memory!(self).release(from);
    }
}
