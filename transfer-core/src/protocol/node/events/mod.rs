//! Events that come in. They call the flows, and nothing calls them.
//!
//! # Layout
//! - `session`: sessions of workers, and their commands.
//! - `inbox`: messages of peers, and the end of a rail.
//! - `slots`: grants, landings and revokes of landing slots.
//! - `directory`: the directory's answers and news.
//! - `boards`: versions that workers find without a request.
//! - `references`: segments of peers, and the end of references.
//! - `ping`: round trips to a peer, for an operator.
//! - `drain`: the node is about to leave.
//! - `host`: what the host has done: copies, deltas, digests.
//! - `ended`: the recording of transfers.

mod boards;
mod directory;
mod drain;
mod ended;
mod host;
mod inbox;
mod ping;
mod references;
mod session;
mod slots;

pub use ping::NotPinged;
pub use session::{PushRead, WorkerMemory};
