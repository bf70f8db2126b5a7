//! The table of a body that consists of several ranges of a worker's arena.
//!
//! A record batch may have a hundred buffers, each in the place where its column was built. They are pushed without
//! being moved: the ring's record has the number of ranges, and a table behind the metadata has their positions. The
//! sidecar copies the table out before it reads it, and checks it against the arena. A reader on the same node does the
//! same with the owner's table. On another node the ranges have landed as one, and there is no table.

use crate::memory::{LocalSlice, SegmentId};

/// The largest number of ranges of one body: one for each tensor of the largest [bundle](super::bundle::MAX_TENSORS). A
/// table of that size has 2 MiB, which the data plane's thread copies out in pieces.
pub const MAX_RANGES: u32 = 131_072;

/// The length of one entry in bytes: offset u64, length u64.
pub const RANGE_BYTES: usize = 16;

/// A range of the arena that contains the table. Numbers are in bytes from the arena's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaRange {
    /// The start of the range.
    pub offset: u64,
    /// The length of the range.
    pub len: u64,
}

impl ArenaRange {
    /// Returns the end of the range, or `None` on overflow.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }

    /// Returns this range as a slice of `segment`.
    #[must_use]
    pub fn within(&self, segment: SegmentId) -> LocalSlice {
        LocalSlice { segment, offset: self.offset, len: self.len }
    }
}

/// Returns the length in bytes of a table with this number of ranges.
#[must_use]
pub const fn table_bytes(ranges: u32) -> u64 {
    ranges as u64 * RANGE_BYTES as u64
}

/// Appends an entry to a table.
pub fn write_range(table: &mut Vec<u8>, range: ArenaRange) {
    table.extend_from_slice(&range.offset.to_le_bytes());
    table.extend_from_slice(&range.len.to_le_bytes());
}

/// Reads the entries of a table. The caller must check the ranges against the arena.
pub fn read_ranges(table: &[u8]) -> impl ExactSizeIterator<Item = ArenaRange> + '_ {
    let (entries, _) = table.as_chunks::<RANGE_BYTES>();
    entries.iter().map(|entry| {
        let (offset, len) = entry.split_at(RANGE_BYTES / 2);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        ArenaRange { offset: number(offset), len: number(len) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_table_reads_back_and_drops_a_cut_entry() {
        let ranges =
            [(0, 0), (64, u64::MAX), (0x0102_0304_0506_0708, 1)].map(|(offset, len)| ArenaRange { offset, len });
        let mut table = Vec::new();
        ranges.iter().for_each(|range| write_range(&mut table, *range));
        assert_eq!(table.len() as u64, table_bytes(3));
        assert_eq!(read_ranges(&table).collect::<Vec<_>>(), ranges);
        assert_eq!(read_ranges(&table[..47]).len(), 2);
        assert_eq!((ranges[1].end(), ranges[2].end()), (None, Some(0x0102_0304_0506_0709)));
    }
}
