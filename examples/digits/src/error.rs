//! What can go wrong in a role.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a role gave up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A row of the data set is not 64 pixels and a label.
    #[error("line {line} of the data set is not 64 pixels from 0 to 16 and a digit")]
    Data {
        /// Counted from 1.
        line: usize,
    },
    /// The operating system refused something.
    #[error("cannot {doing}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// transfer: a call failed. The error says whose fault it is and whether a retry helps; a training job gives up.
    #[error(transparent)]
    Transfer(#[from] transfer_client::Error),
    /// gRPC: no connection to the parameter server, or it could not serve.
    #[error("gRPC transport to the parameter server")]
    Transport(#[from] tonic::transport::Error),
    /// gRPC: the parameter server refused a call.
    #[error("the parameter server refused: {}", .0.message())]
    Refused(#[from] tonic::Status),
    /// A peer sent something that is not the next thing of the job.
    #[error("unexpected {what}")]
    Unexpected {
        /// What came.
        what: &'static str,
    },
    /// There is no sidecar to start.
    #[error("no transferd at {}; build it with `cargo build --release -p transfer-server`, or say where it is with --transferd", .path.display())]
    NoTransferd {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A process of the demo ended before its work was done.
    #[error("{name} ended with {status}; the end of its log:\n{log}")]
    ChildFailed {
        /// Its name on the stage.
        name: String,
        /// How it ended.
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
    /// No process of the demo has said anything for too long.
    #[error("no process has said anything for {patience:?}")]
    Silent {
        /// How long the demo waits.
        patience: Duration,
    },
    /// Ctrl-C, SIGTERM, or a closed terminal.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// For `map_err`: an [`Error::Io`] that says what was tried.
    pub fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { doing, source }
    }
}

impl From<transfer_client::PushError> for Error {
    /// Gives up the tensor that did not get through: whoever pushes it once more would keep it instead.
    fn from(error: transfer_client::PushError) -> Error {
        Error::Transfer(error.into())
    }
}
