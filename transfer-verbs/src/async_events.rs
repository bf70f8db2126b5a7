//! Asynchronous events of a device.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use crate::sys::set_nonblocking;
use crate::{Context, VerbsError};

/// The source of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AsyncSource {
    /// The whole device.
    Device,
    /// A port, counted from 1.
    Port(u8),
    /// A queue pair, by number.
    QueuePair(u32),
    /// A completion queue.
    CompletionQueue,
    /// A shared receive queue.
    SharedReceiveQueue,
    /// A work queue, which this crate never makes.
    WorkQueue,
}

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AsyncEvent {
    /// The source.
    pub source: AsyncSource,
    /// `enum ibv_event_type`.
    pub code: u32,
}

impl AsyncEvent {
    /// Returns a text for the event.
    pub fn words(&self) -> &'static str {
        kind(self.code).words
    }

    /// Whether its source has failed.
    pub fn is_fatal(&self) -> bool {
        kind(self.code).fatal
    }
}

/// The meaning of a code: the field of the event's union that names its source, and a text.
struct Kind {
    about: About,
    words: &'static str,
    fatal: bool,
}

enum About {
    Device,
    Port,
    QueuePair,
    CompletionQueue,
    SharedReceiveQueue,
    WorkQueue,
}

/// Returns the meaning of a code, as in ibv_get_async_event(3).
fn kind(code: u32) -> Kind {
    use About::*;
    let (about, words, fatal) = match code {
        0 => (CompletionQueue, "a completion queue has overrun", true),
        1 => (QueuePair, "a queue pair has failed", true),
        2 => (QueuePair, "a queue pair got an invalid request", true),
        3 => (QueuePair, "a queue pair got a request that its keys do not allow", true),
        4 => (QueuePair, "a queue pair got its first message", false),
        5 => (QueuePair, "a send queue is drained", false),
        6 => (QueuePair, "a queue pair has changed to its other path", false),
        7 => (QueuePair, "a queue pair could not change to its other path", false),
        8 => (Device, "the device has failed", true),
        9 => (Port, "a port has become active", false),
        10 => (Port, "a port is no longer active", false),
        11 => (Port, "a port's LID has changed", false),
        12 => (Port, "a port's partition keys have changed", false),
        13 => (Port, "a port's subnet manager has changed", false),
        14 => (SharedReceiveQueue, "a shared receive queue has failed", true),
        15 => (SharedReceiveQueue, "a shared receive queue is nearly empty", false),
        16 => (QueuePair, "a queue pair has used its last receive of a shared queue", false),
        17 => (Port, "a port's subnet manager wants its clients to register again", false),
        18 => (Port, "a port's addresses have changed", false),
        19 => (WorkQueue, "a work queue has failed", true),
        // Its source is unknown, so its pointer is not read.
        _ => (Device, "an event that this program does not know", false),
    };
    Kind { about, words, fatal }
}

/// The events of one device. Its file descriptor becomes readable when there is an event.
#[derive(Debug)]
pub struct AsyncEvents {
    context: Context,
}

/// `struct ibv_async_event`, with a number for the code, because the library may know more codes than rdma-sys.
#[repr(C)]
struct RawEvent {
    element: rdma_sys::ibv_async_event_element_t,
    code: u32,
}

impl AsyncEvents {
    pub(crate) fn new(context: Context) -> Result<Self, VerbsError> {
        set_nonblocking(context.async_fd())
            .map_err(|why| VerbsError::because(context.device_name(), "O_NONBLOCK for events", why))?;
        Ok(Self { context })
    }

    /// Returns the next event, or `None` if there is none now.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<AsyncEvent>, VerbsError> {
        let inner = &self.context.0;
        let mut event = MaybeUninit::<RawEvent>::zeroed();
        let raw = event.as_mut_ptr().cast::<rdma_sys::ibv_async_event>();
        // SAFETY: the struct may be written; it is never read as the type whose code is a Rust enum.
        if unsafe { (inner.functions.ibv_get_async_event)(inner.raw.raw(), raw) } != 0 {
            let why = io::Error::last_os_error();
            return match why.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(VerbsError::because(self.context.device_name(), "ibv_get_async_event", why)),
            };
        }
        // SAFETY: the library has filled it. An object that an event names is not destroyed until the event is
        // acknowledged, and the code says which field of the union is set.
        let event = unsafe {
            let event = &*event.as_ptr();
            let source = match kind(event.code).about {
                About::Device => AsyncSource::Device,
                About::Port => AsyncSource::Port(u8::try_from(event.element.port_num).unwrap_or(0)),
                About::QueuePair => AsyncSource::QueuePair((*event.element.qp).qp_num),
                About::CompletionQueue => AsyncSource::CompletionQueue,
                About::SharedReceiveQueue => AsyncSource::SharedReceiveQueue,
                About::WorkQueue => AsyncSource::WorkQueue,
            };
            AsyncEvent { source, code: event.code }
        };
        // SAFETY: it came from the library and is acknowledged once.
        unsafe { (inner.functions.ibv_ack_async_event)(raw) };
        Ok(Some(event))
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.context.async_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::{AsyncEvent, AsyncSource, RawEvent};

    #[test]
    fn the_struct_is_as_large_as_the_librarys() {
        assert_eq!(size_of::<RawEvent>(), size_of::<rdma_sys::ibv_async_event>());
        assert_eq!(align_of::<RawEvent>(), align_of::<rdma_sys::ibv_async_event>());
    }

    #[test]
    fn every_code_of_the_header_has_words() {
        for code in 0..20 {
            let event = AsyncEvent { source: AsyncSource::Device, code };
            assert!(!event.words().contains("does not know"), "{code}");
        }
        let access_error = rdma_sys::ibv_event_type::IBV_EVENT_QP_ACCESS_ERR as u32;
        assert!(AsyncEvent { source: AsyncSource::QueuePair(7), code: access_error }.is_fatal());
        let active = rdma_sys::ibv_event_type::IBV_EVENT_PORT_ACTIVE as u32;
        assert!(!AsyncEvent { source: AsyncSource::Port(1), code: active }.is_fatal());
    }
}
