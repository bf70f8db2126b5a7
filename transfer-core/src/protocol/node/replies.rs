//! What workers are told about their operations, and what is counted and recorded of it.

use super::flows::Replies;
use crate::fabric::{FabricKind, LinkId};
use crate::op::{Answer, Failure, FailureCode, OpId, Reply, Report};
use crate::protocol::action::HostAction;
use crate::protocol::events::NodeEvent;
use crate::protocol::ids::{BlobId, RecordId, SessionId};
use crate::protocol::keys::Owner;
use crate::protocol::meters::{Operation, PathId};
use crate::protocol::sessions::{Op, OpKind, PushOp};
use crate::protocol::snapshot::EndedTransfer;
use crate::tensor::{Key, Name, Version};
use crate::time::Time;
use crate::trace::TraceContext;
use std::num::NonZeroU64;

/// A transfer of a worker of this node that has ended.
pub(super) struct WorkersTransfer<'a> {
    pub(super) operation: Operation,
    pub(super) session: SessionId,
    pub(super) key: &'a Key,
    pub(super) version: Option<Version>,
    pub(super) path: PathId,
    pub(super) outcome: Result<Report, FailureCode>,
    pub(super) since: Time,
    pub(super) trace: Option<TraceContext>,
}

/// How a version came to this node.
pub(super) struct Carried {
    pub(super) kind: FabricKind,
    pub(super) path: PathId,
    pub(super) copied: u64,
    pub(super) waited_us: u32,
    /// The length of the delta that came in its place, or 0.
    pub(super) delta: u64,
    /// The owner's number for the publication. `None`: its fetches are counted.
    pub(super) identity: Option<NonZeroU64>,
    /// How many of its bytes came from other nodes than its owner.
    pub(super) relayed: u64,
}

/// A transfer that a peer began and that has ended.
pub(super) struct PeersTransfer<'a> {
    pub(super) operation: Operation,
    pub(super) key: &'a Key,
    pub(super) worker: Option<Name>,
    pub(super) version: Version,
    pub(super) report: Report,
    pub(super) since: Time,
    pub(super) trace: Option<TraceContext>,
}

impl Replies<'_> {
    /// Tells a worker that the next versions of the key that it has just published are watched.
    pub(super) fn tell_watched(&mut self, record: RecordId, op: &Op, blob: BlobId) {
        if self.keys.is_watched(record, blob) {
            let reply = Reply::Watched { pushed: op.id };
            self.actions.push(HostAction::Reply { session: op.session, reply });
        }
    }

    pub(super) fn note_ended(&mut self, now: Time, ending: WorkersTransfer<'_>) {
        let Some(ended) = self.ended else { return };
        let WorkersTransfer { operation, session, key, version, path, outcome, since, trace } = ending;
        let Some(worker) = self.sessions.get(session).map(|s| Some(s.name().clone())) else { return };
        let peer = self.meters.peer_of(path).cloned();
        let (key, took) = (key.clone(), now.since(since));
        ended.push(EndedTransfer { operation, key, worker, version, peer, outcome, at: now, took, trace });
    }

    /// Records a transfer that a peer began, if the peer's worker traces it. Otherwise it concerns the peer alone.
    pub(super) fn note_for_peer(&mut self, now: Time, link: LinkId, transfer: PeersTransfer<'_>) {
        let PeersTransfer { operation, key, worker, version, report, since, trace } = transfer;
        let (Some(ended), Some(_)) = (self.ended.as_mut(), trace) else { return };
        let peer = self.links.get(link).map(|l| l.peer().name.clone());
        let (key, version, outcome, took) = (key.clone(), Some(version), Ok(report), now.since(since));
        ended.push(EndedTransfer { operation, key, worker, version, peer, outcome, at: now, took, trace });
    }

    /// Records a peer's push that has landed here. Its duration counts from the arrival of its TRACE.
    pub(super) fn note_landed(
        &mut self,
        now: Time,
        link: LinkId,
        record: RecordId,
        version: Version,
        report: Report,
        (context, told): (TraceContext, Time),
    ) {
        if self.ended.is_none() {
            return;
        }
        let Some(record) = self.keys.record(record) else { return };
        let key = record.key().clone();
        let worker = match record.owner() {
            Owner::Landed(landed) => Some(landed.owner.clone()),
            _ => None,
        };
        let (operation, key, trace) = (Operation::Land, &key, Some(context));
        self.note_for_peer(now, link, PeersTransfer { operation, key, worker, version, report, since: told, trace });
    }

    /// Records a fetch that was answered within this node.
    pub(super) fn note_handed_over(
        &mut self,
        now: Time,
        session: SessionId,
        key: &Key,
        version: Version,
        report: Report,
        trace: Option<TraceContext>,
    ) {
        let since = Time(now.0.saturating_sub(u64::try_from(report.waited.as_nanos()).unwrap_or(u64::MAX)));
        let (operation, path, outcome) = (Operation::Fetch, PathId::HERE, Ok(report));
        self.note_ended(
            now,
            WorkersTransfer { operation, session, key, version: Some(version), path, outcome, since, trace },
        );
    }

    /// Records an operation that has failed, if it is a push or a fetch.
    pub(super) fn note_failed(&mut self, op: &Op, code: FailureCode) {
        let (operation, version) = match &op.kind {
            OpKind::Push(PushOp { version, .. }) => (Operation::Push, *version),
            OpKind::Fetch(_) => (Operation::Fetch, None),
            OpKind::Reserve(_) | OpKind::TakeBack(_) | OpKind::Counter(_) => return,
        };
        let (now, key, trace) = (self.common.latest, &op.key, access!(self).trace_of(op));
        let (session, path, outcome, since) = (op.session, PathId::HERE, Err(code), op.since);
        self.note_ended(now, WorkersTransfer { operation, session, key, version, path, outcome, since, trace });
    }

    /// Counts a worker's failed operation and reports it, unless its caller gave it up or the rate limit is reached.
    pub(super) fn failed(&mut self, session: SessionId, failure: &Failure) {
        self.meters.failed(failure.code);
        // The caller gave the operation up and knows of it.
        if failure.code == FailureCode::Cancelled {
            return;
        }
        let Some(worker) = self.sessions.get(session).map(|s| s.name().clone()) else { return };
        if let Some(untold) = self.failure_rate.next(self.common.latest) {
            self.actions.report(NodeEvent::Failed { worker, failure: failure.clone(), untold });
        }
    }

    pub(super) fn refuse(&mut self, session: SessionId, op: OpId, failure: Failure) {
        self.failed(session, &failure);
        self.actions.answer(session, op, Answer::Failed { failure, kept: false });
    }

    /// Tells the owner of a key how many versions of it are left, if it wants to know.
    pub(super) fn tell_unfetched(&mut self, record: RecordId) {
        if let Some((session, number, left)) = self.keys.unfetched(record) {
            self.actions.push(HostAction::Reply { session, reply: Reply::Unfetched { number, left: Some(left) } });
        }
    }
}
