//! The operations without an answer.
//!
//! | state of a slot | leaves it by |
//! |---|---|
//! | vacant | [`Table::begin`]: waiting |
//! | waiting | its one reply: done; [`Table::abandon`]: abandoned; [`Table::undo`]: vacant |
//! | abandoned: no caller waits | its one reply, which is discarded: vacant |
//! | done | [`Table::poll`], [`Table::abandon`]: vacant |
//!
//! Every operation gets exactly one reply, so a slot is reused only after it, with another generation.

use super::Lent;
use super::loans::{Loan, Loans};
use super::look_up::{Change, Changes};
use super::notices::Notices;
use crate::error::{Error, SessionEnd};
use hashbrown::HashMap;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Answer, FailureCode, OpId, Reply, Request};
use transfer_core::tensor::Key;

/// The kind of reply that an operation expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Push,
    Fetch,
    Delete,
    Reserve,
    OpenCounter,
    Count,
    Wait,
    TakeBack,
    Roster,
}

impl Kind {
    /// Whether this operation can have that answer.
    fn takes(self, answer: &Answer) -> bool {
        match answer {
            Answer::Pushed { .. } => self == Kind::Push,
            Answer::Fetched { .. } | Answer::Landed { .. } | Answer::Torn { .. } => self == Kind::Fetch,
            Answer::Reserved => self == Kind::Reserve,
            Answer::TakenBack { .. } => self == Kind::TakeBack,
            Answer::Deleted => self == Kind::Delete,
            Answer::CounterOpened { .. } => self == Kind::OpenCounter,
            Answer::Counted { .. } => self == Kind::Count,
            Answer::Released { .. } => self == Kind::Wait,
            Answer::Roster(_) => self == Kind::Roster,
            Answer::Failed { .. } => true,
            _ => false,
        }
    }
}

/// The answer to an operation, with the range that it gives back.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) op: OpId,
    pub(crate) answer: Answer,
    /// The range that belongs to this side again: that of a failed push, if the sidecar does not keep it, and that of a
    /// version that was taken back.
    pub(crate) loan: Option<Box<Loan>>,
    /// The ranges of a fetch into memory, which belong to this side again.
    pub(crate) destination: Vec<Lent>,
}

impl Answered {
    /// The publication of which a fetch has got a part. `None`: it got none, or all of the version, or it is not known which.
    pub(crate) fn publication(&self) -> Option<u64> {
        match &self.answer {
            Answer::Fetched { tensor, .. } => Some(tensor.publication).filter(|publication| *publication > 0),
            _ => None,
        }
    }

    /// Whether the version does not fit the landing pool.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(&self.answer, Answer::Failed { failure, .. } if failure.code == FailureCode::TooLarge)
    }

    /// The answer, as `take` reads it. The table passes only answers of the kind that the operation expects, so `None` is a
    /// sidecar that has answered something else.
    ///
    /// # Errors
    /// The failure.
    pub(crate) fn read<T>(self, take: impl FnOnce(Answer) -> Option<T>) -> Result<T, Error> {
        match self.answer {
            Answer::Failed { failure, .. } => Err(failure.into()),
            answer => take(answer).ok_or_else(|| SessionEnd::Unasked { op: self.op.0 }.into()),
        }
    }
}

/// The work to do once the table is unlocked.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) wakers: Vec<Waker>,
    /// Releases and cancellations.
    pub(crate) orders: Vec<Request>,
    /// Loans that the sidecar has returned.
    pub(crate) returned: Vec<Loan>,
    /// The ranges of fetches into memory that no caller wants.
    pub(crate) landed: Vec<Lent>,
}

impl Effects {
    /// Discards an answer that no caller wants.
    fn discard(&mut self, answered: Answered) {
        if let Answer::Fetched { lease, .. } = answered.answer {
            self.orders.push(Request::Release { lease });
        }
        self.returned.extend(answered.loan.map(|loan| *loan));
        self.landed.extend(answered.destination);
    }
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "an entry is used again for each operation, and nothing is allocated for an answer"
)]
enum State {
    Vacant { next: Option<u32> },
    Waiting { kind: Kind, overdue: Instant, waker: Option<Waker> },
    Abandoned { kind: Kind },
    Done(Result<Answered, SessionEnd>),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
    /// The change of a key by an operation that has no answer yet.
    change: Option<Change>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Slot>,
    vacant: Option<u32>,
    pub(crate) loans: Loans,
    gone: Option<SessionEnd>,
    changes: Arc<Changes>,
    notices: Option<Arc<Notices>>,
    /// The calls that want to know how many versions of a key are left, by their numbers.
    counting: HashMap<u64, Counting>,
    next_count: u64,
    /// How many versions did not fit the landing pool.
    refusals: u64,
    /// Wakes the batches that look for these, by their first operations.
    awaiting_refusals: HashMap<OpId, Waker>,
}

/// A call that wants to know how many versions of a key are left.
#[derive(Debug, Default)]
struct Counting {
    /// `None` before the sidecar has said it. The inner `None`: the key is not this worker's.
    left: Option<Option<u32>>,
    waker: Option<Waker>,
}

fn split(op: OpId) -> (usize, u32) {
    ((op.0 & u64::from(u32::MAX)) as usize, (op.0 >> 32) as u32)
}

impl Table {
    /// Makes an empty table. Operations that change a key are counted in `changes`; the results of announced pushes are
    /// reported to `notices`.
    pub(crate) fn new(changes: Arc<Changes>, notices: Arc<Notices>) -> Table {
        Table { changes, notices: Some(notices), ..Table::default() }
    }

    /// Begins to count the versions of a key that are left. The caller sends the request.
    pub(crate) fn begin_count(&mut self) -> u64 {
        self.next_count += 1;
        self.counting.insert(self.next_count, Counting::default());
        self.next_count
    }

    /// Returns how many are left, once that is known. Then, and at the end of the session, `waker` is woken when it changes.
    ///
    /// # Errors
    /// The reason why the session is over.
    pub(crate) fn poll_count(&mut self, number: u64, waker: &Waker) -> Result<Option<Option<u32>>, SessionEnd> {
        if let Some(gone) = &self.gone {
            return Err(gone.clone());
        }
        let counting = self.counting.entry(number).or_default();
        counting.waker = Some(waker.clone());
        Ok(counting.left)
    }

    /// Ends a count.
    pub(crate) fn end_count(&mut self, number: u64) {
        self.counting.remove(&number);
    }

    /// Records that this operation changes that key until it has its answer.
    pub(crate) fn changes(&mut self, op: OpId, key: &Key) {
        let change = self.changes.begin(key);
        match self.slot(op) {
            Some(slot) => slot.change = Some(change),
            None => self.changes.end(change),
        }
    }

    /// Begins an operation.
    ///
    /// # Errors
    /// The reason why the session is over.
    pub(crate) fn begin(&mut self, kind: Kind, overdue: Instant) -> Result<OpId, SessionEnd> {
        if let Some(gone) = &self.gone {
            return Err(gone.clone());
        }
        let state = State::Waiting { kind, overdue, waker: None };
        let index = match self.vacant {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                if let State::Vacant { next } = slot.state {
                    self.vacant = next;
                }
                slot.state = state;
                index
            }
            None => {
                self.slots.push(Slot { generation: 0, state, change: None });
                (self.slots.len() - 1) as u32
            }
        };
        let generation = self.slots[index as usize].generation;
        Ok(OpId(u64::from(generation) << 32 | u64::from(index)))
    }

    /// Undoes [`Table::begin`] for a command that was not sent.
    pub(crate) fn undo(&mut self, op: OpId) {
        self.vacate(op);
    }

    /// Returns the end of an operation, once; or `waker` is woken when there is one.
    pub(crate) fn poll(&mut self, op: OpId, waker: &Waker) -> Poll<Result<Answered, SessionEnd>> {
        match self.slot(op).map(|slot| &mut slot.state) {
            Some(State::Waiting { waker: place, .. }) => {
                if !place.as_ref().is_some_and(|w| w.will_wake(waker)) {
                    *place = Some(waker.clone());
                }
                Poll::Pending
            }
            Some(State::Done(_)) => match self.vacate(op) {
                Some(State::Done(end)) => Poll::Ready(end),
                _ => Poll::Pending,
            },
            _ => Poll::Pending,
        }
    }

    /// Whether a version may not have fitted the landing pool since the last look. From then on `waker` is woken when there is another one,
    /// until [`end_refusals`](Table::end_refusals). A batch has the number of its first operation.
    pub(crate) fn poll_refusals(&mut self, batch: OpId, look: &mut Option<u64>, waker: &Waker) -> bool {
        self.awaiting_refusals.entry(batch).or_insert_with(|| waker.clone()).clone_from(waker);
        look.replace(self.refusals) != Some(self.refusals)
    }

    pub(crate) fn end_refusals(&mut self, batch: OpId) {
        self.awaiting_refusals.remove(&batch);
    }

    /// Whether the version of this operation, which has ended and was not polled, does not fit the landing pool.
    pub(crate) fn is_refused(&mut self, op: OpId) -> bool {
        matches!(self.slot(op).map(|slot| &slot.state), Some(State::Done(Ok(answered))) if answered.is_refused())
    }

    /// Gives up an operation: it is cancelled, or its result is released.
    pub(crate) fn abandon(&mut self, op: OpId, effects: &mut Effects) {
        let Some(slot) = self.slot(op) else { return };
        match &slot.state {
            State::Waiting { kind, .. } => {
                slot.state = State::Abandoned { kind: *kind };
                effects.orders.push(Request::Cancel { op });
            }
            State::Done(_) => {
                if let Some(State::Done(Ok(answered))) = self.vacate(op) {
                    effects.discard(answered);
                }
            }
            State::Vacant { .. } | State::Abandoned { .. } => {}
        }
    }

    /// Handles a reply.
    ///
    /// # Errors
    /// The reply does not belong to an operation that waits for it.
    pub(crate) fn resolve(&mut self, reply: Reply, effects: &mut Effects) -> Result<(), SessionEnd> {
        match reply {
            Reply::Answer { op, answer } => self.answer(op, answer, effects),
            Reply::Returned { pushed, .. } => {
                effects.returned.push(self.end_loan(pushed)?);
                Ok(())
            }
            Reply::Watched { pushed } => {
                // The returned version is no longer the newest, so waiters will be announced with the next push.
                if let (Some(notices), Some(push)) = (&self.notices, self.loans.push(pushed)) {
                    let let_go = notices.watched(push).into_iter();
                    effects.orders.extend(let_go.map(|key| Request::Unannounce { key }));
                }
                Ok(())
            }
            Reply::Unfetched { number, left } => {
                // The call may have been given up.
                if let Some(counting) = self.counting.get_mut(&number) {
                    counting.left = Some(left);
                    effects.wakers.extend(counting.waker.take());
                }
                Ok(())
            }
            other => Err(SessionEnd::Unknown { said: format!("{other:?}").into() }),
        }
    }

    fn end_loan(&mut self, pushed: OpId) -> Result<Loan, SessionEnd> {
        self.loans.end(pushed).ok_or(SessionEnd::Unasked { op: pushed.0 })
    }

    fn answer(&mut self, op: OpId, answer: Answer, effects: &mut Effects) -> Result<(), SessionEnd> {
        let mut loan = None;
        let destination = self.loans.end_landing(op);
        match &answer {
            Answer::Pushed { version, link_rate, report } => {
                if let (Some(notices), Some(push)) = (&self.notices, self.loans.push(op)) {
                    notices.pushed(push, *version);
                }
                // A version that has landed on another node belongs to that sidecar.
                if report.fabric == FabricKind::Local {
                    self.loans.published(op, *version, *link_rate);
                }
            }
            Answer::TakenBack { pushed, .. } => loan = Some(Box::new(self.end_loan(*pushed)?)),
            Answer::Deleted => self.loans.deleted(op, true),
            Answer::Failed { kept, failure, .. } => {
                if failure.code == FailureCode::TooLarge {
                    self.refusals += 1;
                    effects.wakers.extend(self.awaiting_refusals.values().cloned());
                }
                self.loans.deleted(op, false);
                if let (Some(notices), Some(push)) = (&self.notices, self.loans.push(op)) {
                    notices.failed(push);
                }
                if !kept {
                    loan = self.loans.end(op).map(Box::new);
                }
            }
            _ => {}
        }
        let unasked = Err(SessionEnd::Unasked { op: op.0 });
        let Some(slot) = self.slot(op) else { return unasked };
        match &mut slot.state {
            State::Waiting { kind, waker, .. } if kind.takes(&answer) => {
                effects.wakers.extend(waker.take());
                slot.state = State::Done(Ok(Answered { op, answer, loan, destination }));
                if let Some(change) = slot.change.take() {
                    self.changes.end(change);
                }
                Ok(())
            }
            State::Abandoned { kind, .. } if kind.takes(&answer) => {
                self.vacate(op);
                effects.discard(Answered { op, answer, loan, destination });
                Ok(())
            }
            _ => unasked,
        }
    }

    /// Ends the session: all waiting operations fail, and all later ones. Loans stay lent, because other workers may
    /// still read them.
    pub(crate) fn end(&mut self, gone: &SessionEnd, effects: &mut Effects) {
        if self.gone.is_some() {
            return;
        }
        self.gone = Some(gone.clone());
        effects.wakers.extend(self.counting.values_mut().filter_map(|counting| counting.waker.take()));
        for slot in &mut self.slots {
            if let State::Waiting { waker, .. } = &mut slot.state {
                effects.wakers.extend(waker.take());
                slot.state = State::Done(Err(gone.clone()));
            }
        }
    }

    /// Records that no session follows this one.
    pub(crate) fn end_for_good(&mut self, gone: SessionEnd) {
        self.gone = Some(gone);
    }

    /// The reason why the session is over, if it is.
    pub(crate) fn gone(&self) -> Option<&SessionEnd> {
        self.gone.as_ref()
    }

    /// Wakes the waiters of overdue operations, so that they look at the clock.
    pub(crate) fn wake_overdue(&mut self, now: Instant, effects: &mut Effects) {
        for slot in &mut self.slots {
            if let State::Waiting { waker, overdue, .. } = &mut slot.state
                && *overdue <= now
            {
                effects.wakers.extend(waker.take());
            }
        }
    }

    fn slot(&mut self, op: OpId) -> Option<&mut Slot> {
        let (index, generation) = split(op);
        let vacant = |slot: &Slot| matches!(slot.state, State::Vacant { .. });
        self.slots.get_mut(index).filter(|slot| slot.generation == generation && !vacant(slot))
    }

    fn vacate(&mut self, op: OpId) -> Option<State> {
        let next = self.vacant;
        let slot = self.slot(op)?;
        slot.generation = slot.generation.wrapping_add(1);
        let state = std::mem::replace(&mut slot.state, State::Vacant { next });
        if let Some(change) = slot.change.take() {
            self.changes.end(change);
        }
        self.vacant = Some(split(op).0 as u32);
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Lent;
    use std::time::Duration;
    use transfer_core::op::{Failure, FailureCode, FetchedTensor, LeaseId, Push, Report};
    use transfer_core::tensor::{DType, TensorMeta, Version};

    fn failed(op: OpId, kept: bool) -> Reply {
        Reply::Answer { op, answer: Answer::Failed { failure: Failure::new(FailureCode::Busy, "busy"), kept } }
    }

    fn push(table: &mut Table, offset: u64, allocation: u64) -> OpId {
        let op = table.begin(Kind::Push, Instant::now()).unwrap();
        let push = Push {
            timeout: Duration::ZERO,
            ..Push::new(Key::new("k").unwrap(), TensorMeta::of(DType::U8, &[1]).unwrap(), offset)
        };
        table.loans.lend(op, &push, Lent { offset, allocation, owned: offset == allocation }, Vec::new(), Vec::new());
        op
    }

    fn returned(effects: &Effects) -> Vec<u64> {
        effects.returned.iter().map(|loan| loan.lent.allocation).collect()
    }

    #[test]
    fn reused_slot_has_another_generation() {
        let (mut table, mut effects) = (Table::default(), Effects::default());
        let first = push(&mut table, 0, 0);
        assert!(table.poll(first, Waker::noop()).is_pending());
        table.resolve(failed(first, false), &mut effects).unwrap();
        assert_eq!(effects.wakers.len(), 1);
        // An answer that no caller has taken yet is not overwritten.
        assert_eq!(table.resolve(failed(first, false), &mut effects), Err(SessionEnd::Unasked { op: first.0 }));
        assert!(matches!(table.poll(first, Waker::noop()), Poll::Ready(Ok(Answered { loan: Some(_), .. }))));
        assert!(table.poll(first, Waker::noop()).is_pending());
        let second = push(&mut table, 0, 0);
        assert_eq!((table.slots.len(), first == second), (1, false));
        assert!(table.resolve(failed(first, false), &mut effects).is_err());
        table.undo(second);
        assert!(table.resolve(failed(second, false), &mut effects).is_err());
    }

    #[test]
    fn ranges_of_an_allocation_return_to_it_once_for_each_push() {
        let (mut table, mut effects) = (Table::default(), Effects::default());
        let ops = [push(&mut table, 128, 64), push(&mut table, 128, 64)];
        table.resolve(failed(ops[0], false), &mut effects).unwrap();
        assert!(effects.returned.is_empty(), "the caller that takes the answer returns it");
        table.resolve(Reply::Returned { pushed: ops[1], offset: 128 }, &mut effects).unwrap();
        assert_eq!(returned(&effects), [64]);
        let twice = table.resolve(Reply::Returned { pushed: ops[1], offset: 128 }, &mut effects);
        assert_eq!(twice, Err(SessionEnd::Unasked { op: ops[1].0 }));
    }

    #[test]
    fn abandoned_operations_leave_nothing_behind() {
        let (mut table, mut effects) = (Table::default(), Effects::default());
        let fetch = |table: &mut Table| table.begin(Kind::Fetch, Instant::now()).unwrap();
        let tensor = || FetchedTensor {
            version: Version(1),
            meta: TensorMeta::of(DType::U8, &[]).unwrap(),
            slice: transfer_core::memory::LocalSlice {
                segment: transfer_core::memory::SegmentId(1),
                offset: 0,
                len: 1,
            },
            ranges: 0,
            is_part: false,
            publication: 0,
            report: Report {
                fabric: FabricKind::Local,
                bytes: 1,
                copied: 0,
                verified: 0,
                relayed: 0,
                delta: 0,
                queued: Duration::ZERO,
                waited: Duration::ZERO,
                in_flight: Duration::ZERO,
                origin: None,
            },
        };
        // Before its answer, and after it.
        let (early, late) = (fetch(&mut table), fetch(&mut table));
        table.abandon(early, &mut effects);
        table
            .resolve(
                Reply::Answer { op: early, answer: Answer::Fetched { lease: LeaseId(1), tensor: tensor() } },
                &mut effects,
            )
            .unwrap();
        table
            .resolve(
                Reply::Answer { op: late, answer: Answer::Fetched { lease: LeaseId(2), tensor: tensor() } },
                &mut effects,
            )
            .unwrap();
        table.abandon(late, &mut effects);
        let release = |n| Request::Release { lease: LeaseId(n) };
        assert_eq!(effects.orders, [Request::Cancel { op: early }, release(1), release(2)]);
        // A push that was given up, and failed then.
        let op = push(&mut table, 64, 64);
        table.abandon(op, &mut effects);
        table.resolve(failed(op, false), &mut effects).unwrap();
        assert_eq!(returned(&effects), [64]);
        assert!(table.slots.iter().all(|slot| matches!(slot.state, State::Vacant { .. })));
    }

    #[test]
    fn end_of_the_session_ends_every_operation_once() {
        let (mut table, mut effects) = (Table::default(), Effects::default());
        let op = push(&mut table, 0, 0);
        table.end(&SessionEnd::Closed, &mut effects);
        table.end(&SessionEnd::Unasked { op: 1 }, &mut effects);
        assert!(matches!(table.poll(op, Waker::noop()), Poll::Ready(Err(SessionEnd::Closed))));
        assert_eq!(table.begin(Kind::Fetch, Instant::now()), Err(SessionEnd::Closed));
    }
}
