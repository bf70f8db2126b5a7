//! What the anchor and the marks of an exchange say: the sizes of the exchange, and what a task has written.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 to 3 | `TXLB` |
//! | 4 | layout, 1 |
//! | 5 to 7 | 0 |
//! | 8 to 11 | the number of partitions |
//! | 12 to 15 | the number of tasks |
//! | 16 to 23 | the number of rows that the task has written; 0 at the anchor |
//! | 24 to 31 | the length of their blocks, in bytes |
//! | from 32 | nothing, or for each partition the length of its blocks: 7 bits in each byte, the lowest first, and the highest bit where another byte follows |
//!
//! All other numbers have the lowest byte first. Readers of rows do not need a label. It is for operators, and for the limit
//! on partitions. A worker may write anything there, so it is checked as a whole, and believed about this worker's own
//! exchange only.

use super::{MAX_PARTITIONS, MAX_TASKS};

const START: [u8; 8] = *b"TXLB\x01\0\0\0";

/// The length without the lengths of the partitions.
const HEAD_BYTES: usize = 32;

/// The most bytes of one length: 7 bits in each.
const MAX_LENGTH_BYTES: usize = 8;

/// The longest blocks of a task, in bytes. So the sums of all tasks fit 64 bits.
const MAX_TASK_BYTES: u64 = 1 << 50;

/// Each row of a block has a number of 4 bytes.
const MIN_ROW_BYTES: u64 = 4;

/// The label of an anchor or of a mark. The layout is described at the top of this file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// The number of partitions, 1 to [`MAX_PARTITIONS`].
    pub partitions: u32,
    /// The number of tasks, 1 to [`MAX_TASKS`].
    pub tasks: u32,
    /// The number of rows that the task has written.
    pub rows: u64,
    /// The length of their blocks, in bytes.
    pub bytes: u64,
    /// The encoded lengths of the partitions, which sum up to `bytes`. Empty: they are not known.
    each: Box<[u8]>,
}

impl Label {
    /// The length of the longest label, in bytes.
    pub const MAX_BYTES: usize = HEAD_BYTES + MAX_PARTITIONS as usize * MAX_LENGTH_BYTES;

    /// Makes the label of the anchor, or of a task whose partitions are not told apart.
    #[must_use]
    pub fn new(partitions: u32, tasks: u32, rows: u64, bytes: u64) -> Label {
        Label { partitions, tasks, rows, bytes, each: Box::default() }
    }

    /// Makes the label of a task: the length of its blocks for each partition, in bytes.
    #[must_use]
    pub fn of_task(tasks: u32, rows: u64, partitions: &[u64]) -> Label {
        let mut each = Vec::with_capacity(partitions.len() * 3);
        for len in partitions {
            let mut rest = *len;
            while rest >= 0x80 {
                each.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            each.push(rest as u8);
        }
        let bytes = partitions.iter().fold(0, |sum: u64, len| sum.saturating_add(*len));
        let partitions = u32::try_from(partitions.len()).unwrap_or(u32::MAX);
        Label { partitions, tasks, rows, bytes, each: each.into() }
    }

    /// The same without the lengths of the partitions.
    #[must_use]
    pub fn without_partitions(&self) -> Label {
        Label::new(self.partitions, self.tasks, self.rows, self.bytes)
    }

    /// Writes it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = START.to_vec();
        bytes.extend([self.partitions, self.tasks].into_iter().flat_map(u32::to_le_bytes));
        bytes.extend([self.rows, self.bytes].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend_from_slice(&self.each);
        bytes
    }

    /// Reads what a worker wrote. `None` if it is no label.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Label> {
        if bytes.len() > Label::MAX_BYTES {
            return None;
        }
        let (head, each) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let (start, numbers) = head.split_first_chunk::<8>()?;
        let (counts, sums) = numbers.split_first_chunk::<8>()?;
        let [partitions, tasks] = *counts.as_chunks::<4>().0 else { return None };
        let [rows, bytes] = *sums.as_chunks::<8>().0 else { return None };
        let (partitions, tasks) = (u32::from_le_bytes(partitions), u32::from_le_bytes(tasks));
        let counts = (1..=MAX_PARTITIONS).contains(&partitions) && (1..=MAX_TASKS).contains(&tasks);
        if *start != START || !counts {
            return None;
        }
        let (rows, bytes) = (u64::from_le_bytes(rows), u64::from_le_bytes(bytes));
        if bytes > MAX_TASK_BYTES || rows > bytes / MIN_ROW_BYTES {
            return None;
        }
        let label = Label { partitions, tasks, rows, bytes, each: each.into() };
        (each.is_empty() || label.adds_up()).then_some(label)
    }

    /// Whether there is one length for each partition, and their sum is that of the task.
    fn adds_up(&self) -> bool {
        let (mut count, mut sum) = (0_u32, Some(0_u64));
        let mut lengths = Lengths(&self.each);
        for len in lengths.by_ref() {
            count += 1;
            sum = sum.and_then(|sum| sum.checked_add(len));
        }
        lengths.0.is_empty() && count == self.partitions && sum == Some(self.bytes)
    }

    /// Whether the lengths of the partitions are known.
    #[must_use]
    pub fn has_partitions(&self) -> bool {
        !self.each.is_empty()
    }

    /// The length of the blocks of each partition, in bytes.
    pub fn partitions(&self) -> impl Iterator<Item = u64> + '_ {
        Lengths(&self.each)
    }

    /// The memory that the lengths of the partitions take, in bytes.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        self.each.len() as u64
    }
}

/// The encoded lengths that are left. It ends early where they are invalid.
struct Lengths<'a>(&'a [u8]);

impl Iterator for Lengths<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let len = self.0.iter().take(MAX_LENGTH_BYTES).position(|byte| byte & 0x80 == 0)? + 1;
        let (this, rest) = self.0.split_at(len);
        let mut value = 0_u64;
        for (at, byte) in (0_u32..).zip(this) {
            value |= u64::from(byte & 0x7f) << (at * 7);
        }
        // One number has one form.
        if len > 1 && this.last() == Some(&0) {
            return None;
        }
        self.0 = rest;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_fuzz::Target;

    const LENGTHS: [u64; 6] = [0, 127, 128, 1 << 20, 0, 1 << 49];

    #[test]
    fn labels_read_back() {
        let task = Label::of_task(8, 1000, &LENGTHS);
        assert_eq!(task.partitions().collect::<Vec<_>>(), LENGTHS);
        assert_eq!(task.bytes, LENGTHS.iter().sum::<u64>());
        for label in [task.clone(), task.without_partitions(), Label::new(4096, 2048, 0, 0)] {
            assert_eq!(Label::read(&label.to_bytes()), Some(label));
        }
        let longest = Label::of_task(1, 0, &[MAX_TASK_BYTES / 4096; 4096]);
        assert!(longest.to_bytes().len() <= Label::MAX_BYTES);
        assert_eq!(Label::read(&longest.to_bytes()), Some(longest));
    }

    // Promise: exchange-lists, seen to fail
    #[test]
    fn labels_that_lie_are_none() {
        let good = Label::of_task(8, 1000, &LENGTHS).to_bytes();
        assert!(Label::read(&good).is_some());
        let mut wrong = vec![good[..good.len() - 1].to_vec(), [&good[..], &[0]].concat(), good[..31].to_vec()];
        for (at, value) in [(0, b'x'), (4, 2), (8, 7), (8, 0), (9, 0x20), (12, 0), (13, 9), (24, 1)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            wrong.push(bytes);
        }
        // A second form of the number 0, numbers that do not end, more than there can be, and more rows than fit.
        let head = |bytes: u64| Label::new(1, 1, 0, bytes).to_bytes();
        wrong.push([&head(0)[..], &[0x80, 0]].concat());
        wrong.push([&head(0)[..], &[0x80; 9], &[2]].concat());
        wrong.push([&head(0)[..], &[0xff; 64]].concat());
        wrong.push(Label::of_task(1, 0, &[MAX_TASK_BYTES + 1]).to_bytes());
        wrong.push(Label::of_task(1, 0, &[MAX_TASK_BYTES, 1]).to_bytes());
        wrong.push(Label::new(1, 1, 0, u64::MAX).to_bytes());
        wrong.push(Label::new(1, 1, 26, 103).to_bytes());
        assert!(Label::read(&Label::new(1, 1, 26, 104).to_bytes()).is_some());
        wrong.push(vec![0; Label::MAX_BYTES + 1]);
        for bytes in wrong {
            assert_eq!(Label::read(&bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn fuzz_exchange_label() {
        let seeds = [Label::of_task(8, 1000, &LENGTHS).to_bytes(), Label::new(4096, 2048, 0, 0).to_bytes()];
        Target::new("exchange-label", seeds).run(|bytes| {
            let Some(label) = Label::read(bytes) else { return "none".into() };
            assert_eq!(label.to_bytes(), bytes);
            if label.has_partitions() {
                assert_eq!(label.partitions().sum::<u64>(), label.bytes);
            }
            format!("{} partitions, {}", label.partitions.min(9), label.has_partitions())
        });
    }
}
