//! The sidecar's side of a session.

use super::message::{SessionMessage, Welcome};
use super::{MessageError, PROTOCOL_VERSION, Refusal, RefusalCode, SessionError};
use crate::board::{HAZARDS_BYTES, NOTICES_BYTES, SessionHazards};
use crate::ring::{Consumer, Producer, RingRange};
use crate::segment::{Lock, Pages, PinnedBudget, Segment, SegmentError, SegmentOptions, allowed, reopen};
use crate::socket::{Credentials, Message, Socket};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::memory::SegmentId;
use transfer_core::tensor::Name;
use transfer_core::text::Bytes;

/// The resources that a sidecar grants to every worker.
#[derive(Debug, Clone)]
pub struct SidecarPolicy {
    /// The node's name, told to the worker.
    pub node: Name,
    /// The sidecar's incarnation, told to the worker.
    pub incarnation: u64,
    /// The largest arena that one worker may have, in bytes.
    pub max_arena_bytes: u64,
    /// The capacity of the submission ring, in bytes; see [`RingRange`].
    pub submission_capacity: u32,
    /// The capacity of the completion ring, in bytes; see [`RingRange`].
    pub completion_capacity: u32,
    /// The pages of an arena. Rings lie in ordinary ones.
    pub pages: Pages,
    /// Whether to lock arenas and rings in memory.
    pub lock: Lock,
    /// The budget of arenas and rings.
    pub budget: PinnedBudget,
    /// The time-out of the worker before its memory is made, and again afterwards.
    pub timeout: Duration,
}

/// A worker that wants a session.
#[derive(Debug, Clone)]
pub struct Applicant {
    /// Its name.
    pub name: Name,
    /// Its user, as the kernel reports it.
    pub peer: Credentials,
    /// The arena it asks for, in bytes; at most [`SidecarPolicy::max_arena_bytes`].
    pub wanted_arena_bytes: u64,
}

/// The resources of an approved worker.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The number of its session, not used before in this incarnation.
    pub session: u64,
    /// The number of its arena, not used before in this incarnation.
    pub arena: SegmentId,
    /// The size of its arena in bytes, rounded up to whole pages, at least one.
    pub arena_bytes: u64,
    /// The board of its user id, if there is one: sealed against further writers.
    pub board: Option<Arc<Segment>>,
    /// The number of the segment of its notices, not used before in this incarnation. It exists if there is a board.
    pub notices: SegmentId,
}

/// The sidecar's end of a session.
#[derive(Debug)]
pub struct SidecarEnd {
    /// Doorbells in both directions; segments to the worker.
    pub socket: SidecarSocket,
    /// Readable once the worker's process has ended. `None` if [`Socket::peer_pidfd`] has none; then only the end of
    /// the socket reports the worker's death.
    pub pidfd: Option<OwnedFd>,
    /// The worker's user, as the kernel reports it.
    pub peer: Credentials,
    /// The worker's name.
    pub name: Name,
    /// The number of the session.
    pub session: u64,
    /// The submission ring.
    pub submission: Consumer,
    /// The completion ring.
    pub completion: Producer,
    /// The worker's hazard pointers. Not honoured yet.
    pub hazards: SessionHazards,
    /// The number of the arena.
    pub arena_id: SegmentId,
    /// The memory that the worker writes, sealed against all others.
    pub arena: Segment,
    /// The segment of the worker's notices, sealed against all others, if there is a board.
    pub notices: Option<(SegmentId, Segment)>,
}

impl SidecarEnd {
    /// Does the handshake with a worker that has just connected, if `approve` agrees. Blocks for up to
    /// [`SidecarPolicy::timeout`] before the worker's memory is made, and again afterwards.
    ///
    /// `approve` is called at most once, before any memory is made. If this fails after `approve` agreed, the worker is
    /// gone or has been told, and the caller must undo the effects of `approve`.
    ///
    /// # Errors
    /// [`SessionError::TurnedAway`] for a worker that was refused and told so; any other for one that violated the
    /// protocol, was too slow, or is gone. None affects other workers.
    pub fn accept(
        socket: Socket,
        policy: &SidecarPolicy,
        approve: impl FnOnce(&Applicant) -> Result<Admission, Refusal>,
    ) -> Result<SidecarEnd, SessionError> {
        let deadline = Instant::now() + policy.timeout;
        match admit(&socket, policy, approve, deadline) {
            // Its memory has been made, which takes long for a large arena and does not count as the worker's time.
            Ok(prepared) => prepared.finish(socket, Instant::now() + policy.timeout),
            Err(e) => {
                let refusal = match &e {
                    SessionError::TurnedAway(refusal) => refusal.clone(),
                    e => refusal_of(e),
                };
                // A worker that does not read the refusal does not need it.
                let _ = socket.send(&SessionMessage::Refused(refusal).encode(), &[], Instant::now());
                Err(e)
            }
        }
    }
}

/// The refusal for a worker whose handshake failed with `e`.
fn refusal_of(e: &SessionError) -> Refusal {
    let code = match e {
        SessionError::Message(MessageError::Version { .. }) => RefusalCode::Version,
        SessionError::Segment(
            SegmentError::Budget(_) | SegmentError::NotLocked { .. } | SegmentError::FileSize { .. },
        ) => RefusalCode::NoMemory,
        SessionError::Segment(SegmentError::System { source: crate::Errno::NOMEM, .. }) => RefusalCode::NoMemory,
        SessionError::Segment(
            SegmentError::NotMemfd { .. }
            | SegmentError::Unsealed { .. }
            | SegmentError::StillWritable
            | SegmentError::WrongSize { .. },
        ) => RefusalCode::BadArena,
        SessionError::Message(_) | SessionError::Unexpected { .. } | SessionError::Descriptors { .. } => {
            RefusalCode::Malformed
        }
        _ => RefusalCode::Internal,
    };
    let text = match e {
        SessionError::Message(MessageError::Version { found }) => format!(
            "the worker speaks session protocol version {found}, this sidecar speaks version {PROTOCOL_VERSION}; \
             update the older of the two"
        ),
        e => e.to_string(),
    };
    Refusal { code, text }
}

/// A session whose memory is made, but not mapped by its worker yet.
struct Prepared {
    applicant: Applicant,
    admission: Admission,
    welcome: Welcome,
    rings: Segment,
    arena: Segment,
    notices: Option<Segment>,
    /// Whether the arena is the worker's own, which the worker has already.
    offered: bool,
    submission: Consumer,
    completion: Producer,
    hazards: SessionHazards,
}

fn admit(
    socket: &Socket,
    policy: &SidecarPolicy,
    approve: impl FnOnce(&Applicant) -> Result<Admission, Refusal>,
    deadline: Instant,
) -> Result<Prepared, SessionError> {
    let (wanted_arena_bytes, name, offered) = hear_applicant(socket, policy, deadline)?;
    let max = policy.max_arena_bytes;
    if wanted_arena_bytes > max {
        let text = format!(
            "an arena of {} was asked for, and this sidecar grants {} at most (--max-arena-bytes){}",
            Bytes(wanted_arena_bytes),
            Bytes(max),
            allowed(policy.budget.group_limit())
        );
        return Err(SessionError::TurnedAway(Refusal { code: RefusalCode::ArenaTooLarge, text }));
    }
    let is_offered = offered.is_some();
    let applicant = Applicant { name, peer: socket.peer()?, wanted_arena_bytes };
    let admission = approve(&applicant).map_err(SessionError::TurnedAway)?;

    let submission = RingRange { offset: 0, capacity: policy.submission_capacity };
    let completion = RingRange { offset: submission.len_bytes(), capacity: policy.completion_capacity };
    let hazards = submission.len_bytes() + completion.len_bytes();
    let rings_len = hazards + HAZARDS_BYTES;
    let label = |what| format!("transfer-{what}:{}", applicant.name);
    // The worker that ended a moment ago may have had the memory that this one wants.
    policy.budget.wait_for_returning(wanted_arena_bytes.saturating_add(rings_len + NOTICES_BYTES), deadline);
    let rings = Segment::create_sparse(&label("rings"), rings_len, policy.lock, &policy.budget)?;
    let options = SegmentOptions { len: admission.arena_bytes.max(1), pages: policy.pages, lock: policy.lock };
    let arena = match offered {
        None => Segment::create(&label("arena"), &options, &policy.budget)?,
        // Everything is checked again, because the worker is not trusted.
        Some(fd) => Segment::take_again(fd, wanted_arena_bytes, policy.lock, &policy.budget)?,
    };
    let notices = admission.board.as_ref();
    let notices = notices.map(|_| Segment::create_sparse(&label("notices"), NOTICES_BYTES, Lock::No, &policy.budget));
    let notices = notices.transpose()?;
    let welcome = Welcome {
        session: admission.session,
        incarnation: policy.incarnation,
        arena: admission.arena,
        arena_len: arena.len(),
        rings_len: rings.len(),
        submission,
        completion,
        hazards,
        board_len: admission.board.as_ref().map_or(0, |board| board.len()),
        notices: (admission.notices, notices.as_ref().map_or(0, Segment::len)),
        node: policy.node.clone(),
    };
    let submission = Consumer::new(rings.mapping().clone(), submission)?;
    let completion = Producer::new(rings.mapping().clone(), completion)?;
    let failed = |source| SessionError::BadMarks { source };
    let hazards = SessionHazards::new(rings.mapping().clone(), hazards).map_err(failed)?;
    let offered = is_offered;
    Ok(Prepared { applicant, admission, welcome, rings, arena, notices, offered, submission, completion, hazards })
}

impl Prepared {
    fn finish(self, socket: Socket, deadline: Instant) -> Result<SidecarEnd, SessionError> {
        let session = self.admission.session;
        let welcome = SessionMessage::Welcome(self.welcome).encode();
        let arena = (!self.offered).then(|| self.arena.fd());
        let board = self.admission.board.as_ref().map(|board| board.fd());
        let notices = self.notices.as_ref().map(Segment::fd);
        let all: Vec<_> = std::iter::once(self.rings.fd()).chain(arena).chain(board).chain(notices).collect();
        socket.send(&welcome, &all, deadline)?;
        match receive(&socket, "Mapped", deadline)? {
            SessionMessage::Mapped { session: found } if found == session => {}
            SessionMessage::Mapped { .. } => {
                return Err(SessionError::Unexpected { expected: "Mapped", found: "Mapped of another session" });
            }
            other => return Err(SessionError::Unexpected { expected: "Mapped", found: other.name() }),
        }
        self.rings.seal_writers()?;
        self.arena.seal_writers()?;
        if let Some(notices) = &self.notices {
            notices.seal_writers()?;
        }
        Ok(SidecarEnd {
            pidfd: socket.peer_pidfd(),
            socket: SidecarSocket::new(socket),
            peer: self.applicant.peer,
            name: self.applicant.name,
            session,
            submission: self.submission,
            completion: self.completion,
            hazards: self.hazards,
            arena_id: self.admission.arena,
            arena: self.arena,
            notices: self.notices.map(|segment| (self.admission.notices, segment)),
        })
    }
}

/// Receives the size of the wanted arena, the worker's name, and the arena that it offers again.
fn hear_applicant(
    socket: &Socket,
    policy: &SidecarPolicy,
    deadline: Instant,
) -> Result<(u64, Name, Option<OwnedFd>), SessionError> {
    let expected = "Hello";
    let Message::Bytes { bytes, mut descriptors } = socket.receive(1, deadline)? else {
        return Err(SessionError::Unexpected { expected, found: "a doorbell" });
    };
    let found = descriptors.len();
    match (SessionMessage::decode(&bytes)?, descriptors.pop()) {
        (SessionMessage::Hello { wanted_arena_bytes, name }, None) => Ok((wanted_arena_bytes, name, None)),
        (SessionMessage::Hello { .. }, Some(_)) => {
            Err(SessionError::Descriptors { message: expected, expected: 0, found })
        }
        (SessionMessage::Return { incarnation, .. }, _) if incarnation == policy.incarnation => {
            let text = "the session that this worker comes back from was with this same run of the sidecar, which may still be \
                        reading its arena: begin a new session";
            Err(SessionError::TurnedAway(Refusal { code: RefusalCode::NotAllowed, text: text.to_owned() }))
        }
        (SessionMessage::Return { arena_len, name, .. }, Some(fd)) => Ok((arena_len, name, Some(fd))),
        (SessionMessage::Return { .. }, None) => {
            Err(SessionError::Descriptors { message: "Return", expected: 1, found })
        }
        (other, _) => Err(SessionError::Unexpected { expected, found: other.name() }),
    }
}

fn receive(socket: &Socket, expected: &'static str, deadline: Instant) -> Result<SessionMessage, SessionError> {
    match socket.receive(0, deadline)? {
        Message::Bytes { bytes, .. } => Ok(SessionMessage::decode(&bytes)?),
        Message::Doorbell => Err(SessionError::Unexpected { expected, found: "a doorbell" }),
    }
}

/// A message of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FromWorker {
    /// Look at the submission ring.
    Doorbell,
    /// The worker asks for nothing more, and its name shall be free. It may still read what it has fetched, until it closes the
    /// socket. The sidecar answers with [`SidecarSocket::hang_up`] once the name is free.
    Leave,
}

/// The sidecar's end of a session's socket. Poll it for reading: doorbells, and the end of the worker.
#[derive(Debug)]
pub struct SidecarSocket(Socket);

impl SidecarSocket {
    pub(super) fn new(socket: Socket) -> SidecarSocket {
        SidecarSocket(socket)
    }

    /// Rings the worker's doorbell. Never waits.
    ///
    /// # Errors
    /// [`SessionError::Socket`].
    pub fn ring(&self) -> Result<(), SessionError> {
        Ok(self.0.ring()?)
    }

    /// Takes a message without waiting. `None` if there is none. It takes one at a time, because there is rarely a
    /// second, and a level-triggered socket is ready again at once if there is.
    ///
    /// # Errors
    /// [`SessionError::Socket`], [`SessionError::Message`], [`SessionError::Unexpected`]: the session is over.
    pub fn try_receive(&self) -> Result<Option<FromWorker>, SessionError> {
        let bytes = match self.0.try_receive(0)? {
            Some(Message::Doorbell) => return Ok(Some(FromWorker::Doorbell)),
            Some(Message::Bytes { bytes, .. }) => bytes,
            None => return Ok(None),
        };
        match SessionMessage::decode(&bytes)? {
            SessionMessage::Leave => Ok(Some(FromWorker::Leave)),
            other => Err(SessionError::Unexpected { expected: "a doorbell", found: other.name() }),
        }
    }

    /// Passes a segment to the worker, which can only map it read-only. Waits until `deadline` for a worker that does
    /// not read; a deadline in the past does not wait. After a time-out nothing was sent.
    ///
    /// # Errors
    /// [`SessionError::StillWritable`], [`SessionError::Socket`], [`SessionError::Segment`].
    pub fn pass_segment(&self, id: SegmentId, segment: &Segment, deadline: Instant) -> Result<(), SessionError> {
        if !segment.writers_sealed()? {
            return Err(SessionError::StillWritable { segment: id });
        }
        let message =
            SessionMessage::SegmentPassed { segment: id, len: segment.len(), references: segment.references() };
        // The worker gets an open file of its own, so that its mark ends with that file.
        let failed = |source| SegmentError::System { step: "open anew", len: segment.len(), source };
        let fd = reopen(segment.fd()).map_err(failed)?;
        Ok(self.0.send(&message.encode(), &[fd.as_fd()], deadline)?)
    }

    /// Tells the worker that its session is over. The sidecar still reads its messages, above all its end.
    pub fn hang_up(&self) {
        // The worker may be gone already.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write);
    }

    /// Tells the worker that a passed segment will not be named again. Never waits.
    ///
    /// # Errors
    /// [`SessionError::Socket`]; after a timeout nothing was sent.
    pub fn retire_segment(&self, segment: SegmentId) -> Result<(), SessionError> {
        Ok(self.0.send(&SessionMessage::SegmentRetired { segment }.encode(), &[], Instant::now())?)
    }
}

impl AsFd for SidecarSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
