//! The errors of a fabric, grouped by what the caller can do about them.

use super::LinkId;
use crate::memory::{LocalSlice, SegmentId};

/// Setting something up failed. The fabric still works.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The segment is already registered.
    #[error("{0} is registered already")]
    AlreadyRegistered(SegmentId),
    /// The segment is not registered.
    #[error("{0} is not registered with this fabric")]
    UnknownSegment(SegmentId),
    /// The fabric cannot read memory that is mapped read-only. What lies there is copied before it sends it.
    #[error("this fabric cannot read a segment that is mapped read-only: {why}")]
    Unreadable {
        /// The system's error text.
        why: String,
    },
    /// The link is not in the state that the call needs.
    #[error("{link} cannot {what} now")]
    WrongState {
        /// The link.
        link: LinkId,
        /// The call that was refused.
        what: &'static str,
    },
    /// The peer's offer was not understood.
    #[error("the peer's offer for {link} is bad: {why}")]
    BadOffer {
        /// The link.
        link: LinkId,
        /// What was wrong with it.
        why: String,
    },
    /// The operating system or the device refused.
    #[error("{what} failed: {why}")]
    Device {
        /// The call that failed.
        what: &'static str,
        /// The system's error text.
        why: String,
    },
}

/// The error of a post that the fabric did not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The send queue is full. Post again after polling completions.
    #[error("the send queue of {0} is full")]
    Full(LinkId),
    /// The link is not connected, or is dead.
    #[error("{0} is down")]
    LinkDown(LinkId),
    /// The fabric, or this link, does not support the operation.
    #[error("{link} cannot {what}")]
    Unsupported {
        /// The link.
        link: LinkId,
        /// The operation.
        what: &'static str,
    },
    /// A local slice is outside of registered memory.
    #[error("{0} is outside of registered memory")]
    BadLocalSlice(LocalSlice),
    /// The request exceeds a limit of [`super::Capabilities`].
    #[error("the work request has {what} = {value}, the limit is {limit}")]
    Limit {
        /// The quantity that exceeds the limit.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The limit.
        limit: u64,
    },
}

impl PostError {
    /// Checks a number of a request against its limit.
    ///
    /// # Errors
    /// [`PostError::Limit`].
    pub fn check(what: &'static str, value: u64, limit: u64) -> Result<(), PostError> {
        if value <= limit { Ok(()) } else { Err(PostError::Limit { what, value, limit }) }
    }
}

/// The reason why a link died.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DownReason {
    /// This side closed the link.
    #[error("closed by this side: {0}")]
    Closed(String),
    /// The peer closed the link in good order.
    #[error("closed by the peer: {0}")]
    PeerClosed(String),
    /// The connection broke, or the peer is gone.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The peer broke the contract: a failed check, a malformed frame.
    #[error("the peer broke the contract: {0}")]
    Violation(String),
    /// The peer reports that this side broke the contract.
    #[error("refused by the peer: {0}")]
    Refused(String),
    /// The connection could not be made.
    #[error("could not connect: {0}")]
    NotConnected(String),
}
