//! The memory of a ring, without the protocol.

use super::layout::Header;
use super::{HEADER_BYTES, RingError, RingRange};
use crate::segment::{MapError, Mapping};
use crate::sync::AtomicU32;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The memory of one ring.
#[derive(Debug)]
pub(super) struct Region {
    header: NonNull<Header>,
    data: NonNull<u8>,
    capacity: u64,
    /// Keeps the memory mapped.
    _mapping: Arc<Mapping>,
}

// SAFETY: the pointers are into the mapping, which is Send and Sync and lives as long as the region.
unsafe impl Send for Region {}

const _: () = assert!(size_of::<Header>() as u64 == HEADER_BYTES);

impl Region {
    /// Takes the ring at `range` of `mapping`, which must be writable.
    pub(super) fn new(mapping: Arc<Mapping>, range: RingRange) -> Result<Region, RingError> {
        if !range.is_valid() {
            return Err(RingError::BadRange(range));
        }
        let base = mapping.writable_at(range.offset, range.len_bytes())?;
        let outside =
            MapError::OutOfBounds { offset: range.offset, len: range.len_bytes(), mapping_len: mapping.len() };
        let header = NonNull::new(base.cast::<Header>()).ok_or(outside)?;
        // SAFETY: base is valid for len_bytes(), so the data, HEADER_BYTES further on, is inside.
        let data = unsafe { header.cast::<u8>().add(HEADER_BYTES as usize) };
        Ok(Region { header, data, capacity: range.capacity.into(), _mapping: mapping })
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the pointer is valid for a Header while the mapping lives, and aligned to 128: the mapping starts at
        // a page and `new` checked the offset. All fields are atomics, for which every bit pattern is valid. The other
        // side, too, changes them only atomically; if it is hostile, it changes them to values that are checked.
        unsafe { self.header.as_ref() }
    }

    /// The bytes from the position of `index` to the end of the data.
    pub(super) fn bytes_to_end(&self, index: u64) -> u64 {
        self.capacity - self.position(index)
    }

    fn position(&self, index: u64) -> u64 {
        index & (self.capacity - 1)
    }

    /// The length field at `index`, a multiple of 8.
    pub(super) fn length_at(&self, index: u64) -> &AtomicU32 {
        debug_assert!(index.is_multiple_of(8));
        // SAFETY: the position is below the capacity and a multiple of 8, so 4 aligned bytes of data are there.
        // Atomic, because a hostile peer may write it at any time.
        unsafe { self.data.add(self.position(index) as usize).cast::<AtomicU32>().as_ref() }
    }

    /// Writes the body of the record at `index`. The caller has checked that the whole record ends before the end of
    /// the data.
    pub(super) fn write_body(&self, index: u64, record: &[u8]) {
        let at = self.position(index) + 4;
        assert!(at + record.len() as u64 <= self.capacity, "the producer's own arithmetic is wrong");
        // SAFETY: the range lies in the data (just checked). `record` is a reference into memory that is not this
        // ring's, since nothing hands out references to it.
        unsafe { ptr::copy_nonoverlapping(record.as_ptr(), self.data.add(at as usize).as_ptr(), record.len()) };
    }

    /// Copies out the body of the record at `index`. The caller has checked that the whole record ends before the end
    /// of the data.
    pub(super) fn read_body(&self, index: u64, to: &mut [u8]) {
        let at = self.position(index) + 4;
        assert!(at + to.len() as u64 <= self.capacity, "the consumer's own arithmetic is wrong");
        // SAFETY: the range lies in the data (just checked), and a unique reference cannot overlap it. A hostile peer
        // may write it meanwhile; then the copy is a mixture, which is checked like any other record.
        unsafe { ptr::copy_nonoverlapping(self.data.add(at as usize).as_ptr(), to.as_mut_ptr(), to.len()) };
    }
}
