//! The landing slots of push flows: room for them, granting them, calling them back, and what becomes of them when they have been read.

use super::pool::slot_bytes;
use super::{LandedTensor, Landing, OfLink, SlotState, SlotUser};
use crate::alloc::Allocation;
use crate::fabric::{GrantAccess, LinkId};
use crate::memory::LocalSlice;
use crate::protocol::action::Actions;
use crate::protocol::action::Post;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, FlowAt, InFlowId, SlotId, of};
use crate::protocol::slab::Slab;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::{HEADER_BYTES, Header, SlotGrant};
use crate::wire::message::Recall;
use std::collections::{BTreeSet, VecDeque};

/// A key that a peer's worker pushes to one of ours.
pub(crate) struct InFlow {
    /// What the sender calls it.
    pub(crate) index: u32,
    pub(crate) key: Key,
    pub(crate) target: SessionId,
    pub(crate) domain: Tenant,
    pub(crate) capacity: u64,
    /// What lands next, and the sender's number of that description.
    described: (u32, TensorMeta),
    pub(crate) state: InState,
    /// Counts the requests for slots. Those of an earlier round are of no use.
    round: u32,
    /// The lowest version that may land next.
    pub(crate) next_version: u64,
    /// What has landed and is not published, in order.
    landed: VecDeque<SlotId>,
    /// Slots for which there was no room yet.
    missing: usize,
    /// The answer to the request, while it is being collected.
    answer: Answer,
    /// When it was used last, by the count of landings.
    pub(super) used: u64,
    /// When its slots were called back, where they are.
    pub(crate) recalled: Time,
    /// Its slots, of whatever round.
    pub(super) slots: BTreeSet<SlotId>,
    /// What pushed the version that lands next, where the sender said so, and when it did.
    told: Option<Told>,
}

/// The slots of a BUFFER_RESPONSE.
#[derive(Default)]
struct Answer {
    /// How many are being granted for it.
    granting: usize,
    /// Those that are granted.
    fresh: Vec<SlotId>,
}

/// What a TRACE has told.
struct Told {
    version: Version,
    context: TraceContext,
    at: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InState {
    /// The directory is asked whether the key is the sender's.
    Claiming,
    /// Waiting for room.
    WaitingForRoom,
    /// Slots are being granted.
    Granting,
    /// The sender has slots, or will get them back.
    Ready,
    /// What its sender does not write into is called back, for others wait for the room.
    Reclaiming,
    /// It has none, for it was refused or has given them back. It may ask again.
    Without,
    /// The slots are called back, for the flow ends.
    Recalling,
}

impl InState {
    /// The sender has some slots, or is about to have them, and can do with more.
    fn takes_more(self) -> bool {
        matches!(self, InState::Granting | InState::Ready)
    }

    /// The sender may write.
    pub(crate) fn lands(self) -> bool {
        matches!(self, InState::Ready | InState::Reclaiming | InState::Recalling)
    }
}

/// What the sender is told of a slot that is open.
pub(crate) enum Granted {
    /// Nothing, or not yet.
    Nothing,
    /// BUFFER_RESPONSE: all slots that it asked for by this index.
    All(u32, Vec<SlotGrant>),
    /// BUFFER_IDLE: one that it had before.
    Idle(u32, SlotGrant),
}

/// What follows when a sender has said that it does not write into a flow's slots.
pub(crate) enum Recalled {
    Nothing,
    /// The flow ends.
    Ends,
    /// The sender was not asked to say so.
    Violation,
}

impl InFlow {
    /// A flow that a peer asks for: its number, its key, for whom it is, and what will land.
    pub(crate) fn new(
        now: Time,
        index: u32,
        key: Key,
        (target, domain): (SessionId, Tenant),
        described: (u32, TensorMeta),
    ) -> InFlow {
        InFlow {
            index,
            key,
            target,
            domain,
            capacity: described.1.len_bytes(),
            described,
            state: InState::Claiming,
            round: 0,
            next_version: 0,
            landed: VecDeque::new(),
            missing: 0,
            answer: Answer::default(),
            used: 0,
            recalled: now,
            slots: BTreeSet::new(),
            told: None,
        }
    }

    /// Whether it stands in line for room there.
    pub(super) fn wants_room(&self, domain: Tenant) -> bool {
        let waits = self.state == InState::WaitingForRoom || self.state.takes_more();
        waits && self.missing > 0 && self.domain == domain
    }

    /// Whether something has landed that is not published.
    pub(crate) fn holds_unpublished(&self) -> bool {
        !self.landed.is_empty()
    }

    /// Something has landed. What lands first is published first, whichever slot is closed first. Answers what pushed it, where that
    /// was told.
    pub(super) fn has_landed(&mut self, slot: SlotId, version: Version) -> Option<(TraceContext, Time)> {
        self.landed.push_back(slot);
        self.next_version = version.0.saturating_add(1);
        self.told.take().filter(|told| told.version == version).map(|told| (told.context, told.at))
    }
}

impl OfLink {
    /// Whether something of an earlier round is still there to be read. It goes when the next version has come.
    fn still_holds_older(&self, id: InFlowId, step: impl Fn()) -> bool {
        let Some(flow) = self.flows.get(id) else { return false };
        flow.slots.iter().filter_map(|slot| self.slots.get(*slot)).any(|s| {
            step();
            matches!(s.user, SlotUser::Flow(_, round) if round != flow.round) && s.state.is_used()
        })
    }
}

impl Landing {
    /// A flow.
    pub(crate) fn flow(&self, (link, id): FlowAt) -> Option<&InFlow> {
        self.links.get(&link)?.flows.get(id)
    }

    fn flow_mut(&mut self, (link, id): FlowAt) -> Option<&mut InFlow> {
        self.links.get_mut(&link)?.flows.get_mut(id)
    }

    /// The flow that a peer calls by this index.
    pub(crate) fn flow_of(&self, link: LinkId, index: u32) -> Option<InFlowId> {
        self.links.get(&link)?.flow_of.get(&index).copied()
    }

    /// The flows of all links from this one on.
    pub(crate) fn flows(&self, from: LinkId) -> impl Iterator<Item = (LinkId, &Slab<InFlow, of::InFlow>)> {
        self.links.range(from..).map(|(link, l)| (*link, &l.flows))
    }

    /// How many flows a link has.
    pub(crate) fn flow_count(&self, link: LinkId) -> usize {
        self.links.get(&link).map_or(0, |l| l.flows.len())
    }

    /// The flows of which this holds.
    pub(crate) fn flows_where(&self, holds: impl Fn(&InFlow) -> bool) -> Vec<FlowAt> {
        let of = |(link, l): (&LinkId, &OfLink)| {
            let link = *link;
            l.flows.ids(&holds).into_iter().map(move |id| (link, id))
        };
        self.links.iter().flat_map(of).collect()
    }

    /// A peer asks for slots for a key. The flow has none until it is [given room](Landing::wants_slots).
    pub(crate) fn insert_flow(&mut self, link: LinkId, flow: InFlow) -> Option<InFlowId> {
        let l = self.links.get_mut(&link)?;
        let index = flow.index;
        let id = l.flows.insert(flow);
        l.flow_of.insert(index, id);
        Some(id)
    }

    /// A flow does not get its key. `None` where it is called back already, and ends with RECALLED.
    pub(crate) fn refuse_flow(&mut self, at: FlowAt) -> Option<InFlow> {
        self.flow(at).filter(|f| f.state != InState::Recalling)?;
        self.remove_flow(at)
    }

    fn remove_flow(&mut self, (link, id): FlowAt) -> Option<InFlow> {
        let l = self.links.get_mut(&link)?;
        let flow = l.flows.remove(id)?;
        l.flow_of.remove(&flow.index);
        self.idle.touch((link, id));
        Some(flow)
    }

    /// Forgets a flow whose sender has said that it will not write any more, and closes its slots.
    pub(crate) fn end_flow(&mut self, now: Time, at: FlowAt, actions: &mut Actions) {
        self.drop_idle_slots(now, at, actions);
        if let Some(flow) = self.remove_flow(at) {
            for slot in flow.landed {
                self.drop_slot(now, at.0, slot, actions);
            }
            self.serve_later(flow.domain);
        }
    }

    /// The sender asks for other slots. Those that it has are of no use to it. `None` where it may not ask now.
    pub(crate) fn request_others(&mut self, at: FlowAt, key: &Key, described: (u32, TensorMeta)) -> Option<&InFlow> {
        let flow = self.flow_mut(at)?;
        let may_ask = matches!(flow.state, InState::Ready | InState::Reclaiming | InState::Without);
        if !may_ask || flow.key != *key {
            return None;
        }
        flow.capacity = described.1.len_bytes();
        flow.described = described;
        flow.round = flow.round.wrapping_add(1);
        flow.missing = 0;
        Some(flow)
    }

    /// A request for other slots is refused. What has landed stays published; the sender may ask again.
    pub(crate) fn refuse_others(&mut self, now: Time, at: FlowAt, actions: &mut Actions) {
        let Some(flow) = self.flow_mut(at) else { return };
        flow.state = InState::Without;
        let domain = flow.domain;
        self.idle.touch(at);
        self.serve_later(domain);
        self.drop_idle_slots(now, at, actions);
    }

    /// A request for other slots goes on: the earlier ones are closed. Returns whether they are for another worker than those.
    pub(crate) fn retarget(
        &mut self,
        now: Time,
        at: FlowAt,
        (target, domain): (SessionId, Tenant),
        actions: &mut Actions,
    ) -> bool {
        let Some(flow) = self.flow_mut(at) else { return false };
        let before = std::mem::replace(&mut flow.domain, domain);
        let is_another = std::mem::replace(&mut flow.target, target) != target;
        if is_another {
            // Another worker may be sent the same versions.
            flow.next_version = 0;
        }
        self.serve_later(before);
        self.drop_idle_slots(now, at, actions);
        is_another
    }

    /// META_DATA_UPDATE: what follows looks different and fits. The error says what is wrong with it.
    pub(crate) fn describe(&mut self, link: LinkId, index: u32, described: (u32, TensorMeta)) -> Result<(), String> {
        let Some(flow) = self.flow_of(link, index).and_then(|id| self.flow_mut((link, id))) else { return Ok(()) };
        if !flow.state.lands() {
            return Err(format!("META_DATA_UPDATE for flow {index:#x}, which has no slots"));
        }
        if described.1.len_bytes() > flow.capacity {
            return Err(format!("{} does not fit the {} bytes of flow {index:#x}", described.1, flow.capacity));
        }
        flow.described = described;
        Ok(())
    }

    /// TRACE: what pushed the version that is about to land. The error says what is wrong with it.
    pub(crate) fn trace(
        &mut self,
        now: Time,
        link: LinkId,
        index: u32,
        (version, context): (Version, TraceContext),
    ) -> Result<(), String> {
        let Some(flow) = self.flow_of(link, index).and_then(|id| self.flow_mut((link, id))) else { return Ok(()) };
        if !flow.state.lands() {
            return Err(format!("TRACE for flow {index:#x}, which has no slots"));
        }
        flow.told = Some(Told { version, context, at: now });
        Ok(())
    }

    /// What has landed in a flow's slot has to be what the sender said. `None` where nobody wants it any more.
    pub(crate) fn check_flow(&self, at: FlowAt, header: &Header) -> Result<Option<TensorMeta>, String> {
        let Some(f) = self.flow(at) else { return Ok(None) };
        if header.index != f.index {
            return Err(format!("the header names flow {:#x}, the slot is for {:#x}", header.index, f.index));
        }
        let (metadata_id, meta) = &f.described;
        if header.metadata_id != *metadata_id || header.body_len != meta.len_bytes() {
            return Err(format!(
                "the header has description {} and {} bytes, the flow has {metadata_id} and {}",
                header.metadata_id,
                header.body_len,
                meta.len_bytes()
            ));
        }
        if header.version.0 < f.next_version || header.version > Version::LAST {
            return Err(format!(
                "the header has {}, which is not above the last one, or the last there can be",
                header.version
            ));
        }
        Ok(Some(meta.clone()))
    }

    // ---- room ----

    /// A flow waits for room for all its slots. Returns in which pool.
    pub(crate) fn wants_slots(&mut self, at: FlowAt) -> Option<Tenant> {
        let count = self.slots_per_flow;
        let flow = self.flow_mut(at)?;
        flow.state = InState::WaitingForRoom;
        flow.missing = count;
        let domain = flow.domain;
        self.idle.touch(at);
        Some(domain)
    }

    /// How much room in one piece is surely enough for what a flow waits for. `None` where it waits for none.
    pub(crate) fn flow_room(&self, (link, id): FlowAt) -> Option<u64> {
        let l = self.links.get(&link)?;
        let flow = l.flows.get(id)?;
        let one = slot_bytes(flow.capacity)?.next_multiple_of(64);
        match flow.state {
            InState::WaitingForRoom if !l.still_holds_older(id, || self.step()) => Some(one * flow.missing as u64),
            InState::WaitingForRoom | InState::Granting | InState::Ready if flow.missing > 0 => Some(one),
            _ => None,
        }
    }

    /// Takes room for all slots of a flow, or for none: with one slot alone the first version would stay and no other could come.
    /// A flow that holds a version of an earlier round begins with what there is, for the next version makes room for the rest.
    /// `true` where nothing is missing any more.
    pub(crate) fn try_slots(&mut self, now: Time, domain: Tenant, at: FlowAt, actions: &mut Actions) -> bool {
        let (link, id) = at;
        let begins_with_less = self.links.get(&link).is_some_and(|l| l.still_holds_older(id, || self.step()));
        let Some(flow) = self.flow(at).filter(|flow| flow.wants_room(domain)) else { return true };
        let waits = flow.state == InState::WaitingForRoom;
        let (capacity, round, missing) = (flow.capacity, flow.round, flow.missing);
        let Some(pool) = self.pools.get_mut(&domain) else { return true };
        let ranges: Vec<_> = (0..missing).map_while(|_| pool.slot(capacity).ok()).collect();
        if ranges.len() < missing && waits && !begins_with_less {
            for range in ranges {
                // The allocator lent it just now.
                let _ = pool.alloc.free(range);
            }
            return false;
        }
        if ranges.is_empty() {
            return false;
        }
        let Some(flow) = self.flow_mut(at) else { return true };
        flow.missing -= ranges.len();
        let has_all = flow.missing == 0;
        if waits {
            flow.state = InState::Granting;
            flow.answer = Answer::default();
        }
        flow.answer.granting += ranges.len();
        for range in ranges {
            self.open_slot(now, link, (domain, capacity, range), SlotUser::Flow(id, round), actions);
        }
        has_all
    }

    /// A slot of a flow is open: for the first time, or again.
    pub(crate) fn flow_granted(
        &mut self,
        now: Time,
        (link, id): FlowAt,
        round: u32,
        slot: SlotId,
        actions: &mut Actions,
    ) -> Granted {
        let Some(l) = self.links.get_mut(&link) else { return Granted::Nothing };
        let Some(grant) = l.grant_of(slot) else { return Granted::Nothing };
        match l.flows.get_mut(id).filter(|flow| flow.round == round && flow.state.takes_more()) {
            Some(flow) if flow.state == InState::Granting => {
                flow.answer.fresh.push(slot);
                if flow.answer.fresh.len() < flow.answer.granting {
                    return Granted::Nothing;
                }
                flow.state = InState::Ready;
                let (index, domain, fresh) = (flow.index, flow.domain, std::mem::take(&mut flow.answer.fresh));
                let slots = fresh.iter().filter_map(|s| l.grant_of(*s)).collect();
                self.idle.touch((link, id));
                self.serve_later(domain);
                Granted::All(index, slots)
            }
            Some(flow) => {
                let (index, domain) = (flow.index, flow.domain);
                self.serve_later(domain);
                Granted::Idle(index, grant)
            }
            None => {
                self.drop_slot(now, link, slot, actions);
                Granted::Nothing
            }
        }
    }

    /// Closes the slots that the sender may write to, after it has said that it will not.
    fn drop_idle_slots(&mut self, now: Time, at: FlowAt, actions: &mut Actions) {
        let Some(flow) = self.flow(at) else { return };
        for slot in flow.slots.iter().copied().collect::<Vec<_>>() {
            self.step();
            let slots = self.slots_of(at.0);
            // Readers give these back; what has just landed is delivered first.
            if slots.and_then(|slots| slots.get(slot)).is_some_and(|s| !s.state.is_used()) {
                self.drop_slot(now, at.0, slot, actions);
            }
        }
    }

    // ---- what has landed ----

    /// The slot whose version is to be published next, once it is closed.
    pub(crate) fn next_landed(&mut self, (link, id): FlowAt) -> Option<SlotId> {
        let l = self.links.get_mut(&link)?;
        let landed = &mut l.flows.get_mut(id)?.landed;
        let first = *landed.front()?;
        let is_closed = matches!(l.slots.get(first)?.state, SlotState::Closed(_));
        is_closed.then(|| landed.pop_front()).flatten()
    }

    /// What lies in a closed slot: whose it is, where its body is, and what is known of it.
    pub(crate) fn closed(&self, link: LinkId, slot: SlotId) -> Option<(Tenant, LocalSlice, &LandedTensor)> {
        let s = self.slots_of(link)?.get(slot)?;
        let SlotState::Closed(landed) = &s.state else { return None };
        let range = self.slice(s.domain, &s.range)?;
        let body = LocalSlice { offset: range.offset + HEADER_BYTES, len: landed.meta.len_bytes(), ..range };
        Some((s.domain, body, landed))
    }

    /// What lies in a closed slot is being read.
    pub(crate) fn hold(&mut self, link: LinkId, slot: SlotId, blob: BlobId) {
        if let Some(s) = self.links.get_mut(&link).and_then(|l| l.slots.get_mut(slot)) {
            s.state = SlotState::Held(blob);
        }
    }

    /// What has landed in a slot stays beside newer versions: the range is the tensor's, and the flow gets another slot in its place. Returns
    /// that range, and in which pool the flow is to ask for room, if it is.
    pub(crate) fn keep_slot(&mut self, link: LinkId, slot: SlotId) -> Option<(Allocation, Option<(Tenant, InFlowId)>)> {
        let slot = self.take_slot(link, slot)?;
        let SlotUser::Flow(of, round) = slot.user else { return Some((slot.range, None)) };
        let flow = self.flow_mut((link, of)).filter(|f| f.round == round && f.state.takes_more());
        let asks = flow.map(|flow| flow.missing += 1).map(|()| (slot.domain, of));
        Some((slot.range, asks))
    }

    /// Nobody reads what lies in a slot any more: the sender may write it again.
    pub(crate) fn slot_read(&mut self, link: LinkId, id: SlotId, actions: &mut Actions) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(slot) = l.slots.get_mut(id) else { return };
        let wanted = match slot.user {
            SlotUser::Flow(flow, round) => {
                l.flows.get(flow).is_some_and(|f| f.state == InState::Ready && f.round == round)
            }
            _ => false,
        };
        if let (true, Some(pool)) = (wanted, self.pools.get(&slot.domain)) {
            slot.state = SlotState::Granting;
            let range = pool.slice(&slot.range);
            actions.push(Post::Grant { link, range, access: GrantAccess::Write, tag: id.to_u64() });
        } else {
            self.free_slot(link, id);
        }
    }

    // ---- calling back ----

    /// A flow ends: its slots stay as they are until the sender has said that it will not write any more. Returns the flow's number and round
    /// for BUFFER_RECALL. `None` where that was sent before.
    pub(crate) fn recall(&mut self, now: Time, at: FlowAt) -> Option<(u32, u32)> {
        let flow = self.flow_mut(at).filter(|flow| flow.state != InState::Recalling)?;
        flow.recalled = now;
        flow.state = InState::Recalling;
        let (index, domain, round) = (flow.index, flow.domain, flow.round);
        self.idle.touch(at);
        self.serve_later(domain);
        Some((index, round))
    }

    /// The same for those slots of a flow that its sender does not write into. The flow goes on.
    pub(crate) fn recall_room(&mut self, now: Time, at: FlowAt) -> Option<(u32, u32)> {
        let flow = self.flow_mut(at)?;
        flow.recalled = now;
        flow.state = InState::Reclaiming;
        flow.missing = 0;
        let told = (flow.index, flow.round);
        self.idle.touch(at);
        Some(told)
    }

    /// See [`Broken::ReclaimsAtOnce`](crate::protocol::Broken::ReclaimsAtOnce).
    #[cfg(test)]
    pub(crate) fn reclaim_at_once(&mut self, now: Time, at: FlowAt, actions: &mut Actions) {
        if self.broken == Some(crate::protocol::broken::Broken::ReclaimsAtOnce) {
            self.drop_idle_slots(now, at, actions);
        }
    }

    /// RECALLED: the sender has said that it does not write into a flow's slots.
    pub(crate) fn recalled(
        &mut self,
        now: Time,
        at: FlowAt,
        why: Recall,
        round: u32,
        actions: &mut Actions,
    ) -> Recalled {
        self.idle.touch(at);
        #[cfg(test)]
        let mixes = self.broken == Some(crate::protocol::broken::Broken::MixesRounds);
        let Some(flow) = self.flow_mut(at) else { return Recalled::Nothing };
        match (why, flow.state) {
            (Recall::Ends, InState::Recalling) => return Recalled::Ends,
            (Recall::Ends, _) => return Recalled::Violation,
            #[cfg(test)]
            (Recall::Room, InState::WaitingForRoom | InState::Granting | InState::Ready)
                if mixes && flow.round != round =>
            {
                flow.state = InState::Without;
                self.drop_idle_slots(now, at, actions);
            }
            (Recall::Room, InState::Reclaiming) if flow.round == round => {
                flow.state = InState::Without;
                let domain = flow.domain;
                self.drop_idle_slots(now, at, actions);
                self.serve_later(domain);
            }
            // The sender asked for others meanwhile, or the flow ends.
            (Recall::Room, _) => {}
        }
        Recalled::Nothing
    }
}
