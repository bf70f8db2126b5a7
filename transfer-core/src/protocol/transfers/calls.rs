//! Calls for landing slots of many flows at once: the requests collected for the next call, and the open calls of
//! peers.

use super::Transfers;
use crate::fabric::LinkId;
use crate::protocol::control::{BufferAnswer, BufferAsk};

/// The most calls of one peer that may be open at a time. A call with grants stays open until the peer answers its
/// PING.
pub(crate) const MAX_CALLS_PER_LINK: usize = 64;

/// A peer's call for landing slots that is not answered yet.
pub(super) struct Call {
    link: LinkId,
    left: usize,
    answers: Vec<BufferAnswer>,
}

/// The step that follows the answer to one flow of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallStep {
    /// Other flows of the call are not answered yet.
    Waits,
    /// The peer must answer a PING with this index. Everything that the call granted is in force then.
    Ping(LinkId, u32),
    /// Nothing was granted. The call can be answered now.
    Ends,
}

/// Returns the index of the PING that follows the grants of a call.
fn ping_of(token: u64) -> u32 {
    (token & u64::from(u32::MAX)) as u32
}

impl Transfers {
    /// Adds a flow's request for its first slots to the next call.
    pub(crate) fn ask_by_call(&mut self, link: LinkId, ask: BufferAsk) {
        if let Some(l) = self.links.get_mut(&link) {
            l.asks.push(ask);
            if l.asks.len() == 1 {
                self.asking.push(link);
            }
        }
    }

    /// Takes the requests that were collected for calls, by link.
    pub(crate) fn take_asks(&mut self) -> Vec<(LinkId, Vec<BufferAsk>)> {
        let asking = std::mem::take(&mut self.asking).into_iter();
        asking.filter_map(|link| Some((link, std::mem::take(&mut self.links.get_mut(&link)?.asks)))).collect()
    }

    /// Returns the number of a peer's open calls.
    pub(crate) fn calls_of(&self, link: LinkId) -> usize {
        self.calls.values().filter(|call| call.link == link).count()
    }

    /// Begins a peer's call for the slots of `flows` flows.
    pub(crate) fn begin_call(&mut self, link: LinkId, token: u64, flows: usize) {
        self.calls.insert(token, Call { link, left: flows, answers: Vec::with_capacity(flows) });
    }

    /// Binds a flow to the call that asks for its slots. Returns `false` if another call already asks for them.
    pub(crate) fn call_flow(&mut self, link: LinkId, flow: u32, token: u64) -> bool {
        self.links.get_mut(&link).is_some_and(|l| l.called.try_insert(flow, token).is_ok())
    }

    /// Takes the call that asked for this flow's slots. The flow is no longer bound to it.
    pub(crate) fn take_call_of(&mut self, link: LinkId, flow: u32) -> Option<u64> {
        self.links.get_mut(&link)?.called.remove(&flow)
    }

    /// Adds the answer to one flow of a call.
    pub(crate) fn answer_call(&mut self, token: u64, answer: BufferAnswer) -> CallStep {
        let Some(call) = self.calls.get_mut(&token) else { return CallStep::Waits };
        call.answers.push(answer);
        call.left = call.left.saturating_sub(1);
        let is_granted = |(_, answer): &BufferAnswer| answer.is_ok();
        match (call.left, call.answers.iter().any(is_granted)) {
            (0, true) => CallStep::Ping(call.link, ping_of(token)),
            (0, false) => CallStep::Ends,
            _ => CallStep::Waits,
        }
    }

    /// Returns the call whose grants are in force, now that the peer has answered the PING with this index.
    pub(crate) fn call_of_ping(&self, link: LinkId, index: u32) -> Option<u64> {
        let is_it = |(token, call): &(&u64, &Call)| call.link == link && call.left == 0 && ping_of(**token) == index;
        self.calls.iter().find(is_it).map(|(token, _)| *token)
    }

    /// Ends a call. Returns its answers.
    pub(crate) fn end_call(&mut self, token: u64) -> Option<Vec<BufferAnswer>> {
        self.calls.remove(&token).map(|call| call.answers)
    }

    /// Returns the open calls of a peer whose link is gone. They are still answered.
    pub(crate) fn calls_lost(&self, link: LinkId) -> Vec<u64> {
        self.calls.iter().filter(|(_, call)| call.link == link).map(|(token, _)| *token).collect()
    }

    /// Returns the number of open calls.
    #[cfg(test)]
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }
}
