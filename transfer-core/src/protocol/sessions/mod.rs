//! Workers: their sessions, their operations that wait, and the arenas that they write.
//!
//! # Layout
//! - `session`: one connected worker, and its leases.
//! - `op`: an operation that could not end at once, and what it waits for. `operations`: the table of them, with their deadlines.
//! - `arenas`: what lies in the memory of workers. `whereabouts`: the nodes of workers elsewhere.

mod arenas;
mod op;
mod operations;
mod session;
#[cfg(test)]
mod tests;
mod whereabouts;

pub(super) use op::{FetchStage, Op, OpKind, PushStage};
pub(super) use session::Session;

use super::ids::{OperationId, SessionId, of};
use super::slab::Slab;
use crate::memory::SegmentId;
use crate::tensor::Name;
use crate::time::Time;
use arenas::Arena;
use hashbrown::HashMap;
use session::Leases;
use std::collections::{BTreeMap, BTreeSet};
use whereabouts::Whereabouts;

/// The workers of a node, as a state machine.
///
/// It knows versions, links and transfers by their ids, and nothing else of them. Whoever holds it
/// - hands it **events**: a session begins ([`open`](Sessions::open)), is thrown out ([`evict`](Sessions::evict)) and ends
///   ([`take_leases`](Sessions::take_leases)); a worker gets and gives back leases ([`lend`](Sessions::lend),
///   [`give_back`](Sessions::give_back)); an operation begins ([`begin`](Sessions::begin)), goes on ([`set_fetch_stage`](Sessions::set_fetch_stage),
///   [`set_push_stage`](Sessions::set_push_stage)) and ends ([`finish`](Sessions::finish)); a version lies in an arena
///   ([`occupy`](Sessions::occupy)) and leaves it ([`vacate`](Sessions::vacate)); the directory says where a worker is
///   ([`located`](Sessions::located));
/// - asks [`next_deadline`](Sessions::next_deadline) when to call [`take_due`](Sessions::take_due), which gives the operations whose time is over.
///
/// **Getters** hand out [`Session`]s and [`Op`]s to read.
#[derive(Default)]
pub(super) struct Sessions {
    sessions: BTreeMap<SessionId, Session>,
    /// What workers that were thrown out read still.
    evicted: BTreeMap<SessionId, Leases>,
    /// The workers that are found by their names.
    by_name: HashMap<Name, SessionId>,
    arenas: HashMap<SegmentId, Arena>,
    operations: Slab<Op, of::Operation>,
    deadlines: BTreeSet<(Time, OperationId)>,
    elsewhere: Whereabouts,
}
