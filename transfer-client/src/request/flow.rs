//! Calls that consist of many calls: a future of the calls of one session, for both clients.
//!
//! A future of this module needs no runtime. Whoever polls it gives it a waker, and asks when to poll it again in any
//! case; so one text serves the async client, the blocking client, and calls that are waited for in slices.

use super::{AnyClient, BlockingClient, Call, DEFAULT_TIMEOUT, Request, RequestCall};
use crate::error::Error;
use crate::session::{Session, deadline};
use parking_lot::Mutex;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The most calls of one flow that are under way at the same time.
pub(crate) const AT_ONCE: usize = 64;

/// The longest time after which a flow is polled again.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The time-out of flows that are parts of other calls.
const LONG: Duration = Duration::from_secs(3600);

/// The time of a flow.
#[derive(Debug)]
struct Times {
    timeout: Duration,
    started: Option<Instant>,
    /// The earliest moment at which one of the calls has to be polled again.
    again: Option<Instant>,
}

/// The session of a flow, and its time. Every call of the flow is made by it.
#[derive(Debug, Clone)]
pub(crate) struct Io {
    session: Arc<Session>,
    times: Arc<Mutex<Times>>,
}

impl Io {
    fn new(session: Arc<Session>) -> Io {
        let times = Times { timeout: DEFAULT_TIMEOUT, started: None, again: None };
        Io { session, times: Arc::new(Mutex::new(times)) }
    }

    pub(crate) fn session(&self) -> Arc<Session> {
        self.session.clone()
    }

    /// The deadline of the flow. Its time begins with the first call of this function.
    pub(crate) fn limit(&self) -> Instant {
        let mut times = self.times.lock();
        let started = *times.started.get_or_insert_with(Instant::now);
        deadline(started, times.timeout)
    }

    /// The time that is left until the deadline, at most this much.
    pub(crate) fn left(&self, at_most: Duration) -> Duration {
        self.limit().saturating_duration_since(Instant::now()).min(at_most)
    }

    /// The time-out of the flow.
    pub(crate) fn timeout(&self) -> Duration {
        self.times.lock().timeout
    }

    /// Asks to be polled at this moment in any case.
    pub(crate) fn poll_at(&self, at: Instant) {
        let mut times = self.times.lock();
        times.again = Some(times.again.map_or(at, |again| again.min(at)));
    }

    /// Makes a call.
    pub(crate) async fn run<C: Call>(&self, mut call: C) -> C::Output {
        poll_fn(|cx| match call.step(cx.waker()) {
            ControlFlow::Break(output) => Poll::Ready(output),
            ControlFlow::Continue(at) => {
                self.poll_at(at);
                Poll::Pending
            }
        })
        .await
    }

    /// Sleeps until this moment.
    pub(crate) async fn sleep_until(&self, at: Instant) {
        poll_fn(|_| match Instant::now() >= at {
            true => Poll::Ready(()),
            false => {
                self.poll_at(at);
                Poll::Pending
            }
        })
        .await;
    }

    /// Runs all these futures, [`AT_ONCE`] at a time. Their results are in the same order.
    pub(crate) async fn all<T, U: Future>(
        &self,
        items: impl IntoIterator<Item = T>,
        make: impl Fn(T) -> U,
    ) -> Vec<U::Output> {
        let mut items = items.into_iter().peekable();
        let mut done = Vec::new();
        while items.peek().is_some() {
            let mut running: Vec<_> =
                items.by_ref().take(AT_ONCE).map(|item| Either::Runs(Box::pin(make(item)))).collect();
            poll_fn(|cx| {
                let pending = running.iter_mut().map(|one| one.poll(cx)).filter(|ended| !ended).count();
                if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            done.extend(running.into_iter().filter_map(Either::into_output));
        }
        done
    }
}

impl Io {
    /// Runs all these futures, `at_once` at a time, and takes the result of each as it comes. Ends with the first error.
    pub(crate) async fn each<T, U: Future>(
        &self,
        items: impl IntoIterator<Item = T>,
        at_once: usize,
        make: impl Fn(T) -> U,
        mut take: impl FnMut(U::Output) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut items = items.into_iter();
        let mut running: Vec<_> = items.by_ref().take(at_once).map(|item| Box::pin(make(item))).collect();
        while !running.is_empty() {
            let (at, output) = poll_fn(|cx| {
                for (at, one) in running.iter_mut().enumerate() {
                    if let Poll::Ready(output) = one.as_mut().poll(cx) {
                        return Poll::Ready((at, output));
                    }
                }
                Poll::Pending
            })
            .await;
            // The next one is on its way while this one is taken.
            match items.next() {
                Some(item) => running[at] = Box::pin(make(item)),
                None => drop(running.swap_remove(at)),
            }
            take(output)?;
        }
        Ok(())
    }
}

/// A future, or its output.
enum Either<U: Future> {
    Runs(Pin<Box<U>>),
    Ended(U::Output),
}

impl<U: Future> Either<U> {
    /// Polls the future. Returns whether it has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if let Either::Runs(future) = self {
            match future.as_mut().poll(cx) {
                Poll::Ready(output) => *self = Either::Ended(output),
                Poll::Pending => return false,
            }
        }
        true
    }

    fn into_output(self) -> Option<U::Output> {
        match self {
            Either::Ended(output) => Some(output),
            Either::Runs(_) => None,
        }
    }
}

/// A future of calls of one session, as a call.
pub struct Flow<T> {
    io: Io,
    future: Option<Steps<T>>,
}

type Steps<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

impl<T> Flow<T> {
    pub(crate) fn new<U>(session: Arc<Session>, make: impl FnOnce(Io) -> U) -> Flow<T>
    where
        U: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let io = Io::new(session);
        Flow { future: Some(Box::pin(make(io.clone()))), io }
    }

    /// Makes it a part of other calls, whose time-outs count.
    pub(crate) fn for_long(mut self) -> Self {
        self.set_timeout(LONG);
        self
    }

    /// Runs on this thread.
    pub(crate) fn block(self) -> Result<T, Error> {
        Request::<BlockingClient, _>::from_call(self).call()
    }
}

impl<T> Call for Flow<T> {
    type Output = Result<T, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        self.io.times.lock().again = None;
        // After its end it has no other result.
        let Some(future) = &mut self.future else { return ControlFlow::Continue(Instant::now() + LONGEST_WAIT) };
        match future.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(output) => {
                self.future = None;
                ControlFlow::Break(output)
            }
            Poll::Pending => {
                let again = self.io.times.lock().again;
                ControlFlow::Continue(again.unwrap_or_else(|| Instant::now() + LONGEST_WAIT))
            }
        }
    }

    fn needs_timer(&self) -> bool {
        true
    }
}

impl<T> RequestCall for Flow<T> {
    fn session(&self) -> &Arc<Session> {
        &self.io.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.io.times.lock().timeout = timeout;
    }
}

impl<T> fmt::Debug for Flow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").finish_non_exhaustive()
    }
}

/// A call that consists of many calls and returns a `T`: `.await` it, or `.call()` it on a [`crate::BlockingClient`].
pub type FlowCall<C, T> = Request<C, Flow<T>>;

impl<C: AnyClient, T> FlowCall<C, T> {
    pub(crate) fn new<U>(session: Arc<Session>, make: impl FnOnce(Io) -> U) -> Self
    where
        U: Future<Output = Result<T, Error>> + Send + 'static,
    {
        Request::from_call(Flow::new(session, make))
    }
}
