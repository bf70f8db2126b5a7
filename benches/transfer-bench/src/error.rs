//! Why there are no figures, the exit code for it, and what to do next.

use crate::tied::TiedError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use transfer_terminal::exit::Exit;
use transfer_terminal::failure;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The sidecar's program is not there.
    #[error("there is no transferd at {}", path.display())]
    NoTransferd {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The operating system refused something.
    #[error("cannot {what}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A process ended, or could not be understood.
    #[error("{name} has ended ({how}){log}")]
    Ended {
        /// The process.
        name: String,
        /// How.
        how: String,
        /// The end of what it wrote to its standard error, indented, or nothing.
        log: String,
    },
    /// A process failed at its task.
    #[error("{name} failed: {why}")]
    Task {
        /// The process.
        name: String,
        /// Why, with all causes.
        why: String,
    },
    /// A process answered something that does not fit what was asked.
    #[error("{name} said something unexpected: {said}")]
    Unexpected {
        /// The process.
        name: String,
        /// What it said.
        said: String,
    },
    /// A process did not answer in time.
    #[error("{name} has not answered within {waited:?}{log}")]
    Silent {
        /// The process.
        name: String,
        /// How long it was waited for.
        waited: Duration,
        /// As in [`BenchError::Ended`].
        log: String,
    },
    /// A sidecar did not say what is asked of its status.
    #[error("the status of a sidecar: {why}")]
    Status {
        /// Why.
        why: String,
    },
    /// A sweep that cannot be.
    #[error("{why}")]
    Sweep {
        /// Why.
        why: String,
    },
    /// The chart cannot be drawn.
    #[error("the chart cannot be drawn: {why}")]
    Chart {
        /// Why.
        why: String,
    },
    /// A file, or a directory of them.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was to be done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A program was not started.
    #[error(transparent)]
    Tied(#[from] TiedError),
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Names what could not be done.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> BenchError {
        move |source| BenchError::System { what, source: source.into() }
    }

    /// How the process ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            BenchError::NoTransferd { .. } | BenchError::Sweep { .. } => Exit::WrongUse,
            _ => Exit::Failed,
        }
    }

    /// The whole story: a line with what failed and its causes, the first cause last, and one with what to do next.
    #[must_use]
    pub fn for_people(&self) -> String {
        let line = failure::in_one_line(self, ToString::to_string);
        failure::for_people("transfer-bench", &line, self.advice())
    }

    /// What to do next, where there is something.
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
