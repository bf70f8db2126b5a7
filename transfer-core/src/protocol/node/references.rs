//! Reading by reference: what follows a request, a passed segment and a lost link. The state machine is in
//! `protocol/references`.

use super::Node;
use super::ended::PeersTransfer;
use super::endings::Ending;
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

    /// Answers a request by reference, now or once the peer has the segment. Returns `false` if it has to be sent.
    pub(super) fn serve_by_reference(&mut self, now: Time, link: LinkId, index: u32) -> bool {
        let Some(serve) = self.transfers.serve_mut(link, index) else { return false };
        let Some(blob) = serve.blob.and_then(|id| self.keys.blob(id)) else { return false };
        if !may_be_referred(blob, serve.reader()) {
            return false;
        }
        match self.references.pass(link, index, blob.slice().segment, &mut self.actions) {
            Passing::Kept => self.refer(now, link, index),
            Passing::Waits => serve.share(),
            Passing::Never => return false,
        }
        true
    }

    /// Answers the requests that wait for the peer to keep a segment of this node: it has the segment now.
    pub(super) fn segment_kept(&mut self, now: Time, link: LinkId, segment: SegmentId) {
        for index in self.references.segment_kept(link, segment) {
            // A request that was given up has ended, and a new one may have its index.
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
        // The reference that the request holds becomes the peer's.
        let Some(lease) = self.references.lend(link, blob) else { return };
        let (bytes, version, origin) = (b.len_of(serve.excerpt()), b.version, b.trace());
        let body = Body::ByReference {
            lease,
            segment: b.slice().segment.0,
            offset: b.slice().offset,
            ranges: b.range_count(),
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

    /// Handles the message RELEASE_REFERENCE: the peer no longer reads the version.
    pub(super) fn reference_released(&mut self, link: LinkId, lease: u32) {
        match self.references.released(link, lease) {
            Some(blob) => self.unhold(blob),
            None => self.violation(link, &format!("it releases reference {lease:#x}, which it does not hold")),
        }
    }

    /// Handles the answer to [`HostAction::AskReaders`](crate::protocol::HostAction::AskReaders): `read` tells whether
    /// a process may still read the segment by reference over the link with this mark.
    pub fn readers_answered(&mut self, segment: SegmentId, mark: u64, read: bool) {
        if !read {
            let blobs = self.references.answered(segment, mark);
            self.end(self.latest, Ending::Read(blobs.into_iter()));
        }
    }

    // ---- the reader's side ----

    /// Handles a segment that the peer has passed.
    pub(super) fn segment_came(&mut self, link: LinkId, handle: u32) {
        if self.references.are_allowed(link) && self.links.get(link).is_some_and(|l| !l.is_ending()) {
            self.actions.push(FabricAction::Keep { link, handle });
        }
    }

    /// Handles the answer to [`FabricAction::Keep`]: a peer's segment is kept for workers of this node, under a number
    /// of this node. Returns `false` if the segment is no longer of use.
    pub fn keep_segment(&mut self, link: LinkId, handle: u32, segment: SegmentId, len_bytes: u64) -> bool {
        self.references.keep(link, handle, segment, len_bytes)
    }

    /// Returns a reference to its owner, because the workers of this node no longer read the version.
    pub(super) fn return_reference(&mut self, link: LinkId, lease: u32, segment: SegmentId) {
        #[cfg(test)]
        if self.config.broken == Some(crate::protocol::broken::Broken::KeepsReferences) {
            return self.references.end_reading(segment, &mut self.actions);
        }
        // If the link is lost, nothing is sent, and the owner finds out from the reader marks.
        self.send(link, Role::Pull, 0, Body::ReleaseReference { lease });
        self.references.end_reading(segment, &mut self.actions);
    }

    /// Returns the mark of the link over which a peer's segment came.
    #[cfg(test)]
    pub(crate) fn mark_of(&self, segment: SegmentId) -> Option<u64> {
        self.references.mark_of(segment)
    }
}

/// Returns whether workers of `reader` may read the version in place. A version with a limited number of fetches is
/// sent: then it is certain when a peer has it.
fn may_be_referred(blob: &Blob, reader: Tenant) -> bool {
    blob.domain == reader
        && blob.meta.len_bytes() > 0
        && !matches!(blob.retention().until, Until::Fetched(_))
        && !matches!(blob.source, Source::Reference { .. })
}
