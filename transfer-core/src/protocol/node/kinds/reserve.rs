//! Requests for landing slots before the first push needs them.

use super::{Kind, Waiting};
use crate::op::Failure;
use crate::protocol::sessions::{Op, ReserveOp};
use crate::tensor::Name;
use std::time::Duration;

impl Kind for ReserveOp {
    fn name(&self, _op: &Op) -> &'static str {
        "reserve"
    }

    fn waits_for(&self, at: Waiting<'_>) -> String {
        self.stage.waits_for(at)
    }

    fn other_node<'a>(&'a self, at: Waiting<'a>) -> Option<&'a Name> {
        self.stage.other_node(at)
    }

    fn len_bytes(&self, _at: Waiting<'_>) -> Option<u64> {
        Some(self.meta.len_bytes())
    }

    fn overdue(&self, at: Waiting<'_>, after: Duration) -> Option<Failure> {
        Some(self.stage.overdue(at, after))
    }
}
