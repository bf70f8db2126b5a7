//! The answers of a process to its tasks.

use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// The time-out of a worker's call, after which its task has failed.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The answer to a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Done, without a result.
    Done,
    /// Moments, in nanoseconds of the monotonic clock, or durations in nanoseconds, and the bytes that a CPU copied.
    Times {
        /// One moment or duration for each message.
        ns: Vec<u64>,
        /// The copied bytes of all messages together.
        copied: u64,
    },
    /// Pairs of durations of two variants, in nanoseconds.
    Pairs(Vec<(u64, u64)>),
    /// What a worker has done in an exchange. The moments are nanoseconds of the monotonic clock.
    Shuffled {
        /// The moment before the first write.
        started: u64,
        /// The moment after the commit.
        committed: u64,
        /// The moment after the last row.
        ended: u64,
        /// The rows that were read.
        rows: u64,
        /// The bytes that a CPU copied for the reads.
        copied: u64,
    },
    /// The port at which the process listens.
    Port(u16),
    /// The address at which the sidecar inside of the process listens for other nodes, if it does.
    Listens(Option<SocketAddr>),
    /// The task has failed.
    Failed(String),
}

impl Answer {
    /// The moments or durations; empty for any other answer.
    #[must_use]
    pub fn times(self) -> Vec<u64> {
        match self {
            Answer::Times { ns, .. } => ns,
            _ => Vec::new(),
        }
    }

    /// The bytes that were copied by a CPU.
    #[must_use]
    pub fn copied(&self) -> u64 {
        match self {
            Answer::Times { copied, .. } => *copied,
            _ => 0,
        }
    }
}

/// The reason why a task failed. It travels as text.
pub(super) type Failed = Box<dyn std::error::Error>;

/// The answer with moments, if all could be taken.
pub(super) fn times(moments: impl Iterator<Item = io::Result<u64>>) -> Result<Answer, Failed> {
    Ok(Answer::Times { ns: moments.collect::<io::Result<_>>()?, copied: 0 })
}
