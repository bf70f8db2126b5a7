//! One epoll descriptor, whose events are named by values of the user's own.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::Timespec;
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The number of events that one wait takes. The kernel rotates: the others are first next time.
const EVENTS: usize = 64;

/// The name of a watched descriptor.
pub(crate) trait Token: Copy {
    fn to_u64(self) -> u64;
    /// Reads [`Token::to_u64`] back.
    fn from_u64(number: u64) -> Self;
}

/// A ready descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event<T> {
    pub(crate) token: T,
    /// Readable, at its end, or in error.
    pub(crate) readable: bool,
    /// Writable, or in error.
    pub(crate) writable: bool,
}

#[derive(Debug)]
pub(crate) struct Epoll<T> {
    fd: OwnedFd,
    tokens: PhantomData<fn() -> T>,
}

impl<T: Token> Epoll<T> {
    pub(crate) fn new() -> Result<Epoll<T>, Errno> {
        Ok(Epoll { fd: epoll::create(CreateFlags::CLOEXEC)?, tokens: PhantomData })
    }

    /// Watches a descriptor for input.
    pub(crate) fn add(&self, fd: impl AsFd, token: T) -> Result<(), Errno> {
        epoll::add(&self.fd, fd, EventData::new_u64(token.to_u64()), EventFlags::IN)
    }

    /// Watches a descriptor for input and, where `output`, for room to send; under a new name if need be.
    pub(crate) fn change(&self, fd: impl AsFd, token: T, output: bool) -> Result<(), Errno> {
        let flags = if output { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        epoll::modify(&self.fd, fd, EventData::new_u64(token.to_u64()), flags)
    }

    /// Watches a descriptor no longer.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        // Fails only for a descriptor that is not watched.
        let _ = epoll::delete(&self.fd, fd);
    }

    /// Waits until a descriptor is ready or the time is over; `None` waits without limit.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> SmallVec<[Event<T>; EVENTS]> {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        // Fails only when interrupted by a signal: then nothing has happened yet.
        let Ok((events, _)) = epoll::wait(&self.fd, &mut events[..], timeout.as_ref()) else {
            return SmallVec::new();
        };
        let broken = EventFlags::ERR | EventFlags::HUP;
        let event = |event: &epoll::Event| {
            let flags = event.flags;
            Event {
                token: T::from_u64(event.data.u64()),
                readable: flags.intersects(EventFlags::IN | broken),
                writable: flags.intersects(EventFlags::OUT | broken),
            }
        };
        events.iter().map(event).collect()
    }
}

impl<T> AsFd for Epoll<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
