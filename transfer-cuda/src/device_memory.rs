//! Memory of a GPU.

use crate::sys::{DevicePointer, OUT_OF_MEMORY};
use crate::{CudaError, Gpu};
use std::any::Any;
use std::fmt;

/// Memory of a GPU, with one owner.
pub struct DeviceMemory {
    gpu: Gpu,
    pointer: DevicePointer,
    len_bytes: u64,
    /// The owner of memory that this has not allocated.
    foreign: Option<Box<dyn Any + Send + Sync>>,
}

impl DeviceMemory {
    /// Allocates `len_bytes` bytes. Their contents are left over. 0 bytes take no memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::Forked`], [`CudaError::Call`].
    pub fn allocate(gpu: &Gpu, len_bytes: u64) -> Result<DeviceMemory, CudaError> {
        let mut pointer = 0;
        if len_bytes > 0 {
            let (entered, size) = (gpu.enter()?, usize::try_from(len_bytes).unwrap_or(usize::MAX));
            // SAFETY: the function stores a pointer. The drop of the result frees it.
            match unsafe { (entered.driver.mem_alloc)(&raw mut pointer, size) } {
                OUT_OF_MEMORY => {
                    let (free_bytes, total_bytes) = gpu.memory_bytes()?;
                    let device = gpu.ordinal();
                    return Err(CudaError::OutOfMemory { device, wanted_bytes: len_bytes, free_bytes, total_bytes });
                }
                status => entered.check("cuMemAlloc", status)?,
            }
        }
        Ok(DeviceMemory { gpu: gpu.clone(), pointer, len_bytes, foreign: None })
    }

    /// Memory that other code has allocated, such as torch. `keep` is dropped when this no longer uses it.
    ///
    /// # Safety
    /// `pointer` is the address of `len_bytes` bytes of memory of `gpu`, valid until `keep` is dropped. Other accesses
    /// are ordered with those that are made through this: they are made in the same stream, or after a copy has ended.
    #[must_use]
    pub unsafe fn from_raw(gpu: &Gpu, pointer: u64, len_bytes: u64, keep: Box<dyn Any + Send + Sync>) -> DeviceMemory {
        DeviceMemory { gpu: gpu.clone(), pointer, len_bytes, foreign: Some(keep) }
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The address in the GPU's memory, a `CUdeviceptr`, for kernels and libraries. It is valid as long as this lives;
    /// 0 for no bytes.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.pointer
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory(GPU {}, {:#x}..+{})", self.gpu.ordinal(), self.pointer, self.len_bytes)
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.foreign.is_none()
            && self.pointer != 0
            && let Ok(entered) = self.gpu.enter()
        {
            // SAFETY: `allocate` has allocated it, and a copy owns the memory that it uses, so none is under way.
            let _ = unsafe { (entered.driver.mem_free)(self.pointer) };
        }
    }
}
