//! Commands that are sent to the sidecar, and their answers: one, or a batch of them.

use crate::Error;
use crate::session::{Answered, Session, Submitting};
use smallvec::SmallVec;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use transfer_core::op::Command;

/// The sidecar keeps every deadline itself and reports it. If it does not answer within this time after a deadline, it
/// counts as stuck.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

/// The moment `timeout` after `started`. An unlimited timeout is a year.
pub(crate) fn deadline(started: Instant, timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);
    started + timeout.min(YEAR)
}

/// The end of one command: its answer, or the reason why there is none. A command that was not sent has no number.
pub(crate) type Ended = Result<Answered, Error>;

/// One command or many, which are awaited together. Dropping it gives up the commands that have not ended.
#[derive(Debug)]
pub(crate) struct Calls {
    session: Arc<Session>,
    todo: SmallVec<[Submitting; 1]>,
    sent: usize,
    ended: SmallVec<[Ended; 1]>,
    /// The reason why nothing more is sent.
    stopped: Option<Error>,
    started: Instant,
    /// The deadline of the wait for room in the ring.
    limit: Instant,
}

impl Calls {
    pub(crate) fn new(session: Arc<Session>, started: Instant, limit: Instant) -> Calls {
        Calls { session, todo: SmallVec::new(), sent: 0, ended: SmallVec::new(), stopped: None, started, limit }
    }

    pub(crate) fn add(&mut self, command: Command, held: Option<crate::session::Held>) {
        self.todo.push(Submitting { command, held, overdue: self.limit + GRACE, op: None });
    }

    pub(crate) fn reserve(&mut self, more: usize) {
        self.todo.reserve(more);
        self.ended.reserve(more);
    }

    /// Continues; breaks when all commands have ended.
    pub(crate) fn step(&mut self, waker: &Waker) -> ControlFlow<(), Instant> {
        if self.session.is_forked() {
            self.ended.resize_with(self.todo.len(), || Err(Error::Forked));
            return ControlFlow::Break(());
        }
        let mut until = self.limit + GRACE;
        if self.sent < self.todo.len() && self.stopped.is_none() {
            match self.session.poll_submit(&mut self.todo, &mut self.sent, waker) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(gone)) => self.stopped = Some(gone.into()),
                Poll::Pending if Instant::now() >= self.limit => self.stopped = Some(self.no_answer()),
                Poll::Pending => until = self.limit,
            }
        }
        let waiting = &self.todo[self.ended.len()..self.sent];
        if !waiting.is_empty() {
            let (ops, ended) = (waiting.iter().filter_map(|item| item.op), &mut self.ended);
            self.session.poll_ends(ops, waker, |end| ended.push(end.map_err(Error::from)));
        }
        if self.ended.len() < self.sent && Instant::now() >= self.limit + GRACE {
            self.session.abandon(self.todo[self.ended.len()..self.sent].iter().filter_map(|item| item.op));
            let waited = self.started.elapsed();
            self.ended.resize_with(self.sent, || Err(Error::NoAnswer { waited }));
        }
        if self.ended.len() == self.sent
            && let Some(error) = &self.stopped
        {
            self.ended.resize_with(self.todo.len(), || Err(error.clone()));
        }
        match self.ended.len() == self.todo.len() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(until),
        }
    }

    /// Whether it waits for room in the ring. The sidecar does not know its deadline then.
    pub(crate) fn needs_timer(&self) -> bool {
        self.sent < self.todo.len()
    }

    /// The ended commands in order, including those that were not sent.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (Submitting, Ended)> + use<> {
        self.sent = 0;
        std::mem::take(&mut self.todo).into_iter().zip(std::mem::take(&mut self.ended))
    }

    /// The answer to the only command.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn take_one(&mut self) -> Ended {
        self.take().next().map_or(Err(Error::Ended), |(_, ended)| ended)
    }

    fn no_answer(&self) -> Error {
        Error::NoAnswer { waited: self.started.elapsed() }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if self.ended.len() < self.sent {
            self.session.abandon(self.todo[self.ended.len()..self.sent].iter().filter_map(|item| item.op));
        }
    }
}
