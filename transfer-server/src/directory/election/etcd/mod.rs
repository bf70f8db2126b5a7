//! Which host leads the directory, as etcd says: the one whose record stands under a key, as long as its lease lasts.
//!
//! | key | value | ends with |
//! |---|---|---|
//! | `PREFIX/leader` | the [`Record`] of the host that leads, or that comes next | its lease |
//! | `PREFIX/hosts/NODE` | the record of a host | its lease |
//! | `PREFIX/nodes/NODE` | empty: a node for which the next host waits | when its host deletes it |
//! | `PREFIX/newest` | the number of an entry: the host that leads is at most 2^31 ahead | never |
//!
//! What the host that leads writes, it writes on the condition that the first key is as it left it. The term is the revision of that key.
//!
//! | file | idea |
//! |---|---|
//! | `record` | the keys and values |
//! | `claimant` | what a host does to lead, and how long it may: no I/O, no clock |
//! | `client` | the calls to etcd's members |
//! | `outlook` | what this node has read last |
//! | `run` | the tasks |

mod claimant;
#[cfg(test)]
mod claimant_tests;
mod client;
#[cfg(test)]
mod fake;
mod outlook;
mod record;
mod run;

pub(in crate::directory) use claimant::Claimant;
pub(crate) use client::Etcd;
pub(crate) use outlook::Outlook;
pub(crate) use record::Record;
pub(in crate::directory) use run::{run, watch};
