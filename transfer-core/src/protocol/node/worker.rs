//! A worker: its session, its arena, and its operations that wait.

use crate::alloc::Allocation;
use crate::fabric::{FabricKind, LinkId};
use crate::memory::{ALIGNMENT, SegmentId, padded};
use crate::op::OpId;
use crate::protocol::ids::{BlobId, CopyId, OperationId, OutFlowId, PullId, SessionId};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name, Select, TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use hashbrown::HashMap;

/// What a worker reads, and how often it was handed that.
pub(super) type Leases = HashMap<BlobId, u32>;

/// A connected worker.
pub(super) struct Session {
    pub(super) name: Name,
    /// The node whose worker has this name by the directory's word: [`Node::name_lost`](super::Node::name_lost).
    pub(super) name_at: Option<Name>,
    pub(super) domain: Tenant,
    pub(super) arena: SegmentId,
    pub(super) arena_len: u64,
    pub(super) ops: HashMap<OpId, OperationId>,
    pub(super) leases: Leases,
    /// How many leases that are.
    pub(super) lent: u64,
    /// The number of its last announcement.
    pub(super) announced: u64,
    /// The lowest version that may be pushed next to a worker elsewhere, where no flow has it.
    pub(super) versions: HashMap<(Key, Name), u64>,
}

/// An arena: a segment that a worker writes. It outlives its worker while somebody reads from it.
pub(super) struct Arena {
    pub(super) segment: SegmentId,
    /// Blobs that lie in it.
    pub(super) blobs: u64,
    /// How many ranges their bodies are made of, those of one piece not counted: what the node keeps tables of.
    pub(super) ranges: u64,
    pub(super) abandoned: bool,
}

/// An operation of a worker that could not end at once.
pub(crate) struct Op {
    pub(super) session: SessionId,
    pub(crate) id: OpId,
    pub(super) key: Key,
    pub(super) since: Time,
    pub(super) deadline: Time,
    pub(super) require: Option<FabricKind>,
    pub(super) kind: OpKind,
}

pub(super) enum OpKind {
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
    pub(super) fn target(&self) -> Option<&Name> {
        match &self.kind {
            OpKind::Fetch { .. } | OpKind::TakeBack { .. } | OpKind::Counter => None,
            OpKind::Push { to, .. } => to.as_ref(),
            OpKind::Prepare { to, .. } => Some(to),
        }
    }

    /// What a push, or the preparation of one, waits for.
    pub(super) fn stage_mut(&mut self) -> Option<&mut PushStage> {
        match &mut self.kind {
            OpKind::Fetch { .. } | OpKind::TakeBack { .. } | OpKind::Counter => None,
            OpKind::Push { stage, .. } | OpKind::Prepare { stage, .. } => Some(stage),
        }
    }
}

/// What a fetch waits for.
#[derive(Clone, PartialEq)]
pub(super) enum FetchStage {
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
pub(super) enum PushStage {
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

/// A copy that waits for room, or is being made.
pub(super) struct Copying {
    /// `None` once the fetch has ended; then this only waits for the bytes to be copied.
    pub(super) op: Option<OperationId>,
    pub(super) key: Key,
    pub(super) from: BlobId,
    /// Whose it will be.
    pub(super) reader: Tenant,
    pub(super) len: u64,
    /// The room that it has.
    pub(super) to: Option<Allocation>,
    /// When it got that.
    pub(super) began: Time,
}

impl Copying {
    /// How much room it waits for. `None`: it has it.
    pub(super) fn needs(&self) -> Option<u64> {
        match self.to {
            // An empty tensor takes the least that can be allocated.
            None => padded(self.len).map(|len| len.max(ALIGNMENT)),
            Some(_) => None,
        }
    }
}
