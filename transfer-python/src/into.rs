//! Fetches into buffers.

use crate::buffer::Buffer;
use crate::client::about_of;
use crate::memory::Ours;
use crate::pending::{Going, ended};
use crate::report::Report;
use crate::{errors, slices};
use pyo3::prelude::*;
use std::ops::ControlFlow;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_client::{Begun, BlockingClient, Fetch, FetchIntoError, FetchedInto, Landing};

/// How long is waited at a time for the end of a call that was given up.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(100);

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

/// A fetch into a buffer. The buffer counts as pushed until it has ended, also if it is given up.
struct IntoBuffer {
    begun: Ours<Begun<'static, Result<FetchedInto, FetchIntoError>>>,
    buffer: Py<Buffer>,
    about: (String, Instant),
    has_ended: bool,
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
    let begun = Ours::new(request.begin(), buffer.get().guard().clone());
    Ok(Box::new(IntoBuffer { begun, buffer: buffer.clone().unbind(), about, has_ended: false }))
}

impl IntoBuffer {
    fn finish(&mut self, py: Python<'_>, result: Result<FetchedInto, FetchIntoError>) -> PyResult<Py<PyAny>> {
        self.has_ended = true;
        let fetched = match result {
            Ok(fetched) => fetched,
            Err(failed) => {
                let (error, tensor) = failed.into_parts();
                if let Some(tensor) = tensor {
                    self.buffer.get().put_back(tensor);
                }
                return Err(errors::raise(py, &error, &about_of(&self.about)));
            }
        };
        let (version, landing, report) = (fetched.version(), fetched.landing(), Report::new(*fetched.report()));
        // First, since the views of the buffer see this memory, whatever fails below.
        self.buffer.get().put_back(fetched.into_tensor());
        let report = Py::new(py, report)?;
        let buffer = self.buffer.clone_ref(py);
        Ok(Py::new(py, PyFetchedInto { buffer, version, report, landing })?.into_any())
    }
}

impl Going for IntoBuffer {
    fn poll(&mut self, py: Python<'_>, waker: &Waker) -> ControlFlow<PyResult<Py<PyAny>>, Instant> {
        // A step copies a version of this host, which takes as long as the version is large.
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

impl Drop for IntoBuffer {
    /// Waits until no peer can write into the buffer any more, and makes it writable again. That takes a second after the
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
        let tensor = match result {
            Ok(fetched) => Some(fetched.into_tensor()),
            Err(failed) => failed.into_parts().1,
        };
        if let Some(tensor) = tensor {
            self.buffer.get().put_back(tensor);
        }
    }
}
