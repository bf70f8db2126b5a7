//! The reading half of a session.

use super::Session;
use super::inside::Following;
use super::table::{Effects, Table};
use super::wait::{Interrupt, Parker, Spin};
use crate::error::SessionEnd;
use parking_lot::MutexGuard;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use std::time::{Duration, Instant};
use transfer_core::op::{Answer, FetchedTensor, Reply};
use transfer_core::wire::ranges::table_bytes;
use transfer_core::wire::session::read_reply;
use transfer_memory::Errno;
use transfer_memory::ring::{Consumer, MAX_RECORD_BYTES};
use transfer_memory::session::{FromSidecar, SessionError};
use transfer_memory::socket::SocketError;

/// The most replies that are handled before what they cause is done.
const REPLIES_PER_DRAIN: usize = 64;

/// The reading half of a session. The holder of its lock reads, and may sleep on the socket.
#[derive(Debug)]
pub(crate) struct Reader {
    completion: Consumer,
    record: Box<[u8; MAX_RECORD_BYTES]>,
    effects: Effects,
    spin: Spin,
}

impl Reader {
    pub(crate) fn new(completion: Consumer, max_spin: Duration) -> Reader {
        Reader {
            completion,
            record: Box::new([0; MAX_RECORD_BYTES]),
            effects: Effects::default(),
            spin: Spin::new(max_spin),
        }
    }

    /// Takes all replies that are there. Returns whether there was one.
    pub(crate) fn drain(&mut self, session: &Session) -> Result<bool, SessionEnd> {
        let mut any = false;
        loop {
            let (taken, result) = self.take_batch(session);
            if taken == 0 {
                return result.map(|()| any);
            }
            any = true;
            if self.completion.should_wake() {
                session.ring();
            }
            result.and(session.carry_out(&mut self.effects))?;
        }
    }

    /// Takes some replies, and hands each to the table at once, because a reply is large to move. Returns their number.
    /// Valid replies before an invalid one count.
    fn take_batch(&mut self, session: &Session) -> (usize, Result<(), SessionEnd>) {
        let (mut table, mut taken, mut result) = (None, 0, Ok(()));
        while taken < REPLIES_PER_DRAIN {
            let reply = match self.completion.try_pop(&mut self.record) {
                Ok(None) => break,
                Ok(Some(bytes)) => read_reply(bytes).map_err(SessionEnd::from),
                Err(error) => Err(error.into()),
            };
            let reply = reply.and_then(|reply| {
                if let Reply::Answer { answer: Answer::Fetched { tensor, .. }, .. } = &reply {
                    self.find_memory(session, tensor, &mut table)?;
                }
                Ok(reply)
            });
            match reply {
                Ok(reply) => {
                    taken += 1;
                    let table = table.get_or_insert_with(|| session.table.lock());
                    result = result.and(table.resolve(reply, &mut self.effects));
                }
                Err(gone) => return (taken, result.and(Err(gone))),
            }
        }
        (taken, result)
    }

    /// Makes sure that the memory of a tensor is mapped. The socket is read without the lock of the table.
    fn find_memory(
        &mut self,
        session: &Session,
        tensor: &FetchedTensor,
        table: &mut Option<MutexGuard<'_, Table>>,
    ) -> Result<(), SessionEnd> {
        let FetchedTensor { meta, slice, ranges, .. } = tensor;
        let len_bytes = match ranges {
            0 => meta.len_bytes(),
            n => meta.body_offset() + table_bytes(*n),
        };
        if session.segments.get(slice.segment).is_none() {
            *table = None;
            // The descriptor was sent before the record that names the segment.
            self.read_socket(session)?;
        }
        match session.segments.get(slice.segment) {
            None => Err(SessionError::UnknownSegment { slice: *slice }.into()),
            Some(_) if slice.len < len_bytes => Err(SessionEnd::TooShort { slice: *slice, len_bytes }),
            Some(mapping) => match mapping.ptr_at(slice.offset, slice.len) {
                Ok(_) => Ok(()),
                Err(source) => Err(SessionError::BadRange { segment: slice.segment, source }.into()),
            },
        }
    }

    /// Takes all messages that are there.
    pub(crate) fn read_socket(&mut self, session: &Session) -> Result<(), SessionEnd> {
        while self.read_message(session)? {}
        Ok(())
    }

    /// Takes one message. Returns whether there was one.
    pub(super) fn read_message(&mut self, session: &Session) -> Result<bool, SessionEnd> {
        match session.socket.try_receive()? {
            None => return Ok(false),
            Some(FromSidecar::Doorbell) => session.hear_doorbell(),
            Some(FromSidecar::Segment(passed)) => {
                match session.segments.adopt(passed) {
                    // Its ranges were returned before the message was handled.
                    Ok(_) | Err(SessionError::NotKept { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                // The owner looks for the mark only after the sidecar's end, so the sidecar must be alive after the
                // mark is set.
                if !session.socket.is_open() {
                    return Err(SessionEnd::Closed);
                }
            }
            Some(FromSidecar::Retired(id)) => session.segments.forget(id),
            Some(other) => return Err(SessionEnd::Unknown { said: format!("{other:?}").into() }),
        }
        Ok(true)
    }

    /// Waits for replies by polling and then by sleeping, at the latest until `until` or until `parker` is woken, and takes them.
    /// `owes_ring`: the sidecar is to be rung, unless this thread turns it.
    pub(crate) fn wait(
        &mut self,
        session: &Session,
        parker: &Parker,
        until: Instant,
        owes_ring: bool,
    ) -> Result<(), SessionEnd> {
        if let Some(inside) = &session.inside
            && let Some(turned) = inside.turn(session, self, parker, until)
        {
            return turned;
        }
        session.pay_ring(owes_ring);
        let _following = Following::of(session.inside.as_ref());
        if self.spin_for_replies(session)? {
            return Ok(());
        }
        if self.announce_sleep() {
            let ready = readable(session, parker, until);
            self.completion.awake();
            if ready? {
                let read = self.read_message(session);
                // Replies from before the end count.
                self.drain(session)?;
                read?;
                return Ok(());
            }
        }
        self.drain(session)?;
        Ok(())
    }

    /// Asks the sidecar to ring when it has replied. Returns `false` if there is a reply by now.
    pub(crate) fn announce_sleep(&mut self) -> bool {
        self.completion.prepare_sleep()
    }

    /// The upper bound of the time for which it polls before it sleeps.
    #[cfg(feature = "embedded")]
    pub(super) fn spins_for(&self) -> Duration {
        self.spin.max()
    }

    fn spin_for_replies(&mut self, session: &Session) -> Result<bool, SessionEnd> {
        if self.spin.now().is_zero() {
            return Ok(false);
        }
        let end = Instant::now() + self.spin.now();
        loop {
            if self.drain(session)? {
                self.spin.won();
                return Ok(true);
            }
            if Instant::now() >= end {
                self.spin.lost();
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }
}

/// Sleeps until the socket has something or has ended (`true`), or until `parker` is woken or `until` (`false`).
fn readable(session: &Session, parker: &Parker, until: Instant) -> Result<bool, SessionEnd> {
    let Some(asleep) = parker.sleep_by(Interrupt::Event(session.interrupt.clone())) else { return Ok(false) };
    let left = until.saturating_duration_since(Instant::now());
    // A wait too long for a timespec is unlimited.
    let timeout = Timespec::try_from(left).ok();
    let fds = &mut [session.socket.as_fd(), session.interrupt.as_fd()];
    let fds = &mut fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let polled = poll(fds, timeout.as_ref());
    drop(asleep);
    // Who has woken this thread has rung. So may a forked child, which has copies of its wakers and shares the event.
    if parker.is_notified() || !fds[1].revents().is_empty() {
        // From here on no thread of this process rings.
        let _ = rustix::io::read(&session.interrupt, &mut [0; 8]);
    }
    match polled {
        Ok(_) => Ok(!fds[0].revents().is_empty()),
        Err(Errno::INTR) => Ok(false),
        Err(source) => Err(SessionError::Socket(SocketError::System { step: "wait", source }).into()),
    }
}
