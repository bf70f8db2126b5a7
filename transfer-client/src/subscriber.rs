//! The versions of one key, as a reader gets them.

use crate::face::Face;
use crate::fetch::{Fetch, FetchOptions, Take};
use crate::handle::to_key;
use crate::keys::ToKey;
use crate::options::DEFAULT_TIMEOUT;
use crate::{Error, Handle, Tensor};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::tensor::{Key, Select, Version};

/// Reads the versions of one key, each at most once: a [`Tensor`], a [record batch](crate::FetchedBatch), a
/// [table](crate::FetchedTable) or a [bundle](crate::FetchedBundle). [`Handle::subscriber`] makes one, which asks nothing of the sidecar yet.
///
/// It remembers the newest version that it has returned. A slow reader misses versions that were replaced meanwhile.
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
    timeout: Duration,
    require: Option<FabricKind>,
    take: Take<T>,
    seen: Arc<Seen>,
}

/// What a subscriber has returned: the lowest version that is newer than all of it.
#[derive(Debug, Default)]
pub(crate) struct Seen(AtomicU64);

impl Seen {
    /// Records that this version was returned.
    pub(crate) fn saw(&self, Version(version): Version) {
        self.0.fetch_max(version.saturating_add(1), Ordering::Relaxed);
    }
}

impl<F: Face, T> Subscriber<F, T> {
    pub(crate) fn new(client: &Handle<F>, key: &impl ToKey, take: Take<T>) -> Result<Self, Error> {
        let (client, key) = (client.clone(), to_key(key)?);
        Ok(Subscriber { client, key, timeout: DEFAULT_TIMEOUT, require: None, take, seen: Arc::default() })
    }

    /// Begins after this version: [`next`](Self::next) returns none up to it. Where the owner of a key begins anew, with lower
    /// versions, a subscriber that has seen higher ones has to be made anew, too.
    #[must_use]
    pub fn after(self, version: u64) -> Self {
        self.seen.saw(Version(version));
        self
    }

    /// The time-out of each fetch, which includes waiting for the version. 30 s by default.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
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
        self.seen.0.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Fetches the newest version if it is newer than all that were returned, and waits for such a one. A fetch that fails, or
    /// is given up, skips nothing. Fetches that overlap may return the same version.
    pub fn next(&self) -> Fetch<F, T> {
        self.fetch(match self.seen.0.load(Ordering::Relaxed) {
            0 => Select::Latest,
            next => Select::AtLeast(Version(next)),
        })
    }

    /// Fetches the newest version, also if it was returned before, and waits for the first one.
    pub fn latest(&self) -> Fetch<F, T> {
        self.fetch(Select::Latest)
    }

    fn fetch(&self, select: Select) -> Fetch<F, T> {
        let (timeout, require) = (self.timeout, self.require);
        let options = FetchOptions { select, timeout, require, ..FetchOptions::new() };
        Fetch::of(self.client.session(), self.key.clone(), options, self.take, self.seen.clone())
    }
}

impl<F: Face, T> fmt::Debug for Subscriber<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("key", &self.key).field("seen", &self.seen()).finish_non_exhaustive()
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
