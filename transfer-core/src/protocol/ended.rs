//! Transfers that have ended, one by one, for whoever traces them. Nobody does as a rule, and then nothing is kept.

use super::SessionId;
use super::meters::{Operation, PathId};
use super::node::Node;
use super::ops::{Op, OpKind};
use crate::fabric::FabricKind;
use crate::op::{FailureCode, Report};
use crate::tensor::{Key, Name, Version};
use crate::time::Time;
use std::time::Duration;

/// A push or a fetch of a worker of this node that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedTransfer {
    /// [`Operation::Push`] or [`Operation::Fetch`].
    pub operation: Operation,
    /// The key.
    pub key: Key,
    /// The worker.
    pub worker: Name,
    /// The version, where it came to one.
    pub version: Option<Version>,
    /// The other node, where one took part.
    pub peer: Option<Name>,
    /// How it went, where it went well; else why not.
    pub outcome: Result<Report, FailureCode>,
    /// When it ended.
    pub at: Time,
    /// How long it took.
    pub took: Duration,
}

/// What is to be noted of one.
pub(super) struct Ending<'a> {
    pub(super) operation: Operation,
    pub(super) session: SessionId,
    pub(super) key: &'a Key,
    pub(super) version: Option<Version>,
    pub(super) path: PathId,
    pub(super) outcome: Result<Report, FailureCode>,
    pub(super) since: Time,
}

impl Node {
    /// Whether to note transfers that end, from here on.
    pub fn trace(&mut self, on: bool) {
        if on != self.ended.is_some() {
            self.ended = on.then(Vec::new);
        }
    }

    /// Those that have ended since this was called last.
    pub fn take_ended(&mut self) -> impl Iterator<Item = EndedTransfer> {
        self.ended.iter_mut().flat_map(|ended| ended.drain(..))
    }

    pub(super) fn note_ended(&mut self, now: Time, ending: Ending<'_>) {
        let Some(ended) = &mut self.ended else { return };
        let Ending { operation, session, key, version, path, outcome, since } = ending;
        let Some(worker) = self.sessions.get(&session).map(|s| s.name.clone()) else { return };
        let peer = self.meters.peer_of(path).cloned();
        let (key, took) = (key.clone(), now.since(since));
        ended.push(EndedTransfer { operation, key, worker, version, peer, outcome, at: now, took });
    }

    /// The same for one that was handed over within this node.
    pub(super) fn note_handed_over(
        &mut self,
        now: Time,
        session: SessionId,
        key: &Key,
        version: Version,
        report: Report,
    ) {
        let since = Time(now.0.saturating_sub(u64::try_from(report.waited.as_nanos()).unwrap_or(u64::MAX)));
        let (operation, path, outcome) = (Operation::Fetch, PathId::HERE, Ok(report));
        self.note_ended(now, Ending { operation, session, key, version: Some(version), path, outcome, since });
    }

    /// The same for an operation that has failed, where it was a transfer.
    pub(super) fn note_failed(&mut self, op: &Op, code: FailureCode) {
        let (operation, version) = match &op.kind {
            OpKind::Push { version, .. } => (Operation::Push, *version),
            OpKind::Fetch { .. } => (Operation::Fetch, None),
            OpKind::Prepare { .. } | OpKind::TakeBack { .. } | OpKind::Counter { .. } => return,
        };
        let (now, key) = (self.latest, &op.key);
        let (path, outcome) = (PathId::HERE, Err(code));
        self.note_ended(now, Ending { operation, session: op.session, key, version, path, outcome, since: op.since });
    }
}

impl EndedTransfer {
    /// What carried it, where it went well.
    #[must_use]
    pub fn fabric(&self) -> Option<FabricKind> {
        self.outcome.as_ref().ok().map(|report| report.fabric)
    }
}
