//! What clients do with tensors.

use super::{TwoBuffers, both_clients};
use crate::error::Error;
use crate::fetch::{Fetch, FetchExcerpt, FetchMany, Subscriber, Take, Tensor, large_tensor};
use crate::memory::{Frozen, TensorMut};
use crate::push::{AllocateWait, Order, Push, PushMany, Source, TakeBack, allocate, checked, of_array};
use crate::request::{HasHandle, ToKey, to_key};
use arrow_array::Array;
use std::time::Duration;
use transfer_core::op::{Command, Reserve};
use transfer_core::tensor::{DType, Excerpt, Gathered, Name, TensorMeta};
use transfer_memory::view::Element;

both_clients! {
    /// Allocates a tensor in the arena, which is pinned memory that fabrics can read in place. Its contents are left
    /// over from earlier tensors.
    ///
    /// # Errors
    /// [`Error::ArenaFull`], [`Error::TooLargeForArena`], [`Error::Shape`].
    pub fn allocate(&self, dtype: DType, dims: impl AsRef<[u64]>) -> Result<TensorMut, Error> {
        allocate(&self.handle().session(), dtype, dims.as_ref())
    }

    /// Allocates a tensor like [`allocate`](Self::allocate), but waits until room becomes free, because tensors
    /// are replaced, fetched by all their readers, or dropped. The wait has a [time-out](crate::Request::timeout), 30 s by default.
    pub fn allocate_wait(&self, dtype: DType, dims: impl AsRef<[u64]>) -> AllocateWait<Self> {
        AllocateWait::new(self.handle().session(), dtype, dims.as_ref())
    }

    /// Publishes a tensor under `key`. No byte moves until it is fetched on another node, unless [`Push::to`] is set.
    pub fn push_tensor(&self, key: impl ToKey, tensor: TensorMut) -> Push<'static, Self> {
        Push::new(self.handle().session(), to_key(&key), Ok(Source::Tensor(tensor)))
    }

    /// Publishes a frozen tensor under `key`, in place. It may be pushed any number of times.
    pub fn push_frozen(&self, key: impl ToKey, tensor: &Frozen) -> Push<'static, Self> {
        Push::new(self.handle().session(), to_key(&key), Ok(Source::Frozen(tensor.clone())))
    }

    /// Publishes elements from any memory, row-major, under `key`. They are copied into the arena once, by several
    /// threads if they are many, and the report counts the copy. The thread that makes the push makes the copy, so an
    /// async worker should push large slices on a thread that may block. Waits for room in the arena.
    pub fn push_slice<'a, T: Element>(
        &self,
        key: impl ToKey,
        dims: impl AsRef<[u64]>,
        elements: &'a [T],
    ) -> Push<'a, Self> {
        Push::new(self.handle().session(), to_key(&key), checked(T::DTYPE, dims.as_ref(), bytemuck::cast_slice(elements)))
    }

    /// Publishes bytes from any memory under `key`, as a tensor of `dtype`; see [`push_slice`](Self::push_slice).
    pub fn push_bytes<'a>(
        &self,
        key: impl ToKey,
        dtype: DType,
        dims: impl AsRef<[u64]>,
        bytes: &'a [u8],
    ) -> Push<'a, Self> {
        Push::new(self.handle().session(), to_key(&key), checked(dtype, dims.as_ref(), bytes))
    }

    /// Publishes an Arrow array of numbers under `key`, as a tensor of one dimension. An array in the arena, made of a
    /// [`Frozen`] tensor, is published in place; any other is copied as in [`push_slice`](Self::push_slice). A null is an error.
    pub fn push_array<'a>(&self, key: impl ToKey, array: &'a dyn Array) -> Push<'a, Self> {
        let source = key.to_key().map_err(Error::from).and_then(|key| of_array(&key, array));
        Push::new(self.handle().session(), to_key(&key), source)
    }

    /// Publishes a copy of a tensor that stays writable: a *snapshot* of weights that are updated in place. The bytes
    /// are copied once, which the report counts; see [`TwoBuffers`] for the other ways.
    pub fn push_snapshot<'a>(&self, key: impl ToKey, tensor: &'a TensorMut) -> Push<'a, Self> {
        Push::new(self.handle().session(), to_key(&key), Ok(Source::snapshot(tensor)))
    }

    /// Takes the newest version of this worker's own `key` back, to update it in place without a copy. From the moment
    /// of the call no new fetch gets it. Once all its readers are done, here and on other nodes, it is writable again.
    /// Meanwhile fetches wait for the next push of the key. If the readers take longer than the call may, it fails, and
    /// the version is published again. A tensor that was pushed as [`Frozen`] cannot be taken back: the call fails, and
    /// the version stays published. [`withdraw`](Self::withdraw) is for such tensors.
    pub fn take_back(&self, key: impl ToKey) -> TakeBack<Self> {
        TakeBack::new(self.handle().session(), to_key(&key))
    }

    /// Takes the newest version of this worker's own `key` back like [`take_back`](Self::take_back), and leaves its memory with
    /// this process's other holders. After it no reader has the version, so a tensor that was pushed as [`Frozen`] can
    /// become writable with [`Frozen::try_into_mut`], also one of a bundle.
    pub fn withdraw(&self, key: impl ToKey) -> TakeBack<Self, ()> {
        TakeBack::new(self.handle().session(), to_key(&key))
    }

    /// Makes two buffers of that size that take turns under `key`; see [`TwoBuffers`].
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Shape`].
    pub fn two_buffers(&self, key: impl ToKey, dtype: DType, dims: impl AsRef<[u64]>) -> Result<TwoBuffers<Self>, Error> {
        Ok(TwoBuffers::new(self.handle().clone(), to_key(&key)?, TensorMeta::of(dtype, dims.as_ref())?))
    }

    /// Publishes many tensors with one wait.
    pub fn push_many<K: ToKey>(&self, tensors: impl IntoIterator<Item = (K, TensorMut)>) -> PushMany<Self> {
        let items = tensors.into_iter().map(|(key, tensor)| (to_key(&key), tensor)).collect();
        PushMany::new(self.handle().session(), items)
    }

    /// Fetches the tensor under `key`, and waits until there is one. It is read-only, and not copied where the fabric
    /// allows. A version that does not fit the landing pool comes in [buckets](Fetch::bucket_bytes).
    pub fn fetch(&self, key: impl ToKey) -> Fetch<Self> {
        Fetch::new(self.handle().session(), to_key(&key), Tensor::take).or_large(Some(large_tensor))
    }

    /// Makes a reader of the versions of `key`, which are tensors.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn subscriber(&self, key: impl ToKey) -> Result<Subscriber<Self>, Error> {
        Ok(Subscriber::new(self.handle().connection(), &key, Tensor::take)?.or_large(large_tensor))
    }

    /// Fetches many tensors with one wait.
    pub fn fetch_many<K: ToKey>(&self, keys: impl IntoIterator<Item = K>) -> FetchMany<Self> {
        FetchMany::new(self.handle().session(), keys.into_iter().map(|key| to_key(&key)).collect())
    }

    /// Fetches rows of the tensor under `key`, by their indices of the outermost dimension, in any order and any number of times:
    /// the result has a row for each index. Where the version has to move, its owner gathers the rows and nothing else moves; on
    /// this host they are copied out of the version. All are of one version.
    ///
    /// An index below 0 or beyond the last row fails the call with [`FailureCode::Invalid`](crate::FailureCode), and the text names
    /// the index, the shape and what would fit. A request has room for some hundred rows, so a long list takes several, and the
    /// call begins again if the version is replaced meanwhile. A version that is kept until it is fetched a number of times can only
    /// be fetched as a whole.
    pub fn take(&self, key: impl ToKey, indices: impl IntoIterator<Item = i64>) -> Take<Self> {
        Take::new(self.handle().session(), to_key(&key), indices.into_iter().collect())
    }

    /// Fetches an excerpt of the newest version of `key`, for libraries that know what lies where in its body.
    pub fn fetch_excerpt(&self, key: impl ToKey, excerpt: Excerpt) -> FetchExcerpt<Self> {
        FetchExcerpt::of_key(self.handle().session(), to_key(&key), excerpt)
    }

    /// Fetches parts of the versions of several keys with one request to the node that has them. It sends all of them, one
    /// behind the other, or none.
    pub fn fetch_gathered(&self, gathered: Gathered) -> FetchExcerpt<Self> {
        FetchExcerpt::of_many(self.handle().session(), gathered)
    }

    /// Deletes a key of this worker. Its tensors that are being read stay until their readers are done. While an earlier push of the key
    /// [makes its delta](crate::Push::delta_of) on another thread, it is sent behind that: if its future is dropped before, the key may stay.
    pub fn delete(&self, key: impl ToKey) -> Order<Self> {
        let command = to_key(&key).map(|key| Command::Delete { key });
        Order::new(self.handle().session(), command)
    }

    /// Reserves landing slots for tensors of this size that will be pushed under `key` to the sidecar of the worker
    /// `to`, so that the first push does not wait. Many of them at once travel in one call.
    pub fn reserve(&self, key: impl ToKey, dtype: DType, dims: impl AsRef<[u64]>, to: impl AsRef<str>) -> Order<Self> {
        Order::new(self.handle().session(), reserve(&key, dtype, dims.as_ref(), to.as_ref()))
    }
}

fn reserve(key: &impl ToKey, dtype: DType, dims: &[u64], to: &str) -> Result<Command, Error> {
    let (key, meta, to) = (to_key(key)?, TensorMeta::of(dtype, dims)?, Name::new(to)?);
    // The call sets the time-out.
    Ok(Command::Reserve(Reserve { key, meta, to, timeout: Duration::ZERO }))
}
