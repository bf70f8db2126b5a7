//! The comparison of what was fetched with the digests of its push.

use super::hash::{Pieces, digest};
use crate::error::{DigestError, Digested, Error};
use transfer_core::tensor::{Key, TensorMeta, Version};
use transfer_core::wire::digests::Digests;

/// Whether a fetch compares what it brings with the digests of the push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Proving {
    #[default]
    Not,
    /// Where the version has digests.
    IfThere,
    /// A version without digests is refused.
    Required,
}

/// What a version is proved with: what the fetch asks for, and the digests that the version has.
pub(crate) struct Proof<'a> {
    pub(crate) key: &'a Key,
    pub(crate) proving: Proving,
}

impl<'a> Proof<'a> {
    /// Compares nothing.
    pub(crate) fn none(key: &'a Key) -> Proof<'a> {
        Proof { key, proving: Proving::Not }
    }

    /// Compares a body that lies in these pieces, one behind the other, and all in front of it. Returns how many bytes of the body
    /// were compared: all of them, or none. `is_moved`: whether it lies elsewhere than its pusher has it.
    ///
    /// # Errors
    /// [`DigestError`].
    pub(crate) fn compare<'b>(
        &self,
        (version, meta, metadata): (Version, &TensorMeta, &[u8]),
        digests: Option<&Digests>,
        is_moved: bool,
        threads: usize,
        pieces: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<u64, Error> {
        let name = || (self.key.as_str().to_owned(), version.0);
        let digests = match (digests, self.proving) {
            (_, Proving::Not) | (None, Proving::IfThere) => return Ok(0),
            (None, Proving::Required) => {
                let (key, version) = name();
                return Err(DigestError::NoDigest { key, version }.into());
            }
            (Some(digests), _) => digests,
        };
        if !is_moved {
            return Ok(0);
        }
        let kind = digests.kind();
        let wrong = |what| {
            let (key, version) = name();
            Error::from(DigestError::WrongDigest { key, version, what, digest: kind })
        };
        let covered = digests.covered_by_all(meta, metadata);
        if covered.is_none_or(|covered| digest(kind, &covered) != digests.all()) {
            return Err(wrong(Digested::Head));
        }
        let mut len = 0;
        let pieces = pieces.into_iter().map(|bytes| {
            let at = len;
            len += bytes.len() as u64;
            (at, bytes)
        });
        let pieces = pieces.collect();
        let chunks = Pieces { pieces, len }.digests(kind, digests.chunk_bytes(), threads);
        let (found, expected) = (chunks.chunks(kind.len_bytes()), digests.chunks().chunks(kind.len_bytes()));
        match (0_u64..).zip(found.zip(expected)).find(|(_, (found, expected))| found != expected) {
            None => Ok(len),
            Some((index, _)) => {
                let start = index * u64::from(digests.chunk_bytes());
                let end = (start + u64::from(digests.chunk_bytes())).min(len);
                Err(wrong(Digested::Chunk { index, start, end }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Digesting;
    use super::*;
    use transfer_core::tensor::{DType, Digest};
    use transfer_core::wire::Reader;

    // Promise: digests
    #[test]
    fn each_byte_of_description_metadata_and_body_is_compared() {
        let body: Vec<u8> = (0..200_000_u32 / 64 * 64).map(|n| (n % 241) as u8).collect();
        let key = Key::new("k").unwrap();
        for kind in Digest::ALL {
            let digesting = Digesting { kind: Some(kind), chunk_bytes: 64 << 10 };
            let len = 5 + digesting.field_bytes(body.len() as u64);
            let meta = TensorMeta::of(DType::U8, &[body.len() as u64]).unwrap().with_metadata(len as u32).unwrap();
            let chunks = digesting.of_pieces([&body[..]].into_iter(), body.len() as u64, 1).unwrap();
            let field = chunks.field(&meta, b"table");
            let metadata = [b"table", &field[..]].concat();
            assert_eq!(metadata.len(), len);
            let compare = |meta: &TensorMeta, metadata: &[u8], body: &[u8]| {
                let digests = Digests::read(&mut Reader::new("digests", &metadata[5..]), body.len() as u64).unwrap();
                let proof = Proof { key: &key, proving: Proving::Required };
                proof.compare((Version(3), meta, metadata), digests.as_ref(), true, 1, [body])
            };
            assert_eq!(compare(&meta, &metadata, &body), Ok(body.len() as u64));
            let wrong = |what| {
                let digest = kind;
                Err(Error::from(DigestError::WrongDigest { key: "k".into(), version: 3, what, digest }))
            };
            // All but the fields by which the digests are found.
            for at in (0..len).filter(|at| !(5..10).contains(at)) {
                let mut changed = metadata.clone();
                changed[at] ^= 1;
                assert_eq!(compare(&meta, &changed, &body), wrong(Digested::Head), "byte {at}");
            }
            let other = TensorMeta::of(DType::I8, &[body.len() as u64]).unwrap().with_metadata(len as u32).unwrap();
            assert_eq!(compare(&other, &metadata, &body), wrong(Digested::Head));
            for at in [0, 65_535, 65_536, body.len() - 1] {
                let mut changed = body.clone();
                changed[at] ^= 0x80;
                let index = at as u64 / 65_536;
                let end = ((index + 1) * 65_536).min(body.len() as u64);
                let what = Digested::Chunk { index, start: index * 65_536, end };
                assert_eq!(compare(&meta, &metadata, &changed), wrong(what), "byte {at}");
            }
        }
    }
}
