//! Gates: a published version is taken back and updated in place.

use crate::calls::{Calls, deadline};
use crate::face::{Async, Blocking, Call, Face, Running, block};
use crate::options::DEFAULT_TIMEOUT;
use crate::session::{Answered, Session};
use crate::{Error, TensorMut};
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, Command, FailureCode, TakeBack};
use transfer_core::tensor::{Key, TensorMeta, Version};

/// A version that is about to be taken back. Set the time-out of its readers, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. See [`Handle::gate`](crate::Handle::gate).
#[derive(Debug)]
#[must_use = "nothing is taken back before `.await` or `.call()`"]
pub struct Gate<F> {
    pub(crate) call: GateCall,
    face: PhantomData<F>,
}

impl<F: Face> Gate<F> {
    pub(crate) fn new(session: Arc<Session>, key: Result<Key, Error>) -> Self {
        let stage = Stage::Taking { key: Some(key), version: None, calls: None };
        Gate {
            call: GateCall { session, timeout: DEFAULT_TIMEOUT, started: None, stage, instead: None },
            face: PhantomData,
        }
    }

    /// Makes a gate that allocates a new tensor.
    pub(crate) fn fresh(session: Arc<Session>, meta: TensorMeta) -> Self {
        let stage = Stage::Allocating(meta);
        Gate {
            call: GateCall { session, timeout: DEFAULT_TIMEOUT, started: None, stage, instead: None },
            face: PhantomData,
        }
    }

    /// Makes a gate that takes `version` back, or allocates a tensor if the version is gone.
    pub(crate) fn of(session: Arc<Session>, key: Key, version: u64, meta: TensorMeta) -> Self {
        let stage = Stage::Taking { key: Some(Ok(key)), version: Some(Version(version)), calls: None };
        let instead = Some(meta);
        Gate { call: GateCall { session, timeout: DEFAULT_TIMEOUT, started: None, stage, instead }, face: PhantomData }
    }

    /// The time-out for the readers of the version, 30 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.call.timeout = timeout;
        self
    }
}

impl IntoFuture for Gate<Async> {
    type Output = Result<TensorMut, Error>;
    type IntoFuture = Running<GateCall>;

    fn into_future(self) -> Running<GateCall> {
        Running::new(self.call)
    }
}

impl Gate<Blocking> {
    /// Takes the version back.
    ///
    /// # Errors
    /// Any [`Error`]; [`FailureCode::Deadline`] if its readers took too long.
    pub fn call(self) -> Result<TensorMut, Error> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
}

/// A version that is being taken back.
#[derive(Debug)]
pub struct GateCall {
    pub(crate) session: Arc<Session>,
    timeout: Duration,
    started: Option<Instant>,
    stage: Stage,
    /// The tensor to allocate if there is no version to take back.
    instead: Option<TensorMeta>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each call, and nearly every call comes to its largest")]
enum Stage {
    Taking { key: Option<Result<Key, Error>>, version: Option<Version>, calls: Option<Calls> },
    Allocating(TensorMeta),
}

impl Call for GateCall {
    type Output = Result<TensorMut, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let now = Instant::now();
        let started = *self.started.get_or_insert(now);
        let limit = deadline(started, self.timeout);
        let (key, version, calls) = match &mut self.stage {
            Stage::Allocating(meta) => {
                return match self.session.allocate_or_wait(meta.len_bytes(), waker, now >= limit) {
                    Ok(Some(block)) => ControlFlow::Break(Ok(TensorMut::new(block, meta.clone()))),
                    Ok(None) => ControlFlow::Continue(limit.min(now + Session::ROOM_POLL)),
                    Err(e) => ControlFlow::Break(Err(e)),
                };
            }
            Stage::Taking { key, version, calls } => (key, *version, calls),
        };
        if calls.is_none() {
            let key = match key.take() {
                Some(Ok(key)) => key,
                Some(Err(e)) => return ControlFlow::Break(Err(e)),
                None => return ControlFlow::Break(Err(Error::Ended)),
            };
            // The sidecar does not know the readers from before its restart, and no event reports that they are done.
            if now < limit && !self.session.home().is_read_no_more(&self.session.formers_of(&key, version)) {
                if let Stage::Taking { key: place, .. } = &mut self.stage {
                    *place = Some(Ok(key));
                }
                return ControlFlow::Continue(limit.min(now + Session::ROOM_POLL));
            }
            let timeout = limit.saturating_duration_since(now);
            let mut new = Calls::new(self.session.clone(), started, limit);
            new.add(Command::TakeBack(TakeBack { key, version, timeout }), None);
            *calls = Some(new);
        }
        let Some(calls) = calls else { return ControlFlow::Break(Err(Error::Ended)) };
        if let ControlFlow::Continue(at) = calls.step(waker) {
            return ControlFlow::Continue(at);
        }
        let loan = match calls.take_one() {
            Ok(Answered { answer: Answer::TakenBack { .. }, loan: Some(loan) }) => loan,
            Ok(Answered { answer: Answer::Failed { failure, .. }, .. }) => {
                return match self.instead.take() {
                    Some(meta) if failure.code == FailureCode::VersionGone || failure.code == FailureCode::NotOwner => {
                        self.stage = Stage::Allocating(meta);
                        self.step(waker)
                    }
                    _ => ControlFlow::Break(Err(failure.into())),
                };
            }
            // The table only passes answers of this kind.
            Ok(_) => return ControlFlow::Break(Err(Error::Ended)),
            Err(error) => return ControlFlow::Break(Err(error)),
        };
        let meta = loan.push.meta.clone();
        let block = match loan.lent.owned && self.session.home().is_read_no_more(&loan.formers) {
            true => self.session.take_back(loan.lent),
            false => None,
        };
        ControlFlow::Break(match block {
            Some(block) => Ok(TensorMut::new(block, meta)),
            None => {
                self.session.give_back(*loan);
                Err(Error::NotAlone { meta })
            }
        })
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::Allocating(_) => true,
            Stage::Taking { calls, .. } => calls.as_ref().is_none_or(Calls::needs_timer),
        }
    }
}
