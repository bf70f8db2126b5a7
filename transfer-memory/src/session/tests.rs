use super::message::SessionMessage;
use super::*;
use crate::Errno;
use crate::ring::{MAX_RECORD_BYTES, MIN_CAPACITY};
use crate::segment::{Lock, MapError, Pages, PinnedBudget, Segment, SegmentError, SegmentOptions};
use crate::socket::{Listener, Message, Socket, SocketError};
use rustix::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::tensor::Name;

const BUDGET: u64 = 4 << 20;
const ARENA: SegmentId = SegmentId(3);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn policy() -> SidecarPolicy {
    SidecarPolicy {
        node: name("node-a"),
        incarnation: 99,
        max_arena_bytes: 8 << 20,
        submission_capacity: MIN_CAPACITY,
        completion_capacity: 2 * MIN_CAPACITY,
        pages: Pages::Base,
        lock: Lock::Try,
        budget: PinnedBudget::new(BUDGET),
        timeout: Duration::from_secs(20),
    }
}

fn options(arena_bytes: u64) -> WorkerOptions {
    WorkerOptions { name: name("trainer-0"), arena_bytes, timeout: Duration::from_secs(20) }
}

fn welcome_all(applicant: &Applicant) -> Result<Admission, Refusal> {
    Ok(Admission {
        session: 7,
        arena: ARENA,
        arena_bytes: applicant.wanted_arena_bytes,
        board: None,
        notices: SegmentId(0),
    })
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Both ends of a handshake over a pair of sockets.
fn handshake(
    policy: &SidecarPolicy,
    options: &WorkerOptions,
    approve: impl FnOnce(&Applicant) -> Result<Admission, Refusal> + Send,
) -> (Result<WorkerEnd, SessionError>, Result<SidecarEnd, SessionError>) {
    let (worker, sidecar) = Socket::pair().unwrap();
    thread::scope(|scope| {
        let sidecar = scope.spawn(move || SidecarEnd::accept(sidecar, policy, approve));
        (WorkerEnd::join(worker, options), sidecar.join().unwrap())
    })
}

fn session() -> (WorkerEnd, SidecarEnd) {
    let (worker, sidecar) = handshake(&policy(), &options(1 << 20), welcome_all);
    (worker.unwrap(), sidecar.unwrap())
}

/// Does a handshake with a worker that sends any `message`, and then reads.
fn accept_from(message: &[u8]) -> (SessionError, Result<SessionMessage, SessionError>) {
    let (worker, sidecar) = Socket::pair().unwrap();
    worker.send(message, &[], soon()).unwrap();
    let error = SidecarEnd::accept(sidecar, &policy(), |_| panic!("must not come this far")).unwrap_err();
    let answer = match worker.receive(2, soon()) {
        Ok(Message::Bytes { bytes, .. }) => Ok(SessionMessage::decode(&bytes).unwrap()),
        Ok(other) => panic!("{other:?}"),
        Err(e) => Err(e.into()),
    };
    (error, answer)
}

fn refusal(answer: Result<SessionMessage, SessionError>) -> Refusal {
    match answer {
        Ok(SessionMessage::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_sides_agree_after_a_handshake_over_a_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("worker.sock");
    let listener = Listener::bind(&path, 0o600).unwrap();
    let policy = policy();
    let (mut worker, mut sidecar) = thread::scope(|scope| {
        let policy = &policy;
        let sidecar =
            scope.spawn(move || SidecarEnd::accept(listener.accept(soon()).unwrap(), policy, welcome_all).unwrap());
        (WorkerEnd::connect(&path, &options(5000)).unwrap(), sidecar.join().unwrap())
    });
    assert_eq!((worker.session, worker.incarnation, worker.node.as_str()), (7, 99, "node-a"));
    assert_eq!((sidecar.session, sidecar.name.as_str(), sidecar.arena_id), (7, "trainer-0", ARENA));
    assert_eq!((worker.arena_id, worker.arena.len(), sidecar.arena.len()), (ARENA, 8192, 8192));
    assert_eq!(sidecar.peer.uid, rustix::process::geteuid().as_raw());
    assert!(sidecar.pidfd.is_some());
    assert_eq!(
        policy.budget.used(),
        8192 + (2 * 512 + 3 * 8192_u64 + crate::board::HAZARDS_BYTES).next_multiple_of(4096)
    );

    worker.arena.copy_in(4000, b"tensor").unwrap();
    let mut read = [0; 6];
    sidecar.arena.mapping().copy_out(4000, &mut read).unwrap();
    assert_eq!(&read, b"tensor");
    assert!(sidecar.arena.writers_sealed().unwrap());

    let mut buffer = [0; MAX_RECORD_BYTES];
    assert!(worker.submission.try_push(b"push").unwrap());
    worker.submission.publish();
    worker.socket.ring().unwrap();
    assert_eq!(sidecar.socket.try_receive(), Ok(Some(FromWorker::Doorbell)));
    assert_eq!(sidecar.socket.try_receive(), Ok(None));
    assert_eq!(sidecar.submission.try_pop(&mut buffer).unwrap().unwrap(), b"push");
    assert!(sidecar.completion.try_push(b"done").unwrap());
    sidecar.completion.publish();
    sidecar.socket.ring().unwrap();
    assert!(matches!(worker.socket.receive(soon()), Ok(FromSidecar::Doorbell)));
    assert!(worker.socket.try_receive().unwrap().is_none());
    assert_eq!(worker.completion.try_pop(&mut buffer).unwrap().unwrap(), b"done");

    drop(worker);
    assert_eq!(sidecar.socket.try_receive(), Err(SessionError::Socket(SocketError::Closed)));
    drop(sidecar);
    assert_eq!(policy.budget.used(), 0);
}

#[test]
fn passed_segments_are_mapped_read_only_and_once() {
    let (worker, sidecar) = session();
    let wanted = SegmentOptions { len: 4096, pages: Pages::Base, lock: Lock::No };
    let landing = Segment::create("landing", &wanted, &PinnedBudget::new(4096)).unwrap();
    let id = SegmentId(12);
    let still = SessionError::StillWritable { segment: id };
    assert_eq!(sidecar.socket.pass_segment(id, &landing, soon()), Err(still));
    landing.seal_writers().unwrap();
    landing.mapping().copy_in(0, b"landed").unwrap();
    for _ in 0..2 {
        sidecar.socket.pass_segment(id, &landing, soon()).unwrap();
        let Ok(FromSidecar::Segment(passed)) = worker.socket.receive(soon()) else { panic!() };
        assert_eq!((passed.id, passed.len), (id, 4096));
        let mapping = worker.segments.adopt(passed).unwrap();
        let mut read = [0; 6];
        mapping.copy_out(0, &mut read).unwrap();
        assert_eq!(&read, b"landed");
        assert!(matches!(mapping.copy_in(0, b"x"), Err(MapError::ReadOnly { .. })));
        let view = worker.segments.view(LocalSlice { segment: id, offset: 2, len: 4 }, Arc::new(())).unwrap();
        assert_eq!(&*view, b"nded");
        assert!(Arc::ptr_eq(&mapping, &worker.segments.get(id).unwrap()));
    }
    let outside = LocalSlice { segment: id, offset: 4096, len: 1 };
    assert!(matches!(worker.segments.view(outside, Arc::new(())), Err(SessionError::BadRange { .. })));
    let unknown = LocalSlice { segment: SegmentId(77), offset: 0, len: 1 };
    assert!(matches!(worker.segments.view(unknown, Arc::new(())), Err(SessionError::UnknownSegment { .. })));
    let fd = landing.fd().try_clone_to_owned().unwrap();
    let e = worker.segments.adopt(PassedSegment { id, len: 8192, references: None, fd }).unwrap_err();
    assert_eq!(e, SessionError::SegmentChanged { segment: id, known: 4096, found: 8192 });
    worker.segments.forget(id);
    assert!(worker.segments.get(id).is_none() && worker.segments.get(ARENA).is_some());
}

#[test]
fn a_third_party_cannot_write_what_a_session_shares() {
    let (_worker, sidecar) = session();
    let fd = sidecar.arena.fd().try_clone_to_owned().unwrap();
    let e = Segment::adopt(fd, crate::segment::Access::ReadWrite, sidecar.arena.len()).unwrap_err();
    assert!(matches!(e, SegmentError::System { step: "map", source: Errno::PERM, .. }), "{e}");
    assert_eq!(fs::ftruncate(sidecar.arena.fd(), 0), Err(Errno::PERM));
}

#[test]
fn refusals_reach_the_worker() {
    let no = Refusal { code: RefusalCode::NotAllowed, text: "user 0 may not".to_owned() };
    let (worker, sidecar) = handshake(&policy(), &options(1), |applicant| {
        assert_eq!((applicant.name.as_str(), applicant.wanted_arena_bytes), ("trainer-0", 1));
        Err(no.clone())
    });
    assert_eq!(worker.unwrap_err(), SessionError::Refused(no.clone()));
    assert_eq!(sidecar.unwrap_err(), SessionError::TurnedAway(no));

    let (worker, sidecar) = handshake(&policy(), &options(9 << 20), |_| panic!("too large to be asked for"));
    let SessionError::Refused(refusal) = worker.unwrap_err() else { panic!() };
    assert_eq!(refusal.code, RefusalCode::ArenaTooLarge);
    assert!(refusal.text.contains("9 MiB") && refusal.text.contains("8 MiB"), "{refusal}");
    assert!(matches!(sidecar, Err(SessionError::TurnedAway(_))));

    let policy = policy();
    let (worker, sidecar) = handshake(&policy, &options(5 << 20), welcome_all);
    let SessionError::Refused(refusal) = worker.unwrap_err() else { panic!() };
    assert!(refusal.code == RefusalCode::NoMemory && refusal.code.is_temporary(), "{refusal}");
    assert!(matches!(sidecar, Err(SessionError::Segment(SegmentError::Budget(_)))));
    assert_eq!(policy.budget.used(), 0);
}

#[test]
fn garbage_is_answered_and_ends_the_session() {
    let of_this_version = |rest: &[u8]| [b"TFSM", &PROTOCOL_VERSION.to_le_bytes()[..], rest].concat();
    let (unknown, short) = (of_this_version(&[0x63, 0]), of_this_version(&[1, 0, 0]));
    for garbage in [&b"GET / HTTP/1.1"[..], b"TFSM", &unknown, &short] {
        let (error, answer) = accept_from(garbage);
        assert!(matches!(error, SessionError::Message(_)), "{error}");
        assert_eq!(refusal(answer).code, RefusalCode::Malformed);
    }
    let (error, answer) = accept_from(&SessionMessage::Mapped { session: 7 }.encode());
    assert_eq!(error, SessionError::Unexpected { expected: "Hello", found: "Mapped" });
    assert_eq!(refusal(answer).code, RefusalCode::Malformed);

    let mut newer = SessionMessage::Hello { wanted_arena_bytes: 1, name: name("w") }.encode();
    let next = PROTOCOL_VERSION + 1;
    newer[4..6].copy_from_slice(&next.to_le_bytes());
    let (error, answer) = accept_from(&newer);
    assert_eq!(error, SessionError::Message(MessageError::Version { found: next }));
    let refusal = refusal(answer);
    assert_eq!(refusal.code, RefusalCode::Version);
    let words = [next, PROTOCOL_VERSION].map(|version| format!("version {version}"));
    assert!(words.iter().all(|word| refusal.text.contains(word)), "{refusal}");
}

#[test]
fn silent_and_vanishing_workers_do_not_hold_the_sidecar() {
    let policy = SidecarPolicy { timeout: Duration::from_millis(50), ..policy() };
    let (_silent, sidecar) = Socket::pair().unwrap();
    let e = SidecarEnd::accept(sidecar, &policy, welcome_all).unwrap_err();
    assert!(matches!(e, SessionError::Socket(SocketError::TimedOut { what: "send", .. })), "{e}");

    let (worker, sidecar) = Socket::pair().unwrap();
    drop(worker);
    let e = SidecarEnd::accept(sidecar, &policy, welcome_all).unwrap_err();
    assert_eq!(e, SessionError::Socket(SocketError::Closed));

    // It sends Hello, but never Mapped.
    let (worker, sidecar) = Socket::pair().unwrap();
    worker.send(&SessionMessage::Hello { wanted_arena_bytes: 1, name: name("w") }.encode(), &[], soon()).unwrap();
    let e = SidecarEnd::accept(sidecar, &policy, welcome_all).unwrap_err();
    assert!(matches!(e, SessionError::Socket(SocketError::TimedOut { .. })), "{e}");
    assert_eq!(policy.budget.used(), 0);
}

#[test]
fn a_worker_does_not_wait_for_a_silent_sidecar_and_understands_a_wrong_one() {
    let quick = WorkerOptions { timeout: Duration::from_millis(50), ..options(1) };
    let (worker, _sidecar) = Socket::pair().unwrap();
    let e = WorkerEnd::join(worker, &quick).unwrap_err();
    assert!(matches!(e, SessionError::Socket(SocketError::TimedOut { .. })), "{e}");

    let answered = |message: &SessionMessage| {
        let (worker, sidecar) = Socket::pair().unwrap();
        sidecar.send(&message.encode(), &[], soon()).unwrap();
        WorkerEnd::join(worker, &quick).unwrap_err()
    };
    let e = answered(&SessionMessage::Mapped { session: 1 });
    assert_eq!(e, SessionError::Unexpected { expected: "Welcome", found: "Mapped" });
    let ring = crate::ring::RingRange { offset: 0, capacity: 8192 };
    let e = answered(&SessionMessage::Welcome(super::message::Welcome {
        session: 1,
        incarnation: 1,
        arena: ARENA,
        arena_len: 1,
        rings_len: 1,
        submission: ring,
        completion: ring,
        hazards: 0,
        board_len: 0,
        notices: (SegmentId(0), 0),
        node: name("n"),
    }));
    assert_eq!(e, SessionError::Descriptors { message: "Welcome", expected: 2, found: 0 });
}

/// A worker finds the versions on the board of its handshake, and sets its hazard pointers where the sidecar looks for
/// them.
#[test]
fn a_board_comes_with_the_session_and_can_only_be_read() {
    use crate::board::{BoardWriter, Liveness, Lookup, NotHeld, board_bytes};
    use transfer_core::tensor::{DType, Key, TensorMeta, Version};
    let options = SegmentOptions { len: board_bytes(64), pages: Pages::Base, lock: Lock::No };
    let board = Arc::new(Segment::create("board", &options, &PinnedBudget::new(BUDGET)).unwrap());
    board.seal_writers().unwrap();
    let options_of_reader =
        super::WorkerOptions { name: name("reader"), arena_bytes: 0, timeout: Duration::from_secs(20) };
    let (worker, sidecar) = handshake(&policy(), &options_of_reader, |applicant| {
        Ok(Admission { board: Some(board.clone()), ..welcome_all(applicant)? })
    });
    let (worker, sidecar) = (worker.unwrap(), sidecar.unwrap());
    let mut writer = BoardWriter::new(board.mapping().clone()).unwrap();
    let _life = Liveness::begin(board.mapping()).unwrap();
    let (key, meta) = (Key::new("k").unwrap(), TensorMeta::of(DType::U8, &[9]).unwrap());
    let slice = LocalSlice { segment: ARENA, offset: 64, len: 9 };
    writer.publish(&key, 1, Version(5), &meta, slice).unwrap();
    let reader = worker.board.unwrap();
    let Some(Lookup::Version(snapshot)) = reader.find(&key, |_| None) else { panic!() };
    assert_eq!((snapshot.version, snapshot.slice), (Version(5), slice));
    assert_eq!(reader.hold(&snapshot), Err(NotHeld::Gone { tell: None }), "the hazard pointers are not honoured yet");
    sidecar.hazards.set_open(true);
    let hazard = reader.hold(&snapshot).unwrap();
    writer.unlink(1);
    writer.fence_before_scan();
    assert!(sidecar.hazards.is_protected(1) && reader.release(&hazard) && !sidecar.hazards.is_protected(1));
    // It cannot be mapped for writing, like any sealed segment.
    let again = board.fd().try_clone_to_owned().unwrap();
    assert!(Segment::adopt(again, crate::segment::Access::ReadWrite, board.len()).is_err());
}

#[test]
fn worker_that_sends_what_it_must_not_is_thrown_out() {
    let (worker, sidecar) = Socket::pair().unwrap();
    let sidecar = SidecarSocket::new(sidecar);
    worker.ring().unwrap();
    worker.send(&SessionMessage::Mapped { session: 1 }.encode(), &[], soon()).unwrap();
    worker.send(b"garbage", &[], soon()).unwrap();
    assert_eq!(sidecar.try_receive(), Ok(Some(FromWorker::Doorbell)));
    assert!(matches!(sidecar.try_receive(), Err(SessionError::Unexpected { found: "Mapped", .. })));
    assert!(matches!(sidecar.try_receive(), Err(SessionError::Message(_))));
}

// Promise: closed-clients
#[test]
fn worker_leaves_and_keeps_its_socket_until_it_reads_nothing() {
    let (worker, sidecar) = Socket::pair().unwrap();
    let (worker, sidecar) = (WorkerSocket(worker), SidecarSocket::new(sidecar));
    thread::scope(|scope| {
        let leaving = scope.spawn(|| worker.leave(soon()));
        let said = loop {
            match sidecar.try_receive().unwrap() {
                Some(said) => break said,
                None => thread::yield_now(),
            }
        };
        assert_eq!(said, FromWorker::Leave);
        assert_eq!(sidecar.try_receive(), Ok(None), "the worker's end is open");
        sidecar.hang_up();
        leaving.join().unwrap();
    });
    assert!(!worker.is_open());
    // A sidecar that does not answer holds up nobody for ever, and readers of the socket go on.
    let (worker, _silent) = Socket::pair().unwrap();
    let worker = WorkerSocket(worker);
    worker.leave(Instant::now());
    assert!(matches!(worker.try_receive(), Err(SessionError::Socket(SocketError::Closed))));
    drop(sidecar);
}
