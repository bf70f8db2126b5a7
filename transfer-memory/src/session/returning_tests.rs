//! Tests of returned arenas, valid and invalid, and of reader marks.

use super::message::SessionMessage;
use super::*;
use crate::ring::MIN_CAPACITY;
use crate::segment::{Lock, Pages, PinnedBudget, Segment, SegmentError, SegmentOptions, is_marked};
use crate::socket::{Message, Socket};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};
use transfer_core::memory::SegmentId;
use transfer_core::tensor::Name;

const LEN: u64 = 1 << 20;

fn policy(incarnation: u64) -> SidecarPolicy {
    SidecarPolicy {
        node: Name::new("node-a").unwrap(),
        incarnation,
        max_arena_bytes: 8 << 20,
        submission_capacity: MIN_CAPACITY,
        completion_capacity: MIN_CAPACITY,
        pages: Pages::Base,
        lock: Lock::Try,
        budget: PinnedBudget::new(4 << 20),
        timeout: Duration::from_secs(20),
    }
}

fn admit(applicant: &Applicant) -> Result<Admission, Refusal> {
    Ok(Admission {
        session: 7,
        arena: SegmentId(3),
        arena_bytes: applicant.wanted_arena_bytes,
        board: None,
        notices: SegmentId(0),
    })
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn name() -> Name {
    Name::new("w").unwrap()
}

fn begin(policy: &SidecarPolicy) -> (WorkerEnd, SidecarEnd) {
    let (worker, sidecar) = Socket::pair().unwrap();
    let options = WorkerOptions { name: name(), arena_bytes: LEN, timeout: Duration::from_secs(20) };
    thread::scope(|scope| {
        let sidecar = scope.spawn(|| SidecarEnd::accept(sidecar, policy, admit).unwrap());
        (WorkerEnd::join(worker, &options).unwrap(), sidecar.join().unwrap())
    })
}

/// Makes that offer to a sidecar. Returns the sidecar's error, and its answer.
fn offer(policy: &SidecarPolicy, incarnation: u64, arena_len: u64, fd: BorrowedFd<'_>) -> (SessionError, Refusal) {
    let (worker, sidecar) = Socket::pair().unwrap();
    let offer = SessionMessage::Return { incarnation, arena_len, name: name() };
    worker.send(&offer.encode(), &[fd], soon()).unwrap();
    let error = SidecarEnd::accept(sidecar, policy, admit).unwrap_err();
    let Message::Bytes { bytes, .. } = worker.receive(2, soon()).unwrap() else { panic!() };
    let SessionMessage::Refused(refusal) = SessionMessage::decode(&bytes).unwrap() else { panic!() };
    (error, refusal)
}

#[test]
fn returned_arena_is_mapped_read_only_and_counted() {
    let (before, after) = (policy(1), policy(2));
    let (worker, sidecar) = begin(&before);
    worker.arena.copy_in(100, b"published").unwrap();
    drop(sidecar);
    let (listening, socket) = Socket::pair().unwrap();
    let offered = SessionMessage::Return { incarnation: 1, arena_len: LEN, name: name() };
    let sidecar = thread::scope(|scope| {
        let sidecar = scope.spawn(|| SidecarEnd::accept(socket, &after, admit).unwrap());
        listening.send(&offered.encode(), &[worker.arena_fd.as_fd()], soon()).unwrap();
        let Message::Bytes { bytes, descriptors } = listening.receive(2, soon()).unwrap() else { panic!() };
        let SessionMessage::Welcome(welcome) = SessionMessage::decode(&bytes).unwrap() else { panic!() };
        assert_eq!((descriptors.len(), welcome.arena_len), (1, LEN), "the worker has its arena");
        listening.send(&SessionMessage::Mapped { session: 7 }.encode(), &[], soon()).unwrap();
        sidecar.join().unwrap()
    });
    let mut read = [0; 9];
    sidecar.arena.mapping().copy_out(100, &mut read).unwrap();
    assert_eq!(&read, b"published");
    assert!(sidecar.arena.mapping().copy_in(100, b"x").is_err());
    assert!(after.budget.used() > LEN, "arena and rings");
    drop(sidecar);
    assert_eq!(after.budget.used(), 0);
}

#[test]
fn invalid_arenas_are_refused_with_the_reason() {
    let policy = policy(2);
    let wanted = SegmentOptions { len: LEN, pages: Pages::Base, lock: Lock::No };
    let budget = PinnedBudget::new(64 << 20);
    let writable = Segment::create("writable", &wanted, &budget).unwrap();
    let sealed = Segment::create("sealed", &wanted, &budget).unwrap();
    sealed.seal_writers().unwrap();
    let resizable: OwnedFd = rustix::fs::memfd_create("resizable", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&resizable, LEN).unwrap();
    let file = tempfile::tempfile().unwrap();

    let bad = |fd: BorrowedFd<'_>, len: u64| {
        let (error, refusal) = offer(&policy, 1, len, fd);
        assert_eq!(policy.budget.used(), 0, "{error}");
        assert_eq!(refusal.code, RefusalCode::BadArena, "{error}");
        error
    };
    let error = bad(writable.fd(), LEN);
    assert!(matches!(error, SessionError::Segment(SegmentError::StillWritable)), "{error}");
    let error = bad(resizable.as_fd(), LEN);
    assert!(matches!(error, SessionError::Segment(SegmentError::Unsealed { can: "shrunk and grown" })), "{error}");
    let error = bad(file.as_fd(), LEN);
    assert!(matches!(error, SessionError::Segment(SegmentError::NotMemfd { .. })), "{error}");
    let error = bad(sealed.fd(), 2 * LEN);
    assert!(matches!(error, SessionError::Segment(SegmentError::WrongSize { found: LEN, .. })), "{error}");

    // More than the limit, more than the budget has left, and from a session with this very sidecar.
    assert_eq!(offer(&policy, 1, 16 << 20, sealed.fd()).1.code, RefusalCode::ArenaTooLarge);
    assert_eq!(offer(&policy, 1, 6 << 20, sealed.fd()).1.code, RefusalCode::NoMemory);
    assert_eq!(offer(&policy, 2, LEN, sealed.fd()).1.code, RefusalCode::NotAllowed);
    assert_eq!(policy.budget.used(), 0);
}

#[test]
fn reader_mark_lasts_as_long_as_the_mapping() {
    let policy = policy(41);
    let (owner, sidecar) = begin(&policy);
    let (reader, at_reader) = begin(&policy);
    let marked = |incarnation| is_marked(&owner.arena_fd, incarnation).unwrap();
    assert!(!marked(41));
    at_reader.socket.pass_segment(SegmentId(9), &sidecar.arena, soon()).unwrap();
    let Ok(FromSidecar::Segment(passed)) = reader.socket.receive(soon()) else { panic!() };
    let mapping = reader.segments.adopt(passed).unwrap();
    assert!(marked(41) && !marked(42) && !marked(40));
    // The sidecar's end changes nothing, and neither does forgetting a segment that still has views.
    assert!(reader.socket.is_open());
    drop((sidecar, at_reader));
    assert!(!reader.socket.is_open());
    reader.segments.forget(SegmentId(9));
    assert!(marked(41));
    drop(mapping);
    assert!(!marked(41));
}
