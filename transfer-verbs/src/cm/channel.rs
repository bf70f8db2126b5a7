//! Event channels of connections.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rdma_sys::{rdma_cm_event_type, rdma_event_channel};

use super::event::PeerParameters;
use super::{Event, EventKind, Id, IdNumber, NAME, done};
use crate::VerbsError;
use crate::sys::{Handle, Rdmacm, rdmacm, set_nonblocking};

/// The channel for the events of connections. Its file descriptor becomes readable when there is an event. Clones are
/// the same channel.
#[derive(Clone, Debug)]
pub struct EventChannel(Arc<EventChannelInner>);

#[derive(Debug)]
struct EventChannelInner {
    functions: &'static Rdmacm,
    raw: Handle<rdma_event_channel>,
    /// Guards the fields of the ids: the library writes them while it takes an event, and in most calls, without a
    /// lock of its own.
    using: Mutex<()>,
}

impl EventChannel {
    /// Makes a channel.
    pub fn new() -> Result<Self, VerbsError> {
        let library = rdmacm()?;
        // SAFETY: it needs nothing.
        let raw = Handle::new(unsafe { (library.rdma_create_event_channel)() })
            .map_err(|why| VerbsError::because(NAME, "rdma_create_event_channel", why))?;
        let channel = Self(Arc::new(EventChannelInner { functions: library, raw, using: Mutex::new(()) }));
        set_nonblocking(channel.as_fd()).map_err(|why| VerbsError::because(NAME, "O_NONBLOCK for events", why))?;
        Ok(channel)
    }

    /// Returns the next event, or `None` if there is none now.
    pub fn next(&self) -> Result<Option<Event>, VerbsError> {
        let library = self.0.functions;
        let _using = self.using();
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is alive and the pointer may be written.
        if unsafe { (library.rdma_get_cm_event)(self.0.raw.raw(), &mut raw) } != 0 {
            let why = io::Error::last_os_error();
            return match why.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(VerbsError::because(NAME, "rdma_get_cm_event", why)),
            };
        }
        // SAFETY: the event, its ids and its private data are valid until it is acknowledged. All ids of this crate
        // are those of reliable connections, so the union's variant is `conn`, and each was made with its number. A
        // request's new id is handed over with the event, and has no owner yet.
        let event = unsafe {
            let event = &*raw;
            let conn = &event.param.conn;
            let private_data = if conn.private_data.is_null() {
                Vec::new()
            } else {
                std::slice::from_raw_parts(conn.private_data.cast::<u8>(), usize::from(conn.private_data_len)).to_vec()
            };
            let is_request = event.event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
            let about = if is_request { event.listen_id } else { event.id };
            let number = IdNumber::of(about);
            let request = if is_request { Some(Id::requested(event.id, self.clone())?) } else { None };
            let kind = EventKind::new(event.event, PeerParameters::new(conn), request);
            Event { id: number, kind, status: event.status, private_data }
        };
        // SAFETY: the event came from the library and is acknowledged once.
        done("rdma_ack_cm_event", unsafe { (library.rdma_ack_cm_event)(raw) })?;
        Ok(Some(event))
    }

    /// Takes the lock for reading an id's fields, or for calling the library with it.
    pub(super) fn using(&self) -> MutexGuard<'_, ()> {
        self.0.using.lock()
    }

    pub(super) fn functions(&self) -> &'static Rdmacm {
        self.0.functions
    }

    pub(super) fn raw(&self) -> *mut rdma_event_channel {
        self.0.raw.raw()
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the channel is.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw.raw()).fd) }
    }
}

impl Drop for EventChannelInner {
    fn drop(&mut self) {
        // SAFETY: the ids whose events come in here hold it, so this is its last use.
        unsafe { (self.functions.rdma_destroy_event_channel)(self.raw.raw()) }
    }
}
