//! What can go wrong, the exit code for it, and what to do next.

use crate::admin::{Address, TlsError};
use crate::bench::BenchError;
use crate::devices::NoRdma;
use crate::tied::TiedError;
use std::error::Error as _;
use std::fmt::Write;
use std::io;
use std::path::PathBuf;
use transfer_client::{DType, FailureCode, TensorMeta};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nobody answers at the Admin service's address.
    #[error("cannot reach a sidecar at {address}")]
    Unreachable {
        /// The address.
        address: Address,
        /// Why.
        source: tonic::transport::Error,
    },
    /// An https address without what it takes.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The Admin service answered with a failure.
    #[error("the sidecar at {address} did not do it: {}", .source.message())]
    Admin {
        /// The address.
        address: Address,
        /// The answer.
        source: Box<tonic::Status>,
    },
    /// A drained sidecar has left with something unfinished.
    #[error("the deadline of the drain came first: the sidecar leaves with {left}")]
    Overdue {
        /// What was not finished.
        left: String,
    },
    /// A live screen without a terminal.
    #[error("a live screen needs a terminal")]
    NoTerminal,
    /// The terminal does not do as it is told.
    #[error("the terminal cannot be used")]
    Terminal {
        /// Why.
        source: io::Error,
    },
    /// An answer that goes on and on has ended.
    #[error("the sidecar at {address} has ended {what}: it is stopping, or the connection is gone")]
    StreamEnded {
        /// The address.
        address: Address,
        /// Of what.
        what: &'static str,
    },
    /// A time for a way of waiting that has none.
    #[error("--for-us {for_us} goes with adaptive only: event and busy have no time")]
    PollFor {
        /// The value.
        for_us: u64,
    },
    /// This host has no RDMA that could be shown.
    #[error("no RDMA on this host")]
    NoRdma(#[from] NoRdma),
    /// Something is wrong that `doctor` has printed.
    #[error("{failed} of {checks} checks failed")]
    Unwell {
        /// How many failed.
        failed: usize,
        /// How many there were.
        checks: usize,
    },
    /// No session with the sidecar.
    #[error("cannot connect to the sidecar at {}", socket.display())]
    Connect {
        /// The workers' socket.
        socket: PathBuf,
        /// Why.
        source: transfer_client::Error,
    },
    /// A call of the session failed.
    #[error("cannot {what} {key:?}")]
    Call {
        /// What was to be done.
        what: &'static str,
        /// With which key.
        key: String,
        /// Why.
        source: transfer_client::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was to be done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that does not hold what the command line says.
    #[error("{} has {found_bytes} bytes, and {meta} takes {}", path.display(), meta.len_bytes())]
    FileLength {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        meta: TensorMeta,
        /// What it holds, in bytes.
        found_bytes: u64,
    },
    /// A file whose length is no number of elements.
    #[error("{} has {found_bytes} bytes, which is no whole number of {dtype} elements", path.display())]
    FileElements {
        /// The file.
        path: PathBuf,
        /// The element type.
        dtype: DType,
        /// What it holds, in bytes.
        found_bytes: u64,
    },
    /// No runtime.
    #[error("cannot start")]
    Runtime {
        /// Why.
        source: io::Error,
    },
    /// A benchmark failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// A program was not started.
    #[error(transparent)]
    Tied(#[from] TiedError),
}

impl Error {
    /// The process's exit code: 1 failed, 2 wrong use, 3 the sidecar cannot be reached, 4 no RDMA on
    /// this host.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Unreachable { .. } | Error::StreamEnded { .. } => 3,
            Error::Admin { source, .. } if source.code() == tonic::Code::Unavailable || is_broken(source) => 3,
            Error::Connect { source, .. } if source.can_retry() && !is_refused(source) => 3,
            Error::Admin { source, .. } if source.code() == tonic::Code::InvalidArgument => 2,
            Error::FileLength { .. } | Error::FileElements { .. } | Error::PollFor { .. } | Error::NoTerminal => 2,
            Error::Tls(_) => 2,
            Error::NoRdma(_) => 4,
            Error::Connect { source, .. } | Error::Call { source, .. } if is_wrong_use(source) => 2,
            Error::Bench(e) if e.is_wrong_use() => 2,
            _ => 1,
        }
    }

    /// What to do next, where there is something.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let text = match self {
            Error::Unreachable { address: Address::Tcp(url), .. } => format!(
                "Is transferd running with --listen, at {url}? Its first line says grpc=HOST:PORT. Give that with --admin or TRANSFER_ADMIN."
            ),
            Error::Unreachable { address: Address::Unix(path), .. } => format!(
                "Is transferd running with --admin-socket {0}, and may you open {0}? Otherwise give --admin http://HOST:PORT, as its first \
                 line says grpc=HOST:PORT.",
                path.display()
            ),
            Error::Admin { address: Address::Tcp(url), source } if is_broken(source) => match url.strip_prefix("http://") {
                Some(rest) => format!(
                    "A sidecar with certificates is at https://{rest}, and takes --tls-ca, --tls-cert and --tls-key."
                ),
                None => "The sidecar's log says why it has refused the connection.".to_owned(),
            },
            Error::Connect { socket, .. } if self.exit_code() == 3 => format!(
                "Is transferd running with --socket {0}, and may you open {0}? Its first line says socket=PATH. Give that with --socket.",
                socket.display()
            ),
            Error::Call { source, .. } => match source.failure_code()? {
                FailureCode::UnknownKey | FailureCode::Deadline => {
                    "`transferctl tensors` lists what is published at a sidecar; --timeout waits longer.".to_owned()
                }
                FailureCode::UnknownWorker => {
                    "`transferctl sessions` lists the workers of a sidecar; the worker must be connected somewhere.".to_owned()
                }
                FailureCode::VersionGone => "--at-least takes a later version too.".to_owned(),
                FailureCode::PoolFull | FailureCode::TooLarge => {
                    "transferd's --pool-bytes sets the room for what comes from other nodes; `transferctl status` shows its use.".to_owned()
                }
                _ => return None,
            },
            Error::FileLength { .. } | Error::FileElements { .. } => {
                "Give --dtype and --shape as the file was written, or neither, for its plain bytes.".to_owned()
            }
            Error::NoTerminal => "`transferctl top --once` prints one frame as text, `transferctl watch` a list again and again.".to_owned(),
            Error::NoRdma(why) => why.advice().to_owned(),
            Error::Bench(e) => return e.advice(),
            _ => return None,
        };
        Some(text)
    }

    /// The whole story: what failed, each cause below it, and what to do next.
    #[must_use]
    pub fn for_people(&self) -> String {
        let mut text = format!("transferctl: {self}\n");
        let mut said = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let words = error.to_string();
            // Some errors repeat what is below them.
            if !said.contains(&words) {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "  because: {words}");
                said = words;
            }
            cause = error.source();
        }
        if let Some(advice) = self.advice() {
            let _ = writeln!(text, "{advice}");
        }
        text
    }
}

/// Whether there is no answer of the sidecar's, but a connection that broke.
fn is_broken(status: &tonic::Status) -> bool {
    status.source().is_some_and(|cause| cause.is::<tonic::transport::Error>())
}

fn is_refused(error: &transfer_client::Error) -> bool {
    error.to_string().contains("refused the session")
}

/// Whether the command line asked for what cannot be.
fn is_wrong_use(error: &transfer_client::Error) -> bool {
    use transfer_client::Error as E;
    matches!(error, E::Name(_) | E::Shape(_) | E::WrongLength { .. })
}
