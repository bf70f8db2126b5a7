//! The fetches of many tensors, with one call and one wait.

use super::call::look_up;
use super::options::{FetchOptions, fetch_options};
use super::tensor::Tensor;
use crate::error::Error;
use crate::request::{AnyClient, Call, Request, RequestCall};
use crate::session::{Answered, Calls, Session, deadline, merge};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::tensor::Key;

/// A batch of fetches that is about to be made. Set its options, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. It ends when all fetches have ended, with one result for each, in order.
pub type FetchMany<C> = Request<C, FetchManyCall>;

impl<C: AnyClient> FetchMany<C> {
    pub(crate) fn new(session: Arc<Session>, keys: Vec<Result<Key, Error>>) -> Self {
        let call = FetchManyCall { session, options: FetchOptions::new(), keys, unsent: Vec::new(), calls: None };
        Request::from_call(call)
    }

    fetch_options!(call.options);
}

/// A batch of fetches under way.
#[derive(Debug)]
pub struct FetchManyCall {
    pub(crate) session: Arc<Session>,
    options: FetchOptions,
    keys: Vec<Result<Key, Error>>,
    /// Fetches that are not sent, because they are not valid or were looked up, by their place in the batch.
    unsent: Vec<(usize, Result<Tensor, Error>)>,
    calls: Option<Calls>,
}

impl FetchManyCall {
    fn start(&mut self) -> Calls {
        let started = Instant::now();
        let mut calls = Calls::new(self.session.clone(), started, deadline(started, self.options.timeout));
        let keys = std::mem::take(&mut self.keys);
        calls.reserve(keys.len());
        for (at, key) in keys.into_iter().enumerate() {
            match key {
                Ok(key) => match look_up(&self.session, &key, &self.options) {
                    Some((lease, tensor)) => self.unsent.push((at, Tensor::new(lease, tensor))),
                    None => calls.add(self.options.command(key, None), None),
                },
                Err(error) => self.unsent.push((at, Err(error))),
            }
        }
        calls
    }
}

impl Call for FetchManyCall {
    type Output = Vec<Result<Tensor, Error>>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let mut calls = match self.calls.take() {
            Some(calls) => calls,
            None => self.start(),
        };
        if let ControlFlow::Continue(until) = calls.step(waker) {
            self.calls = Some(calls);
            return ControlFlow::Continue(until);
        }
        let done = calls.take().map(|(_, ended)| {
            let (lease, tensor) = Answered::fetched(ended, &self.session)?;
            Tensor::new(lease, tensor)
        });
        ControlFlow::Break(merge(done, std::mem::take(&mut self.unsent)))
    }

    fn needs_timer(&self) -> bool {
        self.calls.as_ref().is_some_and(Calls::needs_timer)
    }
}

impl RequestCall for FetchManyCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }
}
