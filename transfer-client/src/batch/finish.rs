//! The end of a stream of batches, which waits for its readers.

use crate::error::{BatchError, Error};
use crate::push::{Push, PushCall, Pushed};
use crate::request::{AnyClient, Call, DEFAULT_TIMEOUT, Request, RequestCall};
use crate::session::{ANSWER_GRACE, Session, deadline};
use parking_lot::Mutex;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::op::{Failure, FailureCode};
use transfer_core::tensor::Key;

/// How often the sidecar is asked whether the key is still this worker's.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What the calls of [`finish`](super::BatchStream::finish) have found out about the end of a stream.
#[derive(Debug, Default)]
pub(super) struct End(Mutex<Found>);

#[derive(Debug, Default, Clone, Copy)]
struct Found {
    /// The end is published.
    pushed: Option<Pushed>,
    /// The versions, with the end, that a reader has not fetched. `None` before the sidecar has said it.
    left: Option<u32>,
}

impl End {
    fn found(&self) -> Found {
        *self.0.lock()
    }

    /// See [`BatchStream::unread`](super::BatchStream::unread).
    pub(super) fn unread(&self, batches: u64) -> Option<u64> {
        self.found().left.map(|left| unread(left, batches))
    }
}

/// `left` versions wait for their fetches; the last one is the end.
fn unread(left: u32, batches: u64) -> u64 {
    u64::from(left).saturating_sub(1).min(batches)
}

/// The end of a stream that is about to be made: `.await` it, or `.call()` it on a [`crate::BlockingClient`]. Its time-out is the time
/// that the readers have; the push of the end has it, too.
///
/// # Errors
/// [`BatchError::NotRead`](crate::BatchError::NotRead), after which the stream can be finished again, and any [`Error`].
pub type Finish<C> = Request<C, FinishCall>;

impl<C: AnyClient> Finish<C> {
    /// `batches` were pushed before the end.
    pub(super) fn new(push: Push<'static, C>, key: Result<Key, Error>, batches: u64, end: Arc<End>) -> Finish<C> {
        let (push, timeout, started) = (push.call, DEFAULT_TIMEOUT, None);
        let session = push.session().clone();
        Request::from_call(FinishCall { session, key, batches, timeout, started, end, stage: Stage::Pushing(push) })
    }
}

/// The end of a stream under way.
pub struct FinishCall {
    session: Arc<Session>,
    key: Result<Key, Error>,
    batches: u64,
    timeout: Duration,
    started: Option<Instant>,
    end: Arc<End>,
    stage: Stage,
}

#[expect(clippy::large_enum_variant, reason = "one for each call, and every call comes to its largest")]
enum Stage {
    Pushing(PushCall<'static>),
    /// The count of the versions that are left has this number, and was asked for then.
    Waiting(Pushed, u64, Instant),
}

impl FinishCall {
    fn not_read(&self, key: &Key) -> Error {
        let unread = self.end.unread(self.batches).unwrap_or(self.batches);
        let key = key.as_str().to_owned();
        BatchError::NotRead { key, unread, batches: self.batches, waited: self.timeout }.into()
    }

    /// Waits until no version is left.
    fn wait_for_readers(
        &self,
        key: &Key,
        pushed: Pushed,
        number: u64,
        (now, limit, ask_at): (Instant, Instant, Instant),
        waker: &Waker,
    ) -> ControlFlow<Result<Pushed, Error>, Instant> {
        let counted = self.session.poll_count(number, waker);
        if let Ok(Some(Some(left))) = counted {
            self.end.0.lock().left = Some(left);
        }
        match counted {
            Err(gone) => ControlFlow::Break(Err(gone.into())),
            Ok(Some(Some(0))) => ControlFlow::Break(Ok(pushed)),
            Ok(Some(None)) => {
                let text = format!(
                    "stream {:?} was deleted, or another worker has taken its key over, before all its readers had it",
                    key.as_str()
                );
                ControlFlow::Break(Err(Error::Failed(Failure::new(FailureCode::NotOwner, text))))
            }
            // The sidecar answers at once, also where there is no time to wait for the readers.
            Ok(None) if now < limit + ANSWER_GRACE => ControlFlow::Continue((limit + ANSWER_GRACE).min(ask_at)),
            Ok(_) if now >= limit => ControlFlow::Break(Err(self.not_read(key))),
            Ok(_) => ControlFlow::Continue(limit.min(ask_at)),
        }
    }
}

impl Call for FinishCall {
    type Output = Result<Pushed, Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        let key = match &self.key {
            Ok(key) => key.clone(),
            Err(e) => return ControlFlow::Break(Err(e.clone())),
        };
        let now = Instant::now();
        let limit = deadline(*self.started.get_or_insert(now), self.timeout);
        loop {
            match &mut self.stage {
                Stage::Pushing(push) => {
                    // An earlier call may have published the end.
                    let pushed = match self.end.found().pushed {
                        Some(pushed) => pushed,
                        None => match push.step(waker) {
                            ControlFlow::Continue(at) => return ControlFlow::Continue(at),
                            ControlFlow::Break(Ok(pushed)) => pushed,
                            ControlFlow::Break(Err(e)) => return ControlFlow::Break(Err(e.into())),
                        },
                    };
                    self.end.0.lock().pushed = Some(pushed);
                    // After a call that has found nothing left, the key may be another worker's.
                    if self.end.found().left == Some(0) {
                        return ControlFlow::Break(Ok(pushed));
                    }
                    self.stage = Stage::Waiting(pushed, self.session.begin_count(key.clone()), now);
                }
                Stage::Waiting(pushed, number, asked) => {
                    let (pushed, number) = (*pushed, *number);
                    if now >= *asked + ASK_AGAIN {
                        *asked = now;
                        self.session.count_again(number, key.clone());
                    }
                    let ask_at = *asked + ASK_AGAIN;
                    return self.wait_for_readers(&key, pushed, number, (now, limit, ask_at), waker);
                }
            }
        }
    }

    fn needs_timer(&self) -> bool {
        true
    }
}

impl RequestCall for FinishCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        if let Stage::Pushing(push) = &mut self.stage {
            push.set_timeout(timeout);
        }
    }
}

impl Drop for FinishCall {
    fn drop(&mut self) {
        if let Stage::Waiting(_, number, _) = self.stage {
            self.session.end_count(number);
        }
    }
}

impl fmt::Debug for FinishCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FinishCall").field("key", &self.key).field("batches", &self.batches).finish_non_exhaustive()
    }
}
