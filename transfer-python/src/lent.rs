//! Bases that this client lends for fetches.

use crate::buffer::Buffer;
use crate::client::{Client, about_of};
use crate::errors;
use crate::memory::Ours;
use crate::options;
use crate::pending::{Pending, going_push};
use crate::taken::take_all;
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::time::{Duration, Instant};
use transfer_client::{BlockingClient, Error, Fetch, FetchedBundle};

/// A base that is lent until `_end()`, or until it is dropped.
#[pyclass(frozen, module = "transferd")]
pub(crate) struct LentBase(Mutex<Ours<transfer_client::LentBase>>);

#[pymethods]
impl LentBase {
    fn _end(&self) {
        let ended = self.0.lock().take();
        drop(ended);
    }
}

/// Lends buffers as a base. All of them are taken, or none.
#[pyfunction]
#[pyo3(name = "_lend_base")]
pub(crate) fn lend_base(
    py: Python<'_>,
    client: &Bound<'_, Client>,
    key: &str,
    names: Vec<String>,
    buffers: Vec<Bound<'_, Buffer>>,
    #[pyo3(from_py_with = options::timeout)] timeout: Duration,
) -> PyResult<Pending> {
    let (handle, guard) = (client.get().handle(py)?, client.get().guard().clone());
    let frozen = take_all(py, &buffers, false)?;
    let lend = handle.lend_base(key, names.into_iter().zip(&frozen)).timeout(timeout);
    let about = (key.to_owned(), Instant::now());
    // Digests are made of all bytes before it is sent.
    Ok(Pending::new(going_push(lend.begin(), true, move |py, result: Result<transfer_client::LentBase, Error>| {
        let lent = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
        Ok(Py::new(py, LentBase(Mutex::new(Ours::new(lent, guard))))?.into_any())
    })))
}

/// Names a base in a fetch. One that has ended is none.
pub(crate) fn named(
    fetch: Fetch<BlockingClient, FetchedBundle>,
    base: Option<&Bound<'_, LentBase>>,
) -> Fetch<BlockingClient, FetchedBundle> {
    match base.map(|base| base.get().0.lock()).as_ref().and_then(|lent| lent.get()) {
        Some(lent) => fetch.base(lent),
        None => fetch,
    }
}
