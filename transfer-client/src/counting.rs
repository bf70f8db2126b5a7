//! Calls about counters and barriers.

use crate::Error;
use crate::calls::{Calls, deadline};
use crate::face::{Async, Blocking, Call, Face, Running, block};
use crate::options::DEFAULT_TIMEOUT;
use crate::session::{Answered, Session};
use std::fmt;
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, Command, CounterAsk, CounterCommand};
use transfer_core::tensor::Name;

/// A call on a counter or a barrier that returns a `T`: `.await` it, or `.call()` it on a [`crate::BlockingClient`].
#[derive(Debug)]
#[must_use = "a call is made by `.await`, or by `.call()`"]
pub struct Counting<F, T> {
    pub(crate) call: CountingCall<T>,
    face: PhantomData<F>,
}

/// Converts the sidecar's answer. `None` for an answer of another kind.
type Take<T> = Box<dyn FnOnce(Answer) -> Option<T> + Send>;

impl<F: Face, T> Counting<F, T> {
    pub(crate) fn new(
        session: &Arc<Session>,
        name: Result<Name, Error>,
        ask: CounterAsk,
        take: impl FnOnce(Answer) -> Option<T> + Send + 'static,
    ) -> Self {
        let (session, timeout) = (session.clone(), DEFAULT_TIMEOUT);
        let asked = Some(name.map(|name| (name, ask)));
        let call = CountingCall { session, asked, timeout, calls: None, take: Some(Box::new(take)) };
        Counting { call, face: PhantomData }
    }

    /// The time-out of the call, 30 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.call.timeout = timeout;
        self
    }
}

impl<T> IntoFuture for Counting<Async, T> {
    type Output = Result<T, Error>;
    type IntoFuture = Running<CountingCall<T>>;

    fn into_future(self) -> Running<CountingCall<T>> {
        Running::new(self.call)
    }
}

impl<T> Counting<Blocking, T> {
    /// Makes the call.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn call(self) -> Result<T, Error> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
}

/// A call under way.
pub struct CountingCall<T> {
    pub(crate) session: Arc<Session>,
    asked: Option<Result<(Name, CounterAsk), Error>>,
    timeout: Duration,
    calls: Option<Calls>,
    take: Option<Take<T>>,
}

impl<T> fmt::Debug for CountingCall<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CountingCall { asked, timeout, .. } = self;
        f.debug_struct("CountingCall").field("asked", asked).field("timeout", timeout).finish_non_exhaustive()
    }
}

impl<T> Call for CountingCall<T> {
    type Output = Result<T, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let calls = match (&mut self.calls, self.asked.take()) {
            (Some(calls), _) => calls,
            (None, Some(Ok((name, ask)))) => {
                let started = Instant::now();
                let mut calls = Calls::new(self.session.clone(), started, deadline(started, self.timeout));
                calls.add(Command::Counter(CounterCommand { name, ask, timeout: self.timeout }), None);
                self.calls.insert(calls)
            }
            (None, Some(Err(e))) => return ControlFlow::Break(Err(e)),
            (None, None) => return ControlFlow::Break(Err(Error::Ended)),
        };
        calls.step(waker).map_break(|()| {
            let answer = calls.take_one().and_then(Answered::success)?;
            // The table only passes answers of the kind that was asked for.
            self.take.take().and_then(|take| take(answer)).ok_or(Error::Ended)
        })
    }

    fn needs_timer(&self) -> bool {
        self.calls.as_ref().is_some_and(Calls::needs_timer)
    }
}
