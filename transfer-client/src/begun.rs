//! Calls of a blocking client that are begun now and waited for later, in slices: for bindings to languages that look for signals between
//! the slices, or that wait on descriptors of their own.
//!
//! A program that waits on descriptors does what the driver of an async client does: it watches [`Doorbell::socket`], and calls
//! [`Doorbell::serve`] when that is readable. The wakers of its calls run in there.

use crate::face::{Blocking, Call};
use crate::session::Session;
use crate::{
    AllocateWait, Counting, Error, Fetch, FetchMany, Gate, Handle, Order, Push, PushError, Pushed, Tensor, TensorMut,
};
use rustix::fd::OwnedFd;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// A call that was begun. Dropping it gives the call up: what it may still bring is released.
#[must_use = "a call that is dropped is given up"]
pub struct Begun<'a, T> {
    session: Arc<Session>,
    call: Box<dyn Call<Output = T> + Send + 'a>,
}

impl<'a, T> Begun<'a, T> {
    pub(crate) fn new(session: Arc<Session>, call: impl Call<Output = T> + Send + 'a) -> Self {
        Begun { session, call: Box::new(call) }
    }

    /// Goes on as far as it can without waiting. `Break`: what it ended with; it must not be asked again. `Continue`: `waker` is woken when it
    /// can go on, and at that moment it is to be called anyway.
    pub fn poll(&mut self, waker: &Waker) -> ControlFlow<T, Instant> {
        self.call.step(waker)
    }

    /// Waits for it, at most for `time`. `None` where it has not ended by then: it goes on, and can be waited for again.
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

/// What a program that waits on descriptors watches, of one session: the place of an async client's driver.
pub struct Doorbell {
    session: Arc<Session>,
}

impl Doorbell {
    /// A descriptor that is readable when [`Doorbell::serve`] is to be called. It is a duplicate, which is the caller's.
    ///
    /// # Errors
    /// Where there are no more descriptors.
    pub fn socket(&self) -> std::io::Result<OwnedFd> {
        self.session.socket().try_clone_to_owned()
    }

    /// Takes all answers that are there, wakes their calls, and asks to be rung for what comes. `false`: the session is over, and the
    /// descriptor stays readable for ever.
    #[must_use]
    pub fn serve(&self) -> bool {
        self.session.serve().is_ok()
    }

    /// Which run of the sidecar it belongs to. Once [`Handle::incarnation`] says another one, another doorbell is needed.
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
    /// Takes what the sidecar has said, and waits for nothing: what came back to the arena is free then. Any call that waits does the same.
    pub fn take_answers(&self) {
        // Where the session is over, the next call says so.
        let _ = self.session().serve();
    }

    /// Takes the place of a driver: from now on somebody calls [`Doorbell::serve`] when the doorbell's descriptor is readable, or when
    /// `waker` is woken. One session has one doorbell in its life.
    pub fn doorbell(&self, waker: Waker) -> Doorbell {
        let session = self.session();
        session.driver().attach(waker);
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

impl Gate<Blocking> {
    /// Begins to take it back.
    pub fn begin(self) -> Begun<'static, Result<TensorMut, Error>> {
        Begun::new(self.call.session.clone(), self.call)
    }
}

impl<T: 'static> Counting<Blocking, T> {
    /// Begins the call.
    pub fn begin(self) -> Begun<'static, Result<T, Error>> {
        Begun::new(self.call.session.clone(), self.call)
    }
}
