//! Kubernetes says which host leads: the one whose record stands in a Lease object, until that has not changed for as long as it says.
//!
//! | Lease (coordination.k8s.io/v1) | what it has | ends |
//! |---|---|---|
//! | `NAME` | the [`Record`](super::Record) of the host that leads, or that comes next | when a host has seen it unchanged for its duration |
//! | `NAME-host-NODE` | the record of a host, with the label `transfer/directory` | in the same way; or that host deletes it |
//! | `NAME-nodes` | the nodes for which the next host waits, and the number of an entry: the host that leads is at most 2^31 ahead | never |
//!
//! **Kubernetes ends no lease.** Who wants to take the lead waits for the whole duration after it has first seen the resource version that it
//! sees still, by its own clock, and then writes over that version. So a renewal that comes first makes it fail.
//!
//! **There is no transaction over two objects.** Who takes the lead writes into `NAME-nodes`, too, before it leads. A host writes there only
//! over the version that it has written itself, so what the host before has sent late fails.
//!
//! | file | idea |
//! |---|---|
//! | `lease` | a Lease object, and its JSON |
//! | `translator` | the calls for each request: no I/O, no clock |
//! | `client` | the calls over HTTPS |

mod client;
#[cfg(test)]
mod fake;
mod lease;
#[cfg(test)]
mod tests;
mod translator;

pub(crate) use client::Kubernetes;

use std::time::Duration;

/// The least time between two looks of a node that hosts nothing, of which so many have failed: a thousand of them that want to attach, or
/// that come back with an API server, leave it room.
pub(super) fn look_pause(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.min(5)).min(Duration::from_secs(30))
}
