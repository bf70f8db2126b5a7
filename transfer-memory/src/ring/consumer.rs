//! The side that reads records.

use super::region::Region;
use super::{MAX_RECORD_BYTES, RingError, RingRange, WRAP, entry_bytes};
use crate::segment::Mapping;
use crate::sync::{Ordering, fence};
use std::sync::Arc;

/// The reading end of a ring.
///
/// Call [`try_pop`](Consumer::try_pop) until the ring is empty, and ring the producer's doorbell if
/// [`should_wake`](Consumer::should_wake) returns true. Then call [`prepare_sleep`](Consumer::prepare_sleep). If the
/// ring is still empty, sleep until the doorbell rings, and call [`awake`](Consumer::awake).
#[derive(Debug)]
pub struct Consumer {
    region: Region,
    /// Bytes ever consumed. This side trusts only its own count.
    head: u64,
    /// The last valid tail that the producer published.
    tail: u64,
}

impl Consumer {
    /// Makes the reading end of the ring at `range` of `mapping`, which has not been used yet.
    ///
    /// # Errors
    /// [`RingError::BadRange`], [`RingError::Map`] where the range is not in the mapping or the mapping is read-only.
    pub fn new(mapping: Arc<Mapping>, range: RingRange) -> Result<Consumer, RingError> {
        Ok(Consumer { region: Region::new(mapping, range)?, head: 0, tail: 0 })
    }

    /// Copies the next record into `buffer` and gives its room back to the producer. Returns `None` if there is no
    /// record.
    ///
    /// # Errors
    /// [`RingError::AbsurdTail`], [`RingError::AbsurdRecord`], [`RingError::AbsurdWrap`]: the producer broke the
    /// rules. Calling again gives an error again.
    pub fn try_pop<'b>(&mut self, buffer: &'b mut [u8; MAX_RECORD_BYTES]) -> Result<Option<&'b [u8]>, RingError> {
        // At most two rounds: a wrap marker is followed by position 0, where no wrap marker is accepted.
        loop {
            if self.head == self.tail {
                self.refresh_tail()?;
                if self.head == self.tail {
                    return Ok(None);
                }
            }
            let to_end = self.region.bytes_to_end(self.head);
            let available = (self.tail - self.head).min(to_end);
            let len = self.region.length_at(self.head).load(Ordering::Relaxed);
            if len == WRAP {
                if to_end == self.region.capacity() || to_end > self.tail - self.head {
                    return Err(RingError::AbsurdWrap { index: self.head, skipped: to_end });
                }
                self.head += to_end;
                continue;
            }
            let size = len as usize;
            if size > MAX_RECORD_BYTES || entry_bytes(size) > available {
                let limit = (available - 4).min(MAX_RECORD_BYTES as u64);
                return Err(RingError::AbsurdRecord { index: self.head, len, limit });
            }
            let record = &mut buffer[..size];
            self.region.read_body(self.head, record);
            self.head += entry_bytes(size);
            // Release: the copy above comes before the producer's next write there.
            self.region.header().head.0.store(self.head, Ordering::Release);
            return Ok(Some(record));
        }
    }

    /// Returns the number of bytes that were ever consumed.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.head
    }

    /// Returns the number of bytes that were ever published, by now.
    ///
    /// # Errors
    /// [`RingError::AbsurdTail`].
    pub fn published(&mut self) -> Result<u64, RingError> {
        self.refresh_tail()?;
        Ok(self.tail)
    }

    /// Announces that this side will sleep. Returns `true` if the ring is still empty: sleep until the producer rings.
    /// Returns `false` if a record has arrived: pop again.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        self.region.header().consumer_sleeps.0.store(1, Ordering::Relaxed);
        // Pairs with the fence in `Producer::should_wake`.
        fence(Ordering::SeqCst);
        // `try_pop` finds out whether the tail makes sense. Any tail other than the head keeps this side awake.
        let empty = self.region.header().tail.0.load(Ordering::Relaxed) == self.head;
        if !empty {
            self.awake();
        }
        empty
    }

    /// Withdraws the announcement of [`Consumer::prepare_sleep`].
    pub fn awake(&mut self) {
        self.region.header().consumer_sleeps.0.store(0, Ordering::Relaxed);
    }

    /// Whether the producer sleeps because the ring was full, and must be woken. Call it after popping records; it
    /// returns true once for each sleep.
    #[must_use]
    pub fn should_wake(&self) -> bool {
        let flag = &self.region.header().producer_sleeps.0;
        // Pairs with the fence in `Producer::prepare_wait`.
        fence(Ordering::SeqCst);
        // Any value but 0 asks: a producer that writes nonsense there is woken too often rather than never.
        let asks = flag.load(Ordering::Relaxed);
        asks != 0 && flag.compare_exchange(asks, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn refresh_tail(&mut self) -> Result<(), RingError> {
        // Acquire: the records before this tail are read after it.
        let found = self.region.header().tail.0.load(Ordering::Acquire);
        let limit = self.head + self.region.capacity();
        if found < self.tail || found > limit || !found.is_multiple_of(8) {
            return Err(RingError::AbsurdTail { found, known: self.tail, limit });
        }
        self.tail = found;
        Ok(())
    }
}
