//! Allocations that wait for room.

use crate::calls::deadline;
use crate::face::{Async, Blocking, Call, Face, Running, block};
use crate::session::Session;
use crate::{Error, TensorMut};
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::tensor::TensorMeta;

/// An allocation that waits for room: `.await` it, or `.call()` it on a [`crate::BlockingClient`].
#[derive(Debug)]
#[must_use = "nothing is allocated before `.await` or `.call()`"]
pub struct AllocateWait<F> {
    pub(crate) call: AllocateCall,
    face: PhantomData<F>,
}

impl<F: Face> AllocateWait<F> {
    pub(crate) fn new(session: Arc<Session>, meta: Result<TensorMeta, Error>, timeout: Duration) -> Self {
        AllocateWait { call: AllocateCall { session, meta: Some(meta), timeout, started: None }, face: PhantomData }
    }
}

impl IntoFuture for AllocateWait<Async> {
    type Output = Result<TensorMut, Error>;
    type IntoFuture = Running<AllocateCall>;

    fn into_future(self) -> Running<AllocateCall> {
        Running::new(self.call)
    }
}

impl AllocateWait<Blocking> {
    /// Allocates the tensor.
    ///
    /// # Errors
    /// [`Error::ArenaFull`] if there was no room in time, [`Error::TooLargeForArena`], [`Error::Shape`],
    /// [`Error::SidecarGone`].
    pub fn call(self) -> Result<TensorMut, Error> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
}

/// An allocation under way.
#[derive(Debug)]
pub struct AllocateCall {
    pub(crate) session: Arc<Session>,
    meta: Option<Result<TensorMeta, Error>>,
    timeout: Duration,
    started: Option<Instant>,
}

impl Call for AllocateCall {
    type Output = Result<TensorMut, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let meta = match self.meta.take() {
            Some(Ok(meta)) => meta,
            Some(Err(e)) => return ControlFlow::Break(Err(e)),
            None => return ControlFlow::Break(Err(Error::Ended)),
        };
        let now = Instant::now();
        let limit = deadline(*self.started.get_or_insert(now), self.timeout);
        match self.session.allocate_or_wait(meta.len_bytes(), waker, now >= limit) {
            Ok(Some(block)) => ControlFlow::Break(Ok(TensorMut::new(block, meta))),
            Ok(None) => {
                self.meta = Some(Ok(meta));
                ControlFlow::Continue(limit.min(now + Session::ROOM_POLL))
            }
            Err(e) => ControlFlow::Break(Err(e)),
        }
    }

    fn needs_timer(&self) -> bool {
        true
    }
}
