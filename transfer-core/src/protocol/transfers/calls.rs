//! Landing slots for many keys at once: what goes out with the next call, and the calls of peers that are being answered.

use super::Transfers;
use crate::fabric::LinkId;
use crate::protocol::control::{BufferAnswer, BufferAsk};

/// The most calls of one peer that are being answered. It has to answer a PING for each.
pub(crate) const MAX_CALLS_PER_LINK: usize = 64;

/// A call of a peer for landing slots that is being answered.
pub(super) struct Call {
    link: LinkId,
    left: usize,
    answers: Vec<BufferAnswer>,
}

/// What follows the answer to one flow of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CallStep {
    /// Others are not answered yet.
    Waits,
    /// The peer has to answer a PING of this index: what was granted is in force then.
    Ping(LinkId, u32),
    /// Nothing was granted: the call can be answered.
    Ends,
}

/// The index of the PING behind the grants of a call.
fn ping_of(token: u64) -> u32 {
    (token & u64::from(u32::MAX)) as u32
}

impl Transfers {
    /// A flow asks for its first slots with the next call.
    pub(crate) fn ask_by_call(&mut self, link: LinkId, ask: BufferAsk) {
        if let Some(l) = self.links.get_mut(&link) {
            l.asks.push(ask);
            if l.asks.len() == 1 {
                self.asking.push(link);
            }
        }
    }

    /// Takes what was collected for calls, by link.
    pub(crate) fn take_asks(&mut self) -> Vec<(LinkId, Vec<BufferAsk>)> {
        let asking = std::mem::take(&mut self.asking).into_iter();
        asking.filter_map(|link| Some((link, std::mem::take(&mut self.links.get_mut(&link)?.asks)))).collect()
    }

    /// How many calls of a peer are being answered.
    pub(crate) fn calls_of(&self, link: LinkId) -> usize {
        self.calls.values().filter(|call| call.link == link).count()
    }

    /// A peer calls for slots for that many flows.
    pub(crate) fn begin_call(&mut self, link: LinkId, token: u64, flows: usize) {
        self.calls.insert(token, Call { link, left: flows, answers: Vec::with_capacity(flows) });
    }

    /// A call concerns this flow. `false`: another one does already.
    pub(crate) fn call_flow(&mut self, link: LinkId, flow: u32, token: u64) -> bool {
        self.links.get_mut(&link).is_some_and(|l| l.called.try_insert(flow, token).is_ok())
    }

    /// The call that asked for this flow's slots, once.
    pub(crate) fn take_call_of(&mut self, link: LinkId, flow: u32) -> Option<u64> {
        self.links.get_mut(&link)?.called.remove(&flow)
    }

    /// A flow of a call is answered.
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

    /// The call whose grants are in force, now that a peer has answered the PING of this index.
    pub(crate) fn call_of_ping(&self, link: LinkId, index: u32) -> Option<u64> {
        let is_it = |(token, call): &(&u64, &Call)| call.link == link && call.left == 0 && ping_of(**token) == index;
        self.calls.iter().find(is_it).map(|(token, _)| *token)
    }

    /// Ends a call. Returns its answers.
    pub(crate) fn end_call(&mut self, token: u64) -> Option<Vec<BufferAnswer>> {
        self.calls.remove(&token).map(|call| call.answers)
    }

    /// The calls of a peer, which are answered although its link is gone.
    pub(crate) fn calls_lost(&self, link: LinkId) -> Vec<u64> {
        self.calls.iter().filter(|(_, call)| call.link == link).map(|(token, _)| *token).collect()
    }

    /// How many calls are being answered.
    #[cfg(test)]
    pub(crate) fn calls(&self) -> usize {
        self.calls.len()
    }
}
