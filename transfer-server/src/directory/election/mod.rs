//! Which of several hosts leads the directory.
//!
//! Each host votes, in memory and for a limited time. A host leads while more than half of them have promised it, for that
//! time, to vote for no other. It gives up before the first promise may end, by its own clock, so no two hosts lead at a time.
//! There is no log: the state of the directory is recited by the nodes.
//!
//! | file | idea |
//! |---|---|
//! | `voter` | what a host has promised |
//! | `campaign` | what a host does to lead, and to go on leading: no I/O, no clock |
//! | `run` | its task, and the calls to the other hosts |

mod campaign;
#[cfg(test)]
mod cluster_tests;
mod run;
mod voter;

pub(super) use campaign::{Campaign, Members};
pub(super) use run::run;
pub(crate) use voter::Candidate;
pub(super) use voter::{Ballot, Purpose, Vote};

use std::time::Duration;

/// The time after which another host leads, if one has died. All hosts and nodes have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Takeover(pub(crate) Duration);

impl Takeover {
    /// How long a promise lasts. A dead host is noticed after this, and the election takes less than another half of it.
    pub(super) fn lease(self) -> Duration {
        // As others are told it.
        Duration::from_millis(u64::try_from(self.0.as_millis() * 2 / 5).unwrap_or(u64::MAX))
    }

    /// How long a new host waits for the nodes that its predecessor knew.
    pub(super) fn settling(self) -> Duration {
        self.lease()
    }
}
