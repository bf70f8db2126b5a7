//! Errors of commands, with their exit codes and advice.

use crate::admin::address::Address;
use crate::admin::tls::TlsError;
use crate::certs::CertsError;
use crate::devices::NoRdma;
use crate::files::error::FilesError;
use crate::perf::error::PerfError;
use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use transfer_client::{Error as ClientError, FailureCode};
use transfer_terminal::exit::Exit;
use transfer_terminal::failure::{self, causes};

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The Admin service does not answer.
    #[error("cannot reach a sidecar at {address}")]
    Unreachable {
        /// The address.
        address: Address,
        /// The cause.
        source: tonic::transport::Error,
    },
    /// An https address lacks its certificates.
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
    /// Some nodes could not be asked. Each was reported.
    #[error("the list is not of all nodes: {missing} of {nodes} could not be asked")]
    NotAllNodes {
        /// The number of missing nodes.
        missing: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// No node has that name or address.
    #[error("no node has the name or the address {host:?}; there are: {nodes}{why}")]
    NoSuchNode {
        /// The name or address.
        host: String,
        /// The nodes.
        nodes: String,
        /// The reason why these may not be all.
        why: String,
    },
    /// Several nodes have that address.
    #[error("the nodes {nodes} are all at {host}: give one of these names, or the port too")]
    SeveralNodes {
        /// The address.
        host: String,
        /// The nodes.
        nodes: String,
    },
    /// A node cannot be asked.
    #[error("node {node} cannot be asked: {why}")]
    NodeAway {
        /// The node.
        node: String,
        /// The reason.
        why: String,
    },
    /// Some pings were not answered. Each was reported.
    #[error("{lost} of {sent} pings of node {node} were not answered")]
    PingsLost {
        /// The node.
        node: String,
        /// The number of pings that were not answered.
        lost: u64,
        /// The number of pings.
        sent: u64,
    },
    /// A node has no queue pair for datagrams.
    #[error("no datagrams can be sent: {why}")]
    NoDatagrams {
        /// The node, and the reason.
        why: String,
    },
    /// A drained sidecar has left with unfinished work.
    #[error("the deadline of the drain came first: the sidecar leaves with {left}")]
    Overdue {
        /// The unfinished work.
        left: String,
    },
    /// A live screen needs a terminal.
    #[error("a live screen needs a terminal")]
    NoTerminal,
    /// The terminal failed.
    #[error("the terminal cannot be used")]
    Terminal {
        /// The cause.
        source: io::Error,
    },
    /// A stream has ended.
    #[error("the sidecar at {address} has ended {what}: it is stopping, or the connection is gone")]
    StreamEnded {
        /// The address.
        address: Address,
        /// The contents of the stream.
        what: &'static str,
    },
    /// The polling time does not fit the strategy.
    #[error("--for-us {for_us} goes with adaptive only: event and busy have no time")]
    PollFor {
        /// The value.
        for_us: u64,
    },
    /// This host has no RDMA device to show.
    #[error("no RDMA on this host")]
    NoRdma(#[from] NoRdma),
    /// `doctor` has found and printed a fault.
    #[error("{failed} of {checks} checks failed")]
    Unhealthy {
        /// The number of failed checks.
        failed: usize,
        /// The number of checks.
        checks: usize,
    },
    /// There is no session with the sidecar.
    #[error("cannot connect to the sidecar at {}", socket.display())]
    Connect {
        /// The workers' socket.
        socket: PathBuf,
        /// The cause.
        source: transfer_client::Error,
    },
    /// The workers' socket and the Admin address belong to different sidecars.
    #[error("the sidecar at {} is node {node}, and not the one at {address}", socket.display())]
    AnotherSidecar {
        /// The workers' socket.
        socket: PathBuf,
        /// Its node.
        node: String,
        /// The address of the other one.
        address: Address,
    },
    /// A call of the session failed.
    #[error("cannot {what} {key:?}")]
    Call {
        /// The call.
        what: &'static str,
        /// The key.
        key: String,
        /// The cause.
        source: transfer_client::Error,
    },
    /// The tensors of a push are no longer published.
    #[error("nothing of it is published any more at {}", socket.display())]
    Unpublished {
        /// The workers' socket.
        socket: PathBuf,
        /// The reason why the session is over.
        source: transfer_client::Error,
    },
    /// Certificates were not made.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// An error of a file.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A measurement of RDMA operations failed.
    #[error(transparent)]
    Perf(#[from] PerfError),
    /// The runtime could not be started.
    #[error("cannot start")]
    Runtime {
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    /// The exit status of the process.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Error::Unreachable { .. } | Error::StreamEnded { .. } | Error::Unpublished { .. } => Exit::Unreachable,
            Error::Admin { source, .. } if is_broken(source) => Exit::Unreachable,
            Error::Admin { source, .. } => match source.code() {
                tonic::Code::Unavailable => Exit::Unreachable,
                tonic::Code::InvalidArgument => Exit::InvalidArguments,
                tonic::Code::DeadlineExceeded => Exit::TimedOut,
                tonic::Code::NotFound => Exit::NotFound,
                tonic::Code::DataLoss => Exit::NotVerified,
                _ => Exit::Failed,
            },
            Error::Connect { source, .. } if source.can_retry() && !is_refused(source) => Exit::Unreachable,
            Error::Connect { source, .. } | Error::Call { source, .. } => of_call(source),
            Error::NoSuchNode { .. } | Error::SeveralNodes { .. } => Exit::InvalidArguments,
            Error::NodeAway { .. } => Exit::Unreachable,
            Error::PingsLost { lost, sent, .. } if lost < sent => Exit::PartlyDone,
            Error::PingsLost { .. } => Exit::Unreachable,
            Error::PollFor { .. } | Error::NoTerminal | Error::Tls(_) => Exit::InvalidArguments,
            Error::NoRdma(_) | Error::NoDatagrams { .. } => Exit::NoRdma,
            Error::NotAllNodes { .. } => Exit::PartlyDone,
            Error::Unhealthy { .. } => Exit::Unhealthy,
            Error::Certs(error) => error.exit(),
            Error::Files(error) => error.exit(),
            Error::Perf(error) => error.exit(),
            _ => Exit::Failed,
        }
    }

    /// Its number.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.exit().code()
    }

    /// The advice, if there is any.
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
                "No room became free in time: --timeout waits longer, and a larger --arena-bytes, or none, takes more at once.".to_owned()
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
            Error::PingsLost { .. } | Error::NodeAway { .. } => {
                "`transferctl doctor` says what is wrong with the sidecar, its directory and its links.".to_owned()
            }
            Error::NoDatagrams { .. } => {
                "Both nodes need an RDMA device and --verbs auto or on: `transferctl devices` and `transferctl doctor` there say more. Without \
                 --ud, the link between the nodes is measured."
                    .to_owned()
            }
            Error::NoTerminal => "`transferctl top --once` prints one frame as text, `transferctl watch` refreshes a list.".to_owned(),
            Error::Certs(error) => return error.advice(),
            Error::Files(error) => return error.advice(),
            Error::Perf(error) => return error.advice(),
            Error::NoRdma(why) => why.advice().to_owned(),
            _ => return None,
        };
        Some(text)
    }

    /// The text for people: a line with the failure and its causes, the first cause last, and a line with advice.
    #[must_use]
    pub fn for_people(&self) -> String {
        failure::for_people("transferctl", &self.in_one_line(), self.advice())
    }

    /// The failure and its causes in one line, the first cause last.
    #[must_use]
    pub fn in_one_line(&self) -> String {
        // A status shows its own causes in the form for debugging.
        failure::in_one_line(self, |cause| match cause.downcast_ref::<Box<tonic::Status>>() {
            Some(status) => status.message().to_owned(),
            None => cause.to_string(),
        })
    }
}

/// The exit status of a failed call.
fn of_call(error: &ClientError) -> Exit {
    match error {
        ClientError::Failed(failure) => match failure.code {
            FailureCode::Deadline | FailureCode::PoolFull => Exit::TimedOut,
            FailureCode::UnknownKey | FailureCode::VersionGone | FailureCode::UnknownWorker => Exit::NotFound,
            _ => Exit::Failed,
        },
        ClientError::ArenaFull { .. } | ClientError::NoAnswer { .. } => Exit::TimedOut,
        ClientError::SidecarGone(_) => Exit::Unreachable,
        ClientError::Name(_) | ClientError::Shape(_) | ClientError::WrongLength { .. } => Exit::InvalidArguments,
        ClientError::Digest(_) => Exit::NotVerified,
        _ => Exit::Failed,
    }
}

/// Whether the connection broke without an answer. An answer of the sidecar has no cause on this side.
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
    fn failed_calls_have_their_exit_status() {
        let failed = |code| of_call(&transfer_client::Failure::new(code, "").into());
        assert_eq!(failed(FailureCode::Deadline), Exit::TimedOut);
        assert_eq!(failed(FailureCode::PoolFull), Exit::TimedOut);
        assert_eq!(failed(FailureCode::UnknownKey), Exit::NotFound);
        assert_eq!(failed(FailureCode::UnknownWorker), Exit::NotFound);
        assert_eq!(failed(FailureCode::KeyOwned), Exit::Failed);
        assert_eq!(of_call(&ClientError::NoAnswer { waited: std::time::Duration::ZERO }), Exit::TimedOut);
        assert_eq!(of_call(&ClientError::SidecarGone(transfer_client::SessionEnd::Away)), Exit::Unreachable);
    }
}
