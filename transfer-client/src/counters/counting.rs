//! Calls about counters and barriers.

use crate::error::Error;
use crate::request::{AnyClient, Call, DEFAULT_TIMEOUT, Request, RequestCall};
use crate::session::{OneCall, Session};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, Command, CounterAsk, CounterCommand};
use transfer_core::tensor::Name;

/// A call on a counter or a barrier that returns a `T`: `.await` it, or `.call()` it on a
/// [`BlockingClient`](crate::BlockingClient).
pub type Counting<C, T> = Request<C, CountingCall<T>>;

/// Converts the sidecar's answer. `None` for an answer of another kind.
type Take<T> = Box<dyn Fn(Answer) -> Option<T> + Send>;

impl<C: AnyClient, T> Counting<C, T> {
    pub(crate) fn new(
        session: &Arc<Session>,
        name: Result<Name, Error>,
        ask: CounterAsk,
        take: impl Fn(Answer) -> Option<T> + Send + 'static,
    ) -> Self {
        let asked = name.map(|name| (name, ask));
        let (session, timeout, take) = (session.clone(), DEFAULT_TIMEOUT, Box::new(take));
        Request::from_call(CountingCall { session, asked, timeout, call: None, take })
    }
}

/// A call on a counter or a barrier under way.
pub struct CountingCall<T> {
    session: Arc<Session>,
    asked: Result<(Name, CounterAsk), Error>,
    timeout: Duration,
    call: Option<OneCall>,
    take: Take<T>,
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
        let call = match (&mut self.call, &self.asked) {
            (Some(call), _) => call,
            (call @ None, Ok((name, ask))) => {
                let (name, ask, timeout) = (name.clone(), ask.clone(), self.timeout);
                let command = Command::Counter(CounterCommand { name, ask, timeout });
                call.insert(OneCall::begin(self.session.clone(), command, timeout))
            }
            (None, Err(e)) => return ControlFlow::Break(Err(e.clone())),
        };
        call.step(waker).map_break(|ended| ended?.read(&self.take))
    }

    fn needs_timer(&self) -> bool {
        self.call.as_ref().is_some_and(OneCall::needs_timer)
    }
}

impl<T> RequestCall for CountingCall<T> {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}
