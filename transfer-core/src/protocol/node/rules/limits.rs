//! Limits on the keys and versions of a worker, a tenant and the node.

use crate::op::{Failure, FailureCode};
use crate::protocol::ids::SessionId;
use crate::protocol::node::flows::Limits;

fn beyond(whose: &str, has: u64, what: &str, setting: &str) -> Failure {
    let text = format!("{whose} has {has} {what}, which is {setting}; delete some, or raise it");
    Failure::new(FailureCode::Busy, text)
}

impl Limits<'_> {
    /// Returns the failure if a worker cannot have one more key.
    pub(in crate::protocol::node) fn too_many_keys(&mut self, session: SessionId) -> Option<Failure> {
        let limits = self.config.limits;
        let s = self.sessions.get(session)?;
        let (own, user) = (self.keys.keys_of_worker(session), self.keys.keys_of_tenant(s.tenant()));
        let failure = if own >= limits.keys_per_worker {
            Some(beyond(&format!("worker {}", s.name()), own, "keys", "limits.keys_per_worker"))
        } else if user >= limits.keys_per_user {
            Some(beyond(&self.config.tenants.in_words(s.tenant()), user, "keys", "limits.keys_per_user"))
        } else {
            None
        };
        if failure.is_some() {
            self.keys.limits_reached_mut().keys += 1;
        }
        failure.or_else(|| self.node_has_too_many_keys())
    }

    /// Returns the failure if the node has more keys than its limit. The new key is already among those counted.
    pub(in crate::protocol::node) fn node_has_too_many_keys(&mut self) -> Option<Failure> {
        let (has, limit) = (self.keys.records().len() as u64, self.config.limits.keys_per_node);
        (has > limit).then(|| {
            self.keys.limits_reached_mut().keys += 1;
            beyond(&format!("node {}", self.config.name), has - 1, "keys", "limits.keys_per_node")
        })
    }

    /// Returns the failure if a worker cannot publish one more version.
    pub(in crate::protocol::node) fn too_many_versions(&mut self, session: SessionId) -> Option<Failure> {
        let limits = self.config.limits;
        let s = self.sessions.get(session)?;
        let own = self.sessions.arena(s.arena().0).map_or(0, |(versions, _)| versions);
        let user = self.keys.versions_of_tenant(s.tenant());
        let all = self.keys.blobs().len() as u64;
        let what = "versions published or read";
        let failure = if own >= limits.versions_per_worker {
            beyond(&format!("worker {}", s.name()), own, what, "limits.versions_per_worker")
        } else if user >= limits.versions_per_user {
            beyond(&self.config.tenants.in_words(s.tenant()), user, what, "limits.versions_per_user")
        } else if all >= limits.versions_per_node {
            beyond(&format!("node {}", self.config.name), all, what, "limits.versions_per_node")
        } else {
            return None;
        };
        self.keys.limits_reached_mut().versions += 1;
        Some(failure)
    }
}
