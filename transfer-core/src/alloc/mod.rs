//! Sub-allocation of one region of memory, with every record outside of it.
//!
//! The region is pinned, shared or written by a remote device, so nothing in it can be trusted and nothing of ours may lie in it:
//! an [`Allocator`] knows only a length and hands out offsets. Allocations start at multiples of [`ALIGNMENT`] and are padded to
//! it.
//!
//! # How it works
//! One 24-byte record for each range, used or free, linked by address (`records`), so that a freed range melts into its
//! free neighbours at once. What fragments a region is small things that lie scattered between large ones, so the two are
//! treated apart. Long requests take nearly the shortest fitting long range, and its high end (`long`). Short requests take
//! short free ranges first, those at low addresses before others (`short`), so that the low end of the region stays dense;
//! where there is none they take the low end of a long range.
//!
//! Where short ends depends on the region: a 4096th of it, at most 1 MiB. A request fails only where no free range is long
//! enough.

mod long;
mod records;
mod short;
#[cfg(test)]
mod tests;

use crate::memory::{ALIGNMENT, padded};
use long::Long;
use records::{NONE, Records};
use short::Short;
use std::sync::atomic::{AtomicU32, Ordering};

/// A range is long from this fraction of the region on. Measured with the trace in the tests: 0.03 better than a 1024th where the
/// longest request is a 1024th of the region, 0.02 worse where it is a 64th.
const LONG_FRACTION: u64 = 4096;

/// An allocation or its return that was refused. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No free range is long enough now. With `free_bytes` of at least `len_bytes` it is for fragmentation.
    #[error("no room for {len_bytes} bytes: {free_bytes} are free, at most {largest_free} in one piece")]
    NoRoom {
        /// What was asked for.
        len_bytes: u64,
        /// What is free in all.
        free_bytes: u64,
        /// The longest free range.
        largest_free: u64,
    },
    /// The request is longer than the whole region: waiting will not help.
    #[error("{len_bytes} bytes do not fit into a region of {region_bytes}")]
    TooLong {
        /// What was asked for.
        len_bytes: u64,
        /// The region.
        region_bytes: u64,
    },
    /// There are 2^32 - 2 ranges already.
    #[error("the allocator's table of ranges is full")]
    TooManyRanges,
}

/// An allocation came back to an allocator that does not have it lent out. The allocation is in here, unharmed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the range at {} is not lent by this allocator", .0.offset())]
pub struct NotLent(pub Allocation);

/// A range lent by an [`Allocator`]. It cannot be copied, so it cannot be returned twice. Dropping it does not return it: the
/// range then stays used as long as the allocator lives.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a range that is dropped instead of returned stays used"]
pub struct Allocation {
    offset: u64,
    len: u64,
    record: u32,
    allocator: u32,
}

impl Allocation {
    /// Offset of the first byte from the region's start; a multiple of [`ALIGNMENT`].
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// The length that was asked for, in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was asked for. Such an allocation uses [`ALIGNMENT`] bytes, so that no two share an offset.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes it really uses: [`Allocation::len`] rounded up to [`ALIGNMENT`], and at least that.
    #[must_use]
    pub const fn padded_len(&self) -> u64 {
        let granules = self.len.div_ceil(ALIGNMENT);
        if granules == 0 { ALIGNMENT } else { granules * ALIGNMENT }
    }
}

/// A range of the region, as [`Allocator::iter`] lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte from the region's start.
    pub offset: u64,
    /// Length in bytes, padding included.
    pub len: u64,
    /// Whether it is free.
    pub free: bool,
}

/// Hands out ranges of one region. See the [module](self).
#[derive(Debug)]
pub struct Allocator {
    records: Records,
    long: Long,
    short: Short,
    /// A range is long from this many granules on.
    long_granules: u64,
    granules: u64,
    used: u64,
    count: u64,
    /// Tells this allocator's ranges from those of every other one in the process.
    id: u32,
}

impl Allocator {
    /// An allocator for a region of `len_bytes`, all free. A tail shorter than [`ALIGNMENT`] is never used.
    #[must_use]
    pub fn new(len_bytes: u64) -> Allocator {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let granules = len_bytes / ALIGNMENT;
        let mut allocator = Allocator {
            records: Records::new(granules),
            long: Long::new(granules),
            short: Short::new(granules),
            long_granules: (granules / LONG_FRACTION).clamp(1, short::SHORT_GRANULES),
            granules,
            used: 0,
            count: 0,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        if granules > 0 {
            allocator.list(Records::LOWEST);
        }
        allocator
    }

    /// Lends `len_bytes`. A length of zero uses [`ALIGNMENT`] bytes.
    ///
    /// # Errors
    /// [`AllocError::NoRoom`] may pass when something is freed; [`AllocError::TooLong`] never passes.
    pub fn allocate(&mut self, len_bytes: u64) -> Result<Allocation, AllocError> {
        let too_long = AllocError::TooLong { len_bytes, region_bytes: self.len_bytes() };
        let granules = padded(len_bytes).ok_or(too_long)?.max(ALIGNMENT) / ALIGNMENT;
        if granules > self.granules {
            return Err(too_long);
        }
        let Some(found) = self.find(granules) else {
            return Err(AllocError::NoRoom {
                len_bytes,
                free_bytes: self.free_bytes(),
                largest_free: self.largest_free(),
            });
        };
        let record = self.cut(found, granules)?;
        self.records.set_free(record, false);
        self.used += granules;
        self.count += 1;
        let offset = self.records.start(record) * ALIGNMENT;
        Ok(Allocation { offset, len: len_bytes, record, allocator: self.id })
    }

    fn find(&self, granules: u64) -> Option<u32> {
        if granules >= self.long_granules {
            return self.long.find(&self.records, granules);
        }
        let short = self.short.find(&self.records, granules);
        let any = short.or_else(|| self.long.find(&self.records, granules));
        any.or_else(|| self.short.find_unsure(&self.records, granules))
    }

    /// Puts a free range into its list.
    fn list(&mut self, id: u32) {
        if self.records.len(id) >= self.long_granules {
            self.long.insert(&mut self.records, id);
        } else {
            self.short.insert(&mut self.records, id);
        }
    }

    /// Takes a free range out of its list, before its start or length changes.
    fn unlist(&mut self, id: u32) {
        if self.records.len(id) >= self.long_granules {
            self.long.remove(&mut self.records, id);
        } else {
            self.short.remove(&mut self.records, id);
        }
    }

    /// Takes `granules` out of the free range `found`; the rest is listed again.
    fn cut(&mut self, found: u32, granules: u64) -> Result<u32, AllocError> {
        let from_high_end = granules >= self.long_granules;
        let len = self.records.len(found);
        self.unlist(found);
        if len == granules {
            return Ok(found);
        }
        let low_part = if from_high_end { len - granules } else { granules };
        let Some(upper) = self.records.split(found, low_part) else {
            self.list(found);
            return Err(AllocError::TooManyRanges);
        };
        let (taken, rest) = if from_high_end { (upper, found) } else { (found, upper) };
        self.list(rest);
        Ok(taken)
    }

    /// Takes a range back.
    ///
    /// # Errors
    /// [`NotLent`], with the allocation, where it came from another allocator.
    pub fn free(&mut self, allocation: Allocation) -> Result<(), NotLent> {
        let start = allocation.offset / ALIGNMENT;
        if allocation.allocator != self.id || !self.records.is_used_at(allocation.record, start) {
            return Err(NotLent(allocation));
        }
        let mut record = allocation.record;
        self.used -= self.records.len(record);
        self.count -= 1;
        self.records.set_free(record, true);
        let above = self.records.above(record);
        if above != NONE && self.records.is_free(above) {
            self.unlist(above);
            self.records.absorb_above(record);
        }
        let below = self.records.below(record);
        if below != NONE && self.records.is_free(below) {
            self.unlist(below);
            self.records.absorb_above(below);
            record = below;
        }
        self.list(record);
        Ok(())
    }

    /// Splits a range into neighbours of these lengths, each of which is returned alone. Padded, they must fill the range.
    ///
    /// # Errors
    /// [`NotLent`], with the allocation, where it came from another allocator, where the lengths are not those of its
    /// parts, and where the table of ranges is full.
    pub fn split(&mut self, allocation: Allocation, lens: &[u64]) -> Result<Vec<Allocation>, NotLent> {
        let granules = |len: &u64| Some(padded(*len)?.max(ALIGNMENT) / ALIGNMENT);
        let sum = lens.iter().try_fold(0_u64, |sum, len| sum.checked_add(granules(len)?));
        let start = allocation.offset / ALIGNMENT;
        let is_mine = allocation.allocator == self.id && self.records.is_used_at(allocation.record, start);
        if !is_mine || sum != Some(self.records.len(allocation.record)) || !self.records.has_room(lens.len()) {
            return Err(NotLent(allocation));
        }
        let mut record = allocation.record;
        let mut parts = Vec::with_capacity(lens.len());
        for (n, len) in lens.iter().enumerate() {
            let offset = self.records.start(record) * ALIGNMENT;
            parts.push(Allocation { offset, len: *len, record, allocator: self.id });
            if n + 1 < lens.len()
                && let Some(upper) = granules(len).and_then(|granules| self.records.split(record, granules))
            {
                self.records.set_free(upper, false);
                record = upper;
            }
        }
        self.count += lens.len() as u64 - 1;
        Ok(parts)
    }

    /// The region's usable length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.granules * ALIGNMENT
    }

    /// Bytes lent, padding included.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used * ALIGNMENT
    }

    /// Bytes not lent, in however many pieces.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        (self.granules - self.used) * ALIGNMENT
    }

    /// The longest allocation that would succeed now, in bytes.
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        self.long.longest(&self.records).max(self.short.longest(&self.records)) * ALIGNMENT
    }

    /// How many allocations are lent.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes of this process's own memory that the records take.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.records.table_bytes()
    }

    /// All ranges, used and free, in address order. Two free ones are never neighbours.
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        let first = (self.granules > 0).then_some(Records::LOWEST);
        std::iter::successors(first, |id| Some(self.records.above(*id)).filter(|above| *above != NONE)).map(|id| Span {
            offset: self.records.start(id) * ALIGNMENT,
            len: self.records.len(id) * ALIGNMENT,
            free: self.records.is_free(id),
        })
    }
}
