//! Atomic operations on words of memory, for fabrics whose device has them.

use super::{FabricError, LinkId, PostError, WorkId};
use crate::memory::{LocalSlice, RemoteSlice};

/// An operation on one word: a `u64` in the granting machine's byte order, at a multiple of 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Read it (on verbs: RDMA READ).
    Load,
    /// Add to it, and wrap (FETCH_ADD).
    FetchAdd(u64),
    /// Replace it where it is what is expected (CMP_AND_SWP).
    CompareSwap {
        /// What it must be.
        expected: u64,
        /// What it becomes.
        new: u64,
    },
}

/// A fabric that operates on words of memory: [`Fabric::atomics`](super::Fabric::atomics).
pub trait Atomics {
    /// Does `op` to the word `remote` of the peer, atomically to all operations that reach it over fabrics of the granting
    /// side. [`FabricEvent::AtomicDone`](super::FabricEvent::AtomicDone) follows.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then. [`PostError::Unsupported`] where this link cannot.
    fn post_atomic(&mut self, link: LinkId, work: WorkId, remote: RemoteSlice, op: AtomicOp) -> Result<(), PostError>;

    /// Does `op` to a word of this side's own registered memory, by the device that does it for peers: the atomic operations
    /// of a device and of a processor are not atomic to each other.
    /// [`FabricEvent::LocalAtomicDone`](super::FabricEvent::LocalAtomicDone) follows.
    ///
    /// # Errors
    /// [`FabricError`]; nothing was posted then.
    fn post_local_atomic(&mut self, work: WorkId, word: LocalSlice, op: AtomicOp) -> Result<(), FabricError>;
}
