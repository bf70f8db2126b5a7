//! The memory of a ring, in a form that loom can observe; the real one is `transfer-memory/src/ring/region.rs`.

use crate::ring::{RingError, RingRange, layout::Header};
use crate::segment::Mapping;
use crate::sync::{AtomicU32, Ordering};
use std::sync::Arc;

/// A header, and the data in words of 4 bytes. Records begin at multiples of 8, so a length occupies one word.
#[derive(Debug)]
pub struct Memory {
    header: Header,
    words: Vec<AtomicU32>,
}

impl Memory {
    /// Makes memory of zeros, like a fresh segment.
    #[must_use]
    pub fn new(capacity: u32) -> Memory {
        Memory { header: Header::default(), words: (0..capacity / 4).map(|_| AtomicU32::new(0)).collect() }
    }
}

#[derive(Debug)]
pub(crate) struct Region {
    memory: Arc<Memory>,
    capacity: u64,
}

impl Region {
    pub(crate) fn new(mapping: Arc<Mapping>, range: RingRange) -> Result<Region, RingError> {
        if !range.is_valid() {
            return Err(RingError::BadRange(range));
        }
        Ok(Region { memory: mapping.0.clone(), capacity: range.capacity.into() })
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn header(&self) -> &Header {
        &self.memory.header
    }

    pub(crate) fn bytes_to_end(&self, index: u64) -> u64 {
        self.capacity - self.position(index)
    }

    fn position(&self, index: u64) -> u64 {
        index & (self.capacity - 1)
    }

    pub(crate) fn length_at(&self, index: u64) -> &AtomicU32 {
        &self.memory.words[self.position(index) as usize / 4]
    }

    pub(crate) fn write_body(&self, index: u64, record: &[u8]) {
        for (word, bytes) in self.body(index).zip(record.chunks(4)) {
            let mut four = [0; 4];
            four[..bytes.len()].copy_from_slice(bytes);
            word.store(u32::from_le_bytes(four), Ordering::Relaxed);
        }
    }

    pub(crate) fn read_body(&self, index: u64, to: &mut [u8]) {
        for (word, bytes) in self.body(index).zip(to.chunks_mut(4)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()[..bytes.len()]);
        }
    }

    fn body(&self, index: u64) -> impl Iterator<Item = &AtomicU32> {
        self.memory.words[self.position(index) as usize / 4 + 1..].iter()
    }
}
