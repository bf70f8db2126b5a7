//! What can go wrong, the exit code for it, and what to do next.

use crate::admin::address::Address;
use crate::admin::tls::TlsError;
use crate::devices::NoRdma;
use crate::files::error::FilesError;
use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use transfer_client::{Error as ClientError, FailureCode};
use transfer_terminal::exit::Exit;
use transfer_terminal::failure::{self, causes};

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
    #[error("the sidecar at {address} {}", answered(.source))]
    Admin {
        /// The address.
        address: Address,
        /// The answer.
        source: Box<tonic::Status>,
    },
    /// What was to be asked of all nodes could not be asked of some, as was said for each.
    #[error("the list is not of all nodes: {missing} of {nodes} could not be asked")]
    NotAllNodes {
        /// How many could not be asked.
        missing: usize,
        /// How many there are.
        nodes: usize,
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
    /// Workers connect to one sidecar there, and tools ask another one.
    #[error("the sidecar at {} is node {node}, and not the one at {address}", socket.display())]
    AnotherSidecar {
        /// The workers' socket.
        socket: PathBuf,
        /// Its node.
        node: String,
        /// Where the other one is asked.
        address: Address,
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
    /// What a push had published is published no more.
    #[error("nothing of it is published any more at {}", socket.display())]
    Unpublished {
        /// The workers' socket.
        socket: PathBuf,
        /// Why the session is over.
        source: transfer_client::Error,
    },
    /// Something with a file.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// No runtime.
    #[error("cannot start")]
    Runtime {
        /// Why.
        source: io::Error,
    },
    /// `bench` is a program of its own.
    #[error("the bench is a program of its own: transfer-bench")]
    BenchHasMoved,
}

impl Error {
    /// How the process ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Error::Unreachable { .. } | Error::StreamEnded { .. } | Error::Unpublished { .. } => Exit::Unreachable,
            Error::Admin { source, .. } if is_broken(source) => Exit::Unreachable,
            Error::Admin { source, .. } => match source.code() {
                tonic::Code::Unavailable => Exit::Unreachable,
                tonic::Code::InvalidArgument => Exit::WrongUse,
                tonic::Code::DeadlineExceeded => Exit::TimedOut,
                tonic::Code::NotFound => Exit::NotFound,
                _ => Exit::Failed,
            },
            Error::Connect { source, .. } if source.can_retry() && !is_refused(source) => Exit::Unreachable,
            Error::Connect { source, .. } | Error::Call { source, .. } => of_call(source),
            Error::PollFor { .. } | Error::NoTerminal | Error::Tls(_) | Error::BenchHasMoved => Exit::WrongUse,
            Error::NoRdma(_) => Exit::NoRdma,
            Error::NotAllNodes { .. } => Exit::PartlyDone,
            Error::Unwell { .. } => Exit::Unwell,
            Error::Files(error) => error.exit(),
            _ => Exit::Failed,
        }
    }

    /// Its number.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.exit().code()
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
            Error::Connect { socket, .. } if self.exit() == Exit::Unreachable => format!(
                "Is transferd running with --socket {0}, and may you open {0}? Its first line says socket=PATH. Give that with --socket.",
                socket.display()
            ),
            Error::AnotherSidecar { address, .. } => {
                format!("Give --with-socket the path that the first line of the sidecar at {address} names as socket=PATH.")
            }
            Error::Call { source: ClientError::ArenaFull { .. }, .. } => {
                "Nobody made room in time: --timeout waits longer, and a larger --arena-bytes, or none, takes more at once.".to_owned()
            }
            Error::Connect { source, .. } if source.to_string().contains("pinned") => {
                "What is published lies in pinned memory: --arena-bytes takes less, and goes in turns; transferd's --pinned-limit and \
                 --max-arena-bytes give more.".to_owned()
            }
            Error::Call { source, .. } => match source.failure_code()? {
                FailureCode::UnknownKey | FailureCode::Deadline => {
                    "`transferctl tensors --cluster` lists what is published; --timeout waits longer.".to_owned()
                }
                FailureCode::UnknownWorker => {
                    "`transferctl sessions` lists the workers of a sidecar; the worker must be connected somewhere.".to_owned()
                }
                FailureCode::KeyOwned => {
                    "--takeover takes it from that worker; --prefix, or another key, leaves it alone.".to_owned()
                }
                FailureCode::VersionNotRising => "Without --version it is the last one plus one.".to_owned(),
                FailureCode::PeerUnreachable | FailureCode::DirectoryUnreachable => {
                    "`transferctl doctor` says what is wrong with the sidecar, its directory and its links.".to_owned()
                }
                FailureCode::VersionGone => "--at-least takes a later version too.".to_owned(),
                FailureCode::PoolFull | FailureCode::TooLarge => {
                    "transferd's --pool-bytes sets the room for what comes from other nodes; `transferctl status` shows its use.".to_owned()
                }
                _ => return None,
            },
            Error::NotAllNodes { .. } => {
                "Start those nodes again, or wait until the directory has forgotten them: an hour. Without --cluster, or with --one-node, the \
                 node at --admin alone is asked.".to_owned()
            }
            Error::NoTerminal => "`transferctl top --once` prints one frame as text, `transferctl watch` a list again and again.".to_owned(),
            Error::Files(error) => return error.advice(),
            Error::NoRdma(why) => why.advice().to_owned(),
            Error::BenchHasMoved => "It takes what `transferctl bench` took: transfer-bench latency --quick.".to_owned(),
            _ => return None,
        };
        Some(text)
    }

    /// The whole story: a line with what failed and its causes, the first cause last, and one with what to do next.
    #[must_use]
    pub fn for_people(&self) -> String {
        failure::for_people("transferctl", &self.in_one_line(), self.advice())
    }

    /// What failed, and why: what is at the bottom of it comes last.
    #[must_use]
    pub fn in_one_line(&self) -> String {
        // A status shows its own causes in the words of a debugger.
        failure::in_one_line(self, |cause| match cause.downcast_ref::<Box<tonic::Status>>() {
            Some(status) => status.message().to_owned(),
            None => cause.to_string(),
        })
    }
}

/// How a call of a session ended.
fn of_call(error: &ClientError) -> Exit {
    match error {
        ClientError::Failed(failure) => match failure.code {
            FailureCode::Deadline | FailureCode::PoolFull => Exit::TimedOut,
            FailureCode::UnknownKey | FailureCode::VersionGone | FailureCode::UnknownWorker => Exit::NotFound,
            _ => Exit::Failed,
        },
        ClientError::ArenaFull { .. } | ClientError::NoAnswer { .. } => Exit::TimedOut,
        ClientError::SidecarGone(_) => Exit::Unreachable,
        ClientError::Name(_) | ClientError::Shape(_) | ClientError::WrongLength { .. } => Exit::WrongUse,
        _ => Exit::Failed,
    }
}

/// Whether there is no answer of the sidecar's, but a connection that broke. What a sidecar answers has no cause on this side.
fn is_broken(status: &tonic::Status) -> bool {
    let mut causes = causes(status.source()).peekable();
    causes.peek().is_some() && !causes.any(|cause| cause.is::<tonic::TimeoutExpired>())
}

fn answered(status: &tonic::Status) -> String {
    match is_broken(status) {
        true => "is gone, or the connection to it broke".to_owned(),
        false => format!("did not do it: {}", status.message()),
    }
}

fn is_refused(error: &transfer_client::Error) -> bool {
    error.to_string().contains("refused the session")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_ends_as_it_failed() {
        let failed = |code| of_call(&transfer_client::Failure::new(code, "").into());
        assert_eq!(failed(FailureCode::Deadline), Exit::TimedOut);
        assert_eq!(failed(FailureCode::PoolFull), Exit::TimedOut);
        assert_eq!(failed(FailureCode::UnknownKey), Exit::NotFound);
        assert_eq!(failed(FailureCode::UnknownWorker), Exit::NotFound);
        assert_eq!(failed(FailureCode::KeyOwned), Exit::Failed);
        assert_eq!(of_call(&ClientError::NoAnswer { waited: std::time::Duration::ZERO }), Exit::TimedOut);
        assert_eq!(of_call(&ClientError::SidecarGone(transfer_client::Gone::Away)), Exit::Unreachable);
    }
}
