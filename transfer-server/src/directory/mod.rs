//! The directory: which node owns a key, and where a worker is.
//!
//! One sidecar of a cluster hosts the directory in memory, or one of several that are elected, or named by etcd or Kubernetes. Every node, the host included, attaches to it and
//! exchanges the same items; the host does so without gRPC. An entry lives as long as the attachment of its node.
//!
//! | file | idea |
//! |---|---|
//! | `item` | the messages, as values |
//! | `registry`, `entries`, `names` | the state: no I/O, no clock |
//! | `host`, `lost` | the state behind a lock, an outbox for each node; nodes that were lost |
//! | `election`, `leading`, `standing`, `settling` | one of several hosts leads; how it begins |
//! | `service`, `convert` | the directory as a gRPC service |
//! | `client`, `connection`, `places`, `ledger`, `log` | a node's side: stays attached, repeats requests, works without a directory |

mod client;
mod connection;
pub(crate) mod convert;
mod election;
mod entries;
mod host;
mod item;
mod leading;
mod ledger;
mod log;
mod lost;
mod names;
mod places;
mod registry;
mod service;
mod settling;
mod standing;

pub(crate) use client::{DirectoryClient, DirectoryState};
pub(crate) use connection::{Place, Reached};
pub use convert::BadItem;
pub(crate) use election::coordinator::{Coordinator, Etcd, Kubernetes, Outlook, Record};
pub(crate) use election::{Candidate, Takeover};
pub use host::{Attachment, Detached, Directory, MAX_BATCH};
pub use item::{Answer, Hello, KeyAt, NodeAt, NodeItem};
pub(crate) use leading::{ElectionState, HandOverError};
pub(crate) use ledger::{DirectoryCommand, DirectoryEvent};
pub(crate) use places::Places;
pub use registry::{AttachRefused, Counts};
pub(crate) use service::{DirectoryService, lookup, nodes};
