//! Pushes, and what pushes and preparations of pushes wait for.

use super::{Kind, Waiting};
use crate::op::{Failure, FailureCode};
use crate::protocol::sessions::{Op, PushOp, PushStage};
use crate::tensor::Name;
use std::time::Duration;

impl Kind for PushOp {
    fn name(&self, _op: &Op) -> &'static str {
        "push"
    }

    fn waits_for(&self, at: Waiting<'_>) -> String {
        self.stage.waits_for(at)
    }

    fn other_node<'a>(&'a self, at: Waiting<'a>) -> Option<&'a Name> {
        self.stage.other_node(at)
    }

    fn len_bytes(&self, at: Waiting<'_>) -> Option<u64> {
        at.state.keys.blob(self.blob).map(|b| b.meta.len_bytes())
    }

    fn overdue(&self, at: Waiting<'_>, after: Duration) -> Option<Failure> {
        Some(self.stage.overdue(at, after))
    }
}

/// What pushes and preparations of pushes have in common: the questions of [`Kind`].
impl PushStage {
    pub(super) fn waits_for(&self, at: Waiting<'_>) -> String {
        let to = at.op.target().map_or("", Name::as_str);
        match self {
            PushStage::Claiming => "the directory to enter the key for its owner".to_owned(),
            PushStage::Locating(worker) => format!("the directory to say where worker {worker:?} is"),
            PushStage::Connecting(node) => format!("a link to node {node:?}, where worker {to:?} is"),
            PushStage::Queued(..) => format!("a landing slot at the sidecar of worker {to:?}"),
            PushStage::Copying(_) => "room in the landing pool here, for a copy that can be sent".to_owned(),
            PushStage::Writing => format!("the bytes to land at the sidecar of worker {to:?}"),
            PushStage::Lending(_) => "nothing: it lends a base to fetches of its worker".to_owned(),
        }
    }

    pub(super) fn other_node<'a>(&'a self, Waiting { op, state, .. }: Waiting<'a>) -> Option<&'a Name> {
        match self {
            PushStage::Claiming | PushStage::Locating(_) | PushStage::Copying(_) | PushStage::Lending(_) => None,
            PushStage::Connecting(node) => Some(node),
            PushStage::Queued(link, _) => state.links.peer_of(*link).map(|peer| &peer.name),
            PushStage::Writing => {
                let (to, tenant) = op.target().zip(state.sessions.tenant_of(op.session))?;
                state.sessions.node_of(tenant, to)
            }
        }
    }

    pub(super) fn overdue(&self, at: Waiting<'_>, after: Duration) -> Failure {
        let (key, to) = (&at.op.key, at.op.target().map_or("", Name::as_str));
        let (code, text) = match self {
            PushStage::Claiming => (
                FailureCode::DirectoryUnreachable,
                format!("the directory did not say within {after:?} who owns key {key:?}"),
            ),
            PushStage::Locating(worker) => (
                FailureCode::DirectoryUnreachable,
                format!("the directory did not say within {after:?} where worker {worker:?} is"),
            ),
            PushStage::Connecting(node) => (
                FailureCode::PeerUnreachable,
                format!("no link to node {node:?}, where worker {to:?} is, came up within {after:?}"),
            ),
            PushStage::Queued(..) => (
                FailureCode::PoolFull,
                format!(
                    "no landing slot for key {key:?} came free at the sidecar of {to:?} within {after:?}: its pool is full, or the \
                     versions before this one are still being read"
                ),
            ),
            PushStage::Copying(_) => (
                FailureCode::PoolFull,
                format!(
                    "key {key:?} lies in memory that the fabric cannot read, and within {after:?} it was not copied into the landing \
                     pool of its own sidecar: the pool is full"
                ),
            ),
            PushStage::Writing => (
                FailureCode::Deadline,
                format!("key {key:?} did not land at the sidecar of {to:?} within {after:?}; it may still do so"),
            ),
            PushStage::Lending(_) => (
                FailureCode::Deadline,
                format!("a base of key {key:?} was lent for {after:?}, as long as it was to be"),
            ),
        };
        Failure::new(code, text)
    }
}
