//! Digests of what lies in memory here, made a piece of each at a time, so that a long version delays no other work.

use super::deltas::copy_out;
use super::run::Run;
use crate::disk::MemoryRange;
use std::collections::VecDeque;
use transfer_core::memory::LocalSlice;
use transfer_core::protocol::VersionDigest;

/// The most bytes that are read before other work has its turn.
const BYTES_PER_ROUND: u64 = 1 << 20;

/// The bytes that are copied out at a time. They fit the cache of a core.
const PIECE_BYTES: u64 = 64 << 10;

impl Run {
    pub(super) fn digest(&mut self, of: &[LocalSlice], tag: u64) {
        let ranges: Option<Vec<_>> = of.iter().map(|slice| self.place(*slice)).collect();
        // The state machine names segments that exist.
        debug_assert!(ranges.is_some(), "{of:?}");
        self.digests.add(ranges.unwrap_or_default(), tag);
    }
}

/// The digests that are being made. They take turns.
#[derive(Default)]
pub(super) struct Digests {
    pending: VecDeque<Pending>,
    piece: Vec<u8>,
}

struct Pending {
    of: Vec<MemoryRange>,
    /// The length of all ranges, and how far they are read.
    len: u64,
    at: u64,
    digest: Box<VersionDigest>,
    tag: u64,
}

impl Digests {
    pub(super) fn add(&mut self, of: Vec<MemoryRange>, tag: u64) {
        let len = of.iter().map(|range| range.len).sum();
        self.pending.push_back(Pending { of, len, at: 0, digest: Box::default(), tag });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Reads some bytes of one. Returns the tag of one that is done, and the digest.
    pub(super) fn step(&mut self) -> Option<(u64, [u8; 16])> {
        let mut next = self.pending.pop_front()?;
        self.piece.resize(PIECE_BYTES as usize, 0);
        let until = next.len.min(next.at + BYTES_PER_ROUND);
        while next.at < until {
            let len = (until - next.at).min(PIECE_BYTES);
            let piece = &mut self.piece[..len as usize];
            let is_there = copy_out(&next.of, next.at, piece);
            // The state machine names ranges that lie within their segments.
            debug_assert!(is_there, "a range of {} lies outside of its segment", next.tag);
            next.digest.add(piece);
            next.at += len;
        }
        if next.at == next.len {
            return Some((next.tag, next.digest.get()));
        }
        self.pending.push_back(next);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

    #[test]
    fn digest_is_of_all_ranges_one_behind_the_other_and_made_in_turns() {
        let bytes: Vec<u8> = (0..2_500_001_u32).map(|n| (n * 7 + n / 251) as u8).collect();
        let (first, rest) = bytes.split_at(70_001);
        let options = SegmentOptions { len: 8 << 20, pages: Pages::Base, lock: Lock::No };
        let segment = Arc::new(Segment::create("digests-test", &options, &PinnedBudget::new(1 << 30)).unwrap());
        segment.mapping().copy_in(0, first).unwrap();
        segment.mapping().copy_in(4 << 20, rest).unwrap();
        let range =
            |offset: u64, bytes: &[u8]| MemoryRange { segment: segment.clone(), offset, len: bytes.len() as u64 };
        let of = vec![range(0, first), range(4 << 20, rest)];
        let mut digests = Digests::default();
        digests.add(of, 7);
        digests.add(vec![], 8);
        assert_eq!(digests.step(), None);
        assert_eq!(digests.step(), Some((8, VersionDigest::default().get())), "they take turns");
        assert_eq!(digests.step(), None);
        let mut expected = VersionDigest::default();
        expected.add(&bytes);
        assert_eq!(digests.step(), Some((7, expected.get())));
        assert!(digests.is_empty());
    }
}
