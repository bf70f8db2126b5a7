//! A fetched tensor.

use crate::memory::{Fetched, Layout, Memory, Ours};
use crate::pybuffer::{self, Raw};
use crate::report::Report;
use crate::{dlpack, dtype, errors};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use transfer_memory::forked::ForkGuard;

/// A fetched tensor: read-only, in the sidecar's memory. Views of it keep that memory, even after this object, its
/// client and its sidecar are gone.
#[pyclass(frozen, module = "transferd")]
pub(crate) struct Tensor {
    tensor: Arc<Ours<Fetched>>,
    /// The key that it was fetched under.
    #[pyo3(get)]
    key: String,
    exports_copied: AtomicU64,
}

/// The Python module that makes numpy arrays.
pub(crate) fn arrays(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static ARRAYS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let module = ARRAYS.get_or_try_init(py, || Ok::<_, PyErr>(py.import("transferd._arrays")?.into_any().unbind()))?;
    Ok(module.bind(py))
}

impl Tensor {
    pub(crate) fn new(tensor: Fetched, guard: Arc<ForkGuard>, key: String) -> Tensor {
        Tensor { tensor: Arc::new(Ours::new(tensor, guard)), key, exports_copied: AtomicU64::new(0) }
    }

    pub(crate) fn memory(&self) -> Memory {
        Memory::Fetched(self.tensor.clone())
    }

    /// The tensor, which is no slice.
    pub(crate) fn whole(&self) -> PyResult<&transfer_client::Tensor> {
        match self.tensor()? {
            Fetched::Whole(tensor) => Ok(tensor),
            Fetched::Slice(_) => Err(pyo3::exceptions::PyTypeError::new_err("a slice of a tensor is not all of it")),
        }
    }

    fn tensor(&self) -> PyResult<&Fetched> {
        // Only its drop takes it out.
        self.tensor.get().ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err("the tensor is gone"))
    }
}

#[pymethods]
impl Tensor {
    /// The dimensions, outermost first, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor()?.meta().shape().dims())
    }

    /// The name of the element type, as numpy and ml_dtypes write it.
    #[getter]
    fn dtype(&self) -> PyResult<&'static str> {
        Ok(dtype::name(self.tensor()?.meta().dtype()))
    }

    /// The distance from one index to the next of each dimension, in bytes. A slice that is a view of a version on this host has those
    /// of the version, and all others lie row-major. Of elements of 4 bits they are those of `packed()`.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let tensor = self.tensor()?;
        let size = tensor.meta().dtype().size_bytes() as i64;
        PyTuple::new(py, Layout::of_fetched(tensor).strides.iter().map(|n| n.saturating_mul(size)))
    }

    /// The length of the elements in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.tensor()?.meta().len_bytes())
    }

    /// The version.
    #[getter]
    fn version(&self) -> PyResult<u64> {
        Ok(self.tensor()?.version())
    }

    /// The report of the fetch.
    #[getter]
    fn report(&self) -> PyResult<Report> {
        Ok(Report::new(self.tensor()?.report()))
    }

    /// The bytes that a CPU has copied for DLPack views of this tensor, and for copies to GPUs. Small tensors are copied,
    /// and tensors on huge pages or that came in buckets, which cannot be mapped privately, and elements of 4 bits for numpy; to a GPU, what its driver cannot register.
    #[getter]
    fn exports_copied(&self) -> u64 {
        self.exports_copied.load(Ordering::Relaxed)
    }

    /// # Safety
    /// The contract of the slot in Python's C API.
    #[expect(unsafe_code, reason = "a slot of Python's")]
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get().memory();
        // SAFETY: Python's contract for this slot is that of `export_elements`.
        unsafe { pybuffer::export_elements(slf.as_any(), view, flags, memory) }
    }

    /// # Safety
    /// The contract of the slot in Python's C API.
    #[expect(unsafe_code, reason = "a slot of Python's")]
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python hands back what `__getbuffer__` has filled, once.
        unsafe { pybuffer::release(view) };
    }

    /// The bytes, as an object of the buffer protocol.
    fn _raw(&self) -> Raw {
        Raw::new(self.memory())
    }

    /// Whether it was fetched as a slice.
    #[getter]
    fn _is_slice(&self) -> PyResult<bool> {
        Ok(matches!(self.tensor()?, Fetched::Slice(_)))
    }

    /// Counts bytes that were copied for a view of this tensor.
    fn _count_copied(&self, bytes: u64) {
        self.exports_copied.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A read-only numpy array of bytes that shares the memory of a tensor whose elements have 4 bits: each byte has two of
    /// them, the first in its low bits, so the last dimension is half as long.
    fn packed<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        arrays(slf.py())?.call_method1("packed", (slf,))
    }

    /// A read-only numpy array that shares the memory. Needs numpy, and ml_dtypes for bfloat16 and floats of 8 bits. Elements
    /// of 4 bits, which have a byte each in numpy, are copied, and `exports_copied` counts these bytes: see `packed`.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        arrays(slf.py())?.call_method1("view", (slf,))
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        arrays(slf.py())?.call_method1("array", (slf, dtype, copy))
    }

    /// A torch tensor. Without `device`, or on the CPU, it is made by DLPack: see `__dlpack__`. On a GPU, such as
    /// `device="cuda:1"`, it is a copy, which is made in torch's current stream there; this returns before it is done.
    #[pyo3(signature = (device = None))]
    fn torch<'py>(slf: &Bound<'py, Self>, device: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        match device {
            None => slf.py().import("torch")?.call_method1("from_dlpack", (slf,)),
            Some(device) => slf.py().import("transferd._gpu")?.call_method1("to_device", (slf, device)),
        }
    }

    /// Copies the tensor to `address`, memory of the GPU `ordinal` of its length, in `stream`, a stream of another
    /// library. The memory and the stream must live until the copy is done. `exports_copied` counts the bytes that the
    /// GPU does not copy by itself.
    #[expect(unsafe_code, reason = "memory of another library")]
    fn _copy_to_gpu(&self, py: Python<'_>, ordinal: u32, address: u64, stream: usize) -> PyResult<()> {
        let Fetched::Whole(tensor) = self.tensor()? else {
            return Err(errors::invalid(py, "a slice is copied to a GPU by torch"));
        };
        // SAFETY: the Python code that calls this has made the memory, and knows the stream.
        let copied = unsafe { crate::gpu::copy_to(py, tensor, ordinal, address, stream)? };
        self.exports_copied.fetch_add(copied, Ordering::Relaxed);
        Ok(())
    }

    /// The device of DLPack: the host's memory.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    /// A DLPack capsule: a private mapping of the tensor's pages, which shows the same bytes without a copy. Writes go
    /// to private copies of the pages. Tensors below 64 KiB, on huge pages, or that came in buckets are copied; `exports_copied`
    /// counts these bytes. A float4_e2m1fn tensor is one of pairs there, as torch's float4_e2m1fn_x2; int4 and uint4 raise.
    #[pyo3(signature = (**asked))]
    fn __dlpack__<'py>(&self, py: Python<'py>, asked: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        let asked = dlpack::Asked::read(py, asked)?;
        let (capsule, copied) = dlpack::export_fetched(py, &self.tensor, self.tensor()?, &asked)?;
        self.exports_copied.fetch_add(copied, Ordering::Relaxed);
        Ok(capsule)
    }

    /// What never changes is its own copy.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<()> {
        let what = format!("the tensor {:?} of version {}", self.key, self.tensor()?.version());
        Err(errors::no_pickle(py, &what, "pass its key and version and fetch it there, or pass a copy, v.numpy()"))
    }

    fn __repr__(&self) -> PyResult<String> {
        let tensor = self.tensor()?;
        Ok(format!(
            "<Tensor {:?} {:?} {}, version {}>",
            self.key,
            tensor.meta().shape().dims(),
            dtype::name(tensor.meta().dtype()),
            tensor.version()
        ))
    }
}
