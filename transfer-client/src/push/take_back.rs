//! Gates: a published version is taken back and updated in place.

use super::order::sent_behind;
use super::taken_back::{Planned, TakenBack, taken_back};
use crate::error::Error;
use crate::memory::TensorMut;
use crate::request::{AnyClient, Call, DEFAULT_TIMEOUT, Request, RequestCall};
use crate::session::{Answered, BackgroundCall, OneCall, Session, deadline};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, Command, FailureCode};
use transfer_core::tensor::{Key, Version};

/// A version that is about to be taken back. Set the time-out of its readers, then `.await` it, or `.call()` it on a
/// [`crate::BlockingClient`]. [`Client::take_back`](crate::Client::take_back) returns a tensor,
/// [`Client::take_back_bundle`](crate::Client::take_back_bundle) the tensors of a bundle, and
/// [`Client::withdraw`](crate::Client::withdraw) nothing.
///
/// # Errors
/// [`Error::Failed`] with [`FailureCode::Deadline`] if readers have not released it in time: the version is published as before.
pub type TakeBack<C, T = TensorMut> = Request<C, TakeBackCall<T>>;

impl<C: AnyClient, T: TakenBack> TakeBack<C, T> {
    pub(crate) fn new(session: Arc<Session>, key: Result<Key, Error>) -> Self {
        TakeBack::at(session, key.map(Stage::New), None)
    }

    /// Makes a call that allocates new tensors.
    pub(crate) fn fresh(session: Arc<Session>, fresh: T::Fresh) -> Self {
        TakeBack::at(session, Ok(Stage::Allocating(fresh)), None)
    }

    /// Makes a call that takes `version` back, or allocates new tensors if the version is gone.
    pub(crate) fn or_fresh(session: Arc<Session>, key: Key, version: u64, fresh: T::Fresh) -> Self {
        TakeBack::at(session, Ok(Stage::New(key)), Some(fresh)).version(version)
    }

    fn at(session: Arc<Session>, stage: Result<Stage<T>, Error>, fresh: Option<T::Fresh>) -> Self {
        Request::from_call(TakeBackCall {
            session,
            timeout: DEFAULT_TIMEOUT,
            version: None,
            started: None,
            stage,
            fresh,
        })
    }

    /// The version to take back. The default is the newest one.
    pub fn version(mut self, version: u64) -> Self {
        self.call.version = Some(Version(version));
        self
    }
}

/// A version that is being taken back.
#[derive(Debug)]
pub struct TakeBackCall<T: TakenBack> {
    session: Arc<Session>,
    timeout: Duration,
    version: Option<Version>,
    started: Option<Instant>,
    stage: Result<Stage<T>, Error>,
    /// What is allocated if there is no version to take back.
    fresh: Option<T::Fresh>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each call, and nearly every call comes to its largest")]
enum Stage<T: TakenBack> {
    New(Key),
    /// A push of the key that came before it is still being compared with its base, on the thread that asks the sidecar behind it.
    Behind(Key, BackgroundCall<Begun<T>>),
    /// The sidecar was asked for it. The plan is that of the version that it is expected to return.
    Asked(OneCall, Option<Planned<T::Plan>>),
    Allocating(T::Fresh),
}

/// The call to the sidecar, and the plan of the version that it is expected to return. `None` if readers from before a restart of the
/// sidecar may still read it.
type Begun<T> = Result<Option<(OneCall, Option<Planned<<T as TakenBack>::Plan>>)>, Error>;

/// The time of a call: when it began, now, and its deadline.
#[derive(Clone, Copy)]
struct Times {
    started: Instant,
    now: Instant,
    limit: Instant,
}

/// Asks the sidecar, unless the version cannot be taken back. Behind a push that has no answer yet the newest version is the one that was
/// sent last.
fn begin<T: TakenBack>(
    session: &Arc<Session>,
    key: &Key,
    version: Option<Version>,
    times: &Times,
    is_behind: bool,
) -> Begun<T> {
    // The sidecar does not know the readers from before its restart, and no event reports that they are done.
    if times.now < times.limit && !session.home().is_read_no_more(&session.formers_of(key, version)) {
        return Ok(None);
    }
    // If the memory could not be written afterwards, the version stays published.
    let published = match version {
        None if is_behind => session.sent_last(key),
        _ => session.published(key, version),
    };
    let version = published.as_ref().and_then(|(_, push)| push.version).or(version);
    let planned = published.map(|(lent, push)| Planned::new::<T>(session, lent, &push)).transpose()?;
    let timeout = times.limit.saturating_duration_since(times.now);
    let command = Command::TakeBack(transfer_core::op::TakeBack { key: key.clone(), version, timeout });
    Ok(Some((OneCall::new(session.clone(), command, times.started, times.limit), planned)))
}

impl<T: TakenBack> Call for TakeBackCall<T> {
    type Output = Result<T, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let now = Instant::now();
        let started = *self.started.get_or_insert(now);
        let times = Times { started, now, limit: deadline(started, self.timeout) };
        let poll_again = times.limit.min(now + Session::FORMER_READERS_POLL);
        loop {
            let stage = match &mut self.stage {
                Ok(stage) => stage,
                Err(e) => return ControlFlow::Break(Err(e.clone())),
            };
            match stage {
                Stage::New(key) if self.session.has_background(key) => {
                    let (session, of, version) = (self.session.clone(), key.clone(), self.version);
                    let behind = self.session.in_background(key.clone(), 1, move |try_send| {
                        let mut begun =
                            begin::<T>(&session, &of, version, &Times { now: Instant::now(), ..times }, true);
                        if let Ok(Some((call, _))) = &mut begun {
                            call.submit(try_send);
                        }
                        begun
                    });
                    self.stage = Ok(Stage::Behind(key.clone(), behind));
                }
                Stage::New(key) => match begin::<T>(&self.session, key, self.version, &times, false) {
                    Ok(Some((call, planned))) => self.stage = Ok(Stage::Asked(call, planned)),
                    Ok(None) => return ControlFlow::Continue(poll_again),
                    Err(e) => return ControlFlow::Break(Err(e)),
                },
                Stage::Behind(key, behind) => {
                    match sent_behind(&self.session, behind, (times.limit, self.timeout), waker) {
                        ControlFlow::Break(Ok(Ok(Some((call, planned))))) => {
                            self.stage = Ok(Stage::Asked(call, planned))
                        }
                        ControlFlow::Break(Ok(Ok(None))) => {
                            self.stage = Ok(Stage::New(key.clone()));
                            return ControlFlow::Continue(poll_again);
                        }
                        ControlFlow::Break(Ok(Err(e)) | Err(e)) => return ControlFlow::Break(Err(e)),
                        ControlFlow::Continue(at) => return ControlFlow::Continue(at),
                    }
                }
                Stage::Asked(call, planned) => {
                    let answered = match call.step(waker) {
                        ControlFlow::Continue(at) => return ControlFlow::Continue(at),
                        ControlFlow::Break(Ok(answered)) => answered,
                        ControlFlow::Break(Err(e)) => return ControlFlow::Break(Err(e)),
                    };
                    match answered {
                        Answered { answer: Answer::TakenBack { .. }, loan: Some(loan), .. } => {
                            return ControlFlow::Break(taken_back(&self.session, planned.take(), *loan));
                        }
                        Answered { answer: Answer::Failed { failure, .. }, .. } => match self.fresh.take() {
                            Some(fresh)
                                if failure.code == FailureCode::VersionGone
                                    || failure.code == FailureCode::NotOwner =>
                            {
                                self.stage = Ok(Stage::Allocating(fresh));
                            }
                            _ => return ControlFlow::Break(Err(failure.into())),
                        },
                        other => return ControlFlow::Break(other.read(|_| None)),
                    }
                }
                Stage::Allocating(fresh) => {
                    return match T::allocate(fresh, &self.session, waker, now >= times.limit) {
                        Ok(Some(made)) => ControlFlow::Break(Ok(made)),
                        Ok(None) => ControlFlow::Continue(self.session.room_limit(now, times.limit)),
                        Err(e) => ControlFlow::Break(Err(e)),
                    };
                }
            }
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Ok(Stage::Asked(call, _)) => call.needs_timer(),
            _ => true,
        }
    }
}

impl<T: TakenBack> RequestCall for TakeBackCall<T> {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}
