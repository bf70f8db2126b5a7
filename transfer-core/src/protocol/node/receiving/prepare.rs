//! Landing slots for many tensors at once, by a call of the control plane instead of messages.
//!
//! The workers of a job know before its first step what they will push.
//! [`Command::Reserve`](crate::op::Command::Reserve) gets the slots at that time: the sender's node collects the
//! requests of its workers, the control plane carries them in one `PrepareBuffers` call, and the receiver answers each
//! flow as it would answer BUFFER_REQUEST. From then on, such a flow does not differ from others.
//!
//! A grant is in force before a message that was sent behind it on the same link. The answer to a call takes another
//! path. So the answer waits until the peer has answered a PING that was sent behind the grants.

use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::action::HostAction;
use crate::protocol::control::{BufferAsk, PREPARED_METADATA_ID};
use crate::protocol::node::Node;
use crate::protocol::node::flows::Receiving;
use crate::protocol::transfers::MAX_CALLS_PER_LINK;

impl Node {
    /// Handles a peer's call for slots. [`HostAction::Prepared`] with this `token` follows.
    pub fn prepare_buffers(&mut self, link: LinkId, token: u64, asks: Vec<BufferAsk>) {
        receiving!(self).prepare_buffers(link, token, asks)
    }
}

impl Receiving<'_> {
    /// Handles a peer's call for slots. [`HostAction::Prepared`] with this `token` follows.
    fn prepare_buffers(&mut self, link: LinkId, token: u64, asks: Vec<BufferAsk>) {
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
            calls!(self).end_call(token);
        }
        for ask in asks {
            if self.landing.flow_of(link, ask.flow).is_some() || !self.transfers.call_flow(link, ask.flow, token) {
                let text = format!("flow {:#x} is known already", ask.flow);
                calls!(self).answer_call(token, ask.flow, Err(Failure::new(FailureCode::Invalid, text)));
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
}
