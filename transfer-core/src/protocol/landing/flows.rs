//! The landing slots of push flows: how they get room, are granted, called back, and used again after a read.

use super::pool::slot_bytes;
use super::{LandedTensor, Landing, OfLink, SlotState, SlotUser};
use crate::alloc::Allocation;
use crate::fabric::{GrantAccess, LinkId};
use crate::memory::LocalSlice;
use crate::protocol::action::Actions;
use crate::protocol::action::Post;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, FlowAt, InFlowId, SlotId, of};
use crate::protocol::rules::Broken;
use crate::protocol::slab::Slab;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, TensorMeta, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use crate::wire::landing::{HEADER_BYTES, Header, SlotGrant};
use crate::wire::message::Recall;
use std::collections::{BTreeSet, VecDeque};

/// A key that a peer's worker pushes to a worker of this node.
pub(crate) struct InFlow {
    /// The sender's number of the flow.
    pub(crate) index: u32,
    pub(crate) key: Key,
    pub(crate) target: SessionId,
    pub(crate) domain: Tenant,
    pub(crate) capacity: u64,
    /// The sender's number for the description of the tensor that lands next, and the description.
    described: (u32, TensorMeta),
    pub(crate) state: InState,
    /// Counts the requests for slots. The sender has no use for slots of an earlier round.
    round: u32,
    /// The lowest version that may land next.
    pub(crate) next_version: u64,
    /// Slots whose tensors have landed and are not published yet, in order.
    landed: VecDeque<SlotId>,
    /// How many slots still need room.
    missing: usize,
    /// The answer to the request, while its slots are being granted.
    answer: Answer,
    /// When the flow was used last, by the count of landings.
    pub(super) used: u64,
    /// When its slots were called back, if they were.
    pub(crate) recalled: Time,
    /// Its slots, of all rounds.
    pub(super) slots: BTreeSet<SlotId>,
    /// The trace of the version that lands next, if the sender has sent one.
    pending_trace: Option<PendingTrace>,
}

/// The slots of a BUFFER_RESPONSE.
#[derive(Default)]
struct Answer {
    /// How many slots the answer is to have.
    granting: usize,
    /// The slots that are granted so far.
    fresh: Vec<SlotId>,
}

/// The content of a TRACE, and when it came.
struct PendingTrace {
    version: Version,
    context: TraceContext,
    at: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InState {
    /// The directory was asked whether the sender may have the key.
    Claiming,
    /// Waiting for room.
    WaitingForRoom,
    /// Slots are being granted.
    Granting,
    /// The sender has slots, or gets them back once they have been read.
    Ready,
    /// Slots into which the sender does not write are called back, because other requests wait for room.
    Reclaiming,
    /// The sender has no slots: it was refused, or has given them back. It may ask again.
    Without,
    /// All slots are called back, because the flow ends.
    Recalling,
}

impl InState {
    /// Whether the sender has slots, or is about to have them, and can use more.
    fn takes_more(self) -> bool {
        matches!(self, InState::Granting | InState::Ready)
    }

    /// Whether the sender may write.
    pub(crate) fn lands(self) -> bool {
        matches!(self, InState::Ready | InState::Reclaiming | InState::Recalling)
    }
}

/// What to tell the sender about a slot that is open.
pub(crate) enum Granted {
    /// Nothing, or nothing yet.
    Nothing,
    /// BUFFER_RESPONSE: the index of the flow, and all slots that the sender asked for.
    All(u32, Vec<SlotGrant>),
    /// BUFFER_IDLE: the index of the flow, and one more slot into which the sender may write.
    Idle(u32, SlotGrant),
}

/// The consequence of RECALLED: the sender has said that it does not write into a flow's slots.
pub(crate) enum Recalled {
    Nothing,
    /// The flow ends.
    Ends,
    /// The sender was not asked for this.
    Violation,
}

impl InFlow {
    /// Creates a flow that a peer asks for: its number, its key, its target, and the description of what will land.
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
            pending_trace: None,
        }
    }

    /// Whether the flow waits for room in this pool.
    pub(super) fn wants_room(&self, domain: Tenant) -> bool {
        let waits = self.state == InState::WaitingForRoom || self.state.takes_more();
        waits && self.missing > 0 && self.domain == domain
    }

    /// Whether a tensor has landed that is not published yet.
    pub(crate) fn holds_unpublished(&self) -> bool {
        !self.landed.is_empty()
    }

    /// Notes that a tensor has landed. Tensors are published in the order in which they landed, even if their slots are
    /// closed in another order. Returns the trace of the version and when it came, if the sender has sent it.
    pub(super) fn has_landed(&mut self, slot: SlotId, version: Version) -> Option<(TraceContext, Time)> {
        self.landed.push_back(slot);
        self.next_version = version.0.saturating_add(1);
        self.pending_trace.take().filter(|trace| trace.version == version).map(|trace| (trace.context, trace.at))
    }
}

impl OfLink {
    /// Whether a slot of an earlier round still has a tensor to deliver or to read. The next version replaces that
    /// tensor.
    fn still_holds_older(&self, id: InFlowId, step: impl Fn()) -> bool {
        let Some(flow) = self.flows.get(id) else { return false };
        flow.slots.iter().filter_map(|slot| self.slots.get(*slot)).any(|s| {
            step();
            matches!(s.user, SlotUser::Flow(_, round) if round != flow.round) && s.state.is_used()
        })
    }
}

impl Landing {
    /// Returns a flow.
    pub(crate) fn flow(&self, (link, id): FlowAt) -> Option<&InFlow> {
        self.links.get(&link)?.flows.get(id)
    }

    fn flow_mut(&mut self, (link, id): FlowAt) -> Option<&mut InFlow> {
        self.links.get_mut(&link)?.flows.get_mut(id)
    }

    /// Returns the flow to which the peer has given this index.
    pub(crate) fn flow_of(&self, link: LinkId, index: u32) -> Option<InFlowId> {
        self.links.get(&link)?.flow_of.get(&index).copied()
    }

    /// Returns the flows of all links, from this link on.
    pub(crate) fn flows(&self, from: LinkId) -> impl Iterator<Item = (LinkId, &Slab<InFlow, of::InFlow>)> {
        self.links.range(from..).map(|(link, l)| (*link, &l.flows))
    }

    /// Returns how many flows a link has.
    pub(crate) fn flow_count(&self, link: LinkId) -> usize {
        self.links.get(&link).map_or(0, |l| l.flows.len())
    }

    /// Returns the flows for which `holds` is true.
    pub(crate) fn flows_where(&self, holds: impl Fn(&InFlow) -> bool) -> Vec<FlowAt> {
        let of = |(link, l): (&LinkId, &OfLink)| {
            let link = *link;
            l.flows.ids(&holds).into_iter().map(move |id| (link, id))
        };
        self.links.iter().flat_map(of).collect()
    }

    /// Adds a flow for which a peer asks for slots. It has none until it is [given room](Landing::wants_slots).
    pub(crate) fn insert_flow(&mut self, link: LinkId, flow: InFlow) -> Option<InFlowId> {
        let l = self.links.get_mut(&link)?;
        let index = flow.index;
        let id = l.flows.insert(flow);
        l.flow_of.insert(index, id);
        Some(id)
    }

    /// Removes a flow that does not get its key. Returns `None` if it is being called back already, and ends with
    /// RECALLED.
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

    /// Removes a flow whose sender has said that it will not write again, and closes its slots.
    pub(crate) fn end_flow(&mut self, now: Time, at: FlowAt, actions: &mut Actions) {
        self.drop_idle_slots(now, at, actions);
        if let Some(flow) = self.remove_flow(at) {
            for slot in flow.landed {
                self.drop_slot(now, at.0, slot, actions);
            }
            self.serve_later(flow.domain);
        }
    }

    /// Begins a request for other slots: the sender has no use for those it has. Returns `None` if the flow may not ask
    /// now, or is for another key.
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

    /// Refuses a request for other slots. Published versions stay; the sender may ask again.
    pub(crate) fn refuse_others(&mut self, now: Time, at: FlowAt, actions: &mut Actions) {
        let Some(flow) = self.flow_mut(at) else { return };
        flow.state = InState::Without;
        let domain = flow.domain;
        self.idle.touch(at);
        self.serve_later(domain);
        self.drop_idle_slots(now, at, actions);
    }

    /// Continues a request for other slots, and closes the earlier ones. Returns whether the new slots are for another
    /// worker.
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
            // The sender may send the other worker the same versions.
            flow.next_version = 0;
        }
        self.serve_later(before);
        self.drop_idle_slots(now, at, actions);
        is_another
    }

    /// Handles META_DATA_UPDATE: the tensors that follow have another description, and fit into the slots. The error
    /// says what is wrong with the message.
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

    /// Handles TRACE: stores the trace of the version that is about to land. The error says what is wrong with the
    /// message.
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
        flow.pending_trace = Some(PendingTrace { version, context, at: now });
        Ok(())
    }

    /// Checks that the tensor in a flow's slot is the one that the sender announced. Returns its description, or `None`
    /// if the flow is gone.
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

    /// Makes a flow wait for room for all its slots. Returns the tenant of the pool.
    pub(crate) fn wants_slots(&mut self, at: FlowAt) -> Option<Tenant> {
        let count = self.slots_per_flow;
        let flow = self.flow_mut(at)?;
        flow.state = InState::WaitingForRoom;
        flow.missing = count;
        let domain = flow.domain;
        self.idle.touch(at);
        Some(domain)
    }

    /// Returns a length of room, in one piece, that is enough for what a flow waits for. `None` if it waits for none.
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

    /// Allocates all missing slots of a flow that waits, or none: with one slot alone, the first version would stay in
    /// it and no other could come. A flow that has some slots already takes what there is. So does a flow that holds a
    /// version of an earlier round, because its next version makes room for the rest. Returns `true` if the flow does
    /// not wait for room any more.
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
            self.open_slot(now, link, (domain, capacity, range), &[], SlotUser::Flow(id, round), actions);
        }
        has_all
    }

    /// Handles a flow's slot that the fabric has opened, for the first time or again. Returns what to tell the sender.
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

    /// Closes the slots into which the sender may write. The sender has said that it will not.
    pub(crate) fn drop_idle_slots(&mut self, now: Time, at: FlowAt, actions: &mut Actions) {
        let Some(flow) = self.flow(at) else { return };
        for slot in flow.slots.iter().copied().collect::<Vec<_>>() {
            self.step();
            let slots = self.slots_of(at.0);
            // Readers return the slots that they hold, and a tensor that has just landed is delivered first.
            if slots.and_then(|slots| slots.get(slot)).is_some_and(|s| !s.state.is_used()) {
                self.drop_slot(now, at.0, slot, actions);
            }
        }
    }

    // ---- landed tensors ----

    /// Removes from the queue the slot whose tensor is to be published next, once that slot is closed.
    pub(crate) fn next_landed(&mut self, (link, id): FlowAt) -> Option<SlotId> {
        let l = self.links.get_mut(&link)?;
        let landed = &mut l.flows.get_mut(id)?.landed;
        let first = *landed.front()?;
        let is_closed = matches!(l.slots.get(first)?.state, SlotState::Closed(_));
        is_closed.then(|| landed.pop_front()).flatten()
    }

    /// Returns the tensor in a closed slot: its tenant, where its body lies, and its header and description.
    pub(crate) fn closed(&self, link: LinkId, slot: SlotId) -> Option<(Tenant, LocalSlice, &LandedTensor)> {
        let s = self.slots_of(link)?.get(slot)?;
        let SlotState::Closed(landed) = &s.state else { return None };
        let range = self.slice(s.domain, &s.range)?;
        let body = LocalSlice { offset: range.offset + HEADER_BYTES, len: landed.meta.len_bytes(), ..range };
        Some((s.domain, body, landed))
    }

    /// Notes that readers hold the tensor in a closed slot.
    pub(crate) fn hold(&mut self, link: LinkId, slot: SlotId, blob: BlobId) {
        if let Some(s) = self.links.get_mut(&link).and_then(|l| l.slots.get_mut(slot)) {
            s.state = SlotState::Held(blob);
        }
    }

    /// Removes a slot whose tensor stays beside newer versions. The tensor keeps the range, and the flow gets another
    /// slot instead. Returns the range, and the pool in which the flow has to ask for room, if it does.
    pub(crate) fn keep_slot(&mut self, link: LinkId, slot: SlotId) -> Option<(Allocation, Option<(Tenant, InFlowId)>)> {
        let slot = self.take_slot(link, slot)?;
        let SlotUser::Flow(of, round) = slot.user else { return Some((slot.range, None)) };
        let flow = self.flow_mut((link, of)).filter(|f| f.round == round && f.state.takes_more());
        let asks = flow.map(|flow| flow.missing += 1).map(|()| (slot.domain, of));
        Some((slot.range, asks))
    }

    /// Handles the end of a slot's last reader. The slot is opened to its sender again, or freed if the flow does not
    /// need it.
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

    /// Calls back all slots of a flow, because the flow ends. They stay as they are until the sender has said that it
    /// will not write again. Returns the flow's index and round for BUFFER_RECALL, or `None` if that was sent before.
    pub(crate) fn recall(&mut self, now: Time, at: FlowAt) -> Option<(u32, u32)> {
        let flow = self.flow_mut(at).filter(|flow| flow.state != InState::Recalling)?;
        flow.recalled = now;
        flow.state = InState::Recalling;
        let (index, domain, round) = (flow.index, flow.domain, flow.round);
        self.idle.touch(at);
        self.serve_later(domain);
        Some((index, round))
    }

    /// Calls back the slots of a flow into which its sender does not write. The flow does not end. Returns its index
    /// and round for BUFFER_RECALL.
    pub(crate) fn recall_room(&mut self, now: Time, at: FlowAt) -> Option<(u32, u32)> {
        let flow = self.flow_mut(at)?;
        flow.recalled = now;
        flow.state = InState::Reclaiming;
        flow.missing = 0;
        let told = (flow.index, flow.round);
        self.idle.touch(at);
        Some(told)
    }

    /// Handles RECALLED: the sender has said that it does not write into a flow's slots.
    pub(crate) fn recalled(
        &mut self,
        now: Time,
        at: FlowAt,
        why: Recall,
        round: u32,
        actions: &mut Actions,
    ) -> Recalled {
        self.idle.touch(at);
        let mixes = self.rules.breaks(Broken::MixesRounds);
        let Some(flow) = self.flow_mut(at) else { return Recalled::Nothing };
        match (why, flow.state) {
            (Recall::Ends, InState::Recalling) => return Recalled::Ends,
            (Recall::Ends, _) => return Recalled::Violation,
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
            // The sender has asked for other slots meanwhile, or the flow ends.
            (Recall::Room, _) => {}
        }
        Recalled::Nothing
    }
}
