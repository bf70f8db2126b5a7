//! Operations: commands that are sent, and their answers.

use super::state::Session;
use super::submission::{Submission, Submitting};
use super::table::{Answered, Effects};
use crate::error::{DigestError, Error, SessionEnd};
use std::task::{Poll, Waker};
use std::time::Instant;
use transfer_core::op::{MAX_WRONG_DIGEST_BYTES, OpId, Request};
use transfer_core::tensor::Key;

/// The most commands that are published together for a sidecar in another process. It does the first ones of a batch while
/// the next ones are written.
const AT_ONCE: usize = 32;

impl Session {
    /// Submits `todo` from `next` on, and advances `next`. Pending if the ring is full; then `waker` is woken when there is
    /// room.
    pub(crate) fn poll_submit(
        &self,
        todo: &mut [Submitting],
        next: &mut usize,
        waker: &Waker,
    ) -> Poll<Result<(), SessionEnd>> {
        if self.is_forked() {
            return Poll::Ready(Err(SessionEnd::Forked));
        }
        // A sidecar in this process may do its work in this thread. Then nothing is gained by pieces, and each costs a round.
        let at_once = if self.inside.is_some() { todo.len() } else { AT_ONCE };
        loop {
            let (written, finish) = {
                let mut submission = self.submission.lock();
                let mut table = self.table.lock();
                let first = *next;
                let end = todo.len().min(first + at_once);
                let written = submission.write(&mut table, &self.changes, &mut todo[..end], next);
                let stuck = written.is_ok() && *next < end;
                if stuck {
                    self.space.register(waker);
                }
                let finish = submission.finish(stuck);
                // Wake the waiters for the tensor first, and record the push then. Those of a batch are many, and are woken once other
                // threads have the locks again.
                let is_one = matches!(&finish, Ok(finish) if finish.wake.len() == 1);
                if let (Ok(finish), true) = (&finish, is_one) {
                    self.notices.wake(&finish.wake);
                }
                Submission::record(&mut table, &mut todo[first..*next]);
                (written, finish.map(|finish| (finish, is_one)))
            };
            let (finish, is_awake) = match written.and(finish) {
                Ok(finish) => finish,
                Err(gone) => {
                    self.end(&gone);
                    return Poll::Ready(Err(gone));
                }
            };
            if !is_awake {
                self.notices.wake(&finish.wake);
            }
            if finish.ring {
                self.ring();
            }
            if *next == todo.len() {
                return Poll::Ready(Ok(()));
            }
            if finish.full {
                return Poll::Pending;
            }
        }
    }

    /// Passes the ends of `ops` to `sink` in order, until one is missing; then `waker` is woken when that one is
    /// there. `sink` runs under the lock of the table.
    pub(crate) fn poll_ends(
        &self,
        ops: impl Iterator<Item = OpId>,
        waker: &Waker,
        mut sink: impl FnMut(Result<Answered, SessionEnd>),
    ) {
        let mut table = self.table.lock();
        for op in ops {
            match table.poll(op, waker) {
                Poll::Ready(end) => sink(end),
                Poll::Pending => return,
            }
        }
    }

    /// Returns at which of `ops` versions do not fit the landing pool, also behind ones without an end; nothing if there are no others than
    /// at the last `look`. Then `waker` is woken when there may be, until [`end_refusals`](Session::end_refusals).
    pub(crate) fn poll_refused(
        &self,
        batch: OpId,
        ops: impl Iterator<Item = OpId>,
        look: &mut Option<u64>,
        waker: &Waker,
    ) -> Vec<usize> {
        let mut table = self.table.lock();
        if !table.poll_refusals(batch, look, waker) {
            return Vec::new();
        }
        ops.enumerate().filter(|(_, op)| table.is_refused(*op)).map(|(at, _)| at).collect()
    }

    pub(crate) fn end_refusals(&self, batch: OpId) {
        if !self.is_forked() {
            self.table.lock().end_refusals(batch);
        }
    }

    /// Gives up these operations: they are cancelled, and late results are released.
    pub(crate) fn abandon(&self, ops: impl IntoIterator<Item = OpId>) {
        if self.is_forked() {
            return;
        }
        let mut effects = Effects::default();
        {
            let mut table = self.table.lock();
            for op in ops {
                table.abandon(op, &mut effects);
            }
        }
        self.carry_out_or_end(&mut effects);
        self.wait_for_backlog();
    }

    /// Wakes all overdue waiters, so that they look at their clock.
    pub(crate) fn wake_overdue(&self) {
        if self.is_forked() {
            return;
        }
        let mut effects = Effects::default();
        self.table.lock().wake_overdue(Instant::now(), &mut effects);
        self.carry_out_or_end(&mut effects);
    }

    /// Begins to count the versions of this worker's key that are left. Returns the number of the count.
    pub(crate) fn begin_count(&self, key: Key) -> u64 {
        let number = self.table.lock().begin_count();
        self.count_again(number, key);
        number
    }

    /// Asks again, for nothing says by itself that the key is not this worker's any more.
    pub(crate) fn count_again(&self, number: u64, key: Key) {
        self.say(std::iter::once(Request::CountUnfetched { number, key }));
    }

    /// Tells the sidecar, for its operator, if this is the error for bytes that do not have the digest of their push.
    pub(crate) fn tell_wrong_digest(&self, error: &Error) {
        let Error::Digest(wrong) = error else { return };
        if matches!(**wrong, DigestError::WrongDigest { .. }) && !self.is_forked() {
            let mut text = wrong.to_string();
            text.truncate(text.floor_char_boundary(MAX_WRONG_DIGEST_BYTES));
            self.say(std::iter::once(Request::WrongDigest { text }));
        }
    }

    /// See [`Table::poll_count`](super::table::Table::poll_count).
    pub(crate) fn poll_count(&self, number: u64, waker: &Waker) -> Result<Option<Option<u32>>, SessionEnd> {
        match self.is_forked() {
            true => Err(SessionEnd::Forked),
            false => self.table.lock().poll_count(number, waker),
        }
    }

    /// Ends a count.
    pub(crate) fn end_count(&self, number: u64) {
        if !self.is_forked() {
            self.table.lock().end_count(number);
        }
    }

    pub(super) fn carry_out(&self, effects: &mut Effects) -> Result<(), SessionEnd> {
        let mut result = Ok(());
        if !effects.returned.is_empty() {
            for loan in effects.returned.drain(..) {
                result = result.and(self.home.take_in(loan).map_err(SessionEnd::from));
            }
            self.home.room.wake_all();
        }
        if !effects.landed.is_empty() {
            for lent in effects.landed.drain(..) {
                result = result.and(self.home.arena.give_back(lent.allocation).map_err(SessionEnd::from));
            }
            self.home.room.wake_all();
        }
        if !effects.orders.is_empty() {
            self.say(effects.orders.drain(..));
        }
        effects.wakers.drain(..).for_each(Waker::wake);
        result
    }

    pub(super) fn carry_out_or_end(&self, effects: &mut Effects) {
        if let Err(gone) = self.carry_out(effects) {
            self.end(&gone);
        }
    }
}
