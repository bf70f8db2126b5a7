//! A call under way, and how it is waited for.

use crate::session::Session;
use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// A call that waits without the sidecar is asked again after this time.
const WATCH_INTERVAL: Duration = Duration::from_secs(3600);

/// A call under way. Dropping it gives it up.
pub trait Call: Unpin {
    /// The result of the call.
    type Output;

    /// Continues as far as possible. `Continue(at)`: `waker` is woken when the call can continue, and `step` must be
    /// called again at `at` in any case. After `Break` it must not be called again: the call has no other result.
    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant>;

    /// Waits without asking the sidecar, at most for `time`, if this call can. The caller does nothing else until the call
    /// has ended.
    fn watch(&mut self, _time: Duration) -> Watched<Self::Output> {
        Watched::Steps
    }

    /// Asks for the end of the call. A call that writes into the caller's memory still has its result, soon; others are given
    /// up by dropping them, and ignore this.
    fn cancel(&mut self) {}

    /// Whether that moment must be met exactly. If not, the client's driver, which looks every second, is enough.
    fn needs_timer(&self) -> bool;
}

/// A call that a request makes.
pub trait RequestCall: Call {
    /// The session that it belongs to.
    fn session(&self) -> &Arc<Session>;

    /// Sets the time-out, before the first step.
    fn set_timeout(&mut self, timeout: Duration);
}

/// The end of [`Call::watch`].
#[derive(Debug)]
pub enum Watched<T> {
    /// The result.
    Ended(T),
    /// The call still waits.
    Waits,
    /// The call goes on with steps.
    Steps,
}

/// Makes a call on this thread.
pub(crate) fn block<C: Call>(session: &Session, mut call: C) -> C::Output {
    loop {
        match call.watch(WATCH_INTERVAL) {
            Watched::Ended(output) => return output,
            Watched::Waits => {}
            Watched::Steps => break,
        }
    }
    session.block_on(|waker| call.step(waker))
}

/// A call that is awaited. Dropping it gives the call up, and a late result is released.
#[must_use = "a future does nothing unless it is awaited"]
pub struct RequestFuture<C> {
    call: C,
    timer: Option<Pin<Box<Sleep>>>,
    /// The result was returned. The future is pending for ever from then on.
    has_ended: bool,
}

impl<C> RequestFuture<C> {
    pub(crate) fn new(call: C) -> RequestFuture<C> {
        RequestFuture { call, timer: None, has_ended: false }
    }
}

impl<C: Call> Future for RequestFuture<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        // A look-up is ready at once. So a task that does nothing else must yield to others of its thread.
        let turn = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        let RequestFuture { call, timer, has_ended } = &mut *self;
        if *has_ended {
            return Poll::Pending;
        }
        loop {
            let at = match call.step(cx.waker()) {
                ControlFlow::Break(output) => {
                    *has_ended = true;
                    turn.made_progress();
                    return Poll::Ready(output);
                }
                ControlFlow::Continue(_) if !call.needs_timer() => return Poll::Pending,
                ControlFlow::Continue(at) => at.into(),
            };
            let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
            timer.as_mut().reset(at);
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl<C> fmt::Debug for RequestFuture<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFuture").finish_non_exhaustive()
    }
}
