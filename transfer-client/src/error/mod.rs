//! Errors, sorted by fault, and by whether a retry helps.
//!
//! # Layout
//! - this file: [`Error`], of any call. `session_end`: why a session is over. `batch`, `bundle`, `digest`, `sharded`: of one kind of call. `with`: of
//!   calls that give back what they had taken.

mod batch;
mod bundle;
mod digest;
mod session_end;
mod sharded;
mod with;

pub use batch::BatchError;
pub use bundle::BundleError;
pub use digest::{DigestError, Digested};
pub use session_end::SessionEnd;
pub(crate) use session_end::{CLOSED, FORKED};
pub use sharded::{LostRank, ShardedError};
pub use with::ErrorWith;

use std::time::Duration;
use transfer_core::op::{Failure, FailureCode, Fault};
use transfer_core::tensor::{DType, InvalidName, InvalidShape, TensorMeta};
use transfer_core::text::Bytes;
use transfer_cuda::CudaError;
use transfer_memory::session::SessionError;
use transfer_memory::view::ViewError;

/// The reason why a call failed.
///
/// | question | answer |
/// |---|---|
/// | may the same call succeed later, with nothing changed? | [`Error::can_retry`] |
/// | who has to change something? | [`Error::fault`] |
/// | what did the sidecar answer? | [`Error::failure_code`] |
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // The caller's fault: the same call will fail again.
    /// The text is not a valid key or name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The shape is not valid.
    #[error(transparent)]
    Shape(#[from] InvalidShape),
    /// The elements or bytes do not fill the shape.
    #[error("{meta} has {expected_bytes} bytes, {found_bytes} were given")]
    WrongLength {
        /// The tensor's description.
        meta: TensorMeta,
        /// The expected length, in bytes.
        expected_bytes: u64,
        /// The given length, in bytes.
        found_bytes: u64,
    },
    /// A tensor was read as elements of another type.
    #[error("the tensor is {meta}, it was read as {asked} elements")]
    WrongType {
        /// The tensor's description.
        meta: TensorMeta,
        /// The element type asked for.
        asked: DType,
    },
    /// The tensor has no such view.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The Arrow array has nulls, which a dense tensor cannot have.
    #[error("the array for {key:?} has {nulls} nulls of {len} elements; a dense tensor has none: fill them first")]
    HasNulls {
        /// The key.
        key: String,
        /// The number of null elements.
        nulls: usize,
        /// The number of elements.
        len: usize,
    },
    /// The elements of the Arrow array have no dense tensor type.
    #[error("an array of {data_type} is no dense tensor: integers of 8 to 64 bits and floats of 16 to 64 bits are")]
    NotDense {
        /// The array's type, as Arrow writes it.
        data_type: String,
    },
    /// The tensor was allocated by a client of another session: its arena is unknown to this sidecar.
    #[error(
        "{meta} was allocated by another client; allocate it with the client that pushes it, or push its bytes with push_bytes"
    )]
    OtherClient {
        /// The tensor's description.
        meta: TensorMeta,
    },
    /// The tensor cannot be taken back, because this process may read it: it was pushed frozen, or more than once.
    #[error("{meta} cannot be taken back: it was pushed frozen, or more than once, and this process may still read it")]
    NotAlone {
        /// The tensor's description.
        meta: TensorMeta,
    },
    /// A record batch is not valid.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A bundle is not valid.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A version is not proved.
    #[error(transparent)]
    Digest(Box<DigestError>),
    /// A sharded state.
    #[error(transparent)]
    Sharded(Box<ShardedError>),
    /// The request is larger than the whole arena.
    #[error(
        "{} do not fit into an arena of {}; ask for a larger one with arena_bytes() at connect",
        Bytes(*wanted_bytes),
        Bytes(*arena_bytes)
    )]
    TooLargeForArena {
        /// The requested length, in bytes.
        wanted_bytes: u64,
        /// The size of the arena, in bytes.
        arena_bytes: u64,
    },

    /// A GPU, or a copy to it or from it.
    #[error(transparent)]
    Gpu(#[from] CudaError),

    // Lack of memory: passes when memory is dropped or returned.
    /// The arena has no room.
    #[error(
        "no room for {} in the arena of {}: {} are free, at most {} in one piece, and {} hold tensors that are being written, pushed or \
         frozen; drop or replace some, wait with allocate_wait(), or ask for a larger arena with arena_bytes() at connect",
        Bytes(*wanted_bytes),
        Bytes(*arena_bytes),
        Bytes(*free_bytes),
        Bytes(*largest_free_bytes),
        Bytes(*in_use_bytes)
    )]
    ArenaFull {
        /// The requested length, in bytes.
        wanted_bytes: u64,
        /// The free length in all pieces together, in bytes.
        free_bytes: u64,
        /// The longest free piece, in bytes.
        largest_free_bytes: u64,
        /// The used length, padding included, in bytes.
        in_use_bytes: u64,
        /// The size of the arena, in bytes.
        arena_bytes: u64,
    },

    /// The tensor is no registered memory of this client, or of another type than was registered.
    #[error(
        "{meta} is not registered as this memory: it lies in the arena, or was registered by another client or as another type"
    )]
    OtherMemory {
        /// The tensor's description.
        meta: TensorMeta,
    },
    /// This process gets no memory for a version that does not fit the landing pool.
    #[error(
        "no memory for {} of a version that does not fit the landing pool: {reason}; give this process as much, or fetch it in \
         slices or into tensors of the arena", Bytes(*wanted_bytes)
    )]
    NoMemory {
        /// The requested length, in bytes.
        wanted_bytes: u64,
        /// The kernel's message, or the limit of the control groups.
        reason: String,
    },

    // The sidecar's answer.
    /// The sidecar answered that the operation failed, with the reason.
    #[error(transparent)]
    Failed(#[from] Failure),

    /// A fetch into memory ended without success, and the memory may be half new. Nobody writes there any more.
    #[error(transparent)]
    DestinationTorn(Box<TornDestination>),

    // The session.
    /// No session could be started.
    #[error("cannot begin a session: {0}")]
    Connect(SessionError),
    /// The sidecar of this process did not start; see [`crate::Client`] and the feature `embedded`.
    #[error("the embedded sidecar does not start: {reason}")]
    NotStarted {
        /// The sidecar's message.
        reason: String,
    },
    /// Memory is not registered with the sidecar.
    #[error("the memory is not registered: {reason}")]
    NotRegistered {
        /// The reason.
        reason: String,
    },
    /// The session is over. Everything that was fetched stays readable; connect again.
    #[error("the session with the sidecar is over: {0}; what was fetched stays readable{advice}", advice = advice(.0))]
    SidecarGone(#[source] SessionEnd),
    /// This client was closed, by [`Client::close`](crate::Client::close). Everything that was fetched stays readable.
    #[error("{}", CLOSED)]
    ClientClosed,
    /// This process was forked from the one that connected. The client, and everything that it allocated and fetched,
    /// belong to the parent. Connect anew.
    #[error("{}", FORKED)]
    Forked,
    /// The sidecar has not answered in time, not even that the deadline has passed.
    #[error("the sidecar has not answered within {waited:?}; is it stopped, or starved of CPU?")]
    NoAnswer {
        /// The time that the call has waited.
        waited: Duration,
    },
}

/// The memory of a fetch that may be half new; see [`Error::DestinationTorn`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the destination, {} for key {key:?}, may be half new: {error}", torn_tensors(.key, .tensors))]
pub struct TornDestination {
    /// The key.
    pub key: String,
    /// The tensors that may be half new, by their names. A tensor that is no part of a bundle has the key as its name.
    pub tensors: Vec<(String, TensorMeta)>,
    /// Why the fetch failed.
    pub error: Error,
}

/// The first tensors, and how many others there are. A tensor that has the key as its name is described alone.
fn torn_tensors(key: &str, tensors: &[(String, TensorMeta)]) -> String {
    const SHOWN: usize = 8;
    if let [(name, meta)] = tensors
        && name == key
    {
        return meta.to_string();
    }
    let shown =
        tensors.iter().take(SHOWN).map(|(name, meta)| format!("{name:?} {meta}")).collect::<Vec<_>>().join(", ");
    match tensors.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{shown} and {more} other tensors"),
        _ => shown,
    }
}

impl From<ShardedError> for Error {
    fn from(error: ShardedError) -> Error {
        Error::Sharded(Box::new(error))
    }
}

impl From<DigestError> for Error {
    fn from(error: DigestError) -> Error {
        Error::Digest(Box::new(error))
    }
}

impl From<SessionEnd> for Error {
    fn from(gone: SessionEnd) -> Error {
        match gone {
            SessionEnd::Forked => Error::Forked,
            SessionEnd::ClientClosed => Error::ClientClosed,
            gone => Error::SidecarGone(gone),
        }
    }
}

fn advice(gone: &SessionEnd) -> &'static str {
    match gone {
        SessionEnd::Away => "",
        _ => ", connect again for more",
    }
}

impl Error {
    /// The code of the sidecar's answer, if it answered.
    #[must_use]
    pub fn failure_code(&self) -> Option<FailureCode> {
        match self {
            Error::Failed(failure) => Some(failure.code),
            Error::DestinationTorn(torn) => torn.error.failure_code(),
            _ => None,
        }
    }

    /// Whether the same call may succeed later without a change by the caller. [`Error::SidecarGone`] can be retried
    /// only with [`SessionEnd::Away`], where the client reconnects by itself; otherwise it takes a new client.
    #[must_use]
    pub fn can_retry(&self) -> bool {
        match self {
            Error::Failed(failure) => failure.code.can_retry(),
            Error::DestinationTorn(torn) => torn.error.can_retry(),
            Error::Gpu(error) => error.can_retry(),
            Error::Batch(BatchError::NotRead { .. }) => true,
            // Another transfer may bring the right bytes.
            Error::Digest(error) => matches!(**error, DigestError::WrongDigest { .. }),
            Error::ArenaFull { .. } | Error::NoMemory { .. } | Error::NoAnswer { .. } => true,
            Error::SidecarGone(SessionEnd::Away) => true,
            Error::Connect(SessionError::Refused(refusal)) => refusal.code.is_temporary(),
            Error::Connect(SessionError::Address(_) | SessionError::Socket(_)) => true,
            _ => false,
        }
    }

    /// The party that has to change something.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Error::Failed(failure) => failure.code.fault(),
            Error::DestinationTorn(torn) => torn.error.fault(),
            Error::ArenaFull { .. } | Error::NoMemory { .. } | Error::Batch(BatchError::NotRead { .. }) => {
                Fault::Nobody
            }
            Error::Gpu(error) if error.can_retry() => Fault::Nobody,
            Error::Digest(error) if matches!(**error, DigestError::WrongDigest { .. }) => Fault::Operator,
            Error::Gpu(error) if error.is_missing() => Fault::Operator,
            Error::Connect(_) | Error::NotStarted { .. } | Error::SidecarGone(_) | Error::NoAnswer { .. } => {
                Fault::Operator
            }
            _ => Fault::Caller,
        }
    }
}
