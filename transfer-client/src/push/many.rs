//! The pushes of many tensors, with one call and one wait.

use super::call::{PushError, Pushed, conclude};
use super::options::{PushOptions, push_options};
use crate::error::Error;
use crate::memory::TensorMut;
use crate::request::{AnyClient, Call, Request, RequestCall};
use crate::session::{Calls, Held, Session, deadline, merge};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::Command;
use transfer_core::tensor::{Key, TensorMeta};

/// A batch of pushes that is about to be made. Set its options, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. It ends when all pushes have ended, with one result for each, in order.
pub type PushMany<C> = Request<C, PushManyCall>;

impl<C: AnyClient> PushMany<C> {
    pub(crate) fn new(session: Arc<Session>, items: Vec<(Result<Key, Error>, TensorMut)>) -> Self {
        let (options, refused, metas) = (PushOptions::new(), Vec::new(), Vec::new());
        Request::from_call(PushManyCall { session, options, items, refused, metas, calls: None })
    }

    push_options!(call.options);
}

/// A batch of pushes under way.
#[derive(Debug)]
pub struct PushManyCall {
    session: Arc<Session>,
    options: PushOptions,
    items: Vec<(Result<Key, Error>, TensorMut)>,
    /// Pushes that are not sent, by their place in the batch.
    refused: Vec<(usize, Result<Pushed, PushError>)>,
    /// The descriptions of those that are sent, in order.
    metas: Vec<TensorMeta>,
    calls: Option<Calls>,
}

impl PushManyCall {
    fn start(&mut self) -> Calls {
        let started = Instant::now();
        let mut calls = Calls::new(self.session.clone(), started, deadline(started, self.options.timeout));
        let items = std::mem::take(&mut self.items);
        calls.reserve(items.len());
        for (at, (key, tensor)) in items.into_iter().enumerate() {
            let checked = match &self.options.error {
                Some(error) => Err(error.clone()),
                None => key.and_then(|key| self.session.check_arena(&tensor).map(|()| key)),
            };
            match checked {
                Ok(key) => {
                    let (block, meta) = tensor.into_parts();
                    let offset = block.slice().offset;
                    let push = self.options.push(key, meta.clone(), offset, self.options.timeout);
                    self.metas.push(meta);
                    calls.add(Command::Push(push), Some(Held::Own(block)));
                }
                Err(error) => self.refused.push((at, Err(PushError::new(error, Some(tensor))))),
            }
        }
        calls
    }
}

impl Call for PushManyCall {
    type Output = Vec<Result<Pushed, PushError>>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let mut calls = match self.calls.take() {
            Some(calls) => calls,
            None => self.start(),
        };
        if let ControlFlow::Continue(until) = calls.step(waker) {
            self.calls = Some(calls);
            return ControlFlow::Continue(until);
        }
        let done = calls.take().zip(std::mem::take(&mut self.metas));
        let done = done.map(|((item, ended), meta)| conclude(&self.session, meta, item.held, ended));
        ControlFlow::Break(merge(done, std::mem::take(&mut self.refused)))
    }

    fn needs_timer(&self) -> bool {
        self.calls.as_ref().is_some_and(Calls::needs_timer)
    }
}

impl RequestCall for PushManyCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout = timeout;
    }
}
