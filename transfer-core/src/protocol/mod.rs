//! The sidecar's state machine: sessions of workers, published tensors, links to peers, push and pull.
//!
//! [`Node`] is the whole of it: events in, [`Action`]s out. docs/protocol.md shows the messages and the states.
//!
//! # Layout
//! - `node`: the parts put together; time, links, and what fabrics report.
//! - `session`, `ops`: workers, their operations and how those end.
//! - `fetch`, `connect`: finding a key's owner, a worker's node, the link to a node.
//! - `keys`: a machine of its own: what is published, who may publish it, who waits for it, who may find it by looking.
//! - `publish`, `claims`, `name_lost`: publishing, and who may. `versions`: who is served with a version, and what ends with it.
//! - `boards`: what workers find by looking, without asking.
//! - `limits`: how many keys and versions a worker, a user and the node may have.
//! - `take_back`: a version whose memory its worker wants to write again. `leases`: how memory is handed over and goes back.
//! - `landing`: another one: landing memory, who waits for room in it, and the life of a landing slot.
//! - `slots`, `recall`: what a grant, a landing and free room lead to; slots that are called back.
//! - `meters`: what is counted and timed. `ended`: transfers that have ended, for whoever traces them.
//! - `link`, `names`, `inbox`, `outbox`: one peer: credits, numbered names, what comes in and what goes out.
//! - `pull`, `serve`: the two sides of a fetch from another node.
//! - `references`: the same, where the receiver reads the owner's memory.
//! - `counters`: named counters and barriers of the job.
//! - `ids`, `slab`: names of entries, and tables of them.
//! - `status`, `listing`, `waiting`, `snapshot`: what a node shows of itself. `events`: what it tells without being asked.
//! - `copies`: what workers of another tenant may read, copied for them.
//! - `tenant`: whose a worker is, and whose word is taken for it.
//! - `drain`, `operator`: taking nothing new, and what an operator ends.
//! - `push_out`, `push_in`: the two sides of a push to another node.

mod action;
mod boards;
#[cfg(test)]
mod broken;
#[cfg(test)]
mod checks;
mod claims;
mod config;
mod connect;
mod control;
mod copies;
mod counters;
mod drain;
mod ended;
mod events;
mod fetch;
mod ids;
mod inbox;
mod keys;
mod landing;
mod leases;
mod limits;
mod link;
mod listing;
mod meters;
mod name_lost;
mod names;
mod node;
mod operator;
mod ops;
mod outbox;
mod prepare;
mod publish;
mod pull;
mod push_in;
mod push_out;
mod recall;
mod references;
mod serve;
mod session;
mod slab;
mod slots;
mod snapshot;
mod status;
mod take_back;
mod tenant;
#[cfg(test)]
mod tests;
mod versions;
mod waiting;

pub use action::{Action, FabricAction, HostAction, Post, Write};
#[cfg(test)]
pub(crate) use broken::Broken;
pub use config::NodeConfig;
pub use control::{ClaimRefused, Control, PassedOver, PeerInfo};
pub use counters::{COUNTER_WORDS_BYTES, COUNTERS_PER_NODE};
pub use drain::Unfinished;
pub use ended::EndedTransfer;
pub use events::NodeEvent;
pub use keys::{LimitsReached, NoticeAt, Shown};
pub use limits::Limits;
pub use listing::{TensorFilter, TransferFilter};
pub use meters::{Histogram, MAX_PATHS, Meters, Operation, OperationMeter, PathMeter, WaitMeter};
pub use node::Node;
pub use operator::{Deleted, NotDeleted};
pub use prepare::{BufferAnswer, BufferAsk, MAX_ASKS, PREPARED_METADATA_ID};
pub use snapshot::{
    Carried, LinkStatus, LinkWork, Page, PathStatus, PoolStatus, PublishedStatus, QuarantineStatus, SessionId,
    SessionStatus, Snapshot, TensorStatus, TransferStatus,
};

pub use tenant::{InvalidTenant, Tenant, Tenants, Vouches};

use ops::Op;
