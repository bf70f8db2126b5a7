//! Taking back a published version: fetches no longer get it, and after its last reader, its worker may write the
//! memory.
//!
//! Weights that are updated in place depend on this. Meanwhile, fetches wait for the next version. If the readers take
//! too long, or the worker gives up, the version is published again as if nothing had happened.

use super::Node;
use crate::op::{Answer, Failure, FailureCode, OpId, TakeBack};
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, OperationId, RecordId};
use crate::protocol::keys::{Picked, Source};
use crate::protocol::sessions::{Op, OpKind};
use crate::tensor::{Key, Select};
use crate::time::Time;
use std::time::Duration;

impl Node {
    pub(super) fn take_back(&mut self, now: Time, session: SessionId, op: OpId, command: TakeBack) {
        let TakeBack { key, version, timeout } = command;
        if let Some(failure) = self.is_busy(session) {
            return self.refuse(session, op, failure);
        }
        let (record, blob) =
            match self.find_to_take_back(session, &key, version.map_or(Select::Latest, Select::Exactly)) {
                Ok(found) => found,
                Err(failure) => return self.refuse(session, op, failure),
            };
        self.keys.take_version(record, blob, &mut self.actions);
        let kind = OpKind::TakeBack { blob };
        let id =
            self.sessions.begin(Op { session, id: op, key, since: now, deadline: now + timeout, require: None, kind });
        if self.keys.set_awaited(blob, Some(id)) {
            self.taken_back(id, blob);
        }
    }

    fn find_to_take_back(&self, session: SessionId, key: &Key, select: Select) -> Result<(RecordId, BlobId), Failure> {
        let owns = |r: &RecordId| self.keys.record(*r).is_some_and(|r| r.owner().is(session));
        let Some(record) = self.keys.find(key).filter(owns) else {
            let text = format!("key {key:?} is not owned by this worker at this sidecar");
            return Err(Failure::new(FailureCode::NotOwner, text));
        };
        let Picked::Blob(blob) = self.keys.pick(record, select) else {
            let text = format!("{select} of key {key:?} is not published any more");
            return Err(Failure::new(FailureCode::VersionGone, text));
        };
        let lent = self.keys.blob(blob).filter(|b| matches!(b.source, Source::Arena(_)));
        match lent.and_then(|b| self.sessions.of_arena(b.slice().segment)) {
            Some(lender) if lender == session => Ok((record, blob)),
            _ => {
                let text = format!(
                    "{select} of key {key:?} does not lie in this worker's arena: an earlier session pushed it"
                );
                Err(Failure::new(FailureCode::Invalid, text))
            }
        }
    }

    /// Completes a take-back: only its operation holds the version now.
    pub(super) fn taken_back(&mut self, op: OperationId, id: BlobId) {
        let (Some(op), Some(mut blob)) = (self.sessions.finish(op), self.keys.remove(id)) else { return };
        // The answer itself returns the range to the worker.
        let Source::Arena(pushed) = std::mem::replace(&mut blob.source, Source::Returned) else { return };
        self.spills.went(id);
        self.exchanges.went(id);
        self.leave_arena(&blob);
        let answer = Answer::TakenBack { version: blob.version, pushed, offset: blob.slice().offset };
        self.actions.answer(op.session, op.id, answer);
    }

    /// Returns the failure of a take-back that was not complete in time.
    pub(super) fn still_read(&self, key: &Key, blob: BlobId, after: Duration) -> Failure {
        let (version, readers) = self.keys.blob(blob).map_or((0, 0), |b| (b.version.0, b.holders() - 1));
        let text = format!(
            "version {version} of key {key:?} is still being read in {readers} places after {after:?}; it is published again"
        );
        Failure::new(FailureCode::Deadline, text)
    }

    /// Ends an operation whose deadline has passed or whose caller has cancelled it.
    pub(super) fn give_up(&mut self, now: Time, id: OperationId, failure: Failure) {
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
                self.keys.show(id, &mut self.actions);
                self.serve_waiters(now, id);
            }
            None => self.unhold(blob),
        }
    }
}
