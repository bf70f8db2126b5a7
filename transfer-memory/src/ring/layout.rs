//! The place of a ring in a mapping, and the header that its two sides share.

use super::{HEADER_BYTES, MAX_CAPACITY, MIN_CAPACITY};
use crate::sync::{AtomicU32, AtomicU64};

/// The place of a ring in a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingRange {
    /// The start of its header, in bytes from the mapping's start; a multiple of 128.
    pub offset: u64,
    /// The size of its data in bytes; a power of two from [`MIN_CAPACITY`] to [`MAX_CAPACITY`].
    pub capacity: u32,
}

impl RingRange {
    /// The size in bytes, header included.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        HEADER_BYTES + u64::from(self.capacity)
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.offset.is_multiple_of(128)
            && self.capacity.is_power_of_two()
            && (MIN_CAPACITY..=MAX_CAPACITY).contains(&self.capacity)
    }
}

/// A field alone in the two cache lines that prefetchers fetch together.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub(crate) T);

/// The header that the two sides share; `super` describes it.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) tail: Line<AtomicU64>,
    pub(crate) head: Line<AtomicU64>,
    pub(crate) consumer_sleeps: Line<AtomicU32>,
    pub(crate) producer_sleeps: Line<AtomicU32>,
}
