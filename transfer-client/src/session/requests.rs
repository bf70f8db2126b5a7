//! Requests that have no answer, such as releases, and the doorbell.

use super::inside::Inside;
use super::rings;
use super::state::Session;
use super::submission::Submission;
use super::wait::Parker;
use parking_lot::MutexGuard;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use transfer_core::op::{LeaseId, OpId, Request};

/// The time for which a thread that releases something waits for a sidecar that does not read its ring.
const BACKLOG_TIMEOUT: Duration = Duration::from_millis(100);

impl Session {
    /// Releases the lease of a fetched range.
    pub(crate) fn release(&self, lease: LeaseId) {
        self.say(std::iter::once(Request::Release { lease }));
        self.wait_for_backlog();
    }

    /// Asks for the end of an operation, whose answer is still waited for.
    pub(crate) fn cancel(&self, op: OpId) {
        self.say(std::iter::once(Request::Cancel { op }));
        self.wait_for_backlog();
    }

    /// Sends requests that have no answer. Requests that do not fit into the ring wait in the backlog until the sidecar
    /// rings because there is room.
    pub(super) fn say(&self, requests: impl Iterator<Item = Request>) {
        if self.gone().is_none() {
            let mut submission = self.submission.lock();
            for request in requests {
                if let Err(gone) = submission.write_or_keep(request) {
                    drop(submission);
                    return self.end(&gone);
                }
            }
            self.say_backlog(submission);
        }
    }

    pub(super) fn say_backlog<'a>(&'a self, mut submission: MutexGuard<'a, Submission>) {
        loop {
            let written = submission.write_backlog();
            let finish = written.and_then(|all| submission.finish(!all));
            let left = submission.has_backlog();
            self.backlog.store(left, Ordering::SeqCst);
            match finish {
                Ok(finish) => {
                    // What the sidecar does in this thread needs no lock of the session.
                    drop(submission);
                    if finish.ring {
                        self.ring();
                    }
                    if !left || finish.full {
                        return;
                    }
                    submission = self.submission.lock();
                }
                Err(gone) => {
                    drop(submission);
                    return self.end(&gone);
                }
            }
        }
    }

    /// If no thread listens for the sidecar's doorbell, a caller with a backlog waits for it for a moment: the sidecar
    /// rings as soon as it has read the ring.
    pub(super) fn wait_for_backlog(&self) {
        if self.is_forked() || !self.backlog.load(Ordering::SeqCst) || self.driver.is_present() {
            return;
        }
        let until = Instant::now() + BACKLOG_TIMEOUT;
        self.block_on(|waker| {
            self.space.register(waker);
            let done = !self.backlog.load(Ordering::SeqCst) || self.gone().is_some();
            if done || Instant::now() >= until { ControlFlow::Break(()) } else { ControlFlow::Continue(until) }
        });
        // It may have been within a step of another wait of this thread, and have slept off what was to wake that one.
        Parker::of_this_thread().0.unpark();
    }

    /// Whether somebody waits for the sidecar's doorbell.
    #[cfg(feature = "embedded")]
    pub(super) fn waits_for_bell(&self) -> bool {
        self.backlog.load(Ordering::SeqCst) || self.space.any()
    }

    /// Handles the sidecar's doorbell: there may be room in the submission ring.
    pub(super) fn hear_doorbell(&self) {
        if self.backlog.load(Ordering::SeqCst) {
            self.say_backlog(self.submission.lock());
        }
        self.space.wake_all();
    }

    /// Has a sidecar inside this process begin what is in the ring. One in another process polls, or was rung.
    pub(crate) fn go_on(&self) {
        if let Some(inside) = &self.inside
            && !self.is_forked()
        {
            inside.go_on();
        }
    }

    /// Has the sidecar, which sleeps, look at the ring. A sidecar inside this process needs no doorbell: this thread does its work.
    pub(super) fn ring(&self) {
        if rings::is_put_off(self) {
            return;
        }
        let inside = self.inside.as_ref().filter(|_| !self.is_forked());
        if !inside.is_some_and(Inside::step) {
            // If that fails, the session is over, which the reader notices; replies that were sent before still count.
            let _ = self.socket.ring();
        }
    }
}
