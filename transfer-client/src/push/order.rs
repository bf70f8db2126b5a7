//! Calls without a result: deleting a key, and preparing a push.

use crate::error::Error;
use crate::request::{AnyClient, Call, DEFAULT_TIMEOUT, Request, RequestCall};
use crate::session::{ANSWER_GRACE, BackgroundCall, OneCall, Session, deadline};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, Command, Failure, FailureCode};

/// A call without a result: `.await` it, or `.call()` it on a [`BlockingClient`](crate::BlockingClient).
pub type Order<C> = Request<C, OrderCall>;

impl<C: AnyClient> Order<C> {
    /// Makes the call. `command` gets its time-out later.
    pub(crate) fn new(session: Arc<Session>, command: Result<Command, Error>) -> Self {
        Request::from_call(OrderCall { session, command, timeout: DEFAULT_TIMEOUT, stage: Stage::New })
    }
}

/// A call without a result under way.
#[derive(Debug)]
pub struct OrderCall {
    session: Arc<Session>,
    command: Result<Command, Error>,
    timeout: Duration,
    stage: Stage,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each call, and every call comes to its largest")]
enum Stage {
    New,
    /// A push of the key that came before it is still being compared with its base, on the thread that sends this behind it.
    Behind {
        sending: BackgroundCall<OneCall>,
        limit: Instant,
    },
    Sent(OneCall),
}

impl OrderCall {
    fn start(&self, mut command: Command) -> Stage {
        if let Command::Reserve(reserve) = &mut command {
            reserve.timeout = self.timeout;
        }
        let started = Instant::now();
        let (session, limit) = (self.session.clone(), deadline(started, self.timeout));
        match &command {
            Command::Delete { key } if self.session.has_background(key) => {
                let sending = self.session.in_background(key.clone(), 1, move |try_send| {
                    let mut call = OneCall::new(session, command, started, limit);
                    call.submit(try_send);
                    call
                });
                Stage::Behind { sending, limit }
            }
            _ => Stage::Sent(OneCall::new(session, command, started, limit)),
        }
    }
}

/// Waits, until `limit`, for what a thread sends behind the pushes of its key that came before it.
pub(super) fn sent_behind<T>(
    session: &Session,
    sending: &mut BackgroundCall<T>,
    (limit, timeout): (Instant, Duration),
    waker: &Waker,
) -> ControlFlow<Result<T, Error>, Instant> {
    if session.is_forked() {
        return ControlFlow::Break(Err(Error::Forked));
    }
    let now = Instant::now();
    let failure = match sending.poll(waker) {
        Poll::Ready(Ok(sent)) => return ControlFlow::Break(Ok(sent)),
        Poll::Pending if now < limit => return ControlFlow::Continue(limit),
        // It was sent just now, and its answer says what has come of it.
        Poll::Pending if !sending.give_up() => return ControlFlow::Continue(now + ANSWER_GRACE),
        Poll::Pending => {
            let text = format!("not sent within {timeout:?}: the delta of an earlier push of the key is not made yet");
            Failure::new(FailureCode::Deadline, text)
        }
        Poll::Ready(Err(_)) => {
            let text = "the thread that was to send it behind an earlier push has ended";
            Failure::new(FailureCode::Unknown, text)
        }
    };
    ControlFlow::Break(Err(failure.into()))
}

impl Call for OrderCall {
    type Output = Result<(), Error>;

    fn step(&mut self, waker: &Waker) -> ControlFlow<Self::Output, Instant> {
        loop {
            match (&mut self.stage, &self.command) {
                (Stage::New, Ok(command)) => self.stage = self.start(command.clone()),
                (Stage::New, Err(e)) => return ControlFlow::Break(Err(e.clone())),
                (Stage::Behind { sending, limit }, _) => {
                    match sent_behind(&self.session, sending, (*limit, self.timeout), waker) {
                        ControlFlow::Break(Ok(call)) => self.stage = Stage::Sent(call),
                        ControlFlow::Break(Err(e)) => return ControlFlow::Break(Err(e)),
                        ControlFlow::Continue(at) => return ControlFlow::Continue(at),
                    }
                }
                (Stage::Sent(call), _) => {
                    let read = |answer| matches!(answer, Answer::Deleted | Answer::Reserved).then_some(());
                    return call.step(waker).map_break(|ended| ended?.read(read));
                }
            }
        }
    }

    fn needs_timer(&self) -> bool {
        match &self.stage {
            Stage::New => false,
            Stage::Behind { .. } => true,
            Stage::Sent(call) => call.needs_timer(),
        }
    }
}

impl RequestCall for OrderCall {
    fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }
}
