//! Workers: their sessions, their waiting operations, and the arenas that they write.
//!
//! # Layout
//! - `session`: one connected worker, and its leases.
//! - `op`: an operation that could not end at once, and the event that it waits for. `operations`: the table of waiting
//!   operations, with their deadlines.
//! - `streams`: whose streams a worker reads.
//! - `arenas`: the arenas of workers, and the versions that lie in them. `whereabouts`: the nodes of workers elsewhere.
//! - `owners`: the workers that own keys.

mod arenas;
mod op;
mod operations;
mod owners;
mod session;
mod streams;
#[cfg(test)]
mod tests;
mod whereabouts;

pub(super) use op::{CounterOp, FetchOp, FetchStage, Op, OpKind, PushOp, PushStage, ReserveOp, TakeBackOp};
pub(super) use session::{Closed, Session};
pub(super) use streams::Writer;

use super::ids::{OperationId, SessionId, of};
use super::slab::Slab;
use crate::fabric::FabricKind;
use crate::memory::SegmentId;
use crate::tensor::Name;
use crate::time::Time;
use arenas::{Arena, Region};
use hashbrown::{HashMap, HashSet};
use session::Leases;
use std::collections::{BTreeMap, BTreeSet};
use whereabouts::Whereabouts;

/// The workers of a node, as a state machine.
///
/// It knows versions, links and transfers only by their ids. The node that holds it
/// - hands it **events**: a session begins ([`open`](Sessions::open)), is evicted ([`evict`](Sessions::evict)) and ends
///   ([`forget`](Sessions::forget), [`take_lease`](Sessions::take_lease)); a worker gets and returns leases ([`lend`](Sessions::lend),
///   [`give_back`](Sessions::give_back)); an operation begins ([`begin`](Sessions::begin)), changes its stage
///   ([`set_fetch_stage`](Sessions::set_fetch_stage), [`set_push_stage`](Sessions::set_push_stage)) and ends
///   ([`finish`](Sessions::finish)); a version is put into an arena ([`occupy`](Sessions::occupy)) and removed from it
///   ([`vacate`](Sessions::vacate)); the directory locates a worker ([`located`](Sessions::located));
/// - asks [`next_deadline`](Sessions::next_deadline) when to call [`take_due`](Sessions::take_due), which returns the
///   operations whose deadline has passed.
///
/// **Getters** return [`Session`]s and [`Op`]s to read.
#[derive(Default)]
pub(super) struct Sessions {
    sessions: BTreeMap<SessionId, Session>,
    /// The leases of evicted workers, which may still read.
    evicted: BTreeMap<SessionId, Leases>,
    /// The workers that can be found by name.
    by_name: HashMap<Name, SessionId>,
    arenas: HashMap<SegmentId, Arena>,
    /// The memory that workers have registered beside their arenas.
    regions: HashMap<SegmentId, Region>,
    /// The arenas and registered memory that a fabric cannot read.
    unreadable: HashSet<(SegmentId, FabricKind)>,
    operations: Slab<Op, of::Operation>,
    deadlines: BTreeSet<(Time, OperationId)>,
    /// The number of waiting fetches of parts of exchanges.
    exchange_reads: u64,
    elsewhere: Whereabouts,
}
