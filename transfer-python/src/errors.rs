//! Errors as the classes of `transferd._errors`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::time::Duration;
use transfer_client::gpu::CudaError;
use transfer_client::{BatchError, BundleError, DigestError, Error, FailureCode, ShardedError};
use transfer_exchange::ExchangeError;

/// Makes an exception, by the Python function that makes all errors of the package.
fn make(py: Python<'_>, code: &str, text: &str, can_retry: bool, fault: &str, about: &About<'_>) -> PyErr {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = MAKE.import(py, "transferd._errors", "make").and_then(|make| {
        let waited = about.waited.map(|waited| waited.as_secs_f64());
        make.call1((code, text, can_retry, fault, about.key, waited))
    });
    match made {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// The subject of a call, for its error.
#[derive(Debug, Default)]
pub(crate) struct About<'a> {
    pub(crate) key: Option<&'a str>,
    pub(crate) waited: Option<Duration>,
}

/// Makes the exception for a failed call.
pub(crate) fn raise(py: Python<'_>, error: &Error, about: &About<'_>) -> PyErr {
    let made = make(py, &code(error), &error.to_string(), error.can_retry(), error.fault().name(), about);
    if let Error::DestinationTorn(torn) = error {
        let names: Vec<&str> = torn.tensors.iter().map(|(name, _)| name.as_str()).collect();
        // If this fails, the text still names them.
        let _ = made.value(py).setattr("tensors", names);
    }
    made
}

/// Makes the exception for a failed call of an exchange.
pub(crate) fn raise_exchange(py: Python<'_>, error: &transfer_exchange::Error, about: &About<'_>) -> PyErr {
    let of = match error {
        transfer_exchange::Error::Client(error) => return raise(py, error, about),
        transfer_exchange::Error::Exchange(of) => of,
        other => return make(py, "invalid", &other.to_string(), other.can_retry(), other.fault().name(), about),
    };
    let code = match of {
        ExchangeError::Lost { .. } => "lost",
        ExchangeError::Committed { .. } => "committed",
        ExchangeError::AttemptUsed { .. } => "attempt_used",
        ExchangeError::NotCommitted { .. } => "not_committed",
        ExchangeError::Changed { .. } => "changed",
        ExchangeError::Over { .. } => "over",
        ExchangeError::Exists { .. } => "exists",
        _ => "invalid",
    };
    let made = make(py, code, &of.to_string(), error.can_retry(), error.fault().name(), about);
    if let ExchangeError::Lost { tasks, .. } = of {
        // If this fails, the text still names them.
        let _ = made.value(py).setattr("tasks", tasks.clone());
    }
    made
}

/// Makes the exception for an error of this module that is the caller's fault.
pub(crate) fn own(py: Python<'_>, code: &str, text: &str) -> PyErr {
    make(py, code, text, false, "caller", &About::default())
}

/// Makes the exception for an invalid argument.
pub(crate) fn invalid(py: Python<'_>, text: &str) -> PyErr {
    own(py, "invalid", text)
}

/// Makes the exception for an object that does not leave its process, by pickle or as a deep copy of it.
pub(crate) fn no_pickle(py: Python<'_>, what: &str, instead: &str) -> PyErr {
    invalid(py, &format!("{what} is shared memory of this host, and cannot be pickled: {instead}"))
}

/// Makes the exception for the use of a client, or memory, of the parent in a forked child.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    raise(py, &Error::Forked, &About::default())
}

fn code(error: &Error) -> String {
    let name = match error {
        Error::Failed(failure) => return failure_code(failure.code),
        Error::DestinationTorn { .. } => "destination_torn",
        Error::TooLargeForArena { .. } => "too_large_for_arena",
        Error::ArenaFull { .. } => "arena_full",
        Error::NoMemory { .. } => "no_memory",
        Error::Connect(_) => "connect",
        Error::NotStarted { .. } => "not_started",
        Error::SidecarGone(_) => "sidecar_gone",
        Error::ClientClosed => "closed",
        Error::Forked | Error::Gpu(CudaError::Forked) => "forked",
        Error::Gpu(CudaError::NoDriver { .. } | CudaError::NoGpu | CudaError::NoSuchDevice { .. }) => "no_device",
        Error::Gpu(CudaError::Capturing) => "capturing",
        Error::Gpu(_) => "gpu",
        Error::NoAnswer { .. } => "no_answer",
        Error::NotAlone { .. } | Error::Bundle(BundleError::NotAlone { .. }) => "not_alone",
        Error::OtherClient { .. } => "other_client",
        Error::Digest(error) => match **error {
            DigestError::WrongDigest { .. } => "wrong_digest",
            DigestError::NoDigest { .. } | DigestError::ShardsWithoutDigest { .. } => "no_digest",
            _ => "invalid",
        },
        Error::Batch(BatchError::NotRead { .. }) => "not_read",
        Error::Batch(BatchError::Ended { .. }) => "closed",
        Error::Sharded(error) => match **error {
            ShardedError::RankGone(_) => "version_gone",
            ShardedError::NotWhole { .. } => "deadline",
            ShardedError::ReplicasDiffer { .. } => "wrong_digest",
            _ => "invalid",
        },
        _ => "invalid",
    };
    name.to_owned()
}

/// The name of a code: `KeyOwned` as `key_owned`.
pub(crate) fn failure_code(code: FailureCode) -> String {
    let mut name = String::new();
    for c in format!("{code:?}").chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}
