//! One command that is sent to the sidecar, and its answer.

use super::wait::Parker;
use super::{ANSWER_GRACE, Ended, Held, LentDeltas, Session, Submitting, TrySend, deadline};
use crate::error::Error;
use std::ops::ControlFlow;
use std::slice;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use transfer_core::op::{Command, Failure, FailureCode, OpId};

/// The interval at which a thread looks for room in the ring that is not woken: where no other thread could be started, the one that
/// reads is this one.
const UNWOKEN: Duration = Duration::from_secs(1);

/// One command. Dropping it gives the command up, if it has not ended.
#[derive(Debug)]
pub(crate) struct OneCall {
    session: Arc<Session>,
    item: Submitting,
    started: Instant,
    /// The deadline of the wait for room in the ring.
    limit: Instant,
    /// Whether it was cancelled before it was sent: it is not sent any more.
    is_cancelled: bool,
    /// Whether another thread was to send it, and has not within its time: it is not sent any more, since others were sent before it.
    is_late: bool,
    has_ended: bool,
}

impl OneCall {
    pub(crate) fn new(session: Arc<Session>, command: Command, started: Instant, limit: Instant) -> OneCall {
        let item = Submitting { command, held: None, deltas: None, overdue: limit + ANSWER_GRACE, op: None };
        OneCall { session, item, started, limit, is_cancelled: false, is_late: false, has_ended: false }
    }

    /// A command whose time begins now.
    pub(crate) fn begin(session: Arc<Session>, command: Command, timeout: Duration) -> OneCall {
        let started = Instant::now();
        OneCall::new(session, command, started, deadline(started, timeout))
    }

    /// Lends this range with the command, a push.
    pub(crate) fn lending(mut self, held: Held) -> OneCall {
        self.item.held = Some(held);
        self
    }

    /// Lends these deltas with the command, a push.
    pub(crate) fn with_deltas(mut self, deltas: Option<LentDeltas>) -> OneCall {
        self.item.deltas = deltas.map(Box::new);
        self
    }

    /// Sends it for another thread, which takes the steps: once there is room in the ring, within its time and while it is wanted, so
    /// that what follows it is sent behind it. What fails, the first step says.
    pub(crate) fn submit(&mut self, try_send: TrySend<'_>) {
        let session = self.session.clone();
        session.block_on(|waker| {
            let submit = || self.session.poll_submit(slice::from_mut(&mut self.item), &mut 0, waker).is_ready();
            let (is_open, now) = (try_send(waker, &mut { submit }), Instant::now());
            self.is_late = is_open && now >= self.limit;
            match is_open && !self.is_late {
                true => ControlFlow::Continue(self.limit.min(now + UNWOKEN)),
                false => ControlFlow::Break(()),
            }
        });
        // What has woken this thread meanwhile may be of the call in whose step this is.
        Parker::of_this_thread().0.unpark();
    }

    /// Continues; breaks with the end of the command. A command that has ended has no other end, and is not sent again: its range
    /// may be the caller's by then.
    pub(crate) fn step(&mut self, waker: &Waker) -> ControlFlow<Ended, Instant> {
        if self.has_ended {
            return ControlFlow::Continue(Instant::now() + ANSWER_GRACE);
        }
        let ended = self.poll(waker);
        self.has_ended = ended.is_break();
        ended
    }

    fn poll(&mut self, waker: &Waker) -> ControlFlow<Ended, Instant> {
        if self.session.is_forked() {
            return ControlFlow::Break(Err(Error::Forked));
        }
        let is_sent = self.item.op.is_some();
        if !is_sent {
            if self.is_cancelled {
                return ControlFlow::Break(Err(cancelled_unsent()));
            }
            if self.is_late {
                let text = "not sent in time: the ring of the sidecar had no room";
                return ControlFlow::Break(Err(Failure::new(FailureCode::Deadline, text).into()));
            }
            match self.session.poll_submit(slice::from_mut(&mut self.item), &mut 0, waker) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(gone)) => return ControlFlow::Break(Err(gone.into())),
                Poll::Pending if Instant::now() >= self.limit => return ControlFlow::Break(Err(self.no_answer())),
                Poll::Pending => return ControlFlow::Continue(self.limit),
            }
        }
        let mut ended = None;
        self.session.poll_ends(self.item.op.into_iter(), waker, |end| ended = Some(end.map_err(Error::from)));
        let until = self.limit + ANSWER_GRACE;
        match ended {
            Some(ended) => ControlFlow::Break(ended),
            // What was sent just now is not late: that saves a look at the clock.
            None if is_sent && Instant::now() >= until => {
                self.session.abandon(self.item.op);
                ControlFlow::Break(Err(self.no_answer()))
            }
            None => ControlFlow::Continue(until),
        }
    }

    /// Whether it waits for room in the ring. The sidecar does not know its deadline then.
    pub(crate) fn needs_timer(&self) -> bool {
        self.item.op.is_none()
    }

    /// Cancels the command. Its end follows.
    pub(crate) fn cancel(&mut self) {
        self.limit = self.limit.min(Instant::now());
        match self.item.op {
            Some(op) if !self.has_ended => self.session.cancel(op),
            Some(_) => {}
            None => self.is_cancelled = true,
        }
    }

    /// Returns its number, once it is sent.
    pub(crate) fn op(&self) -> Option<OpId> {
        self.item.op
    }

    /// The time since it began.
    pub(crate) fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    /// The range of a command that was not sent.
    pub(crate) fn take_held(&mut self) -> Option<Held> {
        self.item.held.take()
    }

    fn no_answer(&self) -> Error {
        Error::NoAnswer { waited: self.waited() }
    }
}

/// The end of a call that was cancelled before the sidecar has heard of it.
pub(crate) fn cancelled_unsent() -> Error {
    Failure::new(FailureCode::Cancelled, "the call was given up before it was sent").into()
}

impl Drop for OneCall {
    fn drop(&mut self) {
        if !self.has_ended && self.item.op.is_some() {
            self.session.abandon(self.item.op);
        }
    }
}
