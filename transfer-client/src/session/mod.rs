//! A session with a sidecar: what both faces of the client stand on. No async runtime in here.
//!
//! # Who reads
//! The completion ring and the socket have one reader at a time: whoever holds the lock of [`Reader`]. A thread that waits for its
//! operation and finds no reader becomes it, and sleeps on the socket itself: a blocking call in a worker of one thread costs one
//! wake-up and no hop to another thread. Other threads that wait meanwhile are *followers*; when the reader is done, it hands over to
//! one of them. An async client has a *driver*, a task that reads whenever no thread does. See [`lead`].
//!
//! # Forks
//! A forked child has what its parent has, and shares its parent's rings, marks and socket. Whatever would touch those looks first whether
//! it is in a child ([`Session::is_forked`]): calls fail with [`crate::Error::Forked`], and drops do nothing. No lock is taken before, since a
//! thread of the parent may have held it, of which the child has nothing.
//!
//! # Locks
//! Inner ones last: `reader`, `submission`, `table`; the lists of waiters, and the notices, are leaves. User code (wakers) runs under `reader` only.

mod gone;
mod held;
mod home;
mod lead;
mod loans;
mod look_up;
mod memory;
mod notices;
mod reader;
mod submission;
mod table;
mod wait;
mod watch;

pub(crate) use gone::FORKED;
pub use gone::Gone;
pub(crate) use held::{Held, Lent, SharedRange};
pub(crate) use home::{Former, Home};
use lead::Driver;
pub(crate) use loans::Loan;
use look_up::Changes;
use notices::Notices;
use reader::Reader;
use submission::Submission;
pub(crate) use submission::Submitting;
pub(crate) use table::Outcome;
use table::{Effects, Table};
pub(crate) use watch::WaitEnd;

use parking_lot::{Mutex, MutexGuard};
use rustix::fd::{AsFd, BorrowedFd};
use std::any::Any;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use transfer_core::memory::LocalSlice;
use transfer_core::op::{Command, CounterReport, Failure, LeaseId, OpId, Report};
use transfer_core::tensor::{Key, Name, TensorMeta, Version};
use transfer_memory::Errno;
use transfer_memory::arena::Arena;
use transfer_memory::board::{Alarm, BoardReader};
use transfer_memory::forked::ForkGuard;
use transfer_memory::ring::RingError;
use transfer_memory::segment::SegmentError;
use transfer_memory::session::{Segments, SessionError, WorkerEnd, WorkerSocket};
use transfer_memory::view::{Bytes, Owner};
use wait::{Parker, Spin, Waiters};

/// How long a thread that gives something back waits for a sidecar that does not take it.
const PATIENCE: Duration = Duration::from_millis(100);

/// What lives as long as the session: the sidecar, where this process runs it.
pub(crate) type Keep = Option<Arc<dyn Any + Send + Sync>>;

/// A reply, with the memory that it names.
#[derive(Debug)]
pub(crate) enum Arrival {
    Pushed { op: OpId, version: Version, report: Report },
    Fetched { op: OpId, lease: LeaseId, landed: Landed },
    Deleted { op: OpId },
    Prepared { op: OpId },
    CounterOpened { op: OpId, home: Name, identity: u64 },
    Counted { op: OpId, old: u64, report: CounterReport },
    Released { op: OpId, round: u64, leader: bool, report: CounterReport },
    Failed { op: OpId, failure: Failure, kept: bool },
    Returned { pushed: OpId },
    Watched { pushed: OpId },
    TakenBack { op: OpId, pushed: OpId },
}

/// What a fetch brings. It stays as it is for as long as it is held.
#[derive(Debug)]
pub(crate) struct Landed {
    pub(crate) version: Version,
    pub(crate) meta: TensorMeta,
    pub(crate) slice: LocalSlice,
    /// Of how many ranges of its segment the body is made; 0: it lies behind the metadata.
    pub(crate) ranges: u32,
    pub(crate) report: Report,
}

/// See the [module](self).
pub(crate) struct Session {
    socket: WorkerSocket,
    reader: Mutex<Reader>,
    submission: Mutex<Submission>,
    table: Mutex<Table>,
    segments: Segments,
    /// What can be looked up, where the sidecar has a board.
    board: Option<BoardReader>,
    changes: Arc<Changes>,
    notices: Arc<Notices>,
    /// How long a thread looks at a notice before it sleeps there.
    spin: Mutex<Spin>,
    /// Wakes who sleeps there, at the end of the session.
    alarm: Alarm,
    /// Nothing is looked up any more.
    over: AtomicBool,
    home: Arc<Home>,
    incarnation: u64,
    /// Whether another one follows when the sidecar ends.
    renews: bool,
    /// Who waits for room in the arena.
    room: Waiters,
    /// Who waits for room in the submission ring.
    space: Waiters,
    followers: Mutex<Vec<Arc<Parker>>>,
    driver: Driver,
    /// Whether the submission has a backlog.
    backlog: AtomicBool,
    keep: Keep,
}

impl Session {
    /// Starts with what the handshake gave.
    ///
    /// # Errors
    /// Where the system is short of descriptors or memory.
    pub(crate) fn start(
        end: WorkerEnd,
        max_spin: Duration,
        keep: Keep,
        renews: bool,
    ) -> Result<Arc<Session>, SessionError> {
        let arena = Arena::new(end.arena_id, end.arena.clone()).map_err(RingError::from)?;
        let len = end.arena.len();
        let failed = |step| move |source| SegmentError::System { step, len, source };
        let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        // To come back with after a restart of the sidecar.
        let fd = end.arena_fd.try_clone().map_err(errno).map_err(failed("duplicate the descriptor of"))?;
        let guard = ForkGuard::new().map_err(failed("map a guard page beside"))?;
        let home = Arc::new(Home::new(arena, fd, guard));
        Ok(Session::over(end, max_spin, keep, renews, home))
    }

    /// The session that follows one that is over.
    pub(crate) fn follow(&self, end: WorkerEnd, max_spin: Duration) -> Arc<Session> {
        Session::over(end, max_spin, None, true, self.home.clone())
    }

    fn over(end: WorkerEnd, max_spin: Duration, keep: Keep, renews: bool, home: Arc<Home>) -> Arc<Session> {
        let WorkerEnd { socket, session, submission, completion, segments, board, notices, incarnation, .. } = end;
        let (changes, notices) = (Arc::new(Changes::default()), Arc::new(Notices::new(session, notices)));
        Arc::new(Session {
            socket,
            reader: Mutex::new(Reader::new(completion, max_spin)),
            submission: Mutex::new(Submission::new(submission, notices.clone())),
            table: Mutex::new(Table::new(changes.clone(), notices.clone())),
            segments,
            board,
            changes,
            notices,
            spin: Mutex::new(Spin::new(max_spin)),
            alarm: Alarm::default(),
            over: AtomicBool::new(false),
            home,
            incarnation,
            renews,
            room: Waiters::default(),
            space: Waiters::default(),
            followers: Mutex::default(),
            driver: Driver::default(),
            backlog: AtomicBool::new(false),
            keep,
        })
    }

    /// Whether this process is a forked child of the one whose session this is.
    pub(crate) fn is_forked(&self) -> bool {
        self.home.is_forked()
    }

    /// The sidecar's, which this is a session with.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The arena, over all its sessions.
    pub(crate) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// Waits until this session is over, and reads meanwhile where nobody else does. Answers why.
    pub(crate) fn wait_for_end(&self) -> Gone {
        self.block_on(|_| match self.gone() {
            Some(gone) => ControlFlow::Break(gone),
            None => ControlFlow::Continue(Instant::now() + PATIENCE),
        })
    }

    /// What the sidecar held when this session ended: what was published, in its order, and the rest.
    pub(crate) fn take_loans(&self) -> (Vec<Loan>, Vec<Loan>) {
        self.table.lock().loans.take()
    }

    /// In which sessions before this one the version that is to be taken back was lent already.
    pub(crate) fn formers_of(&self, key: &Key, version: Option<Version>) -> Vec<Arc<Former>> {
        self.table.lock().loans.find(key, version).map_or_else(Vec::new, |loan| loan.formers.clone())
    }

    /// The sidecar that came after this one does not want this worker.
    pub(crate) fn never_back(&self, why: &str) {
        self.table.lock().end_for_good(Gone::NotTakenBack { why: why.into() });
    }

    /// The driver's place.
    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// The socket, to be waited on.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// A view of a range that the sidecar leased; the lease ends with `owner`.
    ///
    /// # Errors
    /// The sidecar broke the rules.
    pub(crate) fn view(&self, slice: LocalSlice, owner: Owner) -> Result<Bytes, Gone> {
        Ok(self.segments.view(slice, owner)?)
    }

    /// Why the session is over, if it is.
    pub(crate) fn gone(&self) -> Option<Gone> {
        if self.is_forked() {
            return Some(Gone::Forked);
        }
        self.table.lock().gone().cloned()
    }

    /// Submits `todo` from `next` on, shown to the sidecar and rung for together, and counts `next` on. Pending where the ring is full;
    /// then `waker` is woken when there is room.
    pub(crate) fn poll_submit(
        &self,
        todo: &mut [Submitting],
        next: &mut usize,
        waker: &Waker,
    ) -> Poll<Result<(), Gone>> {
        if self.is_forked() {
            return Poll::Ready(Err(Gone::Forked));
        }
        loop {
            let (written, finish) = {
                let mut submission = self.submission.lock();
                let written = submission.write(&mut self.table.lock(), &self.changes, todo, next);
                let stuck = written.is_ok() && *next < todo.len();
                if stuck {
                    self.space.register(waker);
                }
                (written, submission.finish(stuck))
            };
            let finish = match written.and(finish) {
                Ok(finish) => finish,
                Err(gone) => {
                    self.end(&gone);
                    return Poll::Ready(Err(gone));
                }
            };
            // First those who wait for the tensor, then the sidecar.
            self.notices.wake(&finish.wake);
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

    /// Takes outcomes of `ops` from the first on into `sink`, until one is missing; then `waker` is woken when that is there. `sink` runs
    /// under the lock of the table.
    pub(crate) fn poll_outcomes(&self, ops: impl Iterator<Item = OpId>, waker: &Waker, mut sink: impl FnMut(Outcome)) {
        let mut table = self.table.lock();
        for op in ops {
            match table.poll(op, waker) {
                Poll::Ready(outcome) => sink(outcome),
                Poll::Pending => return,
            }
        }
    }

    /// Nobody waits for these operations any more: they are cancelled, and what they may still bring is released.
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

    /// A fetched range is not read any more.
    pub(crate) fn release(&self, lease: LeaseId) {
        self.say(std::iter::once(Command::Release { lease }));
        self.wait_for_backlog();
    }

    fn carry_out(&self, effects: &mut Effects) -> Result<(), Gone> {
        let mut result = Ok(());
        if !effects.returned.is_empty() {
            for loan in effects.returned.drain(..) {
                result = result.and(self.home.take_in(loan).map_err(Gone::from));
            }
            self.room.wake_all();
        }
        if !effects.orders.is_empty() {
            self.say(effects.orders.drain(..));
        }
        effects.wakers.drain(..).for_each(Waker::wake);
        result
    }

    fn carry_out_or_end(&self, effects: &mut Effects) {
        if let Err(gone) = self.carry_out(effects) {
            self.end(&gone);
        }
    }

    /// Says what has no reply. What does not fit into the ring is said when the sidecar rings because there is room.
    fn say(&self, commands: impl Iterator<Item = Command>) {
        if self.gone().is_none() {
            let mut submission = self.submission.lock();
            commands.for_each(|command| submission.write_later(command));
            self.say_backlog(submission);
        }
    }

    fn say_backlog(&self, mut submission: MutexGuard<'_, Submission>) {
        loop {
            let written = submission.write_backlog();
            let finish = written.and_then(|all| submission.finish(!all));
            let left = submission.has_backlog();
            self.backlog.store(left, Ordering::SeqCst);
            match finish {
                Ok(finish) => {
                    if finish.ring {
                        self.ring();
                    }
                    if !left || finish.full {
                        return;
                    }
                }
                Err(gone) => {
                    drop(submission);
                    return self.end(&gone);
                }
            }
        }
    }

    /// Where nobody is there to hear the sidecar ring, a caller with a backlog waits a moment for it: it says so as soon as it has taken what
    /// is in the ring.
    fn wait_for_backlog(&self) {
        if self.is_forked() || !self.backlog.load(Ordering::SeqCst) || self.driver.is_present() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        self.block_on(|waker| {
            self.space.register(waker);
            let done = !self.backlog.load(Ordering::SeqCst) || self.gone().is_some();
            if done || Instant::now() >= until { ControlFlow::Break(()) } else { ControlFlow::Continue(until) }
        });
    }

    /// The sidecar rang: there may be room in the submission ring.
    fn hear_doorbell(&self) {
        if self.backlog.load(Ordering::SeqCst) {
            self.say_backlog(self.submission.lock());
        }
        self.space.wake_all();
    }

    /// Ends the session: whatever waits fails, and whatever is asked from now on.
    fn end(&self, gone: &Gone) {
        if self.is_forked() {
            return;
        }
        self.over.store(true, Ordering::SeqCst);
        self.alarm.ring();
        let mut effects = Effects::default();
        let gone = if self.renews && *gone == Gone::Closed { &Gone::Away } else { gone };
        self.table.lock().end(gone, &mut effects);
        self.carry_out_or_end(&mut effects);
        self.space.wake_all();
        self.room.wake_all();
    }

    /// Rings the sidecar's doorbell. Where that fails, the session is over, which the reader hears of; what the sidecar said before
    /// counts still.
    fn ring(&self) {
        let _ = self.socket.ring();
    }

    /// Wakes whoever has waited too long, so that it looks at its clock.
    pub(crate) fn wake_overdue(&self) {
        if self.is_forked() {
            return;
        }
        let mut effects = Effects::default();
        self.table.lock().wake_overdue(Instant::now(), &mut effects);
        self.carry_out_or_end(&mut effects);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("arena", &self.home.arena.id()).finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_forked() {
            // Its threads are the parent's: nothing here can stop it.
            return std::mem::forget(self.keep.take());
        }
        // A driver waits on a duplicate of the descriptor: tell both ends.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}
