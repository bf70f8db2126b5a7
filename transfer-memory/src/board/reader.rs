//! A worker's end of a board.

use super::layout::{
    BUCKET_MARKS, ENTRY_WORDS, HEADER_WORDS, MARKS_BYTES, NAMES_A_NOTICE, body, entries_of, hash_of, line,
};
use super::marks::{self, bucket_of};
use super::notice::{InNotice, Watch};
use super::table::probes;
use super::words::Words;
use super::{entry, liveness};
use crate::segment::{MapError, Mapping};
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::tensor::{DType, Key, TensorMeta, Version};

/// Looks into a board, and marks what it reads. Thread-safe.
#[derive(Debug)]
pub struct BoardReader {
    board: Words,
    entries: usize,
    marks: Words,
}

/// What a board shows of a key. It may be gone before it is [held](BoardReader::hold).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Which version it is.
    pub version: Version,
    /// Element type and shape.
    pub meta: TensorMeta,
    /// Where it lies.
    pub slice: LocalSlice,
    ticket: u64,
    entry: usize,
    sequence: u64,
    notice: Option<InNotice>,
}

impl Seen {
    pub(super) fn noticed(
        version: Version,
        meta: TensorMeta,
        slice: LocalSlice,
        ticket: u64,
        (entry, sequence): (usize, u64),
        notice: InNotice,
    ) -> Seen {
        Seen { version, meta, slice, ticket, entry, sequence, notice: Some(notice) }
    }
}

/// What a board says of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Its newest version.
    Version(Seen),
    /// Where its owner shows that.
    Notice(Watch),
}

/// A mark: what was found stays as it is until [`BoardReader::release`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "what is marked is kept until it is released"]
pub struct Mark {
    ticket: u64,
    entry: usize,
    sequence: u64,
    notice: Option<InNotice>,
    word: usize,
}

impl Mark {
    /// What the sidecar calls it.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.ticket
    }
}

/// What was seen cannot be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the sidecar may wait for it"]
pub enum NotHeld {
    /// There is no free mark for it.
    NoMark,
    /// It is shown no more, or the sidecar does not honour marks any more. Where there is a ticket, the sidecar is to be told that it is
    /// not marked.
    Gone {
        /// To be told.
        tell: Option<u64>,
    },
}

impl BoardReader {
    /// Over a mapped board, and the marks at `offset` of the session's own memory, which can be written.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn new(board: Arc<Mapping>, own: Arc<Mapping>, offset: u64) -> Result<BoardReader, MapError> {
        let entries = entries_of(board.len()) as usize;
        Ok(BoardReader {
            board: Words::to_read(board, 0, HEADER_WORDS + entries * ENTRY_WORDS)?,
            entries,
            marks: Words::to_write(own, offset, (MARKS_BYTES / 8) as usize)?,
        })
    }

    /// What the board says of this key. Notices are found in segments that are mapped by then.
    #[must_use]
    pub fn find(&self, key: &Key, segments: impl Fn(SegmentId) -> Option<Arc<Mapping>>) -> Option<Found> {
        let hash = hash_of(key.as_str());
        probes(hash, self.entries).find_map(|at| self.read(at, hash, key.as_str().as_bytes(), &segments))
    }

    pub(super) fn entry(&self, at: usize) -> &[AtomicU64] {
        self.board.part(HEADER_WORDS + at * ENTRY_WORDS, ENTRY_WORDS)
    }

    fn read(
        &self,
        at: usize,
        hash: u64,
        key: &[u8],
        segments: impl Fn(SegmentId) -> Option<Arc<Mapping>>,
    ) -> Option<Found> {
        let words = self.entry(at);
        let sequence = entry::begin(words)?;
        if entry::word(words, body::HASH) != hash {
            return None;
        }
        let [ticket, version, shape, offset] =
            [body::TICKET, body::VERSION, body::SHAPE, body::OFFSET].map(|w| entry::word(words, w));
        let (rank, length) = ((shape >> 40) as usize & 0xff, (shape >> 48) as usize);
        let mut dims = [0; body::WORDS];
        let dims = dims.get_mut(..rank)?;
        for (i, dim) in dims.iter_mut().enumerate() {
            *dim = entry::word(words, body::REST + i);
        }
        let is_same = length == key.len()
            && key.chunks(8).enumerate().all(|(i, bytes)| {
                let word = entry::word(words, body::REST + rank + i).to_le_bytes();
                word.get(..bytes.len()) == Some(bytes)
            });
        if ticket == 0 || !is_same || !entry::is_whole(words, sequence) {
            return None;
        }
        let segment = SegmentId(shape as u32);
        if (shape >> 32) as u8 == NAMES_A_NOTICE {
            let arena = dims.first().copied()?;
            return Watch::new((at, sequence), segments(segment)?, offset, arena).map(Found::Notice);
        }
        let dtype = DType::from_wire((shape >> 32) as u8)?;
        let meta = TensorMeta::of(dtype, dims).ok()?;
        let slice = LocalSlice { segment, offset, len: meta.len_bytes() };
        let version = Version(version);
        Some(Found::Version(Seen { version, meta, slice, ticket, entry: at, sequence, notice: None }))
    }

    /// Marks what was seen as read. From here on it stays as it is.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn hold(&self, seen: &Seen) -> Result<Mark, NotHeld> {
        let bucket = bucket_of(seen.ticket);
        let Some(i) = marks::mark(self.marks.part(bucket, BUCKET_MARKS), seen.ticket) else {
            return Err(NotHeld::NoMark);
        };
        let Seen { ticket, entry, sequence, ref notice, .. } = *seen;
        let mark = Mark { ticket, entry, sequence, notice: notice.clone(), word: bucket + i };
        if self.is_unchanged(&mark) && self.is_honoured() {
            return Ok(mark);
        }
        Err(NotHeld::Gone { tell: self.release(&mark).then_some(ticket) })
    }

    /// Whether what was marked is found still, in the board and in the notice that this names.
    fn is_unchanged(&self, mark: &Mark) -> bool {
        entry::is_unchanged(self.entry(mark.entry), mark.sequence)
            && mark.notice.as_ref().is_none_or(InNotice::is_unchanged)
    }

    /// Takes a mark away. Whether the sidecar is to be told, for it may wait for that.
    #[must_use]
    pub fn release(&self, mark: &Mark) -> bool {
        if let Some(word) = self.marks.all().get(mark.word) {
            marks::clear(word);
        }
        !self.is_unchanged(mark)
    }

    /// Counts a fetch that found what it looked for: the sidecar shows the sums.
    pub fn count(&self, bytes: u64) {
        for (at, n) in [(line::HITS, 1), (line::BYTES, bytes)] {
            if let Some(word) = self.marks.all().get(at) {
                word.fetch_add(n, Ordering::Relaxed);
            }
        }
    }

    /// Whether the sidecar lives and looks at this session's marks: else nothing is held, and nothing worth waiting for.
    #[must_use]
    pub fn is_honoured(&self) -> bool {
        self.honoured().is_some()
    }

    /// If it does: the words that say so, and what they say.
    pub(super) fn honoured(&self) -> Option<[(&AtomicU64, u64); 2]> {
        let (life, open) = (self.board.all().first()?, self.marks.all().get(line::OPEN)?);
        let (is_life, is_open) = (life.load(Ordering::Relaxed), open.load(Ordering::Relaxed));
        (liveness::is_alive(is_life) && is_open == 1).then_some([(life, is_life), (open, is_open)])
    }
}
