//! Atomic operations on words of memory, for fabrics whose device has them.

use super::{FabricError, LinkId, PostError, WorkId};
use crate::memory::{LocalSlice, RemoteSlice};

/// An operation on one word: a `u64` in the granting machine's byte order, at a multiple of 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Reads the word (on verbs: RDMA READ).
    Load,
    /// Adds to the word and wraps on overflow (FETCH_ADD).
    FetchAdd(u64),
    /// Replaces the word if it has the expected value (CMP_AND_SWP).
    CompareSwap {
        /// The value that the word must have.
        expected: u64,
        /// The value that the word gets.
        new: u64,
    },
}

/// A fabric that operates on words of memory. [`Fabric::atomics`](super::Fabric::atomics) returns it.
pub trait Atomics {
    /// Applies `op` to the word `remote` of the peer, atomically with respect to all operations that reach the word
    /// over fabrics of the granting side. [`FabricEvent::AtomicDone`](super::FabricEvent::AtomicDone) follows.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then. [`PostError::Unsupported`] if this link has no atomic operations.
    fn post_atomic(&mut self, link: LinkId, work: WorkId, remote: RemoteSlice, op: AtomicOp) -> Result<(), PostError>;

    /// Applies `op` to a word of this side's own registered memory, through the same device that serves the peers. The
    /// processor must not do it, because atomic operations of a device and of a processor are not atomic to each other.
    /// [`FabricEvent::LocalAtomicDone`](super::FabricEvent::LocalAtomicDone) follows.
    ///
    /// # Errors
    /// [`FabricError`]; nothing was posted then.
    fn post_local_atomic(&mut self, work: WorkId, word: LocalSlice, op: AtomicOp) -> Result<(), FabricError>;
}
