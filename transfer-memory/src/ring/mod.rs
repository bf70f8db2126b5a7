//! Rings of byte records in shared memory: one producer, one consumer, each in a process that does not trust the other.
//!
//! # Memory
//! A ring is a header of [`HEADER_BYTES`] and `capacity` bytes of data. Everything starts as zeros, as a fresh segment
//! is.
//!
//! | offset | field | written by |
//! |---|---|---|
//! | 0 | `tail`: u64, bytes ever published | producer |
//! | 128 | `head`: u64, bytes ever consumed | consumer |
//! | 256 | `consumer_sleeps`: u32, not 0: wake me when you publish | consumer sets, either clears |
//! | 384 | `producer_sleeps`: u32, not 0: wake me when you consume | producer sets, either clears |
//! | 512 | data | producer |
//!
//! The indexes run freely and never wrap; a position in the data is the index modulo the capacity, a power of two. A
//! record is a u32 length and that many bytes, padded to 8. A record that does not fit before the end of the data is
//! at position 0; a length of [`u32::MAX`] takes its place and says so. The producer also goes back to position 0 when it is far
//! enough and the ring is empty, so that a session with few records under way does not touch all of the memory.
//!
//! # Trust
//! Each side keeps its own index in private memory, and only publishes it to the other side. The other side's index is
//! a hint that is checked before use. If a `tail` or `head` goes backwards or exceeds its limit, or if a record is
//! longer than allowed or than the published bytes, that is a [`RingError`], and ends the session. A record is copied
//! out into the consumer's own memory before it is examined.
//!
//! # Sleeping
//! A consumer that finds the ring empty sets `consumer_sleeps` before it sleeps, and a producer reads that flag after
//! it has published. No wake-up is lost, by Dekker's argument: the consumer *writes the flag, fences, reads the tail*;
//! the producer *writes the tail, fences, reads the flag*. Both fences are sequentially consistent, so one comes
//! first. If the consumer's does, the producer reads the flag and wakes the consumer. If the producer's does, the
//! consumer reads the new tail and does not sleep. `producer_sleeps` and `head` work in the same way with the roles
//! exchanged, for a producer that waits for room.

//!
//! # Proof
//! The crate `transfer-loom` compiles these files with the atomics of a model checker, and a ring so small that it is
//! full and wraps all the time (`cfg(loom)`). It replaces the memory of a ring, `region`.

mod consumer;
pub(crate) mod layout;
mod producer;
#[cfg(not(loom))]
mod region;

#[cfg(loom)]
use crate::region;
pub use consumer::Consumer;
pub use layout::RingRange;
pub use producer::Producer;

use crate::segment::MapError;

/// The longest record, in bytes.
pub const MAX_RECORD_BYTES: usize = if cfg!(loom) { 12 } else { 2048 };

/// The size of a ring's header, in bytes.
pub const HEADER_BYTES: u64 = 512;

/// The smallest capacity, in bytes. A record of the largest size fits into any empty ring of this capacity, whatever
/// its indexes are.
pub const MIN_CAPACITY: u32 = if cfg!(loom) { 32 } else { 8192 };

/// The largest capacity, in bytes.
pub const MAX_CAPACITY: u32 = 1 << 30;

/// Marks, in place of a length, that the record is at the start of the data.
const WRAP: u32 = u32::MAX;

/// The bytes that a record of `len` bytes occupies.
const fn entry_bytes(len: usize) -> u64 {
    (4 + len as u64).next_multiple_of(8)
}

const MAX_ENTRY_BYTES: u64 = entry_bytes(MAX_RECORD_BYTES);
const _: () = assert!(2 * MAX_ENTRY_BYTES <= MIN_CAPACITY as u64);

/// An error of a ring. [`RingError::TooLong`], [`RingError::BadRange`] and [`RingError::Map`] are the caller's own
/// mistakes. All others mean that the peer broke the rules; the session is then over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The record to be pushed is longer than [`MAX_RECORD_BYTES`].
    #[error("a ring record has at most {MAX_RECORD_BYTES} bytes, this one has {len}")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The range is no place for a ring.
    #[error(
        "a ring starts at a multiple of 128 and has a capacity that is a power of two from {MIN_CAPACITY} to \
         {MAX_CAPACITY}; \
         offset {} and capacity {} were given", .0.offset, .0.capacity
    )]
    BadRange(RingRange),
    /// The ring does not lie in its mapping.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The producer's index went backwards, beyond the capacity, or off the grid of 8 bytes.
    #[error("the peer's tail is {found}; from {known} on, it must be a multiple of 8 and at most {limit}")]
    AbsurdTail {
        /// The index that the peer published.
        found: u64,
        /// The last valid index that the peer had published.
        known: u64,
        /// The largest valid index.
        limit: u64,
    },
    /// The consumer's index went backwards, beyond what is published, or off the grid of 8 bytes.
    #[error("the peer's head is {found}; from {known} on, it must be a multiple of 8 and at most {limit}")]
    AbsurdHead {
        /// The index that the peer published.
        found: u64,
        /// The last valid index that the peer had published.
        known: u64,
        /// The largest valid index.
        limit: u64,
    },
    /// A record that is too long, or not wholly published, or crosses the end of the data.
    #[error("the peer's record at index {index} has a length of {len} bytes; at most {limit} are possible there")]
    AbsurdRecord {
        /// Where it starts.
        index: u64,
        /// The length it claims, in bytes.
        len: u32,
        /// The longest that could be there, in bytes.
        limit: u64,
    },
    /// A wrap marker at the start of the data, or one that skips more than is published.
    #[error(
        "the peer's wrap marker at index {index} would skip {skipped} bytes; \
         none is at the start of the data, and none skips more than is published"
    )]
    AbsurdWrap {
        /// The index of the marker.
        index: u64,
        /// The bytes up to the end of the data.
        skipped: u64,
    },
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
