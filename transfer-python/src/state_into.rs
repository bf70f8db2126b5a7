//! Fetches of states into buffers, which views of them see.

use crate::fetches;
use crate::into_call::{IntoCall, Lenders};
use crate::memory::{Fetched, Written};
use crate::pending::Going;
use crate::{dtype, errors};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use transfer_client::{BlockingClient, BundleMut, Fetch, FetchedBundle, FetchedInto, Landing};
use transfer_memory::forked::ForkGuard;

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

/// The buffers of a bundle, in the order of its tensors.
struct Listed(Vec<Arc<Written>>);

/// Begins a fetch of a bundle, into the buffers whose memory begins at these addresses.
pub(crate) fn begin(
    py: Python<'_>,
    fetch: Fetch<BlockingClient, FetchedBundle>,
    into: Vec<(String, usize)>,
    key: &str,
    guard: Arc<ForkGuard>,
) -> PyResult<Box<dyn Going>> {
    let about = (key.to_owned(), Instant::now());
    let (mut buffers, mut tensors) = (Listed(Vec::with_capacity(into.len())), Vec::with_capacity(into.len()));
    for (name, address) in into {
        let taken = listed(address).and_then(|written| Some((written.take()?, written)));
        let Some((tensor, written)) = taken else {
            buffers.put_back(tensors.into_iter().collect());
            return Err(errors::own(
                py,
                "pushed",
                &format!("the buffer for {name:?} was pushed already, or fetched into"),
            ));
        };
        tensors.push((name, tensor));
        buffers.0.push(written);
    }
    let begun = fetch.into(tensors.into_iter().collect()).keep_rest().begin();
    Ok(Box::new(IntoCall::new(begun, buffers, about, guard)))
}

impl Lenders for Listed {
    type Memory = BundleMut;

    fn memory_of(fetched: FetchedInto<BundleMut>) -> BundleMut {
        fetched.into_tensors()
    }

    fn put_back(&self, memory: BundleMut) {
        self.0.iter().zip(memory).for_each(|(buffer, (_, tensor))| buffer.put_back(tensor));
    }

    fn finish(
        &self,
        py: Python<'_>,
        fetched: FetchedInto<BundleMut>,
        about: &(String, Instant),
        guard: &Arc<ForkGuard>,
    ) -> PyResult<Py<PyAny>> {
        let landed: Vec<_> = fetched.landings().map(|(name, landing)| (name.to_owned(), landing)).collect();
        let rest = fetched.rest().iter().map(|(name, tensor)| (name.clone(), Fetched::Whole(tensor.clone()))).collect();
        let found = (rest, fetched.version(), *fetched.report());
        self.put_back(fetched.into_tensors());
        let landings = PyDict::new(py);
        for (name, landing) in landed {
            landings.set_item(name, (landing.to_string(), landing == Landing::InPlace))?;
        }
        let made = fetches::made(py, Ok(found), about, guard)?;
        Ok((made, landings).into_pyobject(py)?.into_any().unbind())
    }
}
