//! The pushes of one key.

use super::both_clients;
use crate::batch::encode;
use crate::bundle::{BundleTensor, source};
use crate::error::Error;
use crate::memory::{Frozen, TensorMut};
use crate::push::{AllocateWait, Push, PushOptions, Source, allocate, checked, lasting_push_options};
use crate::request::{AnyClient, Handle, HasHandle, ToKey, to_key};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::marker::PhantomData;
use std::time::Duration;
use transfer_core::tensor::{DType, Key};
use transfer_memory::view::Element;

/// Publishes versions of one key, with the same options for each. [`Client::publisher`](crate::Client::publisher) makes
/// one, which asks nothing of the sidecar yet. The options of a push, such as its version, are set at the push.
///
/// ```no_run
/// # use transfer_client::{Client, DType, Error};
/// # async fn example(client: Client) -> Result<(), Error> {
/// let weights = client.publisher("weights")?.readable_by("evaluation");
/// for step in 1..=1000 {
///     let mut tensor = weights.allocate(DType::F32, [256, 128])?;
///     tensor.as_mut_slice::<f32>()?.fill(step as f32);
///     weights.push(tensor).version(step).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Publisher<C> {
    handle: Handle,
    key: Key,
    options: PushOptions,
    client: PhantomData<C>,
}

impl<C: AnyClient> Publisher<C> {
    lasting_push_options!(options);

    /// The time-out of each push, 30 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = timeout;
        self
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.as_str()
    }

    /// Allocates a tensor, as [`Client::allocate`](crate::Client::allocate) does.
    ///
    /// # Errors
    /// [`Error::ArenaFull`], [`Error::TooLargeForArena`], [`Error::Shape`].
    pub fn allocate(&self, dtype: DType, dims: impl AsRef<[u64]>) -> Result<TensorMut, Error> {
        allocate(&self.handle.session(), dtype, dims.as_ref())
    }

    /// Allocates a tensor, and waits for room, as [`Client::allocate_wait`](crate::Client::allocate_wait) does.
    pub fn allocate_wait(&self, dtype: DType, dims: impl AsRef<[u64]>) -> AllocateWait<C> {
        AllocateWait::new(self.handle.session(), dtype, dims.as_ref())
    }

    /// Publishes a tensor, as [`Client::push_tensor`](crate::Client::push_tensor) does.
    pub fn push(&self, tensor: TensorMut) -> Push<'static, C> {
        self.push_source(Ok(Source::Tensor(tensor)))
    }

    /// Publishes a frozen tensor in place, as [`Client::push_frozen`](crate::Client::push_frozen) does.
    pub fn push_frozen(&self, tensor: &Frozen) -> Push<'static, C> {
        self.push_source(Ok(Source::Frozen(tensor.clone())))
    }

    /// Publishes a copy of elements from any memory, as [`Client::push_slice`](crate::Client::push_slice) does.
    pub fn push_slice<'a, T: Element>(&self, dims: impl AsRef<[u64]>, elements: &'a [T]) -> Push<'a, C> {
        self.push_source(checked(T::DTYPE, dims.as_ref(), bytemuck::cast_slice(elements)))
    }

    /// Publishes a copy of a tensor that stays writable, as [`Client::push_snapshot`](crate::Client::push_snapshot) does.
    pub fn push_snapshot<'a>(&self, tensor: &'a TensorMut) -> Push<'a, C> {
        self.push_source(Ok(Source::snapshot(tensor)))
    }

    /// Publishes many tensors as one version, as [`Client::push_bundle`](crate::Client::push_bundle) does.
    pub fn push_bundle<'a, N: AsRef<str>, T: Into<BundleTensor<'a>>>(
        &self,
        tensors: impl IntoIterator<Item = (N, T)>,
    ) -> Push<'a, C> {
        self.push_source(source(tensors))
    }

    /// Publishes a record batch, as [`Client::push_batch`](crate::Client::push_batch) does.
    pub fn push_batch(&self, batch: &RecordBatch) -> Push<'static, C> {
        self.push_table(batch.schema_ref(), std::slice::from_ref(batch))
    }

    /// Publishes record batches as one version, as [`Client::push_table`](crate::Client::push_table) does.
    pub fn push_table<'a>(
        &self,
        schema: &SchemaRef,
        batches: impl IntoIterator<Item = &'a RecordBatch>,
    ) -> Push<'static, C> {
        self.push_source(encode(schema, batches))
    }

    fn push_source<'a>(&self, source: Result<Source<'a>, Error>) -> Push<'a, C> {
        Push::new(self.handle.session(), Ok(self.key.clone()), source).with(&self.options)
    }
}

both_clients! {
    /// Makes a publisher of versions of `key`.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn publisher(&self, key: impl ToKey) -> Result<Publisher<Self>, Error> {
        let (handle, key, options) = (self.handle().clone(), to_key(&key)?, PushOptions::new());
        Ok(Publisher { handle, key, options, client: PhantomData })
    }
}
