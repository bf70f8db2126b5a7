//! Counters and barriers that live at other nodes: requests to peers, and operations on the words of peers.

use super::op::{Outcome, Route, Stage, changes};
use super::{Asked, AskedFor, COUNTERS_PER_NODE, Counters, Effect, OfLink, WORD_BYTES, spoken};
use crate::fabric::{LinkId, WorkId};
use crate::memory::RemoteSlice;
use crate::op::{CounterAsk, CounterPath, Failure, FailureCode, RosterAnswer};
use crate::protocol::action::Post;
use crate::protocol::ids::{CounterCallId, OperationId};
use crate::protocol::rules::Broken;
use crate::protocol::slab::Id;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use crate::time::Time;
use hashbrown::HashSet;

/// A counter of the peer that this node has opened.
pub(super) struct Opened {
    identity: u64,
    /// The tenants for which the home has opened the counter.
    tenants: Vec<Tenant>,
    /// The granted word. `None` unless the devices of both sides can operate on words.
    word: Option<RemoteSlice>,
}

/// A request of this node to a peer. It lives until the peer or the device has sent its last answer to it.
pub(super) struct Call {
    /// `None` once the operation has ended. The call then only waits for the answer.
    op: Option<OperationId>,
    key: Key,
    tenant: Tenant,
    state: CallState,
    posted: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CallState {
    /// COUNTER_OPEN was sent.
    Opening,
    /// COUNTER_OP was sent.
    Asked,
    /// The device operates on the peer's word.
    Posted,
    /// BARRIER_WAIT or ROSTER_ASK was sent.
    Waiting,
    /// CANCEL was sent after it.
    Cancelling,
}

impl AskedFor {
    /// The state of a call that was sent for this request.
    fn state(&self) -> CallState {
        match self {
            AskedFor::Open { .. } => CallState::Opening,
            AskedFor::Wait { .. } | AskedFor::Roster(_) => CallState::Waiting,
            AskedFor::Operate { .. } => CallState::Asked,
        }
    }
}

impl Call {
    /// Whether the call asks only to open the counter.
    pub(super) fn is_opening(&self) -> bool {
        self.state == CallState::Opening
    }

    /// Detaches the call from its operation, which has ended. Returns whether CANCEL must be sent; the peer answers it
    /// with CANCELLED.
    pub(super) fn give_up(&mut self) -> bool {
        self.op = None;
        let waits = self.state == CallState::Waiting;
        if waits {
            self.state = CallState::Cancelling;
        }
        waits
    }
}

impl Counters {
    /// Handles a new link: the operation asked for a link to this node, and the link is up.
    pub(crate) fn connected(&mut self, now: Time, id: OperationId, link: LinkId) {
        if self.ops.get(&id).is_some_and(|op| matches!(op.stage, Stage::Connecting(_))) {
            self.call_home(now, id, link);
        }
    }

    /// Sends the operation to the home of its counter or barrier, or has the device operate on the granted word.
    fn call_home(&mut self, now: Time, id: OperationId, link: LinkId) {
        let Some(op) = self.ops.get(&id) else { return };
        let (key, tenant, ask) = (op.key.clone(), op.tenant, op.ask.clone());
        let Some(l) = self.links.get(&link) else { return };
        let limit = self.requests_per_link;
        if l.calls.len() >= limit || !l.calls.has_short_room() {
            let text = format!("{limit} counter requests to node {:?} are under way, the limit", l.peer.name);
            return self.fail(id, Failure::new(FailureCode::Busy, text));
        }
        if let Err(failure) = self.tenants.vouched(&self.name, (&l.peer.name, &l.peer.vouches), tenant) {
            return self.fail(id, failure);
        }
        let opened = l.opened.get(&key).filter(|opened| opened.tenants.contains(&tenant));
        match (ask, opened) {
            (CounterAsk::Wait { members }, _) => self.call(now, id, link, AskedFor::Wait { members }),
            (CounterAsk::Roster(ask), _) => {
                self.recite_to(link, &key);
                self.call(now, id, link, AskedFor::Roster(ask));
            }
            (CounterAsk::Open, Some(opened)) => {
                let outcome = Outcome::Opened(l.peer.name.clone(), opened.identity);
                self.end(id, outcome);
            }
            (CounterAsk::Operate { identity, .. }, Some(opened)) if opened.identity != identity => {
                let lost = Counters::lost(&key, &l.peer.name);
                self.fail(id, lost);
            }
            (CounterAsk::Operate { op, .. }, Some(Opened { word: Some(word), .. })) => {
                let remote = *word;
                if let Some(call) = self.begin_call(now, id, link, CallState::Posted) {
                    self.act(Post::Atomic { link, work: WorkId(call.to_u64()), remote, op });
                }
            }
            (CounterAsk::Open, None) => {
                let wants_grant = l.atomics;
                self.call(now, id, link, AskedFor::Open { wants_grant });
            }
            (CounterAsk::Operate { .. }, None) if l.atomics => {
                self.call(now, id, link, AskedFor::Open { wants_grant: true });
            }
            (CounterAsk::Operate { identity, op, .. }, _) => {
                self.call(now, id, link, AskedFor::Operate { identity, op });
            }
        }
    }

    fn begin_call(&mut self, now: Time, id: OperationId, link: LinkId, state: CallState) -> Option<CounterCallId> {
        let op = self.ops.get_mut(&id)?;
        let (key, tenant) = (op.key.clone(), op.tenant);
        let calls = &mut self.links.get_mut(&link)?.calls;
        let call = calls.insert(Call { op: Some(id), key, tenant, state, posted: now });
        op.stage = Stage::Called(link, call);
        Some(call)
    }

    fn call(&mut self, now: Time, id: OperationId, link: LinkId, what: AskedFor) {
        let Some(call) = self.begin_call(now, id, link, what.state()) else { return };
        let Some(op) = self.ops.get(&id) else { return };
        let asked = Asked { key: op.key.clone(), tenant: op.tenant, what };
        self.effects.push(Effect::Ask(link, call.short(), asked));
    }

    /// Returns the call that a peer answers by this index. An index of no call in a `right` state is a violation.
    fn call_of(&mut self, link: LinkId, index: u32, what: &str, right: &[CallState]) -> Option<CounterCallId> {
        let calls = &self.links.get(&link)?.calls;
        let found = calls.lengthen(index).filter(|id| calls.get(*id).is_some_and(|c| right.contains(&c.state)));
        if found.is_none() {
            self.violation(link, format!("{what} for counter request {index:#x}, which does not wait for that"));
        }
        found
    }

    fn forget_call(&mut self, link: LinkId, id: CounterCallId) -> Option<Call> {
        self.links.get_mut(&link)?.calls.remove(id)
    }

    fn is_cancelling(&self, link: LinkId, id: CounterCallId) -> bool {
        let call = self.links.get(&link).and_then(|l| l.calls.get(id));
        call.is_some_and(|call| call.state == CallState::Cancelling)
    }

    /// Handles the message COUNTER_OPENED.
    pub(crate) fn opened(&mut self, now: Time, link: LinkId, index: u32, identity: u64, word: Option<RemoteSlice>) {
        let Some(id) = self.call_of(link, index, "COUNTER_OPENED", &[CallState::Opening]) else { return };
        if let Some(word) = word.filter(|w| !w.address.is_multiple_of(WORD_BYTES) || w.len != WORD_BYTES) {
            return self.violation(link, format!("COUNTER_OPENED with the word {word:?}, which is none"));
        }
        let Some(call) = self.forget_call(link, id) else { return };
        let Some(l) = self.links.get_mut(&link) else { return };
        let word = word.filter(|_| l.atomics);
        let opened = l.opened.entry(call.key);
        let opened = opened.or_insert_with(|| Opened { identity, tenants: Vec::new(), word });
        if opened.identity != identity {
            opened.tenants.clear();
        }
        (opened.identity, opened.word) = (identity, word);
        if !opened.tenants.contains(&call.tenant) {
            opened.tenants.push(call.tenant);
        }
        if l.opened.len() > COUNTERS_PER_NODE as usize {
            return self.violation(link, format!("it has opened more than {COUNTERS_PER_NODE} counters"));
        }
        // The operation can now send its real request.
        if let Some(op) = call.op {
            self.call_home(now, op, link);
        }
    }

    /// Handles the message COUNTER_RESULT.
    pub(crate) fn result(&mut self, link: LinkId, index: u32, old: u64) {
        let Some(id) = self.call_of(link, index, "COUNTER_RESULT", &[CallState::Asked]) else { return };
        self.call_counted(link, id, old, CounterPath::Message);
    }

    /// Handles a completion of the device: it has operated on a word of the peer.
    pub(crate) fn atomic_done(&mut self, link: LinkId, work: WorkId, old: u64) {
        self.call_counted(link, Id::from_u64(work.0), old, CounterPath::OneSided);
    }

    /// Handles a refusal of the device: it no longer reaches the peer, but the link does. Asks the home by message
    /// instead.
    pub(crate) fn atomic_refused(&mut self, link: LinkId, work: WorkId) {
        let Some(call) = self.forget_call(link, Id::from_u64(work.0)) else { return };
        let Some((id, op)) = call.op.and_then(|id| Some((id, self.ops.get(&id)?))) else { return };
        if let CounterAsk::Operate { identity, op, .. } = op.ask {
            self.call(call.posted, id, link, AskedFor::Operate { identity, op });
        }
    }

    fn call_counted(&mut self, link: LinkId, id: CounterCallId, old: u64, path: CounterPath) {
        let Some(call) = self.forget_call(link, id) else { return };
        let Some(fabric) = self.links.get(&link).map(|l| l.kind) else { return };
        if let Some(op) = call.op {
            self.end(op, Outcome::Counted(old, Route { path, fabric, posted: call.posted }));
        }
    }

    /// Handles the message BARRIER_RELEASED.
    pub(crate) fn released(&mut self, link: LinkId, index: u32, round: u64, leader: bool) {
        let right = [CallState::Waiting, CallState::Cancelling];
        let Some(id) = self.call_of(link, index, "BARRIER_RELEASED", &right) else { return };
        if self.is_cancelling(link, id) {
            // CANCELLED is still to come.
            return;
        }
        let Some(fabric) = self.links.get(&link).map(|l| l.kind) else { return };
        let Some(call) = self.forget_call(link, id) else { return };
        if let Some(op) = call.op {
            let route = Route { path: CounterPath::Message, fabric, posted: call.posted };
            self.end(op, Outcome::Released(round, leader, route));
        }
    }

    /// Handles the message ROSTER_ANSWER.
    pub(crate) fn roster_answered(&mut self, link: LinkId, index: u32, answer: RosterAnswer) {
        let right = [CallState::Waiting, CallState::Cancelling];
        let Some(id) = self.call_of(link, index, "ROSTER_ANSWER", &right) else { return };
        if self.is_cancelling(link, id) {
            // CANCELLED is still to come.
            return;
        }
        let Some(call) = self.forget_call(link, id) else { return };
        if let Some(op) = call.op {
            self.end(op, Outcome::Roster(answer));
        }
    }

    /// Handles the message ERROR_STATUS: the peer did not carry out the request.
    pub(crate) fn refused(&mut self, now: Time, link: LinkId, index: u32, failure: Failure) {
        use CallState::{Asked, Cancelling, Opening, Waiting};
        let right = [Opening, Asked, Waiting, Cancelling];
        let Some(id) = self.call_of(link, index, "ERROR_STATUS", &right) else { return };
        if self.is_cancelling(link, id) {
            return;
        }
        let Some(call) = self.forget_call(link, id) else { return };
        let Some(l) = self.links.get_mut(&link) else { return };
        let home = l.peer.name.clone();
        if matches!(failure.code, FailureCode::NotOwner | FailureCode::CounterLost) {
            l.opened.remove(&call.key);
            self.claims.forget_wrong(&call.key, &home);
            self.home_lost(now, link, Some(&call.key));
        }
        let Some((id, op)) = call.op.and_then(|id| Some((id, self.ops.get(&id)?))) else { return };
        match (failure.code, &op.ask) {
            (FailureCode::NotOwner, CounterAsk::Operate { .. }) => self.fail(id, Counters::lost(&call.key, &home)),
            // The directory may know another home by now.
            (FailureCode::NotOwner, _) => self.find(now, id),
            _ => self.fail(id, failure),
        }
    }

    /// Handles the message COUNTER_ENDED: the counter has lost its name. Its grant is of no further use.
    pub(crate) fn ended_there(&mut self, now: Time, link: LinkId, key: &Key) {
        if let Some(l) = self.links.get_mut(&link) {
            l.opened.remove(key);
        }
        self.forget_home_of(key);
        self.home_lost(now, link, Some(key));
    }

    /// Handles the message CANCELLED, which follows every other answer to the call.
    pub(crate) fn cancelled(&mut self, link: LinkId, index: u32) {
        if let Some(id) = self.call_of(link, index, "CANCELLED", &[CallState::Cancelling]) {
            self.forget_call(link, id);
        }
    }

    /// Handles the loss of a link. `unsent` holds the requests that were never sent; the peer has not carried them out.
    /// The other requests that change something have an unknown outcome.
    pub(crate) fn link_down(&mut self, now: Time, link: LinkId, unsent: &HashSet<u32>, why: &str) {
        let Some(OfLink { peer, mut calls, serves, .. }) = self.links.remove(&link) else { return };
        self.words.forget_peer(link);
        let mut serves: Vec<_> = serves.into_iter().collect();
        serves.sort_unstable_by_key(|(index, _)| *index);
        for (index, serve) in serves {
            self.serve_gone(link, index, &serve);
        }
        self.claims.forget_node(&peer.name);
        self.home_lost(now, link, None);
        for id in calls.ids(|_| true) {
            let Some(call) = calls.remove(id) else { continue };
            let Some((op, ask)) = call.op.and_then(|id| Some((id, &self.ops.get(&id)?.ask))) else { continue };
            let was_sent = !unsent.contains(&id.short()) && !self.rules.breaks(Broken::DeniesLostAdds);
            let said = call.state != CallState::Opening && was_sent;
            let failure = call_lost(&call.key, ask, &peer.name, said, why);
            self.fail(op, failure);
        }
    }
}

/// Returns the failure of a worker's request whose link was lost. `said`: the peer may have received the request.
fn call_lost(key: &Key, ask: &CounterAsk, peer: &Name, said: bool, why: &str) -> Failure {
    let what = spoken(key);
    let lost = format!("the link to node {peer:?}, the home of {what}, was lost: {why}");
    match ask {
        CounterAsk::Wait { .. } if said => Failure::new(
            FailureCode::OutcomeUnknown,
            format!("{lost}; this arrival is withdrawn, unless its round was complete before"),
        ),
        ask if said && changes(ask) => {
            Failure::new(FailureCode::OutcomeUnknown, format!("{lost}; {what} may have been changed, or not"))
        }
        _ => Failure::new(FailureCode::PeerLost, format!("{lost}; nothing was changed")),
    }
}
