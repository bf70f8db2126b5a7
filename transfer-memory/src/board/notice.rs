//! Notices: seqlock entries that a worker writes, one for each key that it announces; see the [module](super).

use super::layout::{NOTICE_WORDS, NOTICES_BYTES, notice};
use super::reader::{BoardReader, Snapshot};
use super::words::Words;
use super::{entry, futex};
use crate::segment::{MapError, Mapping};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use transfer_core::memory::{ALIGNMENT, LocalSlice, SegmentId};
use transfer_core::tensor::{DType, MetaParts, TensorMeta, Version};

/// The writer of a worker's notices. One thread at a time may use it.
#[derive(Debug)]
pub struct NoticeWriter {
    words: Words,
}

impl NoticeWriter {
    /// Makes a writer over the writable segment that the sidecar has made for the notices.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn new(mapping: Arc<Mapping>) -> Result<NoticeWriter, MapError> {
        Ok(NoticeWriter { words: Words::to_write(mapping, 0, (NOTICES_BYTES / 8) as usize)? })
    }

    /// Whether a notice can describe such a tensor: one of at most 11 dimensions, without metadata.
    #[must_use]
    pub fn fits(meta: &TensorMeta) -> bool {
        let MetaParts { dtype: _, dims, metadata_bytes } = meta.parts();
        metadata_bytes == 0 && dims.len() <= notice::WORDS - notice::DIMS
    }

    /// Opens the notice for writing: readers see nothing in it until it is [published](NoticeWriter::publish) or
    /// [cleared](NoticeWriter::clear). Call it before the sidecar hears of the next push.
    pub fn begin_update(&self, notice: u16) {
        entry::open(self.at(notice));
    }

    /// Publishes a version, after [`NoticeWriter::begin_update`].
    pub fn publish(&self, notice: u16, ticket: u64, version: Version, meta: &TensorMeta, offset: u64) {
        // [`NoticeWriter::fits`]: there is no metadata.
        let MetaParts { dtype, dims, metadata_bytes: _ } = meta.parts();
        let mut words = [0; notice::WORDS];
        words[notice::TICKET] = ticket;
        words[notice::VERSION] = version.0;
        words[notice::SHAPE] = dtype as u64 | (dims.len() as u64) << 8;
        words[notice::OFFSET] = offset;
        for (word, dim) in words[notice::DIMS..].iter_mut().zip(dims) {
            *word = *dim;
        }
        entry::close(self.at(notice), &words[..(notice::DIMS + dims.len()).min(notice::WORDS)]);
    }

    /// Publishes no version, after [`NoticeWriter::begin_update`].
    pub fn clear(&self, notice: u16) {
        entry::close(self.at(notice), &[0]);
    }

    /// Wakes the waiters that sleep until this notice changes.
    pub fn wake(&self, notice: u16) {
        futex::wake_all(self.at(notice));
    }

    fn at(&self, notice: u16) -> &[crate::sync::AtomicU64] {
        self.words.part(usize::from(notice) * NOTICE_WORDS, NOTICE_WORDS)
    }
}

/// A way to wake the threads of this process that sleep on notices: see [`Alarm::ring`].
#[derive(Debug, Default)]
pub struct Alarm(AtomicU32);

impl Alarm {
    /// Wakes all threads of this process that [wait](Watch::wait). No thread sleeps on it from then on.
    pub fn ring(&self) {
        self.0.store(1, Ordering::SeqCst);
        futex::wake_own(&self.0);
    }
}

/// A notice that an entry of a board has named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watch {
    pub(super) entry: usize,
    pub(super) sequence: u64,
    words: Words,
    arena: SegmentId,
}

/// The content of a notice at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoticeState {
    /// The version. `None` where the notice names no valid version, or was being written.
    pub snapshot: Option<Snapshot>,
    sequence: u64,
}

impl NoticeState {
    /// Whether the notice was being written. A version may follow at once.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.sequence.is_multiple_of(2)
    }
}

/// A notice and the sequence that it had when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NoticeSnapshot {
    words: Words,
    sequence: u64,
}

impl NoticeSnapshot {
    /// Whether the notice still has that sequence. Call it after a fence.
    pub(super) fn is_unchanged(&self) -> bool {
        entry::is_at(self.words.all(), self.sequence)
    }
}

impl Watch {
    /// Whether this system lets a thread wait for a notice. If not, a waiter asks its sidecar.
    #[must_use]
    pub fn is_possible() -> bool {
        futex::is_there()
    }

    /// Makes a watch of the notice that the entry `at` names: the one at `offset` of `mapping`, of the worker that owns
    /// `arena`.
    pub(super) fn new(
        (entry, sequence): (usize, u64),
        mapping: Arc<Mapping>,
        offset: u64,
        arena: u64,
    ) -> Option<Watch> {
        let words = Words::to_read(mapping, offset, NOTICE_WORDS).ok()?;
        Some(Watch { entry, sequence, words, arena: SegmentId(u32::try_from(arena).ok()?) })
    }

    /// Reads the notice.
    #[must_use]
    pub fn look(&self) -> NoticeState {
        let words = self.words.all();
        let Some(sequence) = entry::begin(words) else {
            return NoticeState {
                snapshot: None,
                sequence: words.first().map_or(1, |word| word.load(Ordering::Relaxed)) | 1,
            };
        };
        NoticeState { snapshot: self.read(sequence), sequence }
    }

    /// Checks the content of the notice, because its worker may write anything there. The caller's mapping of the
    /// arena bounds the range that the notice names.
    fn read(&self, sequence: u64) -> Option<Snapshot> {
        let words = self.words.all();
        let [ticket, version, shape, offset] =
            [notice::TICKET, notice::VERSION, notice::SHAPE, notice::OFFSET].map(|w| entry::word(words, w));
        let mut dims = [0; notice::WORDS - notice::DIMS];
        let dims = dims.get_mut(..(shape >> 8) as usize & 0xff)?;
        for (i, dim) in dims.iter_mut().enumerate() {
            *dim = entry::word(words, notice::DIMS + i);
        }
        let is_one = ticket != 0 && offset.is_multiple_of(ALIGNMENT);
        if !is_one || !entry::is_whole(words, sequence) {
            return None;
        }
        let dtype = DType::from_wire(shape as u8)?;
        let meta = TensorMeta::from_parts(&MetaParts { dtype, dims, metadata_bytes: 0 }).ok()?;
        let slice = LocalSlice { segment: self.arena, offset, len: meta.len_bytes() };
        let in_notice = NoticeSnapshot { words: self.words.clone(), sequence };
        Some(Snapshot::noticed(Version(version), meta, slice, ticket, (self.entry, self.sequence), in_notice))
    }

    /// Whether the board still names this notice.
    #[must_use]
    pub fn is_named(&self, board: &BoardReader) -> bool {
        entry::is_at(board.entry(self.entry), self.sequence)
    }

    /// Whether the notice is unchanged since that look.
    #[must_use]
    pub fn is_as(&self, look: &NoticeState) -> bool {
        entry::is_at(self.words.all(), look.sequence)
    }

    /// Sleeps until the notice changes from that look, the board no longer names it, the sidecar or the session has
    /// ended, the alarm rings, or `until`. Spurious wake-ups are possible. Returns `false` if `until` came first.
    #[must_use]
    pub fn wait(&self, board: &BoardReader, look: &NoticeState, alarm: &Alarm, until: Instant) -> bool {
        let (notice, entry) = (self.words.all().first(), board.entry(self.entry).first());
        let (Some(notice), Some(entry), Some([life, open])) = (notice, entry, board.honoured()) else { return true };
        let words = [(notice, look.sequence), (entry, self.sequence), life, open];
        let is_late = futex::wait(&words, &alarm.0, until);
        if board.honoured().is_none() {
            // The kernel wakes one waiter when the sidecar ends; wake the others.
            futex::wake_all(std::slice::from_ref(life.0));
        }
        !is_late
    }
}
