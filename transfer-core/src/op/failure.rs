//! Failures: why an operation did not succeed.

/// Why an operation failed: a code to act on, and a text that names the thing, the value and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// The code that programs act on.
    pub code: FailureCode,
    /// The text for people. At most [`Failure::MAX_TEXT_BYTES`] travel.
    pub text: String,
}

impl Failure {
    /// The longest text that travels, in bytes.
    pub const MAX_TEXT_BYTES: usize = 900;

    /// A failure with this code and text.
    #[must_use]
    pub fn new(code: FailureCode, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }
}

/// The kind of a failure. The numbers are part of the wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum FailureCode {
    /// The request is wrong. The caller has to change it.
    Invalid = 1,
    /// Nobody published that key before the deadline.
    UnknownKey = 2,
    /// The deadline passed.
    Deadline = 3,
    /// The asked version was replaced, or skipped.
    VersionGone = 4,
    /// The pushed version is not above the last one.
    VersionNotRising = 5,
    /// Another worker owns the key.
    KeyOwned = 6,
    /// No worker of that name is connected anywhere.
    UnknownWorker = 7,
    /// Larger than the pool it would have to land in.
    TooLarge = 8,
    /// No room in the pool before the deadline.
    PoolFull = 9,
    /// The other node cannot be reached.
    PeerUnreachable = 10,
    /// The link broke while the operation was under way.
    PeerLost = 11,
    /// `require` cannot be met.
    RequireUnmet = 12,
    /// Workers of another user id may not.
    PermissionDenied = 13,
    /// The caller gave it up.
    Cancelled = 14,
    /// That node does not own the key (any more).
    NotOwner = 15,
    /// A limit of the sidecar was reached.
    Busy = 16,
    /// The sidecar is going away.
    ShuttingDown = 17,
    /// The directory cannot be reached.
    DirectoryUnreachable = 18,
    /// The counter is not there any more: its home has ended or lost the name. Open it again; that makes a new one, at 0.
    CounterLost = 19,
    /// The link broke or the deadline passed while the operation was on its way: it may have been done, or not.
    OutcomeUnknown = 20,
    /// The sidecar is about to leave and takes nothing new.
    Draining = 21,
    /// Bytes that a worker has fetched do not have the digest of their push. Workers tell their sidecar so; no sidecar answers it.
    WrongDigest = 22,
    /// A code from a newer peer.
    Unknown = 0xffff,
}

/// The party that has to change something before a call can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The calling program.
    Caller,
    /// No one: the missing resource may become free with time, or when memory is returned.
    Nobody,
    /// The operator of the sidecars and the network between them.
    Operator,
}

impl Fault {
    /// The name, as documents and Python write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Fault::Caller => "caller",
            Fault::Nobody => "nobody",
            Fault::Operator => "operator",
        }
    }
}

impl FailureCode {
    /// All codes, in the order of their numbers.
    pub const ALL: [FailureCode; 22] = [
        FailureCode::Invalid,
        FailureCode::UnknownKey,
        FailureCode::Deadline,
        FailureCode::VersionGone,
        FailureCode::VersionNotRising,
        FailureCode::KeyOwned,
        FailureCode::UnknownWorker,
        FailureCode::TooLarge,
        FailureCode::PoolFull,
        FailureCode::PeerUnreachable,
        FailureCode::PeerLost,
        FailureCode::RequireUnmet,
        FailureCode::PermissionDenied,
        FailureCode::Cancelled,
        FailureCode::NotOwner,
        FailureCode::Busy,
        FailureCode::ShuttingDown,
        FailureCode::DirectoryUnreachable,
        FailureCode::CounterLost,
        FailureCode::OutcomeUnknown,
        FailureCode::Draining,
        FailureCode::WrongDigest,
    ];

    /// The code with this number on the wire; [`FailureCode::Unknown`] for a number from the future.
    #[must_use]
    pub fn from_wire(n: u16) -> FailureCode {
        FailureCode::ALL.into_iter().find(|c| *c as u16 == n).unwrap_or(FailureCode::Unknown)
    }

    /// The party that has to change something.
    #[must_use]
    pub const fn fault(self) -> Fault {
        use FailureCode as C;
        match self {
            C::Invalid
            | C::VersionGone
            | C::VersionNotRising
            | C::KeyOwned
            | C::PermissionDenied
            | C::CounterLost
            | C::Cancelled => Fault::Caller,
            C::TooLarge
            | C::PeerUnreachable
            | C::PeerLost
            | C::OutcomeUnknown
            | C::RequireUnmet
            | C::ShuttingDown
            | C::DirectoryUnreachable
            | C::WrongDigest => Fault::Operator,
            C::UnknownKey
            | C::Deadline
            | C::UnknownWorker
            | C::PoolFull
            | C::NotOwner
            | C::Busy
            | C::Draining
            | C::Unknown => Fault::Nobody,
        }
    }

    /// Whether the same call may succeed later with nothing changed by the caller.
    #[must_use]
    pub fn can_retry(self) -> bool {
        matches!(
            self,
            FailureCode::UnknownKey
                | FailureCode::Deadline
                | FailureCode::UnknownWorker
                | FailureCode::PoolFull
                | FailureCode::PeerUnreachable
                | FailureCode::PeerLost
                | FailureCode::NotOwner
                | FailureCode::Busy
                | FailureCode::DirectoryUnreachable
                | FailureCode::Draining
                | FailureCode::WrongDigest
        )
    }
}
