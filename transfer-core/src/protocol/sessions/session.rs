//! One connected worker, and its leases.

use super::Sessions;
use super::arenas::Arena;
use super::streams::Streams;
use crate::memory::SegmentId;
use crate::op::OpId;
use crate::protocol::ids::{BlobId, OperationId, SessionId};
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// The versions on which a worker holds leases, and the number of its leases on each.
pub(super) type Leases = BTreeMap<BlobId, u32>;

/// A connected worker.
pub(crate) struct Session {
    name: Name,
    /// The other node whose worker now has this name, according to the directory.
    name_at: Option<Name>,
    tenant: Tenant,
    arena: SegmentId,
    arena_len: u64,
    /// The memory that it has registered, and the length of that, by the places by which it names it.
    pub(super) regions: BTreeMap<u64, (SegmentId, u64)>,
    /// The first place that registered memory may have. No place is used twice.
    pub(super) next_region: u64,
    pub(super) ops: HashMap<OpId, OperationId>,
    /// The ranges of its arena in which its fetches are to land, without the first one of each.
    pub(super) more_ranges: usize,
    leases: Leases,
    /// The number of leases in `leases`.
    lent: u64,
    /// The number of its last announcement.
    announced: u64,
    /// The lowest version that may be pushed next, by key and target at another node. Stored when a flow's link is lost
    /// or its target changes.
    versions: HashMap<(Key, Name), u64>,
    /// The streams that it reads, if it has read one.
    pub(super) streams: Option<Box<Streams>>,
    /// The worker is evicted, and still owns keys.
    leaving: bool,
}

impl Session {
    /// Returns the worker's name.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the other node whose worker now has this name, if the directory has named one.
    pub(crate) fn name_at(&self) -> Option<&Name> {
        self.name_at.as_ref()
    }

    /// Returns the worker's tenant.
    pub(crate) fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Returns the number of ranges of its arena in which its fetches are to land, without the first one of each.
    pub(crate) fn more_ranges(&self) -> usize {
        self.more_ranges
    }

    /// Returns the segment that the worker writes, and its length in bytes.
    pub(crate) fn arena(&self) -> (SegmentId, u64) {
        (self.arena, self.arena_len)
    }

    /// Whether the worker is evicted, and is known only until its keys have ended.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Returns the number of the worker's last announcement.
    pub(crate) fn announced(&self) -> u64 {
        self.announced
    }

    /// Returns the number of leases that the worker holds.
    pub(crate) fn lent(&self) -> u64 {
        self.lent
    }

    /// Returns the number of the worker's waiting operations.
    pub(crate) fn waiting(&self) -> usize {
        self.ops.len()
    }

    /// Returns the operation to which the worker gave this number.
    pub(crate) fn op(&self, op: OpId) -> Option<OperationId> {
        self.ops.get(&op).copied()
    }

    /// Returns the stored lowest version that may be pushed next for this key and target; 0 if none is stored.
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
    /// Adds a worker that has connected. The caller must have refused a name that is already taken.
    pub(crate) fn open(&mut self, session: SessionId, name: Name, tenant: Tenant, arena: SegmentId, arena_len: u64) {
        self.by_name.insert(name.clone(), session);
        self.arenas.insert(arena, Arena::new(session));
        let (ops, leases, versions) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        let opened = Session {
            name,
            name_at: None,
            tenant,
            arena,
            arena_len,
            regions: BTreeMap::new(),
            next_region: 0,
            ops,
            more_ranges: 0,
            leases,
            lent: 0,
            announced: 0,
            versions,
            streams: None,
            leaving: false,
        };
        self.sessions.insert(session, opened);
    }

    /// Evicts a worker. Its leases stay, because the worker may still be reading. The session stays, without a name, until
    /// its keys have ended and the caller [forgets](Sessions::forget) it.
    pub(crate) fn evict(&mut self, session: SessionId) -> Option<Closed> {
        let s = self.sessions.get_mut(&session).filter(|s| !s.leaving)?;
        (s.leaving, s.lent) = (true, 0);
        let (name, tenant, arena) = (s.name.clone(), s.tenant, s.arena);
        let (leases, ops) = (std::mem::take(&mut s.leases), std::mem::take(&mut s.ops));
        self.forget_name(session, &name);
        self.evicted.insert(session, leases);
        let mut ops: Vec<_> = ops.into_values().collect();
        ops.sort_unstable();
        Some(Closed { name, tenant, arena, ops })
    }

    /// Removes an evicted worker.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Ends a lease of an evicted worker, which no longer reads. Returns the version. `None`: there are no more.
    pub(crate) fn take_lease(&mut self, session: SessionId) -> Option<BlobId> {
        let leases = self.evicted.get_mut(&session)?;
        let Some(mut first) = leases.first_entry() else {
            self.evicted.remove(&session);
            return None;
        };
        let blob = *first.key();
        *first.get_mut() -= 1;
        if *first.get() == 0 {
            first.remove();
        }
        Some(blob)
    }

    fn forget_name(&mut self, session: SessionId, name: &Name) {
        if self.by_name.get(name) == Some(&session) {
            self.by_name.remove(name);
        }
    }

    /// Marks a worker's name as lost: the directory has given it to a worker of `node`. Returns `false` if the session
    /// does not exist.
    pub(crate) fn lose_name(&mut self, session: SessionId, node: &Name) -> bool {
        let Some(s) = self.sessions.get_mut(&session) else { return false };
        s.name_at = Some(node.clone());
        let name = s.name.clone();
        self.forget_name(session, &name);
        true
    }

    /// Returns a connected worker.
    pub(crate) fn get(&self, session: SessionId) -> Option<&Session> {
        self.sessions.get(&session)
    }

    /// Returns a connected worker's tenant.
    pub(crate) fn tenant_of(&self, session: SessionId) -> Option<Tenant> {
        self.sessions.get(&session).map(|s| s.tenant)
    }

    /// Returns the session of the worker with this name.
    pub(crate) fn named(&self, name: &Name) -> Option<SessionId> {
        self.by_name.get(name).copied()
    }

    /// Returns all connected workers.
    pub(crate) fn all(&self) -> &BTreeMap<SessionId, Session> {
        &self.sessions
    }

    /// Returns the number of leases, including those of evicted workers.
    pub(crate) fn lent(&self) -> u64 {
        let evicted = self.evicted.values().flat_map(BTreeMap::values).map(|count| u64::from(*count)).sum::<u64>();
        self.sessions.values().map(|s| s.lent).sum::<u64>() + evicted
    }

    /// Gives a worker a lease on a version.
    pub(crate) fn lend(&mut self, session: SessionId, blob: BlobId) {
        if let Some(s) = self.sessions.get_mut(&session) {
            s.lent += 1;
            *s.leases.entry(blob).or_insert(0) += 1;
        }
    }

    /// Takes a lease back from a worker. Returns `false` if the worker does not hold one on this version.
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

    /// Stores the number of a worker's latest announcement.
    pub(crate) fn announce(&mut self, session: SessionId, count: u64) {
        if let Some(s) = self.sessions.get_mut(&session) {
            s.announced = count;
        }
    }

    /// Stores the lowest version that may be pushed next for a key and target, so that it outlives the flow. An earlier flow
    /// may end later.
    pub(crate) fn keep_version(&mut self, session: SessionId, way: (Key, Name), next: u64) {
        if let Some(s) = self.sessions.get_mut(&session) {
            let kept = s.versions.entry(way).or_default();
            *kept = next.max(*kept);
        }
    }

    /// Returns the evicted workers whose leases have not ended.
    #[cfg(test)]
    pub(crate) fn evicted(&self) -> Vec<SessionId> {
        self.evicted.keys().copied().collect()
    }

    /// Returns the names by which workers can be found.
    #[cfg(test)]
    pub(crate) fn names(&self) -> Vec<Name> {
        self.by_name.keys().cloned().collect()
    }
}
