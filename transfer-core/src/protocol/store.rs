//! What is published here, and who may still reach it.

use super::board::OnBoard;
use super::ids::{BlobId, InFlowId, OperationId, RecordId, SlotId, of};
use super::limits::{Account, Counted};
use super::older::Older;
use super::slab::Slab;
use super::waiters::{Waiter, Waiters};
use super::{SessionId, Tenant};
use crate::alloc::Allocation;
use crate::fabric::LinkId;
use crate::memory::{LocalSlice, SegmentId};
use crate::op::OpId;
use crate::tensor::{Key, Name, Retention, Select, TensorMeta, Until, Version};
use crate::trace::TraceContext;
use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use std::collections::BTreeSet;
use std::hash::BuildHasher;

/// A range that somebody can reach. It ends with its last reference.
pub(super) struct Blob {
    pub(super) slice: LocalSlice,
    /// The body, where it lies in several ranges: `slice` is then the metadata and the table of these.
    pub(super) ranges: Option<Box<[LocalSlice]>>,
    pub(super) meta: TensorMeta,
    pub(super) version: Version,
    /// Being published counts one; so does each lease, each transfer that reads it, each ticket of a board, and an operation that is about to publish it.
    pub(super) refs: u32,
    pub(super) domain: Tenant,
    pub(super) source: Source,
    /// How long it stays published.
    pub(super) retention: Retention,
    /// How often it may still be fetched. Counted where its retention says so.
    pub(super) fetches_left: u32,
    /// Fetches that were counted and have not ended: a peer is getting it.
    pub(super) under_way: u32,
    /// Some other tenants may read it: [`Store::readers`].
    pub(super) is_shared: bool,
    /// It was published before the epoch of the newest version began.
    pub(super) before_epoch: bool,
    /// Its worker waits until nobody else can reach it.
    pub(super) awaited: Option<OperationId>,
    /// What pushed it, where that said so.
    pub(super) trace: Option<TraceContext>,
}

impl Blob {
    /// One that is not published yet, with one reference.
    pub(super) fn new(slice: LocalSlice, meta: TensorMeta, domain: Tenant, source: Source) -> Blob {
        let (version, retention) = (Version(0), Retention::default());
        Blob {
            slice,
            ranges: None,
            meta,
            version,
            refs: 1,
            domain,
            source,
            retention,
            fetches_left: u32::MAX,
            under_way: 0,
            is_shared: false,
            before_epoch: false,
            awaited: None,
            trace: None,
        }
    }

    /// How many ranges its body is made of; 0 where it lies in one piece behind the metadata.
    pub(super) fn range_count(&self) -> u32 {
        self.ranges.as_ref().map_or(0, |ranges| u32::try_from(ranges.len()).unwrap_or(u32::MAX))
    }

    /// The same, to be published for so long.
    pub(super) fn retained(mut self, retention: Retention) -> Blob {
        if let Until::Fetched(n) = retention.until {
            self.fetches_left = n.get();
        }
        self.retention = retention;
        self
    }
}

/// Where a blob's memory goes when nobody can reach it any more.
pub(super) enum Source {
    /// Back to the worker whose arena it lies in. `None`: the worker has it back already.
    Arena(Option<Lent>),
    /// Back to the pool of its domain.
    Pool(Box<Allocation>),
    /// To the sender that fills this landing slot.
    Slot(LinkId, SlotId),
    /// To the peer whose memory it is, which calls it so.
    Reference { link: LinkId, lease: u32 },
}

/// Who lent a range, and by which of its pushes.
#[derive(Clone, Copy)]
pub(super) struct Lent {
    pub(super) session: SessionId,
    pub(super) pushed: OpId,
}

/// Who may publish a key here.
pub(super) enum Owner {
    /// Nobody; somebody waits for the key.
    Nobody,
    /// The directory was asked.
    Claiming(Box<Claiming>),
    /// A worker of this sidecar.
    Session(SessionId),
    /// A worker elsewhere that pushes to one of ours.
    Landed(Box<Landed>),
    /// Nobody, but what its last owner published outlives it.
    Outlived(Box<Outlived>),
}

impl Owner {
    /// The sessions whose end concerns the key: the one that it is, or will be, and the one that it was before.
    fn sessions(&self) -> [Option<SessionId>; 2] {
        match self {
            Owner::Session(session) => [Some(*session), None],
            Owner::Landed(landed) => [Some(landed.target), None],
            Owner::Claiming(claiming) => {
                let claimant = match claiming.who {
                    Claimant::Session(session) => Some(session),
                    Claimant::Flow(..) | Claimant::Gone => None,
                };
                [claimant, claiming.before.as_ref().and_then(|before| before.sessions()[0])]
            }
            Owner::Nobody | Owner::Outlived(_) => [None, None],
        }
    }
}

pub(super) struct Outlived {
    /// The worker that may go on with it.
    pub(super) owner: Name,
    pub(super) domain: Tenant,
}

pub(super) struct Claiming {
    pub(super) owner: Name,
    pub(super) tenant: Tenant,
    pub(super) who: Claimant,
    /// Whether it takes the key over.
    pub(super) takeover: bool,
    /// Whose it is until then, and again if the directory refuses.
    pub(super) before: Option<Owner>,
    /// Takeovers by others, which go on after the answer.
    pub(super) behind: Vec<OperationId>,
    /// Pushes that wait for the answer, in order.
    pub(super) pushes: Vec<OperationId>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Claimant {
    Session(SessionId),
    Flow(LinkId, InFlowId),
    /// It went away before the answer came.
    Gone,
}

pub(super) struct Landed {
    /// The worker that pushes, which is of the target's tenant.
    pub(super) owner: Name,
    pub(super) tenant: Tenant,
    pub(super) target: SessionId,
    /// `None` once the link is lost: what has landed stays.
    pub(super) flow: Option<(LinkId, InFlowId)>,
}

/// A key.
pub(super) struct Record {
    pub(super) key: Key,
    /// Changed by [`Store::change_owner`] alone, where other sessions are concerned afterwards.
    pub(super) owner: Owner,
    /// The newest version.
    pub(super) current: Option<BlobId>,
    /// Versions that stay beside it; never empty. Boxed, as below.
    pub(super) older: Option<Box<Older>>,
    /// The lowest version that may be published next.
    pub(super) next_version: u64,
    /// The next version is the first of an epoch.
    pub(super) epoch_begins: bool,
    /// Boxed, for most keys have none most of the time and there may be millions of keys.
    pub(super) waiters: Option<Box<Waiters>>,
    /// The directory was asked where the key is.
    pub(super) resolving: bool,
    /// A worker here would watch a notice of its next versions.
    pub(super) watched: bool,
    pub(super) on_board: OnBoard,
    /// For whom it is counted.
    pub(super) account: Account,
}

impl Record {
    pub(super) fn wait(&mut self, waiter: Waiter, select: Select) {
        self.waiters.get_or_insert_default().add(waiter, select);
    }

    /// Whether a worker of this sidecar waits for a version.
    pub(super) fn is_awaited_here(&self) -> bool {
        self.waiters.as_ref().is_some_and(|waiters| waiters.has_local())
    }

    pub(super) fn take_waiters(&mut self) -> Vec<Waiter> {
        self.waiters.take().map_or_else(Vec::new, |waiters| waiters.into_all())
    }

    pub(super) fn forget_waiter(&mut self, waiter: Waiter) {
        if let Some(waiters) = &mut self.waiters {
            waiters.remove(waiter);
            if waiters.is_empty() {
                self.waiters = None;
            }
        }
    }

    pub(super) fn is_owned(&self) -> bool {
        !matches!(self.owner, Owner::Nobody)
    }

    /// What was published last and is there.
    pub(super) fn newest(&self) -> Option<BlobId> {
        self.current.or_else(|| self.older.as_ref()?.newest())
    }

    /// All versions that are there.
    pub(super) fn versions(&self) -> impl Iterator<Item = BlobId> + Clone + '_ {
        self.older.iter().flat_map(|older| older.iter()).chain(self.current)
    }

    /// A version stays beside the newest one. Returns one that had the same number.
    pub(super) fn stays_beside(&mut self, id: BlobId, blob: &Blob) -> Option<BlobId> {
        self.older.get_or_insert_default().insert(id, blob)
    }

    /// Gives back the memory of a table without entries.
    pub(super) fn tidy_older(&mut self) {
        if self.older.as_ref().is_some_and(|older| older.is_empty()) {
            self.older = None;
        }
    }

    /// How many versions are there.
    pub(super) fn count(&self) -> u32 {
        let older = self.older.as_ref().map_or(0, |o| o.len());
        u32::try_from(older + usize::from(self.current.is_some())).unwrap_or(u32::MAX)
    }

    /// Somebody else publishes this key from here on, at whatever version.
    pub(super) fn begin_epoch(&mut self) {
        self.next_version = 0;
        self.epoch_begins = true;
    }

    fn is_needed(&self) -> bool {
        self.is_owned() || self.current.is_some() || self.older.is_some() || self.waiters.is_some()
    }
}

#[derive(Default)]
pub(super) struct Store {
    index: HashTable<RecordId>,
    hasher: DefaultHashBuilder,
    pub(super) records: Slab<Record, of::Record>,
    pub(super) blobs: Slab<Blob, of::Blob>,
    /// Which other tenants may read a version, of those that some may.
    pub(super) readers: HashMap<BlobId, Box<[Tenant]>>,
    /// The keys that the end of a session concerns.
    keys_of: HashMap<SessionId, BTreeSet<RecordId>>,
    /// How many records have a published version.
    pub(super) published_count: u64,
    /// What each worker and user has.
    pub(super) counted: Counted,
}

impl Store {
    pub(super) fn find(&self, key: &str) -> Option<RecordId> {
        let hash = self.hasher.hash_one(key);
        self.index.find(hash, |id| self.records.get(*id).is_some_and(|r| r.key.as_str() == key)).copied()
    }

    pub(super) fn find_or_make(&mut self, key: &Key) -> RecordId {
        let Store { index, hasher, records, .. } = self;
        let hash = hasher.hash_one(key.as_str());
        let same = |id: &RecordId| records.get(*id).is_some_and(|r| r.key == *key);
        let rehash = |id: &RecordId| records.get(*id).map_or(0, |r| hasher.hash_one(r.key.as_str()));
        match index.entry(hash, same, rehash) {
            Entry::Occupied(e) => *e.get(),
            Entry::Vacant(e) => {
                let id = records.insert(Record {
                    key: key.clone(),
                    owner: Owner::Nobody,
                    current: None,
                    older: None,
                    next_version: 0,
                    epoch_begins: false,
                    waiters: None,
                    resolving: false,
                    watched: false,
                    on_board: OnBoard::default(),
                    account: Account::default(),
                });
                e.insert(id);
                id
            }
        }
    }

    /// Changes who may publish a key.
    pub(super) fn change_owner<R>(&mut self, id: RecordId, change: impl FnOnce(&mut Owner) -> R) -> Option<R> {
        let record = self.records.get_mut(id)?;
        let before = record.owner.sessions();
        let result = change(&mut record.owner);
        let after = record.owner.sessions();
        if before != after {
            for session in before.into_iter().flatten() {
                if let Some(keys) = self.keys_of.get_mut(&session) {
                    keys.remove(&id);
                    if keys.is_empty() {
                        self.keys_of.remove(&session);
                    }
                }
            }
            for session in after.into_iter().flatten() {
                self.keys_of.entry(session).or_default().insert(id);
            }
        }
        Some(result)
    }

    /// Sets who may publish a key. Returns who did before.
    pub(super) fn set_owner(&mut self, id: RecordId, owner: Owner) -> Option<Owner> {
        self.change_owner(id, |current| std::mem::replace(current, owner))
    }

    /// A key that is being claimed does not go back to whoever had it. Returns who that was.
    pub(super) fn no_former_owner(&mut self, id: RecordId) -> Option<Owner> {
        let take =
            |owner: &mut Owner| if let Owner::Claiming(claiming) = owner { claiming.before.take() } else { None };
        self.change_owner(id, take).flatten()
    }

    /// To which worker a key is pushed.
    pub(super) fn set_target(&mut self, id: RecordId, target: SessionId) {
        self.change_owner(id, |owner| {
            if let Owner::Landed(landed) = owner {
                landed.target = target;
            }
        });
    }

    /// Who claims a key.
    pub(super) fn set_claimant(&mut self, id: RecordId, who: Claimant) {
        self.change_owner(id, |owner| {
            if let Owner::Claiming(claiming) = owner {
                claiming.who = who;
            }
        });
    }

    /// The keys that the end of a session concerns: it publishes or claims them, others push them to it, or another worker is taking
    /// them over.
    pub(super) fn keys_of(&self, session: SessionId) -> Vec<RecordId> {
        self.keys_of.get(&session).map_or_else(Vec::new, |keys| keys.iter().copied().collect())
    }

    /// What has to hold of these tables; for tests.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), String> {
        let mut keys_of = HashMap::<SessionId, BTreeSet<RecordId>>::new();
        for (id, record) in self.records.iter() {
            for session in record.owner.sessions().into_iter().flatten() {
                keys_of.entry(session).or_default().insert(id);
            }
        }
        match keys_of == self.keys_of {
            true => Ok(()),
            false => Err(format!("sessions have the keys {keys_of:?}, and the table says {:?}", self.keys_of)),
        }
    }

    /// A version has fetches left again, or none any more.
    pub(super) fn has_fetches(&mut self, record: RecordId, blob: BlobId, has_fetches: bool) {
        if let (Some(r), Some(b)) = (self.records.get_mut(record), self.blobs.get(blob))
            && let Some(older) = r.older.as_mut()
            && older.exactly(b.version) == Some(blob)
        {
            older.has_fetches(b.version, has_fetches);
        }
    }

    /// Drops a record that nobody owns, reads or waits for. Returns its key where it was being resolved.
    pub(super) fn tidy(&mut self, id: RecordId) -> Option<Key> {
        let record = self.records.get(id)?;
        if record.is_needed() {
            return None;
        }
        let hash = self.hasher.hash_one(record.key.as_str());
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        let record = self.records.remove(id)?;
        self.counted.move_key(record.account, Account::default());
        record.resolving.then_some(record.key)
    }
}

/// An arena: a segment that a worker writes. It outlives its worker while somebody reads from it.
pub(super) struct Arena {
    pub(super) segment: SegmentId,
    /// Blobs that lie in it.
    pub(super) blobs: u64,
    /// How many ranges their bodies are made of, those of one piece not counted: what the node keeps tables of.
    pub(super) ranges: u64,
    pub(super) abandoned: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be millions of each. docs/performance.md says how much memory a published tensor takes.
    #[test]
    fn a_key_and_its_version_take_280_bytes_in_the_store() {
        assert!(size_of::<Blob>() <= 184, "{}", size_of::<Blob>());
        assert!(size_of::<Record>() <= 96, "{}", size_of::<Record>());
    }
}
