//! The behaviour of two such fabrics beyond the contract.

use super::*;
use crate::conformance::pair::Pair;

#[test]
fn a_wildcard_needs_an_address_to_advertise() {
    let wildcard = TcpConfig::new("0.0.0.0:0".parse().unwrap());
    assert!(matches!(TcpFabric::new(wildcard.clone()), Err(FabricError::Device { .. })));
    let advertise = Some("192.0.2.7:0".parse().unwrap());
    let fabric = TcpFabric::new(TcpConfig { advertise, ..wildcard }).unwrap();
    assert_eq!(fabric.address().ip().to_string(), "192.0.2.7");
    assert_ne!(fabric.address().port(), 0);
    let taken = TcpFabric::new(TcpConfig::new(local().listen)).unwrap();
    assert!(matches!(TcpFabric::new(TcpConfig::new(taken.address())), Err(FabricError::Device { what: "bind", .. })));
}

#[test]
fn both_sides_hear_why() {
    let mut pair = Pair::new(TcpRig, 1 << 16);
    let link = pair.connect(0);
    let remote = RemoteSlice::new(0, 64, RemoteKey(0xBAD));
    pair.post_write(0, link, &[Pair::<TcpRig>::slice(0, 64)], remote, None).unwrap();
    let why = "a write with key 0xbad, which opens nothing".to_owned();
    assert_eq!(pair.dead(link), [DownReason::Refused(why.clone()), DownReason::Violation(why)]);

    let link = pair.connect(0);
    pair.fabric(1).disconnect(link.0[1], DownReason::Closed("done".into()));
    assert_eq!(pair.dead(link), [DownReason::PeerClosed("done".into()), DownReason::Closed("done".into())]);

    let link = pair.connect(0);
    let long = "ä".repeat(1000);
    pair.fabric(1).disconnect(link.0[1], DownReason::Violation(long.clone()));
    assert_eq!(pair.dead(link)[0], DownReason::Refused(long[..512].into()));
}

/// The receiving kernel copies a large write once. Only its beginning is copied a second time.
#[test]
fn copies_are_counted() {
    let len = 8 << 20;
    let mut pair = Pair::new(TcpRig, len);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<TcpRig>::slice(0, len));
    for (len, most) in [(len, len + (64 << 10)), (1000, 2000), (len, len + (64 << 10))] {
        pair.post_write(0, link, &[Pair::<TcpRig>::slice(0, len)], remote.sub(0, len).unwrap(), Some(1)).unwrap();
        let mut seen = None;
        while seen.is_none() {
            pair.fabric(0).poll(&mut |_| ());
            pair.fabric(1).poll(&mut |event| {
                if let FabricEvent::Immediate { copied, .. } = event {
                    seen = Some(copied);
                }
            });
        }
        assert!(seen.is_some_and(|copied| (len..=most).contains(&copied)), "{seen:?} for {len}");
    }
}

/// Bodies that are received in one call can be staged. After the first large one, only their beginnings are.
#[test]
fn large_bodies_in_a_row_are_received_in_place() {
    let (count, beginning) = (20, (4 << 10) + 100);
    for len in [32 << 10, 64 << 10, 100_000] {
        let mut pair = Pair::new(TcpRig, len);
        let link = pair.connect(0);
        let remote = pair.grant(1, link, Pair::<TcpRig>::slice(0, len));
        for _ in 0..count {
            pair.post_write(0, link, &[Pair::<TcpRig>::slice(0, len)], remote, Some(1)).unwrap();
        }
        let mut copied = Vec::new();
        while copied.len() < count {
            pair.fabric(0).poll(&mut |_| ());
            pair.fabric(1).poll(&mut |event| {
                if let FabricEvent::Immediate { copied: bytes, .. } = event {
                    copied.push(bytes);
                }
            });
        }
        // The first body teaches the receiver, and the second may have come with it.
        let later = &copied[2..];
        assert!(later.iter().all(|bytes| (len..=len + beginning).contains(bytes)), "{copied:?} of {len}");
    }
}

/// A link that has much to send waits for room, and does not keep the thread awake.
#[test]
fn a_blocked_link_sleeps() {
    let len = 64 << 20;
    let mut pair = Pair::new(TcpRig, len);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<TcpRig>::slice(0, len));
    let work = pair.post_write(0, link, &[Pair::<TcpRig>::slice(0, len)], remote, None).unwrap();
    // The peer does not receive.
    let fabric = pair.fabric(0);
    let quiet = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    loop {
        while fabric.poll(&mut |event| panic!("{event:?}")) {}
        fabric.arm();
        let [fd] = fabric.wait_fds()[..] else { panic!("one descriptor") };
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&quiet)).unwrap() == 0 {
            break;
        }
        fabric.woken();
    }
    assert!(fabric.links.values().all(|link| link.blocked && link.watched));
    pair.write_done(0, link, work);
    assert!(pair.fabric(0).links.values().all(|link| !link.watched));
}

/// The process of the peer is stopped. Its kernel still answers, but takes nothing more.
// Promise: stopped-peer, seen to fail
#[test]
fn a_stopped_peer_is_lost() {
    struct Hasty;
    impl SegmentRig for Hasty {
        type Fabric = TcpFabric;

        fn make(&mut self) -> TcpFabric {
            TcpFabric::new(TcpConfig { peer_timeout: Duration::from_secs(1), ..local() }).unwrap()
        }
    }
    let len = 64 << 20;
    let mut pair = Pair::new(Hasty, len);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<Hasty>::slice(0, len));
    pair.post_write(0, link, &[Pair::<Hasty>::slice(0, len)], remote, None).unwrap();
    let reason = down(pair.fabric(0));
    assert!(matches!(reason, DownReason::Lost(_)), "{reason:?}");
    // The peer is also lost if its kernel takes a message that the process does not read.
    let link = pair.connect(0);
    pair.post_send(0, link, b"a message").unwrap();
    let reason = down(pair.fabric(0));
    assert!(matches!(&reason, DownReason::Lost(why) if why.contains("1 works posted")), "{reason:?}");
}

/// A deadline that has passed, and that belongs to nothing any longer, does not keep the thread awake.
#[test]
fn passed_deadline_does_not_keep_the_thread_awake() {
    let mut pair = Pair::new(TcpRig, 1 << 16);
    pair.connect(0);
    let fabric = pair.fabric(0);
    // The deadline of a handshake that has ended meanwhile.
    fabric.poller.wake_at(Some(std::time::Instant::now() + std::time::Duration::from_millis(1)));
    fabric.links.set_alarm(None);
    let ready = |fabric: &crate::tcp::TcpFabric, wait: Option<&rustix::time::Timespec>| {
        let [fd] = fabric.wait_fds()[..] else { panic!("one descriptor") };
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, wait).unwrap() > 0
    };
    assert!(ready(fabric, None));
    fabric.woken();
    while fabric.poll(&mut |event| panic!("{event:?}")) {}
    fabric.arm();
    let quiet = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    assert!(!ready(fabric, Some(&quiet)));
}

/// A flooded link does not keep another link from being served.
#[test]
fn a_round_is_bounded() {
    let len = 32 << 20;
    let mut pair = Pair::new(TcpRig, len);
    let (flooded, other) = (pair.connect(0), pair.connect(0));
    let remote = pair.grant(1, flooded, Pair::<TcpRig>::slice(0, len));
    for _ in 0..20 {
        pair.post_write(0, flooded, &[Pair::<TcpRig>::slice(0, len)], remote, Some(1)).unwrap();
    }
    pair.post_send(0, other, b"small").unwrap();
    let id = other.0[1];
    pair.hear(1, "Message", |heard| {
        (*heard == crate::conformance::pair::Heard::Message(id, b"small".to_vec())).then_some(())
    });
    let heard = &pair.sides[1].heard;
    assert!(heard.iter().filter(|h| matches!(h, crate::conformance::pair::Heard::Immediate(..))).count() < 2);
}

/// Neither side keeps anything of a link that has ended.
#[test]
fn an_ended_link_leaves_nothing() {
    let mut pair = Pair::new(TcpRig, 1 << 16);
    let link = pair.connect(0);
    for side in 0..2 {
        pair.grant(side, link, Pair::<TcpRig>::slice(0, 64));
    }
    pair.fabric(0).disconnect(link.0[0], DownReason::Closed("done".into()));
    pair.dead(link);
    pair.until("sockets to close", |pair| {
        [0, 1].iter().all(|side| {
            let fabric = pair.fabric(*side);
            fabric.links.is_empty() && fabric.partings.is_empty() && !fabric.links.is_any_waiting()
        })
    });
    for side in 0..2 {
        assert_eq!(pair.fabric(side).regions.deregister(Pair::<TcpRig>::SEGMENT), Ok(vec![]));
    }
}

#[test]
fn a_link_begins_once() {
    let mut pair = Pair::new(TcpRig, 4096);
    let link = pair.new_link().0[0];
    let wrong = |result| matches!(result, Err(FabricError::WrongState { .. }));
    let offer = pair.fabric(0).offer(link).unwrap();
    assert!(wrong(pair.fabric(0).offer(link)));
    assert!(wrong(pair.fabric(0).accept(link, &offer)));
    let connected = pair.connect(0).0[0];
    assert!(wrong(pair.fabric(0).offer(connected)));
}

#[test]
fn grants_that_end_with_their_segment_are_reported() {
    let mut pair = Pair::new(TcpRig, 4096);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<TcpRig>::slice(0, 64));
    let tag = pair.tag_of(1, link, remote);
    pair.fabric(1).deregister(Pair::<TcpRig>::SEGMENT).unwrap();
    let revoked = crate::conformance::pair::Heard::Revoked(link.0[1], remote.key(), tag);
    pair.hear(1, "Revoked", |heard| (*heard == revoked).then_some(()));
}

/// The engine acts on a grant, and on a revoke, in the turn that asked for it.
#[test]
fn grant_and_revoke_are_reported_without_a_poll() {
    fn reported_at_once(rig: impl crate::conformance::Rig) {
        let mut pair = Pair::new(rig, 1 << 16);
        let id = pair.connect(0).0[1];
        let fabric = pair.fabric(1);
        let range = Pair::<TcpRig>::slice(0, 64);
        fabric.grant(id, range, GrantAccess::Write, 7).unwrap();
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
    reported_at_once(TcpRig);
    reported_at_once(crate::conformance::rails::OneRail(TcpRig));
    reported_at_once(crate::conformance::rails::Railed::new(TcpRig, &[0]));
}

#[test]
fn messages_are_acknowledged_by_the_next_frame() {
    crate::conformance::acknowledging::messages_are_acknowledged_by_the_next_frame(TcpRig);
}

#[test]
fn one_sided_messages_are_completed() {
    crate::conformance::acknowledging::one_sided_messages_are_completed(TcpRig);
}

#[test]
fn writes_are_acknowledged_at_once() {
    crate::conformance::acknowledging::writes_are_acknowledged_at_once(TcpRig);
}
