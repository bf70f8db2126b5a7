//! Errors and refusals of sessions.

use super::PROTOCOL_VERSION;
use crate::Errno;
use crate::ring::RingError;
use crate::segment::{MapError, SegmentError};
use crate::socket::{AddressError, SocketError};
use std::fmt;
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::tensor::InvalidName;

/// The reason why a session did not begin, or ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There is no listener.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The connection failed, the peer is gone, or it was silent for too long.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The memory is not available, or not as announced.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The rings do not fit where the sidecar says.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A message of the peer is not valid.
    #[error("the peer sent a message that is none: {0}")]
    Message(#[from] MessageError),
    /// The message was not expected.
    #[error("{expected} was expected from the peer, it sent {found}")]
    Unexpected {
        /// The expected message.
        expected: &'static str,
        /// The received message.
        found: &'static str,
    },
    /// The number of descriptors of a message is wrong.
    #[error("{message} comes with {expected} file descriptors, the peer sent {found}")]
    Descriptors {
        /// The message.
        message: &'static str,
        /// The expected number.
        expected: usize,
        /// The received number.
        found: usize,
    },
    /// To a worker: the sidecar refuses it.
    #[error("the sidecar refused the session: {0}")]
    Refused(Refusal),
    /// To a sidecar: it has refused a worker, and told it so.
    #[error("a worker was refused: {0}")]
    TurnedAway(Refusal),
    /// A segment cannot be passed, because its receiver could map it for writing.
    #[error("{segment} is not sealed against further writers, so it cannot be passed to a reader")]
    StillWritable {
        /// The segment.
        segment: SegmentId,
    },
    /// A range of a segment that was never passed was named.
    #[error("{slice} was named, and its segment is not known here: a segment is passed before it is named")]
    UnknownSegment {
        /// The range.
        slice: LocalSlice,
    },
    /// A range exceeds its segment.
    #[error("in {segment}: {source}")]
    BadRange {
        /// The segment.
        segment: SegmentId,
        /// The error.
        source: MapError,
    },
    /// The board or the hazard pointers do not lie in the memory that was passed for them.
    #[error("the board or its hazard pointers: {source}")]
    BadMarks {
        /// The error.
        source: MapError,
    },
    /// The sidecar no longer keeps the segment of another sidecar that it has passed on. Nothing in it is leased then,
    /// or the sidecar has ended.
    #[error("{segment} is another sidecar's, and this worker's sidecar keeps it no more")]
    NotKept {
        /// The segment.
        segment: SegmentId,
    },
    /// A segment was passed under the number of another one.
    #[error("{segment} was passed again, with {found} bytes; it has {known}")]
    SegmentChanged {
        /// The segment.
        segment: SegmentId,
        /// Its length as known, in bytes.
        known: u64,
        /// The length now claimed, in bytes.
        found: u64,
    },
}

impl SessionError {
    /// Whether the system is short of descriptors or memory, which may pass soon. Nothing was sent then, and the
    /// session continues.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        let (SessionError::Socket(SocketError::System { source, .. })
        | SessionError::Segment(SegmentError::System { source, .. })) = self
        else {
            return false;
        };
        // ETOOMANYREFS: too many descriptors are in flight in unread sockets, unix(7).
        [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::TOOMANYREFS].contains(source)
    }
}

/// The reason why a sidecar refuses a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, for programs.
    pub code: RefusalCode,
    /// The reason, for people: it names the thing, the value, and the value that would be right. Cut to 1 KiB when it
    /// is sent.
    pub text: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The reason of a [`Refusal`]. The numbers are part of the session's messages and never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalCode {
    /// 1: the two sides have different versions.
    Version,
    /// 2: the worker's message is not valid.
    Malformed,
    /// 3: this user, or this name, may not have a session.
    NotAllowed,
    /// 4: another worker of this name has a session.
    NameTaken,
    /// 5: the requested arena is larger than the sidecar grants to any worker.
    ArenaTooLarge,
    /// 6: the memory is not available now; another worker's end may free it.
    NoMemory,
    /// 7: the sidecar failed in some other way.
    Internal,
    /// 8: the returned arena is not one that this sidecar can accept.
    BadArena,
    /// 9: the sidecar accepts no new workers, because it is about to leave.
    Draining,
    /// 10: the user, or the node, has as many sessions as it may have; another worker's end frees a place.
    TooManySessions,
    /// A number that this version does not know.
    Other(u16),
}

impl RefusalCode {
    pub(super) fn to_wire(self) -> u16 {
        match self {
            RefusalCode::Version => 1,
            RefusalCode::Malformed => 2,
            RefusalCode::NotAllowed => 3,
            RefusalCode::NameTaken => 4,
            RefusalCode::ArenaTooLarge => 5,
            RefusalCode::NoMemory => 6,
            RefusalCode::Internal => 7,
            RefusalCode::BadArena => 8,
            RefusalCode::Draining => 9,
            RefusalCode::TooManySessions => 10,
            RefusalCode::Other(n) => n,
        }
    }

    pub(super) fn from_wire(n: u16) -> RefusalCode {
        match n {
            1 => RefusalCode::Version,
            2 => RefusalCode::Malformed,
            3 => RefusalCode::NotAllowed,
            4 => RefusalCode::NameTaken,
            5 => RefusalCode::ArenaTooLarge,
            6 => RefusalCode::NoMemory,
            7 => RefusalCode::Internal,
            8 => RefusalCode::BadArena,
            9 => RefusalCode::Draining,
            10 => RefusalCode::TooManySessions,
            n => RefusalCode::Other(n),
        }
    }

    /// Whether the same worker may succeed later, without a change.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        matches!(
            self,
            RefusalCode::NameTaken | RefusalCode::NoMemory | RefusalCode::Draining | RefusalCode::TooManySessions
        )
    }
}

/// The reason why bytes are no message of a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// It does not begin with the magic bytes.
    #[error("it begins with {found:02x?} instead of \"TFSM\"; is this another program's socket?")]
    NotOurs {
        /// Its first bytes, at most 4.
        found: Vec<u8>,
    },
    /// It has another version.
    #[error(
        "it is of session protocol version {found}, this side speaks version {PROTOCOL_VERSION}; update \
         the older of the two"
    )]
    Version {
        /// Its version.
        found: u16,
    },
    /// There is no such kind of message.
    #[error("its kind is {kind}; this side knows 1 to 7")]
    UnknownKind {
        /// The kind.
        kind: u16,
    },
    /// Its fields do not fill it exactly.
    #[error("{message} has {found} bytes, its fields need {needed}")]
    WrongLength {
        /// The message.
        message: &'static str,
        /// Its length in bytes.
        found: usize,
        /// The length that its fields need, as far as they could be read, in bytes.
        needed: usize,
    },
    /// A name in it is not valid.
    #[error(transparent)]
    Name(#[from] InvalidName),
}
