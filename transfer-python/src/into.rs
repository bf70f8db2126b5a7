//! Fetches into buffers.

use crate::buffer::Buffer;
use crate::into_call::{IntoCall, Lenders};
use crate::pending::Going;
use crate::report::Report;
use crate::slices;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Instant;
use transfer_client::{BlockingClient, Fetch, FetchedInto, Landing, TensorMut};
use transfer_memory::forked::ForkGuard;

/// What a fetch into a buffer returns: the version that the buffer has now, and how it came there.
#[pyclass(frozen, module = "transferd", name = "FetchedInto")]
#[derive(Debug)]
pub(crate) struct PyFetchedInto {
    /// The buffer.
    #[pyo3(get)]
    buffer: Py<Buffer>,
    /// The version.
    #[pyo3(get)]
    version: u64,
    /// The report of the fetch. It counts a copy of this process.
    #[pyo3(get)]
    report: Py<Report>,
    landing: Landing,
}

#[pymethods]
impl PyFetchedInto {
    /// Whether the bytes landed in the buffer, without a further copy.
    #[getter]
    fn in_place(&self) -> bool {
        self.landing == Landing::InPlace
    }

    /// How they came there, and why not in place.
    #[getter]
    fn landing(&self) -> String {
        self.landing.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<FetchedInto version {} {}>", self.version, self.landing)
    }
}

/// Begins a fetch into a buffer, of a tensor or of a slice of it. If it `is_staged`, it lands beside the buffer first.
pub(crate) fn begin(
    fetch: Fetch<BlockingClient>,
    slice: Option<&Bound<'_, PyAny>>,
    key: &str,
    buffer: &Bound<'_, Buffer>,
    is_staged: bool,
) -> PyResult<Box<dyn Going>> {
    let about = (key.to_owned(), Instant::now());
    let slice = slice.map(slices::of).transpose()?;
    // Its views see the new bytes.
    let tensor = buffer.get().take(buffer.py(), true)?;
    let request = match slice {
        None => fetch.into(tensor),
        Some(slice) => fetch.slice(slice).into(tensor),
    };
    let request = if is_staged { request.staged() } else { request };
    let guard = buffer.get().guard().clone();
    Ok(Box::new(IntoCall::new(request.begin(), buffer.clone().unbind(), about, guard)))
}

impl Lenders for Py<Buffer> {
    type Memory = TensorMut;

    fn memory_of(fetched: FetchedInto) -> TensorMut {
        fetched.into_tensor()
    }

    fn put_back(&self, memory: TensorMut) {
        self.get().put_back(memory);
    }

    fn finish(
        &self,
        py: Python<'_>,
        fetched: FetchedInto,
        _: &(String, Instant),
        _: &Arc<ForkGuard>,
    ) -> PyResult<Py<PyAny>> {
        let (version, landing, report) = (fetched.version(), fetched.landing(), Report::new(*fetched.report()));
        self.put_back(fetched.into_tensor());
        let (report, buffer) = (Py::new(py, report)?, self.clone_ref(py));
        Ok(Py::new(py, PyFetchedInto { buffer, version, report, landing })?.into_any())
    }
}
