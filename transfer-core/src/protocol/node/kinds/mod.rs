//! The kinds of operations: what each of them waits for, and the failure when its deadline has passed.
//!
//! A kind is a struct in `sessions/op.rs`, a file here, and a line in [`Op::words`]. How it ends is in `answering/ops.rs` (`detach_op`, `drop_op`,
//! `give_up`), how it goes on once a link is up in `Node::go_on_with_link`, and what is recorded of it in `replies.rs`.
//!
//! # Layout
//! - `fetch`, `push`, `reserve`, `take_back`, `counter`: one kind each.

mod counter;
mod fetch;
mod push;
mod reserve;
mod take_back;

use super::flows::NodeState;
use crate::op::Failure;
use crate::protocol::ids::OperationId;
use crate::protocol::sessions::{Op, OpKind};
use crate::tensor::Name;
use std::time::Duration;

/// An operation, and the node at which it waits.
#[derive(Clone, Copy)]
pub(super) struct Waiting<'a> {
    pub(super) id: OperationId,
    pub(super) op: &'a Op,
    pub(super) state: &'a NodeState<'a>,
}

/// What is to be said of the operations of one kind.
pub(super) trait Kind {
    /// Returns the name of the kind. `op` is of this kind.
    fn name(&self, op: &Op) -> &'static str;

    /// Returns in words what the operation waits for now.
    fn waits_for(&self, at: Waiting<'_>) -> String;

    /// Returns the other node that takes part, once it is known.
    fn other_node<'a>(&'a self, at: Waiting<'a>) -> Option<&'a Name>;

    /// Returns the length of the tensor in bytes, once it is known.
    fn len_bytes(&self, at: Waiting<'_>) -> Option<u64>;

    /// Returns the failure when the deadline has passed, `after` the operation began. `None`: the operation has ended.
    fn overdue(&self, at: Waiting<'_>, after: Duration) -> Option<Failure>;
}

impl Op {
    pub(super) fn words(&self) -> &dyn Kind {
        match &self.kind {
            OpKind::Fetch(fetch) => fetch,
            OpKind::Push(push) => push,
            OpKind::Reserve(reserve) => reserve,
            OpKind::TakeBack(take_back) => take_back,
            OpKind::Counter(counter) => counter,
        }
    }
}
