//! A part of a mapping as words that several processes read and write.

use crate::segment::{MapError, Mapping};
use crate::sync::AtomicU64;
use std::ptr::NonNull;
use std::sync::Arc;

/// Words in shared memory. Others may write any value there at any time.
#[derive(Debug, Clone)]
pub(super) struct Words {
    start: NonNull<AtomicU64>,
    len: usize,
    /// Keeps the memory mapped.
    _mapping: Arc<Mapping>,
}

// SAFETY: the pointer is into the mapping, which is Send and Sync and lives as long as this.
unsafe impl Send for Words {}
// SAFETY: as above; only atomics are handed out.
unsafe impl Sync for Words {}

impl Words {
    /// Words that are only read. The caller does not store to them.
    pub(super) fn to_read(mapping: Arc<Mapping>, offset: u64, len: usize) -> Result<Words, MapError> {
        let start = mapping.ptr_at(offset, bytes(len))?;
        Words::at(mapping, start, offset, len)
    }

    /// Words of a mapping that can be written.
    pub(super) fn to_write(mapping: Arc<Mapping>, offset: u64, len: usize) -> Result<Words, MapError> {
        let start = mapping.writable_at(offset, bytes(len))?;
        Words::at(mapping, start, offset, len)
    }

    fn at(mapping: Arc<Mapping>, start: *mut u8, offset: u64, len: usize) -> Result<Words, MapError> {
        let outside = MapError::OutOfBounds { offset, len: bytes(len), mapping_len: mapping.len() };
        let start = NonNull::new(start.cast::<AtomicU64>()).filter(|p| p.is_aligned()).ok_or(outside)?;
        Ok(Words { start, len, _mapping: mapping })
    }

    /// Returns all words.
    pub(super) fn all(&self) -> &[AtomicU64] {
        // SAFETY: the pointer is valid for `len` words as long as the mapping lives, and aligned, as `at` has checked.
        // Every bit pattern is a value. All processes that share the words access them atomically; a hostile one
        // causes at most a value that the reader did not expect. Words of a read-only mapping are only loaded, in
        // whole words, which is no write on any machine.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns a part of the words, which is empty if there is no such part.
    pub(super) fn part(&self, from: usize, len: usize) -> &[AtomicU64] {
        self.all().get(from..from.saturating_add(len)).unwrap_or_default()
    }
}

/// Compares the places of the words, and not their values.
impl PartialEq for Words {
    fn eq(&self, other: &Words) -> bool {
        (self.start, self.len) == (other.start, other.len)
    }
}

impl Eq for Words {}

fn bytes(words: usize) -> u64 {
    (words as u64).saturating_mul(8)
}
