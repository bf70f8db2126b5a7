//! A request of ours to a peer.

use crate::protocol::ids::{OperationId, PullId, SlotId};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Select, TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::Header;

/// A request of ours to a peer. It lives until no more data can come for it.
pub(crate) struct Pull {
    /// `None` once the operation has ended; then this only waits for the peer's answer.
    pub(crate) op: Option<OperationId>,
    pub(crate) key: Key,
    pub(crate) select: Select,
    pub(crate) domain: Tenant,
    pub(crate) state: PullState,
    /// The slot that the peer may write to, or soon will.
    pub(crate) slot: Option<SlotId>,
    /// The description that the slot was made for, and its number.
    pub(crate) described: Option<(u32, TensorMeta)>,
    /// When the peer was asked, or when this was given up.
    pub(crate) asked: Time,
    /// Bytes of the speculative share that it holds.
    pub(crate) speculative: u64,
    /// Which version is being written, and what pushed it, where the peer said so.
    told: Option<(Version, TraceContext)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PullState {
    /// A slot for the first message is being granted; the peer knows nothing yet.
    Preparing,
    /// The peer was asked.
    Asked,
    /// The peer has described the version; room is awaited.
    WaitingForRoom,
    /// The peer has described the version; a slot is being granted.
    Granting,
    /// Given up; the peer's CANCELLED is awaited, and data may come until then.
    Cancelling,
}

impl Pull {
    /// A request that the peer does not know yet. `described` is what the key looked like last, if that is known.
    pub(crate) fn new(
        now: Time,
        op: OperationId,
        (key, select): (Key, Select),
        domain: Tenant,
        described: Option<(u32, TensorMeta)>,
        speculative: u64,
    ) -> Pull {
        Pull {
            op: Some(op),
            key,
            select,
            domain,
            state: PullState::Preparing,
            slot: None,
            described,
            asked: now,
            speculative,
            told: None,
        }
    }

    /// The peer is asked.
    pub(crate) fn ask(&mut self, now: Time) {
        (self.state, self.asked) = (PullState::Asked, now);
    }

    /// Whether it stands in line for room.
    pub(crate) fn wants_room(&self) -> bool {
        self.state == PullState::WaitingForRoom
    }

    /// The length of its tensor, where that is known.
    pub(crate) fn len_bytes(&self) -> Option<u64> {
        self.described.as_ref().map(|(_, meta)| meta.len_bytes())
    }

    /// Whether the peer may answer it with this version now.
    pub(crate) fn takes(&self, version: Version) -> bool {
        self.state == PullState::Asked && self.select.takes(version)
    }

    /// The peer has said what pushed the version that it writes.
    pub(crate) fn tell(&mut self, version: Version, context: TraceContext) {
        self.told = Some((version, context));
    }

    /// What pushed this version, where the peer said so.
    pub(crate) fn origin_of(&self, version: Version) -> Option<TraceContext> {
        self.told.filter(|(told, _)| *told == version).map(|(_, context)| context)
    }

    /// Whether what has landed is what was asked for. `None` where the request was given up.
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
