//! Operations whose deadline has passed, or whose caller gives them up.

use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::{BlobId, OperationId, PullId, SessionId};
use crate::protocol::node::flows::Answering;
use crate::protocol::sessions::{FetchStage, Op, OpKind, PushStage};
use crate::protocol::transfers::PullState;
use crate::tensor::{Key, Name, Select};
use crate::time::Time;
use std::time::Duration;

/// Rounds to the millisecond, because part of the caller's time has passed before the sidecar receives the request.
fn for_people(time: Duration) -> Duration {
    let millis = (time + Duration::from_micros(500)).as_millis();
    if millis == 0 { time } else { Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)) }
}

impl Answering<'_> {
    /// Ends an operation whose deadline has passed. The failure says what the operation was waiting for.
    pub(in crate::protocol::node) fn deadline(&mut self, now: Time, id: OperationId) {
        let Some(op) = self.sessions.op(id) else { return };
        let after = for_people(op.deadline.since(op.since));
        let key = &op.key;
        let failure = match &op.kind {
            OpKind::Fetch { select, stage, .. } => match stage {
                FetchStage::Waiting => {
                    let record = self.keys.find(key).zip(self.sessions.tenant_of(op.session));
                    let newest = record.and_then(|(record, reader)| access!(self).readable_newest(reader, record));
                    match newest {
                        Some(newest) => Failure::new(
                            FailureCode::Deadline,
                            format!("key {key:?} is at {newest}; {select} was not published within {after:?}"),
                        ),
                        None => Failure::new(
                            FailureCode::UnknownKey,
                            format!("nobody published key {key:?} within {after:?}"),
                        ),
                    }
                }
                FetchStage::Connecting(node) => Failure::new(
                    FailureCode::PeerUnreachable,
                    format!("key {key:?} is owned by node {node:?}, to which no link came up within {after:?}"),
                ),
                FetchStage::Pulling(link, pull) => self.pull_deadline(*link, *pull, key, *select, after),
                FetchStage::Copying(_) => Failure::new(
                    FailureCode::PoolFull,
                    format!(
                        "there was no room in this worker's landing pool for a copy of key {key:?} within {after:?}"
                    ),
                ),
            },
            OpKind::TakeBack { blob } => self.still_read(key, *blob, after),
            OpKind::Counter => match self.counters.deadline(id, after) {
                Some(failure) => failure,
                None => return,
            },
            OpKind::Push { stage, .. } | OpKind::Prepare { stage, .. } => {
                let to = op.target().map_or("", Name::as_str);
                match stage {
                    PushStage::Claiming => Failure::new(
                        FailureCode::DirectoryUnreachable,
                        format!("the directory did not say within {after:?} who owns key {key:?}"),
                    ),
                    PushStage::Locating(worker) => Failure::new(
                        FailureCode::DirectoryUnreachable,
                        format!("the directory did not say within {after:?} where worker {worker:?} is"),
                    ),
                    PushStage::Connecting(node) => Failure::new(
                        FailureCode::PeerUnreachable,
                        format!("no link to node {node:?}, where worker {to:?} is, came up within {after:?}"),
                    ),
                    PushStage::Queued(..) => Failure::new(
                        FailureCode::PoolFull,
                        format!(
                            "no landing slot for key {key:?} came free at the sidecar of {to:?} within {after:?}: its pool is \
                             full, or the versions before this one are still being read"
                        ),
                    ),
                    PushStage::Writing => Failure::new(
                        FailureCode::Deadline,
                        format!(
                            "key {key:?} did not land at the sidecar of {to:?} within {after:?}; it may still do so"
                        ),
                    ),
                }
            }
        };
        self.give_up(now, id, failure);
    }

    fn pull_deadline(&self, link: LinkId, id: PullId, key: &Key, select: Select, after: Duration) -> Failure {
        let peer = self.links.peer_name(link);
        match self.transfers.pull(link, id).map(|p| p.state) {
            Some(PullState::WaitingForRoom) => Failure::new(
                FailureCode::PoolFull,
                format!("no room for key {key:?} came free in the landing pool within {after:?}"),
            ),
            _ => {
                let behind = self.transfers.pull(link, id).and_then(|p| p.behind);
                let at = behind.map_or_else(String::new, |newest| format!(": the key was at {newest} there"));
                let text = format!("{select} of key {key:?} did not come from node {peer:?} within {after:?}{at}");
                Failure::new(FailureCode::Deadline, text)
            }
        }
    }

    /// Returns the failure of a take-back that was not complete in time.
    fn still_read(&self, key: &Key, blob: BlobId, after: Duration) -> Failure {
        let (version, readers) = self.keys.blob(blob).map_or((0, 0), |b| (b.version.0, b.holders() - 1));
        let text = format!(
            "version {version} of key {key:?} is still being read in {readers} places after {after:?}; it is published again"
        );
        Failure::new(FailureCode::Deadline, text)
    }

    /// Ends an operation whose deadline has passed or whose caller has cancelled it.
    pub(in crate::protocol::node) fn give_up(&mut self, now: Time, id: OperationId, failure: Failure) {
        let taking = match self.sessions.op(id) {
            Some(Op { kind: OpKind::TakeBack { blob }, key, session, .. }) => Some((*blob, key.clone(), *session)),
            _ => None,
        };
        self.fail_op(id, failure);
        if let Some((blob, key, session)) = taking {
            self.publish_again(now, blob, &key, session);
        }
    }

    fn publish_again(&mut self, now: Time, blob: BlobId, key: &Key, session: SessionId) {
        let record = self.keys.find(key);
        match record.filter(|id| self.keys.publish_again(*id, blob, session)) {
            Some(id) => {
                self.keys.show(id, self.actions);
                self.serve_waiters(now, id);
            }
            None => memory!(self).release(blob),
        }
    }
}
