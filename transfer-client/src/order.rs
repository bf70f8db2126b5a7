//! Calls without a result: deleting a key, and preparing a push.

use crate::Error;
use crate::calls::{Calls, deadline};
use crate::face::{Async, Blocking, Call, Face, Running, block};
use crate::options::DEFAULT_TIMEOUT;
use crate::session::{Answered, Session};
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, Command};

/// A call without a result: `.await` it, or `.call()` it on a [`crate::BlockingClient`].
#[derive(Debug)]
#[must_use = "a call is made by `.await`, or by `.call()`"]
pub struct Order<F> {
    pub(crate) call: OrderCall,
    face: PhantomData<F>,
}

impl<F: Face> Order<F> {
    /// Makes the call. `command` gets its time-out later.
    pub(crate) fn new(session: Arc<Session>, command: Result<Command, Error>) -> Self {
        let call = OrderCall { session, command: Some(command), timeout: DEFAULT_TIMEOUT, calls: None };
        Order { call, face: PhantomData }
    }

    /// The time-out of the call, 30 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.call.timeout = timeout;
        self
    }
}

impl IntoFuture for Order<Async> {
    type Output = Result<(), Error>;
    type IntoFuture = Running<OrderCall>;

    fn into_future(self) -> Running<OrderCall> {
        Running::new(self.call)
    }
}

impl Order<Blocking> {
    /// Makes the call.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn call(self) -> Result<(), Error> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
}

/// A call under way.
#[derive(Debug)]
pub struct OrderCall {
    pub(crate) session: Arc<Session>,
    command: Option<Result<Command, Error>>,
    timeout: Duration,
    calls: Option<Calls>,
}

impl Call for OrderCall {
    type Output = Result<(), Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let calls = match (&mut self.calls, self.command.take()) {
            (Some(calls), _) => calls,
            (None, Some(Ok(mut command))) => {
                if let Command::Prepare(prepare) = &mut command {
                    prepare.timeout = self.timeout;
                }
                let started = Instant::now();
                let mut calls = Calls::new(self.session.clone(), started, deadline(started, self.timeout));
                calls.add(command, None);
                self.calls.insert(calls)
            }
            (None, Some(Err(e))) => return ControlFlow::Break(Err(e)),
            (None, None) => return ControlFlow::Break(Err(Error::Ended)),
        };
        calls.step(waker).map_break(|()| match calls.take_one().and_then(Answered::success)? {
            Answer::Deleted | Answer::Prepared => Ok(()),
            // The table only passes answers of this kind.
            _ => Err(Error::Ended),
        })
    }

    fn needs_timer(&self) -> bool {
        self.calls.as_ref().is_some_and(Calls::needs_timer)
    }
}
