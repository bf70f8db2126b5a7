//! Slots that are called back: because their flow ends, or because others wait for the room.
//!
//! A slot that a sender may write to does not belong to the pool, however long it lies idle. So if a waiter finds no
//! room, each peer is asked for the idle slots of one flow, the one that was used longest ago. RECALLED comes behind
//! the sender's data, and only then are the slots closed. The versions that the flow has published stay. All peers are
//! asked at once, so a peer that does not answer delays no other.
//!
//! No peer is asked if all idle slots together would not be enough. The waiter then waits for readers, and small flows
//! that have slots continue meanwhile, instead of queueing behind it.

use crate::fabric::LinkId;
use crate::op::Failure;
use crate::protocol::ids::{FlowAt, InFlowId, SessionId};
use crate::protocol::keys::Landed;
use crate::protocol::landing::{InState, Want, slot_bytes};
use crate::protocol::node::Node;
use crate::protocol::node::flows::{Needs, Room};
use crate::protocol::rules::Broken;
use crate::protocol::snapshot::Page;
use crate::protocol::tenant::Tenant;
use crate::wire::message::{Body, Recall, Role};

impl Node {
    /// Calls back the idle landing slots of one tenant, or of all tenants. Their senders ask again when they need
    /// slots. One call goes through a bounded number of flows. The page has one entry for each flow that is called
    /// back: the capacity of one of its slots in bytes.
    pub fn evict(&mut self, domain: Option<Tenant>, from: u64) -> Page<u64> {
        room!(self).evict(domain, from)
    }

    /// Calls back the idle slots of all flows. The senders ask again when they need slots. Returns the number of flows.
    pub fn recall_idle_slots(&mut self) -> usize {
        room!(self).recall_idle_slots()
    }
}

impl Room<'_> {
    /// Calls back the idle landing slots of one tenant, or of all tenants. Their senders ask again when they need
    /// slots. One call goes through a bounded number of flows. The page has one entry for each flow that is called
    /// back: the capacity of one of its slots in bytes.
    fn evict(&mut self, domain: Option<Tenant>, from: u64) -> Page<u64> {
        let (mut entries, mut steps) = (Vec::new(), 0);
        let (first, begin) = (from >> 32, usize::try_from(from & u64::from(u32::MAX)).unwrap_or(usize::MAX));
        let mut found: Vec<FlowAt> = Vec::new();
        let mut next = None;
        'links: for (link, flows) in self.landing.flows(LinkId(u32::try_from(first).unwrap_or(u32::MAX))) {
            steps += 1;
            let begin = if u64::from(link.0) == first { begin } else { 0 };
            for (place, flow) in flows.places(begin) {
                if steps >= Page::<u64>::MAX_STEPS {
                    next = Some(u64::from(link.0) << 32 | place as u64);
                    break 'links;
                }
                steps += 1;
                let Some((id, flow)) = flow else { continue };
                if flow.state == InState::Ready && domain.is_none_or(|d| d == flow.domain) {
                    found.push((link, id));
                    entries.push(flow.capacity);
                }
            }
        }
        for flow in found {
            self.recall_room(flow);
        }
        Page { entries, next }
    }

    /// Refuses a flow that does not get its key. A flow whose slots are already called back ends with RECALLED instead.
    pub(in crate::protocol::node) fn refuse_flow(&mut self, link: LinkId, id: InFlowId, failure: Failure) {
        let Some(flow) = self.landing.refuse_flow((link, id)) else { return };
        calls!(self).answer_flow(link, flow.index, Err(failure));
        self.keys.tidy_key(&flow.key, self.actions);
    }

    /// Calls back the slots of the flow by which an ended key landed here.
    pub(in crate::protocol::node) fn landed_key_ended(&mut self, landed: &Landed) {
        if let Some(flow) = landed.flow {
            self.recall(flow);
        }
    }

    /// Calls back the slots of all flows to a worker of this node that is gone or has lost its name.
    pub(in crate::protocol::node) fn flows_in_target_gone(&mut self, session: SessionId) {
        for flow in self.landing.flows_where(|flow| flow.target == session) {
            self.recall(flow);
        }
    }

    /// Calls back the slots of a flow that ends. They stay open until the sender has said that it no longer writes.
    pub(in crate::protocol::node) fn recall(&mut self, at: FlowAt) {
        if let Some((index, round)) = self.landing.recall(self.common.latest, at) {
            calls!(self).cut_call(at.0, index);
            sending!(self).send(at.0, Role::Push, index, Body::BufferRecall { why: Recall::Ends, round });
        }
    }

    /// Calls back a flow's idle slots, into which its sender does not write. The flow continues.
    fn recall_room(&mut self, at: FlowAt) {
        let Some((index, round)) = self.landing.recall_room(self.common.latest, at) else { return };
        sending!(self).send(at.0, Role::Push, index, Body::BufferRecall { why: Recall::Room, round });
        if self.config.rules.breaks(Broken::ReclaimsAtOnce) {
            self.landing.drop_idle_slots(self.common.latest, at, self.actions);
        }
    }

    /// Asks every peer that is not being asked for the idle slots of one of its flows, because a waiter finds no room.
    pub(in crate::protocol::node) fn reclaim(&mut self, domain: Tenant, want: Want) {
        if needs!(self).idle_would_do(domain, want) {
            for flow in self.landing.to_ask(domain, want.flow()) {
                self.recall_room(flow);
            }
        }
    }

    /// Calls back the idle slots of all flows. The senders ask again when they need slots. Returns the number of flows.
    pub(in crate::protocol::node) fn recall_idle_slots(&mut self) -> usize {
        let all = self.landing.flows_where(|flow| flow.state == InState::Ready);
        for flow in &all {
            self.recall_room(*flow);
        }
        all.len()
    }
}

impl Needs<'_> {
    /// Returns how much room in one piece is certainly enough for a waiter. `None` if it waits for no room.
    pub(in crate::protocol::node) fn room_for(&self, want: Want) -> Option<u64> {
        match want {
            Want::Pull(link, pull) => slot_bytes(self.transfers.pull(link, pull)?.pool_bytes()?),
            Want::Flow(link, flow) => self.landing.flow_room((link, flow)),
            Want::Copy(copying) => self.copies.get(copying)?.needs(),
        }
    }

    /// Returns whether a waiter would have enough room if all idle slots were called back.
    pub(in crate::protocol::node) fn idle_would_do(&self, domain: Tenant, want: Want) -> bool {
        self.room_for(want).is_some_and(|need| self.landing.idle_would_do(domain, need, want.flow()))
    }
}
