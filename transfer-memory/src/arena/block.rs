//! A range of the arena with one owner.

use super::{Arena, LocalHolder};
use crate::segment::{MapError, Mapping, OwnedMemory};
use crate::view::{Bytes, Element, ViewError, cast, cast_mut};
use std::sync::Arc;
use transfer_core::memory::LocalSlice;

/// A range of the arena with one owner, which may write it. Freed on drop.
#[derive(Debug)]
pub struct Block {
    pub(super) arena: Arena,
    pub(super) offset: u64,
    len: u64,
    /// The memory, if it is registered and not a range of the arena.
    registered: Option<Arc<Mapping>>,
}

impl Block {
    /// Makes a block. The caller has recorded that the allocation of `len` bytes at `offset` has a writer.
    pub(super) fn new(arena: Arena, offset: u64, len: u64, registered: Option<Arc<Mapping>>) -> Block {
        Block { arena, offset, len, registered }
    }

    /// The range.
    #[must_use]
    pub fn slice(&self) -> LocalSlice {
        LocalSlice { segment: self.arena.id(), offset: self.offset, len: self.len }
    }

    /// The arena.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether it is registered memory.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.registered.is_some()
    }

    /// Whether it is registered memory that a value of this type owns.
    #[must_use]
    pub fn is_owned_by<M: OwnedMemory>(&self) -> bool {
        self.mapping().is_owned_by::<M>()
    }

    /// The memory in which it lies: the arena's, or its own if it is registered.
    #[must_use]
    pub fn mapping(&self) -> &Arc<Mapping> {
        self.registered.as_ref().unwrap_or(self.arena.mapping())
    }

    /// Where it begins in that memory.
    fn start(&self) -> u64 {
        if self.is_registered() { 0 } else { self.offset }
    }

    fn pointer(&self) -> *mut u8 {
        if let Some(mapping) = &self.registered {
            return mapping.start();
        }
        // SAFETY: the allocation lies in the mapping, whose first byte `base` is.
        unsafe { self.arena.0.base.add(self.offset as usize).as_ptr() }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: these are `len` bytes of the mapping, which the arena or this block keeps mapped. Only the owner of this block may
        // write them, and it is borrowed: no other allocation shares a byte with this one. Writes through the mapping
        // itself are allowed only to the holder of the range (the rule of `Mapping`). The sidecar, which its workers
        // trust, writes only ranges that it was lent. The seals keep every other process out.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len as usize) }
    }

    /// The bytes, writable.
    #[must_use]
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_bytes`, and `self` is borrowed mutably, so no other code in this process reads them. Other
        // processes have not been told of them yet.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.len as usize) }
    }

    /// The bytes as elements.
    ///
    /// # Errors
    /// [`ViewError::WrongSize`] where the length is no multiple of the element size, [`ViewError::InvalidValue`] for a
    /// `bool` that is neither 0 nor 1.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], ViewError> {
        cast(self.as_bytes())
    }

    /// The bytes as writable elements.
    ///
    /// # Errors
    /// As [`Block::as_slice`]. A block fresh from [`Arena::allocate`] may contain bytes that are no `bool`: fill it
    /// with zeros first.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T], ViewError> {
        cast_mut(self.as_bytes_mut())
    }

    /// Copies `bytes` to the `at`-th byte of the block with up to `threads` threads; see
    /// [`Mapping::copy_in_parallel`](crate::segment::Mapping::copy_in_parallel).
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] where they do not fit into the block; then nothing is written.
    pub fn copy_in_parallel(&mut self, at: u64, bytes: &[u8], threads: usize) -> Result<(), MapError> {
        self.copy_at(at, bytes, threads)
    }

    /// The copy of [`Block::copy_in_parallel`]. The caller has these bytes alone.
    pub(super) fn copy_at(&self, at: u64, bytes: &[u8], threads: usize) -> Result<(), MapError> {
        self.mapping().copy_in_parallel(self.place_of(at, bytes)?, bytes, threads)
    }

    /// The same past the cache, by this thread.
    pub(super) fn stream_at(&self, at: u64, bytes: &[u8]) -> Result<(), MapError> {
        self.mapping().stream_in(self.place_of(at, bytes)?, bytes)
    }

    /// Where the `at`-th byte lies in the mapping, if these bytes fit there.
    fn place_of(&self, at: u64, bytes: &[u8]) -> Result<u64, MapError> {
        let len = bytes.len() as u64;
        match at.checked_add(len).is_some_and(|end| end <= self.len) {
            true => Ok(self.start() + at),
            false => Err(MapError::OutOfBounds { offset: at, len, mapping_len: self.len }),
        }
    }

    /// Hands the range to the sidecar. The sidecar later says whether the range is freed or returned to its owner.
    #[must_use = "the range stays allocated until the sidecar, who must be told, gives it back"]
    pub fn lend(self) -> LocalSlice {
        // The sidecar becomes a holder before this block is dropped at the end of this function.
        self.arena.hand_over(self.offset, LocalHolder::Writer, true);
        self.slice()
    }

    /// Splits the block into neighbours of these lengths, each with one owner. Padded, they must fill the block.
    ///
    /// # Errors
    /// The block, if they do not.
    pub fn split(mut self, lens: &[u64]) -> Result<Vec<Block>, Block> {
        let (Some(parts), Some(first)) = (self.arena.split(self.offset, lens), lens.first()) else { return Err(self) };
        let rest = parts.into_iter().zip(lens).skip(1);
        let rest: Vec<_> = rest.map(|(offset, len)| Block::new(self.arena.clone(), offset, *len, None)).collect();
        self.len = *first;
        Ok(std::iter::once(self).chain(rest).collect())
    }

    /// Makes the block immutable. The view can be cloned, sliced and turned into Arrow arrays. The range is freed once
    /// the last view is dropped and the sidecar has returned it once for each time that it was shared.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        self.arena.hand_over(self.offset, LocalHolder::Readers, false);
        let (pointer, len) = (self.pointer(), self.len as usize);
        // SAFETY: the bytes stay mapped and allocated while the block lives, and only the views own it now. It gives
        // out no more references, because it is in their common box. No one writes the bytes any longer, as in
        // `as_bytes`.
        unsafe { Bytes::from_raw_parts(pointer, len, Arc::new(self)) }
    }
}

impl Block {
    /// Makes the block of a frozen view writable again. Returns the view if it is not the only one, if it is a part of a
    /// block, or if the sidecar holds the range.
    ///
    /// # Errors
    /// The view.
    pub fn thaw(bytes: Bytes) -> Result<Block, Bytes> {
        let (pointer, len) = (bytes.pointer(), bytes.len());
        let block = bytes.into_sole_owner::<Block>()?;
        let is_whole = block.pointer() == pointer.as_ptr() && block.len == len as u64;
        if is_whole && block.arena.thaw(block.offset) {
            return Ok(block);
        }
        // SAFETY: as in `freeze`: these are bytes of the block, which has readers still.
        Err(unsafe { Bytes::from_raw_parts(pointer.as_ptr(), len, Arc::new(block)) })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.hand_over(self.offset, LocalHolder::Nobody, false);
    }
}
