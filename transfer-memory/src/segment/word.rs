//! One word in shared memory, by which two processes signal each other.

use super::{MapError, Mapping};
use std::sync::atomic::AtomicU32;

impl Mapping {
    /// Returns the word at `offset`, a multiple of 4, of a writable mapping. The other side may write any value there
    /// at any time.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`], also for an offset that is no multiple of 4; [`MapError::ReadOnly`].
    pub fn word_at(&self, offset: u64) -> Result<&AtomicU32, MapError> {
        let len = size_of::<AtomicU32>() as u64;
        let word = self.writable_at(offset, len)?;
        if !word.cast::<AtomicU32>().is_aligned() {
            return Err(MapError::OutOfBounds { offset, len, mapping_len: self.len() });
        }
        // SAFETY: the pointer is valid for reads and writes of 4 bytes for as long as the mapping is borrowed, and
        // aligned (just checked). Every bit pattern is a value. All processes that share the word access
        // it atomically; a hostile one causes at most a value that the reader did not expect. The plain copies of this
        // type are machine accesses that mix no two words.
        Ok(unsafe { AtomicU32::from_ptr(word.cast()) })
    }
}
