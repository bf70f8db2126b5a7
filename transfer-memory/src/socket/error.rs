//! What can go wrong with a socket: at its address, and once it is connected.

use crate::Errno;
use std::path::PathBuf;
use std::time::Duration;

/// A path that cannot be listened at or connected to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Longer than a socket's address can be.
    #[error("the socket path {path:?} has {len} bytes; an address has room for {max}")]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
        /// The most possible.
        max: usize,
    },
    /// Somebody listens there already.
    #[error("somebody listens at {path:?} already; stop that process or choose another path")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something lies there that is no socket; it is not replaced.
    #[error("{path:?} exists and is no socket; it is left alone")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Nobody listens there.
    #[error(
        "nobody listens at {path:?}: {source}; is the sidecar running, and is its directory shared with this process?"
    )]
    NobodyListens {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// Any other system call that failed.
    #[error("cannot {step} the socket {path:?}: {source}")]
    System {
        /// What was tried: "bind", "connect to".
        step: &'static str,
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
}

/// A connected socket that failed. After any of these but [`SocketError::TimedOut`] the connection is of no more use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The peer has closed its end, or is dead.
    #[error("the peer has closed the connection")]
    Closed,
    /// The deadline passed.
    #[error("the peer did not {what} within {waited:?}")]
    TimedOut {
        /// "send" or "receive".
        what: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A message that is longer than any can be. It is lost.
    #[error("the peer sent a message of more than {max} bytes")]
    MessageTooLong {
        /// The most a message may have.
        max: usize,
    },
    /// A message with more descriptors than were expected. All of them are closed.
    #[error("the peer sent more than the {expected} file descriptors expected")]
    TooManyDescriptors {
        /// How many were expected at most.
        expected: usize,
    },
    /// A system call that failed.
    #[error("cannot {step} on the session's socket: {source}")]
    System {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        source: Errno,
    },
}
