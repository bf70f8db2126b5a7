//! Copies between tensors and the memory of GPUs that other libraries have allocated.

#![expect(unsafe_code, reason = "memory and streams of other libraries")]

use crate::buffer::Buffer;
use crate::dlpack::Taken;
use crate::errors::{self, About};
use crate::memory::Ours;
use crate::pending::{Going, Pending};
use parking_lot::Mutex;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use transfer_client::gpu::{CudaError, DeviceMemory, FromDevice, Gpu, Stream};
use transfer_client::{Error, TensorMut};

/// The time after which an event loop looks at a copy, even if it was not woken.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

fn raise(py: Python<'_>, error: impl Into<Error>) -> PyErr {
    errors::raise(py, &error.into(), &About::default())
}

/// Raises `NoDevice` if there is no GPU of this number, or no driver.
#[pyfunction]
#[pyo3(name = "_check_gpu")]
pub(crate) fn check(py: Python<'_>, ordinal: u32) -> PyResult<()> {
    py.detach(|| Gpu::open(ordinal)).map(drop).map_err(|e| raise(py, e))
}

/// This module's own stream of a GPU, in which it copies from there. It keeps the GPU open.
pub(crate) fn own_stream(py: Python<'_>, ordinal: u32) -> PyResult<Stream> {
    static STREAMS: Mutex<BTreeMap<u32, Stream>> = Mutex::new(BTreeMap::new());
    let found = py.detach(|| {
        // Also in a forked child, which must not use the stream of its parent.
        let gpu = Gpu::open(ordinal)?;
        let mut streams = STREAMS.lock();
        if let Some(stream) = streams.get(&ordinal) {
            return Ok(stream.clone());
        }
        let stream = Stream::new(&gpu)?;
        streams.insert(ordinal, stream.clone());
        Ok(stream)
    });
    found.map_err(|e: transfer_client::gpu::CudaError| raise(py, e))
}

/// Copies a fetched tensor to `address`, memory of a GPU that another library has allocated, in a stream of that library.
/// Returns the bytes that the GPU does not copy by itself.
///
/// # Safety
/// The memory has the tensor's length, and lives until the stream has done the copy. The stream is one of the GPU's primary
/// context, and lives as long.
pub(crate) unsafe fn copy_to(
    py: Python<'_>,
    tensor: &transfer_client::Tensor,
    ordinal: u32,
    address: u64,
    stream: usize,
) -> PyResult<u64> {
    let copied = py.detach(|| {
        let gpu = Gpu::open(ordinal)?;
        // SAFETY: the caller's contract. Other work of that library is in the same stream, or waits for it.
        let (stream, memory) = unsafe {
            let memory = DeviceMemory::from_raw(&gpu, address, tensor.meta().len_bytes(), Box::new(()));
            (Stream::from_raw(&gpu, stream), memory)
        };
        let copying = tensor.copy_into_device(memory, &stream)?;
        let report = copying.report();
        // The copy goes on, and keeps the version until it has ended.
        Ok(report.bytes - report.registered_bytes)
    });
    copied.map_err(|e: Error| raise(py, e))
}

/// Copies the array at `address`, memory of the stream's GPU that `taken` keeps, to `buffer`, which has its length. The
/// array is ready behind the work that is in `stream`. Returns the call, whose result are the bytes that the GPU has not
/// copied by itself.
pub(crate) fn copy_from(
    py: Python<'_>,
    stream: &Stream,
    address: usize,
    taken: &Arc<Taken>,
    buffer: &Bound<'_, Buffer>,
) -> PyResult<Pending> {
    let (tensor, taken) = (buffer.get().take(py, false)?, Box::new(taken.clone()));
    let begun = py.detach(|| {
        let len_bytes = tensor.meta().len_bytes();
        // SAFETY: by DLPack, `taken` keeps the memory. Its library's work comes before the stream's. A program that writes
        // to the array while it pushes it harms only what it pushes.
        let memory = unsafe { DeviceMemory::from_raw(stream.gpu(), address as u64, len_bytes, taken) };
        tensor.copy_from_device(memory, stream)
    });
    match begun {
        Ok(copying) => {
            let copied = copying.report().bytes - copying.report().registered_bytes;
            let copying = Ours::new(copying, buffer.get().guard().clone());
            Ok(Pending::new(Box::new(Arriving { copying, buffer: buffer.clone().unbind(), copied })))
        }
        Err(failed) => {
            let (error, owned) = failed.into_parts();
            if let Some((tensor, _)) = owned {
                buffer.get().put_back(tensor);
            }
            Err(raise(py, error))
        }
    }
}

/// A copy from a GPU into a buffer.
struct Arriving {
    copying: Ours<FromDevice>,
    buffer: Py<Buffer>,
    copied: u64,
}

impl Arriving {
    fn finish(&self, py: Python<'_>, ended: Result<(TensorMut, DeviceMemory), Error>) -> PyResult<Py<PyAny>> {
        let (tensor, memory) = ended.map_err(|e| raise(py, e))?;
        self.buffer.get().put_back(tensor);
        drop(memory);
        Ok(self.copied.into_pyobject(py)?.into_any().unbind())
    }

    /// The result, if the copy ends within `time`.
    fn within(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        let copying = self.copying.get()?;
        match py.detach(|| copying.wait_for(time)) {
            Ok(false) => return None,
            Ok(true) => {}
            Err(e) => return Some(Err(raise(py, e))),
        }
        let copying = self.copying.take()?;
        let ended = py.detach(|| copying.wait());
        Some(self.finish(py, ended))
    }
}

impl Going for Arriving {
    fn poll(&mut self, py: Python<'_>, waker: &Waker) -> ControlFlow<PyResult<Py<PyAny>>, Instant> {
        let Some(copying) = self.copying.get_mut() else {
            return ControlFlow::Break(Err(raise(py, CudaError::Ended)));
        };
        match Pin::new(copying).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(ended) => ControlFlow::Break(self.finish(py, ended)),
            Poll::Pending => ControlFlow::Continue(Instant::now() + LOOK_AGAIN),
        }
    }

    fn look(&mut self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>> {
        self.within(py, Duration::ZERO)
    }

    fn wait_only(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        self.within(py, time)
    }

    fn wait(&mut self, py: Python<'_>, time: Duration) -> Option<PyResult<Py<PyAny>>> {
        self.within(py, time)
    }
}
