//! Fetches of tensors and bundles, whole or a slice of each.

use crate::client::about_of;
use crate::fetch_options::Which;
use crate::memory::Fetched;
use crate::pending::{Going, Pending, going};
use crate::report::Report;
use crate::state_into::{self, Places, Target};
use crate::tensor::Tensor;
use crate::{dtype, errors, slices};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;
use std::time::Instant;
use transfer_client::{
    BlockingClient, Error, Fetch, FetchBundleInto, FetchedBundle, FetchedSlices, MemoryView, Slice, TensorMeta,
};
use transfer_memory::forked::ForkGuard;

/// The name, element type, shape and length of a tensor.
pub(crate) type Described<'py> = (String, &'static str, Bound<'py, PyTuple>, u64);

pub(crate) fn described<'py>(py: Python<'py>, (name, meta): (String, TensorMeta)) -> PyResult<Described<'py>> {
    Ok((name, dtype::name(meta.dtype()), PyTuple::new(py, meta.shape().dims())?, meta.len_bytes()))
}

/// Begins a fetch of a tensor, or of a slice of it. `finish` makes what the call returns.
pub(crate) fn tensor(
    fetch: Fetch<BlockingClient>,
    slice: Option<&Bound<'_, PyAny>>,
    key: &str,
    guard: Arc<ForkGuard>,
    finish: impl FnOnce(Bound<'_, Tensor>) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<Box<dyn Going>> {
    let about = (key.to_owned(), Instant::now());
    let made = move |py: Python<'_>, result: Result<Fetched, Error>| {
        let tensor = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
        finish(Bound::new(py, Tensor::new(tensor, guard, about.0))?)
    };
    Ok(match slice.map(slices::of).transpose()? {
        None => going(fetch.begin(), move |py, result| made(py, result.map(Fetched::Whole))),
        Some(slice) => going(fetch.slice(slice).begin(), move |py, result| made(py, result.map(Fetched::Slice))),
    })
}

/// Begins a fetch of rows by their indices, integers of 8 bytes in this machine's order.
pub(crate) fn take(
    py: Python<'_>,
    client: &BlockingClient,
    key: &str,
    indices: &[u8],
    which: &Which<'_>,
    guard: Arc<ForkGuard>,
) -> PyResult<Pending> {
    let (indices, _) = indices.as_chunks();
    let take = client.take(key, indices.iter().map(|bytes| i64::from_ne_bytes(*bytes)));
    let (take, about) = (which.apply_to_rows(py, take)?, (key.to_owned(), Instant::now()));
    Ok(Pending::new(going(take.begin(), move |py, result| {
        let rows = result.map_err(|e| errors::raise(py, &e, &about_of(&about)))?;
        Ok(Py::new(py, Tensor::new(Fetched::Slice(rows), guard, about.0))?.into_any())
    })))
}

/// The tensors of a bundle by their names, its version, and the report.
pub(crate) type Found = (Vec<(String, Fetched)>, u64, transfer_client::Report);

/// Makes Python's objects of what was found.
pub(crate) fn made(
    py: Python<'_>,
    found: Result<Found, Error>,
    about: &(String, Instant),
    guard: &Arc<ForkGuard>,
) -> PyResult<Py<PyAny>> {
    let (found, version, report) = found.map_err(|e| errors::raise(py, &e, &about_of(about)))?;
    let tensors = PyDict::new(py);
    for (name, tensor) in found {
        tensors.set_item(name, Py::new(py, Tensor::new(tensor, guard.clone(), about.0.clone()))?)?;
    }
    let report = Py::new(py, Report::new(report))?;
    Ok((tensors, version, report).into_pyobject(py)?.into_any().unbind())
}

/// The names of tensors, and the slice of each; all of it without one.
pub(crate) type PartsAsked<'py> = Vec<(String, Option<Bound<'py, PyAny>>)>;

/// Reads the slices of tensors.
pub(crate) fn read_parts(parts: PartsAsked<'_>) -> PyResult<Vec<(String, Option<Slice>)>> {
    let read = |(name, slice): (String, Option<Bound<'_, PyAny>>)| {
        Ok((name, slice.map(|slice| slices::of(&slice)).transpose()?))
    };
    parts.into_iter().map(read).collect()
}

/// Begins a fetch of a bundle, or of these parts of it, into parts of buffers.
pub(crate) fn bundle_into(
    py: Python<'_>,
    fetch: Fetch<BlockingClient, FetchedBundle>,
    parts: Option<PartsAsked<'_>>,
    into: Vec<Target<'_>>,
    key: &str,
    guard: Arc<ForkGuard>,
) -> PyResult<Box<dyn Going>> {
    let parts = parts.map(read_parts).transpose()?;
    let places = Places::take(py, into)?;
    Ok(state_into::begin(places, key, guard, |tensors, views| {
        let fetch = match parts {
            None => fetch.into(tensors).keep_rest(),
            Some(parts) => fetch.slices(parts).into(tensors),
        };
        let placed = |fetch: FetchBundleInto<BlockingClient>, (name, tensor, view): (String, String, MemoryView)| {
            fetch.at_view(&name, &tensor, view)
        };
        views.into_iter().fold(fetch, placed).begin()
    }))
}

/// Begins a fetch of a bundle, or of these tensors of it.
pub(crate) fn bundle(
    fetch: Fetch<BlockingClient, FetchedBundle>,
    parts: Option<PartsAsked<'_>>,
    key: &str,
    guard: Arc<ForkGuard>,
) -> PyResult<Pending> {
    let about = (key.to_owned(), Instant::now());
    let made = move |py: Python<'_>, found: Result<Found, Error>| made(py, found, &about, &guard);
    let whole = |bundle: FetchedBundle| {
        let tensors = bundle.iter().map(|(name, tensor)| (name.to_owned(), Fetched::Whole(tensor.clone()))).collect();
        (tensors, bundle.version(), *bundle.report())
    };
    Ok(Pending::new(match parts {
        None => going(fetch.begin(), move |py, result| made(py, result.map(whole))),
        Some(parts) if parts.iter().all(|(_, slice)| slice.is_none()) => {
            let names = parts.into_iter().map(|(name, _)| name);
            going(fetch.only(names).begin(), move |py, result| made(py, result.map(whole)))
        }
        Some(parts) => {
            let wanted = read_parts(parts)?;
            let parts = |found: FetchedSlices| {
                let slices =
                    found.iter().map(|(name, slice)| (name.to_owned(), Fetched::Slice(slice.clone()))).collect();
                (slices, found.version(), *found.report())
            };
            going(fetch.slices(wanted).begin(), move |py, result| made(py, result.map(parts)))
        }
    }))
}
