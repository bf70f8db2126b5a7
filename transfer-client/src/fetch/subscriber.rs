//! The versions of one key, as a reader gets them.

use super::call::{Fetch, FetchLarge, Take};
use super::options::FetchOptions;
use super::seen::{EpochBegan, Seen, Since};
use super::tensor::Tensor;
use crate::error::Error;
use crate::request::{AnyClient, DEFAULT_TIMEOUT, ToKey, to_key};
use crate::session::Connection;
use parking_lot::Mutex;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::tensor::{Key, Select, Version};

/// Reads the versions of one key, each at most once: a [`Tensor`], a [record batch](crate::FetchedBatch), a
/// [table](crate::FetchedTable) or a [bundle](crate::FetchedBundle). [`Client::subscriber`](crate::Client::subscriber)
/// makes one, which asks nothing of the sidecar yet.
///
/// It remembers the version that it has returned last. A slow reader misses versions that were replaced meanwhile. Where the
/// owner of the key begins again with lower versions, as a trainer does that goes on from a checkpoint, the subscriber gets
/// those, and [`epoch_began`](Self::epoch_began) says so.
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
pub struct Subscriber<C, T = Tensor> {
    connection: Arc<Connection>,
    key: Key,
    timeout: Duration,
    require: Option<FabricKind>,
    take: Take<T>,
    /// How a version that does not fit the landing pool is fetched, if it can be.
    large: Option<FetchLarge<T>>,
    seen: Arc<Mutex<Seen>>,
    client: PhantomData<C>,
}

impl<C: AnyClient, T> Subscriber<C, T> {
    pub(crate) fn new(connection: &Arc<Connection>, key: &impl ToKey, take: Take<T>) -> Result<Self, Error> {
        let (connection, key, timeout) = (connection.clone(), to_key(key)?, DEFAULT_TIMEOUT);
        let (seen, client) = (Arc::default(), PhantomData);
        Ok(Subscriber { connection, key, timeout, require: None, take, large: None, seen, client })
    }

    /// Fetches versions that do not fit the landing pool in this way.
    pub(crate) fn or_large(self, large: FetchLarge<T>) -> Self {
        Subscriber { large: Some(large), ..self }
    }

    /// Begins after this version: the first one that [`next`](Self::next) returns is a later one.
    #[must_use]
    pub fn after(self, version: u64) -> Self {
        *self.seen.lock() = Seen { last: Some(version), ..Seen::default() };
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

    /// The newest version that it has returned of the key's current epoch, or the one that it begins after.
    #[must_use]
    pub fn seen(&self) -> Option<u64> {
        self.seen.lock().last
    }

    /// The last time that the key's versions began again, with a lower one, while this subscriber read them.
    #[must_use]
    pub fn epoch_began(&self) -> Option<EpochBegan> {
        self.seen.lock().began
    }

    /// Fetches the newest version if it was not returned before, and waits for such a one. A fetch that fails, or is given up,
    /// skips nothing. Fetches that overlap may return the same version.
    ///
    /// If the versions have begun again, and the newest has the number of the one that was returned last, it waits for the one
    /// behind it.
    pub fn next(&self) -> Fetch<C, T> {
        let Seen { last, returned, .. } = *self.seen.lock();
        self.fetch(match last {
            None => Select::Latest,
            Some(seen) if returned => Select::After(Version(seen)),
            Some(named) => Select::AtLeast(Version(named.saturating_add(1))),
        })
    }

    /// Fetches the newest version, also if it was returned before, and waits for the first one.
    pub fn latest(&self) -> Fetch<C, T> {
        self.fetch(Select::Latest)
    }

    fn fetch(&self, select: Select) -> Fetch<C, T> {
        let (timeout, require) = (self.timeout, self.require);
        let options = FetchOptions { select, timeout, require, ..FetchOptions::new() };
        let since = Since { before: *self.seen.lock(), seen: self.seen.clone() };
        let fetch = Fetch::since(self.connection.session(), self.key.clone(), options, self.take, since);
        fetch.or_large(self.large)
    }
}

impl<C: AnyClient, T> fmt::Debug for Subscriber<C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("key", &self.key).field("seen", &self.seen()).finish_non_exhaustive()
    }
}
