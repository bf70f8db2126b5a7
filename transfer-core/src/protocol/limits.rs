//! How many keys and versions one worker, one user and the whole node may have.
//!
//! A key is small and a version too, so memory for tensors bounds neither: one range of 64 bytes can be pushed under any number of keys. What
//! a worker has is counted as it comes and goes, in numbers that this file keeps.

use super::ids::RecordId;
use super::node::Node;
use super::store::Owner;
use super::{SessionId, Tenant};
use crate::op::{Failure, FailureCode};
use hashbrown::HashMap;

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

/// How often pushes were refused at a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitsReached {
    /// At a limit of keys.
    pub keys: u64,
    /// At a limit of versions.
    pub versions: u64,
}

/// Who is counted for a key: a session, in a form that a record has room for. 0: nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct Account(u32);

struct Worker {
    domain: Tenant,
    keys: u64,
    /// Its session is closed; it stays for the keys that have outlived it.
    closed: bool,
}

/// What each has.
#[derive(Default)]
pub(super) struct Counted {
    last: u32,
    workers: HashMap<Account, Worker>,
    keys: HashMap<Tenant, u64>,
    versions: HashMap<Tenant, u64>,
    pub(super) reached: LimitsReached,
}

/// One less of what somebody has; nothing is kept of who has none.
fn less(counts: &mut HashMap<Tenant, u64>, domain: Tenant) {
    if let Some(count) = counts.get_mut(&domain) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&domain);
        }
    }
}

impl Counted {
    pub(super) fn open(&mut self, domain: Tenant) -> Account {
        loop {
            self.last = self.last.wrapping_add(1);
            let account = Account(self.last);
            // Numbers come round after 2^32 sessions.
            if self.last != 0 && !self.workers.contains_key(&account) {
                self.workers.insert(account, Worker { domain, keys: 0, closed: false });
                return account;
            }
        }
    }

    pub(super) fn close(&mut self, account: Account) {
        if let Some(worker) = self.workers.get_mut(&account) {
            worker.closed = true;
            if worker.keys == 0 {
                self.workers.remove(&account);
            }
        }
    }

    fn keys_of(&self, account: Account) -> u64 {
        self.workers.get(&account).map_or(0, |worker| worker.keys)
    }

    /// A key is counted for `to`, and no longer for `from`.
    pub(super) fn move_key(&mut self, from: Account, to: Account) {
        if let Some(worker) = self.workers.get_mut(&from) {
            worker.keys = worker.keys.saturating_sub(1);
            less(&mut self.keys, worker.domain);
            if worker.closed && worker.keys == 0 {
                self.workers.remove(&from);
            }
        }
        if let Some(worker) = self.workers.get_mut(&to) {
            worker.keys += 1;
            *self.keys.entry(worker.domain).or_default() += 1;
        }
    }

    pub(super) fn version_came(&mut self, domain: Tenant) {
        *self.versions.entry(domain).or_default() += 1;
    }

    pub(super) fn version_went(&mut self, domain: Tenant) {
        less(&mut self.versions, domain);
    }
}

fn beyond(whose: &str, has: u64, what: &str, setting: &str) -> Failure {
    let text = format!("{whose} has {has} {what}, which is {setting}; delete some, or raise it");
    Failure::new(FailureCode::Busy, text)
}

impl Node {
    /// Why a worker cannot have one more key.
    pub(super) fn too_many_keys(&mut self, session: SessionId) -> Option<Failure> {
        let (limits, counted) = (self.config.limits, &self.store.counted);
        let s = self.sessions.get(&session)?;
        let (own, user) = (counted.keys_of(s.account), counted.keys.get(&s.domain).copied().unwrap_or(0));
        let failure = if own >= limits.keys_per_worker {
            Some(beyond(&format!("worker {}", s.name), own, "keys", "limits.keys_per_worker"))
        } else if user >= limits.keys_per_user {
            Some(beyond(&self.config.tenants.in_words(s.domain), user, "keys", "limits.keys_per_user"))
        } else {
            None
        };
        if failure.is_some() {
            self.store.counted.reached.keys += 1;
        }
        failure.or_else(|| self.node_has_too_many_keys())
    }

    /// Why the node cannot have one more key than those that it has; of these one is the newcomer.
    pub(super) fn node_has_too_many_keys(&mut self) -> Option<Failure> {
        let (has, limit) = (self.store.records.len() as u64, self.config.limits.keys_per_node);
        (has > limit).then(|| {
            self.store.counted.reached.keys += 1;
            beyond(&format!("node {}", self.config.name), has - 1, "keys", "limits.keys_per_node")
        })
    }

    /// Why a worker cannot publish one more version.
    pub(super) fn too_many_versions(&mut self, session: SessionId) -> Option<Failure> {
        let limits = self.config.limits;
        let s = self.sessions.get(&session)?;
        let own = self.arenas.get(&s.arena).map_or(0, |arena| arena.blobs);
        let user = self.store.counted.versions.get(&s.domain).copied().unwrap_or(0);
        let all = self.store.blobs.len() as u64;
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
        self.store.counted.reached.versions += 1;
        Some(failure)
    }

    /// Counts a key for the worker that owns it, or claims it. To be called when that is another one than before; what has outlived its
    /// worker stays counted for that.
    pub(super) fn count_key(&mut self, record: RecordId) {
        let Some(r) = self.store.records.get_mut(record) else { return };
        let account = |session| self.sessions.get(&session).map_or(Account::default(), |s| s.account);
        let to = match &r.owner {
            Owner::Session(session) => account(*session),
            Owner::Claiming(claiming) => match claiming.who {
                super::store::Claimant::Session(session) if claiming.before.is_none() => account(session),
                _ => return,
            },
            Owner::Outlived(_) => return,
            Owner::Nobody | Owner::Landed(_) => Account::default(),
        };
        let from = std::mem::replace(&mut r.account, to);
        if from != to {
            self.store.counted.move_key(from, to);
        }
    }

    /// How often pushes were refused at a limit.
    #[must_use]
    pub fn limits_reached(&self) -> LimitsReached {
        self.store.counted.reached
    }

    /// What has to hold of these numbers; for tests.
    #[cfg(test)]
    pub(super) fn check_limits(&self) -> Result<(), String> {
        let mut keys = HashMap::<Account, u64>::new();
        for (_, r) in self.store.records.iter() {
            if let Owner::Session(session) = &r.owner
                && self.sessions.get(session).is_some_and(|s| s.account != r.account)
            {
                return Err(format!("key {:?} is counted for another worker than its owner", r.key));
            }
            *keys.entry(r.account).or_default() += 1;
        }
        let counted = &self.store.counted;
        for (account, worker) in &counted.workers {
            let has = keys.get(account).copied().unwrap_or(0);
            if has != worker.keys || worker.closed && has == 0 {
                return Err(format!("{account:?} has {has} keys, and {} are counted", worker.keys));
            }
        }
        let all: u64 = counted.keys.values().sum();
        let sum: u64 = counted.workers.values().map(|worker| worker.keys).sum();
        let blobs: u64 = self.arenas.values().map(|arena| arena.blobs).sum();
        let versions: u64 = counted.versions.values().sum();
        if all != sum || blobs != versions {
            return Err(format!("{all} keys of users and {sum} of workers, {versions} versions and {blobs} in arenas"));
        }
        Ok(())
    }
}
