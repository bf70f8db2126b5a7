//! Digests of a version: of each chunk of its body, and of all of it. The push makes them, and readers compare. They are
//! the last field of the version's metadata. This file knows where they lie, and computes none.
//!
//! A bundle's table always ends with this field. The metadata of record batches ends with a [mark](MARK) and the field if there
//! are digests. A single tensor has metadata only then: [another mark](TENSOR_MARK), its description as control messages have it, and the field.
//! So a reader that fetches it in parts knows what it is.
//!
//! | field | bytes |
//! |---|---|
//! | kind: 0 none, 1 XXH3-128, 2 BLAKE3. Without digests nothing follows | 1 |
//! | length of a chunk, a multiple of 64 | 4 |
//! | digest of all | 16 or 32 |
//! | digest of each chunk of the body, in order; the last chunk may be shorter | 16 or 32 for each |
//!
//! The digest of all is over the description of the version, as control messages have it, and over the metadata without
//! this digest. So it covers the digests of the chunks, and with them each byte of the body.

use super::ranges::RANGE_BYTES;
use super::{Reader, WireError, Writer};
use crate::memory::{ALIGNMENT, padded};
use crate::tensor::{Digest, MAX_RANK, TensorMeta};
use std::ops::Range;

/// What stands in front of the field where it is not there without digests: `TDIG`, and layout 1.
pub const MARK: [u8; 5] = *b"TDIG\x01";

/// What stands in front of description and field of a single tensor: `TDIG`, and layout 2.
pub const TENSOR_MARK: [u8; 5] = *b"TDIG\x02";

/// The longest description of a tensor, in bytes.
const MAX_DESCRIPTION_BYTES: usize = 2 + 8 * MAX_RANK;

/// The default length of a chunk, in bytes.
pub const CHUNK_BYTES: u32 = 4 << 20;

/// The lengths that a chunk may have, in bytes.
pub const CHUNK_LENGTHS: Range<u32> = 64 << 10..(1 << 30) + 1;

/// The digests of a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    kind: Digest,
    chunk_bytes: u32,
    all: Vec<u8>,
    chunks: Vec<u8>,
}

impl Digests {
    /// Creates the digests of a body in chunks of `chunk_bytes`. `all` and `chunks` are the bytes of the digests.
    #[must_use]
    pub fn new(kind: Digest, chunk_bytes: u32, all: Vec<u8>, chunks: Vec<u8>) -> Digests {
        Digests { kind, chunk_bytes, all, chunks }
    }

    /// Reads the field of a version with a body of `body_len` bytes.
    ///
    /// # Errors
    /// [`WireError`] for an unknown kind, a length that no chunk has, and fewer digests than the body has chunks.
    pub fn read(r: &mut Reader<'_>, body_len: u64) -> Result<Option<Digests>, WireError> {
        let Some((kind, chunk_bytes)) = read_head(r)? else { return Ok(None) };
        let all = r.raw(kind.len_bytes())?.to_vec();
        let chunks = r.raw(list_bytes(kind, chunk_bytes, body_len))?.to_vec();
        Ok(Some(Digests { kind, chunk_bytes, all, chunks }))
    }

    /// Reads the mark and the field, which are all that is left of the metadata. `None` if there is another thing.
    ///
    /// # Errors
    /// [`WireError`], as [`Digests::read`], and for another layout.
    pub fn read_marked(metadata: &[u8], body_len: u64) -> Result<Option<Digests>, WireError> {
        let Some(rest) = metadata.strip_prefix(&MARK[..4]) else { return Ok(None) };
        let mut r = Reader::new("the digests of a version", rest);
        let layout = r.u8()?;
        if layout != MARK[4] {
            return Err(WireError::Value { what: "layout of digests", value: u64::from(layout), expected: "1" });
        }
        let digests = Digests::read(&mut r, body_len)?;
        r.end()?;
        Ok(digests)
    }

    /// Reads the metadata of a single tensor: its description and its digests. `None` if it is other metadata.
    ///
    /// # Errors
    /// [`WireError`], as [`Digests::read`], and for a description that is none.
    pub fn read_of_tensor(metadata: &[u8]) -> Result<Option<(TensorMeta, Digests)>, WireError> {
        let Some(rest) = metadata.strip_prefix(&TENSOR_MARK) else { return Ok(None) };
        let mut r = Reader::new("the digests of a tensor", rest);
        let meta = r.meta()?;
        Reader::zero("length of the metadata of a tensor in its digests", u64::from(meta.metadata_bytes()))?;
        let digests = Digests::read(&mut r, meta.len_bytes())?;
        r.end()?;
        Ok(digests.map(|digests| (meta, digests)))
    }

    /// Returns what stands in front of the field of a tensor.
    #[must_use]
    pub fn mark_of_tensor(meta: &TensorMeta) -> Vec<u8> {
        let mut w = Writer::new();
        w.raw(&TENSOR_MARK).meta(meta);
        w.into_vec()
    }

    /// Skips the field, and keeps nothing of it.
    ///
    /// # Errors
    /// As [`Digests::read`].
    pub(super) fn skip(r: &mut Reader<'_>, body_len: u64) -> Result<(), WireError> {
        let Some((kind, chunk_bytes)) = read_head(r)? else { return Ok(()) };
        r.raw(kind.len_bytes())?;
        r.raw(list_bytes(kind, chunk_bytes, body_len)).map(|_| ())
    }

    /// Writes the field.
    pub fn write(digests: Option<&Digests>, w: &mut Writer) {
        match digests {
            None => w.u8(0),
            Some(Digests { kind, chunk_bytes, all, chunks }) => {
                w.u8(*kind as u8).u32(*chunk_bytes).raw(all).raw(chunks)
            }
        };
    }

    /// Returns the length of the field with digests of this kind, in bytes.
    #[must_use]
    pub fn field_bytes(kind: Digest, chunk_bytes: u32, body_len: u64) -> usize {
        5_usize.saturating_add(kind.len_bytes()).saturating_add(list_bytes(kind, chunk_bytes, body_len))
    }

    /// Returns the length of what [`Digests::write`] writes, in bytes.
    pub(super) fn written_bytes(digests: Option<&Digests>) -> usize {
        digests.map_or(1, |digests| 5 + digests.all.len() + digests.chunks.len())
    }

    /// Returns the room in the arena that a tensor of `body_len` bytes takes beside its own, if it has digests of chunks of
    /// [`CHUNK_BYTES`]: for mark, description and field, a table of one range, and zeros.
    #[must_use]
    pub fn room_beside(kind: Digest, body_len: u64) -> u64 {
        let in_front = TENSOR_MARK.len() + MAX_DESCRIPTION_BYTES;
        let field = Digests::field_bytes(kind, CHUNK_BYTES, body_len).saturating_add(in_front) as u64;
        let table = RANGE_BYTES as u64 + ALIGNMENT;
        padded(field).and_then(|field| field.checked_add(padded(table)?)).unwrap_or(u64::MAX)
    }

    /// Returns the hash function.
    #[must_use]
    pub fn kind(&self) -> Digest {
        self.kind
    }

    /// Returns the length of a chunk, in bytes.
    #[must_use]
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// Returns the digest of all.
    #[must_use]
    pub fn all(&self) -> &[u8] {
        &self.all
    }

    /// Returns the digests of the chunks, one behind the other.
    #[must_use]
    pub fn chunks(&self) -> &[u8] {
        &self.chunks
    }

    /// Returns the bytes that the digest of all is over: the description of the version, and its metadata without that digest.
    /// `None` if the metadata is shorter than its digests.
    #[must_use]
    pub fn covered_by_all(&self, meta: &TensorMeta, metadata: &[u8]) -> Option<Vec<u8>> {
        let end = metadata.len().checked_sub(self.chunks.len())?;
        let start = end.checked_sub(self.all.len())?;
        let mut w = Writer::new();
        w.meta(meta).raw(&metadata[..start]).raw(&metadata[end..]);
        Some(w.into_vec())
    }
}

fn read_head(r: &mut Reader<'_>) -> Result<Option<(Digest, u32)>, WireError> {
    let n = r.u8()?;
    if n == 0 {
        return Ok(None);
    }
    let (what, value) = ("kind of digests", u64::from(n));
    let kind = Digest::from_wire(n).ok_or(WireError::Value { what, value, expected: "0 to 2" })?;
    let chunk_bytes = r.u32()?;
    match is_chunk_length(chunk_bytes) {
        true => Ok(Some((kind, chunk_bytes))),
        false => {
            let (what, value) = ("length of a chunk", u64::from(chunk_bytes));
            Err(WireError::Value { what, value, expected: "a multiple of 64 from 64 KiB to 1 GiB" })
        }
    }
}

/// Whether chunks may be this long.
#[must_use]
pub fn is_chunk_length(bytes: u32) -> bool {
    CHUNK_LENGTHS.contains(&bytes) && u64::from(bytes).is_multiple_of(ALIGNMENT)
}

/// The length of the digests of all chunks. More than there can be is cut short for the reader.
fn list_bytes(kind: Digest, chunk_bytes: u32, body_len: u64) -> usize {
    let chunks = body_len.div_ceil(u64::from(chunk_bytes));
    usize::try_from(chunks).unwrap_or(usize::MAX).saturating_mul(kind.len_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn digests_read_back_and_no_others_do() {
        let body_len = 3 * u64::from(CHUNK_BYTES) - 64;
        for kind in Digest::ALL {
            let len = kind.len_bytes();
            let digests = Digests::new(kind, CHUNK_BYTES, vec![1; len], vec![2; 3 * len]);
            let mut w = Writer::new();
            Digests::write(Some(&digests), &mut w);
            let bytes = w.into_vec();
            assert_eq!(bytes.len(), Digests::field_bytes(kind, CHUNK_BYTES, body_len));
            let read = |bytes: &[u8], body_len| {
                let mut r = Reader::new("digests", bytes);
                let read = Digests::read(&mut r, body_len);
                let mut skipped = Reader::new("digests", bytes);
                assert_eq!(read.as_ref().err(), Digests::skip(&mut skipped, body_len).as_ref().err());
                read.and_then(|read| r.end().map(|()| read))
            };
            assert_eq!(read(&bytes, body_len), Ok(Some(digests)));
            assert!(read(&bytes, body_len + 65).is_err() && read(&bytes, u64::MAX).is_err());
            assert!(read(&bytes, body_len - u64::from(CHUNK_BYTES)).is_err());
            (0..bytes.len()).for_each(|end| assert!(read(&bytes[..end], body_len).is_err(), "{end} bytes"));
            for (at, value, says) in
                [(0, 3, "kind of digests is 3, expected 0 to 2"), (1, 1, "length of a chunk is 4194305")]
            {
                let mut wrong = bytes.clone();
                wrong[at] = value;
                assert!(read(&wrong, body_len).unwrap_err().to_string().contains(says));
            }
        }
        assert_eq!(Digests::read(&mut Reader::new("digests", &[0]), body_len), Ok(None));
    }

    // Promise: bytes-from-outside
    #[test]
    fn fuzz_marked_digests() {
        let examples = Digest::ALL.map(|kind| {
            let digests = Digests::new(kind, 64 << 10, vec![1; kind.len_bytes()], vec![2; 2 * kind.len_bytes()]);
            let mut w = Writer::new();
            w.raw(&MARK);
            Digests::write(Some(&digests), &mut w);
            w.into_vec()
        });
        transfer_fuzz::Target::new("marked-digests", examples).bound(1 << 20).run(|input| {
            match Digests::read_marked(input, 100_000) {
                Ok(Some(digests)) => {
                    let mut w = Writer::new();
                    w.raw(&MARK);
                    Digests::write(Some(&digests), &mut w);
                    assert_eq!(w.as_slice(), input);
                    digests.kind().name().to_owned()
                }
                Ok(None) => "none".to_owned(),
                Err(e) => e.to_string(),
            }
        });
    }

    // Promise: bytes-from-outside
    #[test]
    fn fuzz_digests_of_tensors() {
        let meta = TensorMeta::of(DType::F32, &[128, 256]).unwrap();
        let written = |meta: &TensorMeta, digests: &Digests| {
            let mut w = Writer::new();
            w.raw(&Digests::mark_of_tensor(meta));
            Digests::write(Some(digests), &mut w);
            w.into_vec()
        };
        let examples = Digest::ALL.map(|kind| {
            let len = kind.len_bytes();
            written(&meta, &Digests::new(kind, 64 << 10, vec![1; len], vec![2; 2 * len]))
        });
        assert_eq!(Digests::read_of_tensor(&examples[0]).unwrap().unwrap().0, meta);
        transfer_fuzz::Target::new("digests-of-tensors", examples).bound(1 << 20).run(|input| {
            match Digests::read_of_tensor(input) {
                Ok(Some((meta, digests))) => {
                    assert_eq!(written(&meta, &digests), input);
                    digests.kind().name().to_owned()
                }
                Ok(None) => "none".to_owned(),
                Err(e) => e.to_string(),
            }
        });
    }

    #[test]
    fn digest_of_all_covers_description_metadata_and_the_list() {
        let digests = Digests::new(Digest::Xxh3, CHUNK_BYTES, vec![1; 16], vec![2; 32]);
        let mut w = Writer::new();
        w.raw(b"table");
        Digests::write(Some(&digests), &mut w);
        let metadata = w.into_vec();
        let meta = TensorMeta::of(DType::U8, &[64]).unwrap();
        let covered = digests.covered_by_all(&meta, &metadata).unwrap();
        let mut description = Writer::new();
        description.meta(&meta);
        let expected = [description.as_slice(), b"table", &[1], &CHUNK_BYTES.to_le_bytes(), &[2; 32]].concat();
        assert_eq!(covered, expected);
        assert_eq!(digests.covered_by_all(&meta, &metadata[..40]), None);
    }
}
