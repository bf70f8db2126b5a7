//! Fetches of states into buffers, which views of them see.

use crate::client::about_of;
use crate::fetches;
use crate::memory::{Fetched, Ours, Written};
use crate::pending::{Going, ended};
use crate::{dtype, errors};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_client::{
    Begun, BlockingClient, BundleMut, Fetch, FetchIntoError, FetchedBundle, FetchedInto, Landing, TensorMut,
};
use transfer_memory::forked::ForkGuard;

/// How long is waited at a time for the end of a call that was given up.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How long is waited for the list of buffers. Nobody holds it for longer than a look-up takes, but for a thread that was forked away.
const LIST_WAIT: Duration = Duration::from_millis(10);

/// The memory of the buffers of this process, by its address. An array has no reference to the buffer whose memory it sees.
static BUFFERS: Mutex<BTreeMap<usize, Weak<Written>>> = Mutex::new(BTreeMap::new());

/// Lists the memory of a buffer.
pub(crate) fn list(address: usize, written: &Arc<Written>) {
    if let Some(mut buffers) = BUFFERS.try_lock_for(LIST_WAIT) {
        buffers.insert(address, Arc::downgrade(written));
    }
}

/// Removes memory from the list, unless that address is the one of another buffer by now.
pub(crate) fn unlist(address: usize) {
    if let Some(mut buffers) = BUFFERS.try_lock_for(LIST_WAIT)
        && buffers.get(&address).is_some_and(|listed| listed.strong_count() == 0)
    {
        buffers.remove(&address);
    }
}

fn listed(address: usize) -> Option<Arc<Written>> {
    BUFFERS.try_lock_for(LIST_WAIT)?.get(&address)?.upgrade()
}

/// The element type and the shape of the writable buffer whose memory begins at this address.
#[pyfunction]
#[pyo3(name = "_buffer_at")]
pub(crate) fn buffer_at(py: Python<'_>, address: usize) -> PyResult<Option<(&'static str, Bound<'_, PyTuple>)>> {
    let written = listed(address).filter(|written| written.is_writable());
    let Some(written) = written else { return Ok(None) };
    Ok(Some((dtype::name(written.meta().dtype()), PyTuple::new(py, written.meta().shape().dims())?)))
}

/// A fetch of a bundle into buffers, each of which counts as pushed until it has ended, also if it is given up.
struct IntoBuffers {
    begun: Ours<Begun<'static, Result<FetchedInto<BundleMut>, FetchIntoError<BundleMut>>>>,
    buffers: Vec<Arc<Written>>,
    about: (String, Instant),
    has_ended: bool,
}

/// Begins a fetch of a bundle, into the buffers whose memory begins at these addresses.
pub(crate) fn begin(
    py: Python<'_>,
    fetch: Fetch<BlockingClient, FetchedBundle>,
    into: Vec<(String, usize)>,
    key: &str,
    guard: Arc<ForkGuard>,
) -> PyResult<Box<dyn Going>> {
    let about = (key.to_owned(), Instant::now());
    let (mut buffers, mut tensors) = (Vec::<Arc<Written>>::with_capacity(into.len()), Vec::with_capacity(into.len()));
    for (name, address) in into {
        let taken = listed(address).and_then(|written| Some((written.take()?, written)));
        let Some((tensor, written)) = taken else {
            put_back(&buffers, tensors.into_iter().map(|(_, tensor)| tensor));
            return Err(errors::own(
                py,
                "pushed",
                &format!("the buffer for {name:?} was pushed already, or fetched into"),
            ));
        };
        tensors.push((name, tensor));
        buffers.push(written);
    }
    let begun = fetch.into(tensors.into_iter().collect()).keep_rest().begin();
    Ok(Box::new(IntoBuffers { begun: Ours::new(begun, guard), buffers, about, has_ended: false }))
}

fn put_back(buffers: &[Arc<Written>], tensors: impl IntoIterator<Item = TensorMut>) {
    buffers.iter().zip(tensors).for_each(|(buffer, tensor)| buffer.put_back(tensor));
}

impl IntoBuffers {
    fn finish(
        &mut self,
        py: Python<'_>,
        result: Result<FetchedInto<BundleMut>, FetchIntoError<BundleMut>>,
    ) -> PyResult<Py<PyAny>> {
        self.has_ended = true;
        let fetched = match result {
            Ok(fetched) => fetched,
            Err(failed) => {
                let (error, tensors) = failed.into_parts();
                put_back(&self.buffers, tensors.into_iter().flatten().map(|(_, tensor)| tensor));
                return Err(errors::raise(py, &error, &about_of(&self.about)));
            }
        };
        let landed: Vec<_> = fetched.landings().map(|(name, landing)| (name.to_owned(), landing)).collect();
        let rest = fetched.rest().iter().map(|(name, tensor)| (name.clone(), Fetched::Whole(tensor.clone()))).collect();
        let found = (rest, fetched.version(), *fetched.report());
        // First, since the views of the buffers see this memory, whatever fails below.
        put_back(&self.buffers, fetched.into_tensors().into_iter().map(|(_, tensor)| tensor));
        let landings = PyDict::new(py);
        for (name, landing) in landed {
            landings.set_item(name, (landing.to_string(), landing == Landing::InPlace))?;
        }
        let made = fetches::made(py, Ok(found), &self.about, self.begun.guard())?;
        Ok((made, landings).into_pyobject(py)?.into_any().unbind())
    }
}

impl Going for IntoBuffers {
    fn poll(&mut self, py: Python<'_>, waker: &Waker) -> ControlFlow<PyResult<Py<PyAny>>, Instant> {
        // A step copies what has not landed in place, which takes as long as that is large.
        let Some(begun) = self.begun.get_mut() else { return ControlFlow::Break(Err(ended(py))) };
        match py.detach(|| begun.poll(waker)) {
            ControlFlow::Break(value) => ControlFlow::Break(self.finish(py, value)),
            ControlFlow::Continue(at) => ControlFlow::Continue(at),
        }
    }

    fn look(&mut self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>> {
        self.wait_only(py, Duration::ZERO)
    }

    fn wait_only(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        let Some(begun) = self.begun.get_mut() else { return Some(Err(ended(py))) };
        let value = py.detach(|| begun.wait_only(time))?;
        Some(self.finish(py, value))
    }

    fn wait(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        let Some(begun) = self.begun.get_mut() else { return Some(Err(ended(py))) };
        let value = py.detach(|| begun.wait(time))?;
        Some(self.finish(py, value))
    }
}

impl Drop for IntoBuffers {
    /// Waits until no peer can write into the buffers any more, and makes them writable again. That takes a second after the
    /// cancellation at most, and the end of a link.
    fn drop(&mut self) {
        if self.has_ended || self.begun.guard().is_forked() {
            return;
        }
        let Some(begun) = self.begun.get_mut() else { return };
        begun.cancel();
        let result = Python::attach(|py| {
            py.detach(|| {
                loop {
                    if let Some(result) = begun.wait(END_CHECK_INTERVAL) {
                        return result;
                    }
                }
            })
        });
        let tensors = match result {
            Ok(fetched) => Some(fetched.into_tensors()),
            Err(failed) => failed.into_parts().1,
        };
        put_back(&self.buffers, tensors.into_iter().flatten().map(|(_, tensor)| tensor));
    }
}
