//! The end of work in a stream.

use crate::context::Entered;
use crate::sys::{Driver, NOT_READY, RawEvent};
use crate::{CudaError, Gpu, Stream};
use parking_lot::Mutex;
use std::ptr;

/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`: a waiting thread sleeps.
const SLEEPING_WAIT: u32 = 1 | 2;

/// The most events that a GPU keeps for later copies. To make one takes several microseconds.
const MAX_SPARE_EVENTS: usize = 64;

/// A point in a stream, which comes when all work before it is done.
#[derive(Debug)]
pub(crate) struct Event {
    gpu: Gpu,
    raw: RawEvent,
}

/// Events that are not used at present.
#[derive(Debug, Default)]
pub(crate) struct SpareEvents(Mutex<Vec<Spare>>);

#[derive(Debug)]
struct Spare(RawEvent);

// SAFETY: the event is a handle of the driver, whose functions may be called by any thread.
unsafe impl Send for Spare {}

impl SpareEvents {
    /// Destroys them. Their context is the thread's.
    pub(crate) fn destroy(&mut self, driver: &Driver) {
        for Spare(raw) in self.0.get_mut().drain(..) {
            // SAFETY: `Event::new` has made it, and nothing else has it.
            let _ = unsafe { (driver.event_destroy)(raw) };
        }
    }
}

// SAFETY: the event is a handle of the driver, whose functions may be called by any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Makes an event that is to be recorded. `entered` is of its GPU.
    pub(crate) fn new(gpu: &Gpu, entered: &Entered<'_>) -> Result<Event, CudaError> {
        if let Some(Spare(raw)) = gpu.spare_events().0.lock().pop() {
            return Ok(Event { gpu: gpu.clone(), raw });
        }
        let mut raw = ptr::null_mut();
        // SAFETY: the function stores a handle of the current context. The drop of `Event`, or of its GPU, destroys it.
        entered.check("cuEventCreate", unsafe { (entered.driver.event_create)(&raw mut raw, SLEEPING_WAIT) })?;
        Ok(Event { gpu: gpu.clone(), raw })
    }

    /// Puts it behind the work that is in `stream` now. `entered` is of its GPU.
    pub(crate) fn record(&self, stream: &Stream, entered: &Entered<'_>) -> Result<(), CudaError> {
        // SAFETY: both handles live, and are of the same context: the caller has made the event for the stream's GPU.
        entered.check("cuEventRecord", unsafe { (entered.driver.event_record)(self.raw, stream.raw()) })
    }

    /// Whether it has come. An error means that nobody knows.
    pub(crate) fn has_come(&self) -> Result<bool, CudaError> {
        let entered = self.gpu.enter()?;
        // SAFETY: the event lives as long as `self`.
        match unsafe { (entered.driver.event_query)(self.raw) } {
            NOT_READY => Ok(false),
            status => entered.check("cuEventQuery", status).map(|()| true),
        }
    }

    /// Sleeps until it has come. An error means that nobody knows.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        let entered = self.gpu.enter()?;
        // SAFETY: the event lives as long as `self`.
        entered.check("cuEventSynchronize", unsafe { (entered.driver.event_synchronize)(self.raw) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.is_forked() {
            return;
        }
        {
            let mut spare = self.gpu.spare_events().0.lock();
            if spare.len() < MAX_SPARE_EVENTS {
                // If it was recorded and has not come, it is recorded anew before it is asked.
                return spare.push(Spare(self.raw));
            }
        }
        if let Ok(entered) = self.gpu.enter() {
            // SAFETY: `Event::new` has made it. The driver keeps what work still needs.
            let _ = unsafe { (entered.driver.event_destroy)(self.raw) };
        }
    }
}
