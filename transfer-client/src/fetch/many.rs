//! The fetches of many tensors, with one call and one wait.

use super::call::{FetchCall, look_up};
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
/// landing pool come in [buckets](crate::Fetch::bucket_bytes) beside the others, one version after the other. The time-out is that of
/// all of them together.
pub type FetchMany<C> = Request<C, FetchManyCall>;

impl<C: AnyClient> FetchMany<C> {
    pub(crate) fn new(session: Arc<Session>, keys: Vec<Result<Key, Error>>) -> Self {
        let stage = Stage::New { keys };
        Request::from_call(FetchManyCall { session, options: FetchOptions::new(), limit: None, stage })
    }

    fetch_options!(call.options);
}

/// A batch of fetches under way.
#[derive(Debug)]
pub struct FetchManyCall {
    pub(crate) session: Arc<Session>,
    options: FetchOptions,
    /// The deadline, once it has begun.
    limit: Option<Instant>,
    stage: Stage,
}

type Fetched = Result<Tensor, Error>;

enum Stage {
    New {
        keys: Vec<Result<Key, Error>>,
    },
    Asked(Box<Asked>),
    /// Only the large ones are left.
    Large {
        results: Vec<Fetched>,
        large: Large,
    },
}

struct Asked {
    calls: Calls,
    /// The place of each of them in the batch.
    places: Vec<usize>,
    /// Those that are not sent, because they are not valid or were looked up, by their place in the batch.
    unsent: Vec<(usize, Fetched)>,
    large: Large,
}

/// The fetches of versions that do not fit the landing pool, by their place in the batch. The first one is under way.
#[derive(Default)]
struct Large {
    left: VecDeque<(usize, FetchCall)>,
    ended: Vec<(usize, Fetched)>,
}

impl Large {
    fn has(&self, place: usize) -> bool {
        self.left.iter().any(|(at, _)| *at == place) || self.ended.iter().any(|(at, _)| *at == place)
    }

    /// Goes on. `None` if all have ended.
    fn step(&mut self, waker: &Waker) -> Option<Instant> {
        while let Some((at, fetch)) = self.left.front_mut() {
            match fetch.step(waker) {
                ControlFlow::Continue(until) => return Some(until),
                ControlFlow::Break(fetched) => {
                    self.ended.push((*at, fetched));
                    self.left.pop_front();
                }
            }
        }
        None
    }

    fn needs_timer(&self) -> bool {
        self.left.front().is_some_and(|(_, fetch)| fetch.needs_timer())
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::New { keys } => f.debug_struct("New").field("keys", keys).finish(),
            Stage::Asked(asked) => f.debug_struct("Asked").field("calls", &asked.calls).finish_non_exhaustive(),
            Stage::Large { large, .. } => {
                f.debug_struct("Large").field("left", &large.left.len()).finish_non_exhaustive()
            }
        }
    }
}

impl FetchManyCall {
    fn start(&mut self, keys: Vec<Result<Key, Error>>) -> Stage {
        let started = Instant::now();
        let limit = deadline(started, self.options.timeout);
        self.limit = Some(limit);
        let mut calls = Calls::new(self.session.clone(), started, limit);
        let (mut places, mut unsent) = (Vec::with_capacity(keys.len()), Vec::new());
        calls.reserve(keys.len());
        for (at, key) in keys.into_iter().enumerate() {
            match key {
                Ok(key) => match look_up(&self.session, &key, &self.options) {
                    Some((lease, tensor)) => unsent.push((at, Tensor::new(lease, tensor))),
                    None => {
                        calls.add(self.options.command(key, None), None);
                        places.push(at);
                    }
                },
                Err(error) => unsent.push((at, Err(error))),
            }
        }
        Stage::Asked(Box::new(Asked { calls, places, unsent, large: Large::default() }))
    }

    /// The fetch of a version that does not fit the landing pool, with the time that is left.
    fn begin_large(&self, command: &Command) -> Option<FetchCall> {
        let (Command::Fetch(fetch), Some(limit)) = (command, self.limit) else { return None };
        let options = FetchOptions { timeout: limit.saturating_duration_since(Instant::now()), ..self.options };
        let (session, key) = (self.session.clone(), fetch.key.clone());
        (!options.timeout.is_zero()).then(|| FetchCall::of_large(session, key, options, Tensor::take, large_tensor))
    }

    /// Begins to fetch what does not fit the landing pool, while others are waited for.
    fn begin_refused(&self, asked: &mut Asked, waker: &Waker) {
        for at in asked.calls.refused(waker) {
            let place = asked.places[at];
            if !asked.large.has(place)
                && let Some(fetch) = asked.calls.command(at).and_then(|command| self.begin_large(command))
            {
                asked.large.left.push_back((place, fetch));
            }
        }
    }

    /// Takes what has come.
    fn take(&self, asked: Asked) -> Stage {
        let Asked { mut calls, unsent, mut large, .. } = asked;
        let done = calls.take().map(|(item, ended)| {
            let is_refused = ended.as_ref().is_ok_and(Answered::is_refused);
            let fetched =
                Answered::fetched(ended, &self.session).and_then(|(lease, tensor)| Tensor::new(lease, tensor));
            (fetched, is_refused.then_some(item.command))
        });
        let unsent = unsent.into_iter().map(|(place, result)| (place, (result, None))).collect();
        let mut results = Vec::new();
        for (place, (result, refused)) in merge(done, unsent).into_iter().enumerate() {
            results.push(result);
            if !large.has(place)
                && let Some(fetch) = refused.and_then(|command| self.begin_large(&command))
            {
                large.left.push_back((place, fetch));
            }
        }
        Stage::Large { results, large }
    }
}

impl Call for FetchManyCall {
    type Output = Vec<Fetched>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        loop {
            self.stage = match std::mem::replace(&mut self.stage, Stage::New { keys: Vec::new() }) {
                Stage::New { keys } => self.start(keys),
                Stage::Asked(mut asked) => match asked.calls.step(waker) {
                    ControlFlow::Break(()) => self.take(*asked),
                    ControlFlow::Continue(until) => {
                        self.begin_refused(&mut asked, waker);
                        let until = asked.large.step(waker).map_or(until, |at| at.min(until));
                        self.stage = Stage::Asked(asked);
                        return ControlFlow::Continue(until);
                    }
                },
                Stage::Large { mut results, mut large } => match large.step(waker) {
                    Some(until) => {
                        self.stage = Stage::Large { results, large };
                        return ControlFlow::Continue(until);
                    }
                    None => {
                        large.ended.into_iter().for_each(|(place, fetched)| results[place] = fetched);
                        return ControlFlow::Break(results);
                    }
                },
            }
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::New { .. } => false,
            Stage::Asked(asked) => asked.calls.needs_timer() || asked.large.needs_timer(),
            Stage::Large { large, .. } => large.needs_timer(),
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
