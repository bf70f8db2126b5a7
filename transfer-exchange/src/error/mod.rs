//! Errors of calls of exchanges.
//!
//! # Layout
//! - this file: [`Error`], of any call. `exchange`: what only exchanges say; `partition`: of partitioning.

mod exchange;
mod partition;

pub use exchange::{End, ExchangeError};
pub use partition::PartitionError;

use transfer_client::{BatchError, BundleError, FailureCode, Fault, PushError};
use transfer_core::tensor::{InvalidName, InvalidShape};

/// The reason why a call of an exchange failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The exchange.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A call of the client.
    #[error(transparent)]
    Client(#[from] transfer_client::Error),
}

impl Error {
    /// The code of the sidecar's answer, if it answered.
    #[must_use]
    pub fn failure_code(&self) -> Option<FailureCode> {
        match self {
            Error::Exchange(_) => None,
            Error::Client(error) => error.failure_code(),
        }
    }

    /// Whether the same call may succeed later without a change by the caller. See [`transfer_client::Error::can_retry`].
    #[must_use]
    pub fn can_retry(&self) -> bool {
        match self {
            Error::Exchange(error) => error.can_retry(),
            Error::Client(error) => error.can_retry(),
        }
    }

    /// The party that has to change something.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Error::Exchange(error) if error.can_retry() => Fault::Nobody,
            Error::Exchange(_) => Fault::Caller,
            Error::Client(error) => error.fault(),
        }
    }
}

/// These are errors of the client, too.
macro_rules! of_the_client {
    ($($error:ty),*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Error {
                Error::Client(error.into())
            }
        })*
    };
}

of_the_client!(PushError, BatchError, BundleError, InvalidName, InvalidShape);
