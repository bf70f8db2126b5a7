//! The bundles of a committed attempt: which blocks of which partition are where.
//!
//! An attempt has bundle 0, and as many others as it needs. In each bundle the blocks lie in the order of their
//! partitions, one behind the other, at most [`BLOCKS_PER_BUNDLE`]. So those of one partition are one range. Bundle 0 begins
//! with three more tensors: the schema, the list of the bundles, and the name of the node that has them. Readers that are
//! wrong about the node ask in vain, and then look for each bundle.
//!
//! The list has, for each bundle, its number as 32 bits, and for each partition the number of its blocks there as 16 bits.
//! The rows of a partition are in the order of the list.

use crate::record::u32_at;
use transfer_core::memory::padded;
use transfer_core::tensor::BodyRange;
use transfer_core::wire::bundle::BundleTable;

/// The most blocks in one bundle. With the zeros behind each they are less than the ranges that one push may have.
pub(super) const BLOCKS_PER_BUNDLE: u32 = 2000;

/// The tensors of the first bundle that are no blocks.
pub(super) const HEADS: [&str; 3] = ["schema", "blocks", "node"];

/// A length that the tensors before the blocks of bundle 0 hardly exceed, if the attempt has one bundle, and a multiple of 64: room
/// for a schema, and for the list.
pub(super) fn heads_guess(partitions: u32) -> u64 {
    let list = 4 + u64::from(partitions) * 2;
    2048 + padded(list).unwrap_or(list)
}

/// The number of the first block of each partition in a bundle, and of all its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Starts(Vec<u32>);

impl Starts {
    /// The blocks belong to these partitions, which ascend.
    pub(super) fn of(partitions: u32, blocks: impl IntoIterator<Item = usize>) -> Starts {
        let mut counts = vec![0_u16; partitions as usize];
        for partition in blocks {
            if let Some(count) = counts.get_mut(partition) {
                *count = count.saturating_add(1);
            }
        }
        Starts::of_counts(counts)
    }

    fn of_counts(counts: impl IntoIterator<Item = u16>) -> Starts {
        let mut starts = vec![0_u32];
        for count in counts {
            let last = starts.last().copied().unwrap_or(0);
            starts.push(last + u32::from(count));
        }
        Starts(starts)
    }

    /// The places of the blocks of a partition.
    pub(super) fn of_partition(&self, partition: u32) -> std::ops::Range<usize> {
        let at = |at: usize| self.0.get(at).copied().unwrap_or(0) as usize;
        at(partition as usize)..at(partition as usize + 1)
    }

    /// The number of all blocks.
    fn blocks(&self) -> u32 {
        self.0.last().copied().unwrap_or(0)
    }
}

/// The bundles of an attempt: their numbers, and which blocks they have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bundles(pub(super) Vec<(u32, Starts)>);

impl Bundles {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, Starts(starts)) in &self.0 {
            bytes.extend(number.to_le_bytes());
            bytes.extend(starts.windows(2).flat_map(|w| ((w[1] - w[0]) as u16).to_le_bytes()));
        }
        bytes
    }

    /// Reads what another worker wrote for this many partitions.
    pub(super) fn read(bytes: &[u8], partitions: u32) -> Option<Bundles> {
        let each = 4 + partitions as usize * 2;
        let chunks = bytes.chunks_exact(each);
        if !chunks.remainder().is_empty() {
            return None;
        }
        let read = chunks.map(|bytes| {
            let counts = bytes[4..].as_chunks::<2>().0.iter().map(|count| u16::from_le_bytes(*count));
            (u32_at(bytes, 0), Starts::of_counts(counts))
        });
        let bundles: Vec<_> = read.collect();
        bundles.iter().all(|(_, starts)| starts.blocks() <= BLOCKS_PER_BUNDLE).then_some(Bundles(bundles))
    }
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

    fn some() -> Bundles {
        Bundles(vec![(3, Starts::of(4, [1, 1, 1, 3, 3])), (0, Starts::of(4, [2]))])
    }

    #[test]
    fn lists_of_bundles_read_back() {
        let bundles = some();
        assert_eq!(Bundles::read(&bundles.to_bytes(), 4), Some(bundles.clone()));
        let starts = &bundles.0[0].1;
        assert_eq!([0, 1, 2, 3, 9].map(|p| starts.of_partition(p)), [0..0, 0..3, 3..3, 3..5, 0..0]);
        assert_eq!(Bundles::read(&bundles.to_bytes(), 3), None);
        assert_eq!(Bundles::read(&[], 3), Some(Bundles::default()));
        let many = Bundles(vec![(0, Starts::of(1, vec![0; BLOCKS_PER_BUNDLE as usize + 1]))]);
        assert_eq!(Bundles::read(&many.to_bytes(), 1), None);
    }

    #[test]
    fn fuzz_exchange_starts() {
        Target::new("exchange_starts", [some().to_bytes()]).run(|bytes| {
            let Some(bundles) = Bundles::read(bytes, 4) else { return "refused".into() };
            assert_eq!(bundles.to_bytes(), bytes);
            for (_, starts) in &bundles.0 {
                for partition in 0..4 {
                    let places = starts.of_partition(partition);
                    assert!(places.start <= places.end && places.end <= BLOCKS_PER_BUNDLE as usize);
                }
            }
            format!("{} bundles", bundles.0.len().min(9))
        });
    }
}
