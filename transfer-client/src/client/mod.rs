//! The clients, and what can be asked of them.

mod batches;
mod bundles;
mod connect;
mod doorbell;
mod publisher;
mod two_buffers;

pub use connect::Connect;
pub use doorbell::Doorbell;
pub use publisher::Publisher;
pub use two_buffers::TwoBuffers;

use crate::counters::{Barrier, Counter, Counting};
use crate::error::{Error, Gone};
use crate::fetch::{Fetch, FetchMany, Subscriber, Tensor};
use crate::memory::{Frozen, TensorMut};
use crate::push::{AllocateWait, Gate, Order, Push, PushMany, Source, checked, of_array};
use crate::request::{Async, Blocking, Face, ToKey, to_key};
#[cfg(feature = "embedded")]
use crate::session::NodeConfig;
use crate::session::{Connection, Session};
use arrow_array::Array;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use transfer_core::op::{Command, Prepare};
use transfer_core::tensor::{DType, InvalidName, Key, Name, TensorMeta};
use transfer_memory::socket::Socket;
use transfer_memory::view::Element;

/// A session with the sidecar of this node, for a worker on tokio: calls are awaited. Cheap to clone; all clones share
/// the session, which ends with [`close`](crate::Client::close), or with the last clone, call and fetched tensor.
pub type Client = Handle<Async>;

/// A session with the sidecar of this node, for a worker without a runtime: calls end with `call()`. Any number of
/// threads may share it.
pub type BlockingClient = Handle<Blocking>;

/// The common part of [`Client`] and [`BlockingClient`]: everything but the way a call is made.
#[derive(Debug)]
pub struct Handle<F> {
    connection: Arc<Connection>,
    about: Arc<About>,
    face: PhantomData<F>,
}

#[derive(Debug)]
struct About {
    name: Name,
    node: Name,
}

impl<F> Clone for Handle<F> {
    fn clone(&self) -> Self {
        Handle { connection: self.connection.clone(), about: self.about.clone(), face: PhantomData }
    }
}

impl Handle<Async> {
    /// Connects to the sidecar that listens at `path`. Await it on a tokio runtime with I/O and time enabled; a task on
    /// that runtime serves the client from then on.
    pub fn connect(path: impl AsRef<Path>) -> Connect<Async> {
        Connect::to_path(path.as_ref())
    }

    /// Connects to a sidecar inside this process. The sidecar is started if needed, and ends with its last client. All
    /// embedded clients of a process share it; give each its own name.
    #[cfg(feature = "embedded")]
    pub fn embedded() -> Connect<Async> {
        Connect::embedded(None)
    }

    /// Connects to a sidecar inside this process that is a node of a cluster: it has a listener, a place in the directory,
    /// peers and all fabrics, and other nodes may have a sidecar inside or beside their workers. It is started if needed,
    /// and ends with its last client. All embedded clients of a process share it; who asks for another configuration than
    /// it has gets [`Error::NotStarted`], which names the difference.
    ///
    /// Other processes of this user connect at [`crate::embedded_socket`].
    #[cfg(feature = "embedded")]
    pub fn embedded_with(config: NodeConfig) -> Connect<Async> {
        Connect::embedded(Some(config))
    }

    /// Begins a session over a connected socket.
    pub fn over(socket: Socket) -> Connect<Async> {
        Connect::over(socket)
    }

    /// Closes the client and all its clones, as [`BlockingClient::close`] does.
    pub async fn close(&self) {
        let connection = self.connection.clone();
        // If the runtime is shutting down, the session ends with it.
        let _ = tokio::task::spawn_blocking(move || connection.close()).await;
    }

    /// Returns the session's client for threads that block. Any thread may use it, except those of the runtime.
    #[must_use]
    pub fn blocking(&self) -> BlockingClient {
        Handle { connection: self.connection.clone(), about: self.about.clone(), face: PhantomData }
    }
}

impl Handle<Blocking> {
    /// Connects to the sidecar that listens at `path`.
    pub fn connect(path: impl AsRef<Path>) -> Connect<Blocking> {
        Connect::to_path(path.as_ref())
    }

    /// Connects to a sidecar inside this process; see [`Client::embedded`].
    #[cfg(feature = "embedded")]
    pub fn embedded() -> Connect<Blocking> {
        Connect::embedded(None)
    }

    /// Connects to a sidecar inside this process that is a node of a cluster; see [`Client::embedded_with`].
    #[cfg(feature = "embedded")]
    pub fn embedded_with(config: NodeConfig) -> Connect<Blocking> {
        Connect::embedded(Some(config))
    }

    /// Begins a session over a connected socket.
    pub fn over(socket: Socket) -> Connect<Blocking> {
        Connect::over(socket)
    }

    /// Closes the client and all its clones: every call that waits, and every later one, fails at once with
    /// [`Error::ClientClosed`]. The versions that it has published end as those of a worker that ends. What was fetched stays
    /// readable; its memory is returned with the last fetched tensor.
    ///
    /// When this returns, another worker can have the name. A sidecar that does not answer within 5 s frees it once it does.
    pub fn close(&self) {
        self.connection.close();
    }
}

impl<F: Face> Handle<F> {
    pub(crate) fn new(connection: Arc<Connection>, name: Name, node: Name) -> Self {
        Handle { connection, about: Arc::new(About { name, node }), face: PhantomData }
    }

    /// The current session.
    pub(crate) fn session(&self) -> Arc<Session> {
        self.connection.session()
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// This worker's name, as others check it.
    pub(crate) fn worker(&self) -> &Name {
        &self.about.name
    }

    /// The name of the sidecar's node, as others check it.
    pub(crate) fn node_name(&self) -> &Name {
        &self.about.node
    }

    /// This worker's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.about.name.as_str()
    }

    /// The name of the sidecar's node.
    #[must_use]
    pub fn node(&self) -> &str {
        self.about.node.as_str()
    }

    /// The incarnation of the sidecar: another number after a restart.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.session().incarnation()
    }

    /// The reason why the session is over; `None` while the sidecar is there. After [`Gone::Away`] the client
    /// reconnects by itself, with the versions that it has published.
    #[must_use]
    pub fn gone(&self) -> Option<Gone> {
        self.session().gone()
    }

    /// The size of the arena, in bytes.
    #[must_use]
    pub fn arena_bytes(&self) -> u64 {
        self.session().arena().mapping().len()
    }

    /// The free length of the arena, in all pieces together, in bytes.
    #[must_use]
    pub fn arena_free_bytes(&self) -> u64 {
        let session = self.session();
        session.home().sweep();
        session.arena().free_bytes()
    }

    /// Allocates a tensor in the arena, which is pinned memory that fabrics can read in place. Its contents are left
    /// over from earlier tensors.
    ///
    /// # Errors
    /// [`Error::ArenaFull`], [`Error::TooLargeForArena`], [`Error::Shape`].
    pub fn allocate(&self, dtype: DType, dims: impl AsRef<[u64]>) -> Result<TensorMut, Error> {
        let meta = TensorMeta::of(dtype, dims.as_ref())?;
        Ok(TensorMut::new(self.session().allocate(meta.len_bytes())?, meta))
    }

    /// Allocates a tensor like [`Client::allocate`](crate::Client::allocate), but waits up to `timeout` until room becomes free, because tensors
    /// are replaced, fetched by all their readers, or dropped.
    pub fn allocate_wait(&self, dtype: DType, dims: impl AsRef<[u64]>, timeout: Duration) -> AllocateWait<F> {
        let meta = TensorMeta::of(dtype, dims.as_ref()).map_err(Error::from);
        AllocateWait::new(self.session(), meta, timeout)
    }

    /// Publishes a tensor under `key`. No byte moves until it is fetched on another node, unless [`Push::to`] is set.
    pub fn push_tensor(&self, key: impl ToKey, tensor: TensorMut) -> Push<'static, F> {
        self.push(key, Ok(Source::Tensor(tensor)))
    }

    /// Publishes a frozen tensor under `key`, in place. It may be pushed any number of times.
    pub fn push_frozen<'a>(&self, key: impl ToKey, tensor: &'a Frozen) -> Push<'a, F> {
        self.push(key, Ok(Source::Bytes(tensor.as_bytes(), tensor.meta().clone())))
    }

    /// Publishes elements from any memory, row-major, under `key`. They are copied into the arena once, by several
    /// threads if they are many, and the report counts the copy. The thread that makes the push makes the copy, so an
    /// async worker should push large slices on a thread that may block. Waits for room in the arena.
    pub fn push_slice<'a, T: Element>(
        &self,
        key: impl ToKey,
        dims: impl AsRef<[u64]>,
        elements: &'a [T],
    ) -> Push<'a, F> {
        self.push(key, checked(T::DTYPE, dims.as_ref(), bytemuck::cast_slice(elements)))
    }

    /// Publishes bytes from any memory under `key`, as a tensor of `dtype`; see [`Client::push_slice`](crate::Client::push_slice).
    pub fn push_bytes<'a>(
        &self,
        key: impl ToKey,
        dtype: DType,
        dims: impl AsRef<[u64]>,
        bytes: &'a [u8],
    ) -> Push<'a, F> {
        self.push(key, checked(dtype, dims.as_ref(), bytes))
    }

    /// Publishes an Arrow array of numbers under `key`, as a tensor of one dimension. An array in the arena, made of a
    /// [`Frozen`] tensor, is published in place; any other is copied as in [`Client::push_slice`](crate::Client::push_slice). A null is an error.
    pub fn push_array<'a>(&self, key: impl ToKey, array: &'a dyn Array) -> Push<'a, F> {
        let source = key.to_key().map_err(Error::from).and_then(|key| of_array(&key, array));
        self.push(key, source)
    }

    /// Publishes a copy of a tensor that stays writable: a *snapshot* of weights that are updated in place. The bytes
    /// are copied once, which the report counts; see [`TwoBuffers`] for the other ways.
    pub fn push_snapshot<'a>(&self, key: impl ToKey, tensor: &'a TensorMut) -> Push<'a, F> {
        self.push(key, Ok(Source::Bytes(tensor.as_bytes(), tensor.meta().clone())))
    }

    /// Takes the newest version of this worker's own `key` back, to update it in place without a copy. From the moment
    /// of the call no new fetch gets it. Once all its readers are done, here and on other nodes, it is writable again.
    /// Meanwhile fetches wait for the next push of the key. If the readers take longer than the call may, it fails, and
    /// the version is published again. A tensor that was pushed as [`Frozen`] cannot be taken back: the call fails, and
    /// the version stays published. [`withdraw`](Self::withdraw) is for such tensors.
    pub fn gate(&self, key: impl ToKey) -> Gate<F> {
        Gate::new(self.session(), to_key(&key))
    }

    /// Takes the newest version of this worker's own `key` back like [`gate`](Self::gate), and leaves its memory with
    /// this process's other holders. After it no reader has the version, so a tensor that was pushed as [`Frozen`] can
    /// become writable with [`Frozen::try_into_mut`], also one of a bundle.
    pub fn withdraw(&self, key: impl ToKey) -> Gate<F, ()> {
        Gate::new(self.session(), to_key(&key))
    }

    /// Makes two buffers of that size that take turns under `key`; see [`TwoBuffers`].
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Shape`].
    pub fn two_buffers(&self, key: impl ToKey, dtype: DType, dims: impl AsRef<[u64]>) -> Result<TwoBuffers<F>, Error> {
        Ok(TwoBuffers::of(self.clone(), to_key(&key)?, TensorMeta::of(dtype, dims.as_ref())?))
    }

    /// Publishes many tensors with one wait.
    pub fn push_many<K: ToKey>(&self, tensors: impl IntoIterator<Item = (K, TensorMut)>) -> PushMany<F> {
        let items = tensors.into_iter().map(|(key, tensor)| (to_key(&key), tensor)).collect();
        PushMany::new(self.session(), items)
    }

    /// Fetches the tensor under `key`, and waits until there is one. It is read-only, and not copied where the fabric
    /// allows.
    pub fn fetch(&self, key: impl ToKey) -> Fetch<F> {
        Fetch::new(self.session(), to_key(&key), Tensor::new)
    }

    /// Makes a reader of the versions of `key`, which are tensors.
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn subscriber(&self, key: impl ToKey) -> Result<Subscriber<F>, Error> {
        Subscriber::new(&self.connection, &key, Tensor::new)
    }

    /// Fetches many tensors with one wait.
    pub fn fetch_many<K: ToKey>(&self, keys: impl IntoIterator<Item = K>) -> FetchMany<F> {
        FetchMany::new(self.session(), keys.into_iter().map(|key| to_key(&key)).collect())
    }

    /// Deletes a key of this worker. Its tensors that are being read stay until their readers are done.
    pub fn delete(&self, key: impl ToKey) -> Order<F> {
        let command = to_key(&key).map(|key| Command::Delete { key });
        Order::new(self.session(), command)
    }

    /// The counter of this name, the same one for every worker of the job. The first caller makes it, with the value 0.
    /// A name has at most 510 bytes; a sidecar is home to at most 4,096 counters and barriers in its life.
    pub fn counter(&self, name: impl AsRef<str>) -> Counting<F, Counter<F>> {
        Counter::open(&self.connection, counter_name(name.as_ref(), Key::of_counter))
    }

    /// The barrier of this name, for `members` members; all callers of the job must give the same number. This asks
    /// nothing of the sidecar yet; [`Barrier::wait`] does.
    #[must_use]
    pub fn barrier(&self, name: impl AsRef<str>, members: u32) -> Barrier<F> {
        Barrier::new(self.connection.clone(), counter_name(name.as_ref(), Key::of_barrier), members)
    }

    /// Reserves landing slots for tensors of this size that will be pushed under `key` to the sidecar of the worker
    /// `to`, so that the first push does not wait. Many of them at once travel in one call.
    pub fn prepare(&self, key: impl ToKey, dtype: DType, dims: impl AsRef<[u64]>, to: impl AsRef<str>) -> Order<F> {
        Order::new(self.session(), prepare(&key, dtype, dims.as_ref(), to.as_ref()))
    }

    pub(crate) fn push<'a>(&self, key: impl ToKey, source: Result<Source<'a>, Error>) -> Push<'a, F> {
        Push::new(self.session(), to_key(&key), source)
    }
}

/// Checks the name as the sidecar would.
fn counter_name(name: &str, key: fn(&Name) -> Result<Key, InvalidName>) -> Result<Name, Error> {
    let name = Name::new(name)?;
    key(&name)?;
    Ok(name)
}

fn prepare(key: &impl ToKey, dtype: DType, dims: &[u64], to: &str) -> Result<Command, Error> {
    let (key, meta, to) = (to_key(key)?, TensorMeta::of(dtype, dims)?, Name::new(to)?);
    // The call sets the time-out.
    Ok(Command::Prepare(Prepare { key, meta, to, timeout: Duration::ZERO }))
}
