//! The landing slots of a push flow: room for them, granting them, and what becomes of them when they have been read.

use super::ids::{BlobId, InFlowId, SlotId};
use super::keys::Source;
use super::link::{AfterRevoke, SlotState, SlotUser};
use super::node::Node;
use super::pool::Want;
use super::push_in::InState;
use super::{Post, Tenant};
use crate::fabric::{GrantAccess, LinkId};
use crate::wire::landing::SlotGrant;
use crate::wire::message::{Body, Role};

impl Node {
    pub(super) fn give_room(&mut self, link: LinkId, id: InFlowId) {
        let count = self.config.slots_per_flow;
        let Some(flow) = self.flow_in(link, id) else { return };
        flow.state = InState::WaitingForRoom;
        flow.missing = count;
        self.idle.touch(link, id);
        let Some(flow) = self.flow_in(link, id) else { return };
        let domain = flow.domain;
        let waiting = self.pools.get(&domain).is_some_and(|p| !p.wants.is_empty());
        if waiting || !self.try_flow_slots(domain, link, id) {
            self.want(domain, Want::Flow(link, id));
        }
    }

    /// How much room in one piece is surely enough for what a flow waits for. `None` where it waits for none.
    pub(super) fn flow_room(&self, link: LinkId, id: InFlowId) -> Option<u64> {
        let flow = self.links.get(&link)?.flows_in.get(id)?;
        let one = super::pool::slot_bytes(flow.capacity)?.next_multiple_of(64);
        match flow.state {
            InState::WaitingForRoom if !self.still_holds_older(link, id) => Some(one * flow.missing as u64),
            InState::WaitingForRoom | InState::Granting | InState::Ready if flow.missing > 0 => Some(one),
            _ => None,
        }
    }

    /// Whether something of an earlier round is still there to be read. It goes when the next version has come.
    pub(super) fn still_holds_older(&self, link: LinkId, id: InFlowId) -> bool {
        let Some(l) = self.links.get(&link) else { return false };
        let Some(flow) = l.flows_in.get(id) else { return false };
        flow.slots.iter().filter_map(|slot| l.slots.get(*slot)).any(|s| {
            self.step();
            matches!(s.user, SlotUser::Flow(_, round) if round != flow.round)
                && matches!(
                    s.state,
                    SlotState::Held(_) | SlotState::Closed(_) | SlotState::Revoking(AfterRevoke::Deliver(_))
                )
        })
    }

    /// Takes room for all slots of a flow, or for none: with one slot alone the first version would stay and no other could come.
    /// A flow that holds a version of an earlier round begins with what there is, for the next version makes room for the rest.
    /// `true` where nothing is missing any more.
    pub(super) fn try_flow_slots(&mut self, domain: Tenant, link: LinkId, id: InFlowId) -> bool {
        let begins_with_less = self.still_holds_older(link, id);
        let Some(flow) = self.flow_in(link, id) else { return true };
        if !flow.wants_room(domain) {
            return true;
        }
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
        let Some(flow) = self.flow_in(link, id) else { return true };
        flow.missing -= ranges.len();
        let has_all = flow.missing == 0;
        if waits {
            flow.state = InState::Granting;
            flow.fresh.clear();
            flow.granting = 0;
        }
        flow.granting += ranges.len();
        for range in ranges {
            self.open_slot(link, domain, capacity, range, SlotUser::Flow(id, round));
        }
        has_all
    }

    /// A slot of a flow is open: for the first time, or again.
    pub(super) fn flow_granted(&mut self, link: LinkId, id: InFlowId, round: u32, slot: SlotId) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(grant) = l.grant_of(slot) else { return };
        let Some(flow) = l.flows_in.get_mut(id) else { return self.drop_slot(link, slot) };
        let index = flow.index;
        match flow.state {
            _ if round != flow.round => self.drop_slot(link, slot),
            InState::Granting => {
                flow.fresh.push(slot);
                if flow.fresh.len() == flow.granting {
                    flow.state = InState::Ready;
                    self.idle.touch(link, id);
                    let domain = flow.domain;
                    let fresh = std::mem::take(&mut flow.fresh);
                    let slots: Vec<SlotGrant> = fresh.iter().filter_map(|s| l.grant_of(*s)).collect();
                    self.answer_flow(link, index, Ok(slots));
                    self.serve_pool_later(domain);
                }
            }
            InState::Ready => {
                let domain = flow.domain;
                self.send(link, Role::Push, index, Body::BufferIdle { slot: grant });
                self.serve_pool_later(domain);
            }
            InState::Claiming
            | InState::WaitingForRoom
            | InState::Reclaiming
            | InState::Without
            | InState::Recalling => self.drop_slot(link, slot),
        }
    }

    /// Closes the slots that the sender may write to, after it has said that it will not.
    pub(super) fn drop_idle_slots(&mut self, link: LinkId, id: InFlowId) {
        let Some(flow) = self.flow_in(link, id) else { return };
        for slot in flow.slots.iter().copied().collect::<Vec<_>>() {
            self.step();
            let l = self.links.get(&link);
            match l.and_then(|l| l.slots.get(slot)).map(|s| &s.state) {
                // Readers give these back; what has just landed is delivered first.
                Some(SlotState::Held(_) | SlotState::Closed(_) | SlotState::Revoking(AfterRevoke::Deliver(_)))
                | None => {}
                Some(_) => self.drop_slot(link, slot),
            }
        }
    }

    /// What has landed in a slot stays beside newer versions: the range is the tensor's, and the flow gets another slot in its place.
    pub(super) fn keep_slot(&mut self, link: LinkId, id: InFlowId, slot: SlotId, blob: BlobId) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(slot) = l.remove_slot(slot) else { return };
        let domain = slot.domain;
        self.keys.set_source(blob, Source::Pool(Box::new(slot.range)));
        let SlotUser::Flow(of, round) = slot.user else { return };
        let Some(flow) = l.flows_in.get_mut(of).filter(|f| f.round == round && f.state.takes_more()) else { return };
        flow.missing += 1;
        let Some(pool) = self.pools.get(&domain) else { return };
        let want = Want::Flow(link, id);
        if !pool.wants.contains(&want) && (!pool.wants.is_empty() || !self.try_flow_slots(domain, link, id)) {
            self.want(domain, want);
        }
    }

    /// Nobody reads what lies in a slot any more: the sender may write it again.
    pub(super) fn slot_read(&mut self, link: LinkId, id: SlotId) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(slot) = l.slots.get_mut(id) else { return };
        let wanted = match slot.user {
            SlotUser::Flow(flow, round) => {
                l.flows_in.get(flow).is_some_and(|f| f.state == InState::Ready && f.round == round)
            }
            _ => false,
        };
        let pool = self.pools.get(&slot.domain);
        if let (true, Some(pool)) = (wanted, pool) {
            slot.state = SlotState::Granting;
            let range = pool.slice(&slot.range);
            self.actions.push(Post::Grant { link, range, access: GrantAccess::Write, tag: id.to_u64() });
        } else if let Some(slot) = l.remove_slot(id) {
            self.free_range(slot.domain, slot.range);
        }
    }
}
