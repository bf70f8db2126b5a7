//! Landing slots: how they are opened and closed, and what lands in them.

use super::{Landing, OfLink};
use crate::alloc::Allocation;
use crate::fabric::{GrantAccess, LinkId};
use crate::memory::{LocalSlice, RemoteKey, RemoteSlice};
use crate::protocol::action::Actions;
use crate::protocol::action::Post;
use crate::protocol::ids::{BlobId, InFlowId, PullId, SlotId, of};
use crate::protocol::rules::Broken;
use crate::protocol::slab::{Id, Slab};
use crate::protocol::tenant::Tenant;
use crate::tensor::TensorMeta;
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::{HEADER_BYTES, Header, SlotGrant, SlotNumber};

/// A landing slot of this node.
pub(crate) struct Slot {
    pub(crate) range: Allocation,
    /// The ranges of a worker's memory in which the body lands, if that is not behind the header. Their grants are opened before
    /// that of `range`, and closed behind it. The slot is closed when all of them are.
    body: Vec<Body>,
    pub(crate) domain: Tenant,
    pub(super) capacity: u64,
    pub(crate) state: SlotState,
    pub(crate) user: SlotUser,
    /// When the slot lost its user, once that has happened.
    pub(crate) since: Time,
}

/// A range of a worker's arena that is granted to a peer.
enum Body {
    Granting,
    Granted(RemoteSlice),
    Closed,
}

impl Body {
    fn remote(&self) -> Option<RemoteSlice> {
        match self {
            Body::Granting | Body::Closed => None,
            Body::Granted(remote) => Some(*remote),
        }
    }
}

/// The range of a grant: that of a slot, or one of those of its body.
#[derive(Clone, Copy)]
pub(crate) struct GrantTag {
    id: SlotId,
    /// 0 for the slot's own range, else the number of the range of its body, from 1 on.
    pub(super) part: usize,
}

impl GrantTag {
    /// The bits of the part. The places of slots do not come to them, and the bit above is that of counters.
    const PARTS: u64 = 0x1f << GrantTag::SHIFT;
    const SHIFT: u32 = 24;

    fn to_u64(self) -> u64 {
        self.id.to_u64() | (self.part as u64) << GrantTag::SHIFT
    }

    /// Returns the tag of a slot's own grant.
    #[cfg(test)]
    pub(crate) fn of(id: SlotId) -> GrantTag {
        GrantTag { id, part: 0 }
    }

    /// Returns the tags of a slot whose body lies in one range apart, in the order in which they are closed.
    pub(crate) fn of_apart(id: SlotId) -> [GrantTag; 2] {
        [0, 1].map(|part| GrantTag { id, part })
    }

    /// Returns the slot.
    pub(crate) fn slot(self) -> SlotId {
        self.id
    }

    /// Reads the tag of a grant or of the end of one.
    pub(crate) fn from_u64(tag: u64) -> GrantTag {
        let part = (tag & GrantTag::PARTS) >> GrantTag::SHIFT;
        GrantTag { id: Id::from_u64(tag & !GrantTag::PARTS), part: usize::try_from(part).unwrap_or(0) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotUser {
    Pull(PullId),
    /// A flow, and the round of its requests to which the slot belongs.
    Flow(InFlowId, u32),
    /// The user is gone. The range goes back to the pool as soon as no write can reach it.
    Nobody,
}

/// The state of a slot. Its range goes back to the pool, or to a reader, only from states in which no write can reach
/// it.
pub(crate) enum SlotState {
    /// The fabric was asked to open it.
    Granting,
    /// The peer may write into it.
    Granted(RemoteSlice),
    /// The fabric was asked to close it. Then the tensor that has landed is delivered, if its user still wants it.
    Revoking(Option<Box<LandedTensor>>),
    /// Closed. The tensor is delivered after the ones that landed before it.
    Closed(Box<LandedTensor>),
    /// Closed, and readers hold the tensor.
    Held(BlobId),
}

/// A tensor that has landed.
pub(crate) struct LandedTensor {
    pub(crate) header: Header,
    /// The description of the tensor at the time when it landed. The next tensor may have another one.
    pub(crate) meta: TensorMeta,
    /// Bytes that a CPU copied on this side.
    pub(crate) copied: u64,
    /// For a push: its trace context, if the peer sent one, and the time when that came.
    pub(crate) trace: Option<(TraceContext, Time)>,
}

/// What to do about a slot that is closed.
pub(crate) enum Revoked {
    Nothing,
    /// This request has its tensor.
    Pull(PullId, LandedTensor),
    /// This flow has a version to deliver, if it is the next.
    Flow(InFlowId),
    /// The memory of this request's worker is closed, and nothing has landed there.
    Destination(PullId),
}

impl SlotState {
    /// Whether a landed tensor or its readers hold the slot, so that no peer can write into it.
    pub(super) fn is_used(&self) -> bool {
        matches!(self, SlotState::Held(_) | SlotState::Closed(_) | SlotState::Revoking(Some(_)))
    }
}

impl OfLink {
    /// Removes a slot from the table and from its flow.
    pub(super) fn remove_slot(&mut self, id: SlotId) -> Option<Slot> {
        self.disown_slot(id);
        self.slots.remove(id)
    }

    /// Removes a slot from its flow.
    fn disown_slot(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if let SlotUser::Flow(flow, _) = slot.user
            && let Some(flow) = self.flows.get_mut(flow)
        {
            flow.slots.remove(&id);
        }
    }

    /// Returns what the peer is told of an open slot.
    pub(super) fn grant_of(&self, id: SlotId) -> Option<SlotGrant> {
        let slot = self.slots.get(id)?;
        let SlotState::Granted(remote) = slot.state else { return None };
        let body = slot.body.iter().filter_map(Body::remote).collect();
        Some(SlotGrant { number: SlotNumber(id.short()), capacity: slot.capacity, remote, body })
    }
}

impl Landing {
    /// Returns the slots of all links.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (LinkId, &Slab<Slot, of::Slot>)> {
        self.links.iter().map(|(link, l)| (*link, &l.slots))
    }

    /// Returns the slots of a link.
    pub(crate) fn slots_of(&self, link: LinkId) -> Option<&Slab<Slot, of::Slot>> {
        self.links.get(&link).map(|l| &l.slots)
    }

    /// Returns how many bytes the peer may be writing at this moment: those of all slots that it was told of. `None`: it has none.
    pub(crate) fn written_bytes(&self, link: LinkId) -> Option<u64> {
        let slots = self.links.get(&link).into_iter().flat_map(|l| l.slots.iter());
        let open = slots.filter(|(_, slot)| matches!(slot.state, SlotState::Granted(_)));
        open.map(|(_, slot)| slot.capacity).reduce(u64::saturating_add)
    }

    /// Returns what the peer is told of an open slot.
    pub(crate) fn grant_of(&self, link: LinkId, id: SlotId) -> Option<SlotGrant> {
        self.links.get(&link)?.grant_of(id)
    }

    /// Whether a tensor has landed in this slot and is not delivered yet.
    pub(crate) fn has_landed(&self, link: LinkId, slot: Option<SlotId>) -> bool {
        let slots = self.slots_of(link);
        let state = slots.zip(slot).and_then(|(slots, id)| slots.get(id)).map(|s| &s.state);
        matches!(state, Some(SlotState::Revoking(Some(_))))
    }

    /// Returns the place of an open slot's header.
    pub(crate) fn header_of(&self, link: LinkId, immediate: u32) -> Option<LocalSlice> {
        let l = self.links.get(&link)?;
        let slot = l.slots.get(l.slots.lengthen(immediate)?)?;
        let SlotState::Granted(_) = slot.state else { return None };
        self.slice(slot.domain, &slot.range)?.sub(0, HEADER_BYTES)
    }

    /// Opens a range to a peer, and with it the ranges of a worker's memory where the `body` lands, if it lands apart. Returns the
    /// new slot, which the fabric has yet to grant.
    pub(crate) fn open_slot(
        &mut self,
        now: Time,
        link: LinkId,
        (domain, capacity, range): (Tenant, u64, Allocation),
        body: &[LocalSlice],
        user: SlotUser,
        actions: &mut Actions,
    ) -> Option<SlotId> {
        let slice = self.slice(domain, &range)?;
        let l = self.links.get_mut(&link)?;
        let granting = body.iter().map(|_| Body::Granting).collect();
        let id = l.slots.insert(Slot {
            range,
            body: granting,
            domain,
            capacity,
            state: SlotState::Granting,
            user,
            since: now,
        });
        if let SlotUser::Flow(flow, _) = user
            && let Some(flow) = l.flows.get_mut(flow)
        {
            flow.slots.insert(id);
        }
        let access = GrantAccess::Write;
        if body.is_empty() {
            actions.push(Post::Grant { link, range: slice, access, tag: id.to_u64() });
        }
        for (part, range) in (1..).zip(body) {
            actions.push(Post::Grant { link, range: *range, access, tag: GrantTag { id, part }.to_u64() });
        }
        Some(id)
    }

    /// Handles a grant of the fabric. Returns the slot and its user once all of the slot is open.
    pub(crate) fn granted(
        &mut self,
        link: LinkId,
        GrantTag { id, part }: GrantTag,
        remote: RemoteSlice,
        actions: &mut Actions,
    ) -> Option<(SlotId, SlotUser)> {
        if let Some(n) = part.checked_sub(1) {
            let slot = self.links.get_mut(&link)?.slots.get_mut(id)?;
            *slot.body.get_mut(n)? = Body::Granted(remote);
            if slot.body.iter().any(|body| body.remote().is_none()) {
                return None;
            }
            let slot = self.links.get(&link)?.slots.get(id)?;
            let range = self.slice(slot.domain, &slot.range)?;
            actions.push(Post::Grant { link, range, access: GrantAccess::Write, tag: id.to_u64() });
            return None;
        }
        let l = self.links.get_mut(&link)?;
        let slot = l.slots.get_mut(id)?;
        slot.state = SlotState::Granted(remote);
        if let SlotUser::Flow(flow, _) = slot.user {
            self.idle.touch((link, flow));
        }
        Some((id, slot.user))
    }

    /// Checks a landed header against the grant. Nothing in a header is trusted before this check. Returns the slot,
    /// its key, its user and the header.
    pub(crate) fn check(
        &self,
        link: LinkId,
        value: u32,
        header: Option<&[u8; HEADER_BYTES as usize]>,
    ) -> Result<(SlotId, RemoteKey, SlotUser, Header), String> {
        let l = self.links.get(&link).ok_or("the link is gone")?;
        let id = l.slots.lengthen(value);
        let slot = id.and_then(|id| Some((id, l.slots.get(id)?)));
        let Some((id, slot)) = slot else {
            return Err(format!("immediate {value:#x} names no slot that is open to it"));
        };
        let Some(bytes) = header else {
            return Err(format!("immediate {value:#x} came without a header"));
        };
        let SlotState::Granted(remote) = &slot.state else {
            return Err(format!("immediate {value:#x} names a slot that is not open to it"));
        };
        let header = Header::decode(bytes).map_err(|e| e.to_string())?;
        let header = match self.rules.breaks(Broken::BelievesHeaders) {
            true => Header { slot: SlotNumber(value), body_len: header.body_len % (1 << 40), ..header },
            false => header,
        };
        if header.slot.0 != value {
            return Err(format!("the header names {}, the immediate {value:#x}", header.slot));
        }
        if header.body_len > slot.capacity {
            return Err(format!("the header says {} bytes, the slot has {}", header.body_len, slot.capacity));
        }
        Ok((id, remote.key(), slot.user, header))
    }

    /// Handles a checked landing: the slot is closed. `landed` is `None` if the tensor has no user any more.
    pub(crate) fn landed(
        &mut self,
        now: Time,
        link: LinkId,
        (id, key): (SlotId, RemoteKey),
        mut landed: Option<LandedTensor>,
        actions: &mut Actions,
    ) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(slot) = l.slots.get_mut(id) else { return };
        if let SlotUser::Flow(flow, _) = slot.user {
            if let (Some(landed), Some(flow)) = (&mut landed, l.flows.get_mut(flow)) {
                self.landings += 1;
                flow.used = self.landings;
                landed.trace = flow.has_landed(id, landed.header.version);
            }
            self.idle.touch((link, flow));
        }
        slot.since = now;
        slot.state = SlotState::Revoking(landed.map(Box::new));
        actions.push(Post::Revoke { link, key, tag: id.to_u64() });
    }

    /// Handles the end of a grant. Returns what to do about the slot, once all of it is closed.
    pub(crate) fn revoked(&mut self, link: LinkId, tag: GrantTag, actions: &mut Actions) -> Revoked {
        let GrantTag { id, part } = tag;
        let closes_one = self.rules.breaks(Broken::ClosesOneRange);
        let Some(l) = self.links.get_mut(&link) else { return Revoked::Nothing };
        let Some(slot) = l.slots.get_mut(id) else { return Revoked::Nothing };
        let SlotState::Revoking(landed) = &mut slot.state else { return Revoked::Nothing };
        match part.checked_sub(1) {
            // A peer that could write the header could say that the body is there, so that one is closed first.
            None if !slot.body.is_empty() => {
                for (part, body) in (1..).zip(&mut slot.body) {
                    if closes_one && part > 1 {
                        *body = Body::Closed;
                    } else if let Body::Granted(remote) = body {
                        actions.push(Post::Revoke { link, key: remote.key(), tag: GrantTag { id, part }.to_u64() });
                    }
                }
                return Revoked::Nothing;
            }
            None => {}
            Some(n) => {
                if let Some(body) = slot.body.get_mut(n) {
                    *body = Body::Closed;
                }
                if slot.body.iter().any(|body| !matches!(body, Body::Closed)) {
                    return Revoked::Nothing;
                }
            }
        }
        match (landed.take(), slot.user) {
            (None, SlotUser::Pull(pull)) if !slot.body.is_empty() => {
                self.free_slot(link, id);
                return Revoked::Destination(pull);
            }
            (Some(landed), SlotUser::Pull(pull)) => return Revoked::Pull(pull, *landed),
            (Some(landed), SlotUser::Flow(flow, _)) if l.flows.get(flow).is_some() => {
                slot.state = SlotState::Closed(landed);
                return Revoked::Flow(flow);
            }
            _ => {}
        }
        self.free_slot(link, id);
        Revoked::Nothing
    }

    /// Gives the range of a closed slot back to its pool.
    pub(crate) fn free_slot(&mut self, link: LinkId, id: SlotId) {
        if let Some(slot) = self.take_slot(link, id) {
            self.free(slot.domain, slot.range);
        }
    }

    /// Removes a closed slot. The caller owns its range from now on.
    pub(crate) fn take_slot(&mut self, link: LinkId, id: SlotId) -> Option<Slot> {
        self.links.get_mut(&link)?.remove_slot(id)
    }

    /// Drops a slot that is no longer needed, and into which the peer will not write: the peer was never told of it,
    /// has said so, or has written. The range goes back to the pool once no write can reach it. A slot in a worker's memory keeps
    /// its user, who has to know when that is.
    pub(crate) fn drop_slot(&mut self, now: Time, link: LinkId, id: SlotId, actions: &mut Actions) {
        let Some(l) = self.links.get_mut(&link) else { return };
        l.disown_slot(id);
        let Some(slot) = l.slots.get_mut(id) else { return };
        if let SlotUser::Flow(flow, _) = slot.user {
            self.idle.touch((link, flow));
        }
        if slot.body.is_empty() {
            slot.user = SlotUser::Nobody;
        }
        slot.since = now;
        match &mut slot.state {
            SlotState::Granted(remote) => {
                let key = remote.key();
                slot.state = SlotState::Revoking(None);
                actions.push(Post::Revoke { link, key, tag: id.to_u64() });
            }
            SlotState::Revoking(landed) => *landed = None,
            // After its grant, a slot is dropped here again. The end of its last reader frees a held slot.
            SlotState::Granting | SlotState::Held(_) => {}
            SlotState::Closed(_) => self.free_slot(link, id),
        }
    }
}
