//! Ending a key.

use crate::Error;
use crate::calls::{Calls, Ended, deadline};
use crate::face::{Async, Blocking, Call, Face, Running, block};
use crate::options::DEFAULT_TIMEOUT;
use crate::session::{Outcome, Session};
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use transfer_core::op::{Command, OpId};
use transfer_core::tensor::Key;

/// A key to be ended: `.await` it, or `.call()` it on a [`crate::BlockingClient`].
#[derive(Debug)]
#[must_use = "a key is ended by `.await`, or by `.call()`"]
pub struct Delete<F> {
    call: DeleteCall,
    face: PhantomData<F>,
}

impl<F: Face> Delete<F> {
    pub(crate) fn new(session: Arc<Session>, key: Result<Key, Error>) -> Self {
        Delete { call: DeleteCall { session, key: Some(key), calls: None }, face: PhantomData }
    }
}

impl IntoFuture for Delete<Async> {
    type Output = Result<(), Error>;
    type IntoFuture = Running<DeleteCall>;

    fn into_future(self) -> Running<DeleteCall> {
        Running::new(self.call)
    }
}

impl Delete<Blocking> {
    /// Ends the key.
    ///
    /// # Errors
    /// Any [`Error`].
    pub fn call(self) -> Result<(), Error> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
}

/// A key's end under way.
#[derive(Debug)]
pub struct DeleteCall {
    session: Arc<Session>,
    key: Option<Result<Key, Error>>,
    calls: Option<Calls>,
}

impl Call for DeleteCall {
    type Output = Result<(), Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let calls = match (&mut self.calls, self.key.take()) {
            (Some(calls), _) => calls,
            (None, Some(Ok(key))) => {
                let started = Instant::now();
                let mut calls = Calls::new(self.session.clone(), started, deadline(started, DEFAULT_TIMEOUT));
                // The session numbers it.
                calls.add(Command::Delete { op: OpId(0), key }, None);
                self.calls.insert(calls)
            }
            (None, Some(Err(e))) => return ControlFlow::Break(Err(e)),
            (None, None) => return ControlFlow::Break(Err(Error::Ended)),
        };
        calls.step(waker).map_break(|()| match calls.take().next() {
            Some((_, Ended::Answered(Outcome::Deleted))) => Ok(()),
            Some((_, Ended::Answered(Outcome::Failed { failure, .. }))) => Err(failure.into()),
            Some((_, Ended::Answered(Outcome::Gone(gone)))) => Err(gone.into()),
            Some((_, Ended::NotSent(error))) => Err(error),
            Some((_, Ended::NoAnswer { waited })) => Err(Error::NoAnswer { waited }),
            // The table lets no other answer pass.
            Some((_, Ended::Answered(_))) | None => Err(Error::Ended),
        })
    }

    fn needs_timer(&self) -> bool {
        self.calls.as_ref().is_some_and(Calls::needs_timer)
    }
}
