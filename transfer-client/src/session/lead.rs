//! Leader and followers: one thread reads, the others sleep.
//!
//! The holder of the lock of [`Reader`] is the leader. Two rules prevent that all threads sleep:
//! - a thread that finds a leader adds itself to the list (or, a driver, raises its flag) and *then* tries the lock
//!   once more;
//! - a leader that stops unlocks and *then* looks at the list and at the flag.

use super::Session;
use super::inside::{Following, Inside};
use super::reader::Reader;
use super::wait::Parker;
use crate::error::SessionEnd;
use parking_lot::{Mutex, MutexGuard};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Instant;

/// The driver of an async client: a task that reads while no thread does.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    present: AtomicBool,
    /// The driver was woken, found a leader, and left the reading to it.
    passed: AtomicBool,
    waker: std::sync::OnceLock<Waker>,
    /// It never turns the engine of a sidecar inside this process.
    following: Mutex<Following>,
}

impl Driver {
    /// `waker` makes the driver call [`Session::serve`].
    pub(super) fn attach(&self, waker: Waker, inside: Option<&Inside>) {
        *self.following.lock() = Following::of(inside);
        let _ = self.waker.set(waker);
        self.present.store(true, Ordering::SeqCst);
    }

    pub(crate) fn detach(&self) {
        *self.following.lock() = Following::default();
        self.present.store(false, Ordering::SeqCst);
    }

    pub(crate) fn is_present(&self) -> bool {
        self.present.load(Ordering::SeqCst)
    }
}

impl Session {
    /// Calls `step` until it breaks, and sleeps between the calls: on the socket if no other thread reads, else until
    /// its waker is called, and at the latest until the moment that `step` returns. Its waker ends the sleep on the socket, too.
    pub(crate) fn block_on<T>(&self, mut step: impl FnMut(&Waker) -> ControlFlow<T, Instant>) -> T {
        let (parker, waker) = Parker::of_this_thread();
        let mut baton = false;
        let value = loop {
            // Who waits turns the engine of this process, and takes then what it has asked for.
            let (stepped, owes_ring) = self.put_off_ring(|| step(&waker));
            let until = match stepped {
                ControlFlow::Break(value) => {
                    self.pay_ring(owes_ring);
                    break value;
                }
                ControlFlow::Continue(until) => until,
            };
            if let Some(reader) = self.reader.try_lock() {
                baton = true;
                match self.lead(reader, &parker, owes_ring, || step(&waker)) {
                    ControlFlow::Break(value) => break value,
                    ControlFlow::Continue(until) => parker.park(until),
                }
                continue;
            }
            self.pay_ring(owes_ring);
            self.followers.lock().push(parker.clone());
            match self.reader.try_lock() {
                // There is no leader: try again, and lead.
                Some(reader) => {
                    // Another thread may have found the lock held by this thread for a moment.
                    drop(reader);
                    baton = true;
                }
                None => parker.park(until),
            }
            // The thread that took this one off the list has made it the leader.
            baton |= !self.unfollow(&parker);
        };
        if baton {
            self.hand_over();
        }
        value
    }

    /// Reads until `step` breaks, or until the session is over. `owes_ring`: the sidecar is to be rung, unless this thread turns it.
    fn lead<T>(
        &self,
        mut reader: MutexGuard<'_, Reader>,
        parker: &Parker,
        mut owes_ring: bool,
        mut step: impl FnMut() -> ControlFlow<T, Instant>,
    ) -> ControlFlow<T, Instant> {
        let mut read = reader.drain(self).map(|_| ());
        loop {
            if let Err(gone) = &read {
                self.end(gone);
            }
            // What it has read may have woken this thread.
            parker.forget();
            let until = match step() {
                ControlFlow::Continue(until) if read.is_ok() => until,
                end => {
                    self.pay_ring(owes_ring);
                    self.stop_leading(reader);
                    return end;
                }
            };
            read = reader.wait(self, parker, until, std::mem::take(&mut owes_ring));
        }
    }

    /// Stops reading, and has the sidecar ring for the next record if there is a driver.
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

    /// Makes another thread the leader. Call it after the reader was unlocked.
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

    /// The driver's part: handles all records and messages that have arrived, and asks the sidecar to ring for the next
    /// one. If there is a leader, it leaves that work to the leader.
    ///
    /// # Errors
    /// The reason why the session is over.
    pub(crate) fn serve(&self) -> Result<(), SessionEnd> {
        if self.is_forked() {
            return Err(SessionEnd::Forked);
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

    fn serve_with(&self, reader: &mut Reader) -> Result<(), SessionEnd> {
        loop {
            let read = reader.read_socket(self);
            // Replies from before the end count.
            reader.drain(self)?;
            read?;
            if reader.announce_sleep() {
                return Ok(());
            }
        }
    }
}
