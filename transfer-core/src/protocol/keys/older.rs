//! The versions of a key that stay beside its newest one.
//!
//! A worker may keep millions of versions of one key, so a fetch does not walk them: it finds a version by its number,
//! and the newest version with fetches left is the last one of a sorted map.

use super::Blob;
use crate::protocol::ids::BlobId;
use crate::tensor::{Select, Version};
use std::collections::BTreeMap;

type ByVersion = BTreeMap<u64, BlobId>;

/// The versions that stay. Each version number occurs at most once.
#[derive(Default)]
pub(in crate::protocol) struct Older {
    /// Published in this epoch, with fetches left.
    free: ByVersion,
    /// Published in this epoch. All of their fetches are in flight. If one fails, the version can be fetched again.
    promised: ByVersion,
    /// Published in earlier epochs. Only a fetch of exactly this version finds one of them.
    before: ByVersion,
}

impl Older {
    pub(in crate::protocol) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.free.len() + self.promised.len() + self.before.len()
    }

    /// Returns the versions of earlier epochs, then those of this epoch: first `promised`, then `free`. Each part is in
    /// rising order.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlobId> + Clone {
        self.before.values().chain(self.promised.values()).chain(self.free.values()).copied()
    }

    /// Takes one of the versions, in that order.
    pub(in crate::protocol) fn pop(&mut self) -> Option<BlobId> {
        let Older { free, promised, before } = self;
        [before, promised, free].into_iter().find_map(|part| part.pop_first()).map(|(_, id)| id)
    }

    /// Returns the first version from this number on.
    pub(super) fn first_from(&self, version: u64) -> Option<(u64, BlobId)> {
        let parts = [&self.before, &self.promised, &self.free];
        parts.into_iter().filter_map(|part| part.range(version..).next()).min().map(|(version, id)| (*version, *id))
    }

    /// Returns the highest version of this epoch, or of the earlier epochs if this one has none.
    pub(super) fn newest(&self) -> Option<BlobId> {
        let of_this = self.free.last_key_value().max(self.promised.last_key_value());
        of_this.or_else(|| self.before.last_key_value()).map(|(_, id)| *id)
    }

    /// Adds a version. Returns the version that had the same number, if there was one.
    pub(super) fn insert(&mut self, id: BlobId, added: &Blob) -> Option<BlobId> {
        let same = self.remove(added.version);
        let part = match added.before_epoch {
            true => &mut self.before,
            false if added.has_fetches_left() => &mut self.free,
            false => &mut self.promised,
        };
        part.insert(added.version.0, id);
        same
    }

    pub(super) fn remove(&mut self, version: Version) -> Option<BlobId> {
        let Older { free, promised, before } = self;
        [free, promised, before].into_iter().find_map(|part| part.remove(&version.0))
    }

    pub(super) fn exactly(&self, version: Version) -> Option<BlobId> {
        [&self.free, &self.promised, &self.before].into_iter().find_map(|part| part.get(&version.0)).copied()
    }

    /// Whether this version is of an earlier epoch.
    pub(super) fn is_before_epoch(&self, version: Version) -> bool {
        self.before.contains_key(&version.0)
    }

    /// Returns the newest version of this epoch with fetches left, if `select` takes it.
    pub(super) fn newest_free(&self, select: Select) -> Option<BlobId> {
        let (version, id) = self.free.last_key_value()?;
        select.takes(Version(*version)).then_some(*id)
    }

    /// Whether `select` takes a version of this epoch whose fetches are all in flight.
    pub(super) fn has_promised(&self, select: Select) -> bool {
        self.promised.last_key_value().is_some_and(|(version, _)| select.takes(Version(*version)))
    }

    /// Notes whether a version of this epoch has fetches left.
    pub(super) fn has_fetches(&mut self, version: Version, has_fetches: bool) {
        let Older { free, promised, .. } = self;
        let (from, to) = if has_fetches { (promised, free) } else { (free, promised) };
        if let Some(id) = from.remove(&version.0) {
            to.insert(version.0, id);
        }
    }

    /// Begins a new epoch: all versions that are here belong to earlier epochs now. Each version is moved once in its
    /// life.
    pub(super) fn end_epoch(&mut self) {
        self.before.extend(std::mem::take(&mut self.free));
        self.before.extend(std::mem::take(&mut self.promised));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{LocalSlice, SegmentId};
    use crate::protocol::keys::Source;
    use crate::protocol::tenant::Tenant;
    use crate::tensor::{DType, Shape, TensorMeta};

    fn id(n: u64) -> BlobId {
        BlobId::from_u64(n)
    }

    fn insert(older: &mut Older, version: u64, n: u64) -> Option<BlobId> {
        let slice = LocalSlice { segment: SegmentId(1), offset: 0, len: 64 };
        let meta = TensorMeta::new(DType::U8, Shape::new(&[64]).unwrap()).unwrap();
        let mut blob = Blob::new(slice, meta, Tenant::User(0), Source::Returned);
        blob.version = Version(version);
        older.insert(id(n), &blob)
    }

    #[test]
    fn newest_version_with_fetches_left_answers() {
        let mut older = Older::default();
        for n in 1..=3 {
            insert(&mut older, n, n);
        }
        older.has_fetches(Version(3), false);
        assert_eq!(older.newest_free(Select::Latest), Some(id(2)));
        assert_eq!(older.newest_free(Select::AtLeast(Version(3))), None);
        assert!(older.has_promised(Select::AtLeast(Version(3))));
        assert_eq!(older.newest(), Some(id(3)));
        older.has_fetches(Version(3), true);
        assert_eq!(older.newest_free(Select::AtLeast(Version(3))), Some(id(3)));
    }

    #[test]
    fn versions_of_earlier_epochs_are_found_only_by_number() {
        let mut older = Older::default();
        insert(&mut older, 7, 7);
        older.end_epoch();
        assert_eq!(older.newest_free(Select::Latest), None);
        assert_eq!(older.exactly(Version(7)), Some(id(7)));
        assert_eq!(insert(&mut older, 7, 8), Some(id(7)));
        assert_eq!((older.len(), older.exactly(Version(7))), (1, Some(id(8))));
    }
}
