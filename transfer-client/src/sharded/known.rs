//! What a client knows of sharded states, and what it has pushed of them.

use super::plan::Global;
use super::plans::KeptPlans;
use super::records::RankLayout;
use super::roster::{Looked, Manifest};
use crate::error::{Error, ShardedError};
use crate::session::Connection;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use transfer_core::tensor::Key;
use transfer_core::wire::bundle::BundleTable;

/// The most versions that a rank keeps: the whole one, two unfinished ones, the one that is pushed, and those that are held.
const MAX_KEPT: usize = 8;

/// The most shards of all layouts that are remembered.
const MAX_SHARDS: usize = 1 << 18;

/// The most states whose last version is remembered.
const MAX_READ: usize = 1024;

/// The most states whose global tensors are remembered.
const MAX_GLOBALS: usize = 16;

/// A rank's layout, the table of its bundle, which follows from it, and its record.
#[derive(Debug, Clone)]
pub(crate) struct KnownLayout {
    pub(crate) layout: Arc<RankLayout>,
    pub(crate) table: Arc<BundleTable>,
    pub(crate) record: Arc<[u8]>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct KnownShards {
    pushed: HashMap<(Key, u32), PushedRank>,
    /// By state and digest: digests are not made to be safe from those who look for two equal ones.
    layouts: HashMap<(Key, u64), KnownLayout>,
    shards: usize,
    /// By state and the digests of all ranks.
    globals: HashMap<(Key, Box<[u64]>), Arc<Global>>,
    /// Those that were checked.
    checked: HashSet<(Key, Box<[u64]>)>,
    /// The last version of a state that was whole for a fetch, with its restart and a hash of its ranks.
    read: HashMap<Key, (u64, u64, u64)>,
    pub(super) plans: KeptPlans,
}

/// A rank that this process pushes.
#[derive(Debug)]
struct PushedRank {
    /// Tells this process, and each beginning of its versions, from others. The last bits are the place of a version.
    instance: u64,
    is_busy: bool,
    /// The restart of its last push.
    restart: u64,
    /// The newest version that was whole.
    whole: Option<u64>,
    kept: [Option<Kept>; MAX_KEPT],
}

/// A version whose shards are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) version: u64,
    /// The number in the key of its shards.
    pub(crate) instance: u64,
}

fn read(manifest: &Manifest) -> (u64, u64, u64) {
    let mut hasher = DefaultHasher::new();
    manifest.ranks.iter().for_each(|rank| rank.instance.hash(&mut hasher));
    (manifest.restart, manifest.version, hasher.finish())
}

/// A number that nobody else has, with a hexadecimal digit for a place: the keys of its versions are a [series](Key::series).
fn new_instance() -> u64 {
    series_of(crate::unique::number())
}

/// An instance without the place of a version.
fn series_of(instance: u64) -> u64 {
    instance & !0xf
}

impl KnownShards {
    /// What the worker of this connection knows.
    pub(crate) fn of(connection: &Connection) -> Arc<Mutex<KnownShards>> {
        connection.extension()
    }

    pub(crate) fn layout(&self, key: &Key, digest: u64) -> Option<KnownLayout> {
        self.layouts.get(&(key.clone(), digest)).cloned()
    }

    pub(crate) fn know_layout(&mut self, key: &Key, known: KnownLayout) {
        let len = known.layout.shards.len();
        if self.shards + len > MAX_SHARDS {
            // What is forgotten is fetched again.
            self.layouts.clear();
            self.globals.clear();
            self.checked.clear();
            self.shards = 0;
        }
        if self.layouts.insert((key.clone(), known.layout.digest), known).is_none() {
            self.shards += len;
        }
    }

    /// The global tensors of ranks with these layouts.
    pub(crate) fn global(&mut self, key: &Key, layouts: &[Arc<RankLayout>]) -> Result<Arc<Global>, ShardedError> {
        let digests = (key.clone(), layouts.iter().map(|layout| layout.digest).collect());
        if let Some(global) = self.globals.get(&digests) {
            return Ok(global.clone());
        }
        let global = Arc::new(Global::new(layouts)?);
        if self.globals.len() >= MAX_GLOBALS {
            self.globals.clear();
        }
        self.globals.insert(digests, global.clone());
        Ok(global)
    }

    /// Whether this version was whole for an earlier fetch. Then it still is, also for a home that does not know it.
    pub(crate) fn was_whole(&self, key: &Key, manifest: &Manifest) -> bool {
        self.read.get(key) == Some(&read(manifest))
    }

    /// Notes that this version is whole.
    pub(crate) fn is_whole(&mut self, key: &Key, manifest: &Manifest) {
        if self.read.len() >= MAX_READ {
            self.read.clear();
        }
        self.read.insert(key.clone(), read(manifest));
    }

    /// Checks that ranks with these layouts have all of each tensor, unless that is known.
    pub(crate) fn check(&mut self, key: &Key, layouts: &[Arc<RankLayout>]) -> Result<(), ShardedError> {
        let digests = (key.clone(), layouts.iter().map(|layout| layout.digest).collect());
        if self.checked.contains(&digests) {
            return Ok(());
        }
        self.global(key, layouts)?.check()?;
        if self.checked.len() >= MAX_GLOBALS {
            self.checked.clear();
        }
        self.checked.insert(digests);
        Ok(())
    }
}

impl PushedRank {
    fn ended_by(&mut self, own: Option<Kept>, Looked { restart, whole, settled, ref held }: Looked) -> Vec<Kept> {
        if restart != self.restart || whole < self.whole || !settled {
            // The home may be another one, which does not know what was held at the one before. Or this rank is about to be refused.
            return Vec::new();
        }
        self.whole = whole;
        let has_ended =
            |kept: &mut Kept| Some(kept.version) < whole && !held.contains(&kept.version) && Some(*kept) != own;
        self.kept.iter_mut().filter_map(|kept| kept.take_if(has_ended)).collect()
    }
}

/// The right to push a rank, which one call has at a time.
#[derive(Debug)]
pub(crate) struct Pushing {
    connection: Arc<Connection>,
    of: (Key, u32),
}

impl Pushing {
    /// # Errors
    /// [`ShardedError::UnderWay`].
    pub(crate) fn begin(connection: &Arc<Connection>, key: &Key, rank: u32) -> Result<Pushing, Error> {
        let of = (key.clone(), rank);
        let known = KnownShards::of(connection);
        let mut known = known.lock();
        let rank_of = known.pushed.entry(of.clone()).or_insert_with(|| PushedRank {
            instance: new_instance(),
            is_busy: false,
            restart: 0,
            whole: None,
            kept: [None; MAX_KEPT],
        });
        if std::mem::replace(&mut rank_of.is_busy, true) {
            return Err(ShardedError::UnderWay { key: key.as_str().to_owned(), rank }.into());
        }
        drop(known);
        Ok(Pushing { connection: connection.clone(), of })
    }

    fn with<T>(&self, change: impl FnOnce(&mut PushedRank) -> T) -> Option<T> {
        KnownShards::of(&self.connection).lock().pushed.get_mut(&self.of).map(change)
    }

    /// Begins the versions again if this restart is a later one. Returns all that were kept.
    pub(crate) fn begin_again(&self, restart: u64) -> Vec<Kept> {
        let again = self.with(|rank| {
            if restart <= rank.restart {
                return Vec::new();
            }
            (rank.instance, rank.restart, rank.whole) = (new_instance(), restart, None);
            std::mem::take(&mut rank.kept).into_iter().flatten().collect()
        });
        again.unwrap_or_default()
    }

    /// Whether there are versions that may have ended.
    pub(crate) fn keeps_any(&self) -> bool {
        self.with(|rank| rank.kept.iter().any(Option::is_some)).unwrap_or(false)
    }

    /// Notes which version is whole, as its home has said.
    pub(crate) fn know_whole(&self, whole: Option<u64>) {
        self.with(|rank| rank.whole = whole);
    }

    /// Forgets all versions but this one, since the state has none that is whole any more. Returns them.
    pub(crate) fn forget_others(&self, own: Kept) -> Vec<Kept> {
        let others = self.with(|rank| {
            rank.whole = None;
            rank.kept.iter_mut().filter_map(|kept| kept.take_if(|kept| *kept != own)).collect()
        });
        others.unwrap_or_default()
    }

    /// Returns and forgets the versions before the whole one that nobody holds, except this one, which is being pushed.
    pub(crate) fn ended_by(&self, looked: Looked, own: Option<Kept>) -> Vec<Kept> {
        self.with(|rank| rank.ended_by(own, looked)).unwrap_or_default()
    }

    /// Finds a place for a version.
    ///
    /// # Errors
    /// [`ShardedError::TooManyVersions`].
    pub(crate) fn keep(&self, version: u64) -> Result<Kept, Error> {
        let kept = self.with(|rank| {
            let Some(place) = rank.kept.iter().position(Option::is_none) else {
                return Err(rank.kept.iter().flatten().map(|kept| kept.version).collect());
            };
            let kept = Kept { version, instance: rank.instance | place as u64 };
            rank.kept[place] = Some(kept);
            Ok(kept)
        });
        let (key, rank) = (self.of.0.as_str().to_owned(), self.of.1);
        kept.unwrap_or(Err(Vec::new())).map_err(|versions| ShardedError::TooManyVersions { key, rank, versions }.into())
    }

    /// Finds a version whose shards are published, if readers may have it as the base of a delta: of the same series.
    pub(crate) fn base(&self, version: u64, own: Kept) -> Option<Kept> {
        let is_base = |kept: &&Kept| {
            kept.version == version && **kept != own && series_of(kept.instance) == series_of(own.instance)
        };
        self.with(|rank| rank.kept.iter().flatten().find(is_base).copied()).flatten()
    }

    /// Forgets a version whose push has failed. Others may have seen it, so its key is not used again.
    pub(crate) fn forget(&self, failed: Kept) {
        self.with(|rank| {
            rank.instance = new_instance();
            for kept in rank.kept.iter_mut().filter(|kept| **kept == Some(failed)) {
                *kept = None;
            }
        });
    }
}

impl Drop for Pushing {
    fn drop(&mut self) {
        self.with(|rank| rank.is_busy = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_stay_until_the_home_knows_one_that_is_newer_and_nobody_holds_them() {
        let mut kept = [None; MAX_KEPT];
        for (version, place) in (1..=3).zip(&mut kept) {
            *place = Some(Kept { version, instance: version });
        }
        let mut rank = PushedRank { instance: 0, is_busy: true, restart: 1, whole: Some(3), kept };
        let mut ended = |whole, held: &[u64]| -> Vec<u64> {
            let looked = Looked { restart: 1, whole, settled: true, held: held.to_vec() };
            rank.ended_by(None, looked).into_iter().map(|kept| kept.version).collect()
        };
        // A home that is new knows no holds.
        assert_eq!((ended(None, &[]), ended(Some(2), &[])), (vec![], vec![]));
        assert_eq!(ended(Some(3), &[1]), [2]);
        assert_eq!(ended(Some(4), &[]), [1, 3]);
        let looked = |restart, settled| Looked { restart, whole: Some(9), settled, held: Vec::new() };
        rank.kept[0] = Some(Kept { version: 5, instance: 5 });
        assert_eq!((rank.ended_by(None, looked(2, true)), rank.ended_by(None, looked(1, false))), (vec![], vec![]));
        let own = rank.kept[0];
        assert_eq!(rank.ended_by(own, looked(1, true)), [], "it is being pushed");
        assert_eq!(rank.ended_by(None, looked(1, true)).len(), 1);
    }

    #[test]
    fn version_that_was_whole_is_known_by_its_ranks() {
        let (key, mut known) = (Key::new("policy").unwrap(), KnownShards::default());
        known.is_whole(&key, &Manifest::of_one(7, 1, 5));
        assert!(known.was_whole(&key, &Manifest::of_one(7, 1, 5)));
        for (restart, version, instance) in [(2, 7, 5), (1, 8, 5), (1, 7, 6)] {
            assert!(!known.was_whole(&key, &Manifest::of_one(version, restart, instance)));
        }
    }
}
