//! References to blobs: handing a tensor to a worker, and returning its memory.

use super::Node;
use crate::fabric::FabricKind;
use crate::memory::{LocalSlice, SegmentId};
use crate::op::{Answer, Failure, FailureCode, FetchedTensor, LeaseId, OpId, Reply, Report};
use crate::protocol::action::HostAction;
use crate::protocol::ids::BlobId;
use crate::protocol::ids::SessionId;
use crate::protocol::keys::{Blob, Source, Unheld};
use crate::protocol::meters::{Operation, PathId};
use crate::protocol::slab::Id;
use crate::tensor::{Excerpt, ExcerptPart, Key};
use crate::time::Time;
use std::time::Duration;

impl Node {
    /// Drops one reference to a blob. The last one returns the memory to its source.
    pub(super) fn unhold(&mut self, id: BlobId) {
        let blob = match self.keys.unhold(id) {
            Unheld::Held => return self.spills.lost_reader(id),
            Unheld::Sole(op) => return self.taken_back(op, id),
            Unheld::Ended(blob) => blob,
        };
        match blob.source {
            Source::Arena(_) | Source::Returned => {
                self.spills.went(id);
                self.exchanges.went(id);
                self.leave_arena(&blob);
            }
            Source::Disk(id) => self.forget_spilled(id),
            Source::Pool(range) => self.landing.free(blob.domain, *range),
            Source::Slot(link, slot) => self.landing.slot_read(link, slot, &mut self.actions),
            Source::Reference { link, lease, .. } => self.return_reference(link, lease, blob.slice().segment),
            Source::Gathered(parts) => parts.0.into_iter().for_each(|(part, _)| self.unhold(part)),
        }
    }

    pub(super) fn leave_arena(&mut self, blob: &Blob) {
        let slice = blob.slice();
        if let Source::Arena(pushed) = blob.source
            && let Some(session) = self.sessions.of_arena(slice.segment)
        {
            let reply = Reply::Returned { pushed, offset: slice.offset };
            self.actions.push(HostAction::Reply { session, reply });
        }
        if self.sessions.vacate(slice.segment, blob.range_count()) {
            self.arena_unused(slice.segment);
        }
    }

    /// Returns how many versions in an arena can still be reached, and whether the arena's worker is gone.
    #[must_use]
    pub fn arena_reach(&self, segment: SegmentId) -> Option<(u64, bool)> {
        self.sessions.arena(segment)
    }

    /// Releases an arena that can no longer be reached.
    pub(super) fn arena_unused(&mut self, segment: SegmentId) {
        self.references.unshare(segment);
        self.actions.push(HostAction::SegmentUnused { segment });
    }

    /// Checks that a part of this version can be fetched.
    pub(super) fn has_excerpt(&self, key: &Key, blob: BlobId, excerpt: Option<&Excerpt>) -> Result<(), Failure> {
        let Some(b) = self.keys.blob(blob).filter(|_| excerpt.is_some()) else { return Ok(()) };
        let (has_metadata, meta) = (b.meta.metadata_bytes() > 0, &b.meta);
        let misfit = match (excerpt.map(Excerpt::part), has_metadata) {
            (Some(ExcerptPart::Boxes(_)), false) => {
                Some(format!("key {key:?} has {meta}, which is no bundle: slice it"))
            }
            (Some(ExcerptPart::Slice(_)), true) => Some(format!(
                "key {key:?} has {meta}, which is no tensor: slice the tensors of a bundle by their names"
            )),
            _ => excerpt.and_then(|excerpt| excerpt.of(meta).err()).map(|e| format!("key {key:?} has {meta}: {e}")),
        };
        match misfit {
            Some(text) => Err(Failure::new(FailureCode::Invalid, text)),
            None => self.has_parts(key, blob),
        }
    }

    /// Checks that fetches of this version are not counted, because fetching a part of it is none.
    pub(super) fn has_parts(&self, key: &Key, blob: BlobId) -> Result<(), Failure> {
        if self.keys.blob(blob).is_some_and(Blob::counts_fetches) {
            let text = format!(
                "key {key:?} is kept until it is fetched a number of times, and fetching a part does not count: fetch all of it"
            );
            return Err(Failure::new(FailureCode::Invalid, text));
        }
        Ok(())
    }

    /// Answers a fetch with a lease on a blob that lies at this node. The lease is on all of it, whatever the `excerpt`
    /// is.
    pub(super) fn hand_over(
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
        self.has_excerpt(key, blob, excerpt)?;
        let (bytes, origin) = self.keys.blob(blob).map_or((0, None), |b| (b.len_of(excerpt), b.trace()));
        let waited = now.since(since);
        let report = Report {
            fabric: FabricKind::Local,
            bytes,
            copied: 0,
            queued: Duration::ZERO,
            waited,
            flew: Duration::ZERO,
            origin,
        };
        self.lend((session, op), blob, false, PathId::HERE, report)?;
        Ok(report)
    }

    /// Answers a fetch with a lease on a blob, which `is_part` of the version or all of it. `report` and `path` tell how
    /// the blob came to this node.
    pub(super) fn lend(
        &mut self,
        (session, op): (SessionId, OpId),
        blob: BlobId,
        is_part: bool,
        path: PathId,
        report: Report,
    ) -> Result<(), Failure> {
        let gone = || Failure::new(FailureCode::Cancelled, "the worker is gone");
        let (Some(s), Some(b)) = (self.sessions.get(session), self.keys.blob(blob)) else { return Err(gone()) };
        if s.tenant() != b.domain {
            return Err(self.of_another_tenant("the tensor", b.domain, s.tenant()));
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
            is_part,
            report,
        };
        self.actions.answer(session, op, Answer::Fetched { lease: LeaseId(blob.to_u64()), tensor });
        self.meters.finished(Operation::Fetch, path, &report);
        Ok(())
    }

    pub(super) fn release(&mut self, session: SessionId, lease: LeaseId) {
        let blob = Id::from_u64(lease.0);
        if self.sessions.get(session).is_none() {
            return;
        }
        if !self.sessions.give_back(session, blob) {
            let why = format!("it released lease {}, which it does not hold", lease.0);
            self.actions.push(HostAction::CloseSession { session, why });
            return;
        }
        #[cfg(test)]
        if self.config.broken == Some(crate::protocol::broken::Broken::ForgetsReleases)
            && self.sessions.get(session).is_some_and(|s| s.waiting() > 1)
        {
            return;
        }
        self.unhold(blob);
    }
}
