//! Why a session is over.

use std::sync::Arc;
use transfer_core::memory::LocalSlice;
use transfer_core::wire::WireError;
use transfer_memory::arena::NotLent;
use transfer_memory::ring::RingError;
use transfer_memory::session::SessionError;
use transfer_memory::socket::SocketError;

/// What is told to a forked child.
pub(crate) const FORKED: &str =
    "this process was forked from the one that connected, whose client and tensors these are; connect anew here";

/// Why a session with a sidecar is over. Whatever it handed out stays readable. Nothing more can be asked of it: connect again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Gone {
    /// The sidecar ended, was restarted, or threw this worker out; its log says why.
    #[error(
        "the sidecar closed the connection: it has ended, was restarted, or threw this worker out (its log says why)"
    )]
    Closed,
    /// The sidecar ended. The client connects again by itself; what was under way has failed, and may be tried again.
    #[error(
        "the sidecar closed the connection: it has ended or was restarted; this client will connect again by itself"
    )]
    Away,
    /// The sidecar ended, and the one that came after it does not take this worker back.
    #[error("the sidecar was restarted, and does not take this worker back: {why}")]
    NotTakenBack {
        /// Why.
        why: Arc<str>,
    },
    /// This process is a forked child of the one that connected, whose session it is.
    #[error("{}", FORKED)]
    Forked,
    /// The socket failed, or the sidecar broke the rules of a session, or passed a segment that cannot be mapped.
    #[error(transparent)]
    Session(SessionError),
    /// The sidecar broke the rules of the rings.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The sidecar wrote a record that cannot be.
    #[error(transparent)]
    Record(#[from] WireError),
    /// The sidecar said something that this version does not know.
    #[error("the sidecar said what this version does not know: {said}")]
    Unknown {
        /// What it said.
        said: Arc<str>,
    },
    /// The sidecar answered what was not asked, or answered it twice.
    #[error("the sidecar answered operation {op:#x}, which does not wait for that answer")]
    Unasked {
        /// The operation's number.
        op: u64,
    },
    /// The sidecar returned a range that it did not have.
    #[error("the sidecar returned what was not pushed: {0}")]
    NotLent(#[from] NotLent),
    /// The sidecar handed out a range that is too short for its tensor.
    #[error("the sidecar handed out {slice} for a tensor of {len_bytes} bytes")]
    TooShort {
        /// The range.
        slice: LocalSlice,
        /// What the tensor needs, in bytes.
        len_bytes: u64,
    },
}

impl From<SessionError> for Gone {
    fn from(error: SessionError) -> Gone {
        match error {
            SessionError::Socket(SocketError::Closed) => Gone::Closed,
            other => Gone::Session(other),
        }
    }
}
