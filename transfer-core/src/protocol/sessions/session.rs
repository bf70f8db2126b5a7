//! One connected worker, and its leases.

use super::Sessions;
use super::arenas::Arena;
use crate::memory::SegmentId;
use crate::op::OpId;
use crate::protocol::ids::{BlobId, OperationId, SessionId};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// What a worker reads, and how often it was handed that.
pub(super) type Leases = HashMap<BlobId, u32>;

/// A connected worker.
pub(crate) struct Session {
    name: Name,
    /// The node whose worker has this name by the directory's word.
    name_at: Option<Name>,
    tenant: Tenant,
    arena: SegmentId,
    arena_len: u64,
    pub(super) ops: HashMap<OpId, OperationId>,
    leases: Leases,
    /// How many leases that are.
    lent: u64,
    /// The number of its last announcement.
    announced: u64,
    /// The lowest version that may be pushed next to a worker elsewhere, where no flow has it.
    versions: HashMap<(Key, Name), u64>,
}

impl Session {
    /// The worker's name.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// The node whose worker has this name, where that is another one.
    pub(crate) fn name_at(&self) -> Option<&Name> {
        self.name_at.as_ref()
    }

    /// Its tenant.
    pub(crate) fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// The segment that it writes, and its length in bytes.
    pub(crate) fn arena(&self) -> (SegmentId, u64) {
        (self.arena, self.arena_len)
    }

    /// The number of its last announcement.
    pub(crate) fn announced(&self) -> u64 {
        self.announced
    }

    /// How many leases it has.
    pub(crate) fn lent(&self) -> u64 {
        self.lent
    }

    /// How many operations of it wait.
    pub(crate) fn waiting(&self) -> usize {
        self.ops.len()
    }

    /// The operation that the worker calls so.
    pub(crate) fn op(&self, op: OpId) -> Option<OperationId> {
        self.ops.get(&op).copied()
    }

    /// The lowest version that may be pushed next under a key to a worker elsewhere.
    pub(crate) fn next_version(&self, way: &(Key, Name)) -> u64 {
        self.versions.get(way).copied().unwrap_or(0)
    }
}

/// A session that has ended.
pub(crate) struct Closed {
    pub(crate) name: Name,
    pub(crate) tenant: Tenant,
    pub(crate) arena: SegmentId,
    /// Its operations, in the order of their ids.
    pub(crate) ops: Vec<OperationId>,
}

impl Sessions {
    /// A worker connected. A name that is taken must have been refused before.
    pub(crate) fn open(&mut self, session: SessionId, name: Name, tenant: Tenant, arena: SegmentId, arena_len: u64) {
        self.by_name.insert(name.clone(), session);
        self.arenas.insert(arena, Arena::default());
        let (ops, leases, versions) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (name_at, lent, announced) = (None, 0, 0);
        let opened = Session { name, name_at, tenant, arena, arena_len, ops, leases, lent, announced, versions };
        self.sessions.insert(session, opened);
    }

    /// A worker is thrown out. Its leases stay, for it may be reading still.
    pub(crate) fn evict(&mut self, session: SessionId) -> Option<Closed> {
        let Session { name, tenant, arena, ops, leases, .. } = self.sessions.remove(&session)?;
        self.forget_name(session, &name);
        self.evicted.insert(session, leases);
        let mut ops: Vec<_> = ops.into_values().collect();
        ops.sort_unstable();
        Some(Closed { name, tenant, arena, ops })
    }

    /// A worker that was thrown out reads nothing any more. Returns what it read, once for each lease.
    pub(crate) fn take_leases(&mut self, session: SessionId) -> Vec<BlobId> {
        let mut leases: Vec<_> = self.evicted.remove(&session).unwrap_or_default().into_iter().collect();
        leases.sort_unstable_by_key(|(blob, _)| *blob);
        leases.into_iter().flat_map(|(blob, count)| std::iter::repeat_n(blob, count as usize)).collect()
    }

    fn forget_name(&mut self, session: SessionId, name: &Name) {
        if self.by_name.get(name) == Some(&session) {
            self.by_name.remove(name);
        }
    }

    /// The directory has given a worker's name to a worker of that node. Whether there is such a worker.
    pub(crate) fn lose_name(&mut self, session: SessionId, node: &Name) -> bool {
        let Some(s) = self.sessions.get_mut(&session) else { return false };
        s.name_at = Some(node.clone());
        let name = s.name.clone();
        self.forget_name(session, &name);
        true
    }

    /// A connected worker.
    pub(crate) fn get(&self, session: SessionId) -> Option<&Session> {
        self.sessions.get(&session)
    }

    /// A connected worker's tenant.
    pub(crate) fn tenant_of(&self, session: SessionId) -> Option<Tenant> {
        self.sessions.get(&session).map(|s| s.tenant)
    }

    /// The worker of this name.
    pub(crate) fn named(&self, name: &Name) -> Option<SessionId> {
        self.by_name.get(name).copied()
    }

    /// All connected workers.
    pub(crate) fn all(&self) -> &BTreeMap<SessionId, Session> {
        &self.sessions
    }

    /// How many leases there are, those of workers that were thrown out too.
    pub(crate) fn lent(&self) -> u64 {
        let evicted = self.evicted.values().flat_map(HashMap::values).map(|count| u64::from(*count)).sum::<u64>();
        self.sessions.values().map(|s| s.lent).sum::<u64>() + evicted
    }

    /// A worker gets a lease.
    pub(crate) fn lend(&mut self, session: SessionId, blob: BlobId) {
        if let Some(s) = self.sessions.get_mut(&session) {
            s.lent += 1;
            *s.leases.entry(blob).or_insert(0) += 1;
        }
    }

    /// A worker gives a lease back. `false`: it does not hold one.
    pub(crate) fn give_back(&mut self, session: SessionId, blob: BlobId) -> bool {
        let Some(s) = self.sessions.get_mut(&session) else { return false };
        let Some(count) = s.leases.get_mut(&blob) else { return false };
        *count -= 1;
        s.lent = s.lent.saturating_sub(1);
        if *count == 0 {
            s.leases.remove(&blob);
        }
        true
    }

    /// A worker has made an announcement of this number.
    pub(crate) fn announce(&mut self, session: SessionId, count: u64) {
        if let Some(s) = self.sessions.get_mut(&session) {
            s.announced = count;
        }
    }

    /// Versions rise as long as the session lasts, whatever becomes of the flow.
    pub(crate) fn keep_version(&mut self, session: SessionId, way: (Key, Name), next: u64) {
        if let Some(s) = self.sessions.get_mut(&session) {
            s.versions.insert(way, next);
        }
    }

    /// The workers that were thrown out and have not gone.
    #[cfg(test)]
    pub(crate) fn evicted(&self) -> Vec<SessionId> {
        self.evicted.keys().copied().collect()
    }

    /// The workers that are found by their names.
    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<Name> {
        self.by_name.keys().cloned().collect()
    }
}
