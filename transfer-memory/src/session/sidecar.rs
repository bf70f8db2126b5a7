//! The sidecar's side of a session.

use super::message::{SessionMessage, Welcome};
use super::{MessageError, PROTOCOL_VERSION, Refusal, RefusalCode, SessionError};
use crate::board::{HAZARDS_BYTES, NOTICES_BYTES, SessionHazards};
use crate::ring::{Consumer, Producer, RingRange};
use crate::segment::{Lock, Pages, PinnedBudget, Segment, SegmentError, SegmentOptions, reopen};
use crate::socket::{Credentials, Message, Socket};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_core::memory::SegmentId;
use transfer_core::tensor::Name;
use transfer_core::text::Bytes;

/// What a sidecar grants to every worker.
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
    /// What arenas and rings are counted against.
    pub budget: PinnedBudget,
    /// How long the worker may take before its memory is made, and again afterwards.
    pub timeout: Duration,
}

/// A worker that wants a session.
#[derive(Debug, Clone)]
pub struct Applicant {
    /// The name it gives itself.
    pub name: Name,
    /// Who it is, in the kernel's word.
    pub peer: Credentials,
    /// The arena it asks for, in bytes; at most [`SidecarPolicy::max_arena_bytes`].
    pub wanted_arena_bytes: u64,
}

/// What an approved worker gets.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The number of its session, not used before in this incarnation.
    pub session: u64,
    /// The number of its arena, not used before in this incarnation.
    pub arena: SegmentId,
    /// The size of its arena in bytes, rounded up to whole pages, of which it has at least one.
    pub arena_bytes: u64,
    /// The board of its user id, where there is one: sealed against further writers.
    pub board: Option<Arc<Segment>>,
    /// The number of the segment of its notices, not used before in this incarnation. There is one where there is a
    /// board.
    pub notices: SegmentId,
}

/// What a sidecar holds of a session that has begun.
#[derive(Debug)]
pub struct SidecarEnd {
    /// Doorbells in both directions; segments to the worker.
    pub socket: SidecarSocket,
    /// Readable once the worker's process has ended. `None` where [`Socket::peer_pidfd`] knows none; then the end of
    /// the socket is the only news of the worker's death.
    pub pidfd: Option<OwnedFd>,
    /// Who the worker is, in the kernel's word.
    pub peer: Credentials,
    /// The worker's name.
    pub name: Name,
    /// The number of the session.
    pub session: u64,
    /// What the worker submits.
    pub submission: Consumer,
    /// What the sidecar answers.
    pub completion: Producer,
    /// What the worker reads of what it has found on the board. Not honoured yet.
    pub hazards: SessionHazards,
    /// The number of the arena.
    pub arena_id: SegmentId,
    /// The memory that the worker writes, sealed against everybody else.
    pub arena: Segment,
    /// Where the worker shows itself what it publishes, sealed against everybody else; where there is a board.
    pub notices: Option<(SegmentId, Segment)>,
}

impl SidecarEnd {
    /// Gives a worker that has just connected a session, if `approve` agrees. Blocks for up to
    /// [`SidecarPolicy::timeout`] on each side of making its memory.
    ///
    /// `approve` is called at most once, before any memory is made. Where this fails after `approve` agreed, the
    /// worker is gone or has been told, and what `approve` noted down is to be undone by the caller.
    ///
    /// # Errors
    /// [`SessionError::TurnedAway`] for a worker that was refused and told so; any other for one that broke the rules,
    /// was too slow, or is gone. None concerns anybody but this worker.
    pub fn accept(
        socket: Socket,
        policy: &SidecarPolicy,
        approve: impl FnOnce(&Applicant) -> Result<Admission, Refusal>,
    ) -> Result<SidecarEnd, SessionError> {
        let deadline = Instant::now() + policy.timeout;
        match admit(&socket, policy, approve, deadline) {
            // Its memory is made by now, which takes long for a large arena and is not the worker's time.
            Ok(prepared) => prepared.finish(socket, Instant::now() + policy.timeout),
            Err(e) => {
                let refusal = match &e {
                    SessionError::TurnedAway(refusal) => refusal.clone(),
                    e => refusal_of(e),
                };
                // If the worker does not listen, it does not need to know.
                let _ = socket.send(&SessionMessage::Refused(refusal).encode(), &[], Instant::now());
                Err(e)
            }
        }
    }
}

/// What to tell a worker whose handshake failed with `e`.
fn refusal_of(e: &SessionError) -> Refusal {
    let code = match e {
        SessionError::Message(MessageError::Version { .. }) => RefusalCode::Version,
        SessionError::Segment(SegmentError::Budget(_) | SegmentError::NotLocked { .. }) => RefusalCode::NoMemory,
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

/// A session whose memory is made, and whose worker has not mapped it yet.
struct Prepared {
    applicant: Applicant,
    admission: Admission,
    welcome: Welcome,
    rings: Segment,
    arena: Segment,
    notices: Option<Segment>,
    /// It is the worker's own, who has it.
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
            "an arena of {} was asked for, and this sidecar grants {} at most (--max-arena-bytes)",
            Bytes(wanted_arena_bytes),
            Bytes(max)
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
    let options = SegmentOptions { len: rings_len, pages: Pages::Base, lock: policy.lock };
    let rings = Segment::create(&label("rings"), &options, &policy.budget)?;
    let options = SegmentOptions { len: admission.arena_bytes.max(1), pages: policy.pages, lock: policy.lock };
    let arena = match offered {
        None => Segment::create(&label("arena"), &options, &policy.budget)?,
        // Everything about it is looked at again: whoever offers it may be lying.
        Some(fd) => Segment::take_again(fd, wanted_arena_bytes, policy.lock, &policy.budget)?,
    };
    let options = SegmentOptions { len: NOTICES_BYTES, pages: Pages::Base, lock: policy.lock };
    let notices = admission.board.as_ref().map(|_| Segment::create(&label("notices"), &options, &policy.budget));
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

/// How much arena the worker wants, its name, and the arena that it offers again.
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

    /// Takes a doorbell, without waiting for one. `true` where there was one. One at a time: there is rarely a second,
    /// and a socket polled by level is readable again at once if there is.
    ///
    /// # Errors
    /// [`SessionError::Socket`], [`SessionError::Unexpected`]: the session is over.
    pub fn take_doorbell(&self) -> Result<bool, SessionError> {
        match self.0.try_receive(0)? {
            Some(Message::Doorbell) => Ok(true),
            Some(Message::Bytes { .. }) => Err(SessionError::Unexpected { expected: "a doorbell", found: "a message" }),
            None => Ok(false),
        }
    }

    /// Passes a segment to the worker, which can map it read-only and no other way. Waits until `deadline` for a
    /// worker that does not read; one in the past does not wait at all. After a timeout nothing was sent.
    ///
    /// # Errors
    /// [`SessionError::StillWritable`], [`SessionError::Socket`], [`SessionError::Segment`].
    pub fn pass_segment(&self, id: SegmentId, segment: &Segment, deadline: Instant) -> Result<(), SessionError> {
        if !segment.writers_sealed()? {
            return Err(SessionError::StillWritable { segment: id });
        }
        let message =
            SessionMessage::SegmentPassed { segment: id, len: segment.len(), references: segment.references() };
        // An open file of the worker's own: what it marks is its own then, and ends with it.
        let failed = |source| SegmentError::System { step: "open anew", len: segment.len(), source };
        let fd = reopen(segment.fd()).map_err(failed)?;
        Ok(self.0.send(&message.encode(), &[fd.as_fd()], deadline)?)
    }

    /// Tells the worker that its session is over. What it says is heard still, its end above all.
    pub fn hang_up(&self) {
        // Where the worker is gone already, there is nobody to tell.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Write);
    }

    /// Tells the worker that a segment that was passed to it will not be named again. Never waits.
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
