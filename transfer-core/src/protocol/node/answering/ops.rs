//! The end of an operation without success. Whatever it waits for, it ends here: with a failure, given up by its caller, overdue, or
//! with its worker. But for the operations of counters, which lie below this flow: those that the counters end themselves are answered there.

use super::copying::CopyReader;
use super::destinations::CLOSING;
use crate::fabric::DownReason;
use crate::op::{Answer, Failure, OpId, Push};
use crate::protocol::ids::{BlobId, OperationId, SessionId};
use crate::protocol::keys::Waiter;
use crate::protocol::node::flows::Answering;
use crate::protocol::node::kinds::Waiting;
use crate::protocol::sessions::{FetchOp, FetchStage, Op, OpKind, PushOp, PushStage, TakeBackOp};
use crate::tensor::Key;
use crate::time::Time;
use std::time::Duration;

/// Rounds to the millisecond, because part of the caller's time has passed before the sidecar receives the request.
fn for_people(time: Duration) -> Duration {
    let millis = (time + Duration::from_micros(500)).as_millis();
    if millis == 0 { time } else { Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)) }
}

impl Answering<'_> {
    /// Ends an operation with a failure, regardless of what it waits for. A fetch into memory that is open to a peer ends when
    /// that is closed.
    pub(in crate::protocol::node) fn fail_op(&mut self, id: OperationId, failure: Failure) {
        if self.waits_for_memory(id, &failure) {
            return;
        }
        if let Some(op) = self.detach_op(id) {
            if !matches!(op.kind, OpKind::Push(_)) {
                replies!(self).note_failed(&op, failure.code);
            }
            match op.kind {
                OpKind::Fetch(_) | OpKind::Reserve(_) | OpKind::TakeBack(_) | OpKind::Counter(_) => {
                    replies!(self).refuse(op.session, op.id, failure);
                }
                OpKind::Push(_) => self.end_push_with_failure(&op, failure),
            }
        }
    }

    /// Ends an operation whose worker is gone.
    pub(in crate::protocol::node) fn drop_op(&mut self, id: OperationId) {
        if let Some(Op {
            kind: OpKind::Push(PushOp { blob, .. }) | OpKind::TakeBack(TakeBackOp { blob }), key, ..
        }) = self.detach_op(id)
        {
            self.keys.refuse_announced(&key, blob, self.actions);
            memory!(self).release(blob);
        }
    }

    /// Takes an operation out of the list in which it waits. A queue that is served in order drops the operation when
    /// it reaches it.
    fn detach_op(&mut self, id: OperationId) -> Option<Op> {
        let op = self.sessions.finish(id)?;
        match &op.kind {
            OpKind::Fetch(FetchOp { stage: FetchStage::Waiting, .. }) => {
                self.keys.forget_waiter(&op.key, Waiter::Local(id), self.actions);
            }
            OpKind::Fetch(FetchOp { stage: FetchStage::Pulling(link, pull), .. }) => {
                if let Some(held) = pull_slots!(self).leave_pull(*link, *pull) {
                    memory!(self).release(held);
                }
            }
            OpKind::Fetch(FetchOp { stage: FetchStage::Copying(copying), .. }) => {
                self.copy_unwanted(*copying, CopyReader::Op(id))
            }
            OpKind::TakeBack(TakeBackOp { blob }) => {
                self.keys.set_awaited(*blob, None);
            }
            OpKind::Counter(_) => counting!(self).count(self.common.latest, |counters| counters.give_up(id)),
            OpKind::Push(PushOp { stage: PushStage::Copying(copying), .. }) => {
                self.copy_unwanted(*copying, CopyReader::Op(id))
            }
            OpKind::Push(PushOp { stage: PushStage::Lending(_), blob, .. }) => {
                // Fetches of others may wait for the same version for longer.
                (0..self.transfers.take_lent(*blob)).for_each(|_| memory!(self).release(*blob));
            }
            OpKind::Push(PushOp { copy, .. }) => copy.iter().for_each(|copy| memory!(self).release(*copy)),
            OpKind::Fetch(FetchOp { stage: FetchStage::Connecting(_) | FetchStage::Closing(..), .. })
            | OpKind::Reserve(_) => {}
        }
        Some(op)
    }

    pub(in crate::protocol::node) fn end_push_with_failure(&mut self, op: &Op, failure: Failure) {
        let OpKind::Push(PushOp { blob, more_follow, .. }) = op.kind else { return };
        let kept = self.keys.refuse_push(blob);
        // The end of a loan is no failure.
        if op.lent_base().is_none() {
            replies!(self).note_failed(op, failure.code);
            replies!(self).failed(op.session, &failure);
        }
        self.actions.answer(op.session, op.id, Answer::Failed { failure, kept });
        self.keys.refuse_announced(&op.key, blob, self.actions);
        memory!(self).release(blob);
        if !more_follow {
            self.no_more_follow(op.session, &op.key);
        }
        self.keys.tidy_key(&op.key, self.actions);
    }

    /// Ends an operation whose deadline has passed. The failure says what the operation was waiting for.
    pub(in crate::protocol::node) fn deadline(&mut self, now: Time, id: OperationId) {
        let Some(op) = self.sessions.op(id) else { return };
        if let OpKind::Fetch(FetchOp { stage: FetchStage::Closing(link, _), .. }) = &op.kind {
            let text = format!("{CLOSING:?} after its end, the memory of a fetch of key {:?} was not closed", op.key);
            return sending!(self).disconnect(*link, DownReason::Closed(text));
        }
        let after = for_people(op.deadline.since(op.since));
        let state = state!(self);
        if let Some(failure) = op.words().overdue(Waiting { id, op, state: &state }, after) {
            self.give_up(now, id, failure);
        }
    }

    /// Ends an operation whose deadline has passed or whose caller has cancelled it.
    pub(in crate::protocol::node) fn give_up(&mut self, now: Time, id: OperationId, failure: Failure) {
        let taking = match self.sessions.op(id) {
            Some(Op { kind: OpKind::TakeBack(TakeBackOp { blob }), key, session, .. }) => {
                Some((*blob, key.clone(), *session))
            }
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

    /// Refuses a push that is not an operation yet.
    pub(in crate::protocol::node) fn refuse_push(
        &mut self,
        session: SessionId,
        op: OpId,
        push: &Push,
        failure: Failure,
    ) {
        replies!(self).refuse(session, op, failure);
        if !push.more_follow {
            self.no_more_follow(session, &push.key);
        }
    }
}
