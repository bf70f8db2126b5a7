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
mod run;
mod voter;

pub(super) use campaign::{Campaign, Members};
pub(super) use run::run;
pub(crate) use voter::Candidate;
pub(super) use voter::{Ballot, Vote};

use std::time::Duration;

/// How long a promise lasts. A dead host is noticed after this.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// How long a new host waits for the nodes that its predecessor knew.
pub(super) const SETTLING: Duration = Duration::from_secs(2);

/// The time after which another host leads, if one has died.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(5);
