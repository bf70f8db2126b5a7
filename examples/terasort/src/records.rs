//! Records of 100 bytes: a key of 10 random bytes, the number of the record, and filler.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The length of a record, in bytes.
pub(crate) const RECORD: usize = 100;

/// The length of its key, in bytes.
pub(crate) const KEY: usize = 10;

/// The number of records and the sum of their checksums, which do not depend on their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) records: u64,
    pub(crate) checksum: u64,
}

impl Sum {
    /// Adds a record.
    pub(crate) fn add(&mut self, record: &[u8]) {
        let words = record.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let sum = words.fold(0_u64, |sum, word| mix(sum ^ word));
        self.records += 1;
        self.checksum = self.checksum.wrapping_add(sum);
    }

    /// Adds another sum.
    pub(crate) fn join(&mut self, other: Sum) {
        self.records += other.records;
        self.checksum = self.checksum.wrapping_add(other.checksum);
    }
}

/// One step of SplitMix64.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// The record of this number.
pub(crate) fn record(number: u64) -> [u8; RECORD] {
    let mut record = [b'.'; RECORD];
    record[..8].copy_from_slice(&mix(number).to_le_bytes());
    record[8..KEY].copy_from_slice(&mix(!number).to_le_bytes()[..2]);
    record[KEY..KEY + 16].copy_from_slice(format!("{number:016x}").as_bytes());
    record
}

/// Writes the records of these numbers into a file.
pub(crate) fn generate(path: &Path, numbers: std::ops::Range<u64>) -> std::io::Result<Sum> {
    let (mut file, mut sum) = (BufWriter::with_capacity(1 << 20, File::create(path)?), Sum::default());
    for number in numbers {
        let record = record(number);
        sum.add(&record);
        file.write_all(&record)?;
    }
    file.flush()?;
    Ok(sum)
}
