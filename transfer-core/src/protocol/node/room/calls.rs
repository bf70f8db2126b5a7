//! Calls for landing slots, at both ends of a link: the requests that go out together, and the answers that are owed to a peer.

use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::action::HostAction;
use crate::protocol::control::{Control, MAX_ASKS};
use crate::protocol::node::flows::Calls;
use crate::protocol::transfers::CallStep;
use crate::wire::landing::SlotGrant;
use crate::wire::message::{Body, Role};

impl Calls<'_> {
    /// Hands the collected requests to the control plane.
    pub(in crate::protocol::node) fn flush_asks(&mut self) {
        for (link, mut asks) in self.transfers.take_asks() {
            let Some(peer) = self.links.peer_of(link).map(|peer| peer.name.clone()) else { continue };
            while !asks.is_empty() {
                let rest = asks.split_off(asks.len().min(MAX_ASKS));
                let peer = peer.clone();
                self.actions.push(HostAction::Control(Control::PrepareBuffers { link, peer, asks }));
                asks = rest;
            }
        }
    }

    /// Answers a request for slots in the way in which it was made: as part of a call, or by message.
    pub(in crate::protocol::node) fn answer_flow(
        &mut self,
        link: LinkId,
        flow: u32,
        answer: Result<Vec<SlotGrant>, Failure>,
    ) {
        match self.transfers.take_call_of(link, flow) {
            Some(token) => self.answer_call(token, flow, answer),
            None => {
                let body = match answer {
                    Ok(slots) => Body::BufferResponse { slots },
                    Err(failure) => Body::ErrorStatus(failure),
                };
                sending!(self).send(link, Role::Push, flow, body);
            }
        }
    }

    /// Answers the call of a flow that ends before its request was answered.
    pub(in crate::protocol::node) fn cut_call(&mut self, link: LinkId, flow: u32) {
        if let Some(token) = self.transfers.take_call_of(link, flow) {
            let failure = Failure::new(FailureCode::UnknownWorker, "a worker left while landing slots were prepared");
            self.answer_call(token, flow, Err(failure));
        }
    }

    pub(in crate::protocol::node) fn answer_call(
        &mut self,
        token: u64,
        flow: u32,
        answer: Result<Vec<SlotGrant>, Failure>,
    ) {
        match self.transfers.answer_call(token, (flow, answer)) {
            CallStep::Waits => {}
            CallStep::Ping(link, index) => sending!(self).send(link, Role::Push, index, Body::Ping),
            CallStep::Ends => self.end_call(token),
        }
    }

    /// Handles the message PONG: the grants that were sent before its PING are in force.
    pub(in crate::protocol::node) fn pong(&mut self, link: LinkId, index: u32) {
        if let Some(token) = self.transfers.call_of_ping(link, index) {
            self.end_call(token);
        }
    }

    pub(in crate::protocol::node) fn end_call(&mut self, token: u64) {
        if let Some(answers) = self.transfers.end_call(token) {
            self.actions.push(HostAction::Prepared { token, answers });
        }
    }

    /// Ends the calls of a peer whose link is gone, with the answers that they have.
    pub(in crate::protocol::node) fn calls_lost(&mut self, link: LinkId) {
        for token in self.transfers.calls_lost(link) {
            self.end_call(token);
        }
    }
}
