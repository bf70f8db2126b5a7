//! Versions whose memory their worker wants to write again.

use super::{Kind, Waiting};
use crate::op::{Failure, FailureCode};
use crate::protocol::sessions::{Op, TakeBackOp};
use crate::tensor::Name;
use std::time::Duration;

impl Kind for TakeBackOp {
    fn name(&self, _op: &Op) -> &'static str {
        "take back"
    }

    fn waits_for(&self, at: Waiting<'_>) -> String {
        let readers = at.state.keys.blob(self.blob).map_or(0, |b| b.holders().saturating_sub(1));
        format!("{readers} readers to release the version")
    }

    fn other_node<'a>(&'a self, _at: Waiting<'a>) -> Option<&'a Name> {
        None
    }

    fn len_bytes(&self, at: Waiting<'_>) -> Option<u64> {
        at.state.keys.blob(self.blob).map(|b| b.meta.len_bytes())
    }

    fn overdue(&self, at: Waiting<'_>, after: Duration) -> Option<Failure> {
        let blob = at.state.keys.blob(self.blob);
        let (version, readers) = blob.map_or((0, 0), |b| (b.version.0, b.holders().saturating_sub(1)));
        let text = format!(
            "version {version} of key {:?} is still being read in {readers} places after {after:?}; it is published again",
            at.op.key
        );
        Some(Failure::new(FailureCode::Deadline, text))
    }
}
