//! How many keys and versions one worker, one user and the whole node may have.
//!
//! A key is small and a version too, so memory for tensors bounds neither: one range of 64 bytes can be pushed under any number of keys. What
//! a worker has is counted as it comes and goes, in numbers that this file keeps.

use super::SessionId;
use super::keys::LimitsReached;
use super::node::Node;
use crate::op::{Failure, FailureCode};

/// Limits of a node. Beyond each, pushes fail with `Busy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Keys that one worker owns.
    pub keys_per_worker: u64,
    /// Keys that all workers of one user own.
    pub keys_per_user: u64,
    /// Keys that the node knows, those that others wait for too.
    pub keys_per_node: u64,
    /// Versions that one worker has pushed and not got back.
    pub versions_per_worker: u64,
    /// The same of all workers of one user.
    pub versions_per_user: u64,
    /// Versions that the node holds, those from other nodes too.
    pub versions_per_node: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            keys_per_worker: 1 << 20,
            keys_per_user: 1 << 21,
            keys_per_node: 1 << 22,
            versions_per_worker: 1 << 21,
            versions_per_user: 1 << 22,
            versions_per_node: 1 << 23,
        }
    }
}

fn beyond(whose: &str, has: u64, what: &str, setting: &str) -> Failure {
    let text = format!("{whose} has {has} {what}, which is {setting}; delete some, or raise it");
    Failure::new(FailureCode::Busy, text)
}

impl Node {
    /// Why a worker cannot have one more key.
    pub(super) fn too_many_keys(&mut self, session: SessionId) -> Option<Failure> {
        let limits = self.config.limits;
        let s = self.sessions.get(&session)?;
        let (own, user) = (self.keys.keys_of_worker(session), self.keys.keys_of_tenant(s.domain));
        let failure = if own >= limits.keys_per_worker {
            Some(beyond(&format!("worker {}", s.name), own, "keys", "limits.keys_per_worker"))
        } else if user >= limits.keys_per_user {
            Some(beyond(&self.config.tenants.in_words(s.domain), user, "keys", "limits.keys_per_user"))
        } else {
            None
        };
        if failure.is_some() {
            self.keys.limits_reached_mut().keys += 1;
        }
        failure.or_else(|| self.node_has_too_many_keys())
    }

    /// Why the node cannot have one more key than those that it has; of these one is the newcomer.
    pub(super) fn node_has_too_many_keys(&mut self) -> Option<Failure> {
        let (has, limit) = (self.keys.records().len() as u64, self.config.limits.keys_per_node);
        (has > limit).then(|| {
            self.keys.limits_reached_mut().keys += 1;
            beyond(&format!("node {}", self.config.name), has - 1, "keys", "limits.keys_per_node")
        })
    }

    /// Why a worker cannot publish one more version.
    pub(super) fn too_many_versions(&mut self, session: SessionId) -> Option<Failure> {
        let limits = self.config.limits;
        let s = self.sessions.get(&session)?;
        let own = self.arenas.get(&s.arena).map_or(0, |arena| arena.blobs);
        let user = self.keys.versions_of_tenant(s.domain);
        let all = self.keys.blobs().len() as u64;
        let what = "versions published or read";
        let failure = if own >= limits.versions_per_worker {
            beyond(&format!("worker {}", s.name), own, what, "limits.versions_per_worker")
        } else if user >= limits.versions_per_user {
            beyond(&self.config.tenants.in_words(s.domain), user, what, "limits.versions_per_user")
        } else if all >= limits.versions_per_node {
            beyond(&format!("node {}", self.config.name), all, what, "limits.versions_per_node")
        } else {
            return None;
        };
        self.keys.limits_reached_mut().versions += 1;
        Some(failure)
    }

    /// How often pushes were refused at a limit.
    #[must_use]
    pub fn limits_reached(&self) -> LimitsReached {
        self.keys.limits_reached()
    }

    /// What has to hold of these numbers; for tests.
    #[cfg(test)]
    pub(super) fn check_limits(&self) -> Result<(), String> {
        let versions = self.keys.versions_counted();
        let blobs: u64 = self.arenas.values().map(|arena| arena.blobs).sum();
        match blobs == versions {
            true => Ok(()),
            false => Err(format!("{versions} versions, and {blobs} in arenas")),
        }
    }
}
