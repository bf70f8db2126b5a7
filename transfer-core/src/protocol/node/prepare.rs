//! Landing slots for many tensors at once, by a call of the control plane instead of messages.
//!
//! The workers of a job know before its first step what they will push.
//! [`Command::Prepare`](crate::op::Command::Prepare) gets the slots at that time: the sender's node collects the
//! requests of its workers, the control plane carries them in one `PrepareBuffers` call, and the receiver answers each
//! flow as it would answer BUFFER_REQUEST. From then on, such a flow does not differ from others.
//!
//! A grant is in force before a message that was sent behind it on the same link. The answer to a call takes another
//! path. So the answer waits until the peer has answered a PING that was sent behind the grants.

use super::Node;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::action::HostAction;
use crate::protocol::control::Control;
use crate::protocol::control::{BufferAnswer, BufferAsk, MAX_ASKS, PREPARED_METADATA_ID};
use crate::protocol::transfers::{CallStep, MAX_CALLS_PER_LINK};
use crate::time::Time;
use crate::wire::landing::SlotGrant;
use crate::wire::message::{Body, Role};

impl Node {
    // ---- the sender's side ----

    /// Hands the collected requests to the control plane.
    pub(super) fn flush_asks(&mut self) {
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

    /// Handles a peer's answer to a call.
    pub fn buffers_prepared(&mut self, now: Time, link: LinkId, answers: Vec<BufferAnswer>) {
        if self.links.get(link).is_none() {
            return;
        }
        for (flow, answer) in answers {
            self.flow_prepared(now, link, flow, answer);
        }
    }

    /// Ends the flows of a call that brought no answer, because it is unknown what the peer has done. Other flows take
    /// their place.
    pub fn prepare_failed(&mut self, link: LinkId, asks: &[BufferAsk], why: &str) {
        for ask in asks {
            let text = format!("landing slots for key {:?} could not be asked for: {why}", ask.key);
            self.abandon_flow(link, ask.flow, &Failure::new(FailureCode::PeerUnreachable, text));
        }
    }

    // ---- the receiver's side ----

    /// Handles a peer's call for slots. [`HostAction::Prepared`] with this `token` follows.
    pub fn prepare_buffers(&mut self, link: LinkId, token: u64, asks: Vec<BufferAsk>) {
        let gone = Failure::new(FailureCode::PeerLost, "the link over which the tensors were to come is gone");
        if self.links.get(link).is_none() {
            let answers = asks.into_iter().map(|ask| (ask.flow, Err(gone.clone()))).collect();
            self.actions.push(HostAction::Prepared { token, answers });
            return;
        }
        if self.transfers.calls_of(link) >= MAX_CALLS_PER_LINK {
            let text = format!(
                "node {:?} answers at most {MAX_CALLS_PER_LINK} calls of a peer at a time, and each waits until the peer has answered its PING",
                self.config.name
            );
            let busy = Failure::new(FailureCode::Busy, text);
            let answers = asks.into_iter().map(|ask| (ask.flow, Err(busy.clone()))).collect();
            self.actions.push(HostAction::Prepared { token, answers });
            return;
        }
        self.transfers.begin_call(link, token, asks.len());
        if asks.is_empty() {
            self.end_call(token);
        }
        for ask in asks {
            if self.landing.flow_of(link, ask.flow).is_some() || !self.transfers.call_flow(link, ask.flow, token) {
                let text = format!("flow {:#x} is known already", ask.flow);
                self.answer_call(token, ask.flow, Err(Failure::new(FailureCode::Invalid, text)));
                continue;
            }
            self.flow_requested(
                link,
                ask.flow,
                ask.key,
                &ask.target,
                (ask.owner, &ask.tenant),
                PREPARED_METADATA_ID,
                ask.meta,
            );
        }
    }

    /// Answers a request for slots in the way in which it was made: as part of a call, or by message.
    pub(super) fn answer_flow(&mut self, link: LinkId, flow: u32, answer: Result<Vec<SlotGrant>, Failure>) {
        match self.transfers.take_call_of(link, flow) {
            Some(token) => self.answer_call(token, flow, answer),
            None => {
                let body = match answer {
                    Ok(slots) => Body::BufferResponse { slots },
                    Err(failure) => Body::ErrorStatus(failure),
                };
                self.send(link, Role::Push, flow, body);
            }
        }
    }

    /// Answers the call of a flow that ends before its request was answered.
    pub(super) fn cut_call(&mut self, link: LinkId, flow: u32) {
        if let Some(token) = self.transfers.take_call_of(link, flow) {
            let failure = Failure::new(FailureCode::UnknownWorker, "a worker left while landing slots were prepared");
            self.answer_call(token, flow, Err(failure));
        }
    }

    fn answer_call(&mut self, token: u64, flow: u32, answer: Result<Vec<SlotGrant>, Failure>) {
        match self.transfers.answer_call(token, (flow, answer)) {
            CallStep::Waits => {}
            CallStep::Ping(link, index) => self.send(link, Role::Push, index, Body::Ping),
            CallStep::Ends => self.end_call(token),
        }
    }

    /// Handles the message PONG: the grants that were sent before its PING are in force.
    pub(super) fn pong(&mut self, link: LinkId, index: u32) {
        if let Some(token) = self.transfers.call_of_ping(link, index) {
            self.end_call(token);
        }
    }

    fn end_call(&mut self, token: u64) {
        if let Some(answers) = self.transfers.end_call(token) {
            self.actions.push(HostAction::Prepared { token, answers });
        }
    }

    /// Ends the calls of a peer whose link is gone, with the answers that they have.
    pub(super) fn calls_lost(&mut self, link: LinkId) {
        for token in self.transfers.calls_lost(link) {
            self.end_call(token);
        }
    }
}
