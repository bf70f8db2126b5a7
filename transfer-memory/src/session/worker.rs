//! The worker's side of a session.

use super::message::{SessionMessage, Welcome};
use super::{PassedSegment, Segments, SessionError};
use crate::board::{BoardReader, NoticeWriter};
use crate::ring::{Consumer, Producer};
use crate::segment::{Access, Mapping, Segment};
use crate::socket::{Message, Socket, SocketError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::memory::SegmentId;
use transfer_core::tensor::Name;

/// The options of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOptions {
    /// The worker's name.
    pub name: Name,
    /// The size of its arena, in bytes. 0 for a worker that only reads; it gets one page.
    pub arena_bytes: u64,
    /// The time-out of the handshake. The sidecar prefaults the arena meanwhile, at some GiB per second.
    pub timeout: Duration,
}

/// The state with which a worker returns after its sidecar's restart.
#[derive(Debug)]
pub struct Returning {
    /// The incarnation of its last session.
    pub incarnation: u64,
    /// Its arena.
    pub arena: Arc<Mapping>,
    /// The arena's descriptor.
    pub arena_fd: OwnedFd,
}

/// The worker's end of a session.
#[derive(Debug)]
pub struct WorkerEnd {
    /// Doorbells in both directions; segments from the sidecar.
    pub socket: WorkerSocket,
    /// The number of the session.
    pub session: u64,
    /// The incarnation of the sidecar, another one after a restart.
    pub incarnation: u64,
    /// The name of the sidecar's node.
    pub node: Name,
    /// The submission ring.
    pub submission: Producer,
    /// The completion ring.
    pub completion: Consumer,
    /// The number of the arena.
    pub arena_id: SegmentId,
    /// The memory that only this worker and the sidecar may write.
    pub arena: Arc<Mapping>,
    /// Its descriptor, to be offered again to the sidecar's next incarnation.
    pub arena_fd: OwnedFd,
    /// The segments mapped so far, read-only: the arena.
    pub segments: Segments,
    /// The board of this worker's user id, if the sidecar has one.
    pub board: Option<BoardReader>,
    /// The writer of this worker's notices, if the sidecar has a board.
    pub notices: Option<NoticeWriter>,
}

impl WorkerEnd {
    /// Connects to the sidecar that listens at `path`, and begins a session. Blocks for up to
    /// [`WorkerOptions::timeout`].
    ///
    /// # Errors
    /// [`SessionError::Address`] if there is no listener, [`SessionError::Refused`] if the sidecar refuses this worker,
    /// and any other.
    pub fn connect(path: &Path, options: &WorkerOptions) -> Result<WorkerEnd, SessionError> {
        let started = Instant::now();
        WorkerEnd::begin(Socket::connect(path, started + options.timeout)?, options, started + options.timeout)
    }

    /// Begins a session over a connected socket, for instance one of [`Socket::pair`].
    ///
    /// # Errors
    /// As [`WorkerEnd::connect`].
    pub fn join(socket: Socket, options: &WorkerOptions) -> Result<WorkerEnd, SessionError> {
        WorkerEnd::begin(socket, options, Instant::now() + options.timeout)
    }

    fn begin(socket: Socket, options: &WorkerOptions, deadline: Instant) -> Result<WorkerEnd, SessionError> {
        let hello = SessionMessage::Hello { wanted_arena_bytes: options.arena_bytes, name: options.name.clone() };
        match socket.send(&hello.encode(), &[], deadline) {
            // A sidecar that has closed the socket may have sent the reason.
            Ok(()) | Err(SocketError::Closed) => {}
            Err(e) => return Err(e.into()),
        }
        let (welcome, [rings, arena], shown) = receive_welcome(&socket, deadline)?;
        let arena = Segment::adopt_to_write(arena, welcome.arena_len)?;
        let mapping = arena.mapping().clone();
        WorkerEnd::finish(socket, welcome, rings, shown, (mapping, arena.into_fd()?), deadline)
    }

    /// Returns to the sidecar that listens at `path` after its restart, with the arena of an earlier incarnation.
    ///
    /// # Errors
    /// As [`WorkerEnd::connect`].
    pub fn reconnect(path: &Path, name: &Name, timeout: Duration, with: Returning) -> Result<WorkerEnd, SessionError> {
        let deadline = Instant::now() + timeout;
        let socket = Socket::connect(path, deadline)?;
        let Returning { incarnation, arena, arena_fd } = with;
        let offer = SessionMessage::Return { incarnation, arena_len: arena.len(), name: name.clone() };
        match socket.send(&offer.encode(), &[arena_fd.as_fd()], deadline) {
            Ok(()) | Err(SocketError::Closed) => {}
            Err(e) => return Err(e.into()),
        }
        let (welcome, [rings], shown) = receive_welcome(&socket, deadline)?;
        WorkerEnd::finish(socket, welcome, rings, shown, (arena, arena_fd), deadline)
    }

    fn finish(
        socket: Socket,
        welcome: Welcome,
        rings: OwnedFd,
        shown: Option<[OwnedFd; 2]>,
        (arena, arena_fd): (Arc<Mapping>, OwnedFd),
        deadline: Instant,
    ) -> Result<WorkerEnd, SessionError> {
        let rings = Segment::adopt(rings, Access::ReadWrite, welcome.rings_len)?;
        let submission = Producer::new(rings.mapping().clone(), welcome.submission)?;
        let completion = Consumer::new(rings.mapping().clone(), welcome.completion)?;
        let (board, notices) = match shown {
            None => (None, None),
            Some([board, notices]) => {
                let bad = |source| SessionError::BadMarks { source };
                let board = Segment::adopt(board, Access::ReadOnly, welcome.board_len)?;
                let reader = BoardReader::new(board.mapping().clone(), rings.mapping().clone(), welcome.hazards);
                let notices = Segment::adopt(notices, Access::ReadWrite, welcome.notices.1)?;
                let writer = NoticeWriter::new(notices.mapping().clone());
                (Some(reader.map_err(bad)?), Some(writer.map_err(bad)?))
            }
        };
        socket.send(&SessionMessage::Mapped { session: welcome.session }.encode(), &[], deadline)?;
        let segments = Segments::new(welcome.incarnation);
        segments.insert(welcome.arena, arena.read_only()?.clone());
        Ok(WorkerEnd {
            socket: WorkerSocket(socket),
            session: welcome.session,
            incarnation: welcome.incarnation,
            node: welcome.node,
            submission,
            completion,
            arena_id: welcome.arena,
            arena,
            arena_fd,
            segments,
            board,
            notices,
        })
    }
}

/// The contents of a Welcome: rings and arena, or rings alone; and board and notices.
type Welcomed<const N: usize> = (Welcome, [OwnedFd; N], Option<[OwnedFd; 2]>);

fn receive_welcome<const N: usize>(socket: &Socket, deadline: Instant) -> Result<Welcomed<N>, SessionError> {
    let expected = "Welcome";
    let Message::Bytes { bytes, mut descriptors } = socket.receive(N + 2, deadline)? else {
        return Err(SessionError::Unexpected { expected, found: "a doorbell" });
    };
    match SessionMessage::decode(&bytes)? {
        SessionMessage::Welcome(welcome) => {
            let (has_board, found) = (welcome.board_len > 0, descriptors.len());
            let shown = if has_board && found > N { descriptors.split_off(N).try_into().ok() } else { None };
            let expected_count = N + if has_board { 2 } else { 0 };
            let wrong = SessionError::Descriptors { message: expected, expected: expected_count, found };
            match (found == expected_count, descriptors.try_into()) {
                (true, Ok(descriptors)) => Ok((welcome, descriptors, shown)),
                _ => Err(wrong),
            }
        }
        SessionMessage::Refused(refusal) => Err(SessionError::Refused(refusal)),
        other => Err(SessionError::Unexpected { expected, found: other.name() }),
    }
}

/// A message of the sidecar during a session.
#[derive(Debug)]
#[non_exhaustive]
pub enum FromSidecar {
    /// Look at the completion ring, and retry the records that did not fit into the submission ring.
    Doorbell,
    /// A segment that completions will name.
    Segment(PassedSegment),
    /// No completion will name that segment again, and no range of it is leased: it can be unmapped.
    Retired(SegmentId),
}

/// The worker's end of a session's socket. Poll it for reading: doorbells, segments, and the end of the sidecar.
#[derive(Debug)]
pub struct WorkerSocket(pub(super) Socket);

impl WorkerSocket {
    /// Rings the sidecar's doorbell. Never waits.
    ///
    /// # Errors
    /// [`SessionError::Socket`].
    pub fn ring(&self) -> Result<(), SessionError> {
        Ok(self.0.ring()?)
    }

    /// Ends the session for this worker, which may still read what it has fetched, until this is dropped. Waits until the sidecar
    /// has freed the worker's name, at most until `deadline`. Everybody who waits for the socket is woken.
    pub fn leave(&self, deadline: Instant) {
        // If it cannot be sent, the sidecar is gone, or is stopped and notices the end of the socket later.
        if self.0.send(&SessionMessage::Leave.encode(), &[], deadline).is_ok() {
            let _ = self.0.wait_for_end(deadline);
        }
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Read);
    }

    /// Receives the sidecar's next message, until `deadline`.
    ///
    /// # Errors
    /// [`SessionError::Socket`] with [`SocketError::TimedOut`] if there is none; any other: the session is over.
    pub fn receive(&self, deadline: Instant) -> Result<FromSidecar, SessionError> {
        understood(self.0.receive(1, deadline)?)
    }

    /// Receives a message of the sidecar without waiting. `None` if there is none.
    ///
    /// # Errors
    /// Any: the session is over.
    pub fn try_receive(&self) -> Result<Option<FromSidecar>, SessionError> {
        self.0.try_receive(1)?.map(understood).transpose()
    }
}

fn understood(message: Message) -> Result<FromSidecar, SessionError> {
    let Message::Bytes { bytes, mut descriptors } = message else {
        return Ok(FromSidecar::Doorbell);
    };
    match SessionMessage::decode(&bytes)? {
        SessionMessage::SegmentPassed { segment, len, references } => match descriptors.pop() {
            Some(fd) => Ok(FromSidecar::Segment(PassedSegment { id: segment, len, references, fd })),
            None => Err(SessionError::Descriptors { message: "SegmentPassed", expected: 1, found: 0 }),
        },
        SessionMessage::SegmentRetired { segment } => Ok(FromSidecar::Retired(segment)),
        other => Err(SessionError::Unexpected { expected: "SegmentPassed", found: other.name() }),
    }
}

impl WorkerSocket {
    /// Whether the sidecar's end is open. There may still be unread messages.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::RDHUP)];
        let found = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })));
        found == Ok(0)
    }
}

impl AsFd for WorkerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
