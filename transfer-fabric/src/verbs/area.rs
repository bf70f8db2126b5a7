//! A link's own registered memory. It holds messages before they leave and after they have come, and the results of
//! atomic operations.

use super::{MAX_MESSAGE_BYTES, device_error};
use std::sync::Arc;
use transfer_core::fabric::FabricError;
use transfer_memory::segment::{Lock, Mapping, Pages, PinnedBudget, Segment, SegmentOptions};
use transfer_verbs::{Access, DeviceMemory, Element, MemoryRegion, ProtectionDomain};

const WORD: u64 = 8;

/// The most atomic operations of a link in flight.
pub(super) const WORDS: u16 = 64;

/// A whole segment as memory for a device.
pub(super) struct SegmentMemory(pub(super) Arc<Segment>);

// SAFETY: the segment's mapping is one mapping of that many bytes. It is readable, and writable if it says so, and is
// unmapped only when the segment is dropped, which this value prevents. Neither changes. References to its bytes are
// formed only where its users promise that no one writes them (`Mapping::as_bytes`).
unsafe impl DeviceMemory for SegmentMemory {
    fn range(&self) -> (*mut u8, usize) {
        let mapping = self.0.mapping();
        // The range is the whole mapping, so it cannot be out of bounds.
        (mapping.ptr_at(0, mapping.len()).unwrap_or(std::ptr::null_mut()), mapping.len() as usize)
    }

    fn writable(&self) -> bool {
        self.0.mapping().access() == transfer_memory::segment::Access::ReadWrite
    }
}

/// The receive slots, then the send slots, then the words.
pub(super) struct Area {
    mapping: Arc<Mapping>,
    region: MemoryRegion,
    receives: u32,
    sends: u32,
    free_sends: Vec<u32>,
    free_words: Vec<u16>,
}

impl Area {
    /// Returns the size of an area in bytes.
    pub(super) fn len_bytes(receives: u32, sends: u32) -> u64 {
        let slots = u64::from(receives) + u64::from(sends);
        (slots * MAX_MESSAGE_BYTES as u64 + u64::from(WORDS) * WORD).next_multiple_of(4096)
    }

    pub(super) fn new(domain: &ProtectionDomain, receives: u32, sends: u32) -> Result<Area, FabricError> {
        let len = Area::len_bytes(receives, sends);
        // The fabric counts registered memory, and the registration pins it.
        let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
        let segment = Segment::create("verbs link", &options, &PinnedBudget::new(len));
        let segment = Arc::new(segment.map_err(device_error("making memory for a link"))?);
        let mapping = segment.mapping().clone();
        let access = Access { local_write: true, ..Access::default() };
        let region = MemoryRegion::register(domain, Arc::new(SegmentMemory(segment)), access);
        let region = region.map_err(device_error("registering memory for a link"))?;
        let free_words = (0..WORDS).rev().collect();
        Ok(Area { mapping, region, receives, sends, free_sends: (0..sends).rev().collect(), free_words })
    }

    fn send_offset(&self, slot: u32) -> u64 {
        (u64::from(self.receives) + u64::from(slot)) * MAX_MESSAGE_BYTES as u64
    }

    fn word_offset(&self, word: u16) -> u64 {
        (u64::from(self.receives) + u64::from(self.sends)) * MAX_MESSAGE_BYTES as u64 + u64::from(word) * WORD
    }

    fn element(&self, offset: u64, len: usize) -> Option<Element> {
        self.region.element(offset as usize, len)
    }

    /// Returns the slot into which the device puts a message.
    pub(super) fn receive_slot(&self, slot: u32) -> Option<Element> {
        if slot >= self.receives {
            return None;
        }
        self.element(u64::from(slot) * MAX_MESSAGE_BYTES as u64, MAX_MESSAGE_BYTES)
    }

    /// Returns the message in a slot, which must not have been posted again.
    pub(super) fn received(&self, slot: u32, len: u32) -> Option<&[u8]> {
        if slot >= self.receives || len as usize > MAX_MESSAGE_BYTES {
            return None;
        }
        // SAFETY: this memory is mapped nowhere else, and only receives write to a receive slot. The device writes to
        // a slot only while its receive is posted, and this one has completed. The slot is posted again by a caller
        // that has `self` mutably, when the slice is gone.
        unsafe { self.mapping.as_bytes(u64::from(slot) * MAX_MESSAGE_BYTES as u64, len.into()) }.ok()
    }

    /// Copies a message into a free send slot. Returns `None` if there is no free slot, or if the message is too long.
    pub(super) fn store(&mut self, message: &[u8]) -> Option<(u32, Element)> {
        let slot = *self.free_sends.last()?;
        let offset = self.send_offset(slot);
        let element = self.element(offset, message.len()).filter(|_| message.len() <= MAX_MESSAGE_BYTES)?;
        self.mapping.copy_in(offset, message).ok()?;
        self.free_sends.pop();
        Some((slot, element))
    }

    /// Frees the slot of a message that has left.
    pub(super) fn free_send(&mut self, slot: u32) {
        self.free_sends.push(slot);
    }

    /// Takes a word for a result. Returns `None` if all words are in use.
    pub(super) fn take_word(&mut self) -> Option<(u16, Element)> {
        let word = self.free_words.pop()?;
        let element = self.element(self.word_offset(word), WORD as usize)?;
        Some((word, element))
    }

    /// Reads a result, and frees its word.
    pub(super) fn free_word(&mut self, word: u16) -> u64 {
        let mut bytes = [0; WORD as usize];
        // The word lies inside the area.
        let _ = self.mapping.copy_out(self.word_offset(word), &mut bytes);
        self.free_words.push(word);
        u64::from_ne_bytes(bytes)
    }
}
