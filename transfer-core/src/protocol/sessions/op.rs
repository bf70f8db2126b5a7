//! An operation that could not end at once, and what it waits for.

use crate::fabric::{FabricKind, LinkId};
use crate::op::OpId;
use crate::protocol::ids::{BlobId, CopyId, OutFlowId, PullId, SessionId};
use crate::tensor::{Key, Name, Select, TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;

/// An operation of a worker that could not end at once.
pub(crate) struct Op {
    pub(crate) session: SessionId,
    pub(crate) id: OpId,
    pub(crate) key: Key,
    pub(crate) since: Time,
    pub(crate) deadline: Time,
    pub(crate) require: Option<FabricKind>,
    pub(crate) kind: OpKind,
}

pub(crate) enum OpKind {
    Fetch {
        select: Select,
        stage: FetchStage,
        /// How often a node that was said to own the key did not.
        astray: u32,
        /// What asked for it, where that said so.
        trace: Option<TraceContext>,
    },
    Push {
        version: Option<Version>,
        takeover: bool,
        more_follow: bool,
        to: Option<Name>,
        blob: BlobId,
        stage: PushStage,
        posted: Time,
    },
    /// Landing slots for a push to come.
    Prepare { to: Name, meta: TensorMeta, stage: PushStage },
    /// Taking a version back; nobody finds it meanwhile.
    TakeBack { blob: BlobId },
    /// On a counter or barrier; the operation's key is its reserved one.
    Counter,
}

impl Op {
    /// The worker that a push, or the preparation of one, is for.
    pub(crate) fn target(&self) -> Option<&Name> {
        match &self.kind {
            OpKind::Fetch { .. } | OpKind::TakeBack { .. } | OpKind::Counter => None,
            OpKind::Push { to, .. } => to.as_ref(),
            OpKind::Prepare { to, .. } => Some(to),
        }
    }

    /// What a push, or the preparation of one, waits for.
    pub(crate) fn stage_mut(&mut self) -> Option<&mut PushStage> {
        match &mut self.kind {
            OpKind::Fetch { .. } | OpKind::TakeBack { .. } | OpKind::Counter => None,
            OpKind::Push { stage, .. } | OpKind::Prepare { stage, .. } => Some(stage),
        }
    }
}

/// What a fetch waits for.
#[derive(Clone, PartialEq)]
pub(crate) enum FetchStage {
    /// The version, or the directory: it stands in the key's list of waiters.
    Waiting,
    /// A link to that node.
    Connecting(Name),
    /// The peer.
    Pulling(LinkId, PullId),
    /// Room for a copy, and the copy: it is another tenant's, who shares it.
    Copying(CopyId),
}

/// What a push waits for.
#[derive(Clone, PartialEq)]
pub(crate) enum PushStage {
    /// The directory's answer to the claim.
    Claiming,
    /// The directory's answer about the worker it goes to.
    Locating(Name),
    /// A link to that node.
    Connecting(Name),
    /// A landing slot: it stands in the flow's queue.
    Queued(LinkId, OutFlowId),
    /// The write's completion.
    Writing,
}
