//! Memory of this node that peers read by reference.

use super::{OfLink, References};
use crate::fabric::LinkId;
use crate::memory::SegmentId;
use crate::protocol::action::{Actions, HostAction, Post};
use crate::protocol::ids::BlobId;
use crate::protocol::slab::Slab;
use crate::time::Time;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// The interval at which the host checks for readers after a link is lost. The first check comes at most one interval
/// after the loss.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The most segments that one round checks. Each check costs two system calls.
const LOOKS_PER_ROUND: usize = 64;

/// The state of a segment that was passed to a peer.
pub(super) enum Sharing {
    /// The peer has not confirmed the segment yet. Holds the peer's requests that wait for that.
    Passed(Vec<u32>),
    /// The peer has the segment.
    Kept,
}

/// The versions that the peer of a lost link held.
pub(crate) struct Lent {
    mark: u64,
    blobs: Slab<BlobId>,
    /// The place of the next one.
    from: usize,
}

/// The versions that peers held when their links were lost, by the link's mark and the segment.
#[derive(Default)]
pub(super) struct Unreturned {
    held: BTreeMap<(u64, SegmentId), Vec<BlobId>>,
    /// The time of the next check for readers.
    look_at: Option<Time>,
    /// The entry that was checked last.
    last: Option<(u64, SegmentId)>,
}

/// Whether a request can be answered by reference.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// Yes, at once: the peer has the segment.
    Kept,
    /// Yes, as soon as the peer has the segment.
    Waits,
    /// No: the bytes must be sent.
    Never,
}

impl References {
    /// Decides whether a peer's request for a version in this segment can be answered by reference. Passes the segment
    /// to the peer if that was not done before.
    pub(crate) fn pass(&mut self, link: LinkId, index: u32, segment: SegmentId, actions: &mut Actions) -> Passing {
        let Some(l) = self.links.get_mut(&link).filter(|_| self.held < self.limit) else { return Passing::Never };
        match l.shared.get_mut(&segment) {
            Some(Sharing::Kept) => return Passing::Kept,
            // The list still contains requests that were given up meanwhile.
            Some(Sharing::Passed(waiting)) if waiting.len() >= self.waiting_limit => return Passing::Never,
            Some(Sharing::Passed(waiting)) => waiting.push(index),
            None => {
                l.shared.insert(segment, Sharing::Passed(vec![index]));
                actions.push(Post::Share { link, segment });
            }
        }
        Passing::Waits
    }

    /// Marks a segment of this node as kept by the peer. Returns the requests that waited for that, including requests
    /// that were given up.
    pub(crate) fn segment_kept(&mut self, link: LinkId, segment: SegmentId) -> Vec<u32> {
        let before = self.links.get_mut(&link).and_then(|l| l.shared.insert(segment, Sharing::Kept));
        match before {
            Some(Sharing::Passed(waiting)) => waiting,
            Some(Sharing::Kept) | None => Vec::new(),
        }
    }

    /// Gives a peer a version by reference. The caller hands over one reference to the version. Returns the number of
    /// the lease.
    pub(crate) fn lend(&mut self, link: LinkId, blob: BlobId) -> Option<u32> {
        let lease = self.links.get_mut(&link)?.lent.insert(blob).short();
        self.held += 1;
        Some(lease)
    }

    /// Ends a lease of a peer, which no longer reads the version. Returns `None` if the peer does not hold such a
    /// lease.
    pub(crate) fn released(&mut self, link: LinkId, lease: u32) -> Option<BlobId> {
        let lent = &mut self.links.get_mut(&link)?.lent;
        let blob = lent.remove(lent.lengthen(lease)?)?;
        self.held = self.held.saturating_sub(1);
        Some(blob)
    }

    /// Forgets a segment of this node that ends. No peer holds a version in it.
    pub(crate) fn unshare(&mut self, segment: SegmentId) {
        for l in self.links.values_mut() {
            l.shared.remove(&segment);
        }
    }

    /// Handles the loss of a link. The segments that came over it stay until the blobs in them end. Returns the versions that
    /// its peer held: each has [to be kept](References::keep_unreturned) until no process reads it.
    pub(crate) fn lost(&mut self, lost: OfLink, actions: &mut Actions) -> Lent {
        for (_, (segment, _)) in lost.kept {
            self.foreign_ended(segment, actions);
        }
        Lent { mark: lost.mark, blobs: lost.lent, from: 0 }
    }

    /// Keeps the next version that the peer of a lost link held, until no process reads it. `segment_of` returns the segment of
    /// a version. Returns `false` if there is none left.
    pub(crate) fn keep_unreturned(
        &mut self,
        now: Time,
        lent: &mut Lent,
        segment_of: impl Fn(BlobId) -> Option<SegmentId>,
    ) -> bool {
        let Some((_, blob)) = lent.blobs.take_first(&mut lent.from) else { return false };
        if let Some(segment) = segment_of(blob) {
            self.unreturned.held.entry((lent.mark, segment)).or_default().push(blob);
            self.unreturned.look_at.get_or_insert(now + LOOK_EVERY);
        }
        true
    }

    /// Returns when to call [`look_after`](References::look_after).
    pub(crate) fn look_at(&self) -> Option<Time> {
        self.unreturned.look_at
    }

    /// Asks the host to check for readers of unreturned versions, if the next check is due.
    pub(crate) fn look_after(&mut self, now: Time, actions: &mut Actions) {
        let Unreturned { held, look_at, last } = &mut self.unreturned;
        if look_at.is_none_or(|at| at > now) {
            return;
        }
        *look_at = (!held.is_empty()).then(|| now + LOOK_EVERY);
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let some: Vec<_> = held.range((behind, Bound::Unbounded)).map(|(of, _)| *of).take(LOOKS_PER_ROUND).collect();
        *last = some.last().copied().filter(|_| some.len() == LOOKS_PER_ROUND);
        for (mark, segment) in some {
            actions.push(HostAction::AskReaders { segment, mark });
        }
    }

    /// Handles the host's answer that no process reads the segment over the lost link of that mark. Returns the
    /// versions that its peer held.
    pub(crate) fn answered(&mut self, segment: SegmentId, mark: u64) -> Vec<BlobId> {
        let blobs = self.unreturned.held.remove(&(mark, segment)).unwrap_or_default();
        self.held = self.held.saturating_sub(blobs.len());
        if self.unreturned.held.is_empty() {
            self.unreturned.look_at = None;
        }
        blobs
    }

    /// Takes the versions that a lost link's peer held, as if no process read them.
    pub(crate) fn forget_lent(&mut self, lost: &mut OfLink) -> Vec<BlobId> {
        let lent = std::mem::take(&mut lost.lent);
        self.held -= lent.len();
        lent.iter().map(|(_, blob)| *blob).collect()
    }
}
