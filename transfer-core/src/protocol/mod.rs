//! The sidecar's state machine: sessions of workers, published tensors, links to peers, push and pull.
//!
//! [`Node`] is the whole of it: events in, [`Action`]s out. docs/protocol.md shows the messages and the states.
//!
//! # Layout
//! Arrows point down: the node knows the machines, the machines know the ground, and no machine knows another one.
//!
//! On top, `node`: the parts put together, and the flows that need several of them: push, pull, serve, fetch, publish, take back.
//!
//! Machines. Each has private fields, takes events, and can be read and tested without the others:
//! - `keys`: what is published, who may publish it, who waits for it, and who may find it by looking.
//! - `landing`: the memory that peers write into: pools, slots, and the flows that own slots.
//! - `links`: what one link consists of: credits, what waits to be posted, names and descriptions that both ends number.
//! - `transfers`: what is under way between nodes: requests of ours, requests of peers, and keys that are pushed to peers.
//! - `counters`: named counters and barriers of the job.
//! - `sessions`: workers, their operations and deadlines, their leases and arenas.
//! - `references`: memory of one node that workers of another read where it lies.
//!
//! The ground, which all of them know:
//! - `ids`, `slab`: names of entries, and tables of them.
//! - `action`, `control`, `directory`, `events`: what a node wants done, what it asks the control plane and the directory, and what it
//!   tells without being asked.
//! - `config`, `limits`, `tenant`: what a node is told at its start; how much each may have; whose a worker is, and whose word is taken for it.
//! - `meters`, `snapshot`: what is counted and timed; what a node shows of itself.

mod action;
#[cfg(test)]
mod broken;
mod config;
mod control;
mod counters;
mod directory;
mod events;
mod ids;
mod keys;
mod landing;
mod limits;
mod links;
mod meters;
mod node;
mod references;
mod sessions;
mod slab;
mod snapshot;
mod tenant;
#[cfg(test)]
mod tests;
mod transfers;

pub use action::{Action, FabricAction, HostAction, NoticeAt, Post, Shown, Write};
#[cfg(test)]
pub(crate) use broken::Broken;
pub use config::NodeConfig;
pub use control::{BufferAnswer, BufferAsk, Control, MAX_ASKS, PREPARED_METADATA_ID, PassedOver, PeerInfo};
pub use counters::{COUNTER_WORDS_BYTES, COUNTERS_PER_NODE};
pub use directory::{Claim, ClaimRefused, DirectoryNews, DirectoryRequest};
pub use events::NodeEvent;
pub use ids::SessionId;
pub use limits::{Limits, LimitsReached};
pub use meters::{Histogram, MAX_PATHS, Meters, Operation, OperationMeter, PathMeter, WaitMeter};
pub use node::Node;
pub use node::drain::Unfinished;
pub use node::listing::{TensorFilter, TransferFilter};
pub use node::operator::{Deleted, NotDeleted};
pub use snapshot::{
    Carried, EndedTransfer, LinkStatus, LinkWork, Page, PathStatus, PoolStatus, PublishedStatus, QuarantineStatus,
    SessionStatus, Snapshot, TensorStatus, TransferStatus,
};
pub use tenant::{InvalidTenant, Tenant, Tenants, Vouches};
