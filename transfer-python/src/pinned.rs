//! Arrays of the caller's that are registered with a sidecar inside of this process, and published where they lie.

use crate::buffer::Buffer;
use crate::claims;
use crate::client::{Client, pushed};
use crate::errors::{self, About};
use crate::options::PushOptions;
use crate::pending::{Pending, going_push};
use crate::pybuffer::{ArrayMemory, Foreign};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Instant;
use transfer_client::ErrorWith;

/// Registers the memory of an array that begins at `address`: a buffer over it. None where the sidecar is another process.
#[pyfunction]
#[pyo3(name = "_register")]
pub(crate) fn register(
    client: &Bound<'_, Client>,
    array: &Bound<'_, Foreign>,
    address: usize,
) -> PyResult<Option<Buffer>> {
    let (py, handle) = (client.py(), client.get().handle(client.py())?);
    let found = ArrayMemory::range_of(array, address)?;
    if !handle.is_embedded() {
        return Ok(None);
    }
    let (memory, meta) = ArrayMemory::of(array, found)?;
    let registered = py.detach(|| handle.register(memory, meta.dtype(), meta.shape().dims()));
    let tensor = registered.map_err(|e| errors::raise(py, e.error(), &About::default()))?;
    Ok(Some(Buffer::over(tensor, client.get().guard().clone())))
}

/// Raises if an array that begins at `address` is not what `register` has made this buffer of: other elements, another shape, or elements
/// in another order.
#[pyfunction]
#[pyo3(name = "_check_registered")]
pub(crate) fn check(
    client: &Bound<'_, Client>,
    buffer: &Bound<'_, Buffer>,
    array: &Bound<'_, Foreign>,
    address: usize,
) -> PyResult<()> {
    client.get().handle(client.py())?;
    array.get().check_is(client.py(), address, buffer.get().meta())
}

/// Makes a buffer that was published writable again, if nobody reads it any more. Returns whether it is, or whether nobody can read it because
/// the client is closed.
#[pyfunction]
#[pyo3(name = "_regained")]
pub(crate) fn regained(client: &Bound<'_, Client>, buffer: &Bound<'_, Buffer>) -> PyResult<bool> {
    let py = client.py();
    match client.get().handle(py) {
        // A version that has ended is told of by an answer.
        Ok(handle) => py.detach(|| handle.take_answers()),
        Err(e) if client.get().guard().is_forked() => return Err(e),
        Err(_) => {
            if let Ok(written) = buffer.get().written(py)
                && written.is_let_go()
            {
                claims::give_up(written.address());
                return Ok(true);
            }
        }
    }
    Ok(buffer.get().regain())
}

/// Ends the registration of a buffer that `register` has made.
#[pyfunction]
#[pyo3(name = "_unregister")]
pub(crate) fn unregister(client: &Bound<'_, Client>, buffer: &Bound<'_, Buffer>) -> PyResult<()> {
    let (py, handle) = (client.py(), client.get().handle(client.py())?);
    let tensor = buffer.get().take(py, true)?;
    let ended = py.detach(|| handle.unregister::<ArrayMemory>(tensor));
    ended.map(drop).map_err(|e: ErrorWith<_>| {
        let (error, tensor) = e.into_parts();
        if let Some(tensor) = tensor {
            buffer.get().put_back(tensor);
        }
        errors::raise(py, &error, &About::default())
    })
}

/// Publishes a buffer, and leaves its memory with it. `Client._regain` makes it writable again.
#[pyfunction]
#[pyo3(name = "_push_pinned")]
pub(crate) fn push(
    client: &Bound<'_, Client>,
    key: &str,
    buffer: &Bound<'_, Buffer>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Pending> {
    let (py, options, handle) = (client.py(), PushOptions::read(options)?, client.get().handle(client.py())?);
    let frozen = buffer.get().publish(py)?;
    let (is_long, about) = (options.reads_all(), (key.to_owned(), Instant::now()));
    let push = options.apply(handle.push_frozen(key, &frozen));
    drop(frozen);
    let buffer = buffer.clone().unbind();
    Ok(Pending::new(going_push(push.begin(), is_long, move |py, result| {
        if result.is_err() {
            // Unless a reader may have it.
            buffer.get().regain();
        }
        pushed(py, result, &about, 0, None)
    })))
}
