//! The record of an exchange: what its opener publishes for those who join.
//!
//! | bytes | contents |
//! |---|---|
//! | 0 to 3 | `TXCH` |
//! | 4 | layout, 1 |
//! | 5 to 7 | 0 |
//! | 8 to 23 | the identity |
//! | 24 to 27 | the number of partitions |
//! | 28 to 31 | the number of tasks |
//! | 32 to 35 | the length of the opener's name |
//! | from 36 | the opener's name, then 4 bytes for each task: the number of its word |
//!
//! All numbers have the lowest byte first.

use crate::error::ExchangeError;
use crate::names::{ExchangeId, MAX_PARTITIONS, MAX_TASKS};
use transfer_core::tensor::Name;

const START: [u8; 8] = *b"TXCH\x01\0\0\0";

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) id: ExchangeId,
    pub(super) partitions: u32,
    pub(super) opener: Name,
    /// The numbers of the words, one for each task.
    pub(super) words: Vec<u32>,
}

impl Record {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = START.to_vec();
        let opener = self.opener.as_str().as_bytes();
        bytes.extend_from_slice(&self.id.0);
        for number in [self.partitions, self.words.len() as u32, opener.len() as u32] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(opener);
        bytes.extend(self.words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    /// Reads a record that another worker wrote.
    pub(super) fn read(name: &str, bytes: &[u8]) -> Result<Record, ExchangeError> {
        Record::parse(bytes).ok_or_else(|| ExchangeError::NotAnExchange { name: name.to_owned() })
    }

    fn parse(bytes: &[u8]) -> Option<Record> {
        let (start, rest) = bytes.split_first_chunk::<8>()?;
        let (id, rest) = rest.split_first_chunk::<16>()?;
        let (numbers, rest) = rest.split_first_chunk::<12>()?;
        let [partitions, tasks, opener] = [0, 4, 8].map(|at| u32_at(numbers, at));
        let counts = (1..=MAX_PARTITIONS).contains(&partitions) && (1..=MAX_TASKS).contains(&tasks);
        let (opener, words) = rest.split_at_checked(opener as usize)?;
        if *start != START || !counts || words.len() != tasks as usize * 4 {
            return None;
        }
        let words = words.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let opener = Name::from_bytes(opener).ok()?;
        Some(Record { id: ExchangeId(*id), partitions, opener, words })
    }
}

/// The number at this place. Bytes that are not there count as zeros.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_fuzz::Target;

    fn example() -> Record {
        let opener = Name::new("trainer-0").unwrap();
        Record { id: ExchangeId([7; 16]), partitions: 64, opener, words: vec![3, 0, 9] }
    }

    #[test]
    fn records_read_back() {
        assert_eq!(Record::read("x", &example().to_bytes()), Ok(example()));
    }

    #[test]
    fn fuzz_exchange_record() {
        Target::new("exchange_record", [example().to_bytes()]).run(|bytes| {
            let Ok(record) = Record::read("x", bytes) else { return "refused".into() };
            assert_eq!(record.to_bytes(), bytes);
            format!("{} tasks", record.words.len().min(9))
        });
    }
}
