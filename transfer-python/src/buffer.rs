//! Writable memory of the arena.

use crate::errors;
use crate::memory::{Memory, Written};
use crate::pybuffer::{self, Raw};
use crate::tensor::arrays;
use crate::{dlpack, dtype};
use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::c_int;
use std::sync::{Arc, Weak};
use transfer_client::{Frozen, TensorMeta, TensorMut};
use transfer_memory::forked::ForkGuard;

/// Writable memory of the arena, made by `empty` and `produce`. `push` takes it, by reference.
///
/// Its contents are left over from an earlier tensor. While a view of it lives (`numpy()`, `torch()`, a memoryview),
/// pushing it raises `StillExported`.
#[pyclass(frozen, weakref, module = "transferd")]
pub(crate) struct Buffer {
    written: Mutex<Contents>,
    meta: TensorMeta,
    guard: Arc<ForkGuard>,
}

struct Contents {
    /// `None` once it was pushed. Views have clones of the `Arc`; without views this is its only owner.
    here: Option<Arc<Written>>,
    /// What was pushed last, which lives as long as its views. A push that fails puts the tensor back there, so that
    /// they count as before.
    pushed: Weak<Written>,
}

impl Buffer {
    pub(crate) fn new(mut tensor: TensorMut, guard: Arc<ForkGuard>) -> Buffer {
        if tensor.dtype() == transfer_client::DType::Bool {
            // The left-over bytes may be no valid bools.
            tensor.fill_zero();
        }
        Buffer::over(tensor, guard)
    }

    /// A buffer whose bytes are valid elements.
    pub(crate) fn over(tensor: TensorMut, guard: Arc<ForkGuard>) -> Buffer {
        let meta = tensor.meta().clone();
        let here = Some(Written::new(tensor, guard.clone()));
        Buffer { written: Mutex::new(Contents { here, pushed: Weak::new() }), meta, guard }
    }

    pub(crate) fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    pub(crate) fn guard(&self) -> &Arc<ForkGuard> {
        &self.guard
    }

    /// The memory. The returned `Arc` keeps it.
    pub(crate) fn written(&self, py: Python<'_>) -> PyResult<Arc<Written>> {
        let written = self.written.lock().here.clone();
        written.ok_or_else(|| errors::own(py, "pushed", "this buffer was pushed: it has no memory any more"))
    }

    pub(crate) fn memory(&self, py: Python<'_>) -> PyResult<Memory> {
        Ok(Memory::Written(self.written(py)?))
    }

    /// Takes the tensor out. With `aliases`, it is taken even while there are views.
    pub(crate) fn take(&self, py: Python<'_>, aliases: bool) -> PyResult<TensorMut> {
        if self.guard.is_forked() {
            return Err(errors::forked(py));
        }
        let mut written = self.written.lock();
        let has_views = written.here.as_ref().is_some_and(|written| Arc::strong_count(written) > 1);
        if has_views && !aliases {
            let text = "a view of this buffer lives, and could change what is published; delete it, or push with \
                        aliases=\"allow\"";
            return Err(errors::own(py, "still_exported", text));
        }
        let taken = written.here.take_if(|here| here.is_writable()).ok_or_else(|| pushed_already(py))?;
        written.pushed = Arc::downgrade(&taken);
        taken.take().ok_or_else(|| pushed_already(py))
    }

    /// Freezes the tensor for a push, and keeps its memory.
    pub(crate) fn publish(&self, py: Python<'_>) -> PyResult<Frozen> {
        if self.guard.is_forked() {
            return Err(errors::forked(py));
        }
        let frozen = self.written.lock().here.as_ref().and_then(|written| written.publish());
        frozen.ok_or_else(|| pushed_already(py))
    }

    /// Makes what was published writable again. Returns whether it is.
    pub(crate) fn regain(&self) -> bool {
        self.written.lock().here.as_ref().is_some_and(|written| written.regain())
    }

    /// Makes the buffer writable again after its push has failed.
    pub(crate) fn put_back(&self, tensor: TensorMut) {
        let mut written = self.written.lock();
        written.here = Some(match written.pushed.upgrade() {
            Some(viewed) => {
                viewed.put_back(tensor);
                viewed
            }
            None => Written::new(tensor, self.guard.clone()),
        });
    }
}

fn pushed_already(py: Python<'_>) -> PyErr {
    errors::own(py, "pushed", "this buffer was pushed already")
}

#[pymethods]
impl Buffer {
    /// The dimensions, outermost first, in elements.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.meta.shape().dims())
    }

    /// The name of the element type, as numpy and ml_dtypes write it.
    #[getter]
    fn dtype(&self) -> &'static str {
        dtype::name(self.meta.dtype())
    }

    /// The length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.meta.len_bytes()
    }

    /// Whether it was pushed. It then has no memory left, or must not change until it is taken back.
    #[getter]
    fn pushed(&self) -> bool {
        !self.written.lock().here.as_ref().is_some_and(|written| written.is_writable())
    }

    /// # Safety
    /// The contract of the slot in Python's C API.
    #[expect(unsafe_code, reason = "a slot of Python's")]
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get().memory(slf.py())?;
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
    fn _raw(&self, py: Python<'_>) -> PyResult<Raw> {
        Ok(Raw::new(self.memory(py)?))
    }

    /// A writable numpy array of bytes that shares the memory of a buffer whose elements have 4 bits; see
    /// `Tensor.packed`.
    fn packed<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        arrays(slf.py())?.call_method1("packed", (slf,))
    }

    /// A writable numpy array that shares the memory. Needs numpy, and ml_dtypes for bfloat16 and floats of 8 bits. Where
    /// elements have 4 bits there is none: see `packed`.
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

    /// A writable torch tensor that shares the memory.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("torch")?.call_method1("from_dlpack", (slf,))
    }

    /// The device of DLPack: the host's memory.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    /// A capsule of DLPack that shares the memory.
    #[pyo3(signature = (**asked))]
    fn __dlpack__<'py>(&self, py: Python<'py>, asked: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        let asked = dlpack::Asked::read(py, asked)?;
        dlpack::export_written(py, self.written(py)?, &self.meta, &asked)
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<()> {
        Err(errors::no_pickle(py, "a buffer", "push it and pass its key, or pass a copy, b.numpy()"))
    }

    fn __repr__(&self) -> String {
        let state = if self.pushed() { ", pushed" } else { "" };
        format!("<Buffer {:?} {}{state}>", self.meta.shape().dims(), self.dtype())
    }
}
