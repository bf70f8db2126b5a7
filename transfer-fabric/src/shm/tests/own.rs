//! The behaviour of two such fabrics beyond the contract.

use super::*;
use crate::conformance::pair::{Heard, Pair};
use std::os::unix::fs::PermissionsExt;
use transfer_memory::segment::is_marked;

fn slice(offset: u64, len: u64) -> LocalSlice {
    Pair::<ShmRig>::slice(offset, len)
}

/// The receiver copies each byte once, and reports that.
// Promise: reports, seen to fail
#[test]
fn copies_are_counted() {
    let len = 40 << 20;
    let mut pair = Pair::new(ShmRig::new(), len);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, slice(0, len));
    for len in [len, 1000, 1 << 20] {
        pair.post_write(0, link, &[slice(0, len)], remote.sub(0, len).unwrap(), Some(1)).unwrap();
        let mut seen = None;
        while seen.is_none() {
            pair.fabric(0).poll(&mut |_| ());
            pair.fabric(1).poll(&mut |event| {
                if let FabricEvent::Immediate { copied, len_bytes, .. } = event {
                    seen = Some((copied, len_bytes));
                }
            });
        }
        assert_eq!(seen, Some((len, len)));
    }
    let capabilities = pair.fabric(0).capabilities();
    assert_eq!((capabilities.sender_copies, capabilities.receiver_copies), (0, 1));
}

#[test]
fn both_sides_hear_why() {
    let mut pair = Pair::new(ShmRig::new(), 1 << 16);
    let link = pair.connect(0);
    let remote = RemoteSlice::new(0, 64, RemoteKey(0xBAD));
    pair.post_write(0, link, &[slice(0, 64)], remote, None).unwrap();
    let why = "a write with key 0xbad, which opens nothing".to_owned();
    assert_eq!(pair.dead(link), [DownReason::Refused(why.clone()), DownReason::Violation(why)]);

    let link = pair.connect(0);
    pair.fabric(1).disconnect(link.0[1], DownReason::Closed("done".into()));
    assert_eq!(pair.dead(link), [DownReason::PeerClosed("done".into()), DownReason::Closed("done".into())]);

    let link = pair.connect(1);
    pair.kill(1);
    let id = link.0[0];
    let lost = |h: &Heard| matches!(h, Heard::Down(l, DownReason::Lost(_)) if *l == id).then_some(());
    pair.hear(0, "LinkDown", lost);
}

/// Without a shared directory, an offer is refused at once, and the error says what would help.
// Promise: choice-of-shared-memory, seen to fail
#[test]
fn sidecars_without_a_shared_directory_get_no_link() {
    let (mut near, mut far) = (ShmRig::new(), ShmRig { made: 10, ..ShmRig::new() });
    let (mut a, mut b) = (near.fabric(), far.fabric());
    let offer = a.offer(LinkId(1)).unwrap();
    let refused = b.accept(LinkId(2), &offer).unwrap_err().to_string();
    assert!(refused.contains("nobody listens") && refused.contains("--shm-dir"), "{refused}");
    // A socket that a killed sidecar has left behind is of no use.
    let path = far.directory.path().join("fabric-1.shm");
    drop(b);
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut c = far.fabric();
    let refused = c.accept(LinkId(3), &offer).unwrap_err().to_string();
    assert!(refused.contains("fabric-1.shm"), "{refused}");
    // A sidecar elsewhere whose own socket has the same name is not the initiator.
    let mut namesake = ShmRig::new().fabric();
    let refused = namesake.accept(LinkId(3), &offer).unwrap_err().to_string();
    assert!(refused.contains("own socket"), "{refused}");
    // Nothing is left of the attempt, so the same link can be begun.
    assert!(c.links.is_empty());
    c.offer(LinkId(3)).unwrap();
}

#[test]
fn socket_is_private_and_ends_with_the_fabric() {
    let mut rig = ShmRig::new();
    let fabric = rig.fabric();
    let path = fabric.path().to_owned();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let taken = ShmConfig::new(rig.directory.path(), "fabric-1.shm", 1);
    assert!(ShmFabric::new(taken).unwrap_err().to_string().contains("already"));
    drop(fabric);
    assert!(!path.exists());
    for bad in ["a.sock", "../a.shm", ""] {
        let error = ShmFabric::new(ShmConfig::new(rig.directory.path(), bad, 1)).unwrap_err().to_string();
        assert!(error.contains(SOCKET_SUFFIX), "{error}");
    }
}

/// A peer keeps a passed segment mapped as long as it is needed, and marks it as read.
// Promise: late-copies, seen to fail
#[test]
fn segments_are_marked_while_they_are_mapped() {
    let mut pair = Pair::new(ShmRig::new(), 1 << 16);
    let link = pair.connect(0);
    let (extra, id) = (pair.rig.memory(4096), SegmentId(2));
    pair.fabric(0).register(id, extra.clone()).unwrap();
    let remote = pair.grant(1, link, slice(0, 4096));
    let whole = LocalSlice { segment: id, offset: 0, len: 4096 };
    let work = pair.post_write(0, link, &[whole], remote, None).unwrap();
    pair.write_done(0, link, work);
    // The first fabric of the rig has incarnation 1.
    assert!(is_marked(extra.fd(), 1).unwrap());
    pair.fabric(0).deregister(id).unwrap();
    pair.until("the peer to let go", |_| !is_marked(extra.fd(), 1).unwrap());
    // A segment that is registered again is passed again.
    pair.fabric(0).register(id, extra.clone()).unwrap();
    let work = pair.post_write(0, link, &[whole], remote, None).unwrap();
    pair.write_done(0, link, work);
    assert!(is_marked(extra.fd(), 1).unwrap());
    pair.fabric(1).disconnect(link.0[1], DownReason::Closed("done".into()));
    pair.dead(link);
    pair.until("the peer to let go", |_| !is_marked(extra.fd(), 1).unwrap());
    for side in 0..2 {
        let fabric = pair.fabric(side);
        assert!(fabric.links.is_empty() && !fabric.links.is_any_waiting() && fabric.pending.is_empty());
    }
}

/// Once a side ends its link, its memory may be used again. Bytes that the peer has not copied by then are discarded.
// Promise: late-copies, seen to fail
#[test]
fn copy_after_the_end_is_discarded() {
    let len = 8 << 20;
    let mut pair = Pair::new(ShmRig::alone(), len);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, slice(0, len));
    // The peer knows the segment after this write, so that it copies at once.
    let work = pair.post_write(0, link, &[slice(0, 64)], remote.sub(0, 64).unwrap(), None).unwrap();
    pair.write_done(0, link, work);
    pair.post_write(0, link, &[slice(0, len)], remote, Some(7)).unwrap();
    pair.fabric(0).poll(&mut |_| ());
    pair.fabric(1).poll(&mut |event| panic!("{event:?}"));
    assert!(pair.fabric(1).links.values().all(|link| link.landing.is_some()), "it is being copied");
    pair.fabric(0).disconnect(link.0[0], DownReason::Closed("enough".into()));
    pair.dead(link);
    assert!(!pair.sides[1].heard.iter().any(|heard| matches!(heard, Heard::Immediate(..))));

    // A short copy is discarded as well, if the peer has ended the link before the check.
    let link = pair.connect(0);
    let remote = pair.grant(1, link, slice(0, 4096));
    pair.post_write(0, link, &[slice(0, 4096)], remote, Some(8)).unwrap();
    pair.fabric(0).poll(&mut |_| ());
    pair.fabric(0).links.values().for_each(|link| link.shared.end());
    pair.hear(1, "LinkDown", |h| matches!(h, Heard::Down(l, DownReason::Lost(_)) if *l == link.0[1]).then_some(()));
    assert!(!pair.sides[1].heard.iter().any(|heard| matches!(heard, Heard::Immediate(..))));
}

/// A grant is revoked while a write to it is being copied. No thread writes there once the end is reported.
// Promise: writes-of-peers, seen to fail
#[test]
fn a_revoke_under_a_copy_ends_the_link() {
    let len = 64 << 20;
    for rig in [ShmRig::new(), ShmRig::alone()] {
        let mut pair = Pair::new(rig, len);
        let link = pair.connect(0);
        let remote = pair.grant(1, link, slice(0, len));
        let small = pair.post_write(0, link, &[slice(0, 64)], remote.sub(0, 64).unwrap(), None).unwrap();
        pair.write_done(0, link, small);
        pair.fill(0, 0, len, 1);
        pair.post_write(0, link, &[slice(0, len)], remote, Some(7)).unwrap();
        pair.fabric(0).poll(&mut |_| ());
        pair.fabric(1).poll(&mut |event| panic!("{event:?}"));
        let id = link.0[1];
        let tag = pair.tag_of(1, link, remote);
        pair.fabric(1).revoke(id, remote.key(), tag).unwrap();
        pair.hear(1, "LinkDown", |h| matches!(h, Heard::Down(l, DownReason::Violation(_)) if *l == id).then_some(()));
        let memory = pair.sides[1].memory.clone();
        memory.mapping().zero(0, len).unwrap();
        for _ in 0..100 {
            pair.round();
        }
        assert!(pair.read(1, 0, len).iter().all(|byte| *byte == 0), "somebody still copies");
    }
}

/// A large copy does not hold up short messages of another link.
#[test]
fn a_round_is_bounded() {
    let len = 64 << 20;
    let mut pair = Pair::new(ShmRig::alone(), len);
    let (flooded, other) = (pair.connect(0), pair.connect(0));
    let remote = pair.grant(1, flooded, slice(0, len));
    for _ in 0..20 {
        pair.post_write(0, flooded, &[slice(0, len)], remote, Some(1)).unwrap();
    }
    pair.post_send(0, other, b"small").unwrap();
    let id = other.0[1];
    pair.hear(1, "Message", |heard| (*heard == Heard::Message(id, b"small".to_vec())).then_some(()));
    let heard = &pair.sides[1].heard;
    assert!(heard.iter().filter(|h| matches!(h, Heard::Immediate(..))).count() < 2);
}

/// The peer reads nothing. Its ring and its socket fill, and this side neither blocks nor stays awake.
// Promise: hostile-neighbours, seen to fail
#[test]
fn a_silent_peer_costs_nothing() {
    let mut rig = ShmRig::new();
    let config = ShmConfig { send_queue: 1_000_000, ..rig.config() };
    let mut pair = Pair::new(rig, 1 << 16);
    let mut fabric = ShmFabric::new(config).unwrap();
    let offer = fabric.offer(LinkId(1)).unwrap();
    let answer = pair.fabric(1).accept(LinkId(2), &offer).unwrap();
    fabric.connect(LinkId(1), &answer).unwrap();
    until(&mut fabric, |event| matches!(event, FabricEvent::Connected { .. }).then_some(()));
    for work in 0..20_000 {
        fabric.post_send(LinkId(1), WorkId(work), &[1; 100]).unwrap();
    }
    while fabric.poll(&mut |event| panic!("{event:?}")) {}
    fabric.arm();
    while fabric.poll(&mut |event| panic!("{event:?}")) {}
    let [fd] = fabric.wait_fds()[..] else { panic!("one descriptor") };
    let quiet = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, Some(&quiet)).unwrap(), 0);
    // The peer reads again, wakes this side, and gets everything.
    let (mut received, mut done) = (0, 0);
    while done < 20_000 {
        pair.fabric(1).poll(&mut |event| received += usize::from(matches!(event, FabricEvent::Message { .. })));
        fabric.poll(&mut |event| done += usize::from(matches!(event, FabricEvent::SendDone { .. })));
    }
    assert_eq!(received, 20_000);
}

/// A stopped peer that has something to do is lost. A peer that copies for long is not lost, and neither is a peer
/// that has nothing to do.
// Promise: stopped-peer, seen to fail
#[test]
fn a_stopped_peer_is_lost() {
    let mut rig = ShmRig::alone();
    let config = ShmConfig { peer_timeout: Duration::from_millis(200), ..rig.config() };
    let mut pair = Pair::new(rig, 1 << 16);
    let mut fabric = ShmFabric::new(config).unwrap();
    let offer = fabric.offer(LinkId(1)).unwrap();
    let answer = pair.fabric(1).accept(LinkId(2), &offer).unwrap();
    fabric.connect(LinkId(1), &answer).unwrap();
    until(&mut fabric, |event| matches!(event, FabricEvent::Connected { .. }).then_some(()));
    let quiet = |fabric: &mut ShmFabric, pair: &mut Pair<ShmRig>, beats: bool| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(700) {
            fabric.poll(&mut |event| assert!(matches!(event, FabricEvent::SendDone { .. }), "{event:?}"));
            if beats {
                pair.fabric(1).links.values().for_each(|link| link.shared.beat());
            } else {
                pair.fabric(1).poll(&mut |_| ());
            }
        }
    };
    fabric.post_send(LinkId(1), WorkId(1), b"read").unwrap();
    quiet(&mut fabric, &mut pair, false);
    fabric.post_send(LinkId(1), WorkId(2), b"not read yet").unwrap();
    quiet(&mut fabric, &mut pair, true);
    // A sleeping side notices it, too.
    let reason = loop {
        let mut reason = None;
        fabric.arm();
        let moved = fabric.poll(&mut |event| match event {
            FabricEvent::LinkDown { reason: why, .. } => reason = Some(why),
            other => panic!("{other:?}"),
        });
        match reason {
            Some(reason) => break reason,
            None if moved => continue,
            None => {}
        }
        let [fd] = fabric.wait_fds()[..] else { panic!("one descriptor") };
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
        let long = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&long)).unwrap(), 1, "nothing wakes it");
        fabric.woken();
    };
    assert!(matches!(&reason, DownReason::Lost(why) if why.contains("nothing for")), "{reason:?}");
}

/// The engine acts on a grant, and on a revoke, in the turn that asked for it.
#[test]
fn grant_and_revoke_are_reported_without_a_poll() {
    let mut pair = Pair::new(ShmRig::new(), 1 << 16);
    let id = pair.connect(0).0[1];
    let fabric = pair.fabric(1);
    fabric.grant(id, slice(0, 64), GrantAccess::Write, 7).unwrap();
    let mut granted = None;
    fabric.report(&mut |event| {
        if let FabricEvent::Granted { link, tag: 7, remote } = event {
            granted = (link == id).then_some(remote);
        }
    });
    let key = granted.expect("the grant is reported").key();
    fabric.revoke(id, key, 7).unwrap();
    let mut revoked = false;
    fabric.report(&mut |event| revoked |= matches!(event, FabricEvent::Revoked { tag: 7, .. }));
    assert!(revoked && !fabric.report(&mut |event| panic!("{event:?}")));
}

#[test]
fn messages_are_acknowledged_by_the_next_frame() {
    crate::conformance::acknowledging::messages_are_acknowledged_by_the_next_frame(ShmRig::new());
}

#[test]
fn one_sided_messages_are_completed() {
    crate::conformance::acknowledging::one_sided_messages_are_completed(ShmRig::new());
}

#[test]
fn writes_are_acknowledged_at_once() {
    crate::conformance::acknowledging::writes_are_acknowledged_at_once(ShmRig::new());
}
