//! The buffer protocol (PEP 3118): export of memory to Python, and import from it.

#![expect(unsafe_code, reason = "the buffer protocol is a struct of C")]

use crate::buffer::Buffer;
use crate::claims::Claim;
use crate::memory::Memory;
use crate::pending::Pending;
use crate::strided::{self, Strided};
use crate::tensor::Tensor;
use crate::{dlpack, dtype, errors, gpu};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use transfer_client::gpu::Stream;
use transfer_client::{DType, OwnedMemory, TensorMeta};

/// The bytes of a tensor or buffer, which a numpy view keeps.
#[pyclass(frozen, module = "transferd")]
pub(crate) struct Raw(Memory);

impl Raw {
    pub(crate) fn new(memory: Memory) -> Raw {
        Raw(memory)
    }
}

#[pymethods]
impl Raw {
    /// # Safety
    /// The contract of the slot in Python's C API.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let len = slf.get().0.address().1 as ffi::Py_ssize_t;
        let shape = Shape { format: Some(c"B"), item_bytes: 1, dims: vec![len], strides: vec![1], is_contiguous: true };
        // SAFETY: Python's contract for this slot is that of `export`.
        unsafe { export(slf.as_any(), view, flags, slf.get().0.clone(), shape) }
    }

    /// # Safety
    /// The contract of the slot in Python's C API.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python hands back what `export` has filled, once.
        unsafe { release(view) };
    }
}

struct Shape {
    format: Option<&'static CStr>,
    item_bytes: ffi::Py_ssize_t,
    dims: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
    /// Whether the elements lie row-major, in one piece.
    is_contiguous: bool,
}

impl Shape {
    /// Gives row-major elements the strides of column-major ones. Returns whether they lie in that order, too: where at
    /// most one dimension has several elements, and where there are none.
    fn turn_to_columns(&mut self) -> bool {
        let one_row = self.dims.contains(&0) || self.dims.iter().filter(|n| **n > 1).count() <= 1;
        let lies_so = one_row && self.is_contiguous;
        if lies_so {
            let mut stride = self.item_bytes;
            for (n, of) in self.dims.iter().zip(&mut self.strides) {
                *of = stride;
                stride = stride.saturating_mul(*n);
            }
        }
        lies_so
    }
}

/// The data that a view keeps until it is released.
struct Exported {
    _memory: Memory,
    dims: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
}

/// Fills `view` with a tensor's elements.
///
/// # Safety
/// `view` is the argument of Python's slot `bf_getbuffer`: null, or a `Py_buffer` to be filled.
pub(crate) unsafe fn export_elements(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    memory: Memory,
) -> PyResult<()> {
    let Some((meta, layout)) = memory.meta().zip(memory.layout()) else {
        return Err(PyBufferError::new_err("the tensor is gone"));
    };
    let item = meta.dtype().size_bytes() as ffi::Py_ssize_t;
    let shape = Shape {
        format: dtype::format(meta.dtype()),
        item_bytes: item,
        dims: layout.shape.iter().map(|n| *n as ffi::Py_ssize_t).collect(),
        strides: layout.strides.iter().map(|n| n.saturating_mul(item as i64) as ffi::Py_ssize_t).collect(),
        is_contiguous: layout.is_contiguous,
    };
    // SAFETY: the caller's contract.
    unsafe { export(owner, view, flags, memory, shape) }
}

/// # Safety
/// That of `export_elements`.
unsafe fn export(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    memory: Memory,
    mut shape: Shape,
) -> PyResult<()> {
    // SAFETY: the pointer is null, or a struct that Python lets this function write.
    let Some(view) = (unsafe { view.as_mut() }) else {
        return Err(PyBufferError::new_err("there is no view to fill"));
    };
    view.obj = ptr::null_mut();
    if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE && !memory.is_writable() {
        return Err(PyBufferError::new_err("a fetched tensor is read-only"));
    }
    let wants_format = flags & ffi::PyBUF_FORMAT == ffi::PyBUF_FORMAT;
    if wants_format && shape.format.is_none() {
        let text = "the buffer protocol has no such element type; use numpy() with ml_dtypes, torch(), or DLPack";
        return Err(PyBufferError::new_err(text));
    }
    let in_one_piece = [ffi::PyBUF_C_CONTIGUOUS, ffi::PyBUF_ANY_CONTIGUOUS].iter().any(|flag| flags & flag == *flag);
    if !shape.is_contiguous && (in_one_piece || flags & ffi::PyBUF_STRIDES != ffi::PyBUF_STRIDES) {
        return Err(PyBufferError::new_err("the elements of this slice lie apart, with strides; copy it first"));
    }
    // Elements that lie row-major are what every other request allows.
    if flags & ffi::PyBUF_F_CONTIGUOUS == ffi::PyBUF_F_CONTIGUOUS && !shape.turn_to_columns() {
        let text = "the elements lie row-major (C order), and not column-major (Fortran order)";
        return Err(PyBufferError::new_err(text));
    }
    view.buf = ptr::with_exposed_provenance_mut::<c_void>(memory.address().0);
    // That of the elements, also if others lie between them.
    view.len = shape.dims.iter().fold(shape.item_bytes, |len, n| len.saturating_mul(*n));
    view.itemsize = shape.item_bytes;
    view.readonly = c_int::from(!memory.is_writable());
    let has = |flag| flags & flag == flag;
    // As numpy says it: who asks for no dimensions gets none, and reads bytes.
    view.ndim = if has(ffi::PyBUF_ND) { shape.dims.len() as c_int } else { 0 };
    view.format = match shape.format {
        Some(format) if wants_format => format.as_ptr().cast_mut(),
        _ => ptr::null_mut(),
    };
    let mut kept = Box::new(Exported { _memory: memory, dims: shape.dims, strides: shape.strides });
    view.shape = if view.ndim > 0 { kept.dims.as_mut_ptr() } else { ptr::null_mut() };
    view.strides = if view.ndim > 0 && has(ffi::PyBUF_STRIDES) { kept.strides.as_mut_ptr() } else { ptr::null_mut() };
    view.suboffsets = ptr::null_mut();
    view.internal = Box::into_raw(kept).cast();
    view.obj = owner.clone().into_ptr();
    Ok(())
}

/// Drops the data that a view has kept.
///
/// # Safety
/// `export` has filled `view`, and this is called once for it.
pub(crate) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: `export` has stored such a box there.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Exported>()) });
}

/// A view of another object's memory. It is released when this is dropped.
struct Taken(Box<ffi::Py_buffer>);

// SAFETY: the struct is only read, and released with the interpreter's lock; its memory belongs to the Python object,
// which the view keeps.
unsafe impl Send for Taken {}
// SAFETY: as above.
unsafe impl Sync for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        // Without an interpreter there is nothing to release.
        let _ = Python::try_attach(|_| {
            // SAFETY: PyObject_GetBuffer has filled the view. It is released once, with the interpreter's lock.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.0) }
        });
    }
}

enum Source {
    /// Kept only for its drop.
    View(Taken),
    Dlpack(#[expect(dead_code, reason = "keeps the memory")] dlpack::Taken),
    /// Memory of a GPU, and the stream behind whose work it is ready.
    Gpu(Arc<dlpack::Taken>, Stream),
    Ours(#[expect(dead_code, reason = "keeps the memory")] Memory),
}

/// Memory from outside the arena, to be copied into it.
#[pyclass(frozen, module = "transferd")]
pub(crate) struct Foreign {
    /// In units of the element type, or in elements where they have a byte each and will have 4 bits.
    elements: Strided,
    meta: TensorMeta,
    packs: bool,
    source: Source,
}

#[pymethods]
impl Foreign {
    /// The memory of `value`: a tensor or buffer of this module, or any object with the buffer protocol or DLPack.
    /// `dtype` is the type of its elements, for types that the buffer protocol cannot express.
    #[new]
    #[pyo3(signature = (value, dtype = None))]
    fn new(value: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Foreign> {
        let dtype = dtype.map(dtype::of).transpose()?;
        if let Ok(tensor) = value.cast::<Tensor>() {
            return of_memory(value.py(), tensor.get().memory());
        }
        if let Ok(buffer) = value.cast::<Buffer>() {
            return of_memory(value.py(), buffer.get().memory(value.py())?);
        }
        // SAFETY: `value` is an object, and this thread holds the interpreter's lock.
        let has_buffer = unsafe { ffi::PyObject_CheckBuffer(value.as_ptr()) } != 0;
        match has_buffer.then(|| view_of(value)) {
            Some(Ok(view)) => of_view(value.py(), view, dtype),
            _ if value.hasattr("__dlpack__")? => {
                let (taken, elements, dtype, stream) = dlpack::take(value)?;
                let source = match stream {
                    None => Source::Dlpack(taken),
                    Some(stream) => Source::Gpu(Arc::new(taken), stream),
                };
                Foreign::of_units(value.py(), elements, dtype, source)
            }
            Some(Err(e)) => Err(e),
            None => {
                let text = format!(
                    "a {} cannot be pushed: what has the buffer protocol or DLPack can, and tables with push_table",
                    value.get_type().name()?
                );
                Err(pyo3::exceptions::PyTypeError::new_err(text))
            }
        }
    }

    /// The dimensions.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.meta.shape().dims())
    }

    /// The name of the element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        dtype::name(self.meta.dtype())
    }

    /// Whether the memory is a GPU's.
    #[getter]
    fn on_gpu(&self) -> bool {
        matches!(self.source, Source::Gpu(..))
    }

    /// Lets the GPU copy it into `buffer`, which has the same shape. Until that call has ended, the buffer counts as
    /// pushed. The result is the number of bytes that the GPU has not copied by itself.
    fn copy_later(&self, py: Python<'_>, buffer: &Bound<'_, Buffer>) -> PyResult<Pending> {
        self.check_fits(py, buffer.get())?;
        let Source::Gpu(taken, stream) = &self.source else {
            return Err(errors::invalid(py, "the array is not on a GPU"));
        };
        let Some(address) = self.elements.in_one_piece() else {
            let text = format!("{} on a GPU does not lie in one piece; make it contiguous there first", self.elements);
            return Err(errors::invalid(py, &text));
        };
        gpu::copy_from(py, stream, address, taken, buffer)
    }

    /// Copies it into `buffer`, which has the same shape, and the same element type or another one of `_cast_type`, without
    /// the interpreter's lock. Returns the number of written bytes.
    fn copy_to(&self, py: Python<'_>, buffer: &Buffer) -> PyResult<u64> {
        self.check_fits(py, buffer)?;
        if self.on_gpu() {
            return Err(errors::invalid(py, "the array is on a GPU"));
        }
        // This reference prevents a push meanwhile.
        let memory = buffer.memory(py)?;
        let (address, len) = memory.address();
        // SAFETY: the buffer has the length of its description, which is the source's; both are kept until the copy is
        // done. The source is another object's memory: an arena's buffer overlaps only itself, and then the copy
        // changes nothing. What is packed is no buffer's memory: that has two elements to a byte already. What is cast has
        // another type than the buffer.
        py.detach(|| unsafe {
            let to = ptr::with_exposed_provenance_mut(address);
            if self.packs {
                strided::pack(&self.elements, to);
            } else if !strided::cast(&self.elements, self.meta.dtype(), to, buffer.meta().dtype()) {
                strided::copy(&self.elements, to, len);
            }
        });
        drop(memory);
        Ok(len as u64)
    }
}

impl Foreign {
    /// Memory in units of the element type: where two elements share a byte, each has a pair of them.
    fn of_units(py: Python<'_>, elements: Strided, dtype: DType, source: Source) -> PyResult<Foreign> {
        let mut dims = elements.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = last.saturating_mul(dtype.elements_per_unit());
        }
        Foreign::described(py, elements, (dtype, dims), false, source)
    }

    fn described(
        py: Python<'_>,
        elements: Strided,
        (dtype, dims): (DType, Vec<u64>),
        packs: bool,
        source: Source,
    ) -> PyResult<Foreign> {
        let meta = TensorMeta::of(dtype, &dims).map_err(|e| errors::invalid(py, &e.to_string()))?;
        Ok(Foreign { elements, meta, packs, source })
    }

    /// Raises if this is not what is registered as `registered` at `address`.
    pub(crate) fn check_is(&self, py: Python<'_>, address: usize, registered: &TensorMeta) -> PyResult<()> {
        let lies_there = self.elements.in_one_piece() == Some(address) && !self.packs;
        if lies_there && self.meta == *registered {
            return Ok(());
        }
        let how = if lies_there { "" } else { ", whose elements do not lie there as they are, row-major in one piece" };
        let text = format!(
            "{}{how} is not the array that is registered at {address:#x}, which is {registered}: give that one, or unregister it first",
            self.meta
        );
        Err(errors::invalid(py, &text))
    }

    fn check_fits(&self, py: Python<'_>, buffer: &Buffer) -> PyResult<()> {
        let (meta, found) = (buffer.meta(), &self.meta);
        let casts = !self.on_gpu() && [meta, found].iter().all(|meta| strided::FLOATS.contains(&meta.dtype()));
        match meta == found || casts && meta.shape() == found.shape() {
            true => Ok(()),
            false => Err(errors::invalid(py, &format!("{found} does not fit into {meta}"))),
        }
    }
}

/// The memory of an array, which is kept.
pub(crate) struct ArrayMemory {
    /// Kept only for its drop, which waits for the interpreter's lock if need be.
    _array: Py<Foreign>,
    start: NonNull<u8>,
    len: usize,
    /// Behind the array, which is dropped first.
    _claim: Claim,
}

// SAFETY: the pointer is an address of the array's memory, which is accessed by the rules of registered memory alone.
unsafe impl Send for ArrayMemory {}
// SAFETY: as above.
unsafe impl Sync for ArrayMemory {}

// SAFETY: an exporter keeps its memory in place as long as its view lives; numpy and torch let a program resize or free it nevertheless,
// and `register` makes it the caller's duty to do neither. It is main memory, which was checked to be writable and in one piece. The claim
// makes sure that no other registration, and no buffer of this module, has any of it. Its bytes are numbers, and bools of numpy and torch, which read any byte that is not 0 as true.
unsafe impl OwnedMemory for ArrayMemory {
    fn range(&mut self) -> (NonNull<u8>, usize) {
        (self.start, self.len)
    }
}

impl ArrayMemory {
    /// Where an array lies that can be registered, and that says that it begins at `address`.
    pub(crate) fn range_of(array: &Bound<'_, Foreign>, address: usize) -> PyResult<(NonNull<u8>, usize)> {
        let (py, foreign) = (array.py(), array.get());
        let invalid = |why: &str| Err(errors::invalid(py, &format!("{} cannot be registered: {why}", foreign.meta)));
        match &foreign.source {
            Source::Gpu(..) => return invalid("it is memory of a GPU"),
            Source::Ours(_) => return invalid("it is memory of the sidecar's already"),
            Source::View(view) if view.0.readonly != 0 => return invalid("it is read-only"),
            Source::View(_) | Source::Dlpack(_) => {}
        }
        if foreign.packs {
            return invalid("numpy has a byte for each of its elements, which are pairs in a byte");
        }
        let start = foreign.elements.in_one_piece();
        let Some(start) = start.and_then(|start| NonNull::new(ptr::with_exposed_provenance_mut(start))) else {
            return invalid("its elements do not lie row-major in one piece; register the array of which it is a part");
        };
        if start.addr().get() != address {
            return invalid("its memory does not hold its values, which torch computes, as those of a conjugate");
        }
        Ok((start, foreign.meta.len_bytes() as usize))
    }

    /// The memory of an array that can be registered, and what lies there.
    pub(crate) fn of(
        array: &Bound<'_, Foreign>,
        (start, len): (NonNull<u8>, usize),
    ) -> PyResult<(ArrayMemory, TensorMeta)> {
        let meta = array.get().meta.clone();
        let claim = Claim::of(start.addr().get(), len).map_err(|(other, bytes, whose)| {
            let (at, end) = (start.addr().get(), start.addr().get() + len);
            let end_of_other = other + bytes;
            let text = format!(
                "{meta} at {at:#x} to {end:#x} cannot be registered: it has memory in common with {whose} at {other:#x} to {end_of_other:#x}"
            );
            errors::invalid(array.py(), &text)
        })?;
        Ok((ArrayMemory { _array: array.clone().unbind(), start, len, _claim: claim }, meta))
    }
}

fn of_memory(py: Python<'_>, memory: Memory) -> PyResult<Foreign> {
    let meta = memory.meta().cloned().ok_or_else(|| errors::invalid(py, "the tensor is gone"))?;
    let layout = memory.layout().ok_or_else(|| errors::invalid(py, "the tensor is gone"))?;
    let item = meta.dtype().size_bytes() as usize;
    let strides = layout.strides.iter().map(|n| (*n as isize).saturating_mul(item as isize)).collect();
    let elements = Strided::new(memory.address().0, meta.unit_dims().collect(), Some(strides), item);
    Ok(Foreign { elements, meta, packs: false, source: Source::Ours(memory) })
}

fn view_of(value: &Bound<'_, PyAny>) -> PyResult<Taken> {
    let mut view = Box::new(ffi::Py_buffer::new());
    // SAFETY: the arguments are an object and a struct to be filled, and this thread holds the interpreter's lock.
    if unsafe { ffi::PyObject_GetBuffer(value.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO) } != 0 {
        return Err(PyErr::fetch(value.py()));
    }
    Ok(Taken(view))
}

fn of_view(py: Python<'_>, taken: Taken, dtype: Option<DType>) -> PyResult<Foreign> {
    let view = &taken.0;
    if !view.suboffsets.is_null() {
        return Err(errors::invalid(py, "an array of pointers (suboffsets) cannot be pushed; copy it first"));
    }
    let format = if view.format.is_null() {
        "B".into()
    } else {
        // SAFETY: the format is a C string that lives as long as the view.
        unsafe { CStr::from_ptr(view.format) }.to_string_lossy()
    };
    let found = dtype.or_else(|| dtype::from_format(&format, view.itemsize as usize));
    let Some(dtype) = found.filter(|dtype| dtype.size_bytes() as ffi::Py_ssize_t == view.itemsize) else {
        return Err(dtype::unsupported(py, &format!("the format {format:?} of {} bytes", view.itemsize)));
    };
    let rank = usize::try_from(view.ndim).unwrap_or(0);
    let list = |from: *const ffi::Py_ssize_t| match from.is_null() {
        true => None,
        // SAFETY: the array has one number for each dimension, and lives as long as the view.
        false => Some(unsafe { std::slice::from_raw_parts(from, rank) }.to_vec()),
    };
    let dims: Vec<i64> = match list(view.shape) {
        Some(dims) => dims.iter().map(|n| *n as i64).collect(),
        None if rank == 0 => Vec::new(),
        None => vec![(view.len / view.itemsize.max(1)) as i64],
    };
    let strides = list(view.strides).filter(|_| rank > 0);
    let len_bytes = dims.iter().try_fold(view.itemsize as i64, |len, n| len.checked_mul(*n));
    if len_bytes != Some(view.len as i64) {
        let text = format!("the buffer of dimensions {dims:?} has {} bytes and not {len_bytes:?}", view.len);
        return Err(errors::invalid(py, &text));
    }
    let elements = Strided::described(view.buf.expose_provenance(), &dims, strides, dtype.size_bytes() as usize);
    let elements = elements.map_err(|e| errors::invalid(py, &e.to_string()))?;
    // The buffer protocol has no element of 4 bits: what numpy says to be one has a byte.
    let (dims, packs) = (elements.dims().to_vec(), dtype.elements_per_unit() > 1);
    Foreign::described(py, elements, (dtype, dims), packs, Source::View(taken))
}
