//! What clients do with bundles.

use super::{TwoBuffers, both_clients};
use crate::bundle::{BundleMut, BundleTensor, FetchedBundle, large_bundle, source, take_bundle};
use crate::error::{BundleError, Error};
use crate::fetch::{Fetch, Subscriber};
use crate::memory::TensorMut;
use crate::push::{LendBase, Push, TakeBack};
use crate::request::{HasHandle, ToKey, to_key};
use transfer_core::tensor::{DType, TensorMeta, TensorName};
use transfer_core::wire::bundle::BundleTable;

both_clients! {
    /// Publishes many tensors under `key` as one version: a fetch gets all of them, or waits. At most 131,072 tensors
    /// of any types and shapes, each with a name of 1 to 512 bytes. Tensors in this client's arena are published in place;
    /// see [`BundleTensor`].
    pub fn push_bundle<'a, N: AsRef<str>, T: Into<BundleTensor<'a>>>(
        &self,
        key: impl ToKey,
        tensors: impl IntoIterator<Item = (N, T)>,
    ) -> Push<'a, Self> {
        Push::new(self.handle().session(), to_key(&key), source(tensors))
    }

    /// Publishes copies of tensors that stay writable as one version: a *snapshot* of weights that are updated in place.
    /// Each byte is copied once, which the report counts; see [`TwoBuffers`](crate::TwoBuffers) for the other ways.
    pub fn push_bundle_snapshot<'a, N: AsRef<str>>(
        &self,
        key: impl ToKey,
        tensors: impl IntoIterator<Item = (N, &'a TensorMut)>,
    ) -> Push<'a, Self> {
        let copied = |(name, tensor): (N, &'a TensorMut)| (name, BundleTensor::snapshot(tensor));
        self.push_bundle(key, tensors.into_iter().map(copied))
    }

    /// The names of a bundle's tensors with their element types and shapes, as they were when [`only`](crate::Fetch::only) has fetched
    /// some of them last, or [`into`](crate::Fetch::into) all of them. `None` if the session does not remember them.
    pub fn bundle_layout(&self, key: impl ToKey) -> Option<Vec<(String, TensorMeta)>> {
        let table = self.handle().session().bundle_tables().get(&to_key(&key).ok()?)?;
        Some(table.entries().iter().map(|entry| (entry.name.as_str().to_owned(), entry.meta.clone())).collect())
    }

    /// Takes the newest bundle of this worker's own `key` back, to update all its tensors in place without a copy. It
    /// is [`take_back`](Self::take_back) for bundles: from the moment of the call no new fetch gets the version, and once all its
    /// readers are done, its tensors are writable. Either all of them are returned, or none: if the readers take longer
    /// than the call may, it fails, and the version is published again. A tensor that this process still holds, as a
    /// [`Frozen`](crate::Frozen) tensor or an array of it, fails the call with [`BundleError::NotAlone`], and the version stays
    /// published. [`withdraw`](Self::withdraw) is for tensors that are held.
    pub fn take_back_bundle(&self, key: impl ToKey) -> TakeBack<Self, BundleMut> {
        TakeBack::new(self.handle().session(), to_key(&key))
    }

    /// Makes two sets of tensors that take turns under `key` as bundles; see [`TwoBuffers`](crate::TwoBuffers).
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Shape`], [`BundleError::Table`].
    pub fn two_bundle_buffers<N: AsRef<str>, D: AsRef<[u64]>>(
        &self,
        key: impl ToKey,
        tensors: impl IntoIterator<Item = (N, DType, D)>,
    ) -> Result<TwoBuffers<Self, BundleMut>, Error> {
        let mut described = Vec::new();
        for (name, dtype, dims) in tensors {
            described.push((TensorName::new(name.as_ref())?, TensorMeta::of(dtype, dims.as_ref())?));
        }
        let table = BundleTable::new(described).map_err(BundleError::from)?;
        let layout = table.entries().iter().map(|entry| (entry.name.as_str().to_owned(), entry.meta.clone()));
        Ok(TwoBuffers::new(self.handle().clone(), to_key(&key)?, layout.collect()))
    }

    /// Lends a bundle that this worker has from elsewhere, for instance from a checkpoint, as the base of deltas: a fetch of `key` that
    /// [names it](Fetch::base) gets what has changed since, in place of the whole version, if the key's owner has published this bundle, with
    /// [digests](crate::Push::digest), and the deltas since then are still there. Names, types, shapes and order of the tensors are those of that push.
    ///
    /// A base that is another one costs nothing but its digests and the memory: the whole version comes. What is made of it is proved by the delta, so
    /// the result is never wrong. Tensors that lie in this client's arena are not copied. Nothing is published.
    pub fn lend_base<'a, N: AsRef<str>, T: Into<BundleTensor<'a>>>(
        &self,
        key: impl ToKey,
        tensors: impl IntoIterator<Item = (N, T)>,
    ) -> LendBase<'a, Self> {
        LendBase::new(self.handle().session(), to_key(&key), source(tensors))
    }

    /// Fetches the tensors under `key` that were pushed as one version, and waits until there is one. They are
    /// read-only, and not copied where the fabric allows. A version that does not fit the landing pool comes in
    /// [buckets](Fetch::bucket_bytes).
    pub fn fetch_bundle(&self, key: impl ToKey) -> Fetch<Self, FetchedBundle> {
        Fetch::new(self.handle().session(), to_key(&key), take_bundle).or_large(Some(large_bundle))
    }

    /// Makes a reader of the versions of `key` that [`push_bundle`](Self::push_bundle) publishes.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn bundle_subscriber(&self, key: impl ToKey) -> Result<Subscriber<Self, FetchedBundle>, Error> {
        Ok(Subscriber::new(self.handle().connection(), &key, take_bundle)?.or_large(large_bundle))
    }
}
