//! The versions of a key: the newest, those that stay beside it, which of them answers a fetch, and when each one ends.
//!
//! Versions rise within an *epoch*: the time in which one session, or one flow, owns the key. With the first version of a new epoch,
//! what stays of the ones before can only be asked for exactly.

use super::{Blob, Concerned, Keys, Waiter};
use crate::protocol::action::Actions;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, RecordId};
use crate::tensor::{Key, Life, Select, Until, Version};

/// What there is for a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Picked {
    /// This version.
    Blob(BlobId),
    /// Nothing any more: the key is at this version.
    Gone(Version),
    /// Nothing yet.
    NotYet,
}

impl Keys {
    /// The newest version that answers `select`.
    pub(crate) fn pick(&self, record: RecordId, select: Select) -> Picked {
        let Some(r) = self.records.get(record) else { return Picked::NotYet };
        if r.more_follow && !matches!(select, Select::Exactly(_)) {
            return Picked::NotYet;
        }
        // Where others are fetching all that there are, one comes back if they fail.
        let mut promised = false;
        let older = r.older.as_deref();
        let candidate = match select {
            Select::Exactly(version) => older.and_then(|older| older.exactly(version)),
            Select::Latest | Select::AtLeast(_) => {
                promised = older.is_some_and(|older| older.has_promised(select));
                older.and_then(|older| older.newest_free(select))
            }
        };
        for id in r.current.into_iter().chain(candidate) {
            let Some(b) = self.blobs.get(id) else { continue };
            if !select.takes(b.version) || b.before_epoch && !matches!(select, Select::Exactly(_)) {
                continue;
            }
            if b.fetches_left > 0 {
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

    /// The newest version of a key, if it is published still.
    pub(crate) fn current(&self, record: RecordId) -> Option<&Blob> {
        self.blobs.get(self.records.get(record)?.current?)
    }

    /// The version that a key is at.
    fn newest_version(&self, record: RecordId) -> Option<Version> {
        match self.current(record) {
            Some(b) => Some(b.version),
            None => self.records.get(record)?.next_version.checked_sub(1).map(Version),
        }
    }

    /// Makes a blob the newest version of its key. The caller's reference becomes the publication's. Returns the versions that end with
    /// it, to be unheld before those who wait are served.
    pub(crate) fn publish(
        &mut self,
        record: RecordId,
        blob: BlobId,
        version: Version,
        actions: &mut Actions,
    ) -> Vec<BlobId> {
        let mut ended = Vec::new();
        if let Some(b) = self.blobs.get_mut(blob) {
            b.version = version;
        }
        let Some(r) = self.records.get_mut(record) else { return ended };
        r.next_version = version.0.saturating_add(1);
        let epoch_begins = std::mem::take(&mut r.epoch_begins);
        let before = r.current.replace(blob);
        if before.is_none() {
            self.published_count += 1;
        }
        if let Some((id, b)) = before.and_then(|id| Some((id, self.blobs.get(id)?))) {
            if b.retention.until == Until::Replaced || b.version == version {
                ended.push(id);
            } else {
                ended.extend(r.stays_beside(id, b));
            }
        }
        if let Some(older) = &mut r.older {
            if epoch_begins {
                older.end_epoch();
            }
            ended.extend(older.remove(version));
        }
        r.tidy_older();
        // Before anybody hears of the new version: who has heard of it does not find the one before. Where somebody here waits for it,
        // nobody has to look for it; whoever comes later has it shown.
        let is_awaited_here = r.waiters.as_ref().is_some_and(|waiters| waiters.has_local());
        if is_awaited_here && !self.is_announced(blob) {
            self.hide(record, actions);
        } else {
            self.show(record, actions);
        }
        ended
    }

    /// A version that was [taken](Keys::take_version) is published again, if it still can be.
    pub(crate) fn publish_again(&mut self, record: RecordId, blob: BlobId, owner: SessionId) -> bool {
        let (Some(r), Some(b)) = (self.records.get_mut(record), self.blobs.get(blob)) else { return false };
        // Else the key has ended meanwhile, or is another's.
        if !r.owner.is(owner) {
            return false;
        }
        if r.current.is_none() && r.next_version == b.version.0.saturating_add(1) {
            r.current = Some(blob);
            self.published_count += 1;
            return true;
        }
        let stays = b.retention.until != Until::Replaced;
        if stays {
            r.stays_beside(blob, b);
        }
        stays
    }

    /// Somebody else publishes this key from here on, at whatever version.
    pub(crate) fn begin_epoch(&mut self, record: RecordId) {
        if let Some(r) = self.records.get_mut(record) {
            r.next_version = 0;
            r.epoch_begins = true;
            r.more_follow = false;
        }
    }

    /// The version that is published next is one that others follow, or the last of them.
    pub(crate) fn set_more_follow(&mut self, record: RecordId, more_follow: bool) {
        if let Some(r) = self.records.get_mut(record) {
            r.more_follow = more_follow;
        }
    }

    /// The last one of those that `owner` publishes again cannot be published: the newest is the highest of the others. Returns the key where
    /// some may wait for that.
    pub(crate) fn no_more_follow(&mut self, key: &Key, owner: SessionId, actions: &mut Actions) -> Option<RecordId> {
        let id = self.find(key)?;
        let record = self.records.get_mut(id).filter(|r| r.owner.is(owner))?;
        if !std::mem::take(&mut record.more_follow) {
            return None;
        }
        self.show(id, actions);
        Some(id)
    }

    /// Takes a version out of its key, with the reference that publishing it was. `false` where it had ended before. Its readers go on
    /// reading.
    pub(crate) fn take_version(&mut self, record: RecordId, blob: BlobId, actions: &mut Actions) -> bool {
        let Some(r) = self.records.get_mut(record) else { return false };
        if r.current == Some(blob) {
            r.current = None;
            self.published_count -= 1;
            self.hide(record, actions);
            return true;
        }
        let (Some(older), Some(b)) = (&mut r.older, self.blobs.get_mut(blob)) else { return false };
        if older.exactly(b.version) != Some(blob) {
            return false;
        }
        b.before_epoch |= older.is_before_epoch(b.version);
        older.remove(b.version);
        r.tidy_older();
        true
    }

    /// All versions of a key, or all but those that outlive their worker; and whether some are left.
    pub(crate) fn versions_to_end(&self, record: RecordId, but_outliving: bool) -> (Vec<BlobId>, bool) {
        let all = self.records.get(record).into_iter().flat_map(|r| r.versions());
        let stays = |id: &BlobId| self.blobs.get(*id).is_some_and(|b| b.retention.life == Life::Sidecar);
        let (left, ending): (Vec<_>, _) = all.partition(|id| but_outliving && stays(id));
        (ending, !left.is_empty())
    }

    /// Somebody is about to get it: where fetches are counted, nobody else gets this one.
    pub(crate) fn fetch_begins(&mut self, key: &Key, blob: BlobId) {
        if let Some(b) = self.blobs.get_mut(blob).filter(|b| b.counts_fetches()) {
            b.fetches_left = b.fetches_left.saturating_sub(1);
            b.under_way += 1;
            if b.fetches_left == 0
                && let Some(record) = self.find(key)
            {
                self.has_fetches(record, blob, false);
            }
        }
    }

    /// The end of what [`Keys::fetch_begins`] began: counted where it went `well`, else others may have it. Returns the version, if that
    /// concerns those who wait for it, and whether it has ended, and is to be unheld before they are served.
    pub(crate) fn fetch_ends(
        &mut self,
        record: RecordId,
        blob: BlobId,
        well: bool,
        actions: &mut Actions,
    ) -> Option<(Version, bool)> {
        let b = self.blobs.get_mut(blob).filter(|b| b.counts_fetches())?;
        b.under_way = b.under_way.saturating_sub(1);
        let version = b.version;
        if !well {
            b.fetches_left += 1;
            self.has_fetches(record, blob, true);
            return Some((version, false));
        }
        // Who waited for exactly this one waits in vain.
        let ends = b.fetches_left == 0 && b.under_way == 0;
        ends.then(|| (version, self.take_version(record, blob, actions)))
    }

    /// A version has fetches left again, or none any more.
    fn has_fetches(&mut self, record: RecordId, blob: BlobId, has_fetches: bool) {
        if let (Some(r), Some(b)) = (self.records.get_mut(record), self.blobs.get(blob))
            && let Some(older) = r.older.as_mut()
            && older.exactly(b.version) == Some(blob)
        {
            older.has_fetches(b.version, has_fetches);
        }
    }

    // ---- who waits ----

    /// Whether somebody waits for a version of this key.
    pub(crate) fn is_awaited(&self, record: RecordId) -> bool {
        self.records.get(record).is_some_and(|r| r.waiters.is_some())
    }

    /// What somebody waits for.
    pub(crate) fn select_of(&self, record: RecordId, waiter: Waiter) -> Option<Select> {
        self.records.get(record)?.waiters.as_ref()?.select(waiter)
    }

    /// The versions of which [`Keys::first_exactly`] may find somebody whom this event concerns.
    pub(crate) fn exactly_awaited(&mut self, record: RecordId, concerned: Concerned) -> Vec<Version> {
        let newest = self.newest_version(record);
        let waiters = self.records.get_mut(record).and_then(|r| r.waiters.as_mut());
        match (concerned, waiters, newest) {
            (Concerned::Version(version), ..) => vec![version],
            (Concerned::All, Some(waiters), Some(newest)) => waiters.exactly_until(newest),
            _ => Vec::new(),
        }
    }

    /// The first one that waits for this version and takes no other.
    pub(crate) fn first_exactly(&self, record: RecordId, version: Version) -> Option<Waiter> {
        self.records.get(record)?.waiters.as_ref()?.first_exactly(version)
    }

    /// The first one that takes the newest version there is, and would take a later one as well.
    pub(crate) fn first_rising(&self, record: RecordId) -> Option<Waiter> {
        let Picked::Blob(blob) = self.pick(record, Select::Latest) else { return None };
        let version = self.blobs.get(blob)?.version;
        self.records.get(record)?.waiters.as_ref()?.first_rising(version)
    }

    /// Nobody waits for what is there, or can never be: whatever has happened, those whom it concerns were looked at.
    #[cfg(test)]
    pub(super) fn check_waiters(&self) -> Result<(), String> {
        for (id, record) in self.records.iter() {
            if !record.is_owned() || self.is_asked(id) {
                continue;
            }
            for (waiter, select) in record.waiters.iter().flat_map(|waiters| waiters.iter()) {
                let picked = self.pick(id, select);
                if picked != Picked::NotYet {
                    return Err(format!("{waiter:?} waits for {select} of key {:?}: {picked:?}", record.key));
                }
            }
        }
        Ok(())
    }
}
