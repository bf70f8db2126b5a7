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
use super::ids::InFlowId;
use super::node::Node;
use super::pool::{Want, slot_bytes};
use super::push_in::InState;
use crate::fabric::LinkId;
use crate::time::Time;
use crate::wire::message::{Body, Recall, Role};

impl Node {
    /// Calls a flow's slots back, for it ends. They stay as they are until the sender has said that it will not write any more.
    pub(super) fn recall(&mut self, link: LinkId, id: InFlowId) {
        let latest = self.latest;
        let Some(flow) = self.flow_in(link, id) else { return };
        if flow.state != InState::Recalling {
            flow.recalled = latest;
            flow.state = InState::Recalling;
            let (index, domain, round) = (flow.index, flow.domain, flow.round);
            self.idle.touch(link, id);
            self.cut_call(link, index);
            self.send(link, Role::Push, index, Body::BufferRecall { why: Recall::Ends, round });
            self.serve_pool_later(domain);
        }
    }

    /// Calls those slots of a flow back that its sender does not write into. The flow goes on.
    pub(super) fn recall_room(&mut self, link: LinkId, id: InFlowId) {
        let latest = self.latest;
        let Some(flow) = self.flow_in(link, id) else { return };
        flow.recalled = latest;
        flow.state = InState::Reclaiming;
        flow.missing = 0;
        let (index, round) = (flow.index, flow.round);
        self.idle.touch(link, id);
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
        self.idle.touch(link, id);
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
                self.serve_pool_later_for(link, id);
            }
            // The sender asked for others meanwhile, or the flow ends.
            (Recall::Room, _) => {}
        }
    }

    fn serve_pool_later_for(&mut self, link: LinkId, id: InFlowId) {
        if let Some(domain) = self.flow_in(link, id).map(|f| f.domain) {
            self.serve_pool_later(domain);
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
        pool.alloc.free_bytes().saturating_add(self.idle.bytes(domain, want.flow())) >= need
    }

    /// Somebody waits for room in vain: every peer is asked for what one of its flows does not use.
    pub(super) fn reclaim(&mut self, domain: Tenant, want: Want) {
        if self.idle_would_do(domain, want) {
            for (link, id) in self.idle.to_ask(domain, want.flow()) {
                self.recall_room(link, id);
            }
        }
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
