//! Errors of the benchmark, with their exit codes and advice.

use crate::tied::TiedError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use transfer_terminal::exit::Exit;
use transfer_terminal::failure;

/// The reason why there are no figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The sidecar's program is missing.
    #[error("there is no transferd at {}", path.display())]
    NoTransferd {
        /// The path where it was expected.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("cannot {what}")]
    System {
        /// The operation.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A process ended before its work was done.
    #[error("{name} has ended ({how}){log}")]
    Ended {
        /// The process.
        name: String,
        /// The way in which it ended.
        how: String,
        /// The end of its standard error, indented; may be empty.
        log: String,
    },
    /// A process failed at its task.
    #[error("{name} failed: {why}")]
    Task {
        /// The process.
        name: String,
        /// The failure with all its causes.
        why: String,
    },
    /// The answer of a process does not match its task.
    #[error("{name} said something unexpected: {said}")]
    Unexpected {
        /// The process.
        name: String,
        /// The answer.
        said: String,
    },
    /// A process did not answer in time.
    #[error("{name} has not answered within {waited:?}{log}")]
    Silent {
        /// The process.
        name: String,
        /// The time-out.
        waited: Duration,
        /// The end of its standard error, indented; may be empty.
        log: String,
    },
    /// The status of a sidecar could not be read, or lacks a part.
    #[error("the status of a sidecar: {why}")]
    Status {
        /// The reason.
        why: String,
    },
    /// The options of the sweep are not valid.
    #[error("{why}")]
    Sweep {
        /// The reason.
        why: String,
    },
    /// The chart cannot be drawn.
    #[error("the chart cannot be drawn: {why}")]
    Chart {
        /// The reason.
        why: String,
    },
    /// A file or directory failed.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program could not be started.
    #[error(transparent)]
    Tied(#[from] TiedError),
    /// The user interrupted the benchmark.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Converts an error of the system, with the failed operation, for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> BenchError {
        move |source| BenchError::System { what, source: source.into() }
    }

    /// The exit status of the process.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            BenchError::NoTransferd { .. } | BenchError::Sweep { .. } => Exit::InvalidArguments,
            _ => Exit::Failed,
        }
    }

    /// The text for people: a line with the failure and its causes, the root cause last, and a line with advice.
    #[must_use]
    pub fn for_people(&self) -> String {
        let line = failure::in_one_line(self, ToString::to_string);
        failure::for_people("transfer-bench", &line, self.advice())
    }

    /// The advice, if there is any.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        match self {
            BenchError::NoTransferd { .. } => {
                Some("Build it (cargo build --release), or say where it is with --transferd.".to_owned())
            }
            BenchError::Sweep { .. } => Some(
                "Sizes are written as 4KiB, 64MiB or 1GiB; `transfer-bench sweep --quick --max 4MiB` takes seconds."
                    .to_owned(),
            ),
            BenchError::File { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("Make room there, or write elsewhere; nothing of the file is left.".to_owned())
            }
            BenchError::Silent { .. } => {
                Some("The machine may be busy with something else; --quick asks for less.".to_owned())
            }
            _ => None,
        }
    }
}
