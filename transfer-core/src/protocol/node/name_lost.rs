//! A worker whose name the directory has given to a worker of another node.
//!
//! That can happen where both connected while their nodes could not ask. A key is owned by a name, so two workers of one name would
//! publish the same keys and neither would be refused. The one that was entered keeps the name; the other one reads on, and publishes
//! nothing from here on.

use super::Node;
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::SessionId;
use crate::protocol::keys::{Claimant, Owner, Record};
use crate::protocol::sessions::OpKind;
use crate::tensor::{Key, Name};
use crate::time::Time;

impl Node {
    /// The directory has given this worker's name to a worker of `node`. What it published ends, except for those who read it; what it
    /// has fetched stays; whatever it pushes from here on fails with [`FailureCode::KeyOwned`].
    pub fn name_lost(&mut self, now: Time, session: SessionId, node: &Name) {
        self.latest = now;
        if !self.sessions.lose_name(session, node) {
            return;
        }
        for id in self.sessions.ops_of(session) {
            let Some(op) = self.sessions.op(id) else { continue };
            if matches!(op.kind, OpKind::Push { .. } | OpKind::Prepare { .. }) {
                let key = op.key.clone();
                if let Some(failure) = self.no_name(session, &key) {
                    self.fail_op(id, failure);
                }
            }
        }
        self.flows_out_abandoned(session);
        self.flows_in_target_gone(session);
        for record in self.keys.keys_of(session) {
            match self.keys.record(record).map(Record::owner) {
                // Pushed to the name, which is to be found elsewhere now.
                Some(Owner::Landed(landed)) => {
                    let owner = landed.owner.clone();
                    self.owner_left(now, record, owner);
                }
                // Another worker takes it over.
                Some(Owner::Claiming(claiming)) if claiming.who != Claimant::Session(session) => {
                    self.keys.no_former_owner(record);
                    self.end_versions(record, false);
                }
                _ => self.end_key(now, record),
            }
        }
    }

    /// Why a worker may not push, where its name is another one's.
    pub(super) fn no_name(&self, session: SessionId, key: &Key) -> Option<Failure> {
        let s = self.sessions.get(session)?;
        let node = s.name_at()?;
        let text = format!(
            "key {key:?} cannot be pushed by this worker: its name {:?} is that of a worker at node {node:?}, which the directory \
             entered first; connect again, under another name or when that one is gone",
            s.name()
        );
        Some(Failure::new(FailureCode::KeyOwned, text))
    }
}
