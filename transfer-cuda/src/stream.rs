//! Streams.

use crate::context::Entered;
use crate::sys::RawStream;
use crate::{CudaError, Gpu};
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

/// `CU_STREAM_NON_BLOCKING`: it does not wait for the legacy default stream.
const NON_BLOCKING: u32 = 1;

/// Work of a GPU that is done in order. Cheap to clone; all clones are the same stream.
#[derive(Debug, Clone)]
pub struct Stream(Arc<StreamInner>);

#[derive(Debug)]
struct StreamInner {
    gpu: Gpu,
    raw: RawStream,
    /// Whether it is destroyed with this.
    is_own: bool,
}

// SAFETY: the stream is a handle of the driver, whose functions may be called by any thread.
unsafe impl Send for StreamInner {}
// SAFETY: as above.
unsafe impl Sync for StreamInner {}

impl Stream {
    /// Makes a stream.
    ///
    /// # Errors
    /// [`CudaError::Forked`], [`CudaError::Call`].
    pub fn new(gpu: &Gpu) -> Result<Stream, CudaError> {
        let (entered, mut raw) = (gpu.enter()?, ptr::null_mut());
        // SAFETY: the function stores a handle of the current context. The drop of `StreamInner` destroys it.
        entered.check("cuStreamCreate", unsafe { (entered.driver.stream_create)(&raw mut raw, NON_BLOCKING) })?;
        Ok(Stream(Arc::new(StreamInner { gpu: gpu.clone(), raw, is_own: true })))
    }

    /// A stream of other code, such as torch's, by its `CUstream` as a number. 0 is the legacy default stream.
    ///
    /// # Safety
    /// It is a stream of the primary context of `gpu`, and is not destroyed before the last clone of the result, and the
    /// last copy on it, is dropped.
    #[must_use]
    pub unsafe fn from_raw(gpu: &Gpu, raw: usize) -> Stream {
        let raw = ptr::with_exposed_provenance_mut(raw);
        Stream(Arc::new(StreamInner { gpu: gpu.clone(), raw, is_own: false }))
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    /// The `CUstream` as a number, for other code. It is valid as long as a clone of this lives.
    #[must_use]
    pub fn as_raw(&self) -> usize {
        self.0.raw.expose_provenance()
    }

    pub(crate) fn raw(&self) -> RawStream {
        self.0.raw
    }

    /// Waits until all work in the stream is done.
    ///
    /// # Errors
    /// [`CudaError::Forked`]; [`CudaError::Call`], also if earlier work of the context has failed.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let entered = self.0.gpu.enter()?;
        // SAFETY: the stream lives as long as `self`.
        entered.check("cuStreamSynchronize", unsafe { (entered.driver.stream_synchronize)(self.0.raw) })
    }

    /// Fails if the stream is being captured into a graph. `entered` is of its GPU.
    ///
    /// # Errors
    /// [`CudaError::Capturing`], [`CudaError::Call`].
    pub(crate) fn check_not_capturing(&self, entered: &Entered<'_>) -> Result<(), CudaError> {
        let mut status: c_int = 0;
        // SAFETY: the stream lives as long as `self`; the function stores a number.
        let called = unsafe { (entered.driver.stream_is_capturing)(self.0.raw, &raw mut status) };
        entered.check("cuStreamIsCapturing", called)?;
        // CU_STREAM_CAPTURE_STATUS_NONE.
        if status == 0 { Ok(()) } else { Err(CudaError::Capturing) }
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        if self.is_own
            && let Ok(entered) = self.gpu.enter()
        {
            // SAFETY: `Stream::new` has made it. The driver finishes the work in it first.
            let _ = unsafe { (entered.driver.stream_destroy)(self.raw) };
        }
    }
}
