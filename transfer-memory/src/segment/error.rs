//! The errors of making a segment, and of accessing it.

use super::BudgetExceeded;
use crate::Errno;

/// The reason why a segment could not be made or adopted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// A length that no segment can have.
    #[error("a segment has 1 to {max} bytes, {len} were asked for")]
    BadLength {
        /// The length asked for, in bytes.
        len: u64,
        /// The largest one possible, in bytes.
        max: u64,
    },
    /// The configured bound of pinned memory is reached.
    #[error(transparent)]
    Budget(#[from] BudgetExceeded),
    /// Pinning was required and the kernel refused it.
    #[error("cannot lock {len} bytes in memory: {source}; raise RLIMIT_MEMLOCK (ulimit -l) or grant CAP_IPC_LOCK")]
    NotLocked {
        /// The segment's length in bytes.
        len: u64,
        /// The kernel's error.
        source: Errno,
    },
    /// The process may not make files of that length, and a segment is one for the kernel. Beyond the limit the kernel ends a
    /// process by SIGXFSZ.
    #[error(
        "a segment of {len} bytes is longer than the files that this process may make, of {limit} bytes: raise RLIMIT_FSIZE (ulimit -f)"
    )]
    FileSize {
        /// The segment's length in bytes.
        len: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Any other system call that failed.
    #[error("cannot {step} a segment of {len} bytes: {source}")]
    System {
        /// The failed step: "create", "map", "prefault".
        step: &'static str,
        /// The segment's length in bytes.
        len: u64,
        /// The kernel's error.
        source: Errno,
    },
    /// A descriptor that is no memfd, because it has no seals.
    #[error("the descriptor received for a segment is no memfd (reading its seals failed: {source})")]
    NotMemfd {
        /// The kernel's error.
        source: Errno,
    },
    /// A memfd whose size could still change, which could kill every process that maps it.
    #[error(
        "the memfd received for a segment can still be {can}: \
         F_SEAL_SHRINK and F_SEAL_GROW must be set before it is passed on"
    )]
    Unsealed {
        /// "shrunk", "grown" or "shrunk and grown".
        can: &'static str,
    },
    /// A memfd that others could still map for writing.
    #[error(
        "the memfd received for an arena can still be mapped for writing: F_SEAL_FUTURE_WRITE and F_SEAL_SEAL must be set"
    )]
    StillWritable,
    /// A memfd that lacks some of its pages. A process that maps it would have to pay for them.
    #[error("the memfd received for a segment has {found} of its {expected} bytes in memory: all of them must be")]
    Sparse {
        /// The bytes of the pages that it has.
        found: u64,
        /// Its length in bytes.
        expected: u64,
    },
    /// A memfd of another size than announced.
    #[error("the memfd received for a segment has {found} bytes, {expected} were announced")]
    WrongSize {
        /// Its size in bytes.
        found: u64,
        /// The size announced, in bytes.
        expected: u64,
    },
}

/// An access to a mapping that is not allowed. Nothing was read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The range does not lie in the mapping.
    #[error("bytes {offset}..+{len} do not lie in a mapping of {mapping_len} bytes")]
    OutOfBounds {
        /// Where the range starts, in bytes from the mapping's start.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// The mapping's length in bytes.
        mapping_len: u64,
    },
    /// A write to a mapping that is read-only.
    #[error("bytes {offset}..+{len} lie in a mapping that is read-only here")]
    ReadOnly {
        /// Where the range starts, in bytes from the mapping's start.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
}
