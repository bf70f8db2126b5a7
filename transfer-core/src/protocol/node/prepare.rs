//! Landing slots for many tensors at once, by a call of the control plane instead of messages.
//!
//! Before the first step of a job its workers know what they will push. [`Command::Prepare`](crate::op::Command::Prepare) gets the
//! slots then: the sender's node collects what its workers ask for, the control plane carries it in one `PrepareBuffers` call, and
//! the receiver answers each flow as it would answer BUFFER_REQUEST. From then on a flow does not remember how it began.
//!
//! A grant is in force before what is sent behind it over the same link, and the answer to a call goes another way. So it waits
//! until the peer has answered a PING that was sent behind the grants.

use super::Node;
use super::link::Call;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::action::HostAction;
use crate::protocol::control::Control;
use crate::protocol::control::{BufferAnswer, BufferAsk, MAX_ASKS, PREPARED_METADATA_ID};
use crate::time::Time;
use crate::wire::landing::SlotGrant;
use crate::wire::message::{Body, Role};

/// The most calls of one peer that are being answered. It has to answer a PING for each.
pub(crate) const MAX_CALLS_PER_LINK: usize = 64;

/// The index of the PING behind the grants of a call.
fn ping_of(token: u64) -> u32 {
    (token & u64::from(u32::MAX)) as u32
}

impl Node {
    // ---- the sender's side ----

    /// Notes that a flow asks for its first slots with the next call.
    pub(super) fn ask_by_call(&mut self, link: LinkId, ask: BufferAsk) {
        if let Some(l) = self.links.get_mut(&link) {
            l.slot_calls.asks.push(ask);
            if l.slot_calls.asks.len() == 1 {
                self.asking.push(link);
            }
        }
    }

    /// Hands what was collected to the control plane.
    pub(super) fn flush_asks(&mut self) {
        for link in std::mem::take(&mut self.asking) {
            let Some(l) = self.links.get_mut(&link) else { continue };
            let peer = l.peer.name.clone();
            let mut asks = std::mem::take(&mut l.slot_calls.asks);
            while !asks.is_empty() {
                let rest = asks.split_off(asks.len().min(MAX_ASKS));
                let peer = peer.clone();
                self.actions.push(HostAction::Control(Control::PrepareBuffers { link, peer, asks }));
                asks = rest;
            }
        }
    }

    /// The peer answered a call.
    pub fn buffers_prepared(&mut self, now: Time, link: LinkId, answers: Vec<BufferAnswer>) {
        if !self.links.contains_key(&link) {
            return;
        }
        for (flow, answer) in answers {
            self.flow_prepared(now, link, flow, answer);
        }
    }

    /// A call brought no answer, and nobody knows what the peer has done: its flows end, and others take their place.
    pub fn prepare_failed(&mut self, link: LinkId, asks: &[BufferAsk], why: &str) {
        for ask in asks {
            let text = format!("landing slots for key {:?} could not be asked for: {why}", ask.key);
            self.abandon_flow(link, ask.flow, &Failure::new(FailureCode::PeerUnreachable, text));
        }
    }

    // ---- the receiver's side ----

    /// A peer calls for slots. [`HostAction::Prepared`] with this `token` follows.
    pub fn prepare_buffers(&mut self, link: LinkId, token: u64, asks: Vec<BufferAsk>) {
        let gone = Failure::new(FailureCode::PeerLost, "the link over which the tensors were to come is gone");
        if !self.links.contains_key(&link) {
            let answers = asks.into_iter().map(|ask| (ask.flow, Err(gone.clone()))).collect();
            self.actions.push(HostAction::Prepared { token, answers });
            return;
        }
        if self.calls.values().filter(|call| call.link == link).count() >= MAX_CALLS_PER_LINK {
            let text = format!(
                "node {:?} answers at most {MAX_CALLS_PER_LINK} calls of a peer at a time, and each waits until the peer has answered its PING",
                self.config.name
            );
            let busy = Failure::new(FailureCode::Busy, text);
            let answers = asks.into_iter().map(|ask| (ask.flow, Err(busy.clone()))).collect();
            self.actions.push(HostAction::Prepared { token, answers });
            return;
        }
        self.calls.insert(token, Call { link, left: asks.len(), answers: Vec::with_capacity(asks.len()) });
        if asks.is_empty() {
            self.end_call(token);
        }
        for ask in asks {
            let Some(l) = self.links.get_mut(&link) else { return };
            if self.landing.flow_of(link, ask.flow).is_some() || l.slot_calls.answering.contains_key(&ask.flow) {
                let text = format!("flow {:#x} is known already", ask.flow);
                self.answer_call(token, ask.flow, Err(Failure::new(FailureCode::Invalid, text)));
                continue;
            }
            l.slot_calls.answering.insert(ask.flow, token);
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

    /// Answers a request for slots the way it was made.
    pub(super) fn answer_flow(&mut self, link: LinkId, flow: u32, answer: Result<Vec<SlotGrant>, Failure>) {
        match self.links.get_mut(&link).and_then(|l| l.slot_calls.answering.remove(&flow)) {
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

    /// The flow ends before its request was answered.
    pub(super) fn cut_call(&mut self, link: LinkId, flow: u32) {
        if let Some(token) = self.links.get_mut(&link).and_then(|l| l.slot_calls.answering.remove(&flow)) {
            let failure = Failure::new(FailureCode::UnknownWorker, "a worker left while landing slots were prepared");
            self.answer_call(token, flow, Err(failure));
        }
    }

    fn answer_call(&mut self, token: u64, flow: u32, answer: Result<Vec<SlotGrant>, Failure>) {
        let Some(call) = self.calls.get_mut(&token) else { return };
        call.answers.push((flow, answer));
        call.left = call.left.saturating_sub(1);
        if call.left > 0 {
            return;
        }
        let link = call.link;
        match call.answers.iter().any(|(_, answer)| answer.is_ok()) {
            true => self.send(link, Role::Push, ping_of(token), Body::Ping),
            false => self.end_call(token),
        }
    }

    /// PONG: what was granted before its PING is in force.
    pub(super) fn pong(&mut self, link: LinkId, index: u32) {
        let is_it = |(token, call): &(&u64, &Call)| call.link == link && call.left == 0 && ping_of(**token) == index;
        if let Some(token) = self.calls.iter().find(is_it).map(|(token, _)| *token) {
            self.end_call(token);
        }
    }

    fn end_call(&mut self, token: u64) {
        if let Some(Call { answers, .. }) = self.calls.remove(&token) {
            self.actions.push(HostAction::Prepared { token, answers });
        }
    }

    /// The link is gone: what its peer called for is answered with that.
    pub(super) fn calls_lost(&mut self, link: LinkId) {
        let lost: Vec<u64> = self.calls.iter().filter(|(_, call)| call.link == link).map(|(token, _)| *token).collect();
        for token in lost {
            self.end_call(token);
        }
    }
}
