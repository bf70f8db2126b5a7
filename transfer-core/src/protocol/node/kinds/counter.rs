//! Operations on counters and barriers. The counters know what they wait for.

use super::{Kind, Waiting};
use crate::op::Failure;
use crate::protocol::sessions::{CounterOp, Op};
use crate::tensor::{Name, ReservedFor};
use std::time::Duration;

impl Kind for CounterOp {
    fn name(&self, op: &Op) -> &'static str {
        match op.key.reserved_for() {
            Some((ReservedFor::Barrier, _)) => "barrier",
            Some((ReservedFor::Roster, _)) => "roster",
            _ => "counter",
        }
    }

    fn waits_for(&self, at: Waiting<'_>) -> String {
        at.state.counters.waits_for(at.id).unwrap_or_default()
    }

    fn other_node<'a>(&'a self, at: Waiting<'a>) -> Option<&'a Name> {
        at.state.counters.other_node(at.id)
    }

    fn len_bytes(&self, _at: Waiting<'_>) -> Option<u64> {
        None
    }

    fn overdue(&self, at: Waiting<'_>, after: Duration) -> Option<Failure> {
        at.state.counters.deadline(at.id, after)
    }
}
