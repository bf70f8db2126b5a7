//! DLPack (dlpack.h, version 1.0): export and import of capsules.

#![expect(unsafe_code, reason = "DLPack is a struct of C")]

use crate::memory::{Fetched, Layout, Ours, Written};
use crate::strided::Strided;
use crate::{dtype, errors};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use transfer_client::gpu::Stream;
use transfer_client::{DType, PrivateBytes, TensorMeta};

/// `kDLCPU`, and the number of the device.
pub(crate) const CPU: (i32, i32) = (1, 0);

/// `kDLCUDA` and `kDLCUDAManaged`: memory of a GPU, and memory that the driver moves.
const ON_GPU: [i32; 2] = [2, 13];

/// `kDLCUDAHost`: the host's memory, pinned by CUDA.
const CUDA_HOST: i32 = 3;

/// Below this many bytes a copy costs less than a mapping.
const SMALLEST_MAPPED: usize = 64 << 10;

/// The most dimensions of an array of any library. numpy's are 64.
const MAX_RANK: usize = 64;

const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// The arguments of `__dlpack__`.
pub(crate) struct Asked {
    versioned: bool,
    copy: bool,
}

impl Asked {
    pub(crate) fn read(py: Python<'_>, asked: Option<&Bound<'_, PyDict>>) -> PyResult<Asked> {
        let mut read = Asked { versioned: false, copy: false };
        let Some(asked) = asked else { return Ok(read) };
        for (name, value) in asked {
            match name.extract::<String>()?.as_str() {
                "max_version" => {
                    read.versioned = value.extract::<Option<(u32, u32)>>()?.is_some_and(|version| version >= (1, 0));
                }
                "copy" => read.copy = value.extract::<Option<bool>>()? == Some(true),
                "dl_device" => {
                    if value.extract::<Option<(i32, i32)>>()?.is_some_and(|device| device != CPU) {
                        return Err(PyBufferError::new_err("the tensor lies in the host's memory, device (1, 0)"));
                    }
                }
                // Streams exist only for devices.
                "stream" => {}
                other => {
                    let text = format!("__dlpack__ has no argument {other:?}");
                    return Err(pyo3::exceptions::PyTypeError::new_err(text));
                }
            }
        }
        let _ = py;
        Ok(read)
    }
}

/// The memory that an export keeps.
enum Kept {
    Fetched(#[expect(dead_code, reason = "keeps the memory")] Arc<Ours<Fetched>>),
    Private(#[expect(dead_code, reason = "keeps the memory")] Ours<PrivateBytes>),
    Written(#[expect(dead_code, reason = "keeps the memory")] Arc<Written>),
    Copied(#[expect(dead_code, reason = "keeps the memory")] Vec<u64>),
}

/// The target of a managed tensor's context.
struct Export {
    _kept: Kept,
    layout: Layout,
}

// The deleters run on any thread, without the interpreter's lock, and after the interpreter's end, so they use no
// Python object.

unsafe extern "C" fn delete(managed: *mut Managed) {
    if !managed.is_null() {
        // SAFETY: the consumer returns, once, the pointer that `capsule` has made of two boxes.
        unsafe {
            let managed = Box::from_raw(managed);
            drop(Box::from_raw(managed.context.cast::<Export>()));
        }
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    if !managed.is_null() {
        // SAFETY: as above.
        unsafe {
            let managed = Box::from_raw(managed);
            drop(Box::from_raw(managed.context.cast::<Export>()));
        }
    }
}

/// Deletes the tensor of a capsule that no consumer has taken; a consumer renames the capsule.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule, which has its original name or a consumer's.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNVERSIONED.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, UNVERSIONED.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

fn capsule<'py>(
    py: Python<'py>,
    address: *mut c_void,
    (dtype, layout): (DType, Layout),
    kept: Kept,
    flags: u64,
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let mut export = Box::new(Export { _kept: kept, layout });
    let Some((code, bits, lanes)) = dtype::to_dlpack(dtype) else {
        let text = format!(
            "no library takes {} by DLPack: take numpy(), a copy with a byte for each element, or packed(), which has two",
            dtype::name(dtype)
        );
        return Err(PyBufferError::new_err(text));
    };
    let tensor = DlTensor {
        data: address,
        device_type: CPU.0,
        device_id: CPU.1,
        ndim: export.layout.shape.len() as i32,
        code,
        bits,
        lanes,
        shape: export.layout.shape.as_mut_ptr(),
        strides: export.layout.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(export).cast();
    let (managed, name): (*mut c_void, _) = if versioned {
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut ManagedVersioned));
        let managed = ManagedVersioned { major: 1, minor: 0, context, deleter, flags, tensor };
        (Box::into_raw(Box::new(managed)).cast(), VERSIONED)
    } else {
        (Box::into_raw(Box::new(Managed { tensor, context, deleter: Some(delete) })).cast(), UNVERSIONED)
    };
    let managed = NonNull::new(managed).ok_or_else(|| PyBufferError::new_err("no memory"))?;
    // SAFETY: the pointer is valid until a deleter runs, and the destructor runs it if no consumer has taken the
    // tensor.
    let made = unsafe { PyCapsule::new_with_pointer_and_destructor(py, managed.cast(), name, Some(drop_capsule)) };
    Ok(made?.into_any())
}

/// A copy of bytes, at the alignment of the largest element.
fn copied(bytes: &[u8]) -> PyResult<Vec<u64>> {
    let (mut copy, words) = (Vec::<u64>::new(), bytes.len().div_ceil(8).max(1));
    copy.try_reserve_exact(words).map_err(|_| {
        pyo3::exceptions::PyMemoryError::new_err(format!("no memory for a copy of a tensor of {} bytes", bytes.len()))
    })?;
    // SAFETY: the copy has room for so many words, all of which are written. It does not overlap the source.
    unsafe {
        copy.as_mut_ptr().add(words - 1).write(0);
        ptr::copy_nonoverlapping(bytes.as_ptr(), copy.as_mut_ptr().cast(), bytes.len());
        copy.set_len(words);
    }
    Ok(copy)
}

/// Makes a fetched tensor's capsule. Returns also the number of bytes that were copied for it.
pub(crate) fn export_fetched<'py>(
    py: Python<'py>,
    kept: &Arc<Ours<Fetched>>,
    tensor: &Fetched,
    asked: &Asked,
) -> PyResult<(Bound<'py, PyAny>, u64)> {
    let (meta, bytes) = ((tensor.meta().dtype(), Layout::of_fetched(tensor)), tensor.as_bytes());
    if bytes.is_empty() {
        let address = bytes.as_ptr().cast_mut().cast();
        let kept = Kept::Fetched(kept.clone());
        return Ok((capsule(py, address, meta, kept, 0, asked.versioned)?, 0));
    }
    if bytes.len() >= SMALLEST_MAPPED
        && !asked.copy
        && let Ok(private) = tensor.map_privately()
    {
        let address = private.as_ptr().cast();
        let kept = Kept::Private(Ours::new(private, kept.guard().clone()));
        return Ok((capsule(py, address, meta, kept, READ_ONLY, asked.versioned)?, 0));
    }
    let mut copy = py.detach(|| copied(bytes))?;
    let address = copy.as_mut_ptr().cast();
    let capsule = capsule(py, address, meta, Kept::Copied(copy), IS_COPIED, asked.versioned)?;
    Ok((capsule, bytes.len() as u64))
}

/// Makes a buffer's capsule, which shares its writable memory.
pub(crate) fn export_written<'py>(
    py: Python<'py>,
    written: Arc<Written>,
    meta: &TensorMeta,
    asked: &Asked,
) -> PyResult<Bound<'py, PyAny>> {
    let meta = (meta.dtype(), Layout::of(meta));
    let (address, len) = crate::memory::Memory::Written(written.clone()).address();
    let pointer = ptr::with_exposed_provenance_mut::<c_void>(address);
    if asked.copy {
        // SAFETY: these are the buffer's bytes, which are kept meanwhile.
        let mut copy = copied(unsafe { std::slice::from_raw_parts(pointer.cast(), len) })?;
        let pointer = copy.as_mut_ptr().cast();
        return capsule(py, pointer, meta, Kept::Copied(copy), IS_COPIED, asked.versioned);
    }
    capsule(py, pointer, meta, Kept::Written(written), 0, asked.versioned)
}

/// A managed tensor of another library. It is deleted when this is dropped.
pub(crate) enum Taken {
    Versioned(NonNull<ManagedVersionedOpaque>),
    Unversioned(NonNull<ManagedOpaque>),
}

/// Hides the private struct from code that only keeps it.
pub(crate) struct ManagedVersionedOpaque(ManagedVersioned);
/// Hides the private struct from code that only keeps it.
pub(crate) struct ManagedOpaque(Managed);

// SAFETY: the struct is only read, and DLPack's deleters may be called on any thread.
unsafe impl Send for Taken {}
// SAFETY: as above.
unsafe impl Sync for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the tensor was taken out of a capsule that was renamed, so this is the only code that deletes it.
        unsafe {
            match self {
                Taken::Versioned(managed) => {
                    if let Some(deleter) = (*managed.as_ptr()).0.deleter {
                        deleter(managed.as_ptr().cast());
                    }
                }
                Taken::Unversioned(managed) => {
                    if let Some(deleter) = (*managed.as_ptr()).0.deleter {
                        deleter(managed.as_ptr().cast());
                    }
                }
            }
        }
    }
}

/// Takes the memory of `value` by DLPack, in units of the element type. On a GPU, all work on it comes before the returned stream's.
pub(crate) fn take(value: &Bound<'_, PyAny>) -> PyResult<(Taken, Strided, DType, Option<Stream>)> {
    let py = value.py();
    let asked = PyDict::new(py);
    asked.set_item("max_version", (1, 0))?;
    let mut stream = None;
    let device: (i32, i32) = value.call_method0("__dlpack_device__")?.extract()?;
    match device {
        (kind, number) if ON_GPU.contains(&kind) => {
            let own = crate::gpu::own_stream(py, u32::try_from(number).unwrap_or(u32::MAX))?;
            asked.set_item("stream", own.as_raw())?;
            stream = Some(own);
        }
        (kind, _) if kind != CPU.0 && kind != CUDA_HOST => {
            let text = format!(
                "the array lies on a device that is no GPU of CUDA, DLPack's {device:?}; copy it to the host's memory first"
            );
            return Err(errors::invalid(py, &text));
        }
        _ => {}
    }
    let made = match value.call_method("__dlpack__", (), Some(&asked)) {
        // The producer predates version 1.0.
        Err(e) if e.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
            asked.del_item("max_version")?;
            value.call_method("__dlpack__", (), Some(&asked))?
        }
        made => made?,
    };
    let capsule = made.cast_into::<PyCapsule>()?;
    let (taken, tensor) = if capsule.is_valid_checked(Some(VERSIONED)) {
        let managed = capsule.pointer_checked(Some(VERSIONED))?.cast::<ManagedVersionedOpaque>();
        rename(&capsule, c"used_dltensor_versioned")?;
        // SAFETY: a capsule of this name points to such a struct, and this is now its only owner.
        (Taken::Versioned(managed), unsafe { &raw const (*managed.as_ptr()).0.tensor })
    } else {
        let managed = capsule.pointer_checked(Some(UNVERSIONED))?.cast::<ManagedOpaque>();
        rename(&capsule, c"used_dltensor")?;
        // SAFETY: as above.
        (Taken::Unversioned(managed), unsafe { &raw const (*managed.as_ptr()).0.tensor })
    };
    // SAFETY: the struct lives until `taken` is dropped. Above version 1, only its version and its deleter are known.
    let tensor = unsafe {
        if let Taken::Versioned(managed) = &taken
            && (*managed.as_ptr()).0.major > 1
        {
            return Err(errors::invalid(py, "the array speaks a newer DLPack than 1"));
        }
        &*tensor
    };
    let is_on_gpu = ON_GPU.contains(&tensor.device_type);
    if is_on_gpu != stream.is_some() || !(is_on_gpu || [CPU.0, CUDA_HOST].contains(&tensor.device_type)) {
        let text = format!(
            "the array says that it is on DLPack's device {:?}, and its capsule is of the device {}",
            device, tensor.device_type
        );
        return Err(errors::invalid(py, &text));
    }
    let Some(dtype) = dtype::from_dlpack(tensor.code, tensor.bits, tensor.lanes) else {
        let DlTensor { code, bits, lanes, .. } = tensor;
        let found = format!("DLPack's kind {code} with {bits} bits and {lanes} lanes");
        return Err(dtype::unsupported(py, &found));
    };
    let (rank, has_shape) = (usize::try_from(tensor.ndim), !tensor.shape.is_null());
    let Some(rank) = rank.ok().filter(|rank| *rank == 0 || (*rank <= MAX_RANK && has_shape)) else {
        let text =
            format!("the array has {} dimensions, and {} shape", tensor.ndim, if has_shape { "a" } else { "no" });
        return Err(errors::invalid(py, &text));
    };
    let list = |from: *const i64| match from.is_null() || rank == 0 {
        true => None,
        // SAFETY: the array has one number for each dimension.
        false => Some(unsafe { std::slice::from_raw_parts(from, rank) }),
    };
    let (dims, item) = (list(tensor.shape).unwrap_or_default(), dtype.size_bytes() as usize);
    // A stride that no address space has room for.
    let far = |n: &i64| isize::try_from(*n).ok().and_then(|n| n.checked_mul(item as isize)).unwrap_or(isize::MAX);
    let strides = list(tensor.strides).map(|strides| strides.iter().map(far).collect());
    let start = tensor.data.expose_provenance();
    let address = usize::try_from(tensor.byte_offset).ok().and_then(|offset| start.checked_add(offset));
    // An offset from nothing is nothing.
    let address = address.filter(|_| start != 0).unwrap_or(0);
    let elements = Strided::described(address, dims, strides, item);
    Ok((taken, elements.map_err(|e| errors::invalid(py, &e.to_string()))?, dtype, stream))
}

fn rename(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: the arguments are a capsule and a static name, and this thread holds the interpreter's lock.
    match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}
