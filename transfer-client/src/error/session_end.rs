//! The reasons why a session is over.

use std::sync::Arc;
use transfer_core::memory::LocalSlice;
use transfer_core::wire::WireError;
use transfer_memory::arena::NotLent;
use transfer_memory::ring::RingError;
use transfer_memory::session::SessionError;
use transfer_memory::socket::SocketError;

/// The error text of a forked child.
pub(crate) const FORKED: &str =
    "this process was forked from the one that connected, whose client and tensors these are; connect anew here";

/// The error text of a closed client.
pub(crate) const CLOSED: &str = "this client was closed; connect again";

/// The reason why a session is over. Everything that was fetched stays readable. Nothing more can be asked of the
/// session: connect again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The sidecar ended, was restarted, or threw this worker out; its log says why.
    #[error(
        "the sidecar closed the connection: it has ended, was restarted, or threw this worker out (its log says why)"
    )]
    Closed,
    /// The sidecar ended. The client reconnects by itself; the calls that were under way have failed, and may be
    /// retried.
    #[error(
        "the sidecar closed the connection: it has ended or was restarted; this client will connect again by itself"
    )]
    Away,
    /// The sidecar was restarted, and refuses this worker.
    #[error("the sidecar was restarted, and does not take this worker back: {why}")]
    NotTakenBack {
        /// The reason.
        why: Arc<str>,
    },
    /// This client was closed; see [`Client::close`](crate::Client::close).
    #[error("{}", CLOSED)]
    ClientClosed,
    /// This process is a forked child of the process that owns the session.
    #[error("{}", FORKED)]
    Forked,
    /// The socket failed, or the sidecar violated the session's protocol, or passed a segment that cannot be mapped.
    #[error(transparent)]
    Session(SessionError),
    /// The sidecar violated the protocol of the rings.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The sidecar wrote an invalid record.
    #[error(transparent)]
    Record(#[from] WireError),
    /// The sidecar sent something that this version does not know.
    #[error("the sidecar sent something that this version does not know: {said}")]
    Unknown {
        /// The message.
        said: Arc<str>,
    },
    /// The sidecar answered an operation that was not asked, or answered one twice.
    #[error("the sidecar answered operation {op:#x}, which does not wait for that answer")]
    Unasked {
        /// The operation's number.
        op: u64,
    },
    /// The sidecar returned a range that it did not hold.
    #[error("the sidecar returned a range that was not pushed: {0}")]
    NotLent(#[from] NotLent),
    /// The sidecar handed out a range that is too short for its tensor.
    #[error("the sidecar handed out {slice} for a tensor of {len_bytes} bytes")]
    TooShort {
        /// The range.
        slice: LocalSlice,
        /// The length of the tensor, in bytes.
        len_bytes: u64,
    },
}

impl From<SessionError> for SessionEnd {
    fn from(error: SessionError) -> SessionEnd {
        match error {
            SessionError::Socket(SocketError::Closed) => SessionEnd::Closed,
            other => SessionEnd::Session(other),
        }
    }
}
