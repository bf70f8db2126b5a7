//! The side that writes records.

use super::region::Region;
use super::{MAX_RECORD_BYTES, RingError, RingRange, WRAP, entry_bytes};
use crate::segment::Mapping;
use crate::sync::{Ordering, fence};
use std::sync::Arc;

/// Behind this part of the data, a ring that is empty goes on at its start. So the rest of its memory is touched only by bursts that do
/// not fit into this part.
const EARLY: (u64, u64) = (3, 8);
/// The part of the data between two looks whether it is empty. A look reads what the consumer writes.
const BETWEEN_LOOKS: (u64, u64) = (1, 16);

/// The writing end of a ring.
///
/// [`try_push`](Producer::try_push) any number of records, [`publish`](Producer::publish) them together, and ring the
/// consumer's doorbell if [`should_wake`](Producer::should_wake) returns true. If a record does not fit: publish, then
/// either try later or [`prepare_wait`](Producer::prepare_wait), and sleep until the consumer rings.
#[derive(Debug)]
pub struct Producer {
    region: Region,
    /// Bytes ever written. This side trusts only its own count.
    tail: u64,
    /// Bytes ever published, as the consumer sees them.
    published: u64,
    /// The last valid head that the consumer published.
    head: u64,
    /// The position from which on it looks whether the ring is empty; see [`EARLY`].
    look_at: u64,
}

const fn of((n, m): (u64, u64), capacity: u64) -> u64 {
    capacity / m * n
}

impl Producer {
    /// Makes the writing end of the ring at `range` of `mapping`, which has not been used yet.
    ///
    /// # Errors
    /// [`RingError::BadRange`], [`RingError::Map`] where the range is not in the mapping or the mapping is read-only.
    pub fn new(mapping: Arc<Mapping>, range: RingRange) -> Result<Producer, RingError> {
        let region = Region::new(mapping, range)?;
        let look_at = of(EARLY, region.capacity());
        Ok(Producer { region, tail: 0, published: 0, head: 0, look_at })
    }

    /// Writes a record, which the consumer sees after the next [`Producer::publish`]. Returns `false` if there is no
    /// room for it now.
    ///
    /// # Errors
    /// [`RingError::TooLong`], [`RingError::AbsurdHead`].
    pub fn try_push(&mut self, record: &[u8]) -> Result<bool, RingError> {
        let Some(len) = u32::try_from(record.len()).ok().filter(|n| *n as usize <= MAX_RECORD_BYTES) else {
            return Err(RingError::TooLong { len: record.len() });
        };
        let position = self.region.capacity() - self.region.bytes_to_end(self.tail);
        if position == 0 {
            self.look_at = of(EARLY, self.region.capacity());
        }
        if position >= self.look_at {
            self.look_at = position + of(BETWEEN_LOOKS, self.region.capacity());
            self.refresh_head()?;
            if self.head == self.tail && entry_bytes(record.len()) <= position {
                self.wrap();
            }
        }
        if !self.has_room(record.len()) {
            self.refresh_head()?;
            if !self.has_room(record.len()) {
                return Ok(false);
            }
        }
        if entry_bytes(record.len()) > self.region.bytes_to_end(self.tail) {
            self.wrap();
        }
        self.region.length_at(self.tail).store(len, Ordering::Relaxed);
        self.region.write_body(self.tail, record);
        self.tail += entry_bytes(record.len());
        Ok(true)
    }

    /// Shows the consumer everything that was pushed.
    pub fn publish(&mut self) {
        self.published = self.tail;
        // Release: a reader of this tail sees the records before it.
        self.region.header().tail.0.store(self.tail, Ordering::Release);
    }

    /// Whether the consumer sleeps and must be woken. Call it after each [`Producer::publish`]; it returns true once
    /// for each sleep.
    #[must_use]
    pub fn should_wake(&self) -> bool {
        let flag = &self.region.header().consumer_sleeps.0;
        // Pairs with the fence in `Consumer::prepare_sleep`.
        fence(Ordering::SeqCst);
        // Any value but 0 asks: a consumer that writes nonsense there is woken too often rather than never.
        let asks = flag.load(Ordering::Relaxed);
        asks != 0 && flag.compare_exchange(asks, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Publishes, and announces that this side will sleep until there is room for a record of `len` bytes. Returns
    /// `false` if there is room by now: do not sleep. After the sleep, or instead of it, push again.
    ///
    /// # Errors
    /// [`RingError::TooLong`], [`RingError::AbsurdHead`].
    pub fn prepare_wait(&mut self, len: usize) -> Result<bool, RingError> {
        if len > MAX_RECORD_BYTES {
            return Err(RingError::TooLong { len });
        }
        self.publish();
        self.region.header().producer_sleeps.0.store(1, Ordering::Relaxed);
        // Pairs with the fence in `Consumer::should_wake`.
        fence(Ordering::SeqCst);
        self.refresh_head()?;
        let full = !self.has_room(len);
        if !full {
            self.region.header().producer_sleeps.0.store(0, Ordering::Relaxed);
        }
        Ok(full)
    }

    /// Goes on at the start of the data. The caller has checked that there is room for the rest of it, and for what follows.
    fn wrap(&mut self) {
        self.region.length_at(self.tail).store(WRAP, Ordering::Relaxed);
        self.tail += self.region.bytes_to_end(self.tail);
        self.look_at = of(EARLY, self.region.capacity());
    }

    fn has_room(&self, len: usize) -> bool {
        let to_end = self.region.bytes_to_end(self.tail);
        let entry = entry_bytes(len);
        let needed = if entry > to_end { to_end + entry } else { entry };
        needed <= self.region.capacity() - (self.tail - self.head)
    }

    fn refresh_head(&mut self) -> Result<(), RingError> {
        // Acquire: the consumer's reads of the room that it gave back come before this side's writes there.
        let found = self.region.header().head.0.load(Ordering::Acquire);
        if found < self.head || found > self.published || !found.is_multiple_of(8) {
            return Err(RingError::AbsurdHead { found, known: self.head, limit: self.published });
        }
        self.head = found;
        Ok(())
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn region(&self) -> &Region {
        &self.region
    }
}
