//! The bundles of a committed attempt: which blocks of which partition are where.
//!
//! An attempt is one bundle, or several if it has more blocks than fit into one. The blocks are numbered in the order of
//! their partitions, and lie in this order one behind the other, [`BLOCKS_PER_BUNDLE`] in each bundle. The first bundle
//! begins with two more tensors: the schema, and for each partition the number of its first block, with the number of
//! all blocks at the end.

use super::record::u32_at;
use transfer_core::memory::padded;
use transfer_core::tensor::BodyRange;
use transfer_core::wire::bundle::BundleTable;

/// The most blocks in one bundle. With the zeros behind each they are less than the ranges that one push may have.
pub(super) const BLOCKS_PER_BUNDLE: u32 = 2000;

/// The tensors of the first bundle that are no blocks.
pub(super) const HEADS: [&str; 2] = ["schema", "blocks"];

/// The number of the first block of each partition, and of all blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Starts(Vec<u32>);

impl Starts {
    pub(super) fn of(blocks: impl IntoIterator<Item = usize>) -> Starts {
        let mut starts = vec![0_u32];
        for count in blocks {
            let last = starts.last().copied().unwrap_or(0);
            starts.push(last.saturating_add(u32::try_from(count).unwrap_or(u32::MAX)));
        }
        Starts(starts)
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|start| start.to_le_bytes()).collect()
    }

    /// Reads what another worker wrote for this many partitions.
    pub(super) fn read(bytes: &[u8], partitions: u32) -> Option<Starts> {
        if bytes.len() != (partitions as usize + 1) * 4 {
            return None;
        }
        let starts: Vec<_> = (0..=partitions as usize).map(|at| u32_at(bytes, at * 4)).collect();
        (starts.is_sorted() && starts[0] == 0).then_some(Starts(starts))
    }

    /// The numbers of the blocks of a partition: the first, and the one behind the last.
    pub(super) fn of_partition(&self, partition: u32) -> (u32, u32) {
        let at = |at: usize| self.0.get(at).copied().unwrap_or(0);
        (at(partition as usize), at(partition as usize + 1))
    }

    /// The number of all blocks.
    pub(super) fn blocks(&self) -> u32 {
        self.0.last().copied().unwrap_or(0)
    }
}

/// Splits the numbers of blocks by the bundles in which they are: the bundle, and the numbers within it.
pub(super) fn by_bundle((from, to): (u32, u32)) -> impl Iterator<Item = (u32, std::ops::Range<usize>)> {
    let mut next = from;
    std::iter::from_fn(move || {
        (next < to).then(|| {
            let bundle = next / BLOCKS_PER_BUNDLE;
            let start = bundle * BLOCKS_PER_BUNDLE;
            let end = to.min(start.saturating_add(BLOCKS_PER_BUNDLE));
            let within = (next - start) as usize..(end - start) as usize;
            next = end;
            (bundle, within)
        })
    })
}

/// The tensors of one bundle: their places in its body.
#[derive(Debug)]
pub(super) struct Places {
    /// Where each begins, and its length.
    all: Vec<(u64, u64)>,
    pub(super) body_len: u64,
    /// The number of tensors that are no blocks.
    heads: usize,
}

impl Places {
    /// Reads the table of a bundle. `None` if it is no bundle of an attempt.
    pub(super) fn of(table: &BundleTable, is_first: bool) -> Option<Places> {
        let heads = if is_first { HEADS.len() } else { 0 };
        let entries = table.entries();
        if is_first && !entries.iter().map(|entry| entry.name.as_str()).take(heads).eq(HEADS) {
            return None;
        }
        let all = entries.iter().map(|entry| (entry.offset, entry.meta.len_bytes())).collect();
        Some(Places { all, body_len: table.body_len(), heads })
    }

    /// The places of the tensors that are no blocks.
    pub(super) fn heads(&self) -> &[(u64, u64)] {
        &self.all[..self.heads]
    }

    /// The places of these blocks. `None` if the bundle has fewer.
    pub(super) fn blocks(&self, which: std::ops::Range<usize>) -> Option<&[(u64, u64)]> {
        self.all.get(self.heads + which.start..self.heads + which.end)
    }
}

/// The range of the body in which neighbours lie. `None` if they are empty.
pub(super) fn range_of(places: &[(u64, u64)]) -> Option<BodyRange> {
    let ((offset, _), (last, len)) = (*places.first()?, *places.last()?);
    let end = last + padded(len)?;
    (end > offset).then(|| BodyRange { offset, len: end - offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_fuzz::Target;

    #[test]
    fn blocks_are_found_in_their_bundles() {
        const N: u32 = BLOCKS_PER_BUNDLE;
        let found = |from, to| by_bundle((from, to)).collect::<Vec<_>>();
        assert_eq!(found(3, 3), []);
        assert_eq!(found(3, 5), [(0, 3..5)]);
        let whole = 0..N as usize;
        assert_eq!(found(N - 1, 2 * N + 1), [(0, N as usize - 1..N as usize), (1, whole), (2, 0..1)]);
    }

    #[test]
    fn starts_read_back() {
        let starts = Starts::of([0, 3, 0, 2]);
        assert_eq!(Starts::read(&starts.to_bytes(), 4), Some(starts.clone()));
        assert_eq!([0, 1, 2, 3].map(|p| starts.of_partition(p)), [(0, 0), (0, 3), (3, 3), (3, 5)]);
        assert_eq!((starts.blocks(), starts.of_partition(9)), (5, (0, 0)));
        assert_eq!(Starts::read(&starts.to_bytes(), 3), None);
    }

    #[test]
    fn fuzz_exchange_starts() {
        Target::new("exchange_starts", [Starts::of([0, 3, 0, 2]).to_bytes()]).run(|bytes| {
            let Some(starts) = Starts::read(bytes, 4) else { return "refused".into() };
            assert_eq!(starts.to_bytes(), bytes);
            for partition in 0..4 {
                let (from, to) = starts.of_partition(partition);
                assert!(from <= to && to <= starts.blocks());
            }
            format!("{} blocks", starts.blocks().min(9))
        });
    }
}
