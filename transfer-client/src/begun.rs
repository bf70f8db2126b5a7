//! Calls of a blocking client that begin now and are waited for later, in slices. They are for bindings to languages
//! that check for signals between the slices, or that wait on descriptors of their own.
//!
//! A program that waits on descriptors does the work of an async client's driver: it watches [`Doorbell::socket`], and
//! calls [`Doorbell::serve`] when that descriptor is readable. `serve` runs the wakers of its calls.

use crate::face::{Blocking, Call, Watched};
use crate::session::Session;
use crate::{
    AllocateWait, Counting, Error, Fetch, FetchMany, FetchOnly, Gate, Handle, Order, Push, PushError, Pushed, Tensor,
    TensorMut,
};
use rustix::fd::OwnedFd;
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

    /// Continues as far as possible without waiting. `Break` has the result, and `poll` must not be called again. With
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

/// The doorbell of one session, for a program that waits on descriptors. It takes the place of an async client's
/// driver.
pub struct Doorbell {
    session: Arc<Session>,
}

impl Doorbell {
    /// A descriptor that is readable when [`Doorbell::serve`] must be called. It is a duplicate, and belongs to the
    /// caller.
    ///
    /// # Errors
    /// The system's, if the process has no descriptor left.
    pub fn socket(&self) -> std::io::Result<OwnedFd> {
        self.session.socket().try_clone_to_owned()
    }

    /// Handles all answers that have arrived, wakes their calls, and asks the sidecar to ring for the next one. `false`
    /// if the session is over; the descriptor then stays readable.
    #[must_use]
    pub fn serve(&self) -> bool {
        self.session.serve().is_ok()
    }

    /// The incarnation of the sidecar that this doorbell belongs to. When [`Handle::incarnation`] returns another
    /// number, the program needs a new doorbell.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.session.incarnation()
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.session.driver().detach();
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell").field("incarnation", &self.incarnation()).finish_non_exhaustive()
    }
}

impl Handle<Blocking> {
    /// Handles the sidecar's answers so far, without waiting, so that returned memory of the arena is free. Every call
    /// that waits does the same.
    pub fn take_answers(&self) {
        // If the session is over, the next call reports it.
        let _ = self.session().serve();
    }

    /// Takes the place of a driver: from now on the caller calls [`Doorbell::serve`] when the doorbell's descriptor is
    /// readable, or when `waker` is woken. A session has at most one doorbell in its life.
    pub fn doorbell(&self, waker: Waker) -> Doorbell {
        let session = self.session();
        session.attach_driver(waker);
        Doorbell { session }
    }
}

impl<T> Fetch<Blocking, T> {
    /// Begins the fetch.
    pub fn begin(self) -> Begun<'static, Result<T, Error>>
    where
        T: 'static,
    {
        Begun::new(self.call.session.clone(), self.call)
    }
}

impl<T> FetchOnly<Blocking, T> {
    /// Begins the fetch.
    pub fn begin(self) -> Begun<'static, Result<T, Error>>
    where
        T: 'static,
    {
        Begun::new(self.call.session.clone(), self.call)
    }
}

impl FetchMany<Blocking> {
    /// Begins the fetches.
    pub fn begin(self) -> Begun<'static, Vec<Result<Tensor, Error>>> {
        Begun::new(self.call.session.clone(), self.call)
    }
}

impl<'a> Push<'a, Blocking> {
    /// Begins the push.
    pub fn begin(self) -> Begun<'a, Result<Pushed, PushError>> {
        Begun::new(self.call.session.clone(), self.call)
    }
}

impl Order<Blocking> {
    /// Begins the call.
    pub fn begin(self) -> Begun<'static, Result<(), Error>> {
        Begun::new(self.call.session.clone(), self.call)
    }
}

impl AllocateWait<Blocking> {
    /// Begins the allocation.
    pub fn begin(self) -> Begun<'static, Result<TensorMut, Error>> {
        Begun::new(self.call.session.clone(), self.call)
    }
}

impl<T: 'static> Gate<Blocking, T> {
    /// Begins to take the version back.
    pub fn begin(self) -> Begun<'static, Result<T, Error>> {
        Begun::new(self.call.session.clone(), self.call)
    }
}

impl<T: 'static> Counting<Blocking, T> {
    /// Begins the call.
    pub fn begin(self) -> Begun<'static, Result<T, Error>> {
        Begun::new(self.call.session.clone(), self.call)
    }
}
