//! Fetches into a buffer, or into an array of the caller's.

use crate::buffer::Buffer;
use crate::fetches;
use crate::into_call::{IntoCall, Lenders};
use crate::memory::Written;
use crate::pending::Going;
use crate::report::Report;
use crate::slices;
use crate::state_into::{OnePlace, Target};
use crate::tensor::Tensor;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::Instant;
use transfer_client::{BlockingClient, Fetch, FetchInto, FetchedInto, Landing, TensorMut};
use transfer_memory::forked::ForkGuard;

/// What a fetch into a buffer or an array returns: the version that is there now, and how it came there.
#[pyclass(frozen, module = "transferd", name = "FetchedInto")]
#[derive(Debug)]
pub(crate) struct PyFetchedInto {
    /// The buffer, or the array.
    #[pyo3(get)]
    buffer: Py<PyAny>,
    /// The version.
    #[pyo3(get)]
    version: u64,
    /// The report of the fetch. It counts a copy of this process.
    #[pyo3(get)]
    report: Py<Report>,
    /// How the bytes came there, and why not in place.
    #[pyo3(get)]
    landing: String,
    /// Whether they landed there, without a further copy.
    #[pyo3(get)]
    in_place: bool,
}

impl PyFetchedInto {
    fn made(py: Python<'_>, buffer: Py<PyAny>, fetched: &FetchedInto) -> PyResult<Py<PyAny>> {
        let report = Py::new(py, Report::new(*fetched.report()))?;
        let (version, landing) = (fetched.version(), fetched.landing());
        let in_place = landing == Landing::InPlace;
        Ok(Py::new(py, PyFetchedInto { buffer, version, report, landing: landing.to_string(), in_place })?.into_any())
    }
}

#[pymethods]
impl PyFetchedInto {
    fn __repr__(&self) -> String {
        format!("<FetchedInto version {} {}>", self.version, self.landing)
    }
}

/// Begins a fetch into a buffer or an array, of a tensor or of a slice of it. If it `is_staged`, it lands beside that first.
pub(crate) fn begin(
    fetch: Fetch<BlockingClient>,
    slice: Option<&Bound<'_, PyAny>>,
    (key, into, is_staged): (&str, &Bound<'_, PyAny>, bool),
    guard: Arc<ForkGuard>,
) -> PyResult<Box<dyn Going>> {
    let (py, about) = (into.py(), (key.to_owned(), Instant::now()));
    let landing = |fetch: Fetch<BlockingClient>, tensor: TensorMut| -> PyResult<FetchInto<BlockingClient>> {
        Ok(match slice.map(slices::of).transpose()? {
            None => fetch.into(tensor),
            Some(slice) => fetch.slice(slice).into(tensor),
        })
    };
    if let Ok(buffer) = into.cast::<Buffer>() {
        // Before the buffer is taken.
        slice.map(slices::of).transpose()?;
        // Its views see the new bytes.
        let request = landing(fetch, buffer.get().take(py, true)?)?;
        let request = if is_staged { request.staged() } else { request };
        let guard = buffer.get().guard().clone();
        return Ok(Box::new(IntoCall::new(request.begin(), buffer.clone().unbind(), about, guard)));
    }
    let arrays = py.import("transferd._landing")?;
    slice.map(slices::of).transpose()?;
    let chosen = arrays.call_method1("destination", (key, into, is_staged))?;
    let (at, why): (Py<PyAny>, Py<PyAny>) = chosen.extract()?;
    let target: Option<Target<'_>> = at.extract(py)?;
    if let Some(OnePlace { tensor, view, buffer }) = target.map(|of| OnePlace::take(py, of)).transpose()?.flatten() {
        let request = landing(fetch, tensor)?.at_view(view);
        let lender = ViewedBuffer { buffer, array: into.clone().unbind(), at };
        return Ok(Box::new(IntoCall::new(request.begin(), lender, about, guard)));
    }
    let into = into.clone().unbind();
    fetches::tensor(fetch, slice, key, guard, move |tensor: Bound<'_, Tensor>| {
        let py = tensor.py();
        let copied = py.import("transferd._landing")?.call_method1("copied", (about.0, &tensor, &into, why))?;
        let (report, landing) = copied.extract()?;
        let fetched = PyFetchedInto {
            buffer: into,
            version: tensor.getattr("version")?.extract()?,
            report,
            landing,
            in_place: false,
        };
        Ok(Py::new(py, fetched)?.into_any())
    })
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
        let made = PyFetchedInto::made(py, self.clone_ref(py).into_any(), &fetched);
        self.put_back(fetched.into_tensor());
        made
    }
}

/// A buffer of whose memory an array is a part.
struct ViewedBuffer {
    buffer: Arc<Written>,
    array: Py<PyAny>,
    /// The target that was made of the array.
    at: Py<PyAny>,
}

impl Lenders for ViewedBuffer {
    type Memory = TensorMut;

    fn memory_of(fetched: FetchedInto) -> TensorMut {
        fetched.into_tensor()
    }

    fn put_back(&self, memory: TensorMut) {
        self.buffer.put_back(memory);
    }

    fn finish(
        &self,
        py: Python<'_>,
        fetched: FetchedInto,
        _: &(String, Instant),
        _: &Arc<ForkGuard>,
    ) -> PyResult<Py<PyAny>> {
        let made = PyFetchedInto::made(py, self.array.clone_ref(py), &fetched);
        self.put_back(fetched.into_tensor());
        py.import("transferd._landing")?.call_method1("arrived", (&self.at, &self.array))?;
        made
    }
}
