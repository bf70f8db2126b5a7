//! Waits for the descriptors of a fabric with sockets: its listener, all its sockets and a timer.

use crate::device;
use crate::epoll::{Epoll, Event, Token};
use crate::timer::Timer;
use rustix::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use transfer_core::fabric::{FabricError, LinkId};

/// The source of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Listener,
    Timer,
    /// A socket that has not sent its token yet.
    Pending(u32),
    Link(LinkId),
    /// A wake-up of the fabric's thread.
    Bell,
}

impl Token for Source {
    fn to_u64(self) -> u64 {
        match self {
            Source::Listener => 0,
            Source::Timer => 1,
            Source::Pending(number) => 2 << 32 | u64::from(number),
            Source::Link(link) => 3 << 32 | u64::from(link.0),
            Source::Bell => 4 << 32,
        }
    }

    fn from_u64(number: u64) -> Source {
        match number >> 32 {
            2 => Source::Pending(number as u32),
            3 => Source::Link(LinkId(number as u32)),
            4 => Source::Bell,
            _ if number == 0 => Source::Listener,
            _ => Source::Timer,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: Epoll<Source>,
    timer: Timer,
}

impl Poller {
    pub(crate) fn new() -> Result<Poller, FabricError> {
        let epoll = Epoll::new().map_err(device("epoll_create"))?;
        let poller = Poller { epoll, timer: Timer::new()? };
        poller.add(&poller.timer, Source::Timer)?;
        Ok(poller)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Watches a descriptor for input.
    pub(crate) fn add(&self, fd: impl AsFd, source: Source) -> Result<(), FabricError> {
        self.epoll.add(fd, source).map_err(device("epoll_ctl"))
    }

    /// Watches a descriptor for input and, if `output` is set, for room to send. The source may be a new one.
    pub(crate) fn change(&self, fd: impl AsFd, source: Source, output: bool) -> Result<(), FabricError> {
        self.epoll.change(fd, source, output).map_err(device("epoll_ctl"))
    }

    /// Stops watching a descriptor.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        self.epoll.remove(fd);
    }

    /// Returns the events so far, without waiting.
    pub(crate) fn ready(&self) -> impl IntoIterator<Item = Event<Source>> + use<> {
        self.epoll.wait(Some(Duration::ZERO))
    }

    /// Makes the descriptor readable at that time, or earlier if it is set for an earlier one: a wake-up too many, once,
    /// costs less than a call for each time that the deadline moves.
    pub(crate) fn wake_at(&mut self, at: Option<Instant>) {
        let set_for = self.timer.set_for();
        let is_set = set_for.is_some_and(|set| at.is_none_or(|at| set <= at));
        if at != set_for && !is_set {
            self.timer.set(at);
        }
    }

    /// Handles the expiry of the timer by switching it off: an expired timer stays readable, and would wake every
    /// sleeper. Before the thread sleeps it has to call [`Self::wake_at`] again, because no timer is set for later
    /// deadlines now.
    pub(crate) fn rung(&mut self) {
        self.timer.set(None);
    }
}
