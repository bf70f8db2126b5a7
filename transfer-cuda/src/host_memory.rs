//! Host memory that no segment contains.

use crate::{CudaError, Gpu};
use std::ptr::{self, NonNull};

/// Memory of the host outside of all segments. Benchmarks compare the copies of tensors with copies of this.
#[derive(Debug)]
pub struct HostMemory(Kind);

#[derive(Debug)]
enum Kind {
    Pinned(Pinned),
    Pageable(Box<[u8]>),
}

/// Memory that the driver has allocated.
#[derive(Debug)]
struct Pinned {
    gpu: Gpu,
    pointer: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl HostMemory {
    /// Allocates `len_bytes` bytes, at least one, from the driver (`cuMemHostAlloc`): pinned, and zeroed. No host memory
    /// is copied faster.
    ///
    /// # Errors
    /// [`CudaError::Forked`], [`CudaError::Call`].
    pub fn pinned(gpu: &Gpu, len_bytes: usize) -> Result<HostMemory, CudaError> {
        let (entered, mut pointer) = (gpu.enter()?, ptr::null_mut());
        let len_bytes = len_bytes.max(1);
        // SAFETY: the function stores a pointer. The drop of the result frees it.
        let status = unsafe { (entered.driver.mem_host_alloc)(&raw mut pointer, len_bytes, 0) };
        entered.check("cuMemHostAlloc", status)?;
        let pointer = NonNull::new(pointer.cast::<u8>()).ok_or_else(|| CudaError::Call {
            call: "cuMemHostAlloc",
            status,
            name: "CUDA_SUCCESS".to_owned(),
            text: "but there is no memory".to_owned(),
        })?;
        // SAFETY: these are the bytes that were just allocated.
        unsafe { pointer.write_bytes(0, len_bytes) };
        Ok(HostMemory(Kind::Pinned(Pinned { gpu: gpu.clone(), pointer, len_bytes })))
    }

    /// Ordinary memory of the process, which the driver has to copy through pinned memory of its own.
    #[must_use]
    pub fn pageable(bytes: Box<[u8]>) -> HostMemory {
        HostMemory(Kind::Pageable(bytes))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Kind::Pageable(bytes) => bytes,
            // SAFETY: the bytes are initialised, and only the owner of this value writes them, which is borrowed.
            Kind::Pinned(pinned) => unsafe { std::slice::from_raw_parts(pinned.pointer.as_ptr(), pinned.len_bytes) },
        }
    }

    /// The bytes, writable.
    #[must_use]
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Pageable(bytes) => bytes,
            // SAFETY: as above, and the value is borrowed mutably.
            Kind::Pinned(pinned) => unsafe {
                std::slice::from_raw_parts_mut(pinned.pointer.as_ptr(), pinned.len_bytes)
            },
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(entered) = self.gpu.enter() {
            // SAFETY: `pinned` has allocated it, and a copy owns the memory that it uses, so none is under way.
            let _ = unsafe { (entered.driver.mem_free_host)(self.pointer.as_ptr().cast()) };
        }
    }
}
