//! A version that comes to this node in chunks, from its owner or from other nodes.
//!
//! All chunks land in one range. A chunk is asked for again only when no peer can write to its place any more.

use super::ids::{BlobId, PullId};
use crate::alloc::Allocation;
use crate::fabric::LinkId;
use crate::memory::LocalSlice;
use crate::tensor::BodyRange;
use crate::wire::landing::Header;
use crate::wire::message::MAX_CHUNKS;

/// The most chunks that are asked for at a time.
const WINDOW: usize = 4;

/// Chunks begin at multiples of this.
const ALIGNMENT: u64 = 64;

/// Returns the length of the chunks of a version, if they are to have this length: there are at most [`MAX_CHUNKS`].
pub(super) fn chunk_bytes(version_bytes: u64, wanted: u64) -> u64 {
    wanted.max(version_bytes.div_ceil(MAX_CHUNKS)).max(1).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
}

/// Returns the chunk with this number of a version. `None`: it has no such chunk.
pub(super) fn chunk_at(version_bytes: u64, chunk_bytes: u64, number: usize) -> Option<BodyRange> {
    let offset = u64::try_from(number).ok()?.checked_mul(chunk_bytes).filter(|offset| *offset < version_bytes)?;
    Some(BodyRange { offset, len: chunk_bytes.min(version_bytes - offset) })
}

/// How far a chunk has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkState {
    Missing,
    /// A peer was asked for it by this request.
    Asked(LinkId, PullId),
    /// It was given up, and the peer of this link may still write it.
    Closing(LinkId),
    /// It has landed from the peer of this link, and is being compared with the owner's digest. Its own one may be made.
    Landed(LinkId, Option<[u8; 16]>),
    /// It is that of the owner.
    Here,
}

/// What has come of the comparison of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// It waits for one of the two digests.
    Waits,
    /// It is that of the owner.
    Here,
    /// The peer of this link has sent other bytes. It is missing again.
    Refused(LinkId),
}

/// The chunks of a version.
#[derive(Debug)]
pub(super) struct Chunks {
    /// The version, whose memory is where the chunks land. The search has a reference to it, and each request for a chunk.
    pub(super) blob: BlobId,
    slice: LocalSlice,
    chunk_bytes: u64,
    states: Vec<ChunkState>,
    /// The first chunk that may be missing.
    from: usize,
    /// How many of them are the owner's.
    here: usize,
    /// The digests of the first chunks, as the owner has sent them.
    digests: Vec<[u8; 16]>,
    /// A range for the header of one chunk, so that one can always be asked for.
    pub(super) cell: Option<Allocation>,
    /// The header of the chunk that has landed last.
    pub(super) header: Option<Header>,
    /// Bytes that came from other nodes than the owner, and that a CPU copied.
    pub(super) relayed: u64,
    pub(super) copied: u64,
}

impl Chunks {
    /// Begins with none of the chunks of a version, which are to land in this range of a blob. The owner has sent these digests so far.
    pub(super) fn new(
        (blob, slice): (BlobId, LocalSlice),
        chunk_bytes: u64,
        cell: Allocation,
        digests: Vec<[u8; 16]>,
    ) -> Chunks {
        let count = usize::try_from(slice.len.div_ceil(chunk_bytes.max(1))).unwrap_or(usize::MAX);
        Chunks {
            blob,
            slice,
            chunk_bytes,
            states: vec![ChunkState::Missing; count],
            from: 0,
            here: 0,
            digests,
            cell: Some(cell),
            header: None,
            relayed: 0,
            copied: 0,
        }
    }

    /// Returns the chunk with this number, and where it lands.
    pub(super) fn place(&self, number: usize) -> Option<(BodyRange, LocalSlice)> {
        let range = chunk_at(self.slice.len, self.chunk_bytes, number)?;
        Some((range, self.slice.sub(range.offset, range.len)?))
    }

    /// Returns the number of the chunk that is this range.
    pub(super) fn number_of(&self, range: BodyRange) -> Option<usize> {
        let number = usize::try_from(range.offset / self.chunk_bytes).ok()?;
        chunk_at(self.slice.len, self.chunk_bytes, number).filter(|chunk| *chunk == range).map(|_| number)
    }

    /// Returns the next chunk to ask the peer of this link for, if it may be asked for one more.
    pub(super) fn next(&mut self) -> Option<usize> {
        if self.asked().count() >= WINDOW {
            return None;
        }
        while self.states.get(self.from).is_some_and(|state| *state != ChunkState::Missing) {
            self.from += 1;
        }
        (self.from < self.states.len()).then_some(self.from)
    }

    /// Notes that a chunk was asked for by this request.
    pub(super) fn ask(&mut self, number: usize, link: LinkId, pull: PullId) {
        self.set(number, ChunkState::Asked(link, pull));
    }

    /// Returns the requests for chunks.
    pub(super) fn asked(&self) -> impl Iterator<Item = (LinkId, PullId)> {
        self.states.iter().filter_map(|state| match state {
            ChunkState::Asked(link, pull) => Some((*link, *pull)),
            _ => None,
        })
    }

    /// Gives up all chunks that were asked for. Returns their requests.
    pub(super) fn give_up(&mut self) -> Vec<(LinkId, PullId)> {
        let asked: Vec<_> = self.asked().collect();
        for state in &mut self.states {
            if let ChunkState::Asked(link, _) = *state {
                *state = ChunkState::Closing(link);
            }
        }
        asked
    }

    /// Notes that no peer can write to the place of a chunk any more, whose request has ended. Returns whether it is missing.
    pub(super) fn closed(&mut self, number: usize, link: LinkId) -> bool {
        let is_open = match self.states.get(number) {
            Some(ChunkState::Asked(at, _) | ChunkState::Closing(at)) => *at == link,
            _ => false,
        };
        if is_open {
            self.set(number, ChunkState::Missing);
        }
        is_open
    }

    /// Notes that a chunk has landed for this request, and that its slot is closed. Returns whether it was asked for by that.
    pub(super) fn landed(&mut self, number: usize, link: LinkId, pull: PullId) -> bool {
        let is_it = self.states.get(number) == Some(&ChunkState::Asked(link, pull));
        if is_it {
            self.set(number, ChunkState::Landed(link, None));
        }
        is_it
    }

    /// Notes that a chunk is the owner's.
    pub(super) fn came(&mut self, number: usize) {
        if self.states.get(number).is_some_and(|state| *state != ChunkState::Here) {
            self.here += 1;
            self.set(number, ChunkState::Here);
        }
    }

    /// Stores the digest of a chunk that has landed, and compares it with the owner's, if that is known.
    pub(super) fn proved(&mut self, number: usize, digest: [u8; 16], believes: bool) -> Compared {
        let Some(ChunkState::Landed(link, own)) = self.states.get_mut(number) else { return Compared::Waits };
        let link = *link;
        *own = Some(digest);
        match self.digests.get(number) {
            None => Compared::Waits,
            Some(owners) if *owners == digest || believes => {
                self.came(number);
                Compared::Here
            }
            Some(_) => {
                self.set(number, ChunkState::Missing);
                Compared::Refused(link)
            }
        }
    }

    /// Stores the next digests of the owner. Returns the chunks that can be compared now, with their digests. `None`: these are not the
    /// next ones.
    pub(super) fn add_digests(&mut self, first: u32, digests: &[[u8; 16]]) -> Option<Vec<(usize, [u8; 16])>> {
        let begin = self.digests.len();
        if usize::try_from(first) != Ok(begin) || begin + digests.len() > self.states.len() {
            return None;
        }
        self.digests.extend_from_slice(digests);
        let landed = (begin..self.digests.len()).filter_map(|number| match self.states[number] {
            ChunkState::Landed(_, Some(digest)) => Some((number, digest)),
            _ => None,
        });
        Some(landed.collect())
    }

    /// Whether the digests of all chunks are known.
    pub(super) fn has_all_digests(&self) -> bool {
        self.digests.len() == self.states.len()
    }

    /// Whether a chunk is the owner's.
    pub(super) fn is_here(&self, number: usize) -> bool {
        self.states.get(number) == Some(&ChunkState::Here)
    }

    /// Whether all chunks are the owner's.
    pub(super) fn are_all_here(&self) -> bool {
        self.here == self.states.len()
    }

    /// Returns how many are not.
    pub(super) fn left(&self) -> usize {
        self.states.len() - self.here
    }

    /// Whether nothing is left but chunks to whose places peers may still write that do not send them, and chunks that are here.
    pub(super) fn is_stuck(&self) -> bool {
        let is_closing = |state: &ChunkState| matches!(state, ChunkState::Closing(_));
        let is_open = |state: &ChunkState| {
            matches!(state, ChunkState::Missing | ChunkState::Asked(..) | ChunkState::Landed(_, None))
        };
        self.states.iter().any(is_closing) && !self.states.iter().any(is_open)
    }

    /// Returns the ranges of what has landed, as few as possible.
    pub(super) fn runs(&self) -> Vec<BodyRange> {
        let mut runs: Vec<BodyRange> = Vec::new();
        for (number, state) in self.states.iter().enumerate() {
            if !matches!(state, ChunkState::Landed(..) | ChunkState::Here) {
                continue;
            }
            let Some(chunk) = chunk_at(self.slice.len, self.chunk_bytes, number) else { continue };
            match runs.last_mut().filter(|run| run.offset + run.len == chunk.offset) {
                Some(run) => run.len += chunk.len,
                None => runs.push(chunk),
            }
        }
        runs
    }

    /// Goes on in other memory, to which what has landed was copied. Returns the blob before.
    pub(super) fn moved(&mut self, blob: BlobId, slice: LocalSlice) -> BlobId {
        self.slice = slice;
        for state in &mut self.states {
            if matches!(state, ChunkState::Closing(_) | ChunkState::Asked(..)) {
                *state = ChunkState::Missing;
            }
        }
        self.from = 0;
        std::mem::replace(&mut self.blob, blob)
    }

    fn set(&mut self, number: usize, state: ChunkState) {
        if state == ChunkState::Missing {
            self.from = self.from.min(number);
        }
        self.states[number] = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::Allocator;
    use crate::memory::SegmentId;
    use crate::protocol::slab::Id;

    const THERE: LinkId = LinkId(1);
    const ELSEWHERE: LinkId = LinkId(2);

    fn pull(n: u64) -> PullId {
        Id::from_u64(n)
    }

    /// Six chunks of 64 bytes, and one of 36.
    fn chunks() -> Chunks {
        let slice = LocalSlice { segment: SegmentId(1), offset: 4096, len: 420 };
        let cell = Allocator::new(64).allocate(64).unwrap();
        Chunks::new((Id::from_u64(0), slice), 64, cell, Vec::new())
    }

    #[test]
    fn number_of_chunks_is_limited() {
        assert_eq!(chunk_bytes(1 << 30, 4 << 20), 4 << 20);
        assert_eq!(chunk_bytes(64 << 30, 4 << 20), 64 << 20);
        assert_eq!(chunk_bytes(1, 0), 64);
        assert_eq!(chunk_bytes(u64::MAX, 1) % ALIGNMENT, 0);
        assert_eq!(chunk_at(420, 64, 6), Some(BodyRange { offset: 384, len: 36 }));
        assert_eq!(chunk_at(420, 64, 7), None);
        assert_eq!(chunks().number_of(BodyRange { offset: 384, len: 36 }), Some(6));
        assert_eq!(chunks().number_of(BodyRange { offset: 384, len: 64 }), None);
        assert_eq!(chunks().number_of(BodyRange { offset: 32, len: 64 }), None);
    }

    #[test]
    fn chunk_that_was_given_up_is_asked_for_again_when_no_peer_can_write_it() {
        let mut chunks = chunks();
        for n in 0..WINDOW {
            assert_eq!(chunks.next(), Some(n));
            chunks.ask(n, THERE, pull(n as u64));
        }
        assert_eq!(chunks.next(), None, "the window is full");
        assert!(chunks.landed(0, THERE, pull(0)) && !chunks.landed(1, THERE, pull(9)));
        chunks.came(0);
        assert_eq!(chunks.give_up().len(), 3);
        assert!(!chunks.landed(1, THERE, pull(1)), "it lands too late");
        assert_eq!(chunks.next(), Some(4));
        assert!(chunks.closed(2, THERE) && !chunks.closed(3, ELSEWHERE));
        assert_eq!(chunks.next(), Some(2));
        for n in [2, 4, 5, 6] {
            chunks.ask(n, ELSEWHERE, pull(n as u64));
            chunks.landed(n, ELSEWHERE, pull(n as u64));
            chunks.came(n);
        }
        assert!(chunks.is_stuck() && chunks.next().is_none());
        let runs = [(0, 64), (128, 64), (256, 164)].map(|(offset, len)| BodyRange { offset, len });
        assert_eq!(chunks.runs(), runs);
        chunks.moved(Id::from_u64(1), LocalSlice { segment: SegmentId(1), offset: 8192, len: 420 });
        assert!(!chunks.closed(1, THERE) || chunks.next() == Some(1));
        assert_eq!((chunks.next(), chunks.left()), (Some(1), 2));
    }

    // Promise: spreading, seen to fail
    #[test]
    fn chunk_is_compared_whichever_digest_comes_first() {
        for owner_first in [true, false] {
            let mut chunks = chunks();
            chunks.ask(0, THERE, pull(0));
            chunks.ask(1, THERE, pull(1));
            assert!(chunks.landed(0, THERE, pull(0)) && chunks.landed(1, THERE, pull(1)));
            assert_eq!(chunks.add_digests(1, &[[1; 16]]), None, "they come in order");
            if owner_first {
                assert_eq!(chunks.add_digests(0, &[[1; 16], [2; 16]]), Some(vec![]));
                assert_eq!(chunks.proved(0, [1; 16], false), Compared::Here);
                assert_eq!(chunks.proved(1, [1; 16], false), Compared::Refused(THERE));
            } else {
                assert_eq!(chunks.proved(0, [1; 16], false), Compared::Waits);
                assert_eq!(chunks.proved(1, [1; 16], false), Compared::Waits);
                let found = chunks.add_digests(0, &[[1; 16], [2; 16]]).unwrap();
                assert_eq!(found, [(0, [1; 16]), (1, [1; 16])]);
                assert_eq!(chunks.proved(0, [1; 16], false), Compared::Here);
                assert_eq!(chunks.proved(1, [1; 16], false), Compared::Refused(THERE));
            }
            assert_eq!((chunks.left(), chunks.next()), (6, Some(1)));
        }
    }
}
