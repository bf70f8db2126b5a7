//! The table of a bundle: many tensors that are published as one version.
//!
//! A bundle is a push of bytes with metadata in front of them. The metadata is this table. The body consists of the
//! tensors in the table's order, row-major, each followed by zeros up to a multiple of
//! [`ALIGNMENT`](crate::memory::ALIGNMENT). The offset of a tensor follows from the lengths of those before it, so no
//! table can name a range outside of the body, or the same range twice.
//!
//! | field | bytes |
//! |---|---|
//! | `TBDL` | 4 |
//! | layout, 3 | 1 |
//! | number of tensors | 4 |
//! | stamp: with digests one of them, of table and body; else a number of the push | 8 |
//! | for each tensor: its name, as a 16-bit length and UTF-8 | 2 and more |
//! | and its element type, rank and dimensions | 2, and 8 for each dimension |
//! | the [digests](super::digests) of the version | 1 and more |

use super::bundle_check::BundleCheck;
use super::digests::Digests;
use super::{Reader, WireError, Writer};
use crate::memory::padded;
use crate::tensor::{TensorMeta, TensorName};
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};

/// The most tensors in one bundle. Tensors of an arena are pushed in place, so this is also the most
/// [ranges](super::ranges::MAX_RANGES) of a body.
pub const MAX_TENSORS: usize = 131_072;

const MAGIC: [u8; 4] = *b"TBDL";
const LAYOUT: u8 = 3;

/// The length of what is in front of the first entry, in bytes.
const HEAD_BYTES: usize = 17;

/// The length of the shortest entry, in bytes: a name of one byte, and a scalar.
pub(super) const MIN_ENTRY_BYTES: usize = 5;

/// The error for a table that is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidBundle {
    /// More than [`MAX_TENSORS`] tensors.
    #[error("a bundle has at most {MAX_TENSORS} tensors, this one has {found}")]
    TooMany {
        /// The number of tensors.
        found: usize,
    },
    /// Two tensors have the same name.
    #[error("a bundle has each name once, this one has {name:?} twice")]
    Duplicate {
        /// The name.
        name: TensorName,
    },
    /// A tensor has metadata of its own, as record batches have.
    #[error("{name:?} of a bundle is {meta}; only dense tensors can be in a bundle")]
    NotDense {
        /// The tensor's name.
        name: TensorName,
        /// The tensor's description.
        meta: TensorMeta,
    },
    /// The sum of all lengths does not fit in 63 bits.
    #[error("all tensors of a bundle would have more than 2^63 bytes")]
    TooLarge,
    /// The tensors do not fill the body.
    #[error("the tensors of the bundle have {expected_bytes} bytes, its body has {found_bytes}")]
    WrongLength {
        /// The length that follows from the table, in bytes.
        expected_bytes: u64,
        /// The length of the body, in bytes.
        found_bytes: u64,
    },
    /// The bytes of the table are malformed.
    #[error("the table of a bundle is wrong: {0}")]
    Wire(#[from] WireError),
}

/// One tensor of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleEntry {
    /// The tensor's name.
    pub name: TensorName,
    /// The tensor's element type and shape.
    pub meta: TensorMeta,
    /// The offset of the tensor in the body, in bytes.
    pub offset: u64,
}

/// The table of a bundle.
#[derive(Debug, Clone)]
pub struct BundleTable {
    entries: Vec<BundleEntry>,
    /// The indices of the entries, by the hashes of their names.
    by_name: HashTable<u32>,
    /// Seeded for each table, since strangers choose the names.
    hasher: RandomState,
    stamp: u64,
    digests: Option<Digests>,
    body_len: u64,
}

impl PartialEq for BundleTable {
    fn eq(&self, other: &BundleTable) -> bool {
        // Everything else follows from the entries, but the stamp and the digests, which each push has anew.
        self.entries == other.entries
    }
}

impl Eq for BundleTable {}

impl BundleTable {
    /// Creates the table of these tensors, in this order.
    ///
    /// # Errors
    /// [`InvalidBundle`].
    pub fn new(tensors: Vec<(TensorName, TensorMeta)>) -> Result<BundleTable, InvalidBundle> {
        if tensors.len() > MAX_TENSORS {
            return Err(InvalidBundle::TooMany { found: tensors.len() });
        }
        let (mut entries, mut body_len) = (Vec::with_capacity(tensors.len()), 0_u64);
        for (name, meta) in tensors {
            let end = end_of(body_len, name.as_str(), &meta)?;
            entries.push(BundleEntry { name, meta, offset: body_len });
            body_len = end;
        }
        let (hasher, mut by_name) = (RandomState::new(), HashTable::with_capacity(entries.len()));
        for (n, entry) in (0_u32..).zip(&entries) {
            let hash = hasher.hash_one(entry.name.as_str());
            if by_name.find(hash, |at| is_named(&entries, *at, entry.name.as_str())).is_some() {
                return Err(InvalidBundle::Duplicate { name: entry.name.clone() });
            }
            // The table has room for all of them, so that no entry is hashed again.
            by_name.insert_unique(hash, n, |at| hasher.hash_one(entries[*at as usize].name.as_str()));
        }
        Ok(BundleTable { entries, by_name, hasher, stamp: 0, digests: None, body_len })
    }

    /// Sets the stamp, by which a reader in several requests knows that all of them were answered with the same bytes: a number that
    /// no push of other bytes has. Versions begin again with a new owner of a key, so their numbers do not tell.
    #[must_use]
    pub fn stamped(self, stamp: u64) -> BundleTable {
        BundleTable { stamp, ..self }
    }

    /// Sets the stamp in the bytes of a table. What is too short for a table stays as it is.
    pub fn set_stamp(table: &mut [u8], stamp: u64) {
        if let Some(bytes) = table.get_mut(HEAD_BYTES - 8..HEAD_BYTES) {
            bytes.copy_from_slice(&stamp.to_le_bytes());
        }
    }

    /// Sets the digests of the version.
    #[must_use]
    pub fn with_digests(self, digests: Option<Digests>) -> BundleTable {
        BundleTable { digests, ..self }
    }

    /// Returns the digests of the version, if its push has made some.
    #[must_use]
    pub fn digests(&self) -> Option<&Digests> {
        self.digests.as_ref()
    }

    /// Returns its stamp.
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The number of bytes at which a bundle is recognised.
    pub const START_BYTES: u64 = MAGIC.len() as u64;

    /// Returns whether the metadata begins like the table of a bundle.
    #[must_use]
    pub fn is_bundle(metadata: &[u8]) -> bool {
        metadata.starts_with(&MAGIC)
    }

    /// Reads a table that a worker wrote.
    ///
    /// # Errors
    /// [`InvalidBundle`] for bytes that [`BundleTable::to_bytes`] cannot have written.
    pub fn read(metadata: &[u8]) -> Result<BundleTable, InvalidBundle> {
        let (found, stamp, mut r) = read_head(metadata)?;
        let mut tensors = Vec::with_capacity(found.min(r.rest().len() / MIN_ENTRY_BYTES));
        for _ in 0..found {
            let (name, meta) = read_entry(&mut r)?;
            tensors.push((TensorName::new(name).map_err(WireError::from)?, meta));
        }
        let table = BundleTable::new(tensors)?;
        let digests = Digests::read(&mut r, table.body_len)?;
        r.end()?;
        Ok(table.stamped(stamp).with_digests(digests))
    }

    /// Checks a table that a worker wrote, for a body of `body_len` bytes, at once. [`BundleCheck`] does it in steps.
    ///
    /// # Errors
    /// [`InvalidBundle`] for bytes that [`BundleTable::to_bytes`] cannot have written, and for another length.
    pub fn check(metadata: &[u8], body_len: u64) -> Result<(), InvalidBundle> {
        BundleCheck::new(metadata, body_len)?.step(MAX_TENSORS + 1).map(|_| ())
    }

    /// Returns how many tensors the table has according to the fields in front of them. 0 if it is too short, or no table.
    #[must_use]
    pub fn tensors_in(head: &[u8]) -> usize {
        read_head(head).map_or(0, |(found, ..)| found)
    }

    /// Returns the bytes of the table.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::new();
        self.write_entries(&mut w);
        Digests::write(self.digests.as_ref(), &mut w);
        w.into_vec()
    }

    /// Returns the bytes in front of the digests, which are made of them.
    #[must_use]
    pub fn to_bytes_before_digests(&self) -> Vec<u8> {
        let mut w = Writer::new();
        self.write_entries(&mut w);
        w.into_vec()
    }

    fn write_entries(&self, w: &mut Writer) {
        w.raw(&MAGIC).u8(LAYOUT).u32(u32::try_from(self.entries.len()).unwrap_or(u32::MAX)).u64(self.stamp);
        for BundleEntry { name, meta, offset: _ } in &self.entries {
            w.text(name.as_str()).meta(meta);
        }
    }

    /// Returns the length of these bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        let entry = |entry: &BundleEntry| 4 + entry.name.as_str().len() + 8 * entry.meta.shape().dims().len();
        let entries: usize = self.entries.iter().map(entry).sum();
        (HEAD_BYTES + entries + Digests::written_bytes(self.digests.as_ref())) as u64
    }

    /// Returns the tensors, in the order in which they were pushed.
    #[must_use]
    pub fn entries(&self) -> &[BundleEntry] {
        &self.entries
    }

    /// Returns the index of the tensor with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        let found = self.by_name.find(self.hasher.hash_one(name), |at| is_named(&self.entries, *at, name))?;
        Some(*found as usize)
    }

    /// Returns the length of the body, in bytes.
    #[must_use]
    pub fn body_len(&self) -> u64 {
        self.body_len
    }
}

fn is_named(entries: &[BundleEntry], at: u32, name: &str) -> bool {
    entries[at as usize].name.as_str() == name
}

/// Reads the fields in front of the entries. Returns the number of entries, and the stamp.
pub(super) fn read_head(metadata: &[u8]) -> Result<(usize, u64, Reader<'_>), InvalidBundle> {
    let mut r = Reader::new("the table of a bundle", metadata);
    let magic = r.u32()?;
    if magic != u32::from_le_bytes(MAGIC) {
        let (what, value) = ("what a bundle begins with", u64::from(magic));
        return Err(WireError::Value { what, value, expected: "TBDL" }.into());
    }
    let layout = r.u8()?;
    if layout != LAYOUT {
        return Err(WireError::Value { what: "layout", value: u64::from(layout), expected: "3" }.into());
    }
    let found = r.u32()? as usize;
    match found > MAX_TENSORS {
        true => Err(InvalidBundle::TooMany { found }),
        false => Ok((found, r.u64()?, r)),
    }
}

pub(super) fn read_entry<'a>(r: &mut Reader<'a>) -> Result<(&'a str, TensorMeta), InvalidBundle> {
    let name = TensorName::check_bytes(r.text()?).map_err(WireError::from)?;
    Ok((name, r.meta()?))
}

/// Returns the offset of the tensor that follows this one, which starts at `offset`.
pub(super) fn end_of(offset: u64, name: &str, meta: &TensorMeta) -> Result<u64, InvalidBundle> {
    if meta.metadata_bytes() > 0 {
        let name = TensorName::new(name).map_err(WireError::from)?;
        return Err(InvalidBundle::NotDense { name, meta: meta.clone() });
    }
    let end = padded(meta.len_bytes()).and_then(|len| offset.checked_add(len)).filter(|end| *end < 1 << 63);
    end.ok_or(InvalidBundle::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Digest};

    fn name(text: &str) -> TensorName {
        TensorName::new(text).unwrap()
    }

    fn f32s(dims: &[u64]) -> TensorMeta {
        TensorMeta::of(DType::F32, dims).unwrap()
    }

    fn example() -> BundleTable {
        let tensors = vec![(name("w"), f32s(&[3, 5])), (name("empty"), f32s(&[0, 7])), (name("b"), f32s(&[]))];
        BundleTable::new(tensors).unwrap()
    }

    /// This table with digests of its body.
    fn digested(table: &BundleTable) -> BundleTable {
        let chunks = table.body_len().div_ceil(64 << 10) as usize;
        let digests = Digests::new(Digest::Blake3, 64 << 10, vec![1; 32], vec![2; 32 * chunks]);
        table.clone().with_digests(Some(digests))
    }

    #[test]
    fn tensors_of_a_bundle_follow_each_other_aligned() {
        let table = example();
        assert_eq!(table.entries().iter().map(|e| e.offset).collect::<Vec<_>>(), [0, 64, 64]);
        assert_eq!(table.body_len(), 128);
        assert_eq!(["b", "empty", "w", "x"].map(|n| table.find(n)), [Some(2), Some(1), Some(0), None]);
    }

    #[test]
    fn bundle_table_reads_back() {
        for table in [example(), BundleTable::new(Vec::new()).unwrap()] {
            assert!(BundleTable::is_bundle(&table.to_bytes()));
            let table = table.stamped(u64::MAX - 1);
            let digests = digested(&table).digests;
            for table in [table.clone(), table.with_digests(digests)] {
                assert_eq!(table.to_bytes().len() as u64, table.len_bytes());
                let mut bytes = table.to_bytes();
                let read = BundleTable::read(&bytes).unwrap();
                assert_eq!((read.stamp(), &read), (u64::MAX - 1, &table));
                BundleTable::set_stamp(&mut bytes, 7);
                assert_eq!(bytes, table.clone().stamped(7).to_bytes());
                assert_eq!(read.digests(), table.digests());
            }
        }
    }

    #[test]
    fn shortest_entry_has_the_minimal_length() {
        let bytes = |n: usize| {
            let tensors = (0..n).map(|n| (name(&char::from(b'a' + n as u8).to_string()), f32s(&[])));
            BundleTable::new(tensors.collect()).unwrap().to_bytes().len()
        };
        assert_eq!(bytes(3) - bytes(2), MIN_ENTRY_BYTES);
    }

    #[test]
    fn impossible_bundles_are_refused_by_name() {
        let says = |tensors: Vec<(TensorName, TensorMeta)>| BundleTable::new(tensors).unwrap_err().to_string();
        let twice = says(vec![(name("w"), f32s(&[1])), (name("v"), f32s(&[1])), (name("w"), f32s(&[2]))]);
        assert!(twice.contains("\"w\" twice"), "{twice}");
        let many = (0..=MAX_TENSORS).map(|n| (name(&n.to_string()), f32s(&[]))).collect();
        assert!(says(many).contains("at most 131072 tensors, this one has 131073"));
        let half = TensorMeta::of(DType::U8, &[(1 << 62) + 1]).unwrap();
        assert_eq!(BundleTable::new(vec![(name("a"), half.clone()), (name("b"), half)]), Err(InvalidBundle::TooLarge));
        let batch = TensorMeta::of(DType::U8, &[64]).unwrap().with_metadata(8).unwrap();
        assert!(says(vec![(name("table"), batch)]).contains("only dense tensors"));
    }

    #[test]
    fn cut_or_longer_bundle_table_is_refused() {
        for table in [example(), digested(&example())] {
            let bytes = table.to_bytes();
            for end in 0..bytes.len() {
                assert!(BundleTable::read(&bytes[..end]).is_err(), "{end} bytes");
                assert!(BundleTable::check(&bytes[..end], table.body_len()).is_err(), "{end} bytes");
            }
            assert!(BundleTable::read(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn table_of_an_earlier_layout_is_refused_with_both_numbers() {
        let mut bytes = example().to_bytes();
        bytes[4] = 2;
        let says = BundleTable::read(&bytes).unwrap_err().to_string();
        assert_eq!(says, "the table of a bundle is wrong: layout is 2, expected 3");
    }

    // Promise: false-tables
    #[test]
    fn fuzz_bundle_table() {
        let target =
            transfer_fuzz::Target::new("bundle-table", [example().to_bytes(), digested(&example()).to_bytes()]);
        // An entry of five bytes takes up to 200 bytes in memory after reading.
        target.bound(1 << 20).run(|input| match BundleTable::read(input) {
            Ok(table) => {
                assert_eq!(BundleTable::check(input, table.body_len()), Ok(()));
                let mut check = BundleCheck::new(input, table.body_len()).unwrap();
                while !check.step(1).unwrap() {}
                let ends = table.entries().iter().map(|e| e.offset + e.meta.len_bytes());
                assert!(ends.zip(table.entries().iter().skip(1)).all(|(end, next)| end <= next.offset));
                let again = BundleTable::read(&table.to_bytes()).unwrap();
                assert_eq!((&again, again.digests()), (&table, table.digests()));
                if let Some(digests) = table.digests() {
                    let meta = TensorMeta::of(DType::U8, &[table.body_len()]).unwrap();
                    assert!(digests.covered_by_all(&meta, input).is_some());
                }
                format!("{} tensors", table.entries().len())
            }
            Err(e) => {
                // Of several errors each may find another one first.
                assert!(BundleTable::check(input, 0).is_err());
                e.to_string()
            }
        });
    }
}
