//! The sidecar's state machine: sessions of workers, published tensors, links to peers, push and pull.
//!
//! [`Node`] is the whole machine: events in, [`Action`]s out. docs/protocol.md shows the messages and the states.
//!
//! # Layout
//! There are three layers. The node uses the machines, the machines use the ground, and no machine uses another one.
//!
//! On top, `node`: it holds all machines, and implements what needs several of them: push, pull, serve, fetch, publish,
//! take back.
//!
//! Machines. Each has private fields, takes events, and can be read and tested without the others:
//! - `keys`: published versions, the owners of keys, the waiters for keys, and the board entries that show versions.
//! - `landing`: the memory that peers write into: pools, slots, and the flows that own slots.
//! - `links`: the state of each link: credits, the queue of posts, and the names and descriptions that both ends
//!   number.
//! - `transfers`: transfers between nodes in flight: requests of this node, requests of peers, and keys that are pushed
//!   to peers.
//! - `counters`: named counters and barriers of the job.
//! - `sessions`: workers, their operations and deadlines, their leases and arenas.
//! - `references`: memory of one node that workers of another node read in place.
//! - `pings`: round trips that an operator measures.
//! - `spill`: versions that are written to disk.
//! - `bases`: versions that are kept because deltas of them may follow, or other nodes may ask for them. `relays`: versions that
//!   spread through their readers. `search`: the nodes that are asked for such a version. `chunks`: what has come of it.
//! - `exchanges`: what exchanges of record batches have here, for operators.
//! - `parents`: versions that have outlived their worker, and stay as long as another key is published.
//!
//! The ground, which all machines use:
//! - `ids`, `slab`: ids of entries, and tables of entries.
//! - `action`, `control`, `directory`, `events`: the actions of a node, its requests to the control plane and to the
//!   directory, and the events that it reports.
//! - `config`, `rules`, `limits`, `tenant`: the configuration of a node; the rules that it keeps; the limits on keys and versions; the tenants of
//!   workers, and the tenants for which a peer may speak.
//! - `meters`, `snapshot`: counts and times; the values that a node shows of itself.

mod action;
mod bases;
mod chunks;
mod config;
mod control;
mod counters;
mod directory;
mod events;
mod exchanges;
mod ids;
mod keys;
mod landing;
mod limits;
mod links;
mod meters;
mod node;
mod parents;
mod passing;
mod pings;
mod references;
mod relays;
mod rules;
mod search;
mod sessions;
mod slab;
mod snapshot;
mod spill;
mod tenant;
#[cfg(test)]
mod tests;
mod transfers;

pub use action::{Action, FabricAction, HostAction, HostDone, NoticeAt, Post, Shown, Write};
pub use config::NodeConfig;
pub use control::{BufferAnswer, BufferAsk, Control, MAX_ASKS, PREPARED_METADATA_ID, PassedOver, PeerInfo};
pub use counters::{COUNTER_WORDS_BYTES, COUNTERS_PER_NODE};
pub use directory::{Claim, ClaimRefused, DirectoryNews, DirectoryRequest};
pub use events::NodeEvent;
pub use exchanges::ExchangeTotals;
pub use ids::SessionId;
pub use limits::{Limits, LimitsReached};
pub use meters::{
    DeltaMeter, Histogram, MAX_PATHS, Meters, Operation, OperationMeter, PathMeter, SharedFetches, SpreadMeter,
    WaitMeter, WhyWhole,
};
pub use node::Node;
pub use node::{
    Deleted, NodeState, NotDeleted, NotPinged, PushRead, TensorFilter, TransferFilter, Unfinished, WorkerMemory,
};
pub use relays::VersionDigest;
#[cfg(test)]
pub(crate) use rules::{Broken, Rules};
pub use snapshot::{
    Carried, EndedTransfer, ExchangeStatus, ExchangeWriter, LinkStatus, LinkWork, Page, PathStatus, PoolStatus,
    PublishedStatus, QuarantineStatus, SessionStatus, Snapshot, TensorStatus, TransferStatus, UnfinishedVersion,
};
pub use spill::{SpillConfig, SpillId, SpillStatus};
pub use tenant::{InvalidTenant, Tenant, Tenants, Vouches};
