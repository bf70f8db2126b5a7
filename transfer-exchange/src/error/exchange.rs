//! Errors of exchanges.

use super::PartitionError;
use std::fmt;
use std::time::Duration;

/// An error of an exchange.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The name is empty.
    #[error("an exchange needs a name")]
    NoName,
    /// The name is too long.
    #[error("the name of an exchange has at most {most} bytes, this one has {found}")]
    NameTooLong {
        /// Its length, in bytes.
        found: usize,
        /// The greatest length, in bytes.
        most: usize,
    },
    /// An exchange has at least one partition, and not too many.
    #[error("exchange {name:?} would have {found} partitions: set 1 to {most} with partitions()")]
    BadPartitions {
        /// The exchange.
        name: String,
        /// The number of partitions.
        found: u32,
        /// The greatest number.
        most: u32,
    },
    /// This worker's sidecar allows fewer partitions: `partitions_per_exchange` of its `--limits`.
    #[error("{why}")]
    TooManyPartitions {
        /// The exchange.
        name: String,
        /// The number of partitions.
        found: u32,
        /// What the sidecar says. It names the exchange, the number and the limit.
        why: String,
    },
    /// An exchange has at least one task, and not too many.
    #[error("exchange {name:?} would have {found} tasks: set 1 to {most} with tasks()")]
    BadTasks {
        /// The exchange.
        name: String,
        /// The number of tasks.
        found: u32,
        /// The greatest number.
        most: u32,
    },
    /// There is an exchange of this name already.
    #[error(
        "there is an exchange {name:?} already, opened by {owner}: join it, or open the next one when it is released"
    )]
    Exists {
        /// The exchange.
        name: String,
        /// Who has opened it.
        owner: String,
    },
    /// What is published under the exchange's key is no exchange.
    #[error("what is published under the key exchange/{name} is not an exchange")]
    NotAnExchange {
        /// The name.
        name: String,
    },
    /// There is no partition of this number.
    #[error("exchange {name:?} has no partition {partition}: its partitions are 0 to {}", partitions - 1)]
    NoSuchPartition {
        /// The exchange.
        name: String,
        /// The number.
        partition: u32,
        /// The number of partitions.
        partitions: u32,
    },
    /// There is no task of this number.
    #[error("exchange {name:?} has no task {task}: its tasks are 0 to {}", tasks - 1)]
    NoSuchTask {
        /// The exchange.
        name: String,
        /// The number.
        task: u32,
        /// The number of tasks.
        tasks: u32,
    },
    /// There is no attempt of this number.
    #[error("attempt {attempt} of task {task} of exchange {name:?} is too high: attempts are 0 to {most}")]
    NoSuchAttempt {
        /// The exchange.
        name: String,
        /// The task.
        task: u32,
        /// The number.
        attempt: u32,
        /// The highest number.
        most: u32,
    },
    /// Another attempt has committed this task. This one is dropped, and its memory is free.
    #[error("attempt {by} has committed task {task} of exchange {name:?}; attempt {attempt} is dropped")]
    Committed {
        /// The exchange.
        name: String,
        /// The task.
        task: u32,
        /// This attempt.
        attempt: u32,
        /// The attempt that has committed.
        by: u32,
    },
    /// An attempt of this number has committed before, or is about to.
    #[error(
        "there was an attempt {attempt} of task {task} of exchange {name:?} already: each attempt needs a number of its own"
    )]
    AttemptUsed {
        /// The exchange.
        name: String,
        /// The task.
        task: u32,
        /// The attempt.
        attempt: u32,
    },
    /// An earlier call of this task or partition has not ended.
    #[error("an earlier call of {what} of exchange {name:?} has not ended: wait for it, or drop it")]
    Busy {
        /// The exchange.
        name: String,
        /// The task or partition.
        what: String,
    },
    /// A batch cannot be partitioned.
    #[error("task {task} of exchange {name:?}: {source}")]
    Partition {
        /// The exchange.
        name: String,
        /// The task.
        task: u32,
        /// The reason.
        source: Box<PartitionError>,
    },
    /// Two tasks wrote batches of different schemas.
    #[error(
        "the tasks of exchange {name:?} have different schemas: task {first} wrote {expected}, and task {task} wrote {found}; all have \
         to write the same"
    )]
    Schemas {
        /// The exchange.
        name: String,
        /// The task that was read first.
        first: u32,
        /// Its fields.
        expected: Box<str>,
        /// The task that differs.
        task: u32,
        /// Its fields.
        found: Box<str>,
    },
    /// What a task has committed is damaged.
    #[error("what attempt {attempt} of task {task} of exchange {name:?} has committed cannot be read: {why}")]
    Damaged {
        /// The exchange.
        name: String,
        /// The task.
        task: u32,
        /// The attempt.
        attempt: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// These tasks have committed, and what they wrote is lost with a sidecar or on its disk. All other tasks stay
    /// readable. Run these again, each with the number of a new attempt; then read on.
    #[error("exchange {name:?} has lost what {} wrote, with a sidecar or its disk: run {} again", Tasks(tasks), if tasks.len() == 1 { "it" } else { "them" })]
    Lost {
        /// The exchange.
        name: String,
        /// The tasks, in rising order.
        tasks: Vec<u32>,
    },
    /// Some tasks have not committed in time. A later call reads on.
    #[error("partition {partition} of exchange {name:?}: {} did not commit within {waited:.1?}", Tasks(tasks))]
    NotCommitted {
        /// The exchange.
        name: String,
        /// The partition.
        partition: u32,
        /// The tasks, in rising order.
        tasks: Vec<u32>,
        /// The time of the call.
        waited: Duration,
    },
    /// A partition that is read in [an order of its own](crate::Partition::in_order_of), and several times, has other rows
    /// than the first time: a task was lost, and its next attempt has not written the same rows. Read the partition anew.
    #[error(
        "partition {partition} of exchange {name:?} has other rows than before: {found} in place of {expected}; a task that runs again has \
         to write the same rows, or its partitions have to be read anew"
    )]
    Changed {
        /// The exchange.
        name: String,
        /// The partition.
        partition: u32,
        /// The number of rows that the first pass found in a part of the order.
        expected: u64,
        /// The number of rows that a later one found there.
        found: u64,
    },
    /// The exchange is over.
    #[error("exchange {name:?} is over: {why}")]
    Over {
        /// The exchange.
        name: String,
        /// Why.
        why: End,
    },
    /// Only the handle that has opened an exchange may release it.
    #[error("exchange {name:?} was opened by {opener:?}, which has to release it")]
    NotOpener {
        /// The exchange.
        name: String,
        /// The worker that has opened it.
        opener: String,
    },
}

/// Why an exchange is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// Its opener has released it.
    Released,
    /// Its deadline has passed.
    Deadline,
    /// The worker that opened it is gone.
    OpenerGone,
    /// The sidecar at which it was opened has ended, and the words that decide about commits with it.
    HomeLost,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Released => "it was released",
            End::Deadline => "its deadline has passed",
            End::OpenerGone => "the worker that opened it is gone, or has released it",
            End::HomeLost => "the sidecar at which it was opened has ended, and what decides about commits with it",
        })
    }
}

/// Tasks as a person counts them. Of many, only the first are shown.
struct Tasks<'a>(&'a [u32]);

impl fmt::Display for Tasks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 16;
        f.write_str(if self.0.len() == 1 { "task " } else { "tasks " })?;
        for (n, task) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{task}", if n == 0 { "" } else { ", " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl ExchangeError {
    /// Whether the same call may succeed later, with nothing changed by its caller.
    #[must_use]
    pub fn can_retry(&self) -> bool {
        matches!(self, ExchangeError::Lost { .. } | ExchangeError::NotCommitted { .. })
    }
}
