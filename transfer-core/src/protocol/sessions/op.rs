//! An operation that could not end at once, and the event that it waits for.

use crate::exchange::{self, Label};
use crate::fabric::{FabricKind, LinkId};
use crate::op::OpId;
use crate::protocol::ids::{BlobId, CopyId, OutFlowId, PullId, SessionId};
use crate::tensor::{Excerpt, Gathered, Key, Name, Select, TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use std::sync::Arc;

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
        /// The number of times that the node which was said to own the key did not own it.
        redirects: u32,
        /// The trace context of the span that asked for the fetch, if there is one.
        trace: Option<TraceContext>,
        /// The part of the version that the worker asked for. `None`: all of it.
        excerpt: Option<Box<Excerpt>>,
        /// The ranges of several versions that the worker asked for together. The operation's key is the first of them.
        gathered: Option<Arc<Gathered>>,
    },
    Push {
        version: Option<Version>,
        takeover: bool,
        more_follow: bool,
        to: Option<Name>,
        blob: BlobId,
        /// What it says of an exchange, if it is an anchor or a mark.
        label: Option<Box<Label>>,
        stage: PushStage,
        posted: Time,
    },
    /// Requests landing slots for a later push.
    Prepare { to: Name, meta: TensorMeta, stage: PushStage },
    /// Takes a version back. Fetches do not find the version meanwhile.
    TakeBack { blob: BlobId },
    /// Acts on a counter or barrier. The operation's key is the reserved key of that counter or barrier.
    Counter,
}

impl Op {
    /// Returns the worker that a push, or the preparation of a push, is for.
    pub(crate) fn target(&self) -> Option<&Name> {
        match &self.kind {
            OpKind::Fetch { .. } | OpKind::TakeBack { .. } | OpKind::Counter => None,
            OpKind::Push { to, .. } => to.as_ref(),
            OpKind::Prepare { to, .. } => Some(to),
        }
    }

    /// Returns the version that a fetch asks for. The latest, if this is no fetch.
    pub(crate) fn select(&self) -> Select {
        match &self.kind {
            OpKind::Fetch { select, .. } => *select,
            OpKind::Push { .. } | OpKind::Prepare { .. } | OpKind::TakeBack { .. } | OpKind::Counter => Select::Latest,
        }
    }

    /// Returns the part of the version that a fetch asks for. `None`: all of it, or this is no fetch.
    pub(crate) fn excerpt(&self) -> Option<&Excerpt> {
        match &self.kind {
            OpKind::Fetch { excerpt, .. } => excerpt.as_deref(),
            OpKind::Push { .. } | OpKind::Prepare { .. } | OpKind::TakeBack { .. } | OpKind::Counter => None,
        }
    }

    /// Takes what a push says of an exchange.
    pub(crate) fn take_label(&mut self) -> Option<Box<Label>> {
        match &mut self.kind {
            OpKind::Push { label, .. } => label.take(),
            _ => None,
        }
    }

    /// Returns whether it is a fetch of a part of an exchange, as its key says.
    pub(crate) fn reads_exchange(&self) -> bool {
        matches!(self.kind, OpKind::Fetch { .. }) && self.key.as_str().starts_with(exchange::PREFIX)
    }

    /// Returns the stage of a push, or of the preparation of a push.
    pub(crate) fn stage_mut(&mut self) -> Option<&mut PushStage> {
        match &mut self.kind {
            OpKind::Fetch { .. } | OpKind::TakeBack { .. } | OpKind::Counter => None,
            OpKind::Push { stage, .. } | OpKind::Prepare { stage, .. } => Some(stage),
        }
    }
}

/// The event that a fetch waits for.
#[derive(Clone, PartialEq)]
pub(crate) enum FetchStage {
    /// The version, or the directory's answer. The fetch is in the key's list of waiters.
    Waiting,
    /// A link to that node.
    Connecting(Name),
    /// The peer's answer.
    Pulling(LinkId, PullId),
    /// Room for a copy, and then the copy. The version belongs to another tenant, which shares it.
    Copying(CopyId),
}

/// The event that a push waits for.
#[derive(Clone, PartialEq)]
pub(crate) enum PushStage {
    /// The directory's answer to the claim.
    Claiming,
    /// The directory's answer about the node of this worker, the target of the push.
    Locating(Name),
    /// A link to that node.
    Connecting(Name),
    /// A landing slot. The push is in the flow's queue.
    Queued(LinkId, OutFlowId),
    /// The completion of the write.
    Writing,
}
