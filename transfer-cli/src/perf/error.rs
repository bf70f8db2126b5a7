//! Errors of `perf`, with their exit codes and advice.

use super::message::MessageError;
use crate::devices::NoRdma;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use transfer_terminal::exit::Exit;
use transfer_terminal::units::bytes;
use transfer_verbs::choose::ChooseError;
use transfer_verbs::{
    ModifyError, OutOfBounds, PostError, QueuePairState, Refused, RegisterError, Status, Transport, VerbsError,
};

/// The reason why a test cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A number is out of its range.
    #[error("{flag} {value}: {} would be right{why}", range(*least, *most))]
    Range {
        /// The flag.
        flag: &'static str,
        /// The value.
        value: u64,
        /// The least that would be right.
        least: u64,
        /// The most that would be right.
        most: u64,
        /// Where the limit comes from.
        why: &'static str,
    },
    /// A flag does not go with the test.
    #[error("{flag} does not go with {test}: {why}")]
    Unfit {
        /// The flag.
        flag: &'static str,
        /// The test.
        test: String,
        /// Why, and what would be right.
        why: &'static str,
    },
    /// A message is longer than the path carries.
    #[error("--size {size} is too long: {most} is {what}")]
    TooLong {
        /// The size.
        size: u64,
        /// The largest right one.
        most: u64,
        /// What limits it.
        what: &'static str,
    },
    /// It takes too much memory.
    #[error(
        "--qp {queue_pairs} with messages of {} takes {} of registered memory, and {} is the most",
        bytes(*size), bytes(*memory), bytes(*most)
    )]
    Memory {
        /// The number of queue pairs.
        queue_pairs: u32,
        /// The longest message.
        size: u64,
        /// What it takes.
        memory: u64,
        /// What it may take.
        most: u64,
    },
    /// Packets of that size do not exist.
    #[error("--mtu {value}: 256, 512, 1024, 2048 or 4096 would be right")]
    Mtu {
        /// The value.
        value: u32,
    },
    /// A run has no length, or two.
    #[error("a run lasts for a number of messages or for 1 to 86400 seconds, and not for {messages:?} and {seconds:?}")]
    Length {
        /// The number of messages.
        messages: Option<u64>,
        /// The seconds.
        seconds: Option<u32>,
    },
}

fn range(least: u64, most: u64) -> String {
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

/// The reason why `perf` failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The test cannot be.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no device, or it has no such port or address.
    #[error(transparent)]
    Choose(#[from] ChooseError),
    /// An object could not be made.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A queue pair did not change its state.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// A work request was not posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A range is outside the memory of the test.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// There is no memory.
    #[error("{} of memory cannot be had", bytes(*len_bytes))]
    Memory {
        /// The bytes.
        len_bytes: u64,
        /// The cause.
        source: io::Error,
    },
    /// A work request failed.
    #[error("queue pair {queue_pair}: {status}")]
    Work {
        /// The queue pair.
        queue_pair: u32,
        /// The reason.
        status: Status,
    },
    /// The server cannot be reached.
    #[error("cannot reach a server at {host}:{port}")]
    Unreachable {
        /// The host, as it was given.
        host: String,
        /// The port.
        port: u16,
        /// The cause.
        source: io::Error,
    },
    /// The server cannot listen.
    #[error("cannot listen at {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The connection to the other end broke.
    #[error("the connection to {peer} broke")]
    Broken {
        /// The other end.
        peer: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The other end has closed its connection.
    #[error("{peer} has ended the test while {waiting}")]
    Gone {
        /// The other end.
        peer: SocketAddr,
        /// What this end waited for.
        waiting: &'static str,
    },
    /// The other end does not answer.
    #[error("nothing came from {peer} for {} s while {waiting}", limit.as_secs())]
    Silent {
        /// The other end.
        peer: SocketAddr,
        /// How long.
        limit: Duration,
        /// What this end waited for.
        waiting: &'static str,
    },
    /// The other end says something that is no message, or not the one that comes next.
    #[error("what {peer} says is not a message of transferctl perf: {source}")]
    Message {
        /// The other end.
        peer: SocketAddr,
        /// What is wrong with it.
        source: MessageError,
    },
    /// The other end does not do it.
    #[error("{peer} says: {why}")]
    Refused {
        /// The other end.
        peer: SocketAddr,
        /// Its reason.
        why: String,
    },
    /// The two ends were started for different things.
    #[error("the server was started for {server}, and the client for {client}")]
    Differs {
        /// What the server measures.
        server: String,
        /// What the client measures.
        client: String,
    },
    /// The connection by librdmacm was not made.
    #[error("librdmacm did not connect: {why}")]
    Connection {
        /// The reason.
        why: &'static str,
    },
    /// Nothing arrives.
    #[error("no completion for {} s, after {messages} messages{hint}", limit.as_secs())]
    Stalled {
        /// How long.
        limit: Duration,
        /// The messages so far.
        messages: u64,
        /// What may explain it.
        hint: &'static str,
    },
    /// The bytes differ.
    #[error("{test}, {size} bytes: the bytes that arrived differ from those that were sent")]
    NotVerified {
        /// The test.
        test: String,
        /// The size of the message.
        size: u64,
    },
    /// The time of a run was over before its first message.
    #[error("no message was measured: the time was over before it came back")]
    Unmeasured,
    /// There are no queue pairs.
    #[error("a run was to begin before its queue pairs were made")]
    Unprepared,
    /// The chart cannot be drawn.
    #[error("the chart cannot be drawn: {why}")]
    Chart {
        /// The reason.
        why: String,
    },
    /// The chart cannot be written.
    #[error("cannot write {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The system refused something that always works.
    #[error("cannot {what}")]
    System {
        /// The operation.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl<S: QueuePairState, T: Transport> From<Refused<S, T>> for PerfError {
    fn from(refused: Refused<S, T>) -> Self {
        PerfError::Modify(refused.into())
    }
}

impl PerfError {
    /// The exit status of the program.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            PerfError::Plan(_) | PerfError::Differs { .. } => Exit::InvalidArguments,
            PerfError::Choose(ChooseError::Verbs(VerbsError::Unavailable(_)) | ChooseError::NoDevice)
            | PerfError::Verbs(VerbsError::Unavailable(_)) => Exit::NoRdma,
            PerfError::Choose(_) => Exit::InvalidArguments,
            PerfError::Silent { .. } | PerfError::Stalled { .. } => Exit::TimedOut,
            PerfError::NotVerified { .. } => Exit::NotVerified,
            _ => Exit::Failed,
        }
    }

    /// The advice, if there is any.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let text = match self {
            PerfError::Choose(ChooseError::NoDevice) => NoRdma::NoDevice.advice().to_owned(),
            PerfError::Choose(ChooseError::Verbs(VerbsError::Unavailable(_)))
            | PerfError::Verbs(VerbsError::Unavailable(_)) => {
                "Install libibverbs with its providers (rdma-core; on Debian libibverbs1 and ibverbs-providers)."
                    .to_owned()
            }
            PerfError::Choose(_) => "`transferctl devices` lists devices, ports and GIDs.".to_owned(),
            PerfError::Unreachable { .. } => {
                "Start the server there first: the same command without HOST. It can be reached from another host \
                                              only with --listen ADDRESS."
                    .to_owned()
            }
            PerfError::Differs { .. } => {
                "Start both with the same verb, measure, --connection and --rdma_cm; --sweep at the server serves all."
                    .to_owned()
            }
            PerfError::Work { status: Status::LocalLength | Status::RemoteInvalidRequest, .. } => {
                "Both ends must carry messages and packets of that size: --mtu sets the packets.".to_owned()
            }
            PerfError::Work { status: Status::TransportRetriesExceeded, .. } => {
                "`transferctl devices` at both ends: the GIDs must be in one network; --gid-index takes another one."
                    .to_owned()
            }
            _ => return None,
        };
        Some(text)
    }
}
