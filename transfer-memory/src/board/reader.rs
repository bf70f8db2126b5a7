//! A worker's end of a board.

use super::hazards::{self, bucket_of};
use super::layout::{
    BUCKET_HAZARDS, ENTRY_WORDS, HAZARDS_BYTES, HEADER_WORDS, NAMES_A_NOTICE, body, entries_of, hash_of, line,
};
use super::notice::{NoticeSnapshot, Watch};
use super::table::probes;
use super::words::Words;
use super::{entry, liveness};
use crate::segment::{MapError, Mapping};
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::tensor::{DType, Key, MetaParts, TensorMeta, Version};

/// The reader of a board. It sets hazard pointers to the versions that it reads. Thread-safe.
#[derive(Debug)]
pub struct BoardReader {
    board: Words,
    entries: usize,
    hazards: Words,
}

/// A version as a board's entry, or a notice, described it at one moment. It may be withdrawn before it is
/// [held](BoardReader::hold).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The version.
    pub version: Version,
    /// Element type and shape.
    pub meta: TensorMeta,
    /// The memory of the tensor.
    pub slice: LocalSlice,
    ticket: u64,
    entry: usize,
    sequence: u64,
    notice: Option<NoticeSnapshot>,
}

impl Snapshot {
    pub(super) fn noticed(
        version: Version,
        meta: TensorMeta,
        slice: LocalSlice,
        ticket: u64,
        (entry, sequence): (usize, u64),
        notice: NoticeSnapshot,
    ) -> Snapshot {
        Snapshot { version, meta, slice, ticket, entry, sequence, notice: Some(notice) }
    }
}

/// The result of a look-up of a key on a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// Its newest version.
    Version(Snapshot),
    /// The notice in which its owner shows the newest version.
    Notice(Watch),
}

/// A hazard pointer that is set: the version that it names stays unchanged until [`BoardReader::release`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the version is kept until the hazard pointer is released"]
pub struct HazardPointer {
    ticket: u64,
    entry: usize,
    sequence: u64,
    notice: Option<NoticeSnapshot>,
    word: usize,
}

impl HazardPointer {
    /// The ticket of the version that is held.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.ticket
    }
}

/// The reason why a snapshot cannot be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the sidecar may wait for it"]
pub enum NotHeld {
    /// Its bucket has no free hazard pointer.
    NoHazardPointer,
    /// The entry has changed, or the sidecar no longer honours hazard pointers. Where there is a ticket, the worker has
    /// to tell the sidecar that it does not hold the ticket.
    Gone {
        /// The ticket to tell the sidecar about.
        tell: Option<u64>,
    },
}

impl BoardReader {
    /// Makes a reader of a mapped board, with the hazard pointers at `offset` of the session's own, writable memory.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn new(board: Arc<Mapping>, own: Arc<Mapping>, offset: u64) -> Result<BoardReader, MapError> {
        let entries = entries_of(board.len()) as usize;
        Ok(BoardReader {
            board: Words::to_read(board, 0, HEADER_WORDS + entries * ENTRY_WORDS)?,
            entries,
            hazards: Words::to_write(own, offset, (HAZARDS_BYTES / 8) as usize)?,
        })
    }

    /// Looks up a key on the board. `segments` returns the mapping of a segment of notices, if it is mapped.
    #[must_use]
    pub fn find(&self, key: &Key, segments: impl Fn(SegmentId) -> Option<Arc<Mapping>>) -> Option<Lookup> {
        let hash = hash_of(key.as_str());
        probes(hash, self.entries).find_map(|at| self.read(at, hash, key.as_str().as_bytes(), &segments))
    }

    /// Whether the board names a notice for this key, or may do so in a moment because an entry is being written. `false` is certain,
    /// as long as no announced push of the key is under way.
    #[must_use]
    pub fn may_name_a_notice(&self, key: &Key) -> bool {
        let hash = hash_of(key.as_str());
        probes(hash, self.entries).any(|at| {
            let words = self.entry(at);
            let Some(sequence) = entry::begin(words) else { return true };
            let [ticket, of, shape] = [body::TICKET, body::HASH, body::SHAPE].map(|w| entry::word(words, w));
            let names = ticket != 0 && of == hash && (shape >> 32) as u8 == NAMES_A_NOTICE;
            names || !entry::is_whole(words, sequence)
        })
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
    ) -> Option<Lookup> {
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
            return Watch::new((at, sequence), segments(segment)?, offset, arena).map(Lookup::Notice);
        }
        let dtype = DType::from_wire((shape >> 32) as u8)?;
        let meta = TensorMeta::from_parts(&MetaParts { dtype, dims, metadata_bytes: 0 }).ok()?;
        let slice = LocalSlice { segment, offset, len: meta.len_bytes() };
        let version = Version(version);
        Some(Lookup::Version(Snapshot { version, meta, slice, ticket, entry: at, sequence, notice: None }))
    }

    /// Sets a hazard pointer to the version of a snapshot. The tensor stays unchanged until the hazard pointer is
    /// cleared.
    ///
    /// # Errors
    /// [`NotHeld`].
    pub fn hold(&self, snapshot: &Snapshot) -> Result<HazardPointer, NotHeld> {
        let bucket = bucket_of(snapshot.ticket);
        let Some(i) = hazards::protect(self.hazards.part(bucket, BUCKET_HAZARDS), snapshot.ticket) else {
            return Err(NotHeld::NoHazardPointer);
        };
        let Snapshot { ticket, entry, sequence, ref notice, .. } = *snapshot;
        let hazard = HazardPointer { ticket, entry, sequence, notice: notice.clone(), word: bucket + i };
        if self.is_unchanged(&hazard) && self.is_honoured() {
            return Ok(hazard);
        }
        Err(NotHeld::Gone { tell: self.release(&hazard).then_some(ticket) })
    }

    /// Whether the version is still published, on the board and in the notice that the entry names.
    fn is_unchanged(&self, hazard: &HazardPointer) -> bool {
        entry::is_unchanged(self.entry(hazard.entry), hazard.sequence)
            && hazard.notice.as_ref().is_none_or(NoticeSnapshot::is_unchanged)
    }

    /// Clears a hazard pointer. Returns whether the sidecar has to be told, because it may wait for that.
    #[must_use]
    pub fn release(&self, hazard: &HazardPointer) -> bool {
        if let Some(word) = self.hazards.all().get(hazard.word) {
            hazards::clear(word);
        }
        !self.is_unchanged(hazard)
    }

    /// Counts a fetch that found its version on the board. The sidecar reports the sums.
    pub fn count(&self, bytes: u64) {
        for (at, n) in [(line::HITS, 1), (line::BYTES, bytes)] {
            if let Some(word) = self.hazards.all().get(at) {
                word.fetch_add(n, Ordering::Relaxed);
            }
        }
    }

    /// Whether the sidecar lives and honours this session's hazard pointers. If not, nothing can be held and waiting is
    /// useless.
    #[must_use]
    pub fn is_honoured(&self) -> bool {
        self.honoured().is_some()
    }

    /// The two words that [`BoardReader::is_honoured`] reads, with their values. `None` where it returns `false`.
    pub(super) fn honoured(&self) -> Option<[(&AtomicU64, u64); 2]> {
        let (life, open) = (self.board.all().first()?, self.hazards.all().get(line::OPEN)?);
        let (is_life, is_open) = (life.load(Ordering::Relaxed), open.load(Ordering::Relaxed));
        (liveness::is_alive(is_life) && is_open == 1).then_some([(life, is_life), (open, is_open)])
    }
}
