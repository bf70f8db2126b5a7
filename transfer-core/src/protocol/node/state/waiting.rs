//! What operations wait for, in words, for people who look at them.

use crate::fabric::LinkId;
use crate::protocol::ids::OperationId;
use crate::protocol::node::flows::NodeState;
use crate::protocol::sessions::{FetchStage, Op, OpKind, PushStage};
use crate::protocol::transfers::{Pull, PullState};
use crate::tensor::{Name, ReservedFor};

impl Op {
    /// Returns the kind of the operation, and the key or name that it is about, as people call them.
    pub(in crate::protocol::node) fn spoken(&self) -> (&'static str, &str) {
        let key = self.key.reserved_for();
        let operation = match (&self.kind, key) {
            (OpKind::Fetch { .. }, _) => "fetch",
            (OpKind::Push { .. }, _) => "push",
            (OpKind::Prepare { .. }, _) => "prepare",
            (OpKind::TakeBack { .. }, _) => "take back",
            (OpKind::Counter, Some((ReservedFor::Barrier, _))) => "barrier",
            (OpKind::Counter, _) => "counter",
        };
        (operation, key.map_or(self.key.as_str(), |(_, name)| name))
    }
}

impl NodeState<'_> {
    /// Returns the other node that takes part in an operation, once it is known.
    pub(in crate::protocol::node) fn other_node<'a>(&'a self, id: OperationId, op: &'a Op) -> Option<&'a Name> {
        let at = |link: &LinkId| self.links.get(*link).map(|l| &l.peer().name);
        match &op.kind {
            OpKind::Fetch { stage, .. } => match stage {
                FetchStage::Waiting | FetchStage::Copying(_) => None,
                FetchStage::Connecting(node) => Some(node),
                FetchStage::Pulling(link, _) => at(link),
            },
            OpKind::Push { stage, .. } | OpKind::Prepare { stage, .. } => match stage {
                PushStage::Connecting(node) => Some(node),
                PushStage::Queued(link, _) => at(link),
                PushStage::Writing => {
                    let (to, tenant) = op.target().zip(self.sessions.tenant_of(op.session))?;
                    self.sessions.node_of(tenant, to)
                }
                PushStage::Claiming | PushStage::Locating(_) => None,
            },
            OpKind::Counter => self.counters.other_node(id),
            OpKind::TakeBack { .. } => None,
        }
    }

    /// Returns the length of an operation's tensor in bytes, once it is known.
    pub(in crate::protocol::node) fn length_of(&self, op: &Op) -> Option<u64> {
        match &op.kind {
            OpKind::Push { blob, .. } | OpKind::TakeBack { blob } => self.keys.blob(*blob).map(|b| b.meta.len_bytes()),
            OpKind::Prepare { meta, .. } => Some(meta.len_bytes()),
            OpKind::Fetch { stage: FetchStage::Pulling(link, pull), .. } => {
                self.transfers.pull(*link, *pull).and_then(Pull::len_bytes)
            }
            OpKind::Fetch { .. } | OpKind::Counter => None,
        }
    }

    /// Returns in words what an operation waits for now.
    pub(in crate::protocol::node) fn waits_for(&self, id: OperationId, op: &Op) -> String {
        let to = op.target().map_or("", Name::as_str);
        match &op.kind {
            OpKind::Fetch { select, stage, .. } => match stage {
                FetchStage::Waiting => {
                    let record = self.keys.find(&op.key).and_then(|r| self.keys.record(r));
                    match record.and_then(|r| self.sessions.owner_name(r.owner())) {
                        Some(owner) => format!("worker {owner:?} to publish {select} here"),
                        None => "the directory to say who owns the key: nobody has published it yet".to_owned(),
                    }
                }
                FetchStage::Connecting(node) => format!("a link to node {node:?}, which owns the key"),
                FetchStage::Copying(_) => {
                    "a copy out of another tenant's memory or from disk, or room for it".to_owned()
                }
                FetchStage::Pulling(link, pull) => {
                    let peer = self.links.peer_name(*link);
                    match self.transfers.pull(*link, *pull).map(|p| p.state) {
                        Some(PullState::WaitingForRoom) => "room in the landing pool".to_owned(),
                        Some(PullState::Preparing | PullState::Granting) => "a landing slot to be opened".to_owned(),
                        _ => format!("node {peer:?} to send {select}"),
                    }
                }
            },
            OpKind::Push { stage, .. } | OpKind::Prepare { stage, .. } => match stage {
                PushStage::Claiming => "the directory to enter the key for its owner".to_owned(),
                PushStage::Locating(worker) => format!("the directory to say where worker {worker:?} is"),
                PushStage::Connecting(node) => format!("a link to node {node:?}, where worker {to:?} is"),
                PushStage::Queued(..) => format!("a landing slot at the sidecar of worker {to:?}"),
                PushStage::Writing => format!("the bytes to land at the sidecar of worker {to:?}"),
            },
            OpKind::TakeBack { blob } => {
                let readers = self.keys.blob(*blob).map_or(0, |b| b.holders().saturating_sub(1));
                format!("{readers} readers to release the version")
            }
            OpKind::Counter => self.counters.waits_for(id).unwrap_or_default(),
        }
    }
}
