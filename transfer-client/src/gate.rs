//! Gates: a published version is taken back and updated in place.

use crate::calls::{Calls, deadline};
use crate::face::{Async, Blocking, Call, Face, Running, block};
use crate::options::DEFAULT_TIMEOUT;
use crate::reclaim::{Layout, Named, Reclaimed, Way};
use crate::session::{Answered, Session};
use crate::{Error, TensorMut};
use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, Command, FailureCode, TakeBack};
use transfer_core::tensor::{Key, Version};

/// A version that is about to be taken back. Set the time-out of its readers, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. [`Handle::gate`](crate::Handle::gate) returns a tensor,
/// [`Handle::gate_bundle`](crate::Handle::gate_bundle) the tensors of a bundle, and
/// [`Handle::withdraw`](crate::Handle::withdraw) nothing.
#[derive(Debug)]
#[must_use = "nothing is taken back before `.await` or `.call()`"]
pub struct Gate<F, T = TensorMut> {
    pub(crate) call: GateCall<T>,
    face: PhantomData<F>,
}

impl<F: Face, T> Gate<F, T> {
    pub(crate) fn new(session: Arc<Session>, key: Result<Key, Error>, way: Way<T>) -> Self {
        Gate::at(session, Stage::Taking { key: Some(key), calls: None }, way, None)
    }

    /// Makes a gate that allocates new tensors.
    pub(crate) fn fresh(session: Arc<Session>, layout: Layout, way: Way<T>) -> Self {
        Gate::at(session, Stage::Allocating { layout, tensors: Vec::new() }, way, None)
    }

    /// Makes a gate that takes `version` back, or allocates new tensors if the version is gone.
    pub(crate) fn of(session: Arc<Session>, key: Key, version: u64, layout: Layout, way: Way<T>) -> Self {
        Gate::at(session, Stage::Taking { key: Some(Ok(key)), calls: None }, way, Some(layout)).version(version)
    }

    fn at(session: Arc<Session>, stage: Stage, way: Way<T>, instead: Option<Layout>) -> Self {
        let call = GateCall { session, timeout: DEFAULT_TIMEOUT, version: None, started: None, stage, way, instead };
        Gate { call, face: PhantomData }
    }

    /// The time-out for the readers of the version, 30 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.call.timeout = timeout;
        self
    }

    /// The version to take back. The default is the newest one.
    pub fn version(mut self, version: u64) -> Self {
        self.call.version = Some(Version(version));
        self
    }
}

impl<T> IntoFuture for Gate<Async, T> {
    type Output = Result<T, Error>;
    type IntoFuture = Running<GateCall<T>>;

    fn into_future(self) -> Running<GateCall<T>> {
        Running::new(self.call)
    }
}

impl<T> Gate<Blocking, T> {
    /// Takes the version back.
    ///
    /// # Errors
    /// Any [`Error`]; [`FailureCode::Deadline`] if its readers took too long. The version is then published as before.
    pub fn call(self) -> Result<T, Error> {
        let session = self.call.session.clone();
        block(&session, self.call)
    }
}

/// A version that is being taken back.
#[derive(Debug)]
pub struct GateCall<T> {
    pub(crate) session: Arc<Session>,
    timeout: Duration,
    version: Option<Version>,
    started: Option<Instant>,
    stage: Stage,
    way: Way<T>,
    /// The tensors to allocate if there is no version to take back.
    instead: Option<Layout>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each call, and nearly every call comes to its largest")]
enum Stage {
    Taking {
        key: Option<Result<Key, Error>>,
        /// The command, and what is known of the version that it takes back.
        calls: Option<(Calls, Option<Reclaimed>)>,
    },
    Allocating {
        layout: Layout,
        /// The tensors that are allocated already.
        tensors: Vec<Named>,
    },
}

impl<T> GateCall<T> {
    fn allocate(&mut self, waker: &Waker, now: Instant, limit: Instant) -> ControlFlow<Result<T, Error>, Instant> {
        let Stage::Allocating { layout, tensors } = &mut self.stage else {
            return ControlFlow::Break(Err(Error::Ended));
        };
        while let Some((name, meta)) = layout.get(tensors.len()) {
            match self.session.allocate_or_wait(meta.len_bytes(), waker, now >= limit) {
                Ok(Some(block)) => tensors.push((name.clone(), TensorMut::new(block, meta.clone()))),
                Ok(None) => return ControlFlow::Continue(limit.min(now + Session::ROOM_POLL)),
                Err(e) => return ControlFlow::Break(Err(e)),
            }
        }
        ControlFlow::Break(self.way.finish(std::mem::take(tensors)))
    }

    /// Sends the command, unless the version cannot be taken back. `Continue` if readers from before a restart of the
    /// sidecar may still read it.
    fn begin(
        &mut self,
        key: Key,
        started: Instant,
        now: Instant,
        limit: Instant,
    ) -> ControlFlow<Result<T, Error>, Instant> {
        let (version, session) = (self.version, self.session.clone());
        // The sidecar does not know the readers from before its restart, and no event reports that they are done.
        if now < limit && !session.home().is_read_no_more(&session.formers_of(&key, version)) {
            self.stage = Stage::Taking { key: Some(Ok(key)), calls: None };
            return ControlFlow::Continue(limit.min(now + Session::ROOM_POLL));
        }
        // If the memory could not be written afterwards, the version stays published.
        let published = session.published(&key, version);
        let version = published.as_ref().and_then(|(_, push)| push.version).or(version);
        let reclaimed = match published.map(|(lent, push)| self.way.plan(&session, lent, &push)).transpose() {
            Ok(reclaimed) => reclaimed,
            Err(e) => return ControlFlow::Break(Err(e)),
        };
        let mut calls = Calls::new(session, started, limit);
        let timeout = limit.saturating_duration_since(now);
        calls.add(Command::TakeBack(TakeBack { key, version, timeout }), None);
        self.stage = Stage::Taking { key: None, calls: Some((calls, reclaimed)) };
        ControlFlow::Continue(now)
    }
}

impl<T> Call for GateCall<T> {
    type Output = Result<T, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let now = Instant::now();
        let started = *self.started.get_or_insert(now);
        let limit = deadline(started, self.timeout);
        match &mut self.stage {
            Stage::Allocating { .. } => return self.allocate(waker, now, limit),
            Stage::Taking { calls: Some(_), .. } => {}
            Stage::Taking { key, calls: None } => {
                let key = match key.take() {
                    Some(Ok(key)) => key,
                    Some(Err(e)) => return ControlFlow::Break(Err(e)),
                    None => return ControlFlow::Break(Err(Error::Ended)),
                };
                let begun = self.begin(key, started, now, limit);
                if begun.is_break() || matches!(self.stage, Stage::Taking { calls: None, .. }) {
                    return begun;
                }
            }
        }
        let Stage::Taking { calls: Some((calls, reclaimed)), .. } = &mut self.stage else {
            return ControlFlow::Break(Err(Error::Ended));
        };
        if let ControlFlow::Continue(at) = calls.step(waker) {
            return ControlFlow::Continue(at);
        }
        let reclaimed = reclaimed.take();
        match calls.take_one() {
            Ok(Answered { answer: Answer::TakenBack { .. }, loan: Some(loan) }) => {
                ControlFlow::Break(self.way.reclaim(&self.session, reclaimed, *loan))
            }
            Ok(Answered { answer: Answer::Failed { failure, .. }, .. }) => match self.instead.take() {
                Some(layout) if failure.code == FailureCode::VersionGone || failure.code == FailureCode::NotOwner => {
                    self.stage = Stage::Allocating { layout, tensors: Vec::new() };
                    self.allocate(waker, now, limit)
                }
                _ => ControlFlow::Break(Err(failure.into())),
            },
            // The table only passes answers of this kind.
            Ok(_) => ControlFlow::Break(Err(Error::Ended)),
            Err(error) => ControlFlow::Break(Err(error)),
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::Allocating { .. } => true,
            Stage::Taking { calls, .. } => calls.as_ref().is_none_or(|(calls, _)| calls.needs_timer()),
        }
    }
}
