//! Leader and followers: who reads, and who sleeps meanwhile.
//!
//! The lock of [`Reader`] makes the leader. Two rules keep anybody from sleeping for ever:
//! - whoever finds a leader puts itself on the list (or, a driver, raises its flag) and *then* tries the lock once more;
//! - whoever stops leading unlocks and *then* looks at the list and at the flag.

use super::wait::Parker;
use super::{Gone, Reader, Session};
use parking_lot::MutexGuard;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Instant;

/// The place of an async client's driver: a task that reads while no thread does.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    present: AtomicBool,
    /// It was woken, found a leader, and left the reading to it.
    passed: AtomicBool,
    waker: std::sync::OnceLock<Waker>,
}

impl Driver {
    /// `waker` makes the driver call [`Session::serve`].
    pub(crate) fn attach(&self, waker: Waker) {
        let _ = self.waker.set(waker);
        self.present.store(true, Ordering::SeqCst);
    }

    pub(crate) fn detach(&self) {
        self.present.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_present(&self) -> bool {
        self.present.load(Ordering::SeqCst)
    }
}

impl Session {
    /// Calls `step` until it breaks, and sleeps between the calls: on the socket where nobody else reads, else until its waker is called,
    /// and at the latest until the moment that it says.
    pub(crate) fn block_on<T>(&self, mut step: impl FnMut(&Waker) -> ControlFlow<T, Instant>) -> T {
        let (parker, waker) = Parker::of_this_thread();
        let mut baton = false;
        let value = loop {
            let until = match step(&waker) {
                ControlFlow::Break(value) => break value,
                ControlFlow::Continue(until) => until,
            };
            if let Some(reader) = self.reader.try_lock() {
                baton = true;
                match self.lead(reader, || step(&waker)) {
                    ControlFlow::Break(value) => break value,
                    ControlFlow::Continue(until) => parker.park(until),
                }
                continue;
            }
            self.followers.lock().push(parker.clone());
            match self.reader.try_lock() {
                // Nobody leads any more: round again, and lead.
                Some(reader) => {
                    // Somebody may have seen this thread as the leader, if only for now.
                    drop(reader);
                    baton = true;
                }
                None => parker.park(until),
            }
            // Whoever took this thread off the list has handed over to it.
            baton |= !self.unfollow(&parker);
        };
        if baton {
            self.hand_over();
        }
        value
    }

    /// Reads until `step` breaks; or until the session is over, if it still has not then.
    fn lead<T>(
        &self,
        mut reader: MutexGuard<'_, Reader>,
        mut step: impl FnMut() -> ControlFlow<T, Instant>,
    ) -> ControlFlow<T, Instant> {
        let mut read = reader.drain(self).map(|_| ());
        loop {
            if let Err(gone) = &read {
                self.end(gone);
            }
            let until = match step() {
                ControlFlow::Continue(until) if read.is_ok() => until,
                end => {
                    self.stop_leading(reader);
                    return end;
                }
            };
            read = reader.wait(self, until);
        }
    }

    /// Leaves the ring so that a driver, if there is one, is rung for what comes next.
    fn stop_leading(&self, mut reader: MutexGuard<'_, Reader>) {
        if self.driver.is_present() {
            while !reader.announce_sleep() {
                if let Err(gone) = reader.drain(self) {
                    self.end(&gone);
                    break;
                }
            }
        }
    }

    /// To be called after the reader was unlocked: somebody else goes on.
    fn hand_over(&self) {
        let next = self.followers.lock().pop();
        if let Some(parker) = next {
            parker.unpark();
        }
        if self.driver.passed.swap(false, Ordering::SeqCst)
            && let Some(waker) = self.driver.waker.get()
        {
            waker.wake_by_ref();
        }
    }

    /// Whether this thread was still on the list.
    fn unfollow(&self, parker: &Arc<Parker>) -> bool {
        let mut followers = self.followers.lock();
        match followers.iter().position(|p| Arc::ptr_eq(p, parker)) {
            Some(at) => {
                followers.swap_remove(at);
                true
            }
            None => false,
        }
    }

    /// The driver's part: takes everything that is there, and asks to be rung for what comes. Leaves that to the leader where there is one.
    ///
    /// # Errors
    /// Why the session is over.
    pub(crate) fn serve(&self) -> Result<(), Gone> {
        if self.is_forked() {
            return Err(Gone::Forked);
        }
        let reader = self.reader.try_lock().or_else(|| {
            self.driver.passed.store(true, Ordering::SeqCst);
            self.reader.try_lock()
        });
        let Some(mut reader) = reader else { return Ok(()) };
        let result = self.serve_with(&mut reader);
        if let Err(gone) = &result {
            self.end(gone);
        }
        drop(reader);
        self.hand_over();
        result
    }

    fn serve_with(&self, reader: &mut Reader) -> Result<(), Gone> {
        loop {
            let read = reader.read_socket(self);
            // What was said before the end counts.
            reader.drain(self)?;
            read?;
            if reader.announce_sleep() {
                return Ok(());
            }
        }
    }
}
