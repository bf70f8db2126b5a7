//! How a session fails, and how it is refused.

use super::PROTOCOL_VERSION;
use crate::Errno;
use crate::ring::RingError;
use crate::segment::{MapError, SegmentError};
use crate::socket::{AddressError, SocketError};
use std::fmt;
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::tensor::InvalidName;

/// A session that did not begin, or that ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There is nobody to talk to.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The connection failed, the peer is gone, or it was silent for too long.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Memory that cannot be had, or is not what it should be.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// Rings that cannot be where the sidecar says.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A message from the peer that makes no sense.
    #[error("the peer sent a message that is none: {0}")]
    Message(#[from] MessageError),
    /// A message that does not belong there.
    #[error("{expected} was expected from the peer, it sent {found}")]
    Unexpected {
        /// What should have come.
        expected: &'static str,
        /// What came.
        found: &'static str,
    },
    /// The wrong number of descriptors with a message.
    #[error("{message} comes with {expected} file descriptors, the peer sent {found}")]
    Descriptors {
        /// The message.
        message: &'static str,
        /// How many it should have had.
        expected: usize,
        /// How many it had.
        found: usize,
    },
    /// To a worker: the sidecar does not want it.
    #[error("the sidecar refused the session: {0}")]
    Refused(Refusal),
    /// To a sidecar: it has refused a worker, and told it so.
    #[error("a worker was refused: {0}")]
    TurnedAway(Refusal),
    /// A segment was to be passed on that whoever receives it could map for writing.
    #[error("{segment} is not sealed against further writers, so it cannot be passed to a reader")]
    StillWritable {
        /// The segment.
        segment: SegmentId,
    },
    /// A range of a segment that was never passed.
    #[error("{slice} was named, and its segment is not known here: a segment is passed before it is named")]
    UnknownSegment {
        /// The range.
        slice: LocalSlice,
    },
    /// A range that leaves its segment.
    #[error("in {segment}: {source}")]
    BadRange {
        /// The segment.
        segment: SegmentId,
        /// What is wrong with it.
        source: MapError,
    },
    /// The board or the hazard pointers do not lie in the memory that was passed for them.
    #[error("the board or its hazard pointers: {source}")]
    BadMarks {
        /// What is wrong with them.
        source: MapError,
    },
    /// The sidecar does not keep another one's segment any more that it has passed on. Nothing in it is leased, then,
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
    /// Whether the system is short of descriptors or of memory now, as it may not be a moment later. Nothing was sent
    /// then, and the session goes on.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        let (SessionError::Socket(SocketError::System { source, .. })
        | SessionError::Segment(SegmentError::System { source, .. })) = self
        else {
            return false;
        };
        // ETOOMANYREFS: so many descriptors are on their way through sockets that nobody has read, unix(7).
        [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::TOOMANYREFS].contains(source)
    }
}

/// Why a sidecar does not want a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, for programs.
    pub code: RefusalCode,
    /// The reason, for people: names the thing, its value, and what would be right. Cut to 1 KiB when it is sent.
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
    /// 1: the two speak different versions.
    Version,
    /// 2: the worker's message makes no sense.
    Malformed,
    /// 3: this user, or this name, may not have a session.
    NotAllowed,
    /// 4: another worker of this name has a session.
    NameTaken,
    /// 5: the arena asked for is larger than the sidecar grants to anybody.
    ArenaTooLarge,
    /// 6: the memory is not there now; another worker's end may free it.
    NoMemory,
    /// 7: the sidecar failed in some other way.
    Internal,
    /// 8: the arena that came back is not one that this sidecar can take again.
    BadArena,
    /// 9: the sidecar takes no new workers, for it is about to leave.
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

    /// Whether the same worker may have more luck later, with nothing changed.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        matches!(
            self,
            RefusalCode::NameTaken | RefusalCode::NoMemory | RefusalCode::Draining | RefusalCode::TooManySessions
        )
    }
}

/// Bytes that are no message of a session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// It does not begin as all do.
    #[error("it begins with {found:02x?} instead of \"TFSM\"; is this another program's socket?")]
    NotOurs {
        /// Its first bytes, at most 4.
        found: Vec<u8>,
    },
    /// It is of another version.
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
        /// Which message.
        message: &'static str,
        /// Its length in bytes.
        found: usize,
        /// The length that its fields need, as far as they could be read, in bytes.
        needed: usize,
    },
    /// A name in it is none.
    #[error(transparent)]
    Name(#[from] InvalidName),
}
