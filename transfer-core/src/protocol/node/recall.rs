//! Slots that are called back: because their flow ends, or because others wait for the room.
//!
//! A slot that a sender may write to is not the pool's, however long it lies idle. So where somebody waits for room, each
//! peer is asked for what it does not write into: one flow at a time, the one that was used least of late. RECALLED comes behind
//! the sender's data; only then are the slots closed. What was published of the flow stays. Every peer is asked at once, so one
//! that does not answer holds nobody up.
//!
//! Nobody is asked where all that lies idle would not be enough. Who waits then waits for readers, and small flows that have their slots
//! go on meanwhile, instead of standing in line behind it.

use super::Node;
use crate::fabric::LinkId;
use crate::protocol::ids::FlowAt;
use crate::protocol::landing::{InState, Recalled, Want, slot_bytes};
use crate::protocol::tenant::Tenant;
use crate::time::Time;
use crate::wire::message::{Body, Recall, Role};

impl Node {
    /// Calls a flow's slots back, for it ends. They stay as they are until the sender has said that it will not write any more.
    pub(super) fn recall(&mut self, at: FlowAt) {
        if let Some((index, round)) = self.landing.recall(self.latest, at) {
            self.cut_call(at.0, index);
            self.send(at.0, Role::Push, index, Body::BufferRecall { why: Recall::Ends, round });
        }
    }

    /// Calls those slots of a flow back that its sender does not write into. The flow goes on.
    pub(super) fn recall_room(&mut self, at: FlowAt) {
        let Some((index, round)) = self.landing.recall_room(self.latest, at) else { return };
        self.send(at.0, Role::Push, index, Body::BufferRecall { why: Recall::Room, round });
        #[cfg(test)]
        self.landing.reclaim_at_once(self.latest, at, &mut self.actions);
    }

    /// RECALLED.
    pub(super) fn recalled(&mut self, now: Time, link: LinkId, index: u32, why: Recall, round: u32) {
        let Some(id) = self.landing.flow_of(link, index) else { return };
        match self.landing.recalled(self.latest, (link, id), why, round, &mut self.actions) {
            Recalled::Nothing => {}
            Recalled::Ends => self.flow_ended(now, link, index),
            Recalled::Violation => self.violation(link, &format!("RECALLED for flow {index:#x}, which does not end")),
        }
    }

    /// How much room in one piece is surely enough for somebody who waits for some. `None` where it waits for none.
    pub(super) fn room_for(&self, want: Want) -> Option<u64> {
        match want {
            Want::Pull(link, pull) => slot_bytes(self.transfers.pull(link, pull)?.len_bytes()?),
            Want::Flow(link, flow) => self.landing.flow_room((link, flow)),
            Want::Copy(copying) => self.copies.get(copying)?.needs(),
        }
    }

    /// Whether there would be room if all that lies idle were called back.
    pub(super) fn idle_would_do(&self, domain: Tenant, want: Want) -> bool {
        self.room_for(want).is_some_and(|need| self.landing.idle_would_do(domain, need, want.flow()))
    }

    /// Somebody waits for room in vain: every peer is asked for what one of its flows does not use.
    pub(super) fn reclaim(&mut self, domain: Tenant, want: Want) {
        if self.idle_would_do(domain, want) {
            for flow in self.landing.to_ask(domain, want.flow()) {
                self.recall_room(flow);
            }
        }
    }

    /// Calls back all slots into which nobody writes, of all flows: they ask again when they need some. Returns of how many.
    pub fn recall_idle_slots(&mut self) -> usize {
        let all = self.landing.flows_where(|flow| flow.state == InState::Ready);
        for flow in &all {
            self.recall_room(*flow);
        }
        all.len()
    }
}
