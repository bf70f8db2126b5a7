//! Batches: many tensors with one call and one wait.

use crate::calls::{Calls, deadline};
use crate::face::{Async, Blocking, Call, Face, Running, block};
use crate::fetch::{self, FetchOptions, Taking, fetch_options};
use crate::options::{PushOptions, push_options};
use crate::push;
use crate::session::{Held, Session};
use crate::{Error, PushError, Pushed, Tensor, TensorMut};
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use transfer_core::tensor::Key;

/// A batch of pushes that is about to be made. Set its options, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. It ends when all pushes have ended, with one result for each, in order.
#[derive(Debug)]
#[must_use = "pushes are made by `.await`, or by `.call()`"]
pub struct PushMany<F> {
    call: PushManyCall,
    face: PhantomData<F>,
}

impl<F: Face> PushMany<F> {
    pub(crate) fn new(session: Arc<Session>, items: Vec<(Result<Key, Error>, TensorMut)>) -> Self {
        let call = PushManyCall { session, options: PushOptions::new(), items, refused: Vec::new(), calls: None };
        PushMany { call, face: PhantomData }
    }

    push_options!(call.options);
}

impl IntoFuture for PushMany<Async> {
    type Output = Vec<Result<Pushed, PushError>>;
    type IntoFuture = Running<PushManyCall>;

    fn into_future(self) -> Running<PushManyCall> {
        Running::new(self.call)
    }
}

impl PushMany<Blocking> {
    /// Makes the pushes.
    pub fn call(self) -> Vec<Result<Pushed, PushError>> {
        let session = self.call.session.clone();
        block(&session, self.call)
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
                None => key.and_then(|key| push::check_arena(&self.session, &tensor).map(|()| key)),
            };
            match checked {
                Ok(key) => {
                    let (block, meta) = tensor.into_parts();
                    let command = self.options.command(key, meta, block.slice().offset, self.options.timeout);
                    calls.add(command, Some(Held::Own(block)));
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
        let done = calls.take().map(|(item, ended)| push::conclude(&self.session, item, ended));
        ControlFlow::Break(merge(done, std::mem::take(&mut self.refused)))
    }

    fn needs_timer(&self) -> bool {
        self.calls.as_ref().is_some_and(Calls::needs_timer)
    }
}

/// A batch of fetches that is about to be made. Set its options, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. It ends when all fetches have ended, with one result for each, in order.
#[derive(Debug)]
#[must_use = "fetches are made by `.await`, or by `.call()`"]
pub struct FetchMany<F> {
    pub(crate) call: FetchManyCall,
    face: PhantomData<F>,
}

impl<F: Face> FetchMany<F> {
    pub(crate) fn new(session: Arc<Session>, keys: Vec<Result<Key, Error>>) -> Self {
        let call = FetchManyCall { session, options: FetchOptions::new(), keys, unsent: Vec::new(), calls: None };
        FetchMany { call, face: PhantomData }
    }

    fetch_options!(call.options);
}

impl IntoFuture for FetchMany<Async> {
    type Output = Vec<Result<Tensor, Error>>;
    type IntoFuture = Running<FetchManyCall>;

    fn into_future(self) -> Running<FetchManyCall> {
        Running::new(self.call)
    }
}

impl FetchMany<Blocking> {
    /// Makes the fetches.
    pub fn call(self) -> Vec<Result<Tensor, Error>> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
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
                Ok(key) => {
                    match fetch::look_up(&self.session, &key, &self.options, &Taking::Whole(Tensor::new), None) {
                        Some(found) => self.unsent.push((at, found)),
                        None => calls.add(self.options.command(key, None), None),
                    }
                }
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
        let done =
            calls.take().map(|(_, ended)| fetch::conclude(&self.session, ended, &Taking::Whole(Tensor::new), None));
        ControlFlow::Break(merge(done, std::mem::take(&mut self.unsent)))
    }

    fn needs_timer(&self) -> bool {
        self.calls.as_ref().is_some_and(Calls::needs_timer)
    }
}

/// The results in the order of the batch: `done` is in order, and the others are inserted at their places, which rise.
fn merge<T>(done: impl Iterator<Item = T>, others: Vec<(usize, T)>) -> Vec<T> {
    let mut results = Vec::with_capacity(done.size_hint().0 + others.len());
    let (mut done, mut others) = (done, others.into_iter().peekable());
    loop {
        let next = match others.next_if(|(at, _)| *at == results.len()) {
            Some((_, other)) => Some(other),
            None => done.next(),
        };
        match next {
            Some(result) => results.push(result),
            None => return results,
        }
    }
}
