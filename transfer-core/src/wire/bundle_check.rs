//! The check of a bundle's table in steps: what the sidecar does with a push. A table may have more entries than the data
//! plane can look at before others have their turn.

use super::bundle::{InvalidBundle, MIN_ENTRY_BYTES, end_of, read_entry, read_head};
use super::digests::Digests;
use super::{Reader, WireError};
use crate::tensor::TensorName;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};

/// The check of a table that a worker wrote. It keeps nothing of an entry but the place of its name: 8 bytes.
#[derive(Debug)]
pub struct BundleCheck<T> {
    table: T,
    body_len: u64,
    /// The entries that are left, and where the next one begins.
    left: usize,
    at: usize,
    /// The bytes that the tensors so far have in the body.
    expected_bytes: u64,
    /// The places of the names so far, by their hashes: offset and length.
    names: HashTable<(u32, u16)>,
    /// Seeded for each check, since strangers choose the names.
    hasher: RandomState,
}

impl<T: AsRef<[u8]>> BundleCheck<T> {
    /// Begins the check of a table for a body of `body_len` bytes.
    ///
    /// # Errors
    /// [`InvalidBundle`] for what stands in front of the entries.
    pub fn new(table: T, body_len: u64) -> Result<BundleCheck<T>, InvalidBundle> {
        let bytes = table.as_ref();
        let (left, _, r) = read_head(bytes)?;
        let (at, most) = (bytes.len() - r.rest().len(), r.rest().len() / MIN_ENTRY_BYTES);
        let names = HashTable::with_capacity(left.min(most));
        Ok(BundleCheck { table, body_len, left, at, expected_bytes: 0, names, hasher: RandomState::new() })
    }

    /// Checks the next `most` entries. Returns whether all are checked, and the table is right.
    ///
    /// # Errors
    /// [`InvalidBundle`] for a table that [`BundleTable::to_bytes`](super::bundle::BundleTable::to_bytes) cannot have
    /// written, and for a body of another length.
    pub fn step(&mut self, most: usize) -> Result<bool, InvalidBundle> {
        let bytes = self.table.as_ref();
        let mut r = Reader::new("the table of a bundle", bytes.get(self.at..).unwrap_or_default());
        for _ in 0..most.min(self.left) {
            let (name, meta) = read_entry(&mut r)?;
            // It lies in front of its description: element type, rank and dimensions. It has no metadata, or is refused.
            let behind = 2 + 8 * meta.shape().dims().len();
            self.expected_bytes = end_of(self.expected_bytes, name, &meta)?;
            let start = bytes.len() - r.rest().len() - behind - name.len();
            let text = |(start, len): (u32, u16)| &bytes[start as usize..][..usize::from(len)];
            let hash = self.hasher.hash_one(name.as_bytes());
            if self.names.find(hash, |place| text(*place) == name.as_bytes()).is_some() {
                return Err(InvalidBundle::Duplicate { name: TensorName::new(name).map_err(WireError::from)? });
            }
            // Both fit: metadata has a limit of 32 bits, and a name's length one of 16.
            let place = (u32::try_from(start).unwrap_or(u32::MAX), u16::try_from(name.len()).unwrap_or(u16::MAX));
            // There is room for all of them, so that no name is hashed again.
            self.names.insert_unique(hash, place, |place| self.hasher.hash_one(text(*place)));
            self.left -= 1;
        }
        self.at = bytes.len() - r.rest().len();
        if self.left > 0 {
            return Ok(false);
        }
        Digests::skip(&mut r, self.expected_bytes)?;
        r.end()?;
        match self.expected_bytes == self.body_len {
            true => Ok(true),
            false => {
                let (expected_bytes, found_bytes) = (self.expected_bytes, self.body_len);
                Err(InvalidBundle::WrongLength { expected_bytes, found_bytes })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, TensorMeta};
    use crate::wire::bundle::BundleTable;

    fn table(names: &[&str]) -> BundleTable {
        let meta = TensorMeta::of(DType::F32, &[1]).unwrap();
        BundleTable::new(names.iter().map(|name| (TensorName::new(name).unwrap(), meta.clone())).collect()).unwrap()
    }

    /// The result of a check in steps of each length, which is the same for all of them.
    fn check(bytes: &[u8], body_len: u64) -> Result<(), InvalidBundle> {
        let results = [1, 2, 3, 100].map(|most| {
            let mut check = BundleCheck::new(bytes, body_len)?;
            while !check.step(most)? {}
            Ok(())
        });
        assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
        results[0].clone()
    }

    // Promise: false-tables
    #[test]
    fn check_accepts_what_can_be_read_and_fits_its_body() {
        let good = table(&["w", "empty", "b"]);
        assert_eq!(check(&good.to_bytes(), good.body_len()), Ok(()));
        assert_eq!(check(&table(&[]).to_bytes(), 0), Ok(()));
        let says = check(&good.to_bytes(), 64).unwrap_err().to_string();
        assert_eq!(says, "the tensors of the bundle have 192 bytes, its body has 64");
        assert!(check(&[&good.to_bytes()[..], &[0]].concat(), 192).unwrap_err().to_string().contains("too many"));
        // The same name twice, the second time in a later step.
        let mut bytes = table(&["w", "v"]).to_bytes();
        // There are no digests: a zero.
        assert_eq!(bytes.pop(), Some(0));
        let first = bytes[17..17 + (bytes.len() - 17) / 2].to_vec();
        bytes[5] = 3;
        bytes.extend(first);
        bytes.push(0);
        assert_eq!(check(&bytes, 192), Err(InvalidBundle::Duplicate { name: TensorName::new("w").unwrap() }));
    }

    // Promise: long-tables
    #[test]
    fn a_step_checks_no_more_entries_than_it_may() {
        let bytes = table(&["a", "b", "c", "d", "e"]).to_bytes();
        let mut check = BundleCheck::new(&bytes[..], 5 * 64).unwrap();
        let left = [2, 2, 2].map(|most| (check.step(most).unwrap(), check.left));
        assert_eq!(left, [(false, 3), (false, 1), (true, 0)]);
        assert_eq!(check.names.len(), 5);
    }
}
