//! Bodies of many buffers: gathered in the arena for a push, and found again in a fetched version.
//!
//! A buffer that is frozen in this worker's arena is pushed where it lies; any other is copied into the arena. The push
//! then names the ranges in a table, see [`transfer_core::wire::ranges`]. On the same node a reader maps these ranges;
//! at another node they land as one.
//!
//! # Layout
//! - this file: the pieces of a body. `gather`: their ranges in the arena, for a push. `copied`: copies whose allocations can
//!   be taken back. `body`: a fetched body.

mod body;
mod copied;
mod gather;

pub(crate) use body::{Body, OutOfBody};
pub(crate) use copied::{LONG_BYTES, copy_buffers, copy_threads, on_threads};
pub(crate) use gather::{Gathered, gather};

use arrow_buffer::Buffer;
use std::ops::Deref;
use transfer_core::tensor::TensorMeta;
use transfer_memory::arena::Block;

/// Every buffer of a body starts at a multiple of this.
pub(crate) const ALIGNMENT: usize = transfer_core::memory::ALIGNMENT as usize;

/// A body in pieces, and the metadata in front of it, ready to be pushed.
#[derive(Debug, Default)]
pub(crate) struct Pieces<'a> {
    pub(crate) metadata: Vec<u8>,
    /// The buffers of the body, in order; each is followed by zeros up to a multiple of 64.
    pub(crate) buffers: Vec<Piece<'a>>,
    /// Whether the allocations of copied buffers have nothing else in them, so that they can be taken back.
    pub(crate) apart: bool,
    /// Where [`gather`] adds the digests of the version.
    pub(crate) digests: DigestPlace,
    /// The description, if this is a tensor of one buffer, which no zeros follow. `None`: bytes.
    pub(crate) tensor: Option<TensorMeta>,
    /// The bytes of buffers that [`copy_buffers`] has copied.
    pub(crate) copied: u64,
    /// Where [`gather`] will copy buffers, once there is room for what else it needs.
    pub(crate) room: Option<Block>,
}

/// Where the digests of a version lie.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DigestPlace {
    /// At the end of the metadata, behind a mark, if the push asks for some.
    #[default]
    Marked,
    /// In the last field of the metadata, which says whether there are any.
    Field,
}

/// One buffer of a body.
#[derive(Debug, Clone)]
pub(crate) enum Piece<'a> {
    /// Memory of the arena, of Arrow, or of a fetch, which stays as long as this does.
    Shared(Buffer),
    /// The caller's memory.
    Borrowed(&'a [u8]),
}

impl Pieces<'_> {
    /// The length of the body.
    pub(crate) fn body_len(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.len().next_multiple_of(ALIGNMENT)).sum()
    }
}

impl Deref for Piece<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Piece::Shared(buffer) => buffer,
            Piece::Borrowed(bytes) => bytes,
        }
    }
}
