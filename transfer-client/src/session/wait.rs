//! Waiters, and how a thread sleeps.

#[cfg(feature = "embedded")]
use super::inside::Inside;
use parking_lot::{Condvar, Mutex};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

/// The wakers of all waiters for one event. A waiter that registers checks the event once more before it sleeps.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Saves the lock when there is no waiter, which is nearly always.
    any: AtomicBool,
    list: Mutex<Vec<Waker>>,
}

impl Waiters {
    /// Wakes `waker` at the next [`Waiters::wake_all`].
    pub(crate) fn register(&self, waker: &Waker) {
        let mut list = self.list.lock();
        if !list.iter().any(|w| w.will_wake(waker)) {
            list.push(waker.clone());
        }
        self.any.store(true, Ordering::SeqCst);
    }

    /// Whether there is a waiter.
    #[cfg(feature = "embedded")]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::SeqCst)
    }

    /// Wakes and removes all waiters.
    pub(crate) fn wake_all(&self) {
        if self.any.load(Ordering::SeqCst) {
            let list = {
                let mut list = self.list.lock();
                self.any.store(false, Ordering::SeqCst);
                std::mem::take(&mut *list)
            };
            list.into_iter().for_each(Waker::wake);
        }
    }
}

/// The object on which one thread sleeps. It does not use [`std::thread::park`], whose token belongs to the
/// application. A thread that reads for its session sleeps elsewhere, and is woken there: see [`Parker::sleep_by`].
#[derive(Debug, Default)]
pub(crate) struct Parker {
    /// Written under the lock. It is read without it by a thread that turns the engine, after each round.
    is_notified: AtomicBool,
    interrupt: Mutex<Option<Interrupt>>,
    condvar: Condvar,
}

/// How a thread is woken that sleeps on the socket of a session, or turns the engine.
#[derive(Debug, Clone)]
pub(crate) enum Interrupt {
    /// The thread polls this event, too.
    Event(Arc<OwnedFd>),
    /// The thread turns the engine of this sidecar.
    #[cfg(feature = "embedded")]
    Engine(Inside),
}

impl Interrupt {
    fn ring(&self) {
        match self {
            // The counter is full only after 2^64 rings without a read.
            Interrupt::Event(event) => drop(rustix::io::write(event, &1u64.to_ne_bytes())),
            #[cfg(feature = "embedded")]
            Interrupt::Engine(inside) => inside.interrupt(),
        }
    }
}

/// A thread is about to sleep, or sleeps, where it can be interrupted. It is awake once this is dropped.
#[derive(Debug)]
pub(crate) struct Asleep<'a>(&'a Parker);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        *self.0.interrupt.lock() = None;
    }
}

impl Parker {
    /// This thread's parker, and a waker for it.
    pub(crate) fn of_this_thread() -> (Arc<Parker>, Waker) {
        thread_local! {
            static PARKER: (Arc<Parker>, Waker) = {
                let parker = Arc::new(Parker::default());
                (parker.clone(), Waker::from(parker))
            };
        }
        PARKER.with(Clone::clone)
    }

    /// Sleeps until this thread is woken, or `until`. Returns at once if it was woken since the last sleep.
    pub(crate) fn park(&self, until: Instant) {
        let mut interrupt = self.interrupt.lock();
        while !self.is_notified() {
            if self.condvar.wait_until(&mut interrupt, until).timed_out() {
                break;
            }
        }
        self.is_notified.store(false, Ordering::SeqCst);
    }

    /// Has who wakes this thread interrupt it until the result is dropped. `None` if it was woken already: then it must not sleep. The
    /// interrupt is used under the lock, so nobody has it, or uses it, once the thread is awake.
    pub(crate) fn sleep_by(&self, interrupt: Interrupt) -> Option<Asleep<'_>> {
        let mut by = self.interrupt.lock();
        if self.is_notified() {
            return None;
        }
        *by = Some(interrupt);
        Some(Asleep(self))
    }

    /// Whether this thread was woken since it has last slept on this, or forgotten it.
    pub(crate) fn is_notified(&self) -> bool {
        self.is_notified.load(Ordering::SeqCst)
    }

    /// Forgets what has woken this thread, which looks at all that it waits for afterwards.
    pub(crate) fn forget(&self) {
        if self.is_notified() {
            let _unpark = self.interrupt.lock();
            self.is_notified.store(false, Ordering::SeqCst);
        }
    }

    pub(crate) fn unpark(&self) {
        let interrupt = self.interrupt.lock();
        if !self.is_notified.swap(true, Ordering::SeqCst) {
            match &*interrupt {
                Some(interrupt) => interrupt.ring(),
                None => drop(self.condvar.notify_one()),
            }
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.unpark();
    }
}

/// The polling time before a sleep: longer while polling pays, shorter while it does not.
#[derive(Debug)]
pub(crate) struct Spin {
    max: Duration,
    now: Duration,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Spin {
        Spin { max, now: max }
    }

    #[cfg(feature = "embedded")]
    pub(crate) fn max(&self) -> Duration {
        self.max
    }

    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    pub(crate) fn won(&mut self) {
        self.now = (self.now * 2).min(self.max);
    }

    pub(crate) fn lost(&mut self) {
        // Never zero, or it could not grow again.
        self.now = (self.now / 2).max(self.max / 16);
    }
}
