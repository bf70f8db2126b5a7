//! A session: what it consists of, how it begins, and its end.

use super::home::{Former, Home};
use super::inside::Inside;
use super::known_tables::KnownTables;
use super::lead::Driver;
use super::look_up::Changes;
use super::notices::Notices;
use super::reader::Reader;
use super::submission::Submission;
use super::table::{Effects, Table};
use super::wait::{Parker, Spin, Waiters};
use super::{Background, Lent, Loan};
use crate::error::SessionEnd;
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};
use transfer_core::memory::LocalSlice;
use transfer_core::op::Push;
use transfer_core::tensor::{Key, Version};
use transfer_memory::Errno;
use transfer_memory::arena::Arena;
use transfer_memory::board::{Alarm, BoardReader};
use transfer_memory::forked::ForkGuard;
use transfer_memory::ring::RingError;
use transfer_memory::segment::SegmentError;
use transfer_memory::session::{Segments, SessionError, WorkerEnd, WorkerSocket};
use transfer_memory::socket::SocketError;
use transfer_memory::view::{Bytes, Owner};

/// The interval at which a thread that waits for the end of a session looks whether it is over.
const END_POLL: Duration = Duration::from_millis(100);

/// See the [module](super).
pub struct Session {
    pub(super) socket: WorkerSocket,
    pub(super) reader: Mutex<Reader>,
    /// Wakes the thread that sleeps on the socket. A forked child shares it: what the child drops may wake the thread once, which looks
    /// and sleeps again.
    pub(super) interrupt: Arc<OwnedFd>,
    pub(super) submission: Mutex<Submission>,
    pub(super) table: Mutex<Table>,
    pub(super) segments: Segments,
    /// The board, if the sidecar has one.
    pub(super) board: Option<Arc<BoardReader>>,
    pub(super) changes: Arc<Changes>,
    pub(super) notices: Arc<Notices>,
    /// The time for which a thread polls a notice before it sleeps.
    pub(super) spin: Mutex<Spin>,
    /// Wakes the threads that sleep on notices, at the end of the session.
    pub(super) alarm: Alarm,
    /// Set when look-ups have ended.
    pub(super) over: AtomicBool,
    pub(super) home: Arc<Home>,
    pub(super) incarnation: u64,
    /// Whether another session follows when the sidecar ends.
    pub(super) renews: bool,
    /// The waiters for room in the submission ring.
    pub(super) space: Waiters,
    pub(super) followers: Mutex<Vec<Arc<Parker>>>,
    pub(super) driver: Driver,
    /// The tables of bundles of which parts were fetched.
    pub(super) bundles: Mutex<KnownTables>,
    /// Long work of calls that is done on other threads.
    pub(super) background: Background,
    /// Whether the submission has a backlog.
    pub(super) backlog: AtomicBool,
    /// The sidecar, if this process runs it.
    pub(super) inside: Option<Inside>,
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
        Session::over(end, max_spin, inside, renews, home)
    }

    /// Starts the session that follows this one, which is over.
    ///
    /// # Errors
    /// If the system is short of descriptors.
    pub(crate) fn follow(&self, end: WorkerEnd, max_spin: Duration) -> Result<Arc<Session>, SessionError> {
        self.home.has_returned();
        Session::over(end, max_spin, None, true, self.home.clone())
    }

    pub(super) fn over(
        end: WorkerEnd,
        max_spin: Duration,
        inside: Option<Inside>,
        renews: bool,
        home: Arc<Home>,
    ) -> Result<Arc<Session>, SessionError> {
        let interrupt = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|source| SocketError::System { step: "make an event beside", source })?;
        let WorkerEnd { socket, session, submission, completion, segments, board, notices, incarnation, .. } = end;
        let (changes, board) = (Arc::new(Changes::default()), board.map(Arc::new));
        let arena_bytes = home.arena.mapping().len();
        let notices = Arc::new(Notices::new(session, arena_bytes, notices.zip(board.clone())));
        Ok(Arc::new(Session {
            socket,
            interrupt: Arc::new(interrupt),
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
            space: Waiters::default(),
            followers: Mutex::default(),
            driver: Driver::default(),
            bundles: Mutex::default(),
            background: Background::default(),
            backlog: AtomicBool::new(false),
            inside,
        }))
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

    /// The reason why the session is over, if it is.
    pub(crate) fn gone(&self) -> Option<SessionEnd> {
        if self.is_forked() {
            return Some(SessionEnd::Forked);
        }
        self.table.lock().gone().cloned()
    }

    /// Waits until this session is over, and reads meanwhile if no other thread does. Returns the reason.
    pub(crate) fn wait_for_end(&self) -> SessionEnd {
        self.block_on(|_| match self.gone() {
            Some(gone) => ControlFlow::Break(gone),
            None => ControlFlow::Continue(Instant::now() + END_POLL),
        })
    }

    /// Takes the loans of this session at its end: the published ones in their order, and the others.
    pub(crate) fn take_loans(&self) -> (Vec<Loan>, Vec<Loan>) {
        self.table.lock().loans.take()
    }

    /// Takes the ranges of the fetches into memory that were under way at the end of this session.
    pub(crate) fn take_destinations(&self) -> Vec<Lent> {
        self.table.lock().loans.take_destinations()
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

    /// The push of a key that was sent last and that the sidecar still holds, which may have no answer yet.
    pub(crate) fn sent_last(&self, key: &Key) -> Option<(Lent, Push)> {
        self.table.lock().loans.sent_last(key).map(|loan| (loan.lent, loan.push.clone()))
    }

    /// Calls `with` for a version of a key that this session has published, which is not returned meanwhile.
    pub(crate) fn with_loan<T>(&self, key: &Key, version: Version, with: impl FnOnce(&Loan) -> T) -> Option<T> {
        self.table.lock().loans.find(key, Some(version)).map(with)
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
    pub(crate) fn view(&self, slice: LocalSlice, owner: Owner) -> Result<Bytes, SessionEnd> {
        Ok(self.segments.view(slice, owner)?)
    }

    /// Ends the session: all waits fail, and all later calls.
    pub(super) fn end(&self, gone: &SessionEnd) {
        if self.is_forked() {
            return;
        }
        self.over.store(true, Ordering::SeqCst);
        self.alarm.ring();
        let mut effects = Effects::default();
        let gone = if self.renews && *gone == SessionEnd::Closed { &SessionEnd::Away } else { gone };
        self.table.lock().end(gone, &mut effects);
        self.carry_out_or_end(&mut effects);
        self.space.wake_all();
        self.home.room.wake_all();
    }

    /// Records that the restarted sidecar refuses this worker.
    pub(crate) fn never_back(&self, why: &str) {
        self.table.lock().end_for_good(SessionEnd::NotTakenBack { why: why.into() });
    }

    /// Ends the session, because the client is closed. All waits end at once, and what was fetched stays readable. Waits until the
    /// worker's name is free, at most until `deadline`.
    pub(crate) fn close(&self, deadline: Instant) {
        if self.is_forked() {
            return;
        }
        self.end(&SessionEnd::ClientClosed);
        // If the sidecar had ended before, another session would follow.
        self.table.lock().end_for_good(SessionEnd::ClientClosed);
        self.socket.leave(deadline);
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
