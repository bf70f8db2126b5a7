//! Hazard pointers: the tickets that a session's worker reads.

use crate::sync::{AtomicU64, Ordering};

/// Sets a hazard pointer to a ticket, in the ticket's bucket. Returns its place there, or `None` if the bucket is
/// full.
pub(crate) fn protect(bucket: &[AtomicU64], ticket: u64) -> Option<usize> {
    bucket.iter().position(|word| {
        word.load(Ordering::Relaxed) == 0
            // Other threads of the worker set hazard pointers here as well.
            && word.compare_exchange(0, ticket, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    })
}

/// Clears a hazard pointer. Release: the reads that it protected come before.
pub(crate) fn clear(word: &AtomicU64) {
    word.store(0, Ordering::Release);
}

/// Whether a hazard pointer to this ticket is set in its bucket.
pub(crate) fn is_protected(bucket: &[AtomicU64], ticket: u64) -> bool {
    // Acquire: reads under a hazard pointer that is cleared by now come before this. So every word of the bucket is
    // loaded.
    bucket.iter().fold(false, |found, word| found | (word.load(Ordering::Acquire) == ticket))
}

#[cfg(not(loom))]
pub use session::SessionHazards;
#[cfg(not(loom))]
pub(super) use session::bucket_of;

#[cfg(not(loom))]
mod session {
    use super::super::futex;
    use super::super::layout::{BUCKET_HAZARDS, BUCKETS, HAZARDS_BYTES, HAZARDS_HEADER_WORDS, line};
    use super::super::words::Words;
    use crate::segment::{MapError, Mapping};
    use crate::sync::Ordering;
    use std::sync::Arc;

    /// Returns the index of the word at which the bucket of a ticket begins.
    pub(in super::super) fn bucket_of(ticket: u64) -> usize {
        HAZARDS_HEADER_WORDS + (ticket % BUCKETS as u64) as usize * BUCKET_HAZARDS
    }

    /// A session's hazard pointers, as its sidecar sees them.
    #[derive(Debug)]
    pub struct SessionHazards {
        words: Words,
    }

    impl SessionHazards {
        /// Returns the hazard pointers at `offset` of a mapping that can be written.
        ///
        /// # Errors
        /// [`MapError`].
        pub fn new(mapping: Arc<Mapping>, offset: u64) -> Result<SessionHazards, MapError> {
            Ok(SessionHazards { words: Words::to_write(mapping, offset, (HAZARDS_BYTES / 8) as usize)? })
        }

        /// Tells the worker whether the sidecar honours its hazard pointers from now on.
        pub fn set_open(&self, open: bool) {
            if let Some(word) = self.words.all().get(line::OPEN) {
                word.store(u64::from(open), Ordering::SeqCst);
                if !open {
                    // The worker may sleep until something changes on the board.
                    futex::wake_all(std::slice::from_ref(word));
                }
            }
        }

        /// Whether a hazard pointer to that ticket is set. Call it after the ticket was unlinked, and after
        /// [`BoardWriter::fence_before_scan`](super::super::BoardWriter::fence_before_scan).
        #[must_use]
        pub fn is_protected(&self, ticket: u64) -> bool {
            super::is_protected(self.words.part(bucket_of(ticket), BUCKET_HAZARDS), ticket)
        }

        /// Returns the number of hazard pointers that are set.
        #[must_use]
        pub fn count(&self) -> u64 {
            let hazards = self.words.part(HAZARDS_HEADER_WORDS, BUCKETS * BUCKET_HAZARDS);
            hazards.iter().filter(|word| word.load(Ordering::Relaxed) != 0).count() as u64
        }

        /// Returns the number of fetches that found their version, and the sum of its bytes, as the worker reports
        /// them.
        #[must_use]
        pub fn hits(&self) -> (u64, u64) {
            let count = |at: usize| self.words.all().get(at).map_or(0, |word| word.load(Ordering::Relaxed));
            (count(line::HITS), count(line::BYTES))
        }
    }
}
