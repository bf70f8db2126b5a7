//! Copies between tensors and GPUs.
//!
//! A tensor's memory is registered with the CUDA driver at its first copy, in chunks, so that the GPU copies at its full
//! speed with no help of a CPU: see [`registration`]. A copy is put into a [`Stream`], and keeps both ends until the GPU
//! is done.
//!
//! ```no_run
//! # use transfer_client::gpu::{Gpu, Stream};
//! # use transfer_client::{Client, DType, Error};
//! # async fn example(client: Client) -> Result<(), Error> {
//! let stream = Stream::new(&Gpu::open(0)?)?;
//!
//! // To the GPU. The version stays leased until the copy has ended.
//! let memory = client.fetch("layer0/w").await?.copy_to_device(&stream)?.await?;
//!
//! // And from there: into the arena, and published when it has arrived.
//! let updated = client.allocate(DType::F32, [256, 128])?;
//! let (updated, memory) = updated.copy_from_device(memory, &stream)?.await?;
//! client.push_tensor("layer0/updated", updated).await?;
//! # drop(memory);
//! # Ok(())
//! # }
//! ```

pub use transfer_cuda::registration::{self, NotRegistered};
pub use transfer_cuda::{
    CopyReport, CudaError, DeviceMemory, DeviceReport, DriverVersion, Gpu, HostMemory, Stream, available, devices,
    driver_version,
};

use crate::error::Error;
use crate::fetch::Tensor;
use crate::memory::TensorMut;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use transfer_core::tensor::TensorMeta;
use transfer_cuda::{CopyError, Copying};
use transfer_memory::arena::Block;
use transfer_memory::view::Bytes;

/// A copy to a GPU that is under way: `.await` it, or [`wait`](ToDevice::wait) for it. It returns the GPU's memory.
///
/// Dropping it does not stop the copy: the version stays leased, and the memory allocated, until it has ended.
#[derive(Debug)]
#[must_use = "the memory is returned at the end of the copy"]
pub struct ToDevice(Copying<(Bytes, DeviceMemory)>);

/// A copy from a GPU that is under way: `.await` it, or [`wait`](FromDevice::wait) for it. It returns the tensor, which
/// has the bytes now and can be pushed, and the GPU's memory.
///
/// Dropping it does not stop the copy: the tensor's memory is freed when it has ended.
#[derive(Debug)]
#[must_use = "the tensor is returned at the end of the copy"]
pub struct FromDevice {
    copying: Copying<(DeviceMemory, Block)>,
    meta: TensorMeta,
}

/// A copy from a GPU that was not made. It contains both ends, unless the GPU may still use them.
#[derive(Debug)]
pub struct FromDeviceError(Box<(Error, Option<(TensorMut, DeviceMemory)>)>);

impl Tensor {
    /// Copies the tensor to new memory of the stream's GPU, behind the work that is in `stream`.
    ///
    /// # Errors
    /// [`Error::Gpu`], with [`CudaError::OutOfMemory`], [`CudaError::Capturing`], [`CudaError::Forked`].
    pub fn copy_to_device(&self, stream: &Stream) -> Result<ToDevice, Error> {
        let memory = DeviceMemory::allocate(stream.gpu(), self.meta().len_bytes())?;
        self.copy_into_device(memory, stream)
    }

    /// Copies the tensor to `memory`, whose length is the tensor's, behind the work that is in `stream`. If it fails,
    /// `memory` is dropped.
    ///
    /// # Errors
    /// [`Error::Gpu`], with [`CudaError::WrongLength`], [`CudaError::OtherDevice`], [`CudaError::Capturing`],
    /// [`CudaError::Forked`].
    pub fn copy_into_device(&self, memory: DeviceMemory, stream: &Stream) -> Result<ToDevice, Error> {
        let copying = transfer_cuda::copy_to_device(self.bytes().clone(), memory, stream);
        Ok(ToDevice(copying.map_err(CudaError::from)?))
    }
}

impl ToDevice {
    /// What is copied, and how.
    #[must_use]
    pub fn report(&self) -> &CopyReport {
        self.0.report()
    }

    /// Whether the copy has ended.
    ///
    /// # Errors
    /// [`Error::Gpu`] if earlier work of the GPU has failed, so that nobody knows.
    pub fn is_done(&self) -> Result<bool, Error> {
        Ok(self.0.is_done()?)
    }

    /// Waits for the end of the copy.
    ///
    /// # Errors
    /// [`Error::Gpu`] if earlier work of the GPU has failed. What was copied is leaked then.
    pub fn wait(self) -> Result<DeviceMemory, Error> {
        Ok(self.0.wait()?.1)
    }
}

impl Future for ToDevice {
    type Output = Result<DeviceMemory, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|ended| Ok(ended?.1))
    }
}

impl TensorMut {
    /// Copies `memory`, whose length is the tensor's, to the tensor, behind the work that is in `stream`.
    ///
    /// # Errors
    /// [`Error::Gpu`], with [`CudaError::WrongLength`], [`CudaError::OtherDevice`], [`CudaError::Capturing`],
    /// [`CudaError::Forked`]. The error contains the tensor and the memory.
    pub fn copy_from_device(self, memory: DeviceMemory, stream: &Stream) -> Result<FromDevice, FromDeviceError> {
        let (block, meta) = self.into_parts();
        match transfer_cuda::copy_from_device(memory, block, stream) {
            Ok(copying) => Ok(FromDevice { copying, meta }),
            Err(failed) => {
                let CopyError { error, owned } = *failed;
                let owned = owned.map(|(memory, block)| (TensorMut::new(block, meta), memory));
                Err(FromDeviceError(Box::new((error.into(), owned))))
            }
        }
    }
}

impl FromDevice {
    /// What is copied, and how.
    #[must_use]
    pub fn report(&self) -> &CopyReport {
        self.copying.report()
    }

    /// Whether the copy has ended.
    ///
    /// # Errors
    /// [`Error::Gpu`] if earlier work of the GPU has failed, so that nobody knows.
    pub fn is_done(&self) -> Result<bool, Error> {
        Ok(self.copying.is_done()?)
    }

    /// Waits for the end of the copy.
    ///
    /// # Errors
    /// [`Error::Gpu`] if earlier work of the GPU has failed. What was copied is leaked then.
    pub fn wait(self) -> Result<(TensorMut, DeviceMemory), Error> {
        let (memory, block) = self.copying.wait()?;
        Ok((TensorMut::new(block, self.meta), memory))
    }

    /// Waits for the end of the copy, at most for `time`. Returns whether it has ended.
    ///
    /// # Errors
    /// Those of [`FromDevice::is_done`].
    pub fn wait_for(&self, time: Duration) -> Result<bool, Error> {
        Ok(self.copying.wait_for(time)?)
    }
}

impl Future for FromDevice {
    type Output = Result<(TensorMut, DeviceMemory), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = std::task::ready!(Pin::new(&mut self.copying).poll(context));
        let (memory, block) = ended.map_err(Error::from)?;
        Poll::Ready(Ok((TensorMut::new(block, self.meta.clone()), memory)))
    }
}

impl FromDeviceError {
    /// The error.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.0.0
    }

    /// The error, and both ends; `None` if the driver cannot say whether the GPU still uses them. Then they are leaked.
    #[must_use]
    pub fn into_parts(self) -> (Error, Option<(TensorMut, DeviceMemory)>) {
        *self.0
    }
}

impl fmt::Display for FromDeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl std::error::Error for FromDeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.error())
    }
}

impl From<FromDeviceError> for Error {
    fn from(error: FromDeviceError) -> Error {
        error.0.0
    }
}
