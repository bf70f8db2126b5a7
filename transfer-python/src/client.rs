//! The client, and its calls.

use crate::buffer::Buffer;
use crate::connecting::{Settings, begin, connect};
use crate::errors::{self, About};
use crate::fetch_options::{FetchOptions, Proving, Versions, Which, choose};
use crate::lent::{self, LentBase};
use crate::memory::{Fetched, Ours};
use crate::options::{self, PushOptions};
use crate::pending::{Pending, going, going_push, run};
use crate::tensor::Tensor;
use crate::{counters, dtype, exchange, fetches, in_place, into, sharded, state_into, streams, table, taken};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_client::{BlockingClient, Error, PushError, Pushed, TensorMut};
use transfer_memory::forked::ForkGuard;

/// A session with the sidecar of this node.
#[pyclass(frozen, subclass, module = "transferd._native")]
pub(crate) struct Client {
    handle: Mutex<Ours<BlockingClient>>,
    guard: Arc<ForkGuard>,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    node: String,
}

impl Client {
    /// The current client. Errors: this is a forked child, or the client was closed.
    pub(crate) fn handle(&self, py: Python<'_>) -> PyResult<BlockingClient> {
        if self.guard.is_forked() {
            return Err(errors::forked(py));
        }
        let handle = self.handle.lock().get().cloned();
        handle.ok_or_else(|| errors::raise(py, &Error::ClientClosed, &About::default()))
    }

    pub(crate) fn guard(&self) -> &Arc<ForkGuard> {
        &self.guard
    }
}

#[pymethods]
impl Client {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword argument")]
    #[pyo3(signature = (path, *, name = None, arena_bytes = None, timeout = None, spin = None, reconnect = true, sidecar = None))]
    fn new(
        py: Python<'_>,
        path: Option<PathBuf>,
        name: Option<String>,
        arena_bytes: Option<u64>,
        #[pyo3(from_py_with = options::connect_timeout)] timeout: Option<Duration>,
        #[pyo3(from_py_with = options::spin)] spin: Option<Duration>,
        reconnect: bool,
        sidecar: Option<Settings>,
    ) -> PyResult<Client> {
        let mut begin = begin(path, sidecar);
        begin = begin.reconnect(reconnect);
        if let Some(name) = name {
            begin = begin.name(name);
        }
        if let Some(bytes) = arena_bytes {
            begin = begin.arena_bytes(bytes);
        }
        if let Some(timeout) = timeout {
            begin = begin.timeout(timeout);
        }
        if let Some(spin) = spin {
            begin = begin.spin(spin);
        }
        let guard = ForkGuard::new().map_err(std::io::Error::from)?;
        let (guard, handle) = (Arc::new(guard), connect(py, begin)?);
        let (name, node) = (handle.name().to_owned(), handle.node().to_owned());
        Ok(Client { handle: Mutex::new(Ours::new(handle, guard.clone())), guard, name, node })
    }

    /// Ends the session: calls that wait raise `Error` with the code "closed" at once, and so does every later call. Fetched tensors
    /// stay readable. When it returns, another worker can have the name.
    fn close(&self, py: Python<'_>) {
        if !self.guard.is_forked() {
            let handle = self.handle.lock().take();
            // A sidecar of this process ends with its last client, which takes a moment.
            py.detach(|| {
                if let Some(handle) = &handle {
                    handle.close();
                }
                drop(handle);
            });
        }
    }

    /// Whether `close()` was called.
    #[getter]
    fn closed(&self) -> bool {
        !self.guard.is_forked() && self.handle.lock().get().is_none()
    }

    /// The reason why the session is over, as text; None while the sidecar runs.
    #[getter]
    fn gone(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.handle(py)?.gone().map(|gone| gone.to_string()))
    }

    /// The incarnation of the sidecar: another number after a restart.
    #[getter]
    fn incarnation(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.handle(py)?.incarnation())
    }

    /// The size of the arena, in bytes.
    #[getter]
    fn arena_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.handle(py)?.arena_bytes())
    }

    /// The free length of the arena, in all pieces together, in bytes.
    #[getter]
    fn arena_free_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        let handle = self.handle(py)?;
        handle.take_answers();
        Ok(handle.arena_free_bytes())
    }

    /// Fetches the tensor under `key`, and waits until there is one.
    ///
    /// Without `at_least`, `exactly` and `after`, it fetches the newest version. `at_least` fetches the newest version once
    /// it is this one or later; `exactly` fetches only this one; `after` fetches the newest once it is another than this
    /// one, which was fetched before: a later one, or a lower one if the owner has begun again since. `timeout` is in
    /// seconds, and includes the wait for the version; None is unlimited. `require` names the fabric that must carry the
    /// tensor, such as "tcp". `trace` is a traceparent. `slice` is the part of the tensor to be fetched, such as np.s_[0:1024, -512:]: nothing else
    /// moves, and on this host it is a view. Bounds outside of the tensor are an error. `into` is a `Buffer` of this client with the
    /// shape and element type of what is fetched: from another node the bytes land in it, without a further copy, and its views
    /// see them. The call returns, or raises, when no other process can write there any more. With `staged` they land beside the buffer
    /// first and are copied, so that it is never half new.
    ///
    /// With `verify` what comes is compared with the digests of its push, if that has made some, and `WrongDigest` is raised if a byte is wrong;
    /// `report.verified` says how many bytes were compared. `require_digest` verifies, and raises `NoDigest` for a version without.
    ///
    /// With `into`, returns a `FetchedInto`, or raises `DestinationTorn` if the buffer may be half new. Else returns a `Tensor`: read-only, and without a copy where the fabric allows. Raises `Timeout`, `VersionGone`,
    /// `PermissionDenied`, `PeerLost`, `RequireUnmet`, `SidecarGone`, `Forked`.
    #[pyo3(signature = (key, *, at_least = None, exactly = None, after = None, timeout = options::DEFAULT_TIMEOUT, require = None, trace = None, slice = None, into = None, staged = false, verify = false, require_digest = false),
        text_signature = "($self, key, *, at_least=None, exactly=None, after=None, timeout=30.0, require=None, trace=None, slice=None, into=None, staged=False, verify=False, require_digest=False)")]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword argument")]
    fn fetch(
        &self,
        py: Python<'_>,
        key: &str,
        at_least: Option<&Bound<'_, PyAny>>,
        exactly: Option<&Bound<'_, PyAny>>,
        after: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
        require: Option<&str>,
        trace: Option<&str>,
        slice: Option<&Bound<'_, PyAny>>,
        into: Option<&Bound<'_, PyAny>>,
        staged: bool,
        verify: bool,
        require_digest: bool,
    ) -> PyResult<Py<PyAny>> {
        let proving = Proving { is_asked: verify, is_required: require_digest };
        let which = Which::of([at_least, exactly, after], timeout, require, trace, proving)?;
        run(py, self.begin_fetch(py, key, &which, (slice, into, staged))?)
    }

    /// Begins a fetch, and returns it as a `Pending`. Its arguments are those of `fetch`.
    #[pyo3(signature = (key, *, at_least = None, exactly = None, after = None, timeout = options::DEFAULT_TIMEOUT, require = None, trace = None, slice = None, into = None, staged = false, verify = false, require_digest = false),
        text_signature = "($self, key, *, at_least=None, exactly=None, after=None, timeout=30.0, require=None, trace=None, slice=None, into=None, staged=False, verify=False, require_digest=False)")]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword argument")]
    fn fetch_later(
        &self,
        py: Python<'_>,
        key: &str,
        at_least: Option<&Bound<'_, PyAny>>,
        exactly: Option<&Bound<'_, PyAny>>,
        after: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
        require: Option<&str>,
        trace: Option<&str>,
        slice: Option<&Bound<'_, PyAny>>,
        into: Option<&Bound<'_, PyAny>>,
        staged: bool,
        verify: bool,
        require_digest: bool,
    ) -> PyResult<Pending> {
        let proving = Proving { is_asked: verify, is_required: require_digest };
        let which = Which::of([at_least, exactly, after], timeout, require, trace, proving)?;
        let pending = Pending::new(self.begin_fetch(py, key, &which, (slice, into, staged))?);
        pending.begin(py);
        Ok(pending)
    }

    #[pyo3(signature = (keys, *, at_least = None, exactly = None, after = None, timeout = options::DEFAULT_TIMEOUT, require = None, trace = None, verify = false, require_digest = false),
        text_signature = "($self, keys, *, at_least=None, exactly=None, after=None, timeout=30.0, require=None, trace=None, verify=False, require_digest=False)")]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword argument")]
    fn _fetch_many(
        &self,
        py: Python<'_>,
        keys: Vec<String>,
        at_least: Option<&Bound<'_, PyAny>>,
        exactly: Option<&Bound<'_, PyAny>>,
        after: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
        require: Option<&str>,
        trace: Option<&str>,
        verify: bool,
        require_digest: bool,
    ) -> PyResult<Pending> {
        let proving = Proving { is_asked: verify, is_required: require_digest };
        proving.refuse(py, "what fetch_many brings")?;
        let Which { versions, .. } = Which::of([at_least, exactly, after], timeout, require, trace, proving)?;
        let (started, guard) = (Instant::now(), self.guard.clone());
        let mut fetch = self.handle(py)?.fetch_many(&keys).timeout(timeout);
        if let Some(fabric) = options::fabric(py, require)? {
            fetch = fetch.require(fabric);
        }
        if let Some(trace) = options::trace(py, trace)? {
            fetch = fetch.trace(trace);
        }
        fetch = choose!(py, fetch, versions);
        Ok(Pending::new(going(fetch.begin(), move |py, results| {
            let results = results.into_iter().zip(keys).map(|(result, key)| match result {
                Ok(tensor) => Ok(Py::new(py, Tensor::new(Fetched::Whole(tensor), guard.clone(), key))?.into_any()),
                Err(e) => {
                    let about = About { key: Some(&key), waited: Some(started.elapsed()) };
                    Ok(errors::raise(py, &e, &about).into_value(py).into_any())
                }
            });
            Ok(PyList::new(py, results.collect::<PyResult<Vec<_>>>()?)?.into_any().unbind())
        })))
    }

    /// Fetches rows of a tensor. `indices` are integers of 8 bytes.
    fn _take(&self, py: Python<'_>, key: &str, indices: &[u8], options: &Bound<'_, PyDict>) -> PyResult<Pending> {
        fetches::take(py, &self.handle(py)?, key, indices, &FetchOptions::read(options)?.borrow(), self.guard.clone())
    }

    fn _fetch_table(&self, py: Python<'_>, key: &str, options: &Bound<'_, PyDict>) -> PyResult<Pending> {
        let which = FetchOptions::read(options)?;
        let (fetch, about) = (self.handle(py)?.fetch_table(key), (key.to_owned(), Instant::now()));
        let fetch = which.borrow().apply(py, fetch)?;
        Ok(Pending::new(going(fetch.begin(), move |py, result| {
            let table = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
            Ok(Py::new(py, table::Table::new(table))?.into_any())
        })))
    }

    fn _allocate(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = options::shape)] shape: Vec<u64>,
        dtype: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        let (dtype, guard, started) = (dtype::of(dtype)?, self.guard.clone(), Instant::now());
        let handle = self.handle(py)?;
        match handle.allocate(dtype, &shape) {
            Ok(tensor) => return Ok(Pending::ready(Py::new(py, Buffer::new(tensor, guard))?.into_any())),
            // Memory may have been returned in an answer that no thread has handled yet.
            Err(_) => handle.take_answers(),
        }
        let begun = handle.allocate_wait(dtype, &shape).timeout(timeout).begin();
        Ok(Pending::new(going(begun, move |py, result: Result<TensorMut, Error>| {
            let about = About { key: None, waited: Some(started.elapsed()) };
            let tensor = result.map_err(|e| errors::raise(py, &e, &about))?;
            Ok(Py::new(py, Buffer::new(tensor, guard))?.into_any())
        })))
    }

    /// Pushes the contents of `buffer`. `copied` bytes of them were copied there before.
    fn _push(
        &self,
        py: Python<'_>,
        key: &str,
        buffer: Bound<'_, Buffer>,
        aliases: bool,
        copied: u64,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Pending> {
        let (options, handle) = (PushOptions::read(options)?, self.handle(py)?);
        let (tensor, is_long) = (buffer.get().take(py, aliases)?, options.reads_all());
        let push = options.apply(handle.push_tensor(key, tensor));
        let (about, buffer) = ((key.to_owned(), Instant::now()), buffer.unbind());
        let finish = move |py: Python<'_>, result| pushed(py, result, &about, copied, Some(&buffer));
        Ok(Pending::new(going_push(push.begin(), is_long, finish)))
    }

    fn _push_table(
        &self,
        py: Python<'_>,
        key: &str,
        rows: &table::Rows,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Pending> {
        let (options, handle) = (PushOptions::read(options)?, self.handle(py)?);
        let push = py.detach(|| handle.push_table(key, rows.schema(), rows.batches()));
        let (about, is_long) = ((key.to_owned(), Instant::now()), options.reads_all());
        let push = options.apply(push).begin();
        Ok(Pending::new(going_push(push, is_long, move |py, result| pushed(py, result, &about, 0, None))))
    }

    /// Pushes these buffers as one version. `copied` bytes of them were copied there before. Either all buffers are
    /// taken, or none. A failed push gives them back.
    #[expect(clippy::too_many_arguments, reason = "each is an argument of one call")]
    fn _push_bundle(
        &self,
        py: Python<'_>,
        key: &str,
        names: Vec<String>,
        buffers: Vec<Bound<'_, Buffer>>,
        aliases: bool,
        copied: u64,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Pending> {
        let (options, handle) = (PushOptions::read(options)?, self.handle(py)?);
        taken::push_bundle(py, &handle, self.guard.clone(), key, (names, buffers), (aliases, copied), options)
    }

    /// Fetches a bundle, or these tensors of it, whole or a slice of each: its tensors by name, its version, and the report. All of it may come as a delta of
    /// the base.
    #[pyo3(signature = (key, parts, options, base = None))]
    fn _fetch_bundle(
        &self,
        py: Python<'_>,
        key: &str,
        parts: Option<Vec<(String, Option<Bound<'_, PyAny>>)>>,
        options: &Bound<'_, PyDict>,
        base: Option<Bound<'_, LentBase>>,
    ) -> PyResult<Pending> {
        let which = FetchOptions::read(options)?;
        let fetch = which.borrow().apply(py, self.handle(py)?.fetch_bundle(key))?;
        fetches::bundle(lent::named(fetch, base.as_ref()), parts, key, self.guard.clone())
    }

    /// The names, element types and shapes of a bundle's tensors, as they were when parts of it were fetched last.
    fn _bundle_layout<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Option<Vec<fetches::Described<'py>>>> {
        let Some(layout) = self.handle(py)?.bundle_layout(key) else { return Ok(None) };
        layout.into_iter().map(|tensor| fetches::described(py, tensor)).collect::<PyResult<_>>().map(Some)
    }

    /// Fetches tensors of a bundle, or slices of them, into parts of buffers: what `_fetch_bundle` returns of the others, and for
    /// each of these how it came, and whether in place.
    fn _fetch_bundle_into(
        &self,
        py: Python<'_>,
        key: &str,
        into: Vec<state_into::Target<'_>>,
        parts: Option<fetches::PartsAsked<'_>>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Pending> {
        let which = FetchOptions::read(options)?;
        let fetch = which.borrow().apply(py, self.handle(py)?.fetch_bundle(key))?;
        Ok(Pending::new(fetches::bundle_into(py, fetch, parts, into, key, self.guard.clone())?))
    }

    /// Pushes a rank's shards: see [`sharded::push`].
    #[expect(clippy::too_many_arguments, reason = "each is an argument of one call")]
    fn _push_shards(
        &self,
        py: Python<'_>,
        key: &str,
        version: &Bound<'_, PyAny>,
        commit: sharded::Commit,
        places: Vec<sharded::ShardPlace>,
        buffers: Vec<Bound<'_, Buffer>>,
        aliases: bool,
        copied: u64,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Pending> {
        sharded::push(self, py, (key, version), commit, (places, buffers), (aliases, copied), options)
    }

    fn _fetch_sharded(
        &self,
        py: Python<'_>,
        key: &str,
        parts: Option<Vec<(String, Option<Bound<'_, PyAny>>)>>,
        options: &Bound<'_, PyDict>,
        manifest: Vec<Bound<'_, Tensor>>,
    ) -> PyResult<Pending> {
        sharded::fetch(self, py, key, parts, options, &manifest)
    }

    /// Fetches global tensors of a sharded state, or slices of them, into parts of buffers: as `_fetch_bundle_into`.
    fn _fetch_sharded_into(
        &self,
        py: Python<'_>,
        key: &str,
        into: Vec<state_into::Target<'_>>,
        parts: Option<fetches::PartsAsked<'_>>,
        options: &Bound<'_, PyDict>,
        manifest: Vec<Bound<'_, Tensor>>,
    ) -> PyResult<Pending> {
        sharded::fetch_into(self, py, key, parts, into, options, &manifest)
    }

    fn _delete(
        &self,
        py: Python<'_>,
        key: &str,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        let (begun, about) = (self.handle(py)?.delete(key).timeout(timeout).begin(), (key.to_owned(), Instant::now()));
        Ok(Pending::new(going(begun, move |py, result: Result<(), Error>| {
            result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
            Ok(py.None())
        })))
    }

    fn _reserve(
        &self,
        py: Python<'_>,
        key: &str,
        #[pyo3(from_py_with = options::shape)] shape: Vec<u64>,
        dtype: &Bound<'_, PyAny>,
        to: &str,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        let (dtype, timeout, about) = (dtype::of(dtype)?, timeout, (key.to_owned(), Instant::now()));
        let begun = self.handle(py)?.reserve(key, dtype, &shape, to).timeout(timeout).begin();
        Ok(Pending::new(going(begun, move |py, result: Result<(), Error>| {
            result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
            Ok(py.None())
        })))
    }

    fn _counter(
        &self,
        py: Python<'_>,
        name: &str,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        counters::open(self, py, name, timeout)
    }

    fn _barrier(
        &self,
        py: Python<'_>,
        name: &str,
        #[pyo3(from_py_with = options::members)] members: u32,
    ) -> PyResult<counters::Barrier> {
        counters::barrier(self, py, name, members)
    }

    fn _take_back(
        &self,
        py: Python<'_>,
        key: &str,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        let take_back = self.handle(py)?.take_back(key).timeout(timeout);
        Ok(in_place::take_back(take_back, self.guard.clone(), key))
    }

    fn _take_back_bundle(
        &self,
        py: Python<'_>,
        key: &str,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        let take_back = self.handle(py)?.take_back_bundle(key).timeout(timeout);
        Ok(in_place::take_back_bundle(take_back, self.guard.clone(), key))
    }

    /// Publishes buffers as one version, and leaves their memory with their views. `tensors` has the buffer's index for
    /// each name; names that are tied have the same one.
    fn _push_held(
        &self,
        py: Python<'_>,
        key: &str,
        tensors: Vec<(String, usize)>,
        buffers: Vec<Bound<'_, Buffer>>,
        copied: u64,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Pending> {
        let (options, handle) = (PushOptions::read(options)?, self.handle(py)?);
        in_place::push_held(py, &handle, self.guard.clone(), key, &tensors, &buffers, copied, options)
    }

    fn _regain(
        &self,
        py: Python<'_>,
        key: &str,
        version: u64,
        buffers: Vec<Bound<'_, Buffer>>,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        Ok(in_place::regain(self.handle(py)?, key, version, buffers, timeout))
    }

    fn _two_bundle_buffers(
        &self,
        py: Python<'_>,
        key: &str,
        tensors: Vec<(String, Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    ) -> PyResult<in_place::TwoBundleBuffers> {
        in_place::TwoBundleBuffers::new(self, py, key, tensors)
    }

    fn _two_buffers(
        &self,
        py: Python<'_>,
        key: &str,
        #[pyo3(from_py_with = options::shape)] shape: Vec<u64>,
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<in_place::TwoBuffers> {
        in_place::TwoBuffers::new(self, py, key, &shape, dtype)
    }

    #[pyo3(signature = (name, partitions, tasks, deadline, timeout))]
    fn _open_exchange(
        &self,
        py: Python<'_>,
        name: &str,
        #[pyo3(from_py_with = options::partitions)] partitions: u32,
        #[pyo3(from_py_with = options::tasks)] tasks: u32,
        #[pyo3(from_py_with = options::deadline)] deadline: Option<Duration>,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        exchange::open(self, py, name, (partitions, tasks), deadline, timeout)
    }

    fn _join_exchange(
        &self,
        py: Python<'_>,
        name: &str,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        exchange::join(self, py, name, timeout)
    }

    fn _push_stream(
        &self,
        py: Python<'_>,
        key: &str,
        rows: &table::Rows,
        #[pyo3(from_py_with = options::readers)] readers: u32,
    ) -> PyResult<streams::StreamWriter> {
        let stream = self.handle(py)?.push_stream(key, rows.schema()).readers(readers);
        Ok(streams::StreamWriter::new(stream, key))
    }

    fn _fetch_stream(
        &self,
        py: Python<'_>,
        key: &str,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<streams::StreamReader> {
        let stream = self.handle(py)?.fetch_stream(key).timeout(timeout);
        Ok(streams::StreamReader::new(stream, key))
    }
}

impl Client {
    fn begin_fetch(
        &self,
        py: Python<'_>,
        key: &str,
        which: &Which<'_>,
        (slice, into, staged): (Option<&Bound<'_, PyAny>>, Option<&Bound<'_, PyAny>>, bool),
    ) -> PyResult<Box<dyn crate::pending::Going>> {
        let fetch = which.apply(py, self.handle(py)?.fetch(key))?;
        match into {
            Some(into) => into::begin(fetch, slice, (key, into, staged), self.guard.clone()),
            None if staged => Err(errors::invalid(py, "staged=True is for a fetch with into=")),
            None => fetches::tensor(fetch, slice, key, self.guard.clone(), |tensor| Ok(tensor.into_any().unbind())),
        }
    }
}

pub(crate) fn about_of(about: &(String, Instant)) -> About<'_> {
    About { key: Some(&about.0), waited: Some(about.1.elapsed()) }
}

/// Converts the result of a push. After a failed push the buffer gets its memory back, if no other process can reach
/// that.
pub(crate) fn pushed(
    py: Python<'_>,
    result: Result<Pushed, PushError>,
    about: &(String, Instant),
    copied: u64,
    buffer: Option<&Py<Buffer>>,
) -> PyResult<Py<PyAny>> {
    match result {
        Ok(pushed) => Ok(Py::new(py, crate::report::Pushed::new(py, pushed, copied)?)?.into_any()),
        Err(failed) => {
            let (error, tensor) = failed.into_parts();
            if let (Some(tensor), Some(buffer)) = (tensor, buffer) {
                buffer.get().put_back(tensor);
            }
            Err(errors::raise(py, &error, &about_of(about)))
        }
    }
}
