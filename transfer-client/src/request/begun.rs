//! Calls of a blocking client that begin now and are waited for later, in slices. They are for bindings to languages
//! that check for signals between the slices, or that wait on descriptors of their own: see [`Doorbell`](crate::Doorbell).

use super::call::{Call, Watched};
use crate::session::Session;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// A call in progress. Dropping it gives the call up, and a late result is released.
#[must_use = "a call that is dropped is given up"]
pub struct Begun<'a, T> {
    session: Arc<Session>,
    call: Box<dyn Call<Output = T> + Send + 'a>,
}

impl<'a, T> Begun<'a, T> {
    pub(crate) fn new(session: Arc<Session>, call: impl Call<Output = T> + Send + 'a) -> Self {
        Begun { session, call: Box::new(call) }
    }

    /// Continues as far as possible without waiting. A push computes what it needs for that: digests, and a delta of at most 1 MiB;
    /// a longer one is made on another thread. `Break` has the result, and `poll` must not be called again. With
    /// `Continue(at)`, `waker` is woken when the call can continue; `poll` must be called again at `at` in any case.
    pub fn poll(&mut self, waker: &Waker) -> ControlFlow<T, Instant> {
        let step = self.call.step(waker);
        if step.is_continue() {
            self.session.go_on();
        }
        step
    }

    /// Like [`wait`](Begun::wait), for a caller that does nothing else until the call has ended, and waits again until then. A
    /// fetch that has not begun then waits for the worker that will push, and not for the sidecar, which is faster. With a time
    /// of zero, it looks the version up.
    pub fn wait_only(&mut self, time: Duration) -> Option<T> {
        match self.call.watch(time) {
            Watched::Ended(value) => Some(value),
            Watched::Waits => None,
            Watched::Steps => self.wait(time),
        }
    }

    /// Asks for the end of a fetch into memory, whose result says when the memory is the caller's again. Wait for it. Other calls
    /// are given up by dropping them, and ignore this.
    pub fn cancel(&mut self) {
        self.call.cancel();
    }

    /// Waits for the result, at most for `time`. `None` if the call has not ended by then; it stays in progress and can
    /// be waited for again.
    pub fn wait(&mut self, time: Duration) -> Option<T> {
        let until = Instant::now() + time;
        let Begun { session, call } = self;
        session.block_on(|waker| match call.step(waker) {
            ControlFlow::Break(value) => ControlFlow::Break(Some(value)),
            ControlFlow::Continue(_) if Instant::now() >= until => ControlFlow::Break(None),
            ControlFlow::Continue(at) => ControlFlow::Continue(at.min(until)),
        })
    }
}

impl<T> fmt::Debug for Begun<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Begun").finish_non_exhaustive()
    }
}
