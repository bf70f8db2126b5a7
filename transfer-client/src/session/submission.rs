//! The writing half of a session.

use super::look_up::Changes;
use super::notices::{Change, NoticeUpdate, Notices};
use super::table::{Kind, Table};
use super::{Held, LentDeltas};
use crate::error::SessionEnd;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use transfer_core::op::{Command, CounterAsk, CounterCommand, Deltas, OpId, Push, Request};
use transfer_core::wire::Writer;
use transfer_core::wire::session::{write_command, write_request};
use transfer_memory::ring::Producer;

/// A command that is being written into the ring.
#[derive(Debug)]
pub(crate) struct Submitting {
    pub(crate) command: Command,
    /// The range to lend with a push, or with a fetch into memory.
    pub(crate) held: Option<Held>,
    /// The memory of the push's deltas.
    pub(crate) deltas: Option<Box<LentDeltas>>,
    /// After this moment the waiter is woken to check whether it still waits.
    pub(crate) overdue: Instant,
    /// Its number, once it is in the ring.
    pub(crate) op: Option<OpId>,
}

impl Submitting {
    fn kind(&self) -> Kind {
        match &self.command {
            Command::Push(_) => Kind::Push,
            Command::Fetch(_) | Command::FetchInto(_) | Command::Gather(_) => Kind::Fetch,
            Command::Reserve(_) => Kind::Reserve,
            Command::Counter(CounterCommand { ask: CounterAsk::Operate { .. }, .. }) => Kind::Count,
            Command::Counter(CounterCommand { ask: CounterAsk::Wait { .. }, .. }) => Kind::Wait,
            Command::Counter(CounterCommand { ask: CounterAsk::Roster(_), .. }) => Kind::Roster,
            Command::Counter(_) => Kind::OpenCounter,
            Command::TakeBack(_) => Kind::TakeBack,
            // The client sends no others.
            _ => Kind::Delete,
        }
    }
}

/// The writing half of a session.
#[derive(Debug)]
pub(crate) struct Submission {
    producer: Producer,
    record: Vec<u8>,
    /// Releases and cancellations that found the ring full. They are sent before any other request.
    backlog: VecDeque<Request>,
    notices: Arc<Notices>,
    /// The changes of notices that belong to commands in the ring that are not published yet.
    notices_change: SmallVec<[Change; 1]>,
}

/// The result of [`Submission::finish`].
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finish {
    /// The notices whose waiters are to be woken.
    pub(crate) wake: SmallVec<[u16; 1]>,
    /// Whether the sidecar sleeps and has to be rung.
    pub(crate) ring: bool,
    /// Whether commands are left; the sidecar will ring when there is room.
    pub(crate) full: bool,
}

impl Submission {
    pub(crate) fn new(producer: Producer, notices: Arc<Notices>) -> Submission {
        let (record, backlog, notices_change) = (Vec::with_capacity(256), VecDeque::new(), SmallVec::new());
        Submission { producer, record, backlog, notices, notices_change }
    }

    /// Writes commands from `next` on, as long as there is room, and advances `next`. The caller [records](Submission::record) them
    /// before it unlocks the table.
    pub(crate) fn write(
        &mut self,
        table: &mut Table,
        changes: &Changes,
        todo: &mut [Submitting],
        next: &mut usize,
    ) -> Result<(), SessionEnd> {
        if !self.write_backlog()? {
            return Ok(());
        }
        while let Some(item) = todo.get_mut(*next) {
            let op = table.begin(item.kind(), item.overdue)?;
            // A base that is lent is no version of its key.
            let is_base = matches!(&item.command, Command::Push(Push { deltas: Deltas::Base, .. }));
            let changed = match &item.command {
                _ if is_base => None,
                Command::Push(push) => Some(&push.key),
                Command::Delete { key, .. } => Some(key),
                Command::TakeBack(take_back) => Some(&take_back.key),
                _ => None,
            };
            if let Some(key) = changed {
                table.changes(op, key);
            }
            let (asked, change) = match &mut item.command {
                _ if is_base => (None, None),
                Command::Push(push) => (push.version, self.notices.announce(push, changes)),
                command => (None, self.notices.change(command)),
            };
            match self.push(|w| write_command(w, op, &item.command)) {
                Ok(true) => {}
                not_written => {
                    table.undo(op);
                    if let Command::Push(push) = &mut item.command {
                        self.notices.forget(push, asked);
                    }
                    return not_written.map(|_| ());
                }
            }
            self.notices_change.extend(change);
            item.op = Some(op);
            *next += 1;
        }
        Ok(())
    }

    /// Records what commands in the ring have lent. Replies to them are not handled before, because that takes the table.
    pub(crate) fn record(table: &mut Table, written: &mut [Submitting]) {
        for Submitting { command, held, deltas, op, .. } in written {
            match (command, held.take(), *op) {
                (Command::Push(push), Some(held), Some(op)) => {
                    table.loans.lend(op, push, held.to_lend(), held.along(), held.formers());
                    held.lend();
                    if let Some(deltas) = deltas.take() {
                        deltas.lend();
                    }
                }
                (Command::FetchInto(_), Some(held), Some(op)) => {
                    table.loans.land(op, held.destinations());
                    held.lend();
                }
                (Command::Delete { key }, _, Some(op)) => table.loans.deleting(op, key),
                _ => {}
            }
        }
    }

    /// Writes a request that has no answer and cannot wait: a release, a cancellation. If there is no room, it joins the backlog.
    pub(crate) fn write_or_keep(&mut self, request: Request) -> Result<(), SessionEnd> {
        if !self.backlog.is_empty() || !self.write_request(&request)? {
            self.backlog.push_back(request);
        }
        Ok(())
    }

    /// Writes a request, if there is room.
    fn write_request(&mut self, request: &Request) -> Result<bool, SessionEnd> {
        let written = self.push(|w| write_request(w, request))?;
        if written && let Request::Unannounce { key } = request {
            self.notices.asked(key);
        }
        Ok(written)
    }

    /// Whether a request waits for room.
    pub(crate) fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Writes the backlog. Returns whether all of it is written.
    pub(crate) fn write_backlog(&mut self) -> Result<bool, SessionEnd> {
        while let Some(request) = self.backlog.pop_front() {
            if !self.write_request(&request)? {
                self.backlog.push_front(request);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Publishes everything that was written. With `want_room`, asks the sidecar to ring when there is room for the
    /// command that did not fit.
    pub(crate) fn finish(&mut self, want_room: bool) -> Result<Finish, SessionEnd> {
        let update = self.notices.begin_update(&mut self.notices_change);
        let full = match want_room {
            // The record that did not fit was the last one encoded.
            true => self.producer.prepare_wait(self.record.len())?,
            false => {
                self.producer.publish();
                false
            }
        };
        let wake = update.map_or_else(SmallVec::new, NoticeUpdate::finish);
        Ok(Finish { wake, ring: self.producer.should_wake(), full })
    }

    fn push(&mut self, write: impl FnOnce(&mut Writer)) -> Result<bool, SessionEnd> {
        let mut writer = Writer::reusing(std::mem::take(&mut self.record));
        write(&mut writer);
        self.record = writer.into_vec();
        Ok(self.producer.try_push(&self.record)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transfer_core::op::LeaseId;
    use transfer_core::wire::session::read_request;
    use transfer_memory::ring::{Consumer, MAX_RECORD_BYTES, MIN_CAPACITY, RingRange};
    use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

    fn leases(consumer: &mut Consumer) -> Vec<u64> {
        let mut record = [0; MAX_RECORD_BYTES];
        let mut all = Vec::new();
        while let Some(bytes) = consumer.try_pop(&mut record).unwrap() {
            let Request::Release { lease } = read_request(bytes).unwrap() else { panic!("{bytes:?}") };
            all.push(lease.0);
        }
        all
    }

    #[test]
    fn releases_keep_their_order_while_the_ring_is_full() {
        let options = SegmentOptions { len: 16384, pages: Pages::Base, lock: Lock::No };
        let segment = Segment::create("ring", &options, &PinnedBudget::new(16384)).unwrap();
        let (mapping, range) = (segment.mapping().clone(), RingRange { offset: 128, capacity: MIN_CAPACITY });
        let mut consumer = Consumer::new(mapping.clone(), range).unwrap();
        let notices = Arc::new(Notices::new(1, u64::MAX, None));
        let mut submission = Submission::new(Producer::new(mapping, range).unwrap(), notices);
        let mut said = 0;
        let mut release = |submission: &mut Submission| {
            submission.write_or_keep(Request::Release { lease: LeaseId(said) }).unwrap();
            said += 1;
        };
        while !submission.has_backlog() {
            release(&mut submission);
        }
        let _ = submission.finish(true).unwrap();
        let mut heard = leases(&mut consumer);
        // There is room by now, but one waits already.
        release(&mut submission);
        assert!(submission.write_backlog().unwrap());
        let _ = submission.finish(false).unwrap();
        heard.extend(leases(&mut consumer));
        assert_eq!(heard, (0..said).collect::<Vec<_>>());
    }
}
