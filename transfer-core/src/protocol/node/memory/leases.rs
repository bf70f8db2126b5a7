//! References to blobs: handing a tensor to a worker, and returning its memory.

use crate::fabric::{FabricKind, LinkId};
use crate::memory::{LocalSlice, SegmentId};
use crate::op::{Answer, Failure, FailureCode, FetchedTensor, LeaseId, OpId, Reply, Report};
use crate::protocol::action::HostAction;
use crate::protocol::ids::{BlobId, OperationId, SessionId};
use crate::protocol::keys::{Blob, Released, Source};
use crate::protocol::meters::{Operation, PathId};
use crate::protocol::node::flows::Memory;
use crate::protocol::rules::Broken;
use crate::protocol::sessions::Writer;
use crate::protocol::slab::Id;
use crate::protocol::spill::SpillId;
use crate::tensor::{Excerpt, Key, Name, Select};
use crate::time::Time;
use crate::wire::message::{Body, Role};
use std::time::Duration;

impl Memory<'_> {
    /// Forgets where the target of a session's push is.
    pub(in crate::protocol::node) fn forget_node_of_worker(&mut self, session: SessionId, to: &Name) {
        if let Some(tenant) = self.sessions.tenant_of(session) {
            self.sessions.forget_node_of(tenant, to);
        }
    }

    /// Drops one reference to a blob. The last one returns the memory to its source.
    pub(in crate::protocol::node) fn release(&mut self, id: BlobId) {
        let blob = match self.keys.release(id) {
            Released::Held => return self.spills.lost_reader(id),
            Released::Sole(op) => return self.taken_back(op, id),
            Released::Ended(blob) => blob,
        };
        match blob.source {
            Source::Arena(_) | Source::Returned => {
                self.spills.went(id);
                self.exchanges.went(id);
                self.leave_arena(id, &blob);
            }
            Source::Disk(id) => self.forget_spilled(id),
            Source::Pool(range) => self.landing.free(blob.domain, *range),
            Source::Slot(link, slot) => self.landing.slot_read(link, slot, self.actions),
            Source::Reference { link, lease, .. } => self.return_reference(link, lease, blob.slice().segment),
            Source::Gathered(parts) => parts.0.into_iter().for_each(|(part, _)| self.release(part)),
        }
    }

    fn leave_arena(&mut self, id: BlobId, blob: &Blob) {
        while let Some(copy) = self.keys.take_copy_of(id) {
            self.release(copy);
        }
        let slice = blob.slice();
        if let Source::Arena(pushed) = blob.source
            && let Some(session) = self.sessions.of_arena(slice.segment)
        {
            let reply = Reply::Returned { pushed, offset: self.sessions.place_of(slice) };
            self.actions.push(HostAction::Reply { session, reply });
        }
        // The arena first, which is found by its registered memory.
        if self.sessions.vacate(slice.segment, blob.range_count()) {
            self.arena_unused(slice.segment);
        }
        self.leave_regions(blob.registered_slices());
    }

    /// Stops counting the memory of a fetch that was open to a peer.
    pub(in crate::protocol::node) fn close_memory(&mut self, slices: &[LocalSlice]) {
        let Some(first) = slices.first() else { return };
        // The arena first, which is found by its registered memory.
        if self.sessions.close_memory(first.segment) {
            self.arena_unused(first.segment);
        }
        self.leave_regions(slices.iter().copied());
    }

    fn leave_regions(&mut self, slices: impl Iterator<Item = LocalSlice>) {
        for segment in self.sessions.leave_regions(slices) {
            self.actions.push(HostAction::SegmentUnused { segment });
        }
    }

    /// Releases an arena that can no longer be reached, and what is registered beside it. `segment` is one of them.
    pub(in crate::protocol::node) fn arena_unused(&mut self, segment: SegmentId) {
        let (segment, regions) = self.sessions.take_unused(segment);
        self.references.unshare(segment);
        for segment in std::iter::once(segment).chain(regions) {
            self.actions.push(HostAction::SegmentUnused { segment });
        }
    }

    /// Answers a fetch with a lease on a blob that lies at this node. The lease is on all of it, whatever the `excerpt`
    /// is.
    pub(in crate::protocol::node) fn hand_over(
        &mut self,
        now: Time,
        session: SessionId,
        op: OpId,
        (key, blob, excerpt): (&Key, BlobId, Option<&Excerpt>),
        require: Option<FabricKind>,
        since: Time,
    ) -> Result<Report, Failure> {
        if let Some(kind) = require
            && kind != FabricKind::Local
        {
            let text = format!(
                "{kind} is required, but the tensor lies at this worker's own sidecar, which hands it over by reference"
            );
            return Err(Failure::new(FailureCode::RequireUnmet, text));
        }
        access!(self).has_excerpt(key, blob, excerpt)?;
        let (bytes, origin) = self.keys.blob(blob).map_or((0, None), |b| (b.len_of(excerpt), b.trace()));
        let waited = now.since(since);
        let report = Report {
            fabric: FabricKind::Local,
            bytes,
            copied: 0,
            verified: 0,
            relayed: 0,
            delta: 0,
            queued: Duration::ZERO,
            waited,
            in_flight: Duration::ZERO,
            origin,
        };
        self.lend((session, op), blob, None, PathId::HERE, report)?;
        Ok(report)
    }

    /// Answers a fetch with a lease on a blob, which is all of the version, or a `part` of this publication (0: it is not known which). `report`
    /// and `path` tell how the blob came to this node.
    pub(in crate::protocol::node) fn lend(
        &mut self,
        (session, op): (SessionId, OpId),
        blob: BlobId,
        part: Option<u64>,
        path: PathId,
        report: Report,
    ) -> Result<(), Failure> {
        let gone = || Failure::new(FailureCode::Cancelled, "the worker is gone");
        let (Some(s), Some(b)) = (self.sessions.get(session), self.keys.blob(blob)) else { return Err(gone()) };
        if s.tenant() != b.domain {
            return Err(access!(self).of_another_tenant("the tensor", b.domain, s.tenant()));
        }
        let Some(b) = self.keys.hold(blob) else { return Err(gone()) };
        self.sessions.lend(session, blob);
        let tensor = FetchedTensor {
            version: b.version,
            meta: b.meta.clone(),
            slice: match b.range_count() {
                1.. => b.slice(),
                0 => LocalSlice { len: b.meta.len_bytes(), ..b.slice() },
            },
            ranges: b.range_count(),
            is_part: part.is_some(),
            publication: part.unwrap_or(0),
            report,
        };
        self.actions.answer(session, op, Answer::Fetched { lease: LeaseId(blob.to_u64()), tensor });
        self.meters.finished(Operation::Fetch, path, &report);
        Ok(())
    }

    pub(in crate::protocol::node) fn release_lease(&mut self, session: SessionId, lease: LeaseId) {
        let blob = Id::from_u64(lease.0);
        if self.sessions.get(session).is_none() {
            return;
        }
        if !self.sessions.give_back(session, blob) {
            let why = format!("it released lease {}, which it does not hold", lease.0);
            self.actions.push(HostAction::CloseSession { session, why });
            return;
        }
        if self.config.rules.breaks(Broken::ForgetsReleases)
            && self.sessions.get(session).is_some_and(|s| s.waiting() > 1)
        {
            return;
        }
        self.release(blob);
    }

    /// Returns a reference to its owner, because the workers of this node no longer read the version.
    fn return_reference(&mut self, link: LinkId, lease: u32, segment: SegmentId) {
        // If the link is lost, nothing is sent, and the owner finds out from the reader marks.
        if !self.config.rules.breaks(Broken::KeepsReferences) {
            sending!(self).send(link, Role::Pull, 0, Body::ReleaseReference { lease });
        }
        self.references.end_reading(segment, self.actions);
    }

    /// Ends a version on disk.
    pub(in crate::protocol::node) fn forget_spilled(&mut self, id: SpillId) {
        self.spills.ended(id);
        self.exchanges.unspilled(id);
        self.actions.push(HostAction::SpillFree { id });
    }

    /// Notes whose version a worker has read here, if it may be one of a stream: readers ask for exactly one.
    pub(in crate::protocol::node) fn read_stream_here(&mut self, session: SessionId, key: &Key, select: Select) {
        let owner = self.keys.owner(key).filter(|_| select.is_exact());
        if let Some(writer) = owner.and_then(|owner| self.sessions.owner_name(owner)).cloned() {
            self.sessions.read_stream(session, key, Writer::Here(writer));
        }
    }

    /// As [`Memory::read_stream_here`], of a version that came over a link.
    pub(in crate::protocol::node) fn read_stream_of_peer(
        &mut self,
        session: SessionId,
        key: &Key,
        select: Select,
        link: LinkId,
    ) {
        let peer = self.links.get(link).filter(|_| select.is_exact()).map(|l| l.peer().name.clone());
        if let Some(peer) = peer {
            self.sessions.read_stream(session, key, Writer::At(peer));
        }
    }

    /// Completes a take-back: only its operation holds the version now.
    pub(in crate::protocol::node) fn taken_back(&mut self, op: OperationId, id: BlobId) {
        let (Some(op), Some(mut blob)) = (self.sessions.finish(op), self.keys.remove(id)) else { return };
        // The answer itself returns the range to the worker.
        let Source::Arena(pushed) = std::mem::replace(&mut blob.source, Source::Returned) else { return };
        self.spills.went(id);
        self.exchanges.went(id);
        let offset = self.sessions.place_of(blob.slice());
        self.leave_arena(id, &blob);
        let answer = Answer::TakenBack { version: blob.version, pushed, offset };
        self.actions.answer(op.session, op.id, answer);
    }
}
