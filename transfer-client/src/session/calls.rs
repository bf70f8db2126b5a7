//! Many commands that are sent to the sidecar together, and their answers.

use super::{ANSWER_GRACE, Answered, Held, Session, Submitting};
use crate::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;
use transfer_core::op::{Command, OpId};

/// The end of one command: its answer, or the reason why there is none. A command that was not sent has no number.
pub(crate) type Ended = Result<Answered, Error>;

/// Commands that are awaited together. Dropping it gives up the commands that have not ended.
#[derive(Debug)]
pub(crate) struct Calls {
    session: Arc<Session>,
    todo: Vec<Submitting>,
    sent: usize,
    ended: Vec<Ended>,
    /// The reason why nothing more is sent.
    stopped: Option<Error>,
    started: Instant,
    /// The deadline of the wait for room in the ring.
    limit: Instant,
    /// The first command, once versions that do not fit the landing pool are looked for, and the number of them at the last look.
    refusals: Option<(OpId, Option<u64>)>,
}

impl Calls {
    pub(crate) fn new(session: Arc<Session>, started: Instant, limit: Instant) -> Calls {
        Calls { session, todo: Vec::new(), sent: 0, ended: Vec::new(), stopped: None, started, limit, refusals: None }
    }

    pub(crate) fn add(&mut self, command: Command, held: Option<Held>) {
        self.todo.push(Submitting { command, held, deltas: None, overdue: self.limit + ANSWER_GRACE, op: None });
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
        let mut until = self.limit + ANSWER_GRACE;
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
        if self.ended.len() < self.sent && Instant::now() >= self.limit + ANSWER_GRACE {
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

    /// Returns the commands whose version does not fit the landing pool, by their places, also those behind ones that have not ended. It is
    /// called after a step that continues, and may return one again.
    pub(crate) fn refused(&mut self, waker: &Waker) -> Vec<usize> {
        let Some(first) = self.todo.first().and_then(|item| item.op).filter(|_| !self.session.is_forked()) else {
            return Vec::new();
        };
        let (batch, look) = self.refusals.get_or_insert((first, None));
        let behind = self.ended.len();
        let ops = self.todo[behind..self.sent].iter().filter_map(|item| item.op);
        let later = self.session.poll_refused(*batch, ops, look, waker);
        let is_refused = |ended: &Ended| ended.as_ref().is_ok_and(Answered::is_refused);
        let earlier = self.ended.iter().enumerate().filter(|(_, ended)| is_refused(ended)).map(|(at, _)| at);
        earlier.chain(later.into_iter().map(|at| behind + at)).collect()
    }

    /// The command at this place.
    pub(crate) fn command(&self, at: usize) -> Option<&Command> {
        self.todo.get(at).map(|item| &item.command)
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

    fn no_answer(&self) -> Error {
        Error::NoAnswer { waited: self.started.elapsed() }
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        if let Some((batch, _)) = self.refusals {
            self.session.end_refusals(batch);
        }
        if self.ended.len() < self.sent {
            self.session.abandon(self.todo[self.ended.len()..self.sent].iter().filter_map(|item| item.op));
        }
    }
}

/// The results in the order of the batch: `done` is in order, and the others are inserted at their places, which rise.
pub(crate) fn merge<T>(done: impl Iterator<Item = T>, others: Vec<(usize, T)>) -> Vec<T> {
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
