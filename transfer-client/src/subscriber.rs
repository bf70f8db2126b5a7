//! The versions of one key, as a reader gets them.

use crate::face::Face;
use crate::fetch::{Fetch, FetchOptions, Take};
use crate::handle::to_key;
use crate::keys::ToKey;
use crate::session::Session;
use crate::{Error, Handle, Tensor};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::tensor::{Key, Select, Version};
use transfer_memory::board::Watch;

/// Reads the versions of one key, each at most once: a [`Tensor`], a [record batch](crate::FetchedBatch), a
/// [table](crate::FetchedTable) or a [bundle](crate::FetchedBundle). [`Handle::subscriber`] makes one, which asks nothing of the sidecar yet.
///
/// It remembers the newest version that it has returned, and where its owner announces the next one. A slow reader misses
/// versions that were replaced meanwhile.
///
/// ```no_run
/// # use transfer_client::{Client, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let weights = client.subscriber("weights")?;
/// loop {
///     let newest = weights.next().await?;
///     println!("version {}", newest.version());
/// }
/// # }
/// ```
pub struct Subscriber<F, T = Tensor> {
    client: Handle<F>,
    key: Key,
    timeout: Option<Duration>,
    require: Option<FabricKind>,
    take: Take<T>,
    place: Arc<Place>,
}

/// What a subscriber remembers.
#[derive(Debug, Default)]
pub(crate) struct Place {
    /// The lowest version that it has not seen.
    next: AtomicU64,
    /// Whether there was a notice. Saves the lock where versions are announced to nobody.
    is_announced: AtomicBool,
    /// The notice of the key, and the incarnation of the sidecar whose board names it.
    known: Mutex<Option<(u64, Watch)>>,
}

impl Place {
    /// Calls `look` with the notice that is known, and keeps the one that is known then. Without a place nothing is known.
    pub(crate) fn with<R>(place: Option<&Place>, session: &Session, look: impl FnOnce(&mut Option<Watch>) -> R) -> R {
        let Some(place) = place else { return look(&mut None) };
        let incarnation = session.incarnation();
        let known = if place.is_announced.load(Ordering::Relaxed) { place.known.lock().take() } else { None };
        let mut known = known.filter(|(of, _)| *of == incarnation).map(|(_, watch)| watch);
        let result = look(&mut known);
        if let Some(watch) = known {
            *place.known.lock() = Some((incarnation, watch));
            place.is_announced.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Records that this version was returned.
    pub(crate) fn saw(&self, Version(version): Version) {
        let next = version.saturating_add(1);
        if self.next.load(Ordering::Relaxed) < next {
            self.next.fetch_max(next, Ordering::Relaxed);
        }
    }
}

impl<F: Face, T> Subscriber<F, T> {
    pub(crate) fn new(client: &Handle<F>, key: &impl ToKey, take: Take<T>) -> Result<Self, Error> {
        let (client, key) = (client.clone(), to_key(key)?);
        Ok(Subscriber { client, key, timeout: None, require: None, take, place: Arc::default() })
    }

    /// Begins after this version: [`next`](Self::next) returns none up to it. Where the owner of a key begins anew, with lower
    /// versions, a subscriber that has seen higher ones has to be made anew, too.
    #[must_use]
    pub fn after(self, version: u64) -> Self {
        self.place.saw(Version(version));
        self
    }

    /// The time-out of each fetch, which includes waiting for the version. 30 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The fabric that must carry each version. If that is not possible, the fetch fails and says why.
    #[must_use]
    pub fn require(mut self, fabric: FabricKind) -> Self {
        self.require = Some(fabric);
        self
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// The newest version that it has returned, or that it begins after.
    #[must_use]
    pub fn seen(&self) -> Option<u64> {
        self.place.next.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Fetches the newest version if it is newer than all that were returned, and waits for such a one. A fetch that fails, or
    /// is given up, skips nothing. Fetches that overlap may return the same version.
    pub fn next(&self) -> Fetch<F, T> {
        self.fetch(match self.place.next.load(Ordering::Relaxed) {
            0 => Select::Latest,
            next => Select::AtLeast(Version(next)),
        })
    }

    /// Fetches the newest version, also if it was returned before, and waits for the first one.
    pub fn latest(&self) -> Fetch<F, T> {
        self.fetch(Select::Latest)
    }

    fn fetch(&self, select: Select) -> Fetch<F, T> {
        let options = FetchOptions { select, require: self.require, ..FetchOptions::new() };
        let options = FetchOptions { timeout: self.timeout.unwrap_or(options.timeout), ..options };
        Fetch::of(self.client.session(), self.key.clone(), options, self.take, self.place.clone())
    }
}

impl<F, T> fmt::Debug for Subscriber<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("key", &self.key).field("place", &self.place).finish_non_exhaustive()
    }
}

impl<F: Face> Handle<F> {
    /// Makes a reader of the versions of `key`, which are tensors.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn subscriber(&self, key: impl ToKey) -> Result<Subscriber<F>, Error> {
        Subscriber::new(self, &key, Tensor::new)
    }
}
