//! Requests of peers that are answered by reference: the peer reads the memory of this node.

use crate::fabric::LinkId;
use crate::memory::SegmentId;
use crate::op::Report;
use crate::protocol::keys::{Blob, Source};
use crate::protocol::meters::Operation;
use crate::protocol::node::flows::Answering;
use crate::protocol::node::replies::PeersTransfer;
use crate::protocol::references::Passing;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Serve;
use crate::tensor::Until;
use crate::time::Time;
use crate::wire::message::{Body, Role};
use std::time::Duration;

impl Answering<'_> {
    /// Answers a request by reference, now or once the peer has the segment. Returns `false` if it has to be sent.
    pub(in crate::protocol::node) fn serve_by_reference(&mut self, now: Time, link: LinkId, index: u32) -> bool {
        let Some(serve) = self.transfers.serve_mut(link, index) else { return false };
        let Some(blob) = serve.blob.and_then(|id| self.keys.blob(id)) else { return false };
        if !may_be_referred(blob, serve.reader()) {
            return false;
        }
        match self.references.pass(link, index, blob.slice().segment, self.actions) {
            Passing::Kept => self.refer(now, link, index),
            Passing::Waits => serve.share(),
            Passing::Never => return false,
        }
        true
    }

    /// Answers the requests that wait for the peer to keep a segment of this node: it has the segment now.
    pub(in crate::protocol::node) fn segment_kept(&mut self, now: Time, link: LinkId, segment: SegmentId) {
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
            sending!(self).send(link, Role::Pull, index, Body::Trace { version, context });
        }
        sending!(self).send(link, Role::Pull, index, body);
        let report = Report::of_sent(fabric, bytes, 0, (waited, took), origin);
        let (operation, worker) = (Operation::Serve, None);
        replies!(self).note_for_peer(
            now,
            link,
            PeersTransfer { operation, key, worker, version, report, since, trace },
        );
        self.fetch_of_ends(now, key, blob, true);
    }
}

/// Returns whether workers of `reader` may read the version in place. A version with a limited number of fetches is
/// sent: then it is certain when a peer has it.
fn may_be_referred(blob: &Blob, reader: Tenant) -> bool {
    blob.domain == reader
        && !blob.is_registered()
        && blob.meta.len_bytes() > 0
        && !matches!(blob.retention().until, Until::Fetched(_))
        && !matches!(blob.source, Source::Reference { .. })
}
