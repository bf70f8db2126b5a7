//! Operations of workers that have to wait, and how they end.

use crate::op::{Answer, Failure};
use crate::protocol::ids::OperationId;
use crate::protocol::keys::Waiter;
use crate::protocol::node::flows::Answering;
use crate::protocol::sessions::{FetchStage, Op, OpKind};

impl Answering<'_> {
    /// Ends an operation with a failure, regardless of what it waits for.
    pub(in crate::protocol::node) fn fail_op(&mut self, id: OperationId, failure: Failure) {
        if let Some(op) = self.detach_op(id) {
            if !matches!(op.kind, OpKind::Push { .. }) {
                replies!(self).note_failed(&op, failure.code);
            }
            match op.kind {
                OpKind::Fetch { .. } | OpKind::Prepare { .. } | OpKind::TakeBack { .. } | OpKind::Counter => {
                    replies!(self).refuse(op.session, op.id, failure);
                }
                OpKind::Push { .. } => self.end_push_with_failure(&op, failure),
            }
        }
    }

    /// Ends an operation whose worker is gone.
    pub(in crate::protocol::node) fn drop_op(&mut self, id: OperationId) {
        if let Some(Op { kind: OpKind::Push { blob, .. } | OpKind::TakeBack { blob }, key, .. }) = self.detach_op(id) {
            self.keys.refuse_announced(&key, blob, self.actions);
            memory!(self).release(blob);
        }
    }

    /// Takes an operation out of the list in which it waits. A queue that is served in order drops the operation when
    /// it reaches it.
    fn detach_op(&mut self, id: OperationId) -> Option<Op> {
        let op = self.sessions.finish(id)?;
        match &op.kind {
            OpKind::Fetch { stage: FetchStage::Waiting, .. } => {
                self.keys.forget_waiter(&op.key, Waiter::Local(id), self.actions);
            }
            OpKind::Fetch { stage: FetchStage::Pulling(link, pull), .. } => pull_slots!(self).cancel_pull(*link, *pull),
            OpKind::Fetch { stage: FetchStage::Copying(copying), .. } => self.copy_unwanted(*copying),
            OpKind::TakeBack { blob } => {
                self.keys.set_awaited(*blob, None);
            }
            OpKind::Counter => counting!(self).count(self.common.latest, |counters| counters.give_up(id)),
            OpKind::Fetch { stage: FetchStage::Connecting(_), .. } | OpKind::Push { .. } | OpKind::Prepare { .. } => {}
        }
        Some(op)
    }

    pub(in crate::protocol::node) fn end_push_with_failure(&mut self, op: &Op, failure: Failure) {
        let OpKind::Push { blob, more_follow, .. } = op.kind else { return };
        replies!(self).note_failed(op, failure.code);
        let kept = self.keys.refuse_push(blob);
        replies!(self).failed(op.session, &failure);
        self.actions.answer(op.session, op.id, Answer::Failed { failure, kept });
        self.keys.refuse_announced(&op.key, blob, self.actions);
        memory!(self).release(blob);
        if !more_follow {
            self.no_more_follow(op.session, &op.key);
        }
        self.keys.tidy_key(&op.key, self.actions);
    }
}
