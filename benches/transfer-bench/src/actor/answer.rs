//! What a process says when it is done with a task.

use serde::{Deserialize, Serialize};
use std::io;
use std::time::Duration;

/// How long a call of a worker may take: then its task has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What it says when it is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// Nothing to tell.
    Done,
    /// Moments, in nanoseconds of the monotonic clock, or durations in nanoseconds, and the bytes that were copied by a CPU.
    Times {
        /// One for each message.
        ns: Vec<u64>,
        /// In all.
        copied: u64,
    },
    /// Durations of the same thing done in two ways, in nanoseconds.
    Pairs(Vec<(u64, u64)>),
    /// Where it listens.
    Port(u16),
    /// It could not.
    Failed(String),
}

impl Answer {
    /// The moments or durations; none of any other answer.
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

/// Why a task failed. It travels as text.
pub(super) type Failed = Box<dyn std::error::Error>;

/// The answer of moments, where all could be taken.
pub(super) fn times(moments: impl Iterator<Item = io::Result<u64>>) -> Result<Answer, Failed> {
    Ok(Answer::Times { ns: moments.collect::<io::Result<_>>()?, copied: 0 })
}
