//! Operations of workers on counters and barriers.

use super::away::Call;
use super::barrier::{Barrier, Waiter};
use super::claims::Entry;
use super::{Counters, Effect, spoken};
use crate::fabric::{AtomicOp, FabricKind, LinkId};
use crate::op::{CounterAsk, CounterPath, Failure, FailureCode, RosterAnswer, RosterAsk};
use crate::protocol::ids::{CounterCallId, OperationId, RunningId};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use crate::time::Time;
use crate::wire::message::Body;
use std::time::Duration;

/// An operation of a worker that has not ended.
pub(super) struct Op {
    pub(super) key: Key,
    /// The tenant that asks.
    pub(super) tenant: Tenant,
    pub(super) ask: CounterAsk,
    pub(super) stage: Stage,
}

/// The event that an operation waits for.
#[derive(Clone)]
pub(super) enum Stage {
    /// The directory's answer to the claim.
    Claiming,
    /// A link to that node.
    Connecting(Name),
    /// The answer of the home at the other end of that link.
    Called(LinkId, CounterCallId),
    /// The device that operates on words of this node.
    Running(RunningId),
    /// The other members of a barrier that lives here, or other ranks.
    Arrived,
}

/// The path and the fabric by which an operation was carried out, and when it was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) path: CounterPath,
    pub(crate) fabric: FabricKind,
    pub(crate) posted: Time,
}

/// The outcome of an operation that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A counter was opened: its home and its identity.
    Opened(Name, u64),
    /// A counter was read or changed: its value before the operation.
    Counted(u64, Route),
    /// A barrier was released: its round, and whether this waiter was the last to arrive.
    Released(u64, bool, Route),
    /// A roster has answered.
    Roster(RosterAnswer),
}

/// Whether an operation may change its word, or counts as an arrival.
pub(super) fn changes(ask: &CounterAsk) -> bool {
    // What changes a roster can be asked again.
    !matches!(ask, CounterAsk::Open | CounterAsk::Operate { op: AtomicOp::Load, .. } | CounterAsk::Roster(_))
}

impl Counters {
    /// Begins an operation of a worker.
    pub(crate) fn begin(&mut self, now: Time, id: OperationId, (key, tenant): (Key, Tenant), ask: CounterAsk) {
        if let CounterAsk::Roster(RosterAsk::Withdraw { version, rank, instance }) = &ask {
            self.recitals.withdraw(&key, *version, *rank, *instance);
        }
        self.ops.insert(id, Op { key, tenant, ask, stage: Stage::Claiming });
        self.find(now, id);
    }

    /// Drops an operation that has ended, or whose outcome is no longer wanted.
    pub(crate) fn give_up(&mut self, id: OperationId) {
        let Some(op) = self.ops.remove(&id) else { return };
        match op.stage {
            Stage::Claiming => {
                if let Some(Entry::Claiming(claiming)) = self.by_key.get_mut(&op.key) {
                    claiming.ops.retain(|op| *op != id);
                }
            }
            Stage::Connecting(_) => {}
            Stage::Called(link, call) => self.give_up_call(link, call),
            Stage::Running(running) => self.words.forget(running),
            Stage::Arrived => self.withdraw(&op.key, Waiter::Local(id)),
        }
    }

    /// Ends an operation that was not carried out.
    pub(super) fn fail(&mut self, id: OperationId, failure: Failure) {
        if self.ops.contains_key(&id) {
            self.give_up(id);
            self.effects.push(Effect::Failed(id, failure));
        }
    }

    /// Ends an operation that was carried out.
    pub(super) fn end(&mut self, id: OperationId, outcome: Outcome) {
        if let Some(op) = self.ops.remove(&id) {
            self.remember(&op, &outcome);
            self.effects.push(Effect::Ended(id, outcome));
        }
    }

    pub(super) fn set_stage(&mut self, id: OperationId, stage: Stage) {
        if let Some(op) = self.ops.get_mut(&id) {
            op.stage = stage;
        }
    }

    /// Checks that a counter or barrier that lives here belongs to this tenant.
    pub(super) fn may_count(&self, key: &Key, tenant: Tenant) -> Result<(), Failure> {
        match self.home(key).filter(|home| home.is_made).map(|home| home.tenant) {
            Some(owner) if owner != tenant => Err(self.tenants.of_another(&spoken(key), owner, tenant)),
            _ => Ok(()),
        }
    }

    fn give_up_call(&mut self, link: LinkId, id: CounterCallId) {
        // A wait is withdrawn with CANCEL. Every other call is answered by the peer in time.
        if let Some(call) = self.links.get_mut(&link).and_then(|l| l.calls.get_mut(id))
            && call.give_up()
        {
            self.send(link, id.short(), Body::Cancel);
        }
    }

    fn peer_name(&self, link: LinkId) -> &str {
        self.links.get(&link).map_or("", |l| l.peer.name.as_str())
    }

    /// Returns the other node that takes part in an operation by now.
    pub(crate) fn other_node(&self, id: OperationId) -> Option<&Name> {
        match &self.ops.get(&id)?.stage {
            Stage::Connecting(node) => Some(node),
            Stage::Called(link, _) => self.links.get(link).map(|l| &l.peer.name),
            Stage::Claiming | Stage::Running(_) | Stage::Arrived => None,
        }
    }

    /// Returns what an operation waits for, in words.
    pub(crate) fn waits_for(&self, id: OperationId) -> Option<String> {
        let Op { key, ask, stage, .. } = self.ops.get(&id)?;
        Some(match (stage, ask) {
            (Stage::Claiming, _) => "the directory to say where it lives".to_owned(),
            (Stage::Connecting(node), _) => format!("a link to node {node:?}, where it lives"),
            (Stage::Called(link, _), CounterAsk::Wait { members }) => {
                format!("{members} members to arrive at it, at node {:?}", self.peer_name(*link))
            }
            (Stage::Called(link, _), _) => format!("node {:?} to answer for it", self.peer_name(*link)),
            (Stage::Running(_), _) => "the device that operates on its word".to_owned(),
            (Stage::Arrived, CounterAsk::Wait { members }) => {
                let arrived = u32::try_from(self.barrier(key).map_or(0, Barrier::arrived)).unwrap_or(u32::MAX);
                format!("{} of {members} members to arrive at it", members.saturating_sub(arrived))
            }
            (Stage::Arrived, CounterAsk::Roster(ask)) => {
                self.roster(key).map_or_else(String::new, |r| r.waits_for(ask))
            }
            (Stage::Arrived, _) => "its turn".to_owned(),
        })
    }

    /// Returns the failure of an operation whose deadline has passed.
    pub(crate) fn deadline(&self, id: OperationId, after: Duration) -> Option<Failure> {
        let Op { key, ask, stage, .. } = self.ops.get(&id)?;
        let what = spoken(key);
        let (code, text) = match stage {
            Stage::Claiming => (
                FailureCode::DirectoryUnreachable,
                format!("the directory did not say within {after:?} where {what} lives"),
            ),
            Stage::Connecting(node) => (
                FailureCode::PeerUnreachable,
                format!("{what} lives at node {node:?}, to which no link came up within {after:?}"),
            ),
            Stage::Called(link, call) => {
                let call = self.links.get(link).and_then(|l| l.calls.get(*call));
                let (home, opening) = (self.peer_name(*link), call.is_some_and(Call::is_opening));
                match ask {
                    CounterAsk::Wait { members } => (
                        FailureCode::Deadline,
                        format!(
                            "not all {members} members arrived at {what} within {after:?}; this arrival is withdrawn, unless the \
                             last of them came at this moment"
                        ),
                    ),
                    CounterAsk::Roster(RosterAsk::Commit(_)) => (
                        FailureCode::Deadline,
                        format!(
                            "{what}, at node {home:?}, waited {after:?} for ranks that have not committed: a rank may be as many \
                             versions ahead as --unfinished-versions of that node allows"
                        ),
                    ),
                    ask if changes(ask) && !opening => (
                        FailureCode::OutcomeUnknown,
                        format!(
                            "node {home:?} did not say within {after:?} that {what} was changed: it may have been, or not"
                        ),
                    ),
                    _ => (FailureCode::Deadline, format!("node {home:?} did not answer for {what} within {after:?}")),
                }
            }
            Stage::Running(running) if self.words.is_posted(*running) && changes(ask) => (
                FailureCode::OutcomeUnknown,
                format!("the device did not say within {after:?} that {what} was changed: it may have been, or not"),
            ),
            Stage::Running(_) => (
                FailureCode::Deadline,
                format!("the device did not come to {what} within {after:?}; it was not changed"),
            ),
            Stage::Arrived => {
                let arrived = self.barrier(key).map_or(0, Barrier::arrived);
                let text = match ask {
                    CounterAsk::Wait { members } => format!(
                        "{arrived} of {members} members arrived at {what} within {after:?}; this arrival is withdrawn"
                    ),
                    CounterAsk::Roster(ask) => {
                        let waits_for = self.roster(key).map_or_else(String::new, |roster| roster.waits_for(ask));
                        format!("waited {after:?} at {what} for {waits_for}")
                    }
                    _ => format!("{what}: {after:?} went by"),
                };
                (FailureCode::Deadline, text)
            }
        };
        Some(Failure::new(code, text))
    }
}
