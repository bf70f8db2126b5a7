//! An epoll descriptor whose events carry tokens of the user's type.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::Timespec;
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::time::Duration;

/// The most events that one wait returns. The kernel rotates them: the next wait begins with the others.
const EVENTS: usize = 64;

/// Identifies a watched descriptor.
pub(crate) trait Token: Copy {
    fn to_u64(self) -> u64;
    /// Converts the result of [`Token::to_u64`] back.
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

/// What one wait returns.
pub(crate) type Events<T> = SmallVec<[Event<T>; EVENTS]>;

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

    /// Watches a descriptor for input and, if `output` is set, for room to send. The token may be a new one.
    pub(crate) fn change(&self, fd: impl AsFd, token: T, output: bool) -> Result<(), Errno> {
        let flags = if output { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        epoll::modify(&self.fd, fd, EventData::new_u64(token.to_u64()), flags)
    }

    /// Watches a descriptor that was added for input, or does not report it for now.
    pub(crate) fn watch(&self, fd: impl AsFd, token: T, input: bool) {
        let flags = if input { EventFlags::IN } else { EventFlags::empty() };
        // Fails only for a descriptor that was not added.
        let _ = epoll::modify(&self.fd, fd, EventData::new_u64(token.to_u64()), flags);
    }

    /// Stops watching a descriptor.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        // Fails only for a descriptor that is not watched.
        let _ = epoll::delete(&self.fd, fd);
    }

    /// Waits until a descriptor is ready or the timeout has passed. `None` waits without limit.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Events<T> {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        // The call fails only if a signal interrupts it, and then there are no events yet.
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
