//! A peer that the test plays on a bare socket.

use super::super::ending::MAX_PARTINGS;
use super::super::frame::{HEADER_BYTES, Header, Kind};
use super::super::offer;
use super::*;
use crate::links::{MAX_PENDING, MAX_PENDING_OF_ONE};
use crate::token::Token;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use transfer_core::wire::crc32c;

const LINK: LinkId = LinkId(1);
const SEGMENT: SegmentId = SegmentId(1);

fn frame(header: Header, body: &[u8]) -> Vec<u8> {
    [&header.encode()[..], body].concat()
}

fn hello(token: &Token) -> Vec<u8> {
    frame(Header::new(Kind::Hello, 16), token.bytes())
}

/// Returns a fabric with 4096 bytes of memory, and the tokens with which a peer connects to it as [`LINK`].
fn accepting(config: TcpConfig) -> (TcpFabric, Token, Token) {
    let mut fabric = TcpFabric::new(config).unwrap();
    fabric.register(SEGMENT, Arc::new(segment(4096))).unwrap();
    let theirs = Token::random().unwrap();
    let answer = fabric.accept(LINK, &offer::encode_initiator(&theirs, offer::Encryption::None)).unwrap();
    let (token, address) = offer::decode_acceptor(&answer, offer::Encryption::None).unwrap();
    assert_eq!(address, fabric.address());
    (fabric, token, theirs)
}

/// Returns a fabric that is connected to the socket.
fn connected() -> (TcpFabric, TcpStream) {
    let (mut fabric, token, theirs) = accepting(local());
    let mut peer = TcpStream::connect(fabric.address()).unwrap();
    peer.write_all(&hello(&token)).unwrap();
    until(&mut fabric, |event| matches!(event, FabricEvent::Connected { link: LINK }).then_some(()));
    let (kind, body) = receive(&mut fabric, &mut peer).unwrap();
    assert_eq!((kind, &body[..]), (Kind::Welcome, &theirs.bytes()[..]));
    (fabric, peer)
}

/// Returns the next frame that the fabric sends, or `None` at the end of the stream.
fn receive(fabric: &mut TcpFabric, peer: &mut TcpStream) -> Option<(Kind, Vec<u8>)> {
    let mut exact = |len: u64| {
        let mut bytes = vec![0; len as usize];
        let mut filled = 0;
        peer.set_nonblocking(true).unwrap();
        while filled < bytes.len() {
            fabric.poll(&mut |event| panic!("{event:?}"));
            match peer.read(&mut bytes[filled..]) {
                Ok(0) => return None,
                Ok(n) => filled += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        peer.set_nonblocking(false).unwrap();
        Some(bytes)
    };
    let header = exact(HEADER_BYTES as u64)?;
    let header = Header::decode(&header.try_into().unwrap()).unwrap();
    Some((header.kind, exact(header.remote.len)?))
}

// Promise: certificates, seen to fail
// Promise: attacker-with-a-token
#[test]
fn a_token_is_good_for_one_socket() {
    let (mut fabric, token, _) = accepting(local());
    let mut first = TcpStream::connect(fabric.address()).unwrap();
    first.write_all(&hello(&token)).unwrap();
    until(&mut fabric, |event| matches!(event, FabricEvent::Connected { .. }).then_some(()));
    for wrong in [token, Token::random().unwrap()] {
        let mut second = TcpStream::connect(fabric.address()).unwrap();
        second.write_all(&hello(&wrong)).unwrap();
        let (kind, text) = receive(&mut fabric, &mut second).unwrap();
        assert_eq!((kind, &text[..]), (Kind::Refuse, &b"the token is unknown, used or too late"[..]));
        assert_eq!(receive(&mut fabric, &mut second), None);
    }
    // The first socket still works.
    first.write_all(&frame(Header::new(Kind::Send, 2), b"hi")).unwrap();
    until(&mut fabric, |event| matches!(event, FabricEvent::Message { bytes: b"hi", .. }).then_some(()));
}

// Promise: attacker-with-a-token
#[test]
fn a_late_token_is_refused_and_its_link_is_down() {
    let config = TcpConfig { handshake_timeout: Duration::from_millis(50), ..local() };
    let (mut fabric, token, _) = accepting(config);
    // A sleeping fabric notices it, too.
    fabric.arm();
    let [fd] = fabric.wait_fds()[..] else { panic!("one descriptor") };
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    let long = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&long)), Ok(1));
    fabric.woken();
    assert!(matches!(down(&mut fabric), DownReason::NotConnected(_)));
    let mut peer = TcpStream::connect(fabric.address()).unwrap();
    peer.write_all(&hello(&token)).unwrap();
    assert_eq!(receive(&mut fabric, &mut peer).unwrap().0, Kind::Refuse);
}

#[test]
fn bad_greetings_are_refused_and_silent_sockets_are_closed() {
    let config = TcpConfig { handshake_timeout: Duration::from_millis(300), ..local() };
    let mut fabric = TcpFabric::new(config).unwrap();
    let mut silent = TcpStream::connect(fabric.address()).unwrap();
    for bytes in [vec![b'x'; 64], frame(Header::new(Kind::Send, 16), &[0; 16]), b"GET / HTTP/1.1\r\n".repeat(4)] {
        let mut peer = TcpStream::connect(fabric.address()).unwrap();
        peer.write_all(&bytes).unwrap();
        assert_eq!(receive(&mut fabric, &mut peer).unwrap().0, Kind::Refuse);
        assert_eq!(receive(&mut fabric, &mut peer), None);
    }
    assert_eq!(receive(&mut fabric, &mut silent), None);
}

/// Returns a configuration in which no connection times out.
fn patient() -> TcpConfig {
    TcpConfig { handshake_timeout: Duration::from_secs(600), ..local() }
}

fn heard(fabric: &mut TcpFabric, done: impl Fn(&TcpFabric) -> bool) {
    let start = Instant::now();
    while !done(fabric) {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing happens");
        fabric.poll(&mut |event| panic!("{event:?}"));
    }
}

// Promise: silent-connections, seen to fail
#[test]
fn silent_connections_keep_no_link_out() {
    let (mut fabric, token, _) = accepting(patient());
    let mut silent = Vec::new();
    for n in 0..2 * MAX_PENDING {
        silent.push(TcpStream::connect(fabric.address()).unwrap());
        heard(&mut fabric, |fabric| fabric.pending.seen() > n as u64);
    }
    let mut peer = TcpStream::connect(fabric.address()).unwrap();
    peer.write_all(&hello(&token)).unwrap();
    until(&mut fabric, |event| matches!(event, FabricEvent::Connected { link: LINK }).then_some(()));
    // Connections of one address had to leave in the order in which they came. The last ones are still there.
    assert_eq!(fabric.pending.len(), MAX_PENDING_OF_ONE - 1);
    let first = &mut silent[0];
    first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert!(matches!(first.read(&mut [0]), Ok(0) | Err(_)), "it was closed");
    let last = silent.last_mut().unwrap();
    last.write_all(&hello(&token)).unwrap();
    assert_eq!(receive(&mut fabric, last).unwrap().0, Kind::Refuse, "it is heard, and its token is used");
}

// Promise: slow-peers, seen to fail
#[test]
fn closing_sockets_are_bounded() {
    let mut fabric = TcpFabric::new(patient()).unwrap();
    let mut refused = Vec::new();
    for n in 0..3 * MAX_PARTINGS {
        let mut peer = TcpStream::connect(fabric.address()).unwrap();
        peer.write_all(&hello(&Token::random().unwrap())).unwrap();
        refused.push(peer);
        heard(&mut fabric, |fabric| fabric.pending.seen() > n as u64 && fabric.pending.is_empty());
        assert!(fabric.partings.len() <= MAX_PARTINGS, "{}", fabric.partings.len());
    }
    // Each peer was told the reason before its socket was closed.
    for peer in &mut refused {
        assert_eq!(receive(&mut fabric, peer).unwrap().0, Kind::Refuse);
    }
}

#[test]
fn a_violation_is_told_and_ends_the_link() {
    let remote = |address, len, key| RemoteSlice::new(address, len, RemoteKey(key));
    let write = |address, len, key| Header { remote: remote(address, len, key), ..Header::new(Kind::Write, 0) };
    let mut reserved = Header::new(Kind::Ack, 0).encode();
    reserved[7] = 1;
    let sum = crc32c(&reserved[..44]);
    reserved[44..].copy_from_slice(&sum.to_le_bytes());
    let mut flipped = frame(Header::new(Kind::Send, 2), b"hi");
    flipped[24] ^= 1;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("does not start with TTCP", vec![0; 48]),
        ("CRC32C", flipped),
        ("no meaning", reserved.to_vec()),
        ("opens nothing", frame(write(0, 64, 0xBAD), &[1; 64])),
        ("body of 4097 bytes", frame(Header::new(Kind::Send, 4097), &[])),
        ("body of 1 bytes", frame(Header::new(Kind::Ack, 1), &[0])),
        ("Write with a body of", frame(write(0, u64::MAX, 1), &[])),
        ("Refuse with a body of", frame(Header::new(Kind::Refuse, 1 << 20), &[])),
        ("3 works acknowledged of 0 sent", frame(Header { placed: 3, ..Header::new(Kind::Ack, 0) }, &[])),
        ("greeting", frame(Header::new(Kind::Hello, 16), &[0; 16])),
        ("second welcome", frame(Header::new(Kind::Welcome, 16), &[0; 16])),
    ];
    for (expected, bytes) in cases {
        let (mut fabric, mut peer) = connected();
        peer.write_all(&bytes).unwrap();
        let reason = down(&mut fabric);
        let DownReason::Violation(why) = &reason else { panic!("{reason:?}") };
        assert!(why.contains(expected), "{why:?} should contain {expected:?}");
        let (kind, told) = receive(&mut fabric, &mut peer).unwrap();
        assert_eq!((kind, String::from_utf8(told).unwrap()), (Kind::Refuse, why.clone()));
        assert_eq!(receive(&mut fabric, &mut peer), None);
    }
}

/// Frames arrive byte by byte, and the stream ends at any place.
#[test]
fn a_stream_may_be_cut_anywhere() {
    let whole = |remote| {
        let write = Header { remote, immediate: Some(5), ..Header::new(Kind::Write, 0) };
        [frame(write, &[7; 64]), frame(Header::new(Kind::Send, 3), b"end")].concat()
    };
    let len = whole(RemoteSlice::new(0, 64, RemoteKey(0))).len();
    for cut in (0..=len).step_by(9).chain([48, 112, 160, len]) {
        let (mut fabric, mut peer) = connected();
        peer.set_nodelay(true).unwrap();
        fabric.grant(LINK, LocalSlice { segment: SEGMENT, offset: 128, len: 64 }, GrantAccess::Write, 0).unwrap();
        let remote = until(&mut fabric, |event| match event {
            FabricEvent::Granted { remote, .. } => Some(remote),
            _ => None,
        });
        let (mut immediates, mut messages, mut end) = (0, 0, None);
        let mut sink = |event: FabricEvent<'_>| match event {
            FabricEvent::Immediate { value: 5, .. } => immediates += 1,
            FabricEvent::Message { bytes: b"end", .. } => messages += 1,
            FabricEvent::LinkDown { reason, .. } => end = Some(reason),
            other => panic!("{other:?}"),
        };
        for byte in &whole(remote)[..cut] {
            peer.write_all(&[*byte]).unwrap();
            fabric.poll(&mut sink);
        }
        drop(peer);
        while fabric.poll(&mut sink) || !fabric.links.is_empty() {}
        assert!(matches!(end, Some(DownReason::Lost(_))), "{end:?}");
        assert_eq!((immediates, messages), (u32::from(cut >= 112), u32::from(cut == len)), "cut at {cut}");
    }
}

#[test]
fn revoke_during_a_write_ends_the_link() {
    let (mut fabric, mut peer) = connected();
    fabric.grant(LINK, LocalSlice { segment: SEGMENT, offset: 0, len: 4096 }, GrantAccess::Write, 0).unwrap();
    let remote = until(&mut fabric, |event| match event {
        FabricEvent::Granted { remote, .. } => Some(remote),
        _ => None,
    });
    let memory = fabric.regions.source(&LocalSlice { segment: SEGMENT, offset: 0, len: 4096 }).unwrap().mapping;
    peer.write_all(&frame(Header { remote, ..Header::new(Kind::Write, 0) }, &[7; 100])).unwrap();
    let mut first = [0];
    while first != [7] {
        fabric.poll(&mut |event| panic!("{event:?}"));
        memory.copy_out(99, &mut first).unwrap();
    }
    fabric.revoke(LINK, remote.key(), 0).unwrap();
    peer.write_all(&[8; 3996]).unwrap();
    assert!(matches!(down(&mut fabric), DownReason::Violation(_)));
    memory.copy_out(100, &mut first).unwrap();
    assert_eq!(first, [0]);
}

#[test]
fn absent_silent_or_false_acceptor_gets_no_link() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = offer::encode_acceptor(&Token::random().unwrap(), address, offer::Encryption::None);
    let config = TcpConfig { handshake_timeout: Duration::from_millis(200), ..local() };
    let begin = |config: &TcpConfig| {
        let mut fabric = TcpFabric::new(config.clone()).unwrap();
        fabric.offer(LINK).unwrap();
        fabric.connect(LINK, &answer).unwrap();
        fabric
    };
    assert!(matches!(down(&mut begin(&config)), DownReason::NotConnected(_)));
    let _silent = listener.accept().unwrap();
    let early = Header { remote: RemoteSlice::new(0, 0, RemoteKey(0)), ..Header::new(Kind::Write, 0) };
    for (bytes, expected) in [
        (frame(Header::new(Kind::Welcome, 16), Token::random().unwrap().bytes()), "wrong token"),
        (frame(early, &[]), "before the welcome"),
        (frame(Header::new(Kind::Refuse, 4), b"full"), "full"),
    ] {
        let mut fabric = begin(&local());
        let (mut imposter, _) = listener.accept().unwrap();
        imposter.write_all(&bytes).unwrap();
        let reason = down(&mut fabric);
        assert!(reason.to_string().contains(expected), "{reason}");
    }
    drop(listener);
    let reason = down(&mut begin(&local()));
    assert!(matches!(reason, DownReason::NotConnected(_)), "{reason:?}");
}
