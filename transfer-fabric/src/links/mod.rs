//! The bookkeeping of links that is the same in every fabric: what waits, what is due, what is in flight, and what is
//! to be reported. Each fabric uses it with its own type of link.
//!
//! # Layout
//! - `table`: the links of a fabric, their deadlines, and the events that wait to be reported.
//! - `pending`: a listener, and its connections that have not sent their Hello yet.
//! - `works`: the works in flight, and whether the peer that has to place them still runs.
//! - `owed`: when a link's receiver acknowledges what it has placed.

mod owed;
mod pending;
mod table;
mod works;

#[cfg(any(test, feature = "conformance"))]
pub(crate) use owed::MAX_UNACKNOWLEDGED;
pub(crate) use owed::{ACKNOWLEDGE_WITHIN, AckState, SentCounts};
pub(crate) use pending::{Accepted, PendingConnections};
#[cfg(test)]
pub(crate) use pending::{MAX_PENDING, MAX_PENDING_OF_ONE};
pub(crate) use table::{FabricLink, LinkTable, WaitingLink, no_answer};
pub(crate) use works::Works;

use transfer_core::fabric::FabricEvent;

/// Takes the events of a fabric.
pub(crate) type Sink<'a> = dyn FnMut(FabricEvent<'_>) + 'a;
