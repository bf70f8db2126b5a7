//! Copies of tensors for workers of another tenant, on the node where the tensors lie.
//!
//! A process that is passed a segment can read all of it. So no segment of one tenant is passed to another: the bytes
//! are copied once, into the reader's own landing pool, and the reader gets a lease on the copy. A copy waits for room
//! like a landing slot. The host of the node copies one piece at a time, so that a large tensor delays no
//! other work.

use super::Node;
use super::copying::Copying;
use crate::fabric::FabricKind;
use crate::memory::padded;
use crate::op::{Failure, FailureCode, Report};
use crate::protocol::action::HostAction;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, CopyId};
use crate::protocol::keys::{Blob, Source};
use crate::protocol::landing::Want;
use crate::protocol::meters::PathId;
use crate::protocol::sessions::{FetchStage, Op, OpKind};
use crate::protocol::slab::Id;
use crate::protocol::tenant::Tenant;
use crate::tensor::Key;
use crate::time::Time;
use std::time::Duration;

impl Node {
    /// Returns whether a version belongs to another tenant than this worker.
    pub(super) fn is_of_another(&self, session: SessionId, blob: BlobId) -> bool {
        let reader = self.sessions.tenant_of(session);
        self.keys.blob(blob).is_some_and(|b| reader.is_some_and(|reader| reader != b.domain))
    }

    /// Answers a fetch of another tenant's version: with a copy if the reader may read it, else with a failure.
    pub(super) fn hand_over_copy(&mut self, now: Time, op: Op, blob: BlobId) {
        let Some(reader) = self.sessions.tenant_of(op.session) else { return };
        match self.may_read(reader, &op.key, blob) {
            Ok(()) => self.fetch_copy(now, op, blob),
            Err(failure) => self.refuse(op.session, op.id, failure),
        }
    }

    /// Starts a copy of another tenant's version for a fetch that may read it.
    fn fetch_copy(&mut self, now: Time, mut op: Op, blob: BlobId) {
        let (session, id) = (op.session, op.id);
        let Some(reader) = self.sessions.tenant_of(session) else { return };
        if let Some(kind) = op.require.filter(|kind| *kind != FabricKind::Local) {
            let text = format!("{kind} is required, but the tensor lies at this worker's own sidecar, which copies it");
            return self.refuse(session, id, Failure::new(FailureCode::RequireUnmet, text));
        }
        if let Err(failure) = self.has_excerpt(&op.key, blob, op.excerpt()) {
            return self.refuse(session, id, failure);
        }
        let excerpt = op.excerpt().cloned();
        let Some(len) = self.keys.blob(blob).map(|b| b.len_of(excerpt.as_ref())) else { return };
        let room = self.landing.pool_bytes(reader);
        if padded(len).is_none_or(|len| len > room) {
            let whose = self.config.tenants.in_words(reader);
            let text = format!("key {:?} has {len} bytes, the landing pool of {whose} only {room}", op.key);
            return self.refuse(session, id, Failure::new(FailureCode::TooLarge, text));
        }
        self.keys.hold(blob);
        let key = op.key.clone();
        self.keys.fetch_begins(&key, blob);
        let copying =
            self.copies.insert(Copying { op: None, key, from: blob, excerpt, reader, len, to: None, began: now });
        if let OpKind::Fetch { stage, .. } = &mut op.kind {
            *stage = FetchStage::Copying(copying);
        }
        let op = self.sessions.begin(op);
        if let Some(c) = self.copies.get_mut(copying) {
            c.op = Some(op);
        }
        if self.landing.is_contended(reader) || !self.try_copy(reader, copying) {
            self.want(reader, Want::Copy(copying));
        }
    }

    /// Allocates room for a copy and starts it. Returns `true` if the copy has room or no longer needs any.
    pub(super) fn try_copy(&mut self, reader: Tenant, id: CopyId) -> bool {
        let Some(copying) = self.copies.get_mut(id).filter(|c| c.to.is_none()) else { return true };
        let len = padded(copying.len).unwrap_or(u64::MAX);
        let Some((range, to)) = self.landing.allocate(reader, len) else { return false };
        copying.to = Some(range);
        copying.began = self.latest;
        if let Some(from) = self.keys.blob(copying.from).map(|b| b.body_of(copying.excerpt.as_ref())) {
            self.actions.push(HostAction::Copy { from, to, tag: id.to_u64() });
        }
        true
    }

    /// Handles the end of the fetch that wanted a copy. A copy without room is dropped; one in progress is freed when
    /// it is complete.
    pub(super) fn copy_unwanted(&mut self, id: CopyId) {
        let Some(copying) = self.copies.get_mut(id) else { return };
        copying.op = None;
        if copying.to.is_none()
            && let Some(Copying { key, from, reader, .. }) = self.copies.remove(id)
        {
            self.copied_from(self.latest, &key, from, false);
            self.landing.serve_later(reader);
        }
    }

    /// Handles the answer to [`HostAction::Copy`]: all bytes are copied.
    pub fn copied(&mut self, now: Time, tag: u64) {
        self.latest = now;
        let Some(Copying { op, key, from, excerpt, reader, len, to: Some(range), began }) =
            self.copies.remove(Id::from_u64(tag))
        else {
            return;
        };
        let op = op.and_then(|op| self.sessions.finish(op));
        let made = op.zip(self.keys.blob(from).map(|b| (b.meta_of(excerpt.as_ref()), b.version, b.trace)));
        let Some((op, (meta, version, trace))) = made else {
            self.landing.free(reader, range);
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
            flew: now.since(began),
            origin: trace,
        };
        match self.lend(op.session, op.id, blob, PathId::HERE, report) {
            Ok(()) => {
                let asked = self.trace_of(&op);
                self.note_handed_over(now, op.session, &op.key, version, report, asked);
                self.copied_from(now, &key, from, true);
            }
            Err(failure) => {
                self.refuse(op.session, op.id, failure);
                self.copied_from(now, &key, from, false);
            }
        }
        // The lease has a reference of its own.
        self.unhold(blob);
    }

    /// Releases the version that was copied. It counts as a fetch if the copy went `well`.
    fn copied_from(&mut self, now: Time, key: &Key, from: BlobId, well: bool) {
        self.fetch_of_ends(now, key, from, well);
        self.unhold(from);
    }
}
