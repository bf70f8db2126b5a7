//! The waiting operations of workers, with their deadlines.

use super::{FetchOp, FetchStage, Op, OpKind, PushStage, Sessions};
use crate::protocol::ids::{OperationId, SessionId, of};
use crate::protocol::slab::Slab;
use crate::time::Time;

impl Sessions {
    /// Returns all waiting operations.
    pub(crate) fn operations(&self) -> &Slab<Op, of::Operation> {
        &self.operations
    }

    /// Returns a waiting operation.
    pub(crate) fn op(&self, id: OperationId) -> Option<&Op> {
        self.operations.get(id)
    }

    /// Returns a waiting operation, mutably.
    pub(crate) fn op_mut(&mut self, id: OperationId) -> Option<&mut Op> {
        self.operations.get_mut(id)
    }

    /// Returns the waiting operations of a worker.
    pub(crate) fn ops_of(&self, session: SessionId) -> Vec<OperationId> {
        self.operations.ids(|op| op.session == session)
    }

    /// Adds an operation that begins to wait. Its number must be unique among the operations of its worker.
    pub(crate) fn begin(&mut self, op: Op) -> OperationId {
        let (session, name, deadline, more_ranges) = (op.session, op.id, op.deadline, op.more_ranges());
        self.exchange_reads += u64::from(op.reads_exchange());
        let id = self.operations.insert(op);
        self.deadlines.insert((deadline, id));
        if let Some(s) = self.sessions.get_mut(&session) {
            s.ops.insert(name, id);
            s.more_ranges += more_ranges;
        }
        id
    }

    /// Removes an operation that has ended.
    pub(crate) fn finish(&mut self, id: OperationId) -> Option<Op> {
        let op = self.operations.remove(id)?;
        self.exchange_reads -= u64::from(op.reads_exchange());
        self.deadlines.remove(&(op.deadline, id));
        if let Some(s) = self.sessions.get_mut(&op.session) {
            s.ops.remove(&op.id);
            s.more_ranges = s.more_ranges.saturating_sub(op.more_ranges());
        }
        Some(op)
    }

    /// Gives a waiting operation another deadline.
    pub(crate) fn put_off(&mut self, id: OperationId, deadline: Time) {
        let Some(op) = self.operations.get_mut(id) else { return };
        self.deadlines.remove(&(op.deadline, id));
        op.deadline = deadline;
        self.deadlines.insert((deadline, id));
    }

    /// Returns the earliest deadline of the waiting operations.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Takes an operation whose deadline has passed. Each is returned once, and must still be ended.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<OperationId> {
        let (at, id) = *self.deadlines.first()?;
        if at > now {
            return None;
        }
        self.deadlines.pop_first();
        Some(id)
    }

    /// Returns the number of waiting fetches of parts of exchanges.
    pub(crate) fn exchange_reads(&self) -> u64 {
        self.exchange_reads
    }

    /// Changes the stage of a fetch.
    pub(crate) fn set_fetch_stage(&mut self, id: OperationId, next: FetchStage) {
        if let Some(Op { kind: OpKind::Fetch(FetchOp { stage, .. }), .. }) = self.operations.get_mut(id) {
            *stage = next;
        }
    }

    /// Changes the stage of a push, or of the preparation of a push.
    pub(crate) fn set_push_stage(&mut self, id: OperationId, next: PushStage) {
        if let Some(stage) = self.operations.get_mut(id).and_then(Op::stage_mut) {
            *stage = next;
        }
    }

    /// Returns the number of deadlines that are kept.
    #[cfg(test)]
    pub(crate) fn deadlines(&self) -> usize {
        self.deadlines.len()
    }
}
