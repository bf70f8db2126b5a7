//! Completion channels, on which a thread sleeps until there is a completion.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use parking_lot::Mutex;
use rdma_sys::ibv_comp_channel;

use crate::completion_queue;
use crate::sys::{Handle, set_nonblocking};
use crate::{Context, VerbsError};

/// A completion channel. Its file descriptor becomes readable when an armed queue has a completion. Clones are the
/// same channel.
#[derive(Clone, Debug)]
pub struct CompletionChannel(pub(crate) Arc<ChannelInner>);

#[derive(Debug)]
pub(crate) struct ChannelInner {
    pub(crate) raw: Handle<ibv_comp_channel>,
    pub(crate) context: Context,
    /// Held from taking an event until its queue has counted it, and while a queue is destroyed. At its end a queue
    /// waits for the events that were taken, so an event that was taken and not counted would make it wait forever.
    pub(crate) taking: Mutex<()>,
}

impl CompletionChannel {
    /// Makes a channel.
    pub fn new(context: &Context) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let raw = Handle::new(unsafe { (context.0.functions.ibv_create_comp_channel)(context.0.raw.raw()) })
            .map_err(|why| VerbsError::because(context.device_name(), "ibv_create_comp_channel", why))?;
        let channel = Self(Arc::new(ChannelInner { raw, context: context.clone(), taking: Mutex::new(()) }));
        set_nonblocking(channel.as_fd())
            .map_err(|why| VerbsError::because(context.device_name(), "O_NONBLOCK for completions", why))?;
        Ok(channel)
    }

    /// Takes the waiting events, and returns their number; never blocks. A queue whose event was taken is disarmed.
    pub fn take_events(&self) -> Result<usize, VerbsError> {
        let mut taken = 0;
        while self.take_event()? {
            taken += 1;
        }
        Ok(taken)
    }

    /// Takes the oldest waiting event, and returns whether there was one; never blocks. This is one system call. Who waits
    /// for one queue, which has at most one event each time that it is armed, needs no second call to learn that there is no
    /// other.
    pub fn take_event(&self) -> Result<bool, VerbsError> {
        let context = &self.0.context;
        let _taking = self.0.taking.lock();
        let (mut queue, mut user) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive and both pointers may be written.
        let code = unsafe { (context.0.functions.ibv_get_cq_event)(self.0.raw.raw(), &mut queue, &mut user) };
        if code != 0 {
            let why = io::Error::last_os_error();
            return match why.kind() {
                io::ErrorKind::WouldBlock => Ok(false),
                _ => Err(VerbsError::because(context.device_name(), "ibv_get_cq_event", why)),
            };
        }
        // SAFETY: `user` is the pointer that the queue was made with, to its count of events. A queue is destroyed, and
        // its count freed, only under the lock that is held here, and the kernel forgets its events that were not taken.
        unsafe { completion_queue::count_event(context.0.functions, queue, user) };
        Ok(true)
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the channel is.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw.raw()).fd) }
    }
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: the queues that use the channel hold it, so this is its last use.
        let code = unsafe { (self.context.0.functions.ibv_destroy_comp_channel)(self.raw.raw()) };
        if code != 0 {
            let device = self.context.device_name();
            tracing::warn!(device, code, "a completion channel could not be given back");
        }
    }
}
