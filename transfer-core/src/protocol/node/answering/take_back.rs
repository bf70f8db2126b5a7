//! Taking back a published version: fetches no longer get it, and after its last reader, its worker may write the
//! memory.
//!
//! Weights that are updated in place depend on this. Meanwhile, fetches wait for the next version. If the readers take
//! too long, or the worker gives up, the version is published again as if nothing had happened.

use crate::op::{Failure, FailureCode, OpId, TakeBack};
use crate::protocol::ids::{BlobId, RecordId, SessionId};
use crate::protocol::keys::{Picked, Source};
use crate::protocol::node::flows::TakingBack;
use crate::protocol::sessions::{Op, OpKind, TakeBackOp};
use crate::tensor::{Key, Select};
use crate::time::Time;

impl TakingBack<'_> {
    pub(in crate::protocol::node) fn take_back(&mut self, now: Time, session: SessionId, op: OpId, command: TakeBack) {
        let TakeBack { key, version, timeout } = command;
        if let Some(failure) = access!(self).is_busy(session) {
            return replies!(self).refuse(session, op, failure);
        }
        let (record, blob) =
            match self.find_to_take_back(session, &key, version.map_or(Select::Latest, Select::Exactly)) {
                Ok(found) => found,
                Err(failure) => return replies!(self).refuse(session, op, failure),
            };
        self.keys.take_version(record, blob, self.actions);
        let kind = OpKind::TakeBack(TakeBackOp { blob });
        let id =
            self.sessions.begin(Op { session, id: op, key, since: now, deadline: now + timeout, require: None, kind });
        if self.keys.set_awaited(blob, Some(id)) {
            memory!(self).taken_back(id, blob);
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
}
