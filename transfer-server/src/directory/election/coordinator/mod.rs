//! Which host leads the directory, as a coordinator outside of it says: an etcd, or Kubernetes.
//!
//! A host leads while its [`Record`] stands in one place, under a promise that ends unless it is renewed. Both coordinators answer the same
//! requests, so one election serves both.
//!
//! | file | idea |
//! |---|---|
//! | `record` | a host, as it stands there |
//! | `claimant` | what a host does to lead, and how long it may: no I/O, no clock |
//! | `etcd`, `kubernetes` | how each is asked |
//! | `outlook` | what this node has read last |
//! | `run` | the tasks |

mod claimant;
mod etcd;
mod kubernetes;
mod outlook;
mod record;
mod run;
#[cfg(test)]
mod world;

pub(in crate::directory) use claimant::Claimant;
pub(crate) use etcd::Etcd;
pub(crate) use kubernetes::Kubernetes;
pub(crate) use outlook::Outlook;
pub(crate) use record::Record;
pub(in crate::directory) use run::{run, watch};

use super::Takeover;
use claimant::{Answer, Request};
use std::time::Duration;

/// What says which host leads.
#[derive(Debug)]
pub(crate) enum Coordinator {
    Etcd(Box<Etcd>),
    Kubernetes(Box<Kubernetes>),
}

impl Coordinator {
    /// How often a node looks that hosts nothing, unless it wants to know which host leads.
    fn look_interval(&self, takeover: Takeover) -> Duration {
        match self {
            Coordinator::Etcd(_) => takeover.0,
            // All that run in a cluster share its API server, and take no more of it than they need.
            Coordinator::Kubernetes(_) => takeover.0 * 6,
        }
    }

    /// The least time between two looks of such a node, of which so many have failed.
    fn look_pause(&self, failures: u32) -> Duration {
        match self {
            Coordinator::Etcd(_) => Duration::ZERO,
            Coordinator::Kubernetes(_) => kubernetes::look_pause(failures),
        }
    }

    /// Makes a request. Without an answer `within` that time it fails, and may be done all the same.
    async fn ask(&self, request: &Request, within: Duration) -> Answer {
        match self {
            Coordinator::Etcd(etcd) => etcd.ask(request, within).await,
            Coordinator::Kubernetes(kubernetes) => kubernetes.ask(request, within).await,
        }
    }
}
