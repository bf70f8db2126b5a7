//! A worker whose name the directory has given to a worker of another node.
//!
//! This can happen if both connected while their nodes could not reach the directory. A key is owned by a name, so two
//! workers of one name would publish the same keys, and neither would be refused. The worker that the directory entered
//! keeps the name. The other worker keeps reading, and publishes nothing from here on.

use super::endings::Ending;
use crate::protocol::ids::SessionId;
use crate::protocol::keys::{Claimant, Owner, Record};
use crate::protocol::node::Node;
use crate::protocol::node::flows::Ownership;
use crate::protocol::sessions::OpKind;
use crate::tensor::Name;
use crate::time::Time;

impl Node {
    /// Handles the loss of a worker's name: the directory has given it to a worker of `node`. The versions that this
    /// worker published end, except for their readers; what it has fetched stays; all that it pushes from here on fails
    /// with [`FailureCode::KeyOwned`](crate::op::FailureCode::KeyOwned).
    pub fn name_lost(&mut self, now: Time, session: SessionId, node: &Name) {
        self.common.latest = now;
        ownership!(self).name_lost(now, session, node);
    }
}

impl Ownership<'_> {
    /// Handles the loss of a worker's name: the directory has given it to a worker of `node`. The versions that this
    /// worker published end, except for their readers; what it has fetched stays; all that it pushes from here on fails
    /// with [`FailureCode::KeyOwned`](crate::op::FailureCode::KeyOwned).
    fn name_lost(&mut self, now: Time, session: SessionId, node: &Name) {
        if !self.sessions.lose_name(session, node) {
            return;
        }
        for id in self.sessions.ops_of(session) {
            let Some(op) = self.sessions.op(id) else { continue };
            // A base that is lent is published under no name.
            if matches!(op.kind, OpKind::Push(_) | OpKind::Reserve(_)) && op.lent_base().is_none() {
                let key = op.key.clone();
                if let Some(failure) = access!(self).no_name(session, &key) {
                    answering!(self).fail_op(id, failure);
                }
            }
        }
        pushing!(self).flows_out_abandoned(session);
        room!(self).flows_in_target_gone(session);
        self.end(now, Ending::Name { session, from: Some(0) });
    }

    /// Ends the next key of a session that has lost its name: the first one from this place on, which moves behind it. Returns
    /// the number of its versions. `None`: that was all.
    pub(in crate::protocol::node) fn end_next_of_name(
        &mut self,
        now: Time,
        session: SessionId,
        from: &mut Option<u32>,
    ) -> Option<u32> {
        let record = self.keys.next_key_of(session, (*from)?)?;
        *from = record.index().checked_add(1);
        let versions = self.versions_of(record);
        match self.keys.record(record).map(Record::owner) {
            // These versions were pushed to the name, which is now found at the other node.
            Some(Owner::Landed(landed)) => {
                let owner = (landed.owner.clone(), landed.tenant);
                self.owner_left(now, record, owner, Some(0));
            }
            // Another worker is taking the key over.
            Some(Owner::Claiming(claiming)) if claiming.who != Claimant::Session(session) => {
                self.former_owner_lost(now, record);
            }
            _ => self.end_key(now, record),
        }
        Some(versions)
    }
}
