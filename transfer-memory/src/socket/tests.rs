use super::*;
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::FdFlags;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("worker.sock");
    (dir, path)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn past() -> Instant {
    Instant::now()
}

#[test]
fn socket_connects_and_knows_its_peer() {
    let (_dir, path) = place();
    let listener = Listener::bind(&path, 0o600).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(listener.accept(past()), Err(SocketError::TimedOut { .. })));
    let worker = Socket::connect(&path, soon()).unwrap();
    let sidecar = listener.accept(soon()).unwrap();
    let me = Credentials {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        pid: Some(std::process::id() as i32),
    };
    assert_eq!(sidecar.peer().unwrap(), me);
    assert_eq!(worker.peer().unwrap(), me);
    let pidfd = sidecar.peer_pidfd().unwrap();
    let target = std::fs::read_link(format!("/proc/self/fd/{}", pidfd.as_raw_fd())).unwrap();
    assert!(target.to_string_lossy().contains("pidfd"), "{target:?}");
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_stale_file_is_replaced_and_a_live_one_is_not() {
    let (_dir, path) = place();
    let first = Listener::bind(&path, Listener::DEFAULT_MODE).unwrap();
    let e = Listener::bind(&path, Listener::DEFAULT_MODE).unwrap_err();
    assert_eq!(e, AddressError::InUse { path: path.clone() });
    // The file of a dead process: the socket is closed, its path is left.
    let copy = path.with_extension("moved");
    std::fs::rename(&path, &copy).unwrap();
    drop(first);
    std::fs::rename(&copy, &path).unwrap();
    assert!(matches!(Socket::connect(&path, soon()), Err(AddressError::NobodyListens { .. })));
    let second = Listener::bind(&path, Listener::DEFAULT_MODE).unwrap();
    Socket::connect(&path, soon()).unwrap();

    // A listener does not remove its successor's file.
    std::fs::remove_file(&path).unwrap();
    let third = Listener::bind(&path, Listener::DEFAULT_MODE).unwrap();
    drop(second);
    assert_eq!(third.path(), path);
    assert!(path.exists());
}

#[test]
fn other_files_and_long_paths_are_left_alone() {
    let (dir, path) = place();
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(Listener::bind(&path, 0o600).unwrap_err(), AddressError::NotASocket { path: path.clone() });
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let long = dir.path().join("x".repeat(108));
    assert!(matches!(Listener::bind(&long, 0o600), Err(AddressError::TooLong { max: 107, .. })));
    assert!(matches!(Socket::connect(&long, soon()), Err(AddressError::TooLong { .. })));
    let absent = dir.path().join("absent");
    assert!(matches!(Socket::connect(&absent, soon()), Err(AddressError::NobodyListens { .. })));
}

#[test]
fn descriptors_travel_and_are_closed_on_exec() {
    let (a, b) = Socket::pair().unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    a.send(b"two of them", &[read.as_fd(), write.as_fd()], soon()).unwrap();
    let Message::Bytes { bytes, descriptors } = b.receive(2, soon()).unwrap() else { panic!("a doorbell") };
    assert_eq!((&bytes[..], descriptors.len()), (&b"two of them"[..], 2));
    for fd in &descriptors {
        assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(FdFlags::CLOEXEC));
    }
    rustix::io::write(&descriptors[1], b"!").unwrap();
    assert_eq!(rustix::io::read(&read, &mut [0; 4]).unwrap(), 1);
}

#[test]
fn unexpected_descriptors_are_closed() {
    let (a, b) = Socket::pair().unwrap();
    // The only writer of a pipe is sent: the pipe's reader sees the end as soon as that descriptor is closed.
    for expected in 0..2 {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let sent: Vec<_> = (0..=expected).map(|_| write.as_fd()).collect();
        a.send(b"too many", &sent, soon()).unwrap();
        drop(write);
        assert_eq!(b.receive(expected, soon()).unwrap_err(), SocketError::TooManyDescriptors { expected });
        assert_eq!(rustix::io::read(&read, &mut [0; 4]).unwrap(), 0);
    }
    assert!(matches!(a.send(b"five", &[b.as_fd(); 5], soon()), Err(SocketError::System { .. })));
}

#[test]
fn long_messages_are_refused_on_both_ends() {
    let (a, b) = Socket::pair().unwrap();
    assert!(matches!(a.send(&[0; MAX_MESSAGE_BYTES + 1], &[], soon()), Err(SocketError::System { .. })));
    assert!(matches!(a.send(b"1", &[], soon()), Err(SocketError::System { .. })));
    a.send(&[7; MAX_MESSAGE_BYTES], &[], soon()).unwrap();
    assert!(matches!(b.receive(0, soon()), Ok(Message::Bytes { bytes, .. }) if bytes.len() == MAX_MESSAGE_BYTES));
    let flags = rustix::net::SendFlags::empty();
    rustix::net::send(&a, &[0; MAX_MESSAGE_BYTES + 1], flags).unwrap();
    assert_eq!(b.receive(0, soon()).unwrap_err(), SocketError::MessageTooLong { max: MAX_MESSAGE_BYTES });
}

#[test]
fn nothing_waits_for_a_peer_that_does_not_read() {
    let (a, b) = Socket::pair().unwrap();
    for _ in 0..10_000 {
        a.ring().unwrap();
    }
    let e = a.send(b"no room", &[], Instant::now() + Duration::from_millis(10)).unwrap_err();
    assert!(matches!(e, SocketError::TimedOut { what: "receive", .. }), "{e}");
    assert!(matches!(a.send(b"no room", &[], past()), Err(SocketError::TimedOut { .. })));
    let mut bells = 0;
    while let Some(message) = b.try_receive(0).unwrap() {
        assert!(matches!(message, Message::Doorbell));
        bells += 1;
    }
    assert!(bells > 0);
    a.send(b"room", &[], past()).unwrap();
}

#[test]
fn end_of_the_connection_is_reported() {
    let (a, b) = Socket::pair().unwrap();
    assert!(matches!(b.receive(0, past()), Err(SocketError::TimedOut { .. })));
    assert!(b.try_receive(0).unwrap().is_none());
    drop(a);
    assert_eq!(b.receive(0, soon()).unwrap_err(), SocketError::Closed);
    assert_eq!(b.ring(), Err(SocketError::Closed));
    assert_eq!(b.send(b"hello", &[], soon()), Err(SocketError::Closed));

    // Messages that were sent before the end arrive, even if the sender had not read everything.
    let (a, b) = Socket::pair().unwrap();
    b.ring().unwrap();
    a.send(b"goodbye", &[], soon()).unwrap();
    drop(a);
    assert!(matches!(b.receive(0, soon()), Ok(Message::Bytes { bytes, .. }) if bytes == b"goodbye"));
    assert_eq!(b.receive(0, soon()).unwrap_err(), SocketError::Closed);
}

/// The second process finds the socket of the first one in use and leaves it alone, even if a dead one was there when
/// both began.
#[test]
fn only_one_of_two_replaces_a_dead_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("worker.sock");
    for round in 0..500 {
        // As after a crash: the file stays, without a listener.
        drop(std::os::unix::net::UnixDatagram::bind(&path).unwrap());
        let barrier = std::sync::Barrier::new(2);
        let [one, two] = std::thread::scope(|scope| {
            let bind = || {
                barrier.wait();
                Listener::bind(&path, 0o600)
            };
            [scope.spawn(bind), scope.spawn(bind)].map(|thread| thread.join().unwrap())
        });
        assert!(one.is_ok() != two.is_ok(), "round {round}: {one:?}, {two:?}");
        let refused = one.as_ref().err().or(two.as_ref().err());
        assert!(matches!(refused, Some(AddressError::InUse { .. })), "round {round}: {refused:?}");
        Socket::connect(&path, Instant::now()).unwrap();
        drop((one, two));
        assert!(!path.exists(), "round {round}");
    }
}
