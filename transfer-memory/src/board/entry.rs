//! One entry: a sequence and a body, written by one and read by many that do not wait.
//!
//! All words are atomics, so that a reader that comes in between reads old and new ones and nothing worse; it finds that out by the
//! sequence, and takes nothing of it.

use crate::sync::{AtomicU64, Ordering, fence};

/// Writes an entry's body, or the beginning of it. There is one writer.
pub(crate) fn write(entry: &[AtomicU64], body: &[u64]) {
    open(entry);
    close(entry, body);
}

/// Nobody finds what stands there, from here until [`close`]. What is open already stays so.
pub(crate) fn open(entry: &[AtomicU64]) {
    let Some(sequence) = entry.first() else { return };
    let before = sequence.load(Ordering::Relaxed);
    sequence.store(before | 1, Ordering::Relaxed);
    // Who reads a word that is written from here on finds the odd sequence.
    fence(Ordering::Release);
}

/// Writes the body of an entry that is open, or the beginning of it, and shows it.
pub(crate) fn close(entry: &[AtomicU64], body: &[u64]) {
    let Some((sequence, words)) = entry.split_first() else { return };
    for (word, value) in words.iter().zip(body) {
        word.store(*value, Ordering::Relaxed);
    }
    let before = sequence.load(Ordering::Relaxed);
    // Release: who reads this sequence reads these words, and the tensor's bytes that they name.
    sequence.store(before.wrapping_add(1), Ordering::Release);
}

/// The sequence of an entry that is not being written.
pub(crate) fn begin(entry: &[AtomicU64]) -> Option<u64> {
    let sequence = entry.first()?.load(Ordering::Acquire);
    sequence.is_multiple_of(2).then_some(sequence)
}

/// A word of the body. Whether it belongs to the others, [`is_whole`] says.
pub(crate) fn word(entry: &[AtomicU64], at: usize) -> u64 {
    entry.get(at + 1).map_or(0, |word| word.load(Ordering::Relaxed))
}

/// Whether all words that were read since [`begin`] belong together.
pub(crate) fn is_whole(entry: &[AtomicU64], sequence: u64) -> bool {
    fence(Ordering::Acquire);
    entry.first().is_some_and(|word| word.load(Ordering::Relaxed) == sequence)
}

/// Whether the entry is as it was, asked by a reader after it has marked what it found there, or has cleared its mark.
pub(crate) fn is_unchanged(entry: &[AtomicU64], sequence: u64) -> bool {
    // Pairs with the one in `changed`.
    fence(Ordering::SeqCst);
    entry.first().is_some_and(|word| word.load(Ordering::Relaxed) == sequence)
}

/// The same of a second entry, asked behind [`is_unchanged`] of the first.
pub(crate) fn is_at(entry: &[AtomicU64], sequence: u64) -> bool {
    entry.first().is_some_and(|word| word.load(Ordering::Relaxed) == sequence)
}

/// To be called by the writer after it has changed entries, before it looks for marks.
pub(crate) fn changed() {
    fence(Ordering::SeqCst);
}
