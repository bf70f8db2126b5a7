//! Weights that are updated in place: versions that are taken back, and two buffers that take turns. Each is there for
//! tensors, and for states, which are bundles.

use crate::buffer::Buffer;
use crate::client::{Client, about_of, pushed};
use crate::memory::Ours;
use crate::options::PushOptions;
use crate::pending::{Pending, going, going_push};
use crate::{dtype, errors, options};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_client::{BlockingClient, BundleMut, Error, TakeBack, TensorMut};
use transfer_memory::forked::ForkGuard;

pub(crate) fn take_back(take_back: TakeBack<BlockingClient>, guard: Arc<ForkGuard>, key: &str) -> Pending {
    let about = (key.to_owned(), Instant::now());
    Pending::new(going(take_back.begin(), move |py, result: Result<TensorMut, Error>| {
        let tensor = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
        Ok(Py::new(py, Buffer::new(tensor, guard))?.into_any())
    }))
}

/// Takes a bundle back: its buffers by name.
pub(crate) fn take_back_bundle(
    take_back: TakeBack<BlockingClient, BundleMut>,
    guard: Arc<ForkGuard>,
    key: &str,
) -> Pending {
    let about = (key.to_owned(), Instant::now());
    Pending::new(going(take_back.begin(), move |py, result: Result<BundleMut, Error>| {
        let bundle = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
        let buffers = PyDict::new(py);
        for (name, tensor) in bundle {
            buffers.set_item(name, Py::new(py, Buffer::new(tensor, guard.clone()))?)?;
        }
        Ok(buffers.into_any().unbind())
    }))
}

/// Publishes buffers as one bundle, and leaves their memory with their views. All of them are published, or none.
#[expect(clippy::too_many_arguments, reason = "each is an argument of one call")]
pub(crate) fn push_held(
    py: Python<'_>,
    handle: &BlockingClient,
    guard: Arc<ForkGuard>,
    key: &str,
    tensors: &[(String, usize)],
    buffers: &[Bound<'_, Buffer>],
    copied: u64,
    options: PushOptions,
) -> PyResult<Pending> {
    let mut frozen = Vec::with_capacity(buffers.len());
    for (at, buffer) in buffers.iter().enumerate() {
        match buffer.get().publish(py) {
            Ok(tensor) => frozen.push(tensor),
            Err(e) => {
                frozen.clear();
                buffers[..at].iter().for_each(|buffer| _ = buffer.get().regain());
                return Err(e);
            }
        }
    }
    let named = tensors.iter().filter_map(|(name, at)| Some((name, frozen.get(*at)?)));
    let is_long = options.reads_all();
    let push = options.apply(handle.push_bundle(key, named));
    let about = (key.to_owned(), Instant::now());
    let buffers: Vec<_> = buffers.iter().map(|buffer| buffer.clone().unbind()).collect();
    let mut frozen = Ours::new(frozen, guard);
    Ok(Pending::new(going_push(push.begin(), is_long, move |py, result| {
        drop(frozen.take());
        if result.is_err() {
            // Those that a reader may have stay as they are.
            buffers.iter().for_each(|buffer| _ = buffer.get().regain());
        }
        pushed(py, result, &about, copied, None)
    })))
}

/// Takes back what `push_held` has published. The buffers are writable afterwards, all of them, or the call fails.
pub(crate) fn regain(
    handle: BlockingClient,
    key: &str,
    version: u64,
    buffers: Vec<Bound<'_, Buffer>>,
    timeout: Duration,
) -> Pending {
    let about = (key.to_owned(), Instant::now());
    let buffers: Vec<_> = buffers.into_iter().map(Bound::unbind).collect();
    let withdrawal = handle.withdraw(key).version(version).timeout(timeout).begin();
    Pending::new(going(withdrawal, move |py, result: Result<(), Error>| {
        // A version that has ended already is writable, too, once the sidecar has returned it.
        handle.take_answers();
        let published = buffers.iter().filter(|buffer| !buffer.get().regain()).count();
        match result {
            _ if published == 0 => Ok(py.None()),
            Err(e) => Err(errors::raise(py, &e, &about_of(&about))),
            Ok(()) => {
                let text = format!("version {version} of {:?} is held by another push of its buffers", about.0);
                Err(errors::own(py, "not_alone", &text))
            }
        }
    }))
}

/// Two buffers of one key that take turns.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct TwoBuffers {
    buffers: Mutex<transfer_client::TwoBuffers<BlockingClient>>,
    guard: Arc<ForkGuard>,
    #[pyo3(get)]
    key: String,
}

impl TwoBuffers {
    pub(crate) fn new(
        client: &Client,
        py: Python<'_>,
        key: &str,
        shape: &[u64],
        dtype: &Bound<'_, PyAny>,
    ) -> PyResult<TwoBuffers> {
        let made = client.handle(py)?.two_buffers(key, dtype::of(dtype)?, shape);
        let about = errors::About { key: Some(key), waited: None };
        let buffers = Mutex::new(made.map_err(|e| errors::raise(py, &e, &about))?);
        Ok(TwoBuffers { buffers, guard: client.guard().clone(), key: key.to_owned() })
    }
}

#[pymethods]
impl TwoBuffers {
    fn _turn(&self, py: Python<'_>, #[pyo3(from_py_with = options::timeout)] timeout: Duration) -> PyResult<Pending> {
        if self.guard.is_forked() {
            return Err(errors::forked(py));
        }
        let turn = self.buffers.lock().turn().timeout(timeout);
        Ok(take_back(turn, self.guard.clone(), &self.key))
    }

    fn _push(
        &self,
        py: Python<'_>,
        buffer: Bound<'_, Buffer>,
        #[pyo3(from_py_with = options::whole_version)] version: u64,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        let tensor = buffer.get().take(py, false)?;
        let push = self.buffers.lock().push(tensor, version).timeout(timeout);
        let (about, buffer) = ((self.key.clone(), Instant::now()), buffer.unbind());
        Ok(Pending::new(going(push.begin(), move |py, result| pushed(py, result, &about, 0, Some(&buffer)))))
    }
}

/// Two sets of buffers of one key that take turns as bundles.
#[pyclass(frozen, module = "transferd._native")]
pub(crate) struct TwoBundleBuffers {
    buffers: Mutex<transfer_client::TwoBuffers<BlockingClient, BundleMut>>,
    guard: Arc<ForkGuard>,
    #[pyo3(get)]
    key: String,
}

impl TwoBundleBuffers {
    pub(crate) fn new(
        client: &Client,
        py: Python<'_>,
        key: &str,
        tensors: Vec<(String, Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    ) -> PyResult<TwoBundleBuffers> {
        let mut layout = Vec::with_capacity(tensors.len());
        for (name, shape, dtype) in tensors {
            layout.push((name, dtype::of(&dtype)?, options::shape(&shape)?));
        }
        let about = errors::About { key: Some(key), waited: None };
        let made = client.handle(py)?.two_bundle_buffers(key, layout);
        let buffers = Mutex::new(made.map_err(|e| errors::raise(py, &e, &about))?);
        Ok(TwoBundleBuffers { buffers, guard: client.guard().clone(), key: key.to_owned() })
    }
}

#[pymethods]
impl TwoBundleBuffers {
    fn _turn(&self, py: Python<'_>, #[pyo3(from_py_with = options::timeout)] timeout: Duration) -> PyResult<Pending> {
        if self.guard.is_forked() {
            return Err(errors::forked(py));
        }
        let turn = self.buffers.lock().turn().timeout(timeout);
        Ok(take_back_bundle(turn, self.guard.clone(), &self.key))
    }

    fn _push(
        &self,
        py: Python<'_>,
        names: Vec<String>,
        buffers: Vec<Bound<'_, Buffer>>,
        #[pyo3(from_py_with = options::whole_version)] version: u64,
        #[pyo3(from_py_with = options::timeout)] timeout: Duration,
    ) -> PyResult<Pending> {
        let mut taken = Vec::with_capacity(buffers.len());
        for buffer in &buffers {
            match buffer.get().take(py, false) {
                Ok(tensor) => taken.push(tensor),
                Err(e) => {
                    buffers.iter().zip(taken).for_each(|(buffer, tensor)| buffer.get().put_back(tensor));
                    return Err(e);
                }
            }
        }
        let bundle: BundleMut = names.into_iter().zip(taken).collect();
        let push = self.buffers.lock().push(bundle, version).timeout(timeout);
        let about = (self.key.clone(), Instant::now());
        Ok(Pending::new(going(push.begin(), move |py, result| pushed(py, result, &about, 0, None))))
    }
}
