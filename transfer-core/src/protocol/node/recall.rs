//! Slots that are called back: because their flow ends, or because others wait for the room.
//!
//! A slot that a sender may write to does not belong to the pool, however long it lies idle. So if a waiter finds no
//! room, each peer is asked for the idle slots of one flow, the one that was used longest ago. RECALLED comes behind
//! the sender's data, and only then are the slots closed. The versions that the flow has published stay. All peers are
//! asked at once, so a peer that does not answer delays no other.
//!
//! No peer is asked if all idle slots together would not be enough. The waiter then waits for readers, and small flows
//! that have slots continue meanwhile, instead of queueing behind it.

use super::Node;
use crate::fabric::LinkId;
use crate::protocol::ids::FlowAt;
use crate::protocol::landing::{InState, Recalled, Want, slot_bytes};
use crate::protocol::tenant::Tenant;
use crate::time::Time;
use crate::wire::message::{Body, Recall, Role};

impl Node {
    /// Calls back the slots of a flow that ends. They stay open until the sender has said that it no longer writes.
    pub(super) fn recall(&mut self, at: FlowAt) {
        if let Some((index, round)) = self.landing.recall(self.latest, at) {
            self.cut_call(at.0, index);
            self.send(at.0, Role::Push, index, Body::BufferRecall { why: Recall::Ends, round });
        }
    }

    /// Calls back a flow's idle slots, into which its sender does not write. The flow continues.
    pub(super) fn recall_room(&mut self, at: FlowAt) {
        let Some((index, round)) = self.landing.recall_room(self.latest, at) else { return };
        self.send(at.0, Role::Push, index, Body::BufferRecall { why: Recall::Room, round });
        #[cfg(test)]
        self.landing.reclaim_at_once(self.latest, at, &mut self.actions);
    }

    /// Handles the message RECALLED: the sender no longer writes into the slots that were called back.
    pub(super) fn recalled(&mut self, now: Time, link: LinkId, index: u32, why: Recall, round: u32) {
        let Some(id) = self.landing.flow_of(link, index) else { return };
        match self.landing.recalled(self.latest, (link, id), why, round, &mut self.actions) {
            Recalled::Nothing => {}
            Recalled::Ends => self.flow_ended(now, link, index),
            Recalled::Violation => self.violation(link, &format!("RECALLED for flow {index:#x}, which does not end")),
        }
    }

    /// Returns how much room in one piece is certainly enough for a waiter. `None` if it waits for no room.
    pub(super) fn room_for(&self, want: Want) -> Option<u64> {
        match want {
            Want::Pull(link, pull) => slot_bytes(self.transfers.pull(link, pull)?.len_bytes()?),
            Want::Flow(link, flow) => self.landing.flow_room((link, flow)),
            Want::Copy(copying) => self.copies.get(copying)?.needs(),
        }
    }

    /// Returns whether a waiter would have enough room if all idle slots were called back.
    pub(super) fn idle_would_do(&self, domain: Tenant, want: Want) -> bool {
        self.room_for(want).is_some_and(|need| self.landing.idle_would_do(domain, need, want.flow()))
    }

    /// Asks every peer that is not being asked for the idle slots of one of its flows, because a waiter finds no room.
    pub(super) fn reclaim(&mut self, domain: Tenant, want: Want) {
        if self.idle_would_do(domain, want) {
            for flow in self.landing.to_ask(domain, want.flow()) {
                self.recall_room(flow);
            }
        }
    }

    /// Calls back the idle slots of all flows. The senders ask again when they need slots. Returns the number of flows.
    pub fn recall_idle_slots(&mut self) -> usize {
        let all = self.landing.flows_where(|flow| flow.state == InState::Ready);
        for flow in &all {
            self.recall_room(*flow);
        }
        all.len()
    }
}
