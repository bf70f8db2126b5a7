//! Errors of a role.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// The reason why a role gave up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A row of the data set is not 64 pixels and a label.
    #[error("line {line} of the data set is not 64 pixels from 0 to 16 and a digit")]
    Data {
        /// The line, counted from 1.
        line: usize,
    },
    /// An operation of the system failed.
    #[error("cannot {doing}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A call of transfer failed. The error says whose fault it is and whether a retry helps; a training job gives up.
    #[error(transparent)]
    Transfer(#[from] transfer_client::Error),
    /// gRPC: the parameter server cannot be reached, or could not serve.
    #[error("gRPC transport to the parameter server")]
    Transport(#[from] tonic::transport::Error),
    /// gRPC: the parameter server refused a call.
    #[error("the parameter server refused: {}", .0.message())]
    Refused(#[from] tonic::Status),
    /// A peer sent something else than the next message of the job.
    #[error("unexpected {what}")]
    Unexpected {
        /// The unexpected message.
        what: &'static str,
    },
    /// The sidecar's program is missing.
    #[error("no transferd at {}; build it with `cargo build --release -p transfer-server`, or say where it is with --transferd", .path.display())]
    NoTransferd {
        /// The path where it was expected.
        path: PathBuf,
    },
    /// A process of the demo ended before its work was done.
    #[error("{name} ended with {status}; the end of its log:\n{log}")]
    ChildFailed {
        /// Its name on the stage.
        name: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its last lines on standard error.
        log: String,
    },
    /// A process of the demo wrote a line that is no event.
    #[error("{name} wrote a line that is no event: {line}")]
    NotAnEvent {
        /// Its name on the stage.
        name: String,
        /// The line.
        line: String,
    },
    /// No process of the demo has written a line for too long.
    #[error("no process has said anything for {patience:?}")]
    Silent {
        /// The time-out.
        patience: Duration,
    },
    /// Ctrl-C, SIGTERM, or a closed terminal.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Makes an [`Error::Io`] with the failed operation, for `map_err`.
    pub fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { doing, source }
    }
}

impl From<transfer_client::PushError> for Error {
    /// Drops the tensor of the failed push. A program that retries would keep it.
    fn from(error: transfer_client::PushError) -> Error {
        Error::Transfer(error.into())
    }
}
