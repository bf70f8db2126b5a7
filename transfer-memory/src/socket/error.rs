//! Errors of sockets: of their addresses, and of connections.

use crate::Errno;
use std::path::PathBuf;
use std::time::Duration;

/// A path cannot be listened at or connected to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The path is too long for a socket's address.
    #[error("the socket path {path:?} has {len} bytes; an address has room for {max}")]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// There is a listener already.
    #[error("somebody listens at {path:?} already; stop that process or choose another path")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The file is no socket; it is not replaced.
    #[error("{path:?} exists and is no socket; it is left alone")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// There is no listener.
    #[error(
        "nobody listens at {path:?}: {source}; is the sidecar running, and is its directory shared with this process?"
    )]
    NobodyListens {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: Errno,
    },
    /// Another system call has failed.
    #[error("cannot {step} the socket {path:?}: {source}")]
    System {
        /// The call: "bind", "connect to".
        step: &'static str,
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: Errno,
    },
}

/// A connected socket has failed. After any of these except [`SocketError::TimedOut`] the connection is unusable.
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
        /// The time of the wait.
        waited: Duration,
    },
    /// A message exceeds the limit. It is lost.
    #[error("the peer sent a message of more than {max} bytes")]
    MessageTooLong {
        /// The limit.
        max: usize,
    },
    /// A message has more descriptors than expected. All of them are closed.
    #[error("the peer sent more than the {expected} file descriptors expected")]
    TooManyDescriptors {
        /// The largest expected number.
        expected: usize,
    },
    /// A system call that failed.
    #[error("cannot {step} on the session's socket: {source}")]
    System {
        /// The call.
        step: &'static str,
        /// The kernel's error.
        source: Errno,
    },
}
