//! Memory of one node that workers of another read by reference, over links whose two sides share their memory.
//!
//! The owner answers a request with BY_REFERENCE in place of the bytes, and holds the version for the peer as it holds one for a worker,
//! until RELEASE_REFERENCE. It does so only once the peer has said of the segment that it has it, and keeps it: see
//! [`FabricEvent::SegmentKept`](crate::fabric::FabricEvent::SegmentKept). When the link is lost nobody can say any more who still reads.
//! Then whoever runs this node is asked again and again ([`HostAction::AskReaders`]), and the memory stays as it is until the answer is
//! that nobody does.

use super::Node;
use super::ended::PeersTransfer;
use super::link::Link;
use crate::fabric::LinkId;
use crate::memory::{ALIGNMENT, LocalSlice, SegmentId};
use crate::op::Report;
use crate::protocol::action::{FabricAction, HostAction, Post};
use crate::protocol::ids::BlobId;
use crate::protocol::keys::{Blob, Source};
use crate::protocol::meters::Operation;
use crate::protocol::slab::Slab;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Serve;
use crate::tensor::Until;
use crate::time::Time;
use crate::wire::message::{Body, Role};
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// How long after a link was lost, and how often from then on, somebody looks whether its peer's workers still read.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How many segments are looked at in one round: each costs two system calls.
const LOOKS_PER_ROUND: usize = 64;

/// What one link has to do with references.
#[derive(Default)]
pub(super) struct LinkReferences {
    /// The link's number among the marks of readers, where both sides allow references.
    pub(super) mark: Option<u64>,
    /// Segments of ours that the peer was passed.
    pub(super) shared: HashMap<SegmentId, Sharing>,
    /// What the peer holds of ours.
    pub(super) lent: Slab<BlobId>,
    /// The peer's segments that we keep, as it calls them: how we call them, and their lengths.
    pub(super) kept: HashMap<u32, (SegmentId, u64)>,
}

/// A segment that the peer was passed.
pub(super) enum Sharing {
    /// It has not said that it has it. Its requests that wait for that.
    Passed(Vec<u32>),
    /// It has it.
    Kept,
}

/// A segment of a peer's that workers of ours may read.
#[derive(Default)]
pub(super) struct Foreign {
    /// Blobs that lie in it.
    blobs: u64,
    /// No more will come.
    ended: bool,
}

/// What peers held when their links were lost, by the link's mark and the segment.
#[derive(Default)]
pub(super) struct Unreturned {
    held: BTreeMap<(u64, SegmentId), Vec<BlobId>>,
    /// When to look whether it is still read.
    look_at: Option<Time>,
    /// Who was looked after last.
    last: Option<(u64, SegmentId)>,
}

/// A version that is not sent, but may be read where it lies.
pub(super) struct Referred {
    pub(super) lease: u32,
    pub(super) segment: u32,
    pub(super) offset: u64,
}

impl Unreturned {
    pub(super) fn look_at(&self) -> Option<Time> {
        self.look_at
    }
}

impl Node {
    /// The two sides of this link may refer to each other's memory.
    pub(super) fn references_begin(&mut self, link: LinkId, mark: u64) {
        if let Some(l) = self.links.get_mut(&link) {
            l.references.mark = Some(mark);
        }
    }

    // ---- the owner's side ----

    /// Answers a request by reference where that is possible, or will once the peer has the segment. `false`: it has to be sent.
    pub(super) fn serve_by_reference(&mut self, now: Time, link: LinkId, index: u32) -> bool {
        if self.references_held >= self.config.max_references {
            return false;
        }
        let Some(l) = self.links.get_mut(&link) else { return false };
        let (Some(serve), Some(_)) = (self.transfers.serve_mut(link, index), l.references.mark) else { return false };
        let Some(blob) = serve.blob.and_then(|id| self.keys.blob(id)) else { return false };
        if !may_be_referred(blob, serve.reader()) {
            return false;
        }
        let segment = blob.slice.segment;
        match l.references.shared.get_mut(&segment) {
            Some(Sharing::Kept) => self.refer(now, link, index),
            // Those that were given up meanwhile stand in it still.
            Some(Sharing::Passed(waiting)) if waiting.len() >= self.config.max_requests_per_link => return false,
            Some(Sharing::Passed(waiting)) => {
                serve.share();
                waiting.push(index);
            }
            None => {
                serve.share();
                l.references.shared.insert(segment, Sharing::Passed(vec![index]));
                self.actions.push(Post::Share { link, segment });
            }
        }
        true
    }

    /// The peer has a segment of ours, and keeps it: what waits for that can be answered.
    pub(super) fn segment_kept(&mut self, now: Time, link: LinkId, segment: SegmentId) {
        let Some(l) = self.links.get_mut(&link).filter(|l| l.references.mark.is_some()) else { return };
        if let Some(Sharing::Passed(waiting)) = l.references.shared.insert(segment, Sharing::Kept) {
            for index in waiting {
                // Those that were given up are gone, and another may have the number.
                if self.transfers.serve(link, index).is_some_and(Serve::is_sharing) {
                    self.refer(now, link, index);
                }
            }
        }
    }

    fn refer(&mut self, now: Time, link: LinkId, index: u32) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(serve) = self.transfers.end_serve(link, index) else { return };
        let (key, since, waited_us, trace) = (serve.key(), serve.since, serve.waited_us, serve.trace);
        let Some(blob) = serve.blob else { return };
        let Some(b) = self.keys.blob(blob) else { return };
        // The request's reference becomes the peer's.
        let lease = l.references.lent.insert(blob).short();
        self.references_held += 1;
        let (bytes, path, version, origin) = (b.meta.len_bytes(), l.path, b.version, b.trace);
        let body = Body::ByReference {
            lease,
            segment: b.slice.segment.0,
            offset: b.slice.offset,
            version,
            waited_us,
            meta: b.meta.clone(),
        };
        l.traffic.outward.add(bytes);
        let (fabric, waited) = (l.kind, Duration::from_micros(waited_us.into()));
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
        let Some(l) = self.links.get_mut(&link) else { return };
        let found = l.references.lent.lengthen(lease).and_then(|id| l.references.lent.remove(id));
        let Some(blob) = found else {
            return self.violation(link, &format!("it releases reference {lease:#x}, which it does not hold"));
        };
        self.references_held = self.references_held.saturating_sub(1);
        self.unhold(blob);
    }

    /// A segment of ours ends: nobody holds anything in it.
    pub(super) fn unshare(&mut self, segment: SegmentId) {
        for l in self.links.values_mut() {
            l.references.shared.remove(&segment);
        }
    }

    /// A link is lost: what its peer held stays held until nobody reads it, and what came of it does so, too.
    pub(super) fn references_lost(&mut self, now: Time, references: LinkReferences) {
        for (_, (segment, _)) in references.kept {
            self.foreign_ended(segment);
        }
        let Some(mark) = references.mark else { return };
        for (_, blob) in references.lent.iter() {
            #[cfg(test)]
            if self.config.broken == Some(crate::protocol::broken::Broken::ForgetsReaders) {
                self.references_held -= 1;
                self.unhold(*blob);
                continue;
            }
            let Some(segment) = self.keys.blob(*blob).map(|b| b.slice.segment) else { continue };
            self.unreturned.held.entry((mark, segment)).or_default().push(*blob);
        }
        if !self.unreturned.held.is_empty() {
            self.unreturned.look_at.get_or_insert(now + LOOK_EVERY);
        }
    }

    /// Time has come to look after what was not returned.
    pub(super) fn look_after_unreturned(&mut self, now: Time) {
        let Unreturned { held, look_at, last } = &mut self.unreturned;
        if look_at.is_none_or(|at| at > now) {
            return;
        }
        *look_at = (!held.is_empty()).then(|| now + LOOK_EVERY);
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let some: Vec<_> = held.range((behind, Bound::Unbounded)).map(|(of, _)| *of).take(LOOKS_PER_ROUND).collect();
        *last = some.last().copied().filter(|_| some.len() == LOOKS_PER_ROUND);
        for (mark, segment) in some {
            self.actions.push(HostAction::AskReaders { segment, mark });
        }
    }

    /// The answer to [`HostAction::AskReaders`]: whether anybody may still read that segment by reference over the link of that mark.
    pub fn readers_answered(&mut self, segment: SegmentId, mark: u64, read: bool) {
        if read {
            return;
        }
        for blob in self.unreturned.held.remove(&(mark, segment)).unwrap_or_default() {
            self.references_held = self.references_held.saturating_sub(1);
            self.unhold(blob);
        }
        if self.unreturned.held.is_empty() {
            self.unreturned.look_at = None;
        }
    }

    // ---- the reader's side ----

    /// The peer has passed a segment.
    pub(super) fn segment_came(&mut self, link: LinkId, handle: u32) {
        if self.links.get(&link).is_some_and(|l| l.references.mark.is_some() && !l.ending) {
            self.actions.push(FabricAction::Keep { link, handle });
        }
    }

    /// A peer's segment, kept for workers of this node under a number of this node's: the answer to [`FabricAction::Keep`]. `false`: there is no
    /// use for it any more.
    pub fn keep_segment(&mut self, link: LinkId, handle: u32, segment: SegmentId, len_bytes: u64) -> bool {
        let Some(l) = self.links.get_mut(&link) else { return false };
        l.references.kept.insert(handle, (segment, len_bytes));
        self.foreign.insert(segment, Foreign::default());
        true
    }

    /// The peer will not name that segment again.
    pub(super) fn segment_gone(&mut self, link: LinkId, handle: u32) {
        let Some(l) = self.links.get_mut(&link) else { return };
        if let Some((segment, _)) = l.references.kept.remove(&handle) {
            self.foreign_ended(segment);
        }
    }

    /// Where a version lies that the peer refers to. The error says what is wrong with it.
    pub(super) fn find_referred(&self, l: &Link, referred: &Referred, len: u64) -> Result<LocalSlice, String> {
        let Referred { segment: handle, offset, .. } = *referred;
        let Some((segment, segment_len)) = l.references.kept.get(&handle).copied() else {
            return Err(format!("BY_REFERENCE into segment {handle}, which was not passed, or is not kept here"));
        };
        if !offset.is_multiple_of(ALIGNMENT) || offset.checked_add(len).is_none_or(|end| end > segment_len) {
            return Err(format!(
                "BY_REFERENCE to {len} bytes at {offset} of segment {handle}; they must begin at a multiple of {ALIGNMENT} and end \
                 within its {segment_len} bytes"
            ));
        }
        Ok(LocalSlice { segment, offset, len })
    }

    /// What lies there is read by workers of this node, until its blob ends.
    pub(super) fn begin_reading(&mut self, segment: SegmentId) {
        if let Some(foreign) = self.foreign.get_mut(&segment) {
            foreign.blobs += 1;
        }
    }

    /// Nobody here reads it any more.
    pub(super) fn return_reference(&mut self, link: LinkId, lease: u32, segment: SegmentId) {
        if let Some(foreign) = self.foreign.get_mut(&segment) {
            foreign.blobs = foreign.blobs.saturating_sub(1);
        }
        #[cfg(test)]
        if self.config.broken == Some(crate::protocol::broken::Broken::KeepsReferences) {
            return self.tidy_foreign(segment);
        }
        // Where the link is lost its owner finds out by itself.
        self.send(link, Role::Pull, 0, Body::ReleaseReference { lease });
        self.tidy_foreign(segment);
    }

    fn foreign_ended(&mut self, segment: SegmentId) {
        if let Some(foreign) = self.foreign.get_mut(&segment) {
            foreign.ended = true;
        }
        self.tidy_foreign(segment);
    }

    fn tidy_foreign(&mut self, segment: SegmentId) {
        if self.foreign.get(&segment).is_some_and(|foreign| foreign.ended && foreign.blobs == 0) {
            self.foreign.remove(&segment);
            self.actions.push(HostAction::SegmentUnused { segment });
        }
    }

    /// The mark of the link over which a peer's segment came.
    #[cfg(test)]
    pub(crate) fn mark_of(&self, segment: SegmentId) -> Option<u64> {
        let keeps = |l: &&Link| l.references.kept.values().any(|(s, _)| *s == segment);
        self.links.values().find(keeps)?.references.mark
    }

    /// What is held of others, and for others; for tests.
    #[cfg(test)]
    pub(crate) fn references(&self) -> (u64, usize) {
        (self.foreign.values().map(|f| f.blobs).sum(), self.references_held)
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
