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

use super::loans::{Loan, Loans};
use super::look_up::{Change, Changes};
use super::notices::Notices;
use super::{Arrival, Gone, Landed};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Command, CounterReport, Failure, LeaseId, OpId, Report};
use transfer_core::tensor::{Key, Name, Version};

/// The kind of reply that an operation expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Push,
    Fetch,
    Delete,
    Prepare,
    OpenCounter,
    Count,
    Wait,
    TakeBack,
}

/// The outcome of an operation.
#[derive(Debug)]
pub(crate) enum Outcome {
    Pushed {
        version: Version,
        report: Report,
    },
    Fetched {
        lease: LeaseId,
        landed: Landed,
    },
    Done,
    CounterOpened {
        home: Name,
        identity: u64,
    },
    Counted {
        old: u64,
        report: CounterReport,
    },
    Released {
        round: u64,
        leader: bool,
        report: CounterReport,
    },
    /// `loan` is the pushed range, which this side owns again; `None` if the sidecar keeps it.
    Failed {
        failure: Failure,
        loan: Option<Box<Loan>>,
    },
    /// This side owns the pushed range again.
    TakenBack {
        loan: Box<Loan>,
    },
    Gone(Gone),
}

/// The work to do once the table is unlocked.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) wakers: Vec<Waker>,
    /// Releases and cancellations.
    pub(crate) orders: Vec<Command>,
    /// Loans that the sidecar has returned.
    pub(crate) returned: Vec<Loan>,
}

impl Effects {
    /// Discards an outcome that no caller wants.
    fn discard(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Fetched { lease, .. } => self.orders.push(Command::Release { lease }),
            Outcome::Failed { loan, .. } => self.returned.extend(loan.map(|l| *l)),
            Outcome::TakenBack { loan } => self.returned.push(*loan),
            Outcome::Pushed { .. }
            | Outcome::Done
            | Outcome::CounterOpened { .. }
            | Outcome::Counted { .. }
            | Outcome::Released { .. }
            | Outcome::Gone(_) => {}
        }
    }
}

#[derive(Debug)]
enum State {
    Vacant { next: Option<u32> },
    Waiting { kind: Kind, overdue: Instant, waker: Option<Waker> },
    Abandoned { kind: Kind },
    Done(Outcome),
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
    gone: Option<Gone>,
    changes: Arc<Changes>,
    notices: Option<Arc<Notices>>,
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
    pub(crate) fn begin(&mut self, kind: Kind, overdue: Instant) -> Result<OpId, Gone> {
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
        self.loans.end(op);
        self.loans.deleted(op, false);
    }

    /// Returns the outcome of an operation, once; or `waker` is woken when there is one.
    pub(crate) fn poll(&mut self, op: OpId, waker: &Waker) -> Poll<Outcome> {
        match self.slot(op).map(|slot| &mut slot.state) {
            Some(State::Waiting { waker: place, .. }) => {
                if !place.as_ref().is_some_and(|w| w.will_wake(waker)) {
                    *place = Some(waker.clone());
                }
                Poll::Pending
            }
            Some(State::Done(_)) => match self.vacate(op) {
                Some(State::Done(outcome)) => Poll::Ready(outcome),
                _ => Poll::Pending,
            },
            _ => Poll::Pending,
        }
    }

    /// Gives up an operation: it is cancelled, or its result is released.
    pub(crate) fn abandon(&mut self, op: OpId, effects: &mut Effects) {
        let Some(slot) = self.slot(op) else { return };
        match &slot.state {
            State::Waiting { kind, .. } => {
                slot.state = State::Abandoned { kind: *kind };
                effects.orders.push(Command::Cancel { op });
            }
            State::Done(_) => {
                if let Some(State::Done(outcome)) = self.vacate(op) {
                    effects.discard(outcome);
                }
            }
            State::Vacant { .. } | State::Abandoned { .. } => {}
        }
    }

    /// Handles a reply.
    ///
    /// # Errors
    /// The reply does not belong to an operation that waits for it.
    pub(crate) fn resolve(&mut self, arrival: Arrival, effects: &mut Effects) -> Result<(), Gone> {
        let (op, answers, outcome) = match arrival {
            Arrival::Returned { pushed } => {
                let Some(loan) = self.loans.end(pushed) else { return Err(Gone::Unasked { op: pushed.0 }) };
                effects.returned.push(loan);
                return Ok(());
            }
            Arrival::Watched { pushed } => {
                // The returned version is no longer the newest, so waiters will be announced with the next push.
                if let (Some(notices), Some(push)) = (&self.notices, self.loans.push(pushed)) {
                    notices.watched(push);
                }
                return Ok(());
            }
            Arrival::Pushed { op, version, report } => {
                if let (Some(notices), Some(push)) = (&self.notices, self.loans.push(op)) {
                    notices.pushed(push, version);
                }
                // A version that has landed on another node belongs to that sidecar.
                if report.fabric == FabricKind::Local {
                    self.loans.published(op, version);
                }
                (op, Some(Kind::Push), Outcome::Pushed { version, report })
            }
            Arrival::TakenBack { op, pushed } => {
                let Some(loan) = self.loans.end(pushed) else { return Err(Gone::Unasked { op: pushed.0 }) };
                (op, Some(Kind::TakeBack), Outcome::TakenBack { loan: Box::new(loan) })
            }
            Arrival::Fetched { op, lease, landed } => (op, Some(Kind::Fetch), Outcome::Fetched { lease, landed }),
            Arrival::Prepared { op } => (op, Some(Kind::Prepare), Outcome::Done),
            Arrival::Deleted { op } => {
                self.loans.deleted(op, true);
                (op, Some(Kind::Delete), Outcome::Done)
            }
            Arrival::CounterOpened { op, home, identity } => {
                (op, Some(Kind::OpenCounter), Outcome::CounterOpened { home, identity })
            }
            Arrival::Counted { op, old, report } => (op, Some(Kind::Count), Outcome::Counted { old, report }),
            Arrival::Released { op, round, leader, report } => {
                (op, Some(Kind::Wait), Outcome::Released { round, leader, report })
            }
            Arrival::Failed { op, failure, kept } => {
                self.loans.deleted(op, false);
                if let (Some(notices), Some(push)) = (&self.notices, self.loans.push(op)) {
                    notices.failed(push);
                }
                let loan = if kept { None } else { self.loans.end(op).map(Box::new) };
                (op, None, Outcome::Failed { failure, loan })
            }
        };
        let unasked = Err(Gone::Unasked { op: op.0 });
        let Some(slot) = self.slot(op) else { return unasked };
        match &mut slot.state {
            State::Waiting { kind, waker, .. } if answers.is_none_or(|k| k == *kind) => {
                effects.wakers.extend(waker.take());
                slot.state = State::Done(outcome);
                if let Some(change) = slot.change.take() {
                    self.changes.end(change);
                }
                Ok(())
            }
            State::Abandoned { kind, .. } if answers.is_none_or(|k| k == *kind) => {
                self.vacate(op);
                effects.discard(outcome);
                Ok(())
            }
            _ => unasked,
        }
    }

    /// Ends the session: all waiting operations fail, and all later ones. Loans stay lent, because other workers may
    /// still read them.
    pub(crate) fn end(&mut self, gone: &Gone, effects: &mut Effects) {
        if self.gone.is_some() {
            return;
        }
        self.gone = Some(gone.clone());
        for slot in &mut self.slots {
            if let State::Waiting { waker, .. } = &mut slot.state {
                effects.wakers.extend(waker.take());
                slot.state = State::Done(Outcome::Gone(gone.clone()));
            }
        }
    }

    /// Records that no session follows this one.
    pub(crate) fn end_for_good(&mut self, gone: Gone) {
        self.gone = Some(gone);
    }

    /// The reason why the session is over, if it is.
    pub(crate) fn gone(&self) -> Option<&Gone> {
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
    use transfer_core::op::{FailureCode, Push};
    use transfer_core::tensor::{DType, Retention, TensorMeta};

    fn failed(op: OpId, kept: bool) -> Arrival {
        Arrival::Failed { op, failure: Failure::new(FailureCode::Busy, "busy"), kept }
    }

    fn push(table: &mut Table, offset: u64, allocation: u64) -> OpId {
        let op = table.begin(Kind::Push, Instant::now()).unwrap();
        let push = Push {
            op,
            key: Key::new("k").unwrap(),
            version: None,
            meta: TensorMeta::of(DType::U8, &[1]).unwrap(),
            offset,
            to: None,
            timeout: Duration::ZERO,
            require: None,
            retention: Retention::default(),
            takeover: false,
            readable_by: Vec::new(),
            ranges: 0,
            trace: None,
            more_follow: false,
            announced: None,
        };
        table.loans.lend(&push, Lent { offset, allocation, owned: offset == allocation }, Vec::new(), Vec::new());
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
        // An outcome that no caller has taken yet is not overwritten.
        assert_eq!(table.resolve(failed(first, false), &mut effects), Err(Gone::Unasked { op: first.0 }));
        assert!(matches!(table.poll(first, Waker::noop()), Poll::Ready(Outcome::Failed { loan: Some(_), .. })));
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
        let ops = [push(&mut table, 128, 64), push(&mut table, 128, 64), push(&mut table, 128, 64)];
        table.undo(ops[2]);
        table.resolve(failed(ops[0], false), &mut effects).unwrap();
        assert!(effects.returned.is_empty(), "the caller that takes the outcome returns it");
        table.resolve(Arrival::Returned { pushed: ops[1] }, &mut effects).unwrap();
        assert_eq!(returned(&effects), [64]);
        let twice = table.resolve(Arrival::Returned { pushed: ops[1] }, &mut effects);
        assert_eq!(twice, Err(Gone::Unasked { op: ops[1].0 }));
    }

    #[test]
    fn abandoned_operations_leave_nothing_behind() {
        let (mut table, mut effects) = (Table::default(), Effects::default());
        let fetch = |table: &mut Table| table.begin(Kind::Fetch, Instant::now()).unwrap();
        let landed = || Landed {
            version: Version(1),
            meta: transfer_core::tensor::TensorMeta::of(transfer_core::tensor::DType::U8, &[]).unwrap(),
            slice: transfer_core::memory::LocalSlice {
                segment: transfer_core::memory::SegmentId(1),
                offset: 0,
                len: 1,
            },
            ranges: 0,
            report: Report {
                fabric: transfer_core::fabric::FabricKind::Local,
                bytes: 1,
                copied: 0,
                queued: std::time::Duration::ZERO,
                waited: std::time::Duration::ZERO,
                flew: std::time::Duration::ZERO,
                origin: None,
            },
        };
        // Before its answer, and after it.
        let (early, late) = (fetch(&mut table), fetch(&mut table));
        table.abandon(early, &mut effects);
        table.resolve(Arrival::Fetched { op: early, lease: LeaseId(1), landed: landed() }, &mut effects).unwrap();
        table.resolve(Arrival::Fetched { op: late, lease: LeaseId(2), landed: landed() }, &mut effects).unwrap();
        table.abandon(late, &mut effects);
        let release = |n| Command::Release { lease: LeaseId(n) };
        assert_eq!(effects.orders, [Command::Cancel { op: early }, release(1), release(2)]);
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
        table.end(&Gone::Closed, &mut effects);
        table.end(&Gone::Unasked { op: 1 }, &mut effects);
        assert!(matches!(table.poll(op, Waker::noop()), Poll::Ready(Outcome::Gone(Gone::Closed))));
        assert_eq!(table.begin(Kind::Fetch, Instant::now()), Err(Gone::Closed));
    }
}
