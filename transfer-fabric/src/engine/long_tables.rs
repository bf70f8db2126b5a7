//! Long tables of pushes, read over several rounds of the engine. A bundle of 100,000 tensors has a table of some MiB; read at
//! once it would hold up every other worker and peer. One push is read at a time, so that the memory for it is bounded.

use super::memory::Memory;
use transfer_core::memory::LocalSlice;
use transfer_core::op::{OpId, Push};
use transfer_core::protocol::SessionId;
use transfer_core::wire::bundle::InvalidBundle;
use transfer_core::wire::bundle_check::BundleCheck;
use transfer_core::wire::ranges::{ArenaRange, RANGE_BYTES, read_ranges};

/// The most ranges, and the most tensors of a bundle, that are read of a push in one round.
pub(super) const ENTRIES: usize = 4096;

/// The most bytes that are copied out of an arena in one round.
const BYTES_PER_ROUND: usize = 1 << 20;

/// A push with a long table.
pub(super) struct LongRead {
    pub(super) session: SessionId,
    pub(super) op: OpId,
    pub(super) push: Push,
    /// Where the table of its ranges lies, if it has one.
    pub(super) table: Option<LocalSlice>,
    /// Where the table of its bundle lies, if it is one.
    pub(super) bundle: Option<LocalSlice>,
    /// What is read of it.
    pub(super) ranges: Vec<ArenaRange>,
    pub(super) error: Option<InvalidBundle>,
    bytes: Vec<u8>,
    check: Option<BundleCheck<Vec<u8>>>,
}

impl LongRead {
    pub(super) fn new(
        session: SessionId,
        (op, push): (OpId, Push),
        table: Option<LocalSlice>,
        bundle: Option<LocalSlice>,
    ) -> LongRead {
        let (ranges, bytes) = (Vec::new(), Vec::new());
        LongRead { session, op, push, table, bundle, ranges, error: None, bytes, check: None }
    }

    /// Reads the next piece. Returns whether all is read. A table that does not lie within the arena is not read, and the
    /// node reports the error.
    pub(super) fn step(&mut self, memory: &Memory) -> bool {
        if let Some(table) = self.table {
            let from = (self.ranges.len() * RANGE_BYTES) as u64;
            let len = (table.len - from).min(BYTES_PER_ROUND as u64);
            self.bytes.resize(len as usize, 0);
            let next = LocalSlice { offset: table.offset.saturating_add(from), len, ..table };
            if !copy_out(next, &mut self.bytes, memory) {
                return true;
            }
            self.ranges.extend(read_ranges(&self.bytes));
            if from + len == table.len {
                (self.table, self.bytes) = (None, Vec::new());
            }
            return self.table.is_none() && self.bundle.is_none();
        }
        let Some(bundle) = self.bundle else { return true };
        let Some(check) = &mut self.check else { return self.copy_bundle(bundle, memory) };
        match check.step(ENTRIES) {
            Ok(is_done) => is_done,
            Err(error) => {
                self.error = Some(error);
                true
            }
        }
    }

    /// Copies the next piece of the bundle's table. Returns `true` if there is nothing to check.
    fn copy_bundle(&mut self, bundle: LocalSlice, memory: &Memory) -> bool {
        let (from, len) = (self.bytes.len(), (bundle.len - self.bytes.len() as u64).min(BYTES_PER_ROUND as u64));
        self.bytes.resize(from + len as usize, 0);
        let next = LocalSlice { offset: bundle.offset.saturating_add(from as u64), len, ..bundle };
        if !copy_out(next, &mut self.bytes[from..], memory) {
            return true;
        }
        if (self.bytes.len() as u64) < bundle.len {
            return false;
        }
        let body_len = self.push.meta.len_bytes() - self.push.meta.body_offset();
        match BundleCheck::new(std::mem::take(&mut self.bytes), body_len) {
            Ok(check) => self.check = Some(check),
            Err(error) => self.error = Some(error),
        }
        self.error.is_some()
    }
}

/// Whether a push has so many ranges, or metadata of a bundle so long, that it is read over several rounds.
pub(super) fn is_long(push: &Push, bundle: Option<LocalSlice>) -> bool {
    push.ranges as usize > ENTRIES || bundle.is_some_and(|bundle| bundle.len > BYTES_PER_ROUND as u64)
}

/// Copies a range of an arena. Returns `false` if it does not lie within the arena.
pub(super) fn copy_out(slice: LocalSlice, bytes: &mut [u8], memory: &Memory) -> bool {
    memory.get(slice.segment).is_some_and(|arena| arena.mapping().copy_out(slice.offset, bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::super::listing::SegmentRole;
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
    use transfer_core::memory::SegmentId;
    use transfer_core::tensor::{DType, Key, TensorMeta, TensorName};
    use transfer_core::wire::bundle::BundleTable;
    use transfer_core::wire::ranges::{table_bytes, write_range};
    use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

    const ARENA: SegmentId = SegmentId(7);
    const TENSORS: u32 = 100_000;

    fn arena(bytes: &[u8]) -> Memory {
        let len = (bytes.len() as u64).next_multiple_of(4096);
        let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
        let segment = Segment::create("arena", &options, &PinnedBudget::new(len)).unwrap();
        segment.mapping().copy_in(0, bytes).unwrap();
        let mut memory = Memory::default();
        memory.insert(ARENA, Arc::new(segment), SegmentRole::Counters);
        memory
    }

    /// A push of a bundle of 100,000 tensors in as many ranges, and what lies in the arena for it.
    fn example() -> (LongRead, Vec<u8>) {
        let meta = TensorMeta::of(DType::U8, &[64]).unwrap();
        let names = (0..TENSORS).map(|n| TensorName::new(&format!("layers.{n}.weight")).unwrap());
        let table = BundleTable::new(names.map(|name| (name, meta.clone())).collect()).unwrap();
        let mut bytes = table.to_bytes();
        let metadata = bytes.len() as u32;
        let meta = TensorMeta::of(DType::U8, &[table.body_len()]).unwrap().with_metadata(metadata).unwrap();
        bytes.resize(meta.body_offset() as usize, 0);
        for n in 0..TENSORS {
            write_range(&mut bytes, ArenaRange { offset: u64::from(n) * 64, len: 64 });
        }
        let push = Push { timeout: Duration::ZERO, ranges: TENSORS, ..Push::new(Key::new("k").unwrap(), meta, 0) };
        let slice = |offset, len| Some(LocalSlice { segment: ARENA, offset, len });
        let ranges = slice(push.meta.body_offset(), table_bytes(TENSORS));
        let bundle = slice(0, metadata.into());
        (LongRead::new(SessionId(1), (OpId(1), push), ranges, bundle), bytes)
    }

    // Promise: long-tables
    #[test]
    fn long_tables_are_read_in_bounded_pieces() {
        let (mut read, bytes) = example();
        assert!(is_long(&read.push, None));
        read.push.ranges = 0;
        // Whatever it says of the number of its tensors.
        assert!(is_long(&read.push, read.bundle) && !is_long(&read.push, None));
        let memory = arena(&bytes);
        let mut steps = 1;
        while !read.step(&memory) {
            steps += 1;
            assert!(read.bytes.len() <= read.bundle.unwrap().len as usize);
        }
        assert!(read.error.is_none() && read.ranges.len() == TENSORS as usize);
        assert_eq!(read.ranges.last().map(|range| range.offset), Some(u64::from(TENSORS - 1) * 64));
        let copies = bytes.len().div_ceil(BYTES_PER_ROUND);
        assert!(steps >= copies + TENSORS as usize / ENTRIES, "{steps} steps, and {copies} MiB to copy");
    }

    // Promise: long-tables
    #[test]
    fn wrong_long_tables_are_refused() {
        let result = |change: &dyn Fn(&mut Vec<u8>)| {
            let (mut read, mut bytes) = example();
            change(&mut bytes);
            let memory = arena(&bytes);
            while !read.step(&memory) {}
            (read.ranges.len(), read.error.map(|e| e.to_string()).unwrap_or_default())
        };
        let all = TENSORS as usize;
        assert_eq!(result(&|_| ()), (all, String::new()));
        let (_, says) = result(&|bytes| bytes[4] = 9);
        assert!(says.contains("layout"), "{says}");
        let (_, says) = result(&|bytes| bytes[8] = 1);
        assert!(says.contains("at most 131072"), "{says}");
        // The last name becomes the first but one.
        let (_, says) = result(&|bytes| {
            let last = bytes.windows(6).rposition(|text| text == b"99999.").unwrap();
            bytes[last..last + 6].copy_from_slice(b"99998.");
        });
        assert!(says.contains("\"layers.99998.weight\" twice"), "{says}");
        // The arena ends in the middle of the table.
        let (ranges, _) = result(&|bytes| bytes.truncate(bytes.len() - 8192));
        assert!(ranges < all, "{ranges}");
    }
}
