//! Buffers as ranges of the arena.

use super::copied::copy_threads;
use super::{DigestPlace, Pieces};
use crate::digest::{Digesting, no_digests};
use crate::error::Error;
use crate::session::{Held, Session, SharedRange};
use std::borrow::Cow;
use std::task::Waker;
use transfer_core::memory::{ALIGNMENT, padded};
use transfer_core::op::Content;
use transfer_core::tensor::{DType, MAX_METADATA_BYTES, TensorMeta};
use transfer_core::wire::digests::{Digests, MARK};
use transfer_core::wire::ranges::{ArenaRange, MAX_RANGES, RANGE_BYTES, write_range};
use transfer_memory::arena::{Arena, Block};

/// A gathered body that can be pushed.
pub(crate) struct Gathered {
    pub(crate) held: Held,
    pub(crate) meta: TensorMeta,
    pub(crate) ranges: u32,
    /// The bytes of buffers that were copied into the arena.
    pub(crate) copied: u64,
    /// What it is known by at nodes that have it from elsewhere, if it is a bundle with digests.
    pub(crate) content: Option<Content>,
}

/// A part of the body, in its order.
enum Part {
    /// A range that is already in the arena.
    Lies(ArenaRange),
    /// A range in the block of copied buffers.
    Copied(ArenaRange),
    /// A number of zeros.
    Zeros(u64),
}

/// Finds the buffers in the arena, copies the others into it, and writes the metadata and the table. `None` if there is
/// no room now; what room was found stays with the pieces.
pub(crate) fn gather(
    session: &Session,
    pieces: &mut Pieces<'_>,
    digesting: Digesting,
    waker: &Waker,
    last_try: bool,
) -> Result<Option<Gathered>, Error> {
    let described = match &pieces.tensor {
        Some(meta) => meta.clone(),
        None => TensorMeta::of(DType::U8, &[pieces.body_len() as u64])?,
    };
    let body_len = described.len_bytes();
    let mut metadata = Cow::Borrowed(&pieces.metadata[..]);
    if pieces.digests == DigestPlace::Marked && digesting.is_asked() {
        match &pieces.tensor {
            Some(tensor) => metadata.to_mut().extend(Digests::mark_of_tensor(tensor)),
            None => metadata.to_mut().extend_from_slice(&MARK),
        }
    }
    let has_field = pieces.digests == DigestPlace::Field || digesting.is_asked();
    let digests_len = if has_field { digesting.field_bytes(body_len) } else { 0 };
    let metadata_len = metadata.len().saturating_add(digests_len);
    let metadata_bytes = u32::try_from(metadata_len).unwrap_or(u32::MAX).min(MAX_METADATA_BYTES + 1);
    let meta = described.with_metadata(metadata_bytes)?;
    let mut found = Found::new(session.arena(), pieces, false);
    if found.parts.len() as u64 > u64::from(MAX_RANGES) {
        // More ranges than a table may have: copy everything into one piece.
        found = Found::new(session.arena(), pieces, true);
    }
    let copied = match found.copied_len {
        0 => None,
        len => match pieces.room.take().filter(|block| block.slice().len == len) {
            Some(block) => Some(block),
            None => match session.allocate_or_wait(len, waker, last_try)? {
                Some(block) => Some(block),
                None => return Ok(None),
            },
        },
    };
    let table = found.parts.len() * RANGE_BYTES;
    let head_len = meta.body_offset() + table as u64 + ALIGNMENT;
    let Some(mut head) = session.allocate_or_wait(head_len, waker, last_try)? else {
        // It is kept: memory that is freed wakes all that wait for room, and this push, too.
        pieces.room = copied;
        return Ok(None);
    };
    let copied = copied.map(|block| found.copy_in(block, pieces));
    let chunks = digesting.of_pieces(found.bytes(copied.as_ref(), pieces), body_len, copy_threads());
    let is_bundle = pieces.digests == DigestPlace::Field;
    let content = chunks.as_ref().filter(|_| is_bundle).map(|chunks| chunks.stamp(&meta, metadata.to_mut()));
    let digests = match chunks {
        Some(chunks) => chunks.field(&meta, &metadata),
        None if has_field => no_digests(),
        None => Vec::new(),
    };
    let ranges = found.write_head(&mut head, copied.as_ref(), (&metadata, &digests), meta.body_offset());
    let held = Held::Gathered { head, ranges: found.shared, copied };
    Ok(Some(Gathered { held, meta, ranges, copied: found.copied_bytes, content }))
}

/// The places of the buffers.
struct Found {
    parts: Vec<Part>,
    shared: Vec<SharedRange>,
    /// The buffers to copy, and their offsets in the block.
    to_copy: Vec<(usize, u64)>,
    /// The length of the block, padding included.
    copied_len: u64,
    copied_bytes: u64,
}

impl Found {
    fn new(arena: &Arena, pieces: &Pieces<'_>, copy_all: bool) -> Found {
        let (parts, shared, to_copy) = (Vec::with_capacity(pieces.buffers.len()), Vec::new(), Vec::new());
        let mut found = Found { parts, shared, to_copy, copied_len: 0, copied_bytes: 0 };
        for (n, buffer) in pieces.buffers.iter().enumerate() {
            let len = buffer.len() as u64;
            let there = match copy_all {
                true => None,
                false => SharedRange::find_anywhere(arena, buffer.as_ptr(), len),
            };
            match there {
                Some(range) if pieces.tensor.is_some() => {
                    found.add(Part::Lies(ArenaRange { offset: range.slice().offset, len }));
                    found.shared.push(range);
                }
                Some(range) => found.lies(arena, range),
                None => {
                    let room = padded(len).unwrap_or(len);
                    found.add(Part::Copied(ArenaRange { offset: found.copied_len, len: room }));
                    found.to_copy.push((n, found.copied_len));
                    found.copied_len += room;
                    found.copied_bytes += len;
                }
            }
        }
        found
    }

    /// Adds a buffer that lies in the arena. The bytes up to the next multiple of 64 are included if they are zeros, as
    /// they are behind every allocation. Otherwise zeros from elsewhere replace them, so that only pushed bytes are
    /// sent.
    fn lies(&mut self, arena: &Arena, range: SharedRange) {
        let slice = range.slice();
        let missing = padded(slice.len).unwrap_or(slice.len) - slice.len;
        let end = slice.offset + slice.len;
        let mut behind = [1; ALIGNMENT as usize];
        let behind = &mut behind[..missing as usize];
        let zeros = end + missing <= range.allocation_end()
            && arena.copy_out(end, behind).is_ok()
            && behind.iter().all(|byte| *byte == 0);
        let along = if zeros { missing } else { 0 };
        self.add(Part::Lies(ArenaRange { offset: slice.offset, len: slice.len + along }));
        if along < missing {
            self.add(Part::Zeros(missing));
        }
        self.shared.push(range);
    }

    /// Adds a part. It is merged with the last part if it continues it.
    fn add(&mut self, part: Part) {
        match (self.parts.last_mut(), &part) {
            (Some(Part::Lies(last)), Part::Lies(next)) | (Some(Part::Copied(last)), Part::Copied(next))
                if last.end() == Some(next.offset) =>
            {
                last.len += next.len;
            }
            _ => self.parts.push(part),
        }
    }

    fn copy_in(&self, mut block: Block, pieces: &Pieces<'_>) -> Block {
        for (n, at) in &self.to_copy {
            let bytes = &pieces.buffers[*n];
            // Cannot fail: the block has room for all of them.
            let _ = block.copy_in_parallel(*at, bytes, copy_threads());
            let end = *at as usize + bytes.len();
            block.as_bytes_mut()[end..end.next_multiple_of(ALIGNMENT as usize)].fill(0);
        }
        block
    }

    /// The buffers, where they lie once they are copied.
    fn bytes<'a>(&'a self, copied: Option<&'a Block>, pieces: &'a Pieces<'_>) -> impl Iterator<Item = &'a [u8]> {
        let mut to_copy = self.to_copy.iter().peekable();
        pieces.buffers.iter().enumerate().map(move |(n, buffer)| {
            let copy = to_copy.next_if(|(copied, _)| *copied == n).zip(copied);
            let bytes = copy.and_then(|((_, at), block)| block.as_bytes().get(*at as usize..)?.get(..buffer.len()));
            bytes.unwrap_or(buffer)
        })
    }

    /// Writes the metadata, the table, and the zeros of the padding. Returns the number of ranges.
    fn write_head(
        &self,
        head: &mut Block,
        copied: Option<&Block>,
        (metadata, digests): (&[u8], &[u8]),
        table_at: u64,
    ) -> u32 {
        let start = head.slice().offset;
        let zeros_at = start + head.slice().len - ALIGNMENT;
        let copied_at = copied.map_or(0, |block| block.slice().offset);
        let mut table = Vec::with_capacity(self.parts.len() * RANGE_BYTES);
        for part in &self.parts {
            write_range(
                &mut table,
                match *part {
                    Part::Lies(range) => range,
                    Part::Copied(range) => ArenaRange { offset: copied_at + range.offset, len: range.len },
                    Part::Zeros(len) => ArenaRange { offset: zeros_at, len },
                },
            );
        }
        let bytes = head.as_bytes_mut();
        bytes.fill(0);
        bytes[..metadata.len()].copy_from_slice(metadata);
        bytes[metadata.len()..][..digests.len()].copy_from_slice(digests);
        bytes[table_at as usize..][..table.len()].copy_from_slice(&table);
        self.parts.len() as u32
    }
}
