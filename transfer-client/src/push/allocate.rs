//! Allocations that wait for room.

use crate::error::Error;
use crate::memory::TensorMut;
use crate::request::{AnyClient, Call, DEFAULT_TIMEOUT, Request, RequestCall};
use crate::session::{Session, deadline};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::tensor::{DType, TensorMeta};

/// Allocates a tensor.
pub(crate) fn allocate(session: &Session, dtype: DType, dims: &[u64]) -> Result<TensorMut, Error> {
    let meta = TensorMeta::of(dtype, dims)?;
    Ok(TensorMut::new(session.allocate(meta.len_bytes())?, meta))
}

/// An allocation that waits for room: `.await` it, or `.call()` it on a [`BlockingClient`](crate::BlockingClient).
///
/// # Errors
/// [`Error::ArenaFull`] after the time-out, [`Error::TooLargeForArena`], [`Error::Shape`], [`Error::SidecarGone`].
pub type AllocateWait<C> = Request<C, AllocateCall>;

impl<C: AnyClient> AllocateWait<C> {
    pub(crate) fn new(session: Arc<Session>, dtype: DType, dims: &[u64]) -> Self {
        let meta = TensorMeta::of(dtype, dims).map_err(Error::from);
        Request::from_call(AllocateCall { session, meta, timeout: DEFAULT_TIMEOUT, started: None })
    }
}

/// An allocation under way.
#[derive(Debug)]
pub struct AllocateCall {
    session: Arc<Session>,
    meta: Result<TensorMeta, Error>,
    timeout: Duration,
    started: Option<Instant>,
}

impl Call for AllocateCall {
    type Output = Result<TensorMut, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let meta = match &self.meta {
            Ok(meta) => meta,
            Err(e) => return ControlFlow::Break(Err(e.clone())),
        };
        let now = Instant::now();
        let limit = deadline(*self.started.get_or_insert(now), self.timeout);
        match self.session.allocate_or_wait(meta.len_bytes(), waker, now >= limit) {
            Ok(Some(block)) => ControlFlow::Break(Ok(TensorMut::new(block, meta.clone()))),
            Ok(None) => ControlFlow::Continue(self.session.room_limit(now, limit)),
            Err(e) => ControlFlow::Break(Err(e)),
        }
    }

    fn needs_timer(&self) -> bool {
        true
    }
}

impl RequestCall for AllocateCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}
