//! Calls without a result: deleting a key, and preparing a push.

use crate::error::Error;
use crate::request::{AnyClient, Call, DEFAULT_TIMEOUT, Request, RequestCall};
use crate::session::{OneCall, Session};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, Command};

/// A call without a result: `.await` it, or `.call()` it on a [`BlockingClient`](crate::BlockingClient).
pub type Order<C> = Request<C, OrderCall>;

impl<C: AnyClient> Order<C> {
    /// Makes the call. `command` gets its time-out later.
    pub(crate) fn new(session: Arc<Session>, command: Result<Command, Error>) -> Self {
        Request::from_call(OrderCall { session, command, timeout: DEFAULT_TIMEOUT, call: None })
    }
}

/// A call without a result under way.
#[derive(Debug)]
pub struct OrderCall {
    session: Arc<Session>,
    command: Result<Command, Error>,
    timeout: Duration,
    call: Option<OneCall>,
}

impl Call for OrderCall {
    type Output = Result<(), Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let call = match (&mut self.call, &self.command) {
            (Some(call), _) => call,
            (call @ None, Ok(command)) => {
                let mut command = command.clone();
                if let Command::Reserve(reserve) = &mut command {
                    reserve.timeout = self.timeout;
                }
                call.insert(OneCall::begin(self.session.clone(), command, self.timeout))
            }
            (None, Err(e)) => return ControlFlow::Break(Err(e.clone())),
        };
        call.step(waker)
            .map_break(|ended| ended?.read(|answer| matches!(answer, Answer::Deleted | Answer::Reserved).then_some(())))
    }

    fn needs_timer(&self) -> bool {
        self.call.as_ref().is_some_and(OneCall::needs_timer)
    }
}

impl RequestCall for OrderCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}
