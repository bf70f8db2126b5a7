//! Slots that are called back: because their flow ends, or because others wait for the room.
//!
//! A slot that a sender may write to is not the pool's, however long it lies idle. So where somebody waits for room, each
//! peer is asked for what it does not write into: one flow at a time, the one that was used least of late. RECALLED comes behind
//! the sender's data; only then are the slots closed. What was published of the flow stays. Every peer is asked at once, so one
//! that does not answer holds nobody up.
//!
//! Nobody is asked where all that lies idle would not be enough. Who waits then waits for readers, and small flows that have their slots
//! go on meanwhile, instead of standing in line behind it.

use super::Tenant;
use super::link::{AfterRevoke, SlotState, SlotUser};
use super::node::Node;
use super::pool::{Want, slot_bytes};
use super::push_in::{InFlow, InState};
use super::slab::Id;
use crate::fabric::LinkId;
use crate::time::Time;
use crate::wire::message::{Body, Recall, Role};
use std::collections::BTreeSet;

/// A flow whose sender could give something back: when it was used last, and where it is.
type Spare = (u64, LinkId, Id<InFlow>);

impl Node {
    /// Calls a flow's slots back, for it ends. They stay as they are until the sender has said that it will not write any more.
    pub(super) fn recall(&mut self, link: LinkId, id: Id<InFlow>) {
        let latest = self.latest;
        let Some(flow) = self.flow_in(link, id) else { return };
        if flow.state != InState::Recalling {
            flow.recalled = latest;
            flow.state = InState::Recalling;
            let (index, domain, round) = (flow.index, flow.domain, flow.round);
            self.cut_call(link, index);
            self.send(link, Role::Push, index, Body::BufferRecall { why: Recall::Ends, round });
            self.feed_later(domain);
        }
    }

    /// Calls those slots of a flow back that its sender does not write into. The flow goes on.
    pub(super) fn recall_room(&mut self, link: LinkId, id: Id<InFlow>) {
        let latest = self.latest;
        let Some(flow) = self.flow_in(link, id) else { return };
        flow.recalled = latest;
        flow.state = InState::Reclaiming;
        flow.missing = 0;
        let (index, round) = (flow.index, flow.round);
        self.send(link, Role::Push, index, Body::BufferRecall { why: Recall::Room, round });
        #[cfg(test)]
        if self.config.broken == Some(super::Broken::ReclaimsAtOnce) {
            self.drop_idle_slots(link, id);
        }
    }

    /// RECALLED.
    pub(super) fn recalled(&mut self, now: Time, link: LinkId, index: u32, why: Recall, round: u32) {
        let Some(l) = self.links.get_mut(&link) else { return };
        let Some(id) = l.flow_in_of.get(&index).copied() else { return };
        let Some(flow) = l.flows_in.get_mut(id) else { return };
        match (why, flow.state) {
            (Recall::Ends, InState::Recalling) => self.flow_ended(now, link, index),
            (Recall::Ends, _) => self.violation(link, &format!("RECALLED for flow {index:#x}, which does not end")),
            #[cfg(test)]
            (Recall::Room, InState::WaitingForRoom | InState::Granting | InState::Ready)
                if self.config.broken == Some(super::Broken::MixesRounds) && flow.round != round =>
            {
                flow.state = InState::Without;
                self.drop_idle_slots(link, id);
            }
            (Recall::Room, InState::Reclaiming) if flow.round == round => {
                flow.state = InState::Without;
                self.drop_idle_slots(link, id);
                self.feed_later_for(link, id);
            }
            // The sender asked for others meanwhile, or the flow ends.
            (Recall::Room, _) => {}
        }
    }

    fn feed_later_for(&mut self, link: LinkId, id: Id<InFlow>) {
        if let Some(domain) = self.flow_in(link, id).map(|f| f.domain) {
            self.feed_later(domain);
        }
    }

    /// How much room in one piece is surely enough for somebody who waits for some. `None` where it waits for none.
    pub(super) fn room_for(&self, want: Want) -> Option<u64> {
        match want {
            Want::Pull(link, pull) => {
                let pull = self.links.get(&link)?.pulls.get(pull)?;
                slot_bytes(pull.described.as_ref()?.1.len_bytes())
            }
            Want::Flow(link, flow) => self.flow_room(link, flow),
            Want::Copy(copying) => self.copies.get(copying)?.needs(),
        }
    }

    /// Whether there would be room if all that lies idle were called back.
    pub(super) fn idle_would_do(&self, domain: Tenant, want: Want) -> bool {
        let (Some(pool), Some(need)) = (self.pools.get(&domain), self.room_for(want)) else { return false };
        let slots = self.links.iter().flat_map(|(link, l)| l.slots.iter().map(move |(_, slot)| (*link, l, slot)));
        let idle = slots.filter(|(link, l, slot)| {
            let SlotUser::Flow(id, _) = slot.user else { return false };
            let given = l.flows_in.get(id).is_some_and(|f| matches!(f.state, InState::Ready | InState::Reclaiming));
            let others = want != Want::Flow(*link, id);
            let closing = matches!(slot.state, SlotState::Revoking(AfterRevoke::Free));
            slot.domain == domain && (closing || given && others && matches!(slot.state, SlotState::Granted(_)))
        });
        let idle: u64 = idle.map(|(.., slot)| slot.range.len()).sum();
        pool.alloc.free_bytes().saturating_add(idle) >= need
    }

    /// Somebody waits for room in vain: every peer is asked for what one of its flows does not use.
    pub(super) fn reclaim(&mut self, domain: Tenant, want: Want) {
        if !self.idle_would_do(domain, want) {
            return;
        }
        for (_, link, id) in self.spare(domain, want) {
            if self.links.get(&link).is_some_and(|l| !l.reclaims(domain)) {
                self.recall_room(link, id);
            }
        }
    }

    /// Flows with slots that nobody writes into, those first that were used least of late.
    pub(super) fn spare(&self, domain: Tenant, want: Want) -> Vec<Spare> {
        let mut spare = Vec::new();
        for (link, l) in &self.links {
            let idle = l.slots.iter().filter_map(|(_, slot)| match (slot.user, &slot.state) {
                (SlotUser::Flow(id, _), SlotState::Granted(_)) => Some(id),
                _ => None,
            });
            for id in idle.collect::<BTreeSet<_>>() {
                if let Some(flow) = l.flows_in.get(id)
                    && flow.domain == domain
                    && flow.state == InState::Ready
                    && want != Want::Flow(*link, id)
                {
                    spare.push((flow.used, *link, id));
                }
            }
        }
        spare.sort_unstable();
        spare
    }

    /// Calls back all slots into which nobody writes, of all flows: they ask again when they need some. Returns of how many.
    pub fn recall_idle_slots(&mut self) -> usize {
        let flows = |l: &super::link::Link| l.flows_in.ids(|f| f.state == InState::Ready);
        let all: Vec<_> = self.links.iter().flat_map(|(link, l)| flows(l).into_iter().map(|id| (*link, id))).collect();
        for (link, id) in &all {
            self.recall_room(*link, *id);
        }
        all.len()
    }
}

impl super::link::Link {
    /// Whether a flow of this link was asked for room there and has not answered.
    pub(super) fn reclaims(&self, domain: Tenant) -> bool {
        self.flows_in.iter().any(|(_, f)| f.state == InState::Reclaiming && f.domain == domain)
    }
}
