//! The check of what was sorted.

use crate::Error;
use crate::records::{KEY, RECORD, Sum};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::PathBuf;

/// Reads sorted files, one behind the other. The keys have to ascend.
pub(crate) fn check(files: &[PathBuf]) -> Result<Sum, Error> {
    let (mut sum, mut last, mut record) = (Sum::default(), [0; KEY], [0; RECORD]);
    for path in files {
        let file = File::open(path)?;
        let count = file.metadata()?.len() / RECORD as u64;
        let mut file = BufReader::with_capacity(1 << 20, file);
        for _ in 0..count {
            file.read_exact(&mut record)?;
            if record[..KEY] < last[..] {
                return Err(format!("record {} of all is less than the one before it", sum.records).into());
            }
            last.copy_from_slice(&record[..KEY]);
            sum.add(&record);
        }
    }
    Ok(sum)
}
