//! Reading by reference: what a request, a passed segment and a lost link lead to. The machine is in `protocol/references`.

use super::Node;
use super::ended::PeersTransfer;
use crate::fabric::LinkId;
use crate::memory::SegmentId;
use crate::op::Report;
use crate::protocol::action::FabricAction;
use crate::protocol::keys::{Blob, Source};
use crate::protocol::meters::Operation;
use crate::protocol::references::Passing;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Serve;
use crate::tensor::Until;
use crate::time::Time;
use crate::wire::message::{Body, Role};
use std::time::Duration;

impl Node {
    // ---- the owner's side ----

    /// Answers a request by reference where that is possible, or will once the peer has the segment. `false`: it has to be sent.
    pub(super) fn serve_by_reference(&mut self, now: Time, link: LinkId, index: u32) -> bool {
        let Some(serve) = self.transfers.serve_mut(link, index) else { return false };
        let Some(blob) = serve.blob.and_then(|id| self.keys.blob(id)) else { return false };
        if !may_be_referred(blob, serve.reader()) {
            return false;
        }
        match self.references.pass(link, index, blob.slice.segment, &mut self.actions) {
            Passing::Kept => self.refer(now, link, index),
            Passing::Waits => serve.share(),
            Passing::Never => return false,
        }
        true
    }

    /// The peer has a segment of ours, and keeps it: what waits for that can be answered.
    pub(super) fn segment_kept(&mut self, now: Time, link: LinkId, segment: SegmentId) {
        for index in self.references.segment_kept(link, segment) {
            // Those that were given up are gone, and another may have the number.
            if self.transfers.serve(link, index).is_some_and(Serve::is_sharing) {
                self.refer(now, link, index);
            }
        }
    }

    fn refer(&mut self, now: Time, link: LinkId, index: u32) {
        let Some((fabric, path)) = self.links.get(link).map(|l| (l.kind(), l.path())) else { return };
        let Some(serve) = self.transfers.end_serve(link, index) else { return };
        let (key, since, waited_us, trace) = (serve.key(), serve.since, serve.waited_us, serve.trace);
        let Some(blob) = serve.blob else { return };
        let Some(b) = self.keys.blob(blob) else { return };
        // The request's reference becomes the peer's.
        let Some(lease) = self.references.lend(link, blob) else { return };
        let (bytes, version, origin) = (b.meta.len_bytes(), b.version, b.trace);
        let body = Body::ByReference {
            lease,
            segment: b.slice.segment.0,
            offset: b.slice.offset,
            version,
            waited_us,
            meta: b.meta.clone(),
        };
        self.links.carried_out(link, bytes);
        let waited = Duration::from_micros(waited_us.into());
        let took = now.since(since).saturating_sub(waited);
        self.meters.served(path, bytes, 0, took);
        if let Some(context) = origin {
            self.send(link, Role::Pull, index, Body::Trace { version, context });
        }
        self.send(link, Role::Pull, index, body);
        let report = Report { fabric, bytes, copied: 0, queued: Duration::ZERO, waited, flew: took, origin };
        let (operation, worker) = (Operation::Serve, None);
        self.note_for_peer(now, link, PeersTransfer { operation, key, worker, version, report, since, trace });
        self.fetch_of_ends(now, key, blob, true);
    }

    /// RELEASE_REFERENCE: the peer reads it no more.
    pub(super) fn reference_released(&mut self, link: LinkId, lease: u32) {
        match self.references.released(link, lease) {
            Some(blob) => self.unhold(blob),
            None => self.violation(link, &format!("it releases reference {lease:#x}, which it does not hold")),
        }
    }

    /// The answer to [`HostAction::AskReaders`](crate::protocol::HostAction::AskReaders): whether anybody may still read that segment by
    /// reference over the link of that mark.
    pub fn readers_answered(&mut self, segment: SegmentId, mark: u64, read: bool) {
        if !read {
            for blob in self.references.answered(segment, mark) {
                self.unhold(blob);
            }
        }
    }

    // ---- the reader's side ----

    /// The peer has passed a segment.
    pub(super) fn segment_came(&mut self, link: LinkId, handle: u32) {
        if self.references.are_allowed(link) && self.links.get(link).is_some_and(|l| !l.is_ending()) {
            self.actions.push(FabricAction::Keep { link, handle });
        }
    }

    /// A peer's segment, kept for workers of this node under a number of this node's: the answer to [`FabricAction::Keep`]. `false`: there is no
    /// use for it any more.
    pub fn keep_segment(&mut self, link: LinkId, handle: u32, segment: SegmentId, len_bytes: u64) -> bool {
        self.references.keep(link, handle, segment, len_bytes)
    }

    /// Nobody here reads it any more.
    pub(super) fn return_reference(&mut self, link: LinkId, lease: u32, segment: SegmentId) {
        #[cfg(test)]
        if self.config.broken == Some(crate::protocol::broken::Broken::KeepsReferences) {
            return self.references.end_reading(segment, &mut self.actions);
        }
        // Where the link is lost its owner finds out by itself.
        self.send(link, Role::Pull, 0, Body::ReleaseReference { lease });
        self.references.end_reading(segment, &mut self.actions);
    }

    /// The mark of the link over which a peer's segment came.
    #[cfg(test)]
    pub(crate) fn mark_of(&self, segment: SegmentId) -> Option<u64> {
        self.references.mark_of(segment)
    }
}

/// Whether workers of `reader` may read it where it lies. What may be fetched only so often is sent: it is certain, then, when a peer has it.
fn may_be_referred(blob: &Blob, reader: Tenant) -> bool {
    blob.domain == reader
        && blob.ranges.is_none()
        && blob.meta.len_bytes() > 0
        && !matches!(blob.retention.until, Until::Fetched(_))
        && !matches!(blob.source, Source::Reference { .. })
}
