//! A request of this node to a peer.

use crate::protocol::ids::{OperationId, PullId, SlotId};
use crate::protocol::tenant::Tenant;
use crate::tensor::{DType, Excerpt, Gathered, Key, Select, TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::Header;
use std::sync::Arc;

/// A request of this node to a peer. It lives until no more data can arrive for it.
pub(crate) struct Pull {
    /// `None` once the operation has ended. The request then only waits for the peer's answer.
    pub(crate) op: Option<OperationId>,
    pub(crate) key: Key,
    pub(crate) select: Select,
    /// The part that was asked for. `None`: all of the version.
    pub(crate) excerpt: Option<Box<Excerpt>>,
    /// The ranges of several versions that were asked for together. `key` is the first of them.
    pub(crate) gathered: Option<Arc<Gathered>>,
    pub(crate) domain: Tenant,
    pub(crate) state: PullState,
    /// The slot that the peer may write to, or will be allowed to write to.
    pub(crate) slot: Option<SlotId>,
    /// The description that the slot was made for, and the description's number.
    pub(crate) described: Option<(u32, TensorMeta)>,
    /// The time at which the peer was asked, or at which the request was given up.
    pub(crate) asked: Time,
    /// The bytes that this request takes of the pool's share for speculative slots.
    pub(crate) speculative: u64,
    /// The version that the peer is writing, and the trace context of its push, if the peer has sent them.
    told: Option<(Version, TraceContext)>,
    /// The newest version of the peer, if that is not the one before what is asked for.
    pub(crate) behind: Option<Version>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PullState {
    /// A slot for the first message is being granted; the peer knows nothing yet.
    Preparing,
    /// The peer was asked.
    Asked,
    /// The peer has described the version. The request waits for room.
    WaitingForRoom,
    /// The peer has described the version. A slot is being granted.
    Granting,
    /// The request was given up. Data may arrive until the peer's CANCELLED.
    Cancelling,
}

impl Pull {
    /// Creates a request that the peer does not know yet. `described` is the last known description of the key.
    pub(crate) fn new(
        now: Time,
        op: OperationId,
        (key, select, excerpt): (Key, Select, Option<Box<Excerpt>>),
        domain: Tenant,
        described: Option<(u32, TensorMeta)>,
        speculative: u64,
    ) -> Pull {
        Pull {
            op: Some(op),
            key,
            select,
            excerpt,
            gathered: None,
            domain,
            state: PullState::Preparing,
            slot: None,
            described,
            asked: now,
            speculative,
            told: None,
            behind: None,
        }
    }

    /// Makes it a request for ranges of several versions.
    pub(crate) fn for_gathered(self, gathered: Option<Arc<Gathered>>) -> Pull {
        Pull { gathered, ..self }
    }

    /// Whether parts of versions are asked for. Their description serves this request alone.
    pub(crate) fn is_for_parts(&self) -> bool {
        self.gathered.is_some() || self.excerpt.is_some()
    }

    /// Whether the peer may describe the answer like this. For ranges of several versions there is one right description.
    pub(crate) fn may_be(&self, metadata_id: u32, meta: &TensorMeta) -> bool {
        let right = |gathered: &Gathered| TensorMeta::of(DType::U8, &[gathered.len_bytes()]);
        self.gathered.as_deref().is_none_or(|gathered| metadata_id == 0 && right(gathered).as_ref() == Ok(meta))
    }

    /// Marks the peer as asked.
    pub(crate) fn ask(&mut self, now: Time) {
        (self.state, self.asked) = (PullState::Asked, now);
    }

    /// Whether the request waits for room.
    pub(crate) fn wants_room(&self) -> bool {
        self.state == PullState::WaitingForRoom
    }

    /// Returns the length of the tensor, if it is known.
    pub(crate) fn len_bytes(&self) -> Option<u64> {
        self.described.as_ref().map(|(_, meta)| meta.len_bytes())
    }

    /// Whether the peer may answer the request with this version now.
    pub(crate) fn takes(&self, version: Version) -> bool {
        self.state == PullState::Asked && self.select.takes(version)
    }

    /// Notes that the peer's newest version is this one. Returns whether the request waits for a later one.
    pub(crate) fn is_behind(&mut self, newest: Version) -> bool {
        let waits = self.state == PullState::Asked && !self.takes(newest);
        if waits {
            self.behind = Some(newest);
        }
        waits
    }

    /// Stores the trace context of the push of the version that the peer writes.
    pub(crate) fn tell(&mut self, version: Version, context: TraceContext) {
        self.told = Some((version, context));
    }

    /// Returns the trace context of the push of this version, if the peer has sent it.
    pub(crate) fn origin_of(&self, version: Version) -> Option<TraceContext> {
        self.told.filter(|(told, _)| *told == version).map(|(_, context)| context)
    }

    /// Checks that a landed tensor is the one that was asked for. Returns `None` if the request was given up.
    pub(crate) fn check_landing(&self, own: PullId, header: &Header) -> Result<Option<TensorMeta>, String> {
        if self.state == PullState::Cancelling {
            return Ok(None);
        }
        let (id, meta) = self.described.as_ref().ok_or("the slot's request has no description")?;
        if header.index != own.short() {
            return Err(format!("the header names request {:#x}, the slot is for {:#x}", header.index, own.short()));
        }
        if header.metadata_id != *id || header.body_len != meta.len_bytes() {
            return Err(format!(
                "the header has description {} and {} bytes, the slot was granted for {id} and {}",
                header.metadata_id,
                header.body_len,
                meta.len_bytes()
            ));
        }
        if !self.select.takes(header.version) {
            return Err(format!("the header has {}, asked was {}", header.version, self.select));
        }
        Ok(Some(meta.clone()))
    }
}
