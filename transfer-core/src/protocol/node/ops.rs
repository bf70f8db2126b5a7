//! Operations of workers that have to wait, and how they end.

use super::Node;
use crate::memory::SegmentId;
use crate::op::{Answer, Failure, FailureCode, OpId};
use crate::protocol::ids::OperationId;
use crate::protocol::ids::SessionId;
use crate::protocol::keys::Waiter;
use crate::protocol::sessions::{FetchStage, Op, OpKind, PushStage};
use crate::tensor::Name;
use crate::time::Time;
use std::time::Duration;

/// Rounds to the millisecond, because part of the caller's time has passed before the sidecar receives the request.
fn for_people(time: Duration) -> Duration {
    let millis = (time + Duration::from_micros(500)).as_millis();
    if millis == 0 { time } else { Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)) }
}

impl Node {
    pub(super) fn refuse(&mut self, session: SessionId, op: OpId, failure: Failure) {
        self.failed(session, &failure);
        self.actions.answer(session, op, Answer::Failed { failure, kept: false });
    }

    /// Returns the failure if another operation with this number is in progress. The limit on waiting operations counts
    /// numbers.
    pub(super) fn is_under_way(&self, session: SessionId, op: OpId) -> Option<Failure> {
        self.sessions.get(session)?.op(op).map(|_| {
            let text = format!(
                "operation {} of this worker is under way; each needs a number of its own until it has ended",
                op.0
            );
            Failure::new(FailureCode::Invalid, text)
        })
    }

    pub(super) fn is_busy(&self, session: SessionId) -> Option<Failure> {
        let waiting = self.sessions.get(session)?.waiting();
        (waiting >= self.config.max_ops_per_session).then(|| {
            Failure::new(FailureCode::Busy, format!("this worker has {waiting} operations waiting, the limit"))
        })
    }

    /// Returns the failure if one more tensor of `more` ranges would bring a worker's tensors over the limit of ranges.
    pub(super) fn too_many_ranges(&self, arena: SegmentId, more: u32) -> Option<Failure> {
        let (kept, most) = (self.sessions.ranges_in(arena)?, self.config.max_ranges_per_session);
        (more > 0 && kept + u64::from(more) > most).then(|| {
            let text = format!(
                "what this worker has pushed and not got back is made of {kept} ranges of its arena; {more} more would be above the \
                 limit of {most}"
            );
            Failure::new(FailureCode::Busy, text)
        })
    }

    /// Ends an operation whose deadline has passed. The failure says what the operation was waiting for.
    pub(super) fn deadline(&mut self, now: Time, id: OperationId) {
        let Some(op) = self.sessions.op(id) else { return };
        let after = for_people(op.deadline.since(op.since));
        let key = &op.key;
        let failure = match &op.kind {
            OpKind::Fetch { select, stage, .. } => match stage {
                FetchStage::Waiting => {
                    let record = self.keys.find(key).zip(self.sessions.tenant_of(op.session));
                    let newest = record.and_then(|(record, reader)| self.readable_newest(reader, record));
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

    /// Ends an operation with a failure, regardless of what it waits for.
    pub(super) fn fail_op(&mut self, id: OperationId, failure: Failure) {
        if let Some(op) = self.detach_op(id) {
            if !matches!(op.kind, OpKind::Push { .. }) {
                self.note_failed(&op, failure.code);
            }
            match op.kind {
                OpKind::Fetch { .. } | OpKind::Prepare { .. } | OpKind::TakeBack { .. } | OpKind::Counter => {
                    self.refuse(op.session, op.id, failure);
                }
                OpKind::Push { .. } => self.end_push_with_failure(&op, failure),
            }
        }
    }

    /// Ends an operation whose worker is gone.
    pub(super) fn drop_op(&mut self, id: OperationId) {
        if let Some(Op { kind: OpKind::Push { blob, .. } | OpKind::TakeBack { blob }, key, .. }) = self.detach_op(id) {
            self.keys.refuse_announced(&key, blob, &mut self.actions);
            self.unhold(blob);
        }
    }

    /// Takes an operation out of the list in which it waits. A queue that is served in order drops the operation when
    /// it reaches it.
    pub(super) fn detach_op(&mut self, id: OperationId) -> Option<Op> {
        let op = self.sessions.finish(id)?;
        match &op.kind {
            OpKind::Fetch { stage: FetchStage::Waiting, .. } => {
                self.keys.forget_waiter(&op.key, Waiter::Local(id), &mut self.actions);
            }
            OpKind::Fetch { stage: FetchStage::Pulling(link, pull), .. } => self.cancel_pull(*link, *pull),
            OpKind::Fetch { stage: FetchStage::Copying(copying), .. } => self.copy_unwanted(*copying),
            OpKind::TakeBack { blob } => {
                self.keys.set_awaited(*blob, None);
            }
            OpKind::Counter => self.count(self.latest, |counters| counters.give_up(id)),
            OpKind::Fetch { stage: FetchStage::Connecting(_), .. } | OpKind::Push { .. } | OpKind::Prepare { .. } => {}
        }
        Some(op)
    }

    pub(super) fn end_push_with_failure(&mut self, op: &Op, failure: Failure) {
        let OpKind::Push { blob, more_follow, .. } = op.kind else { return };
        self.note_failed(op, failure.code);
        let kept = self.keys.refuse_push(blob);
        self.failed(op.session, &failure);
        self.actions.answer(op.session, op.id, Answer::Failed { failure, kept });
        self.keys.refuse_announced(&op.key, blob, &mut self.actions);
        self.unhold(blob);
        if !more_follow {
            self.no_more_follow(op.session, &op.key);
        }
        self.keys.tidy_key(&op.key, &mut self.actions);
    }
}
