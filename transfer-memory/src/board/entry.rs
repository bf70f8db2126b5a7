//! A seqlock entry: a sequence and a body, with one writer and many readers that never wait.
//!
//! All words are atomics, so a reader that races with the writer reads a mixture of old and new words and nothing
//! worse. The sequence tells it so, and it discards what it read.

use crate::sync::{AtomicU64, Ordering, fence};

/// Writes an entry's body, or the first words of it. There is one writer.
pub(crate) fn write(entry: &[AtomicU64], body: &[u64]) {
    open(entry);
    close(entry, body);
}

/// Makes the sequence odd: readers ignore the entry until [`close`]. An entry that is open already stays open.
pub(crate) fn open(entry: &[AtomicU64]) {
    let Some(sequence) = entry.first() else { return };
    let before = sequence.load(Ordering::Relaxed);
    sequence.store(before | 1, Ordering::Relaxed);
    // A reader of any word that is written from here on sees the odd sequence.
    fence(Ordering::Release);
}

/// Writes the body of an open entry, or the first words of it, and makes the sequence even.
pub(crate) fn close(entry: &[AtomicU64], body: &[u64]) {
    let Some((sequence, words)) = entry.split_first() else { return };
    for (word, value) in words.iter().zip(body) {
        word.store(*value, Ordering::Relaxed);
    }
    let before = sequence.load(Ordering::Relaxed);
    // Release: a reader of this sequence reads these words, and the tensor's bytes that they name.
    sequence.store(before.wrapping_add(1), Ordering::Release);
}

/// Returns the sequence of an entry, or `None` while it is being written.
pub(crate) fn begin(entry: &[AtomicU64]) -> Option<u64> {
    let sequence = entry.first()?.load(Ordering::Acquire);
    sequence.is_multiple_of(2).then_some(sequence)
}

/// A word of the body. [`is_whole`] tells whether it is consistent with the others.
pub(crate) fn word(entry: &[AtomicU64], at: usize) -> u64 {
    entry.get(at + 1).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// Whether all words that were read since [`begin`] are consistent.
pub(crate) fn is_whole(entry: &[AtomicU64], sequence: u64) -> bool {
    fence(Ordering::Acquire);
    entry.first().is_some_and(|word| word.load(Ordering::Relaxed) == sequence)
}

/// Whether the entry still has this sequence. A reader asks after it has set or cleared a hazard pointer.
pub(crate) fn is_unchanged(entry: &[AtomicU64], sequence: u64) -> bool {
    // Pairs with the fence in `changed`.
    fence(Ordering::SeqCst);
    entry.first().is_some_and(|word| word.load(Ordering::Relaxed) == sequence)
}

/// Whether a second entry still has this sequence. Call it after [`is_unchanged`] of the first, whose fence it relies
/// on.
pub(crate) fn is_at(entry: &[AtomicU64], sequence: u64) -> bool {
    entry.first().is_some_and(|word| word.load(Ordering::Relaxed) == sequence)
}

/// The fence between a change of entries and the search for hazard pointers. The writer calls it.
pub(crate) fn changed() {
    fence(Ordering::SeqCst);
}
