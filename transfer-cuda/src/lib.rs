//! Copies between shared host memory and the memory of GPUs.
//!
//! All code that calls the CUDA driver is here. The driver's library is opened on first use, so a program starts even if
//! it is missing, and needs no CUDA to be built. [`available`] returns the reason why there is none.
//!
//! A GPU copies at full speed only from host memory that its driver has registered, and whose pages it has pinned.
//! Segments are mapped by this project, so a copy registers the part of a segment that it touches, once, and the
//! registration stays until the segment is unmapped. See [`registration`] for what is pinned.
//!
//! # Guarantees
//! - A copy owns what it reads and what it writes until the GPU is done with both. This holds if its handle is dropped,
//!   and if it is leaked.
//! - Memory is unregistered before it is unmapped, and unmapped only when no copy uses it.
//! - If the driver cannot say whether a copy has ended, its memory is leaked rather than reused.
//! - In a forked child every call fails with [`CudaError::Forked`], and nothing that is dropped reaches the driver.
//!
//! # Layout
//! - [`devices`], [`DeviceReport`]: the GPUs of this process; [`driver_version`].
//! - [`Gpu`]: an opened GPU, by its primary context, which torch and the CUDA runtime use too.
//! - [`Stream`]: work in order; `event`: the end of work.
//! - [`DeviceMemory`]: memory of a GPU; [`HostMemory`]: host memory outside of segments.
//! - [`registration`]: the registered parts of a mapped segment.
//! - [`copy_to_device`], [`copy_from_device`]: copies, with [`Copying`] as their handle and [`CopyReport`] as their report;
//!   `keeper`: the thread that keeps the memory of copies whose handle was dropped.
//! - `sys`: the driver's functions, looked up at run time.

mod context;
mod copy;
mod copying;
mod device;
mod device_memory;
mod error;
mod event;
mod host_memory;
mod keeper;
pub mod registration;
mod stream;
mod sys;

pub use context::Gpu;
pub use copy::{CopyError, CopyReport, copy_from_device, copy_from_host, copy_plainly, copy_to_device, copy_to_host};
pub use copying::Copying;
pub use device::{DeviceReport, DriverVersion, devices, driver_version};
pub use device_memory::DeviceMemory;
pub use error::CudaError;
pub use host_memory::HostMemory;
pub use stream::Stream;

/// Returns an error with the reason if there is no CUDA driver that works. The library is opened once.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::NoGpu`], [`CudaError::Forked`].
pub fn available() -> Result<(), CudaError> {
    sys::driver().map(drop)
}
