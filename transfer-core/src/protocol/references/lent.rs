//! Memory of ours that peers read by reference.

use super::{OfLink, References};
use crate::fabric::LinkId;
use crate::memory::SegmentId;
use crate::protocol::action::{Actions, HostAction, Post};
use crate::protocol::ids::BlobId;
use crate::time::Time;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// The time after a link is lost, and between two looks from then on, at which the host looks for readers.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How many segments are looked at in one round: each costs two system calls.
const LOOKS_PER_ROUND: usize = 64;

/// A segment that a peer was passed.
pub(super) enum Sharing {
    /// It has not said that it has it. Its requests that wait for that.
    Passed(Vec<u32>),
    /// It has it.
    Kept,
}

/// What peers held when their links were lost, by the link's mark and the segment.
#[derive(Default)]
pub(super) struct Unreturned {
    held: BTreeMap<(u64, SegmentId), Vec<BlobId>>,
    /// When to look whether it is still read.
    look_at: Option<Time>,
    /// The one that was looked at last.
    last: Option<(u64, SegmentId)>,
}

/// Whether a request can be answered by reference.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// At once: the peer has the segment.
    Kept,
    /// As soon as the peer has the segment.
    Waits,
    /// No: the bytes have to be sent.
    Never,
}

impl References {
    /// Whether a peer's request for something in this segment can be answered by reference. Passes the segment where that was not done.
    pub(crate) fn pass(&mut self, link: LinkId, index: u32, segment: SegmentId, actions: &mut Actions) -> Passing {
        let Some(l) = self.links.get_mut(&link).filter(|_| self.held < self.limit) else { return Passing::Never };
        match l.shared.get_mut(&segment) {
            Some(Sharing::Kept) => return Passing::Kept,
            // Those that were given up meanwhile stand in it still.
            Some(Sharing::Passed(waiting)) if waiting.len() >= self.waiting_limit => return Passing::Never,
            Some(Sharing::Passed(waiting)) => waiting.push(index),
            None => {
                l.shared.insert(segment, Sharing::Passed(vec![index]));
                actions.push(Post::Share { link, segment });
            }
        }
        Passing::Waits
    }

    /// The peer has a segment of ours, and keeps it. Returns the requests that wait for that, those that were given up too.
    pub(crate) fn segment_kept(&mut self, link: LinkId, segment: SegmentId) -> Vec<u32> {
        let before = self.links.get_mut(&link).and_then(|l| l.shared.insert(segment, Sharing::Kept));
        match before {
            Some(Sharing::Passed(waiting)) => waiting,
            Some(Sharing::Kept) | None => Vec::new(),
        }
    }

    /// A peer gets a version by reference, and one of its references. Returns the number of the lease.
    pub(crate) fn lend(&mut self, link: LinkId, blob: BlobId) -> Option<u32> {
        let lease = self.links.get_mut(&link)?.lent.insert(blob).short();
        self.held += 1;
        Some(lease)
    }

    /// The peer reads it no more. `None`: it does not hold such a lease.
    pub(crate) fn released(&mut self, link: LinkId, lease: u32) -> Option<BlobId> {
        let lent = &mut self.links.get_mut(&link)?.lent;
        let blob = lent.remove(lent.lengthen(lease)?)?;
        self.held = self.held.saturating_sub(1);
        Some(blob)
    }

    /// A segment of ours ends: nobody holds anything in it.
    pub(crate) fn unshare(&mut self, segment: SegmentId) {
        for l in self.links.values_mut() {
            l.shared.remove(&segment);
        }
    }

    /// A link is lost: what its peer held stays held until nobody reads it, and so do the segments that came over it. `segment_of` tells
    /// where a version lies.
    pub(crate) fn lost(
        &mut self,
        now: Time,
        lost: OfLink,
        segment_of: impl Fn(BlobId) -> Option<SegmentId>,
        actions: &mut Actions,
    ) {
        for (_, (segment, _)) in lost.kept {
            self.foreign_ended(segment, actions);
        }
        for (_, blob) in lost.lent.iter() {
            if let Some(segment) = segment_of(*blob) {
                self.unreturned.held.entry((lost.mark, segment)).or_default().push(*blob);
            }
        }
        if !self.unreturned.held.is_empty() {
            self.unreturned.look_at.get_or_insert(now + LOOK_EVERY);
        }
    }

    /// When to call [`look_after`](References::look_after).
    pub(crate) fn look_at(&self) -> Option<Time> {
        self.unreturned.look_at
    }

    /// Has the host look for readers of what was not returned, if it is time.
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

    /// Nobody reads that segment over the lost link of that mark any more. Returns the versions that its peer held.
    pub(crate) fn answered(&mut self, segment: SegmentId, mark: u64) -> Vec<BlobId> {
        let blobs = self.unreturned.held.remove(&(mark, segment)).unwrap_or_default();
        self.held = self.held.saturating_sub(blobs.len());
        if self.unreturned.held.is_empty() {
            self.unreturned.look_at = None;
        }
        blobs
    }

    /// Takes out what a lost link's peer held, as if nobody read it.
    #[cfg(test)]
    pub(crate) fn forget_lent(&mut self, lost: &mut OfLink) -> Vec<BlobId> {
        let lent = std::mem::take(&mut lost.lent);
        self.held -= lent.len();
        lent.iter().map(|(_, blob)| *blob).collect()
    }
}
