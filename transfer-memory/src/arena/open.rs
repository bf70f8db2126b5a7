//! A block into which fetches land.

use super::{Block, LentSlice};
use crate::segment::MapError;
use transfer_core::memory::LocalSlice;

/// A range of the arena into which fetches land, several at the same time if need be. Nobody reads it meanwhile. Its owner has the
/// [`Block`] back when the sidecar holds it no more.
#[derive(Debug)]
pub struct OpenBlock(Block);

impl OpenBlock {
    /// Opens a block.
    #[must_use]
    pub fn new(block: Block) -> OpenBlock {
        OpenBlock(block)
    }

    /// The range.
    #[must_use]
    pub fn slice(&self) -> LocalSlice {
        self.0.slice()
    }

    /// Lends the range to the sidecar once more. [`Arena::give_back`](super::Arena::give_back) ends this. If this is dropped before,
    /// the range stays allocated until then.
    #[must_use = "the range stays lent until it is given back"]
    pub fn lend(&self) -> Option<LentSlice> {
        self.0.arena.lend_open(self.0.offset)
    }

    /// Copies `bytes` to the `at`-th byte with up to `threads` threads. No fetch lands in these bytes at the time.
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] where they do not fit into the block; then nothing is written.
    pub fn copy_in(&self, at: u64, bytes: &[u8], threads: usize) -> Result<(), MapError> {
        self.0.copy_at(at, bytes, threads)
    }

    /// Does the same on this thread, past the cache; see [`Mapping::stream_in`](crate::segment::Mapping::stream_in).
    ///
    /// # Errors
    /// [`MapError::OutOfBounds`] where they do not fit into the block; then nothing is written.
    pub fn stream_in(&self, at: u64, bytes: &[u8]) -> Result<(), MapError> {
        self.0.stream_at(at, bytes)
    }

    /// Returns the block, or this if the sidecar still holds it.
    ///
    /// # Errors
    /// This, unchanged.
    pub fn close(self) -> Result<Block, OpenBlock> {
        match self.0.arena.is_lent(self.0.offset) {
            false => Ok(self.0),
            true => Err(self),
        }
    }
}
