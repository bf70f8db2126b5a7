//! The fetches of many tensors, with one call and one wait.

use super::buckets::LargeVersion;
use super::call::{LargeFetch, does_not_fit, look_up};
use super::large::large_tensor;
use super::options::{FetchOptions, fetch_options};
use super::tensor::Tensor;
use crate::error::Error;
use crate::request::{AnyClient, Call, Request, RequestCall};
use crate::session::{Answered, Calls, Session, deadline, merge};
use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::Command;
use transfer_core::tensor::Key;

/// A batch of fetches that is about to be made. Set its options, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. It ends when all fetches have ended, with one result for each, in order. Versions that do not fit the
/// landing pool come in [buckets](crate::Fetch::bucket_bytes), one version after the other; the time-out of these begins when all
/// others have ended.
pub type FetchMany<C> = Request<C, FetchManyCall>;

impl<C: AnyClient> FetchMany<C> {
    pub(crate) fn new(session: Arc<Session>, keys: Vec<Result<Key, Error>>) -> Self {
        let stage = Stage::New { keys };
        Request::from_call(FetchManyCall { session, options: FetchOptions::new(), stage })
    }

    fetch_options!(call.options);
}

/// A batch of fetches under way.
#[derive(Debug)]
pub struct FetchManyCall {
    pub(crate) session: Arc<Session>,
    options: FetchOptions,
    stage: Stage,
}

type Fetched = Result<Tensor, Error>;

enum Stage {
    New {
        keys: Vec<Result<Key, Error>>,
    },
    Asked {
        calls: Calls,
        /// Those that are not sent, because they are not valid or were looked up, by their place in the batch.
        unsent: Vec<(usize, Fetched)>,
    },
    /// These do not fit the landing pool, by their places.
    Large {
        results: Vec<Fetched>,
        left: VecDeque<(usize, LargeFetch<Tensor>)>,
    },
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::New { keys } => f.debug_struct("New").field("keys", keys).finish(),
            Stage::Asked { calls, .. } => f.debug_struct("Asked").field("calls", calls).finish_non_exhaustive(),
            Stage::Large { left, .. } => f.debug_struct("Large").field("left", &left.len()).finish_non_exhaustive(),
        }
    }
}

impl FetchManyCall {
    fn start(&self, keys: Vec<Result<Key, Error>>) -> Stage {
        let started = Instant::now();
        let mut calls = Calls::new(self.session.clone(), started, deadline(started, self.options.timeout));
        let mut unsent = Vec::new();
        calls.reserve(keys.len());
        for (at, key) in keys.into_iter().enumerate() {
            match key {
                Ok(key) => match look_up(&self.session, &key, &self.options) {
                    Some((lease, tensor)) => unsent.push((at, Tensor::new(lease, tensor))),
                    None => calls.add(self.options.command(key, None), None),
                },
                Err(error) => unsent.push((at, Err(error))),
            }
        }
        Stage::Asked { calls, unsent }
    }

    /// Takes what has come, and begins to fetch what does not fit the landing pool.
    fn asked(&self, mut calls: Calls, unsent: Vec<(usize, Fetched)>) -> Stage {
        let done = calls.take().map(|(item, ended)| match Answered::fetched(ended, &self.session) {
            Ok((lease, tensor)) => (Tensor::new(lease, tensor), None),
            Err(e) => (Err(e), Some(item.command)),
        });
        let unsent = unsent.into_iter().map(|(at, result)| (at, (result, None))).collect();
        let (mut results, mut left) = (Vec::new(), VecDeque::new());
        for (at, (result, command)) in merge(done, unsent).into_iter().enumerate() {
            if let (Err(Error::Failed(why)), Some(Command::Fetch(fetch))) = (&result, command)
                && does_not_fit(why)
            {
                // Others may have taken all of the time to find that there is no version.
                let (session, options) = (self.session.clone(), self.options);
                let of = LargeVersion { session, key: fetch.key, options, why: why.clone() };
                left.push_back((at, large_tensor(of, None)));
            }
            results.push(result);
        }
        Stage::Large { results, left }
    }
}

impl Call for FetchManyCall {
    type Output = Vec<Fetched>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        loop {
            self.stage = match std::mem::replace(&mut self.stage, Stage::New { keys: Vec::new() }) {
                Stage::New { keys } => self.start(keys),
                Stage::Asked { mut calls, unsent } => match calls.step(waker) {
                    ControlFlow::Break(()) => self.asked(calls, unsent),
                    ControlFlow::Continue(until) => {
                        self.stage = Stage::Asked { calls, unsent };
                        return ControlFlow::Continue(until);
                    }
                },
                Stage::Large { mut results, mut left } => {
                    let Some((at, fetch)) = left.front_mut() else { return ControlFlow::Break(results) };
                    match fetch.step(waker) {
                        ControlFlow::Break(fetched) => {
                            results[*at] = fetched.map(|(_, tensor)| tensor);
                            left.pop_front();
                            Stage::Large { results, left }
                        }
                        ControlFlow::Continue(until) => {
                            self.stage = Stage::Large { results, left };
                            return ControlFlow::Continue(until);
                        }
                    }
                }
            }
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::New { .. } => false,
            Stage::Asked { calls, .. } => calls.needs_timer(),
            Stage::Large { left, .. } => left.front().is_some_and(|(_, fetch)| fetch.needs_timer()),
        }
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
