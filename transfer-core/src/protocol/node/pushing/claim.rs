//! Claims of keys in the directory, and takeovers.

use crate::protocol::ids::RecordId;
use crate::protocol::keys::{Claimant, Claiming};
use crate::protocol::node::flows::Pushing;
use crate::protocol::sessions::Op;

impl Pushing<'_> {
    /// Claims a key in the directory.
    pub(in crate::protocol::node) fn claim(&mut self, record: RecordId, claiming: Claiming) {
        let tenant = self.config.tenants.name(claiming.tenant);
        self.keys.claim(record, claiming, tenant, self.actions);
    }

    /// Takes a key over for a worker of this sidecar. The present owner's versions stay until the directory answers.
    pub(in crate::protocol::node) fn take_over(&mut self, record: RecordId, op: Op) {
        let Some(owner) = self.sessions.get(op.session).map(|s| (s.name().clone(), s.tenant())) else { return };
        let who = Claimant::Session(op.session);
        let id = self.sessions.begin(op);
        if self.keys.wait_behind_claim(record, id) {
            return;
        }
        if let Some(flow) = self.keys.detach_flow(record) {
            room!(self).recall(flow);
        }
        self.claim(record, Claiming { pushes: vec![id], ..Claiming::new(owner, who, true) });
    }
}
