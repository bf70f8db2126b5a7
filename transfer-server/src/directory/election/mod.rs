//! Which of several hosts leads the directory.
//!
//! The hosts say so by ballots, or a coordinator does: etcd or Kubernetes. Both end in the same [`Effect`]s, which the directory takes.
//!
//! **Ballots**: each host votes, in memory and for a limited time. A host leads while more than half of them have promised it, for that
//! time, to vote for no other. It gives up before the first promise may end, by its own clock, so no two hosts lead at a time.
//! There is no log: the state of the directory is recited by the nodes.
//!
//! **A coordinator**: a host leads while its record stands there, as long as its lease lasts.
//!
//! | file | idea |
//! |---|---|
//! | `voter` | what a host has promised |
//! | `campaign` | what a host does to lead, and to go on leading: no I/O, no clock |
//! | `run` | its task, and the calls to the other hosts |
//! | `coordinator` | the same by etcd or Kubernetes |

mod campaign;
#[cfg(test)]
mod cluster_tests;
pub(crate) mod coordinator;
mod run;
mod voter;

pub(super) use campaign::Campaign;
pub(super) use run::run;
pub(crate) use voter::Candidate;
pub(super) use voter::{Ballot, Purpose, Vote};

use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use transfer_core::tensor::Name;

/// The nodes of the directory, as who leads knows them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members {
    /// Rises with each change.
    pub(crate) version: u64,
    /// Their names.
    pub(crate) names: Vec<Name>,
    /// The number of the newest entry.
    pub(crate) newest: u64,
}

/// What is to be done. `Ask` is what the others, or the coordinator, are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect<Ask> {
    /// Ask.
    Ask(Ask),
    /// This host leads until then, unless that is renewed. It waits for these nodes, and numbers its entries from behind this one on.
    /// It grants nothing new before `grants_from`, also where all nodes have recited.
    Lead { until: Instant, grants_from: Option<Instant>, awaited: BTreeSet<Name>, newest: u64 },
    /// It leads until then. The next host will know the members of this version.
    Renew { until: Instant, known: u64 },
    /// It leads no longer.
    StandBy,
}

/// The time after which another host leads, if one has died. All hosts and nodes have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Takeover(pub(crate) Duration);

impl Takeover {
    /// How long a promise lasts. A dead host is noticed after this, and the election takes less than another half of it.
    pub(super) fn lease(self) -> Duration {
        // As others are told it.
        Duration::from_millis(u64::try_from(self.0.as_millis() * 2 / 5).unwrap_or(u64::MAX))
    }

    /// The shortest one that is as long and whose promises last for whole seconds, as leases of coordinators do.
    pub(crate) fn in_whole_seconds(self) -> Takeover {
        let lease = self.lease().as_millis().div_ceil(1000).max(1);
        Takeover(Duration::from_secs(u64::try_from(lease).unwrap_or(u64::MAX)) * 5 / 2)
    }

    /// How long a new host waits for the nodes that its predecessor knew.
    pub(super) fn settling(self) -> Duration {
        self.lease()
    }
}
