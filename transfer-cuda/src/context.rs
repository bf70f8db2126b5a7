//! Opened GPUs.

use crate::CudaError;
use crate::device::{attribute, find};
use crate::event::SpareEvents;
use crate::sys::{self, Driver, attribute as attributes, driver};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Weak};

/// An opened GPU. Cheap to clone; all clones are the same GPU, and keep its primary context. torch and the CUDA runtime
/// use that context too, so memory and streams of theirs are valid here.
#[derive(Debug, Clone)]
pub struct Gpu(Arc<ContextInner>);

#[derive(Debug)]
struct ContextInner {
    driver: &'static Driver,
    ordinal: u32,
    device: sys::Device,
    context: sys::Context,
    registers: Registers,
    spare_events: SpareEvents,
}

/// The host memory that the driver registers for a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registers {
    pub(crate) writable: bool,
    pub(crate) read_only: bool,
}

// SAFETY: the context is a handle of the driver, whose functions may be called by any thread.
unsafe impl Send for ContextInner {}
// SAFETY: as above.
unsafe impl Sync for ContextInner {}

impl Gpu {
    /// Opens the GPU of this number, from 0. It is opened once in a process, for as long as something uses it. The first
    /// time takes some 100 ms.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`], [`CudaError::NoGpu`], [`CudaError::NoSuchDevice`], [`CudaError::Forked`],
    /// [`CudaError::Call`].
    pub fn open(ordinal: u32) -> Result<Gpu, CudaError> {
        static OPENED: Mutex<BTreeMap<u32, Weak<ContextInner>>> = Mutex::new(BTreeMap::new());
        let driver = driver()?;
        let mut opened = OPENED.lock();
        if let Some(inner) = opened.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(Gpu(inner));
        }
        let device = find(driver, ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: the function stores a handle. The drop of `ContextInner` releases it.
        let status = unsafe { (driver.primary_context_retain)(&raw mut context, device) };
        driver.check("cuDevicePrimaryCtxRetain", status)?;
        let supports = |which| attribute(driver, device, which) != 0;
        let registers = Registers {
            writable: supports(attributes::HOST_REGISTER_SUPPORTED),
            read_only: supports(attributes::READ_ONLY_HOST_REGISTER_SUPPORTED),
        };
        let inner = Arc::new(ContextInner {
            driver,
            ordinal,
            device,
            context,
            registers,
            spare_events: SpareEvents::default(),
        });
        opened.insert(ordinal, Arc::downgrade(&inner));
        Ok(Gpu(inner))
    }

    /// Its number.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// The free and the whole memory of the GPU, in bytes.
    ///
    /// # Errors
    /// [`CudaError::Forked`], [`CudaError::Call`].
    pub fn memory_bytes(&self) -> Result<(u64, u64), CudaError> {
        let (entered, mut free, mut total) = (self.enter()?, 0usize, 0usize);
        // SAFETY: the function stores two numbers about the current context's GPU.
        entered.check("cuMemGetInfo", unsafe { (entered.driver.mem_get_info)(&raw mut free, &raw mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Whether this process is a forked child of the one that has opened it.
    pub(crate) fn is_forked(&self) -> bool {
        self.0.driver.is_forked()
    }

    pub(crate) fn spare_events(&self) -> &SpareEvents {
        &self.0.spare_events
    }

    pub(crate) fn registers(&self) -> Registers {
        self.0.registers
    }

    /// Makes its context the calling thread's, until the result is dropped.
    ///
    /// # Errors
    /// [`CudaError::Forked`], [`CudaError::Call`].
    pub(crate) fn enter(&self) -> Result<Entered<'_>, CudaError> {
        let driver = self.0.driver;
        if driver.is_forked() {
            return Err(CudaError::Forked);
        }
        // SAFETY: the context is retained as long as `self` lives.
        driver.check("cuCtxPushCurrent", unsafe { (driver.context_push)(self.0.context) })?;
        Ok(Entered { driver, _gpu: self, _thread: PhantomData })
    }
}

impl PartialEq for Gpu {
    fn eq(&self, other: &Gpu) -> bool {
        self.0.ordinal == other.0.ordinal
    }
}

/// A GPU's context, while it is the thread's.
pub(crate) struct Entered<'a> {
    pub(crate) driver: &'static Driver,
    _gpu: &'a Gpu,
    /// The context is that of one thread.
    _thread: PhantomData<*const ()>,
}

impl Entered<'_> {
    pub(crate) fn check(&self, call: &'static str, status: sys::Status) -> Result<(), CudaError> {
        self.driver.check(call, status)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: `enter` has pushed a context on this thread, and what was pushed since is popped again.
        let _ = unsafe { (self.driver.context_pop)(&raw mut popped) };
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        if !self.driver.is_forked() {
            // SAFETY: the context is retained still.
            let pushed = unsafe { (self.driver.context_push)(self.context) };
            if pushed == sys::SUCCESS {
                self.spare_events.destroy(self.driver);
                let mut popped = ptr::null_mut();
                // SAFETY: it was pushed above.
                let _ = unsafe { (self.driver.context_pop)(&raw mut popped) };
            }
            // SAFETY: it was retained once by `Gpu::open`, and everything that needs the context has a `Gpu`.
            let _ = unsafe { (self.driver.primary_context_release)(self.device) };
        }
    }
}
