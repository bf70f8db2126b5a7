//! A key, and the table of all keys.

use super::board::Standing;
use super::counted::Account;
use super::older::Older;
use super::waiters::{Waiter, Waiters};
use super::{Blob, Keys, Owner};
use crate::protocol::action::Actions;
use crate::protocol::directory::DirectoryRequest;
use crate::protocol::ids::{BlobId, RecordId};
use crate::tensor::{Key, Select};
use hashbrown::hash_table::Entry;
use std::hash::BuildHasher;

/// A key. There may be millions.
pub(crate) struct Record {
    pub(super) key: Key,
    /// Only the methods of `owner` change it. They update `Keys::keys_of` when the sessions change.
    pub(super) owner: Owner,
    /// The newest version.
    pub(super) current: Option<BlobId>,
    /// The lowest version that may be published next.
    pub(super) next_version: u64,
    /// The next version begins a new epoch.
    pub(super) epoch_begins: bool,
    /// `None` if there is nothing in it.
    aside: Option<Box<Aside>>,
    /// The directory was asked where the key is, and has not answered.
    pub(super) resolving: bool,
    /// A worker here would watch a notice of the key's next versions.
    pub(super) watched: bool,
    pub(super) on_board: Standing,
    /// The session for which the key is counted.
    pub(super) account: Account,
    /// The number of the owner's entry in the directory, or 0.
    pub(super) entered: u64,
}

/// What most keys do not have, most of the time.
#[derive(Default)]
struct Aside {
    /// The versions that stay beside the newest one.
    older: Older,
    waiters: Waiters,
    /// The owner publishes its versions again, and the newest one is still to come: see
    /// [`crate::op::Push::more_follow`].
    more_follow: bool,
    /// The owner wants to know how many versions are left; see [`crate::op::Request::CountUnfetched`].
    counting: Option<u64>,
}

impl Record {
    /// The most bytes of one: its part of the goal for a published tensor.
    #[cfg(test)]
    const MAX_BYTES: usize = 72;

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn is_owned(&self) -> bool {
        !matches!(self.owner, Owner::Nobody)
    }

    /// The number of the owner's entry in the directory, or 0.
    pub(crate) fn entered(&self) -> u64 {
        self.entered
    }

    /// The lowest version that may be published next.
    pub(crate) fn next_version(&self) -> u64 {
        self.next_version
    }

    /// Returns the newest version that is still published.
    pub(crate) fn newest(&self) -> Option<BlobId> {
        self.current.or_else(|| self.older()?.newest())
    }

    /// Returns all versions that are still published.
    pub(crate) fn versions(&self) -> impl Iterator<Item = BlobId> + Clone + '_ {
        self.older().into_iter().flat_map(Older::iter).chain(self.current)
    }

    /// Returns how many versions are still published.
    pub(crate) fn count(&self) -> u32 {
        let older = self.older().map_or(0, Older::len);
        u32::try_from(older + usize::from(self.current.is_some())).unwrap_or(u32::MAX)
    }

    /// Keeps a version beside the newest one. Returns the version that had the same number, if there was one.
    pub(super) fn stays_beside(&mut self, id: BlobId, blob: &Blob) -> Option<BlobId> {
        self.aside.get_or_insert_default().older.insert(id, blob)
    }

    /// The versions that stay beside the newest one, if there are any.
    pub(super) fn older(&self) -> Option<&Older> {
        self.aside.as_ref().map(|aside| &aside.older).filter(|older| !older.is_empty())
    }

    /// The same, to change them. A caller that removes one must call [`Record::tidy`] afterwards.
    pub(super) fn older_mut(&mut self) -> Option<&mut Older> {
        self.aside.as_mut().map(|aside| &mut aside.older).filter(|older| !older.is_empty())
    }

    /// Takes all of them.
    pub(super) fn take_older(&mut self) -> Option<Older> {
        let older = std::mem::take(self.older_mut()?);
        self.tidy();
        Some(older)
    }

    /// The waiters for versions of this key, if there are any.
    pub(super) fn waiters(&self) -> Option<&Waiters> {
        self.aside.as_ref().map(|aside| &aside.waiters).filter(|waiters| !waiters.is_empty())
    }

    /// The same, to change them. A caller that removes one must call [`Record::tidy`] afterwards.
    pub(super) fn waiters_mut(&mut self) -> Option<&mut Waiters> {
        self.aside.as_mut().map(|aside| &mut aside.waiters).filter(|waiters| !waiters.is_empty())
    }

    /// Whether the owner publishes its versions again, and the newest one is still to come.
    pub(super) fn more_follow(&self) -> bool {
        self.aside.as_ref().is_some_and(|aside| aside.more_follow)
    }

    /// Sets it. Returns what it was.
    pub(super) fn set_more_follow(&mut self, more_follow: bool) -> bool {
        let was = self.more_follow();
        if was != more_follow {
            self.aside.get_or_insert_default().more_follow = more_follow;
            self.tidy();
        }
        was
    }

    /// The number under which the owner wants to know how many versions are left.
    pub(super) fn counting(&self) -> Option<u64> {
        self.aside.as_ref()?.counting
    }

    pub(super) fn set_counting(&mut self, counting: Option<u64>) {
        if self.counting() != counting {
            self.aside.get_or_insert_default().counting = counting;
            self.tidy();
        }
    }

    /// Frees what has become empty.
    pub(super) fn tidy(&mut self) {
        let Some(aside) = &mut self.aside else { return };
        if aside.waiters.is_empty() {
            if aside.older.is_empty() && !aside.more_follow && aside.counting.is_none() {
                self.aside = None;
                return;
            }
            // The next waiters begin anew: these remember which versions they have looked at.
            aside.waiters = Waiters::default();
        }
    }

    /// Removes a waiter.
    pub(super) fn forget_waiter(&mut self, waiter: Waiter) {
        if let Some(waiters) = self.waiters_mut() {
            waiters.remove(waiter);
            self.tidy();
        }
    }

    fn is_needed(&self) -> bool {
        self.is_owned() || self.current.is_some() || self.older().is_some() || self.waiters().is_some()
    }
}

impl Keys {
    /// Returns the record of a key.
    pub(crate) fn record(&self, id: RecordId) -> Option<&Record> {
        self.records.get(id)
    }

    /// Returns the record of a key, if there is one: the key has an owner, versions or waiters.
    pub(crate) fn find(&self, key: &Key) -> Option<RecordId> {
        let hash = self.hasher.hash_one(key.as_str());
        let has_key = |at: &u32| self.records.at(*at).is_some_and(|r| r.key == *key);
        self.index.find(hash, has_key).map(|at| self.records.id_at(*at))
    }

    /// Returns the record of a key, and makes one if there is none. The caller is about to set an owner or to add a
    /// waiter.
    pub(crate) fn find_or_make(&mut self, key: &Key) -> RecordId {
        let Keys { index, hasher, records, .. } = self;
        let hash = hasher.hash_one(key.as_str());
        let same = |at: &u32| records.at(*at).is_some_and(|r| r.key == *key);
        let rehash = |at: &u32| records.at(*at).map_or(0, |r| hasher.hash_one(r.key.as_str()));
        match index.entry(hash, same, rehash) {
            Entry::Occupied(e) => records.id_at(*e.get()),
            Entry::Vacant(e) => {
                let id = records.insert(Record {
                    key: key.clone(),
                    owner: Owner::Nobody,
                    current: None,
                    next_version: 0,
                    epoch_begins: false,
                    aside: None,
                    resolving: false,
                    watched: false,
                    on_board: Standing::default(),
                    account: Account::default(),
                    entered: 0,
                });
                e.insert(id.index());
                id
            }
        }
    }

    /// Drops a record that has no owner, no versions and no waiters.
    pub(crate) fn tidy(&mut self, id: RecordId, actions: &mut Actions) {
        let Some(record) = self.records.get(id).filter(|record| !record.is_needed()) else { return };
        let hash = self.hasher.hash_one(record.key.as_str());
        if let Ok(entry) = self.index.find_entry(hash, |at| *at == id.index()) {
            entry.remove();
        }
        let Some(record) = self.records.remove(id) else { return };
        self.counted.move_key(record.account, Account::default());
        if record.resolving {
            actions.ask_directory(DirectoryRequest::StopResolve { key: record.key });
        }
    }

    /// Drops the record of this key, if there is one and it has no owner, no versions and no waiters.
    pub(crate) fn tidy_key(&mut self, key: &Key, actions: &mut Actions) {
        if let Some(id) = self.find(key) {
            self.tidy(id, actions);
        }
    }

    /// Asks the directory where a key is, unless it has been asked already. Only entries newer than `newer_than` count.
    pub(crate) fn resolve(&mut self, id: RecordId, newer_than: u64, actions: &mut Actions) {
        if let Some(r) = self.records.get_mut(id)
            && !std::mem::replace(&mut r.resolving, true)
        {
            actions.ask_directory(DirectoryRequest::Resolve { key: r.key.clone(), newer_than });
        }
    }

    /// Whether the directory was asked where a key is, and has not answered.
    pub(crate) fn is_resolving(&self, id: RecordId) -> bool {
        self.records.get(id).is_some_and(|r| r.resolving)
    }

    /// The directory has answered where a key is.
    pub(crate) fn resolved(&mut self, id: RecordId) {
        if let Some(r) = self.records.get_mut(id) {
            r.resolving = false;
        }
    }

    /// Asks the directory again about all keys for which it was asked, because the directory is a new one.
    pub(crate) fn resolve_all(&self, actions: &mut Actions) {
        for (_, r) in self.records.iter().filter(|(_, r)| r.resolving) {
            actions.ask_directory(DirectoryRequest::Resolve { key: r.key.clone(), newer_than: 0 });
        }
    }

    /// Adds a waiter for a version.
    pub(crate) fn wait(&mut self, id: RecordId, waiter: Waiter, select: Select) {
        if let Some(r) = self.records.get_mut(id) {
            r.aside.get_or_insert_default().waiters.add(waiter, select);
        }
    }

    /// Removes a waiter, and drops the record if the key is not needed without it.
    pub(crate) fn forget_waiter(&mut self, key: &Key, waiter: Waiter, actions: &mut Actions) {
        if let Some(id) = self.find(key) {
            self.take_waiter(id, waiter);
            self.tidy(id, actions);
        }
    }

    /// Removes a waiter of a key that is still needed.
    pub(crate) fn take_waiter(&mut self, id: RecordId, waiter: Waiter) {
        if let Some(r) = self.records.get_mut(id) {
            r.forget_waiter(waiter);
        }
    }

    /// Removes and returns all waiters, which have to look for the key elsewhere.
    pub(crate) fn take_waiters(&mut self, id: RecordId) -> Vec<Waiter> {
        let Some(r) = self.records.get_mut(id) else { return Vec::new() };
        let waiters = r.waiters_mut().map(std::mem::take);
        r.tidy();
        waiters.map_or_else(Vec::new, Waiters::into_all)
    }

    /// Notes that a worker would watch a notice of the key's next version.
    pub(crate) fn watch(&mut self, key: &Key) {
        if let Some(r) = self.find(key).and_then(|id| self.records.get_mut(id)) {
            r.watched = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A published tensor has the goal of docs/performance.md, "What each takes of the sidecar", and `transfer-bench idle`
    /// measures all of it. Of the goal a version and its key have these bytes in the tables of [`Keys`]. The other bytes are
    /// the text of the key, the index by key, and what its worker and the allocator keep.
    #[test]
    fn a_version_and_its_key_stay_within_their_part_of_the_goal() {
        // A place of the tables may be vacant, which must take no byte.
        let (version, key) = (size_of::<Option<Blob>>(), size_of::<Option<Record>>());
        assert!(version <= Blob::MAX_BYTES, "a version takes {version} bytes, at most {} are planned", Blob::MAX_BYTES);
        assert!(key <= Record::MAX_BYTES, "a key takes {key} bytes, at most {} are planned", Record::MAX_BYTES);
    }
}
