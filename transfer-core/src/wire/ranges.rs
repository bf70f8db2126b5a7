//! The table of a body that lies in several ranges of a worker's arena.
//!
//! A record batch has a hundred buffers, each where its column was built. They are pushed as they lie: the ring's record says how
//! many ranges there are, and a table behind the metadata says where. The sidecar copies the table out before it looks at it, and
//! holds it against the arena. A reader on the same node does the same with the owner's table; at another node the ranges have
//! landed as one, and there is no table.

use crate::memory::{LocalSlice, SegmentId};

/// The most ranges that one body is made of. A table of so many is copied out in a few microseconds, on the data plane's thread.
pub const MAX_RANGES: u32 = 4096;

/// The bytes of one entry: offset u64, length u64.
pub const RANGE_BYTES: usize = 16;

/// A range of the arena that the table lies in, in bytes from the arena's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaRange {
    /// Where it starts.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

impl ArenaRange {
    /// Where it ends. `None` where that is no number.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }

    /// The same range of that segment.
    #[must_use]
    pub fn within(&self, segment: SegmentId) -> LocalSlice {
        LocalSlice { segment, offset: self.offset, len: self.len }
    }
}

/// The length of a table of so many ranges.
#[must_use]
pub const fn table_bytes(ranges: u32) -> u64 {
    ranges as u64 * RANGE_BYTES as u64
}

/// Appends an entry.
pub fn write_range(table: &mut Vec<u8>, range: ArenaRange) {
    table.extend_from_slice(&range.offset.to_le_bytes());
    table.extend_from_slice(&range.len.to_le_bytes());
}

/// The entries of a table. What they say is to be held against the arena.
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
    fn a_table_reads_back_and_a_cut_entry_is_none() {
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
