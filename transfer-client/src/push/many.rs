//! The pushes of many tensors, with one call and one wait.

use super::call::{PushCall, PushError, Pushed, conclude};
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
use transfer_core::tensor::{Digest, Key, TensorMeta};

/// A batch of pushes that is about to be made. Set its options, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. It ends when all pushes have ended, with one result for each, in order.
pub type PushMany<C> = Request<C, PushManyCall>;

impl<C: AnyClient> PushMany<C> {
    pub(crate) fn new(session: Arc<Session>, items: Vec<(Result<Key, Error>, TensorMut)>) -> Self {
        let (options, refused, metas) = (PushOptions::new(), Vec::new(), Vec::new());
        Request::from_call(PushManyCall { session, options, items, refused, metas, calls: None, each: None })
    }

    push_options!(call.options);

    /// Makes digests of each version; see [`Push::digest`](crate::Push::digest).
    pub fn digest(mut self, digest: Digest) -> Self {
        self.call.options.digesting.kind = Some(digest);
        self
    }
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
    /// The pushes of a batch with digests: each is gathered by itself, and may wait for room for them. Also those of a batch that
    /// begins while deltas are made: each waits for earlier pushes of its key.
    each: Option<Vec<One>>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each push, and every push comes to its largest")]
enum One {
    Runs(PushCall<'static>),
    Ended(Result<Pushed, PushError>),
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

    /// Whether each push goes by itself.
    fn is_of_each(&self) -> bool {
        self.options.digesting.is_asked()
            || self.each.is_some()
            || (self.calls.is_none() && self.session.has_any_background())
    }

    /// Goes on with a batch whose pushes go by themselves.
    fn step_each(&mut self, waker: &Waker) -> ControlFlow<Vec<Result<Pushed, PushError>>, Instant> {
        let mut pushes = self.each.take().unwrap_or_else(|| {
            let started = Instant::now();
            let push = |item| One::Runs(PushCall::of_batch(self.session.clone(), item, &self.options, started));
            std::mem::take(&mut self.items).into_iter().map(push).collect()
        });
        let mut until: Option<Instant> = None;
        for one in &mut pushes {
            let One::Runs(push) = one else { continue };
            match push.step(waker) {
                ControlFlow::Break(ended) => *one = One::Ended(ended),
                ControlFlow::Continue(at) => {
                    until = Some(until.map_or(at, |until| until.min(at)));
                    // The others wait behind it, so that those of one key keep their order.
                    if push.is_unsent() {
                        break;
                    }
                }
            }
        }
        if let Some(until) = until {
            self.each = Some(pushes);
            return ControlFlow::Continue(until);
        }
        let ended = |one| match one {
            One::Ended(ended) => Some(ended),
            One::Runs(_) => None,
        };
        ControlFlow::Break(pushes.into_iter().filter_map(ended).collect())
    }
}

impl Call for PushManyCall {
    type Output = Vec<Result<Pushed, PushError>>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        if self.is_of_each() {
            return self.step_each(waker);
        }
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
        self.each.is_some() || self.calls.as_ref().is_some_and(Calls::needs_timer)
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
