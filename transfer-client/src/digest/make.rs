//! The digests of a push.

use super::hash::{Pieces, digest};
use transfer_core::memory::ALIGNMENT;
use transfer_core::op::Content;
use transfer_core::tensor::{Digest, TensorMeta};
use transfer_core::wire::Writer;
use transfer_core::wire::bundle::BundleTable;
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

    /// Makes the digests of the chunks of a body of `len` bytes in these pieces, each of which is followed by zeros up to a multiple of 64. `None`:
    /// none are asked for.
    pub(crate) fn of_pieces<'a>(
        self,
        pieces: impl Iterator<Item = &'a [u8]>,
        len: u64,
        threads: usize,
    ) -> Option<ChunkDigests> {
        let Digesting { kind, chunk_bytes } = self;
        let kind = kind?;
        let mut next = 0;
        let pieces = pieces.map(|bytes| {
            let at = next;
            next += (bytes.len() as u64).next_multiple_of(ALIGNMENT);
            (at, bytes)
        });
        let pieces = pieces.collect();
        let chunks = Pieces { pieces, len }.digests(kind, chunk_bytes, threads);
        Some(ChunkDigests { kind, chunk_bytes, chunks })
    }
}

/// The bytes of a field without digests.
pub(crate) fn no_digests() -> Vec<u8> {
    let mut w = Writer::new();
    Digests::write(None, &mut w);
    w.into_vec()
}

/// The digests of the chunks of a version that is about to be pushed.
pub(crate) struct ChunkDigests {
    kind: Digest,
    chunk_bytes: u32,
    chunks: Vec<u8>,
}

impl ChunkDigests {
    /// The digest of all, if `metadata` stands in front of the digests.
    fn of_all(&self, meta: &TensorMeta, metadata: &[u8]) -> Vec<u8> {
        let ChunkDigests { kind, chunk_bytes, ref chunks } = *self;
        let unknown = Digests::new(kind, chunk_bytes, vec![0; kind.len_bytes()], chunks.clone());
        let mut all = Writer::new();
        all.raw(metadata);
        Digests::write(Some(&unknown), &mut all);
        // Cannot fail: the metadata has the digests.
        digest(kind, &unknown.covered_by_all(meta, all.as_slice()).unwrap_or_default())
    }

    /// Stamps the table of a bundle with what it and the body are: the same tensors make the same table, and others another stamp.
    pub(crate) fn stamp(&self, meta: &TensorMeta, table: &mut [u8]) -> Content {
        BundleTable::set_stamp(table, 0);
        let all = self.of_all(meta, table);
        let content = Content::of_digest(all.first_chunk().map_or(0, |first| u64::from_be_bytes(*first)));
        BundleTable::set_stamp(table, content.number().get());
        content
    }

    /// The bytes of the field: `metadata` stands in front of it.
    pub(crate) fn field(self, meta: &TensorMeta, metadata: &[u8]) -> Vec<u8> {
        let all = self.of_all(meta, metadata);
        let mut w = Writer::new();
        Digests::write(Some(&Digests::new(self.kind, self.chunk_bytes, all, self.chunks)), &mut w);
        w.into_vec()
    }
}
