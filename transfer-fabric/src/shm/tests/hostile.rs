//! A peer that violates the protocol. This side's memory does not change, nothing hangs or dies, and the link ends.

use super::super::note::{Nonce, Note};
use super::super::offer;
use super::super::record::{Element, Elements, Encoded};
use super::super::shared::LinkMemory;
use super::*;
use crate::links::{MAX_PENDING, MAX_PENDING_OF_ONE};
use crate::token::Token;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{self, MemfdFlags, SealFlags};
use transfer_memory::socket::{Message, Socket};

const SEGMENT: SegmentId = SegmentId(1);
const LEN: u64 = 4096;
const GRANTED: LocalSlice = LocalSlice { segment: SEGMENT, offset: 128, len: 64 };
const LINK: LinkId = LinkId(1);

/// A fabric, its memory, and an acceptor that is played by the test.
struct Scene {
    fabric: ShmFabric,
    memory: Arc<Segment>,
    socket: Socket,
    shared: LinkMemory,
    granted: RemoteSlice,
    links: u32,
    _rig: ShmRig,
}

fn now() -> Instant {
    Instant::now()
}

/// Returns the next note.
fn note(socket: &Socket) -> Note {
    match socket.receive(1, Instant::now() + Duration::from_secs(10)).unwrap() {
        Message::Bytes { bytes, .. } => Note::decode(&bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Connects to `fabric` as the acceptor of its link would.
fn begin(fabric: &mut ShmFabric, link: LinkId) -> (Socket, LinkMemory) {
    let offer = fabric.offer(link).unwrap();
    let (token, _) = offer::decode_initiator(&offer).unwrap();
    let socket = Socket::connect(fabric.path(), now()).unwrap();
    let nonce: Nonce = rand::random();
    let (shared, fd) = LinkMemory::make(&PinnedBudget::new(1 << 30), &nonce).unwrap();
    socket.send(&Note::Hello { token, incarnation: 9, namespace: 0 }.encode(), &lent(&fd), now()).unwrap();
    let show = Token::random().unwrap();
    fabric.connect(link, &offer::encode_acceptor(&show)).unwrap();
    until(fabric, |event| matches!(event, FabricEvent::Connected { .. }).then_some(()));
    let own = fabric.config.incarnation;
    let namespace = fabric.namespace;
    assert_eq!(note(&socket), Note::Welcome { token: show, nonce, incarnation: own, namespace });
    (socket, shared)
}

impl Scene {
    fn new() -> Scene {
        let mut rig = ShmRig::new();
        let (mut fabric, memory) = (rig.fabric(), Arc::new(segment(LEN)));
        fabric.register(SEGMENT, memory.clone()).unwrap();
        let (socket, shared) = begin(&mut fabric, LINK);
        let granted = grant(&mut fabric, LINK);
        Scene { fabric, memory, socket, shared, granted, links: 1, _rig: rig }
    }

    /// Makes a new link in place of the last one, which has ended.
    fn again(&mut self) {
        self.links += 1;
        let link = LinkId(self.links);
        (self.socket, self.shared) = begin(&mut self.fabric, link);
        self.granted = grant(&mut self.fabric, link);
    }

    fn pass(&self, handle: u32, len: u64, fd: &OwnedFd) {
        self.socket.send(&Note::Segment { handle, len }.encode(), &lent(fd), now()).unwrap();
    }

    fn push(&mut self, record: &[u8]) {
        assert!(self.shared.out.try_push(record).unwrap());
        self.shared.out.publish();
        self.socket.ring().unwrap();
    }

    fn write(&mut self, handle: u32, offset: u64) {
        let elements: Elements = [Element { handle, offset, len: 64 }].into_iter().collect();
        let write = Write { elements, remote: self.granted, immediate: Some(1) };
        self.push(Encoded::new(&Record::Write(write), &[], 0).bytes());
    }

    /// Checks that the link ends with a reason that contains `words`, that the peer is told, and that no byte has
    /// changed.
    #[track_caller]
    fn ends(&mut self, words: &str) {
        let reason = down(&mut self.fabric);
        assert!(reason.to_string().contains(words), "{reason}");
        assert!(matches!(reason, DownReason::Violation(_)), "{reason:?}");
        assert!(matches!(note(&self.socket), Note::Refuse(why) if why.contains(words)));
        self.untouched(0..LEN as usize);
        assert!(self.fabric.links.is_empty());
    }

    fn untouched(&self, range: std::ops::Range<usize>) {
        let mut seen = vec![0; LEN as usize];
        self.memory.mapping().copy_out(0, &mut seen).unwrap();
        assert!(seen[range].iter().all(|byte| *byte == 0), "memory that was not granted has changed");
    }
}

fn grant(fabric: &mut ShmFabric, link: LinkId) -> RemoteSlice {
    fabric.grant(link, GRANTED, GrantAccess::Write, 0).unwrap();
    until(fabric, |event| match event {
        FabricEvent::Granted { remote, .. } => Some(remote),
        _ => None,
    })
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = fs::memfd_create("foreign", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    fs::ftruncate(&fd, len).unwrap();
    // As in a sidecar's segment, each page exists, because something was written to it.
    for at in (0..len).step_by(4096) {
        rustix::io::pwrite(&fd, &[1], at).unwrap();
    }
    fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn all_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL
}

// Promise: hostile-neighbours, seen to fail
#[test]
fn unsafe_segment_is_not_mapped() {
    let mut scene = Scene::new();
    let whole = all_seals();
    for (fd, len, words) in [
        (memfd(8192, whole.difference(SealFlags::SHRINK)), 8192, "can still be shrunk"),
        (memfd(8192, whole.difference(SealFlags::FUTURE_WRITE)), 8192, "still be mapped for writing"),
        (memfd(4096, whole), 8192, "in memory"),
        (memfd(8192, whole), 4096, "8192 bytes, 4096 were announced"),
    ] {
        scene.pass(0, len, &fd);
        scene.write(0, 0);
        scene.ends(words);
        scene.again();
    }
    // Past the end of a valid segment, and across it.
    for offset in [8192, 8192 - 63, u64::MAX - 10] {
        scene.pass(3, 8192, &memfd(8192, whole));
        scene.write(3, offset);
        scene.ends("do not lie in a mapping");
        scene.again();
    }
    scene.pass(3, 8192, &memfd(8192, whole));
    scene.write(4, 0);
    scene.ends("segment 4, which was not passed");
    scene.again();
    scene.pass(3, 8192, &memfd(8192, whole));
    scene.pass(3, 8192, &memfd(8192, whole));
    scene.ends("the handle of another");
    scene.again();
    scene.pass(3, u64::MAX, &memfd(8192, whole));
    scene.ends("more segments");
    scene.again();
    scene.push(Encoded::new(&Record::Forget(1), &[], 0).bytes());
    scene.ends("a segment ends that there is not");
    // A valid segment works.
    scene.again();
    scene.pass(3, 8192, &memfd(8192, whole));
    scene.write(3, 8192 - 64);
    until(&mut scene.fabric, |event| matches!(event, FabricEvent::Immediate { value: 1, .. }).then_some(()));
}

/// Memory that the peer has taken back counts until it is unmapped, so a peer that passes segments and takes them back
/// faster than that waits.
#[test]
fn returned_segment_counts_until_it_is_unmapped() {
    const BYTES: u64 = 8192;
    let mut scene = Scene::new();
    scene.fabric.config.max_mapped_bytes = BYTES;
    let lands =
        |fabric: &mut ShmFabric| until(fabric, |e| matches!(e, FabricEvent::Immediate { value: 1, .. }).then_some(()));
    let becomes = |fabric: &mut ShmFabric, so: &dyn Fn(&super::super::link::Link) -> bool| {
        let start = Instant::now();
        while !so(fabric.links.get(LINK).unwrap()) {
            fabric.poll(&mut |event| panic!("{event:?}"));
            assert!(start.elapsed() < Duration::from_secs(30), "nothing happens");
        }
    };
    scene.pass(0, BYTES, &memfd(BYTES, all_seals()));
    scene.write(0, 0);
    lands(&mut scene.fabric);
    // Keeps the segment mapped, as the copy pool does before it unmaps it.
    let kept = scene.fabric.links.get(LINK).unwrap().theirs[&0].0.clone();
    scene.push(Encoded::new(&Record::Forget(0), &[], 0).bytes());
    becomes(&mut scene.fabric, &|link| link.theirs.is_empty());
    // The peer takes one segment back before there is room for it, and writes from the next one.
    scene.pass(1, BYTES, &memfd(BYTES, all_seals()));
    becomes(&mut scene.fabric, &|link| link.unmapped.len() == 1);
    scene.push(Encoded::new(&Record::Forget(1), &[], 0).bytes());
    becomes(&mut scene.fabric, &|link| link.unmapped.is_empty() && link.theirs.is_empty());
    scene.pass(2, BYTES, &memfd(BYTES, all_seals()));
    scene.write(2, 0);
    becomes(&mut scene.fabric, &|link| link.unmapped.len() == 1 && link.stuck.is_some());
    assert!(scene.fabric.links.get(LINK).unwrap().theirs[&2].0.get().is_none(), "there is no room for it");
    drop(kept);
    lands(&mut scene.fabric);
}

#[test]
fn misplaced_notes_end_the_link() {
    let mut scene = Scene::new();
    let (token, incarnation) = (Token::random().unwrap(), 1);
    for (bytes, words) in [
        (Note::Hello { token, incarnation, namespace: 0 }.encode(), "does not belong"),
        (Note::Welcome { token, nonce: Nonce::default(), incarnation, namespace: 0 }.encode(), "does not belong"),
        (Note::Segment { handle: 0, len: 4096 }.encode(), "does not belong"),
        (vec![99, 1, 2], "not known"),
        (vec![3, 0], "too short"),
    ] {
        scene.socket.send(&bytes, &[], now()).unwrap();
        scene.ends(words);
        scene.again();
    }
    let extra = memfd(4096, all_seals());
    scene.socket.send(&Note::Bye("with a gift".into()).encode(), &lent(&extra), now()).unwrap();
    scene.ends("does not belong");
}

/// All connections are of the user that runs this test. The last ones stay, and a link is made beside them.
// Promise: silent-connections, seen to fail
#[test]
fn silent_connections_of_this_host_keep_no_link_out() {
    let mut rig = ShmRig::new();
    let mut fabric = rig.fabric();
    let mut silent = Vec::new();
    for n in 0..2 * MAX_PENDING {
        silent.push(Socket::connect(fabric.path(), now()).unwrap());
        let start = Instant::now();
        while fabric.pending.seen() <= n as u64 {
            assert!(start.elapsed() < Duration::from_secs(30), "nothing happens");
            fabric.poll(&mut |event| panic!("{event:?}"));
        }
    }
    begin(&mut fabric, LINK);
    assert_eq!(fabric.pending.len(), MAX_PENDING_OF_ONE - 1);
}

/// A Hello is refused if its token is wrong, if it has no memory, or if its memory has another size or other seals.
#[test]
fn pending_connections_are_checked() {
    let mut rig = ShmRig::new();
    let mut fabric = rig.fabric();
    let refused = |fabric: &mut ShmFabric, hello: &[u8], fds: &[BorrowedFd<'_>]| {
        let socket = Socket::connect(fabric.path(), now()).unwrap();
        socket.send(hello, fds, now()).unwrap();
        let (start, seen) = (Instant::now(), fabric.pending.seen());
        while fabric.pending.seen() == seen || !fabric.pending.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(30));
            fabric.poll(&mut |event| panic!("{event:?}"));
        }
        let Note::Refuse(why) = note(&socket) else { panic!("it was not refused") };
        why
    };
    let offer = fabric.offer(LINK).unwrap();
    let (token, _) = offer::decode_initiator(&offer).unwrap();
    let (_, good) = LinkMemory::make(&PinnedBudget::new(1 << 30), &Nonce::default()).unwrap();
    let hello = |token| Note::Hello { token, incarnation: 1, namespace: 0 }.encode();
    let wrong = refused(&mut fabric, &hello(Token::random().unwrap()), &lent(&good));
    assert!(wrong.contains("unknown, used or too late"), "{wrong}");
    assert!(refused(&mut fabric, &hello(token), &[]).contains("without its memory"));
    let small = memfd(4096, SealFlags::SHRINK | SealFlags::GROW);
    assert!(refused(&mut fabric, &hello(token), &lent(&small)).contains("4096 bytes"));
    let soft = memfd(320 << 10, SealFlags::empty());
    assert!(refused(&mut fabric, &hello(token), &lent(&soft)).contains("shrunk"));
    // Sealed so that no seal against punching holes can be added.
    let sealed = memfd(320 << 10, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    assert!(refused(&mut fabric, &hello(token), &lent(&sealed)).contains("cannot seal"));
    assert!(refused(&mut fabric, &Note::Bye(String::new()).encode(), &[]).contains("no greeting"));
    // None of these attempts has used up the token.
    let again = Socket::connect(fabric.path(), now()).unwrap();
    again.send(&hello(token), &lent(&good), now()).unwrap();
    fabric.connect(LINK, &offer::encode_acceptor(&Token::random().unwrap())).unwrap();
    until(&mut fabric, |event| matches!(event, FabricEvent::Connected { .. }).then_some(()));
}

/// A peer that answers without having read the memory is not on this host, whatever it says.
// Promise: choice-of-shared-memory, seen to fail
#[test]
fn a_welcome_must_prove_that_the_memory_is_shared() {
    let mut rig = ShmRig::new();
    let mut fabric = rig.fabric();
    for (honest, words) in [(false, "does not read the same memory"), (true, "wrong token")] {
        let listener = Listener::bind(&rig.directory.path().join("peer.shm"), 0o600).unwrap();
        let offer = offer::encode_initiator(&Token::random().unwrap(), "peer.shm");
        let answer = fabric.accept(LINK, &offer).unwrap();
        let show = offer::decode_acceptor(&answer).unwrap();
        let socket = listener.accept(now()).unwrap();
        let Message::Bytes { mut descriptors, .. } = socket.receive(1, now() + Duration::from_secs(5)).unwrap() else {
            panic!("no hello")
        };
        let (_, nonce) = LinkMemory::adopt(descriptors.pop().unwrap()).unwrap();
        let (token, nonce) = if honest { (Token::random().unwrap(), nonce) } else { (show, Nonce::default()) };
        socket.send(&Note::Welcome { token, nonce, incarnation: 1, namespace: 0 }.encode(), &[], now()).unwrap();
        let reason = down(&mut fabric);
        assert!(reason.to_string().contains(words), "{reason}");
    }
}

/// Random bytes are written repeatedly over the memory that the two sides share, while the link works.
// Promise: hostile-neighbours, seen to fail
#[test]
fn scribbles_end_the_link_and_nothing_else() {
    let mut scene = Scene::new();
    let mut random = SmallRng::seed_from_u64(1);
    for round in 0..60 {
        scene.pass(0, 8192, &memfd(8192, all_seals()));
        scene.write(0, 0);
        scene.fabric.post_send(LinkId(scene.links), WorkId(1), b"a message of this side's").unwrap();
        // The write was received by then, so only the rings can end the link.
        until(&mut scene.fabric, |event| matches!(event, FabricEvent::Immediate { .. }).then_some(()));
        // A few words each time, and the whole memory every fifth time.
        let memory = scene.shared.mapping().clone();
        let mut nonsense = vec![0; if round % 5 == 0 { memory.len() as usize } else { 8 }];
        for _ in 0..1 + round % 7 {
            random.fill(&mut nonsense[..]);
            // The indexes of both rings, or any place.
            let rings = [4096, 4096 + 128, 4096 + 512, 4096 + 512 + (128 << 10), 4096 + 640 + (128 << 10)];
            let places = [rings[random.random_range(0..5)], random.random_range(0..memory.len() / 8) * 8];
            let room = memory.len() - nonsense.len() as u64;
            memory.copy_in(places[random.random_range(0..2)].min(room), &nonsense).unwrap();
            for _ in 0..4 {
                scene.fabric.poll(&mut |_| ());
            }
        }
        let granted = GRANTED.offset as usize..(GRANTED.offset + GRANTED.len) as usize;
        scene.untouched(0..granted.start);
        scene.untouched(granted.end..LEN as usize);
        scene.fabric.disconnect(LinkId(scene.links), DownReason::Closed("next".into()));
        let start = Instant::now();
        while !scene.fabric.links.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(30), "the link does not end");
            scene.fabric.poll(&mut |_| ());
        }
        scene.fabric.poll(&mut |_| ());
        scene.memory.mapping().zero(GRANTED.offset, GRANTED.len).unwrap();
        scene.again();
    }
}
