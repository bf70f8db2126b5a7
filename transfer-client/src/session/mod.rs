//! A session with a sidecar: the common base of both clients. It uses no async runtime.
//!
//! # Readers
//! The completion ring and the socket have one reader at a time: the thread that holds the lock of [`Reader`]. A thread
//! that waits for its operation and finds no reader becomes the reader, and sleeps on the socket itself. So a blocking
//! call in a worker of one thread costs one wake-up and no hand-over to another thread. Other threads that wait
//! meanwhile are *followers*; when the reader is done, it hands over to one of them. An async client has a *driver*, a
//! task that reads whenever no thread does. See [`lead`].
//!
//! # Forks
//! A forked child shares its parent's rings, hazard pointers and socket. All code that would touch those checks first
//! whether it runs in a child ([`Session::is_forked`]): calls fail with [`crate::Error::Forked`], and drops do nothing.
//! It takes no lock before, because a thread of the parent may have held it, and the child does not have that thread.
//!
//! # Locks
//! The order of locks, outer first: `reader`, `submission`, `table`; the lists of waiters, and the notices, are leaves.
//! User code (wakers) runs under `reader` only.

mod calls;
mod connection;
mod deadline;
mod driver;
#[cfg(feature = "embedded")]
mod embedded;
mod free_numbers;
mod held;
mod home;
mod inside;
mod known_tables;
mod lead;
mod lease;
mod loans;
mod look_up;
mod memory;
mod notices;
mod one_call;
mod reader;
mod submission;
mod table;
mod wait;
mod watch;

pub(crate) use calls::{Calls, Ended, merge};
pub(crate) use connection::{Connection, Reconnect};
pub(crate) use deadline::{GRACE, deadline};
pub(crate) use driver::spawn as spawn_driver;
#[cfg(feature = "embedded")]
pub(crate) use embedded::sidecar as embedded_sidecar;
#[cfg(feature = "embedded")]
pub use embedded::{NodeConfig, SidecarAddresses, embedded_addresses, embedded_socket};
pub(crate) use held::{Held, Lent, SharedRange};
pub(crate) use home::{Former, Home};
use inside::Following;
pub(crate) use inside::Inside;
use lead::Driver;
pub(crate) use lease::Lease;
pub(crate) use loans::Loan;
use look_up::Changes;
use notices::Notices;
pub(crate) use one_call::OneCall;
use reader::Reader;
use submission::Submission;
pub(crate) use submission::Submitting;
pub(crate) use table::Answered;
use table::{Effects, Table};
pub(crate) use watch::WaitEnd;

use crate::error::Gone;
use known_tables::KnownTables;
use parking_lot::{Mutex, MutexGuard};
use rustix::fd::{AsFd, BorrowedFd};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};
use transfer_core::memory::LocalSlice;
use transfer_core::op::{LeaseId, OpId, Push, Request};
use transfer_core::tensor::{Key, Version};
use transfer_memory::Errno;
use transfer_memory::arena::Arena;
use transfer_memory::board::{Alarm, BoardReader};
use transfer_memory::forked::ForkGuard;
use transfer_memory::ring::RingError;
use transfer_memory::segment::SegmentError;
use transfer_memory::session::{Segments, SessionError, WorkerEnd, WorkerSocket};
use transfer_memory::view::{Bytes, Owner};
use wait::{Parker, Spin, Waiters};

/// The time for which a thread that releases something waits for a sidecar that does not read its ring.
const PATIENCE: Duration = Duration::from_millis(100);

/// The most commands that are published together for a sidecar in another process. It does the first ones of a batch while
/// the next ones are written.
const AT_ONCE: usize = 32;

/// See the [module](self).
pub struct Session {
    socket: WorkerSocket,
    reader: Mutex<Reader>,
    submission: Mutex<Submission>,
    table: Mutex<Table>,
    segments: Segments,
    /// The board, if the sidecar has one.
    board: Option<Arc<BoardReader>>,
    changes: Arc<Changes>,
    notices: Arc<Notices>,
    /// The time for which a thread polls a notice before it sleeps.
    spin: Mutex<Spin>,
    /// Wakes the threads that sleep on notices, at the end of the session.
    alarm: Alarm,
    /// Set when look-ups have ended.
    over: AtomicBool,
    home: Arc<Home>,
    incarnation: u64,
    /// Whether another session follows when the sidecar ends.
    renews: bool,
    /// The waiters for room in the arena.
    room: Waiters,
    /// The waiters for room in the submission ring.
    space: Waiters,
    followers: Mutex<Vec<Arc<Parker>>>,
    driver: Driver,
    /// The tables of bundles of which parts were fetched.
    bundles: Mutex<KnownTables>,
    /// Whether the submission has a backlog.
    backlog: AtomicBool,
    /// The sidecar, if this process runs it.
    inside: Option<Inside>,
}

impl Session {
    /// Starts a session with the result of the handshake.
    ///
    /// # Errors
    /// If the system is short of descriptors or memory.
    pub(crate) fn start(
        end: WorkerEnd,
        max_spin: Duration,
        inside: Option<Inside>,
        renews: bool,
    ) -> Result<Arc<Session>, SessionError> {
        let arena = Arena::new(end.arena_id, end.arena.clone()).map_err(RingError::from)?;
        let len = end.arena.len();
        let failed = |step| move |source| SegmentError::System { step, len, source };
        let errno = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
        // Used to reconnect after a restart of the sidecar.
        let fd = end.arena_fd.try_clone().map_err(errno).map_err(failed("duplicate the descriptor of"))?;
        let guard = ForkGuard::new().map_err(failed("map a guard page beside"))?;
        let home = Arc::new(Home::new(arena, fd, guard));
        Ok(Session::over(end, max_spin, inside, renews, home))
    }

    /// Starts the session that follows this one, which is over.
    pub(crate) fn follow(&self, end: WorkerEnd, max_spin: Duration) -> Arc<Session> {
        Session::over(end, max_spin, None, true, self.home.clone())
    }

    fn over(end: WorkerEnd, max_spin: Duration, inside: Option<Inside>, renews: bool, home: Arc<Home>) -> Arc<Session> {
        let WorkerEnd { socket, session, submission, completion, segments, board, notices, incarnation, .. } = end;
        let (changes, board) = (Arc::new(Changes::default()), board.map(Arc::new));
        let notices = Arc::new(Notices::new(session, notices.zip(board.clone())));
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
            bundles: Mutex::default(),
            backlog: AtomicBool::new(false),
            inside,
        })
    }

    /// Whether this process is a forked child of the session's process.
    pub(crate) fn is_forked(&self) -> bool {
        self.home.is_forked()
    }

    /// The incarnation of the session's sidecar.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The arena, over all its sessions.
    pub(crate) fn home(&self) -> &Arc<Home> {
        &self.home
    }

    /// Waits until this session is over, and reads meanwhile if no other thread does. Returns the reason.
    pub(crate) fn wait_for_end(&self) -> Gone {
        self.block_on(|_| match self.gone() {
            Some(gone) => ControlFlow::Break(gone),
            None => ControlFlow::Continue(Instant::now() + PATIENCE),
        })
    }

    /// Takes the loans of this session at its end: the published ones in their order, and the others.
    pub(crate) fn take_loans(&self) -> (Vec<Loan>, Vec<Loan>) {
        self.table.lock().loans.take()
    }

    /// The tables of the bundles of which parts were fetched.
    pub(crate) fn bundle_tables(&self) -> MutexGuard<'_, KnownTables> {
        self.bundles.lock()
    }

    /// The earlier sessions in which the version that is to be taken back was lent.
    pub(crate) fn formers_of(&self, key: &Key, version: Option<Version>) -> Vec<Arc<Former>> {
        self.table.lock().loans.find(key, version).map_or_else(Vec::new, |loan| loan.formers.clone())
    }

    /// The published version of a key: that one, or the newest. `None` if this session has not published it.
    pub(crate) fn published(&self, key: &Key, version: Option<Version>) -> Option<(Lent, Push)> {
        self.table.lock().loans.find(key, version).map(|loan| (loan.lent, loan.push.clone()))
    }

    /// Records that the restarted sidecar refuses this worker.
    pub(crate) fn never_back(&self, why: &str) {
        self.table.lock().end_for_good(Gone::NotTakenBack { why: why.into() });
    }

    /// The driver's place.
    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Gives the session a driver. See [`Driver::attach`].
    pub(crate) fn attach_driver(&self, waker: Waker) {
        self.driver.attach(waker, self.inside.as_ref());
    }

    /// The socket, to wait on.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Makes a view of a range that the sidecar leased; the lease ends with `owner`.
    ///
    /// # Errors
    /// The sidecar violated the protocol.
    pub(crate) fn view(&self, slice: LocalSlice, owner: Owner) -> Result<Bytes, Gone> {
        Ok(self.segments.view(slice, owner)?)
    }

    /// The reason why the session is over, if it is.
    pub(crate) fn gone(&self) -> Option<Gone> {
        if self.is_forked() {
            return Some(Gone::Forked);
        }
        self.table.lock().gone().cloned()
    }

    /// Submits `todo` from `next` on, and advances `next`. Pending if the ring is full; then `waker` is woken when there is
    /// room.
    pub(crate) fn poll_submit(
        &self,
        todo: &mut [Submitting],
        next: &mut usize,
        waker: &Waker,
    ) -> Poll<Result<(), Gone>> {
        if self.is_forked() {
            return Poll::Ready(Err(Gone::Forked));
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
        mut sink: impl FnMut(Result<Answered, Gone>),
    ) {
        let mut table = self.table.lock();
        for op in ops {
            match table.poll(op, waker) {
                Poll::Ready(end) => sink(end),
                Poll::Pending => return,
            }
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

    /// See [`Table::poll_count`].
    pub(crate) fn poll_count(&self, number: u64, waker: &Waker) -> Result<Option<Option<u32>>, Gone> {
        match self.is_forked() {
            true => Err(Gone::Forked),
            false => self.table.lock().poll_count(number, waker),
        }
    }

    /// Ends a count.
    pub(crate) fn end_count(&self, number: u64) {
        if !self.is_forked() {
            self.table.lock().end_count(number);
        }
    }

    /// Releases the lease of a fetched range.
    pub(crate) fn release(&self, lease: LeaseId) {
        self.say(std::iter::once(Request::Release { lease }));
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

    /// Sends requests that have no answer. Requests that do not fit into the ring wait in the backlog until the sidecar
    /// rings because there is room.
    fn say(&self, requests: impl Iterator<Item = Request>) {
        if self.gone().is_none() {
            let mut submission = self.submission.lock();
            for request in requests {
                if let Err(gone) = submission.write_or_keep(request) {
                    drop(submission);
                    return self.end(&gone);
                }
            }
            self.say_backlog(submission);
        }
    }

    fn say_backlog<'a>(&'a self, mut submission: MutexGuard<'a, Submission>) {
        loop {
            let written = submission.write_backlog();
            let finish = written.and_then(|all| submission.finish(!all));
            let left = submission.has_backlog();
            self.backlog.store(left, Ordering::SeqCst);
            match finish {
                Ok(finish) => {
                    // What the sidecar does in this thread needs no lock of the session.
                    drop(submission);
                    if finish.ring {
                        self.ring();
                    }
                    if !left || finish.full {
                        return;
                    }
                    submission = self.submission.lock();
                }
                Err(gone) => {
                    drop(submission);
                    return self.end(&gone);
                }
            }
        }
    }

    /// If no thread listens for the sidecar's doorbell, a caller with a backlog waits for it for a moment: the sidecar
    /// rings as soon as it has read the ring.
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

    /// Whether somebody waits for the sidecar's doorbell.
    #[cfg(feature = "embedded")]
    fn waits_for_bell(&self) -> bool {
        self.backlog.load(Ordering::SeqCst) || self.space.any()
    }

    /// Handles the sidecar's doorbell: there may be room in the submission ring.
    fn hear_doorbell(&self) {
        if self.backlog.load(Ordering::SeqCst) {
            self.say_backlog(self.submission.lock());
        }
        self.space.wake_all();
    }

    /// Ends the session: all waits fail, and all later calls.
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

    /// Ends the session, because the client is closed. All waits end at once, and what was fetched stays readable. Waits until the
    /// worker's name is free, at most until `deadline`.
    pub(crate) fn close(&self, deadline: Instant) {
        if self.is_forked() {
            return;
        }
        self.end(&Gone::ClientClosed);
        // If the sidecar had ended before, another session would follow.
        self.table.lock().end_for_good(Gone::ClientClosed);
        self.socket.leave(deadline);
    }

    /// Has a sidecar inside this process begin what is in the ring. One in another process polls, or was rung.
    pub(crate) fn go_on(&self) {
        if let Some(inside) = &self.inside
            && !self.is_forked()
        {
            inside.go_on();
        }
    }

    /// Has the sidecar, which sleeps, look at the ring. A sidecar inside this process needs no doorbell: this thread does its work.
    fn ring(&self) {
        let inside = self.inside.as_ref().filter(|_| !self.is_forked());
        if !inside.is_some_and(Inside::step) {
            // If that fails, the session is over, which the reader notices; replies that were sent before still count.
            let _ = self.socket.ring();
        }
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
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("arena", &self.home.arena.id()).finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_forked() {
            // Its threads are in the parent, so it cannot be stopped here.
            return self.inside.take().into_iter().for_each(Inside::forget);
        }
        // A driver waits on a duplicate of the descriptor, so shut down both ends.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}
