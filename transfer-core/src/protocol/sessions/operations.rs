//! The operations of workers that wait, with their deadlines.

use super::{FetchStage, Op, OpKind, PushStage, Sessions};
use crate::protocol::ids::{OperationId, SessionId, of};
use crate::protocol::slab::Slab;
use crate::time::Time;

impl Sessions {
    /// All operations that wait.
    pub(crate) fn operations(&self) -> &Slab<Op, of::Operation> {
        &self.operations
    }

    /// An operation that waits.
    pub(crate) fn op(&self, id: OperationId) -> Option<&Op> {
        self.operations.get(id)
    }

    /// An operation that waits, to change what it waits for.
    pub(crate) fn op_mut(&mut self, id: OperationId) -> Option<&mut Op> {
        self.operations.get_mut(id)
    }

    /// The operations of a worker.
    pub(crate) fn ops_of(&self, session: SessionId) -> Vec<OperationId> {
        self.operations.ids(|op| op.session == session)
    }

    /// An operation begins to wait. Its number must be its own among those of its worker.
    pub(crate) fn begin(&mut self, op: Op) -> OperationId {
        let (session, name, deadline) = (op.session, op.id, op.deadline);
        let id = self.operations.insert(op);
        self.deadlines.insert((deadline, id));
        if let Some(s) = self.sessions.get_mut(&session) {
            s.ops.insert(name, id);
        }
        id
    }

    /// An operation has ended.
    pub(crate) fn finish(&mut self, id: OperationId) -> Option<Op> {
        let op = self.operations.remove(id)?;
        self.deadlines.remove(&(op.deadline, id));
        if let Some(s) = self.sessions.get_mut(&op.session) {
            s.ops.remove(&op.id);
        }
        Some(op)
    }

    /// When the next operation's time is over.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// An operation whose time is over. Each is returned once, and still has to end.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<OperationId> {
        let (at, id) = *self.deadlines.first()?;
        if at > now {
            return None;
        }
        self.deadlines.pop_first();
        Some(id)
    }

    /// A fetch waits for something else.
    pub(crate) fn set_fetch_stage(&mut self, id: OperationId, next: FetchStage) {
        if let Some(Op { kind: OpKind::Fetch { stage, .. }, .. }) = self.operations.get_mut(id) {
            *stage = next;
        }
    }

    /// A push, or the preparation of one, waits for something else.
    pub(crate) fn set_push_stage(&mut self, id: OperationId, next: PushStage) {
        if let Some(stage) = self.operations.get_mut(id).and_then(Op::stage_mut) {
            *stage = next;
        }
    }

    /// How many deadlines are kept.
    #[cfg(test)]
    pub(crate) fn deadlines(&self) -> usize {
        self.deadlines.len()
    }
}
