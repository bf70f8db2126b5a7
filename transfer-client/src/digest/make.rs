//! The digests of a push.

use super::hash::{Pieces, digest};
use transfer_core::memory::ALIGNMENT;
use transfer_core::tensor::{Digest, TensorMeta};
use transfer_core::wire::Writer;
use transfer_core::wire::digests::{CHUNK_BYTES, Digests};

/// The digests that a push asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digesting {
    pub(crate) kind: Option<Digest>,
    pub(crate) chunk_bytes: u32,
}

impl Default for Digesting {
    fn default() -> Digesting {
        Digesting { kind: None, chunk_bytes: CHUNK_BYTES }
    }
}

impl Digesting {
    /// The length of the field at the end of the metadata, in bytes.
    pub(crate) fn field_bytes(self, body_len: u64) -> usize {
        self.kind.map_or(1, |kind| Digests::field_bytes(kind, self.chunk_bytes, body_len))
    }

    /// Whether there are any.
    pub(crate) fn is_asked(self) -> bool {
        self.kind.is_some()
    }

    /// Begins the field: `metadata` stands in front of it.
    pub(crate) fn make<'a>(self, meta: &'a TensorMeta, metadata: &'a [u8]) -> Making<'a> {
        Making { digesting: self, meta, metadata }
    }
}

/// The digests of a version that is about to be pushed.
pub(crate) struct Making<'a> {
    digesting: Digesting,
    meta: &'a TensorMeta,
    /// All of the metadata but the digests.
    metadata: &'a [u8],
}

impl Making<'_> {
    /// The bytes of the field, for a body of `len` bytes in these pieces, each of which is followed by zeros up to a multiple of 64.
    pub(crate) fn of_pieces<'a>(self, pieces: impl Iterator<Item = &'a [u8]>, len: u64, threads: usize) -> Vec<u8> {
        let mut w = Writer::new();
        let Digesting { kind, chunk_bytes } = self.digesting;
        let Some(kind) = kind else {
            Digests::write(None, &mut w);
            return w.into_vec();
        };
        let mut next = 0;
        let pieces = pieces.map(|bytes| {
            let at = next;
            next += (bytes.len() as u64).next_multiple_of(ALIGNMENT);
            (at, bytes)
        });
        let pieces = pieces.collect();
        let chunks = Pieces { pieces, len }.digests(kind, chunk_bytes, threads);
        let unknown = Digests::new(kind, chunk_bytes, vec![0; kind.len_bytes()], chunks.clone());
        let mut metadata = Writer::new();
        metadata.raw(self.metadata);
        Digests::write(Some(&unknown), &mut metadata);
        // Cannot fail: the metadata has the digests.
        let covered = unknown.covered_by_all(self.meta, metadata.as_slice()).unwrap_or_default();
        let digests = Digests::new(kind, chunk_bytes, digest(kind, &covered), chunks);
        Digests::write(Some(&digests), &mut w);
        w.into_vec()
    }
}
