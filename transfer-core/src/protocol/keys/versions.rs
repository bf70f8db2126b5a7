//! The versions of a key: the newest one, those beside it, which of them answers a fetch, and when each one ends.
//!
//! Versions rise within an *epoch*: the time in which one session, or one flow, owns the key. Once the first version of
//! a new epoch is published, a version of an earlier epoch answers only a fetch of exactly that version.

use super::{Blob, Concerned, Keys, Older, Owner, Record, Waiter};
use crate::protocol::action::Actions;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, RecordId};
use crate::tensor::{Key, Life, Select, Until, Version};
use crate::time::Time;
use smallvec::SmallVec;

/// The result of looking for a version that answers a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Picked {
    /// This version answers the fetch.
    Blob(BlobId),
    /// No version can answer the fetch any more. The key is at this version.
    Gone(Version),
    /// No version answers the fetch yet.
    NotYet,
}

impl Keys {
    /// Returns the newest version that answers `select`.
    pub(crate) fn pick(&self, record: RecordId, select: Select) -> Picked {
        let Some(r) = self.records.get(record) else { return Picked::NotYet };
        if r.more_follow() && !select.is_exact() {
            return Picked::NotYet;
        }
        let select = self.resolve_after(record, select);
        // All fetches of a matching version may be in flight. If one of them fails, the version can be fetched again.
        let mut promised = false;
        let older = r.older();
        let candidate = match select {
            Select::Exactly(version) | Select::Following(version) => older.and_then(|older| older.exactly(version)),
            Select::Latest | Select::AtLeast(_) | Select::After(_) => {
                promised = older.is_some_and(|older| older.has_promised(select));
                older.and_then(|older| older.newest_free(select))
            }
        };
        for id in r.current.into_iter().chain(candidate) {
            let Some(b) = self.blobs.get(id) else { continue };
            if !select.takes(b.version) || b.before_epoch && !select.is_exact() {
                continue;
            }
            if b.has_fetches_left() {
                return Picked::Blob(id);
            }
            promised = true;
        }
        match self.newest_version(record) {
            Some(Version(newest)) if !promised && select.missed(Version(newest.saturating_add(1))) => {
                Picked::Gone(Version(newest))
            }
            _ => Picked::NotYet,
        }
    }

    /// Resolves "another version than the one seen". In the epoch of that version this is a newer one: an older one that has
    /// fetches left was seen, too, or replaced. Where the newest is lower, another epoch has begun, and any of its versions
    /// will do.
    fn resolve_after(&self, record: RecordId, select: Select) -> Select {
        match (select, self.newest_version(record)) {
            (Select::After(seen), Some(newest)) if newest < seen => Select::Latest,
            (Select::After(Version(seen)), _) => Select::AtLeast(Version(seen.saturating_add(1))),
            _ => select,
        }
    }

    /// Returns the newest version of a key, if it is still published.
    pub(crate) fn current(&self, record: RecordId) -> Option<&Blob> {
        self.blobs.get(self.records.get(record)?.current?)
    }

    /// Returns the number of the key's newest version, even if that version has ended.
    fn newest_version(&self, record: RecordId) -> Option<Version> {
        match self.current(record) {
            Some(b) => Some(b.version),
            None => self.records.get(record)?.next_version.checked_sub(1).map(Version),
        }
    }

    /// Makes a blob the newest version of its key. The caller's reference becomes the publication's. Returns the
    /// versions that end with this, which the caller releases before it serves waiters.
    pub(crate) fn publish(
        &mut self,
        now: Time,
        record: RecordId,
        blob: BlobId,
        version: Version,
        actions: &mut Actions,
    ) -> SmallVec<[BlobId; 2]> {
        let mut ended = SmallVec::new();
        if let Some(b) = self.blobs.get_mut(blob) {
            b.publish(now, version);
        }
        let Some(r) = self.records.get_mut(record) else { return ended };
        r.next_version = version.0.saturating_add(1);
        let epoch_begins = std::mem::take(&mut r.epoch_begins);
        let before = r.current.replace(blob);
        if before.is_none() {
            self.published_count += 1;
        }
        if let Some((id, b)) = before.and_then(|id| Some((id, self.blobs.get(id)?))) {
            if b.retention().until == Until::Replaced || b.version == version {
                ended.push(id);
            } else {
                ended.extend(r.stays_beside(id, b));
            }
        }
        if let Some(older) = r.older_mut() {
            if epoch_begins {
                older.end_epoch();
            }
            ended.extend(older.remove(version));
        }
        r.tidy();
        // This comes before any answer, so a worker that knows of the new version does not find the old one on the
        // board. If a worker here waits for the new version, the board need not show it: it is shown once a later fetch
        // asks for it.
        let is_awaited_here = r.waiters().is_some_and(|waiters| waiters.has_local());
        if is_awaited_here && !self.is_announced(blob) {
            self.hide(record, actions);
        } else {
            self.show(record, actions);
        }
        ended
    }

    /// Whether this is the newest version of its key.
    pub(crate) fn is_current(&self, record: RecordId, blob: BlobId) -> bool {
        self.records.get(record).is_some_and(|r| r.current == Some(blob))
    }

    /// Puts another blob in the place of the newest version of a key, which stays the same version. The caller gets the
    /// publication's reference to the one before. Returns `false` if that is not the newest version any more; nothing
    /// changes then.
    pub(crate) fn move_to(&mut self, key: &Key, from: BlobId, to: Blob, actions: &mut Actions) -> bool {
        let Some(record) = self.find(key).filter(|record| self.is_current(*record, from)) else { return false };
        self.hide(record, actions);
        let readers = self.readers.get(&from).map_or_else(Vec::new, |readers| readers.to_vec());
        let to = self.insert(to);
        self.share(to, readers);
        if let Some(r) = self.records.get_mut(record) {
            r.current = Some(to);
        }
        true
    }

    /// Publishes a version again that was [taken](Keys::take_version) out of its key. Returns `false` if that is not
    /// possible any more.
    pub(crate) fn publish_again(&mut self, record: RecordId, blob: BlobId, owner: SessionId) -> bool {
        let (Some(r), Some(b)) = (self.records.get_mut(record), self.blobs.get(blob)) else { return false };
        // The key has ended meanwhile, or has another owner.
        if !r.owner.is(owner) {
            return false;
        }
        if r.current.is_none() && r.next_version == b.version.0.saturating_add(1) {
            r.current = Some(blob);
            self.published_count += 1;
            return true;
        }
        let stays = b.retention().until != Until::Replaced;
        if stays {
            r.stays_beside(blob, b);
        }
        stays
    }

    /// Begins a new epoch: its first version may have any number.
    pub(crate) fn begin_epoch(&mut self, record: RecordId) {
        if let Some(r) = self.records.get_mut(record) {
            r.next_version = 0;
            r.epoch_begins = true;
            r.set_more_follow(false);
            r.set_counting(None);
        }
    }

    /// Sets whether higher versions follow the version that is published next.
    pub(crate) fn set_more_follow(&mut self, record: RecordId, more_follow: bool) {
        if let Some(r) = self.records.get_mut(record) {
            r.set_more_follow(more_follow);
        }
    }

    /// Handles the failure of the last version that `owner` publishes again: the newest version is now the highest of
    /// the others. Returns the key if waiters may wait for that version.
    pub(crate) fn no_more_follow(&mut self, key: &Key, owner: SessionId, actions: &mut Actions) -> Option<RecordId> {
        let id = self.find(key)?;
        let record = self.records.get_mut(id).filter(|r| r.owner.is(owner))?;
        if !record.set_more_follow(false) {
            return None;
        }
        self.show(id, actions);
        Some(id)
    }

    /// Takes a version out of its key. The publication's reference passes to the caller. Returns `false` if the version
    /// had ended before. Readers keep the version.
    pub(crate) fn take_version(&mut self, record: RecordId, blob: BlobId, actions: &mut Actions) -> bool {
        let Some(r) = self.records.get_mut(record) else { return false };
        if r.current == Some(blob) {
            r.current = None;
            self.published_count -= 1;
            self.hide(record, actions);
            return true;
        }
        let (Some(older), Some(b)) = (r.older_mut(), self.blobs.get_mut(blob)) else { return false };
        if older.exactly(b.version) != Some(blob) {
            return false;
        }
        b.before_epoch |= older.is_before_epoch(b.version);
        older.remove(b.version);
        r.tidy();
        true
    }

    /// Takes all versions out of a key: the newest one, and those beside it. The publication's references pass to the
    /// caller. Readers keep what they have.
    pub(crate) fn take_all_versions(
        &mut self,
        record: RecordId,
        actions: &mut Actions,
    ) -> (Option<BlobId>, Option<Older>) {
        let Some(r) = self.records.get_mut(record) else { return (None, None) };
        let (older, current) = (r.take_older(), r.current);
        (current.filter(|newest| self.take_version(record, *newest, actions)), older)
    }

    /// Looks at the next versions beside the newest one, from this number on, and takes those out of the key that do not
    /// outlive their worker: of `most` versions. Returns them, and the number behind the last one that was looked at;
    /// `None`: all were.
    pub(crate) fn take_older_but_outliving(
        &mut self,
        record: RecordId,
        mut from: u64,
        most: u32,
        actions: &mut Actions,
    ) -> (Vec<BlobId>, Option<u64>) {
        let mut taken = Vec::new();
        for _ in 0..most {
            let older = self.records.get(record).and_then(Record::older);
            let Some((version, id)) = older.and_then(|older| older.first_from(from)) else { return (taken, None) };
            if !self.outlives_its_worker(id) && self.take_version(record, id, actions) {
                taken.push(id);
            }
            from = version.saturating_add(1);
        }
        (taken, Some(from))
    }

    /// Takes the newest version out of a key, unless it outlives its worker.
    pub(crate) fn take_newest_but_outliving(&mut self, record: RecordId, actions: &mut Actions) -> Option<BlobId> {
        let newest = self.records.get(record)?.current.filter(|newest| !self.outlives_its_worker(*newest))?;
        self.take_version(record, newest, actions).then_some(newest)
    }

    /// Whether a version stays when the worker that published it is gone.
    fn outlives_its_worker(&self, blob: BlobId) -> bool {
        self.blobs.get(blob).is_some_and(|b| b.retention().life != Life::Session)
    }

    /// Begins a fetch. If the version's fetches are counted, one fewer is left for others.
    pub(crate) fn fetch_begins(&mut self, key: &Key, blob: BlobId) {
        if let Some(counted) = self.blobs.get_mut(blob).and_then(Blob::counted_mut) {
            counted.left = counted.left.saturating_sub(1);
            counted.under_way += 1;
            if counted.left == 0
                && let Some(record) = self.find(key)
            {
                self.has_fetches(record, blob, false);
            }
        }
    }

    /// Ends a fetch that [`Keys::fetch_begins`] began. If it went `well`, it stays counted; if not, another fetch may
    /// take its place. If that concerns waiters, returns the version, and whether it has ended. The caller releases an
    /// ended version before it serves the waiters.
    pub(crate) fn fetch_ends(
        &mut self,
        record: RecordId,
        blob: BlobId,
        well: bool,
        actions: &mut Actions,
    ) -> Option<(Version, bool)> {
        let b = self.blobs.get_mut(blob)?;
        let version = b.version;
        let counted = b.counted_mut()?;
        counted.under_way = counted.under_way.saturating_sub(1);
        if !well {
            counted.left += 1;
            self.has_fetches(record, blob, true);
            return Some((version, false));
        }
        // Waiters for exactly this version can no longer get it.
        let ends = counted.left == 0 && counted.under_way == 0;
        ends.then(|| (version, self.take_version(record, blob, actions)))
    }

    /// Notes that this worker wants to know how many versions of its key are left. `None` if the key is not its own.
    pub(crate) fn count_unfetched(&mut self, key: &Key, session: SessionId, number: u64) -> Option<RecordId> {
        let id = self.find(key)?;
        self.records.get_mut(id).filter(|r| r.owner.is(session))?.set_counting(Some(number));
        Some(id)
    }

    /// Returns who wants to know how many versions of a key are left, under which number, and how many are.
    pub(crate) fn unfetched(&mut self, record: RecordId) -> Option<(SessionId, u64, u32)> {
        let r = self.records.get_mut(record)?;
        let (Owner::Session(session), Some(number)) = (&r.owner, r.counting()) else { return None };
        let told = (*session, number, r.count());
        if told.2 == 0 {
            r.set_counting(None);
        }
        Some(told)
    }

    /// Notes whether a version has fetches left.
    fn has_fetches(&mut self, record: RecordId, blob: BlobId, has_fetches: bool) {
        if let (Some(r), Some(b)) = (self.records.get_mut(record), self.blobs.get(blob))
            && let Some(older) = r.older_mut()
            && older.exactly(b.version) == Some(blob)
        {
            older.has_fetches(b.version, has_fetches);
        }
    }

    // ---- waiters ----

    /// Whether there are waiters for this key.
    pub(crate) fn is_awaited(&self, record: RecordId) -> bool {
        self.records.get(record).is_some_and(|r| r.waiters().is_some())
    }

    /// Returns what a waiter waits for.
    pub(crate) fn select_of(&self, record: RecordId, waiter: Waiter) -> Option<Select> {
        self.records.get(record)?.waiters()?.select(waiter)
    }

    /// Returns the versions for which [`Keys::first_exactly`] may find a waiter that this event concerns.
    pub(crate) fn exactly_awaited(&mut self, record: RecordId, concerned: Concerned) -> Vec<Version> {
        let newest = self.newest_version(record);
        let waiters = self.records.get_mut(record).and_then(|r| r.waiters_mut());
        match (concerned, waiters, newest) {
            (Concerned::Version(version), ..) => vec![version],
            (Concerned::All, Some(waiters), Some(newest)) => waiters.exactly_until(newest),
            _ => Vec::new(),
        }
    }

    /// Returns the first waiter that takes this version and no other.
    pub(crate) fn first_exactly(&self, record: RecordId, version: Version) -> Option<Waiter> {
        self.records.get(record)?.waiters()?.first_exactly(version)
    }

    /// Returns the first waiter that takes the newest available version, and would take a later one as well.
    pub(crate) fn first_rising(&self, record: RecordId) -> Option<Waiter> {
        let Picked::Blob(blob) = self.pick(record, Select::Latest) else { return None };
        let version = self.blobs.get(blob)?.version;
        // Where an epoch has begun and has no version yet, nobody has seen a newer one in it.
        let newest = self.newest_version(record).unwrap_or(Version(u64::MAX));
        self.records.get(record)?.waiters()?.first_rising(version, newest)
    }

    /// Checks that no waiter waits for a version that is published or can no longer come: each event has served the
    /// waiters that it concerns.
    #[cfg(test)]
    pub(super) fn check_waiters(&self) -> Result<(), String> {
        for (id, record) in self.records.iter() {
            if !record.is_owned() || self.is_asked(id) {
                continue;
            }
            for (waiter, select) in record.waiters().into_iter().flat_map(|waiters| waiters.iter()) {
                let picked = self.pick(id, select);
                if picked != Picked::NotYet {
                    return Err(format!("{waiter:?} waits for {select} of key {:?}: {picked:?}", record.key));
                }
            }
        }
        Ok(())
    }
}
