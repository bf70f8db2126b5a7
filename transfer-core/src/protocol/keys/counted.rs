//! Counts of keys and versions for each worker and tenant, updated as keys and versions come and go.

use super::{Claimant, Keys, Owner};
use crate::protocol::ids::RecordId;
use crate::protocol::ids::SessionId;
use crate::protocol::limits::LimitsReached;
use crate::protocol::tenant::Tenant;
use hashbrown::HashMap;

/// The session for which a key is counted, in a form that fits into a record. 0: no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(super) struct Account(u32);

struct Worker {
    domain: Tenant,
    keys: u64,
    /// The session is closed. The entry stays for the keys that have outlived the session.
    closed: bool,
}

/// The counts of all workers and tenants.
#[derive(Default)]
pub(super) struct Counted {
    last: u32,
    accounts: HashMap<SessionId, Account>,
    workers: HashMap<Account, Worker>,
    keys: HashMap<Tenant, u64>,
    versions: HashMap<Tenant, u64>,
    reached: LimitsReached,
}

/// Subtracts one from a tenant's count. A count of 0 is removed from the table.
fn less(counts: &mut HashMap<Tenant, u64>, domain: Tenant) {
    if let Some(count) = counts.get_mut(&domain) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(&domain);
        }
    }
}

impl Counted {
    fn open(&mut self, session: SessionId, domain: Tenant) {
        loop {
            self.last = self.last.wrapping_add(1);
            let account = Account(self.last);
            // Account numbers wrap around after 2^32 sessions.
            if self.last != 0 && !self.workers.contains_key(&account) {
                self.workers.insert(account, Worker { domain, keys: 0, closed: false });
                self.accounts.insert(session, account);
                return;
            }
        }
    }

    fn close(&mut self, session: SessionId) {
        let Some(account) = self.accounts.remove(&session) else { return };
        if let Some(worker) = self.workers.get_mut(&account) {
            worker.closed = true;
            if worker.keys == 0 {
                self.workers.remove(&account);
            }
        }
    }

    /// Counts a key for `to` instead of `from`.
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

impl Keys {
    /// Adds a worker, which may publish from now on.
    pub(crate) fn session_opened(&mut self, session: SessionId, domain: Tenant) {
        self.counted.open(session, domain);
    }

    /// Handles the end of a worker's session. Its keys have been [let go](Keys::let_go), or [outlive](Keys::outlive)
    /// it.
    pub(crate) fn session_closed(&mut self, session: SessionId) {
        self.counted.close(session);
    }

    /// Returns how many keys are counted for a worker.
    pub(crate) fn keys_of_worker(&self, session: SessionId) -> u64 {
        let account = self.counted.accounts.get(&session);
        account.and_then(|account| self.counted.workers.get(account)).map_or(0, |worker| worker.keys)
    }

    /// Returns how many keys are counted for all workers of a tenant.
    pub(crate) fn keys_of_tenant(&self, domain: Tenant) -> u64 {
        self.counted.keys.get(&domain).copied().unwrap_or(0)
    }

    /// Returns how many versions the workers of a tenant have pushed and not got back.
    pub(crate) fn versions_of_tenant(&self, domain: Tenant) -> u64 {
        self.counted.versions.get(&domain).copied().unwrap_or(0)
    }

    /// Returns how often pushes were refused at a limit.
    pub(crate) fn limits_reached(&self) -> LimitsReached {
        self.counted.reached
    }

    /// Returns the counters of refused pushes, for adding one more.
    pub(crate) fn limits_reached_mut(&mut self) -> &mut LimitsReached {
        &mut self.counted.reached
    }

    /// Counts a key for the worker that owns it, or that claims it while it has no owner. A key that has outlived its
    /// worker stays counted for that worker.
    pub(super) fn count_key(&mut self, record: RecordId) {
        let Some(r) = self.records.get_mut(record) else { return };
        let account = |session| self.counted.accounts.get(&session).copied().unwrap_or_default();
        let to = match &r.owner {
            Owner::Session(session) => account(*session),
            Owner::Claiming(claiming) => match claiming.who {
                Claimant::Session(session) if claiming.before.is_none() => account(session),
                _ => return,
            },
            Owner::Outlived(_) => return,
            Owner::Nobody | Owner::Landed(_) => Account::default(),
        };
        let from = std::mem::replace(&mut r.account, to);
        if from != to {
            self.counted.move_key(from, to);
        }
    }

    /// Checks that the counts match the records; for tests.
    #[cfg(test)]
    pub(super) fn check_counted(&self) -> Result<(), String> {
        let mut keys = HashMap::<Account, u64>::new();
        let counted = &self.counted;
        for (_, r) in self.records.iter() {
            if let Owner::Session(session) = &r.owner
                && counted.accounts.get(session).is_some_and(|account| *account != r.account)
            {
                return Err(format!("key {:?} is counted for another worker than its owner", r.key));
            }
            *keys.entry(r.account).or_default() += 1;
        }
        for (account, worker) in &counted.workers {
            let has = keys.get(account).copied().unwrap_or(0);
            if has != worker.keys || worker.closed && has == 0 {
                return Err(format!("{account:?} has {has} keys, and {} are counted", worker.keys));
            }
        }
        let all: u64 = counted.keys.values().sum();
        let sum: u64 = counted.workers.values().map(|worker| worker.keys).sum();
        match all == sum {
            true => Ok(()),
            false => Err(format!("{all} keys of tenants and {sum} of workers")),
        }
    }

    /// Returns how many versions are counted for all tenants; for tests.
    #[cfg(test)]
    pub(crate) fn versions_counted(&self) -> u64 {
        self.counted.versions.values().sum()
    }
}
