//! An operation that could not end at once, and the event that it waits for.

use crate::exchange::{self, Label};
use crate::fabric::{FabricKind, LinkId};
use crate::op::{Content, Destination, Failure, OpId};
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

/// A kind of operation, with what only this kind has.
pub(crate) enum OpKind {
    Fetch(FetchOp),
    Push(PushOp),
    Reserve(ReserveOp),
    TakeBack(TakeBackOp),
    Counter(CounterOp),
}

/// Gets a version, or a part of it.
pub(crate) struct FetchOp {
    pub(crate) select: Select,
    pub(crate) stage: FetchStage,
    /// The number of times that the node which was said to own the key did not own it.
    pub(crate) redirects: u32,
    /// The trace context of the span that asked for the fetch, if there is one.
    pub(crate) trace: Option<TraceContext>,
    /// The part of the version that the worker asked for. `None`: all of it.
    pub(crate) excerpt: Option<Box<Excerpt>>,
    /// The ranges of several versions that the worker asked for together. The operation's key is the first of them.
    pub(crate) gathered: Option<Arc<Gathered>>,
    /// The range of the worker's arena in which the version is to land.
    pub(crate) to: Option<Box<Destination>>,
    /// The push by which the worker lends a base.
    pub(crate) base: Option<OpId>,
}

/// Publishes a version.
pub(crate) struct PushOp {
    pub(crate) version: Option<Version>,
    pub(crate) takeover: bool,
    pub(crate) more_follow: bool,
    pub(crate) to: Option<Name>,
    pub(crate) blob: BlobId,
    /// The copy that is sent, because the fabric cannot read the memory of `blob`.
    pub(crate) copy: Option<BlobId>,
    /// What it says of an exchange, if it is an anchor or a mark.
    pub(crate) label: Option<Box<Label>>,
    pub(crate) stage: PushStage,
    pub(crate) posted: Time,
}

/// Requests landing slots for a later push.
pub(crate) struct ReserveOp {
    pub(crate) to: Name,
    pub(crate) meta: TensorMeta,
    pub(crate) stage: PushStage,
}

/// Takes a version back. Fetches do not find the version meanwhile.
pub(crate) struct TakeBackOp {
    pub(crate) blob: BlobId,
}

/// Acts on a counter or barrier. The operation's key is the reserved key of that counter or barrier, and the counters know the
/// rest.
pub(crate) struct CounterOp;

impl Op {
    fn fetch(&self) -> Option<&FetchOp> {
        match &self.kind {
            OpKind::Fetch(fetch) => Some(fetch),
            _ => None,
        }
    }

    /// Returns the worker that a push, or the preparation of a push, is for.
    pub(crate) fn target(&self) -> Option<&Name> {
        match &self.kind {
            OpKind::Push(push) => push.to.as_ref(),
            OpKind::Reserve(reserve) => Some(&reserve.to),
            _ => None,
        }
    }

    /// Returns the version that a fetch asks for. The latest, if this is no fetch.
    pub(crate) fn select(&self) -> Select {
        self.fetch().map_or(Select::Latest, |fetch| fetch.select)
    }

    /// Returns the part of the version that a fetch asks for. `None`: all of it, or this is no fetch.
    pub(crate) fn excerpt(&self) -> Option<&Excerpt> {
        self.fetch()?.excerpt.as_deref()
    }

    /// Returns the memory in which the version is to land, if this is a fetch that names some.
    pub(crate) fn destination(&self) -> Option<&Destination> {
        self.fetch()?.to.as_deref()
    }

    /// Returns the push by which the worker of a fetch lends a base, if it is not a fetch of parts.
    pub(crate) fn named_base(&self) -> Option<OpId> {
        self.fetch().filter(|fetch| fetch.excerpt.is_none()).and_then(|fetch| fetch.base)
    }

    /// Returns the base that a push lends.
    pub(crate) fn lent_base(&self) -> Option<(BlobId, Content)> {
        match &self.kind {
            OpKind::Push(PushOp { blob, stage: PushStage::Lending(content), .. }) => Some((*blob, *content)),
            _ => None,
        }
    }

    /// Returns the number of ranges in which the version is to land, without the first one.
    pub(crate) fn more_ranges(&self) -> usize {
        self.destination().map_or(0, |to| to.ranges.len().saturating_sub(1))
    }

    /// Takes what a push says of an exchange.
    pub(crate) fn take_label(&mut self) -> Option<Box<Label>> {
        match &mut self.kind {
            OpKind::Push(push) => push.label.take(),
            _ => None,
        }
    }

    /// Returns whether it is a fetch of a part of an exchange, as its key says.
    pub(crate) fn reads_exchange(&self) -> bool {
        self.fetch().is_some() && self.key.as_str().starts_with(exchange::PREFIX)
    }

    /// Returns the stage of a push, or of the preparation of a push.
    pub(crate) fn stage_mut(&mut self) -> Option<&mut PushStage> {
        match &mut self.kind {
            OpKind::Push(push) => Some(&mut push.stage),
            OpKind::Reserve(reserve) => Some(&mut reserve.stage),
            _ => None,
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
    /// The end of a peer's access to the memory of the worker. Then the fetch fails.
    Closing(LinkId, Box<Failure>),
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
    /// Room for a copy, and then the copy: the fabric cannot read the memory in which the tensor lies. The push is in the flow's
    /// queue.
    Copying(CopyId),
    /// The completion of the write.
    Writing,
    /// Its end: it lends a base to fetches of its worker, and is not published.
    Lending(Content),
}
