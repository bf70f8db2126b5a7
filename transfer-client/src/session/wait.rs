//! Waiters, and how a thread sleeps.

use parking_lot::{Condvar, Mutex};
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
/// application.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    notified: Mutex<bool>,
    condvar: Condvar,
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

    /// Whether this waker wakes the sleep of this thread in [`Parker::park`].
    pub(crate) fn is_woken_by(waker: &Waker) -> bool {
        Parker::of_this_thread().1.will_wake(waker)
    }

    /// Sleeps until this thread is woken, or `until`. Returns at once if it was woken since the last sleep.
    pub(crate) fn park(&self, until: Instant) {
        let mut notified = self.notified.lock();
        while !*notified {
            if self.condvar.wait_until(&mut notified, until).timed_out() {
                break;
            }
        }
        *notified = false;
    }

    pub(crate) fn unpark(&self) {
        *self.notified.lock() = true;
        self.condvar.notify_one();
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
