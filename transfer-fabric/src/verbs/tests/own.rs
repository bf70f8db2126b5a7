//! The behaviour of two such fabrics beyond the contract, and the settings that they refuse.

use super::*;
use crate::conformance::connecting::connected_comes_first;
use crate::verbs::link::Posted;
use transfer_core::memory::RailKeys;
use transfer_verbs::{Data, SendKind};

const LEN: u64 = 1 << 16;

fn slice(offset: u64, len: u64) -> LocalSlice {
    Pair::<VerbsRig>::slice(offset, len)
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn both_sides_hear_why() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    let link = pair.connect(0);
    let remote = RemoteSlice::new(0, 64, RemoteKey(0xBAD));
    pair.post_write(0, link, &[slice(0, 64)], remote, None).unwrap();
    let [ours, theirs] = pair.dead(link);
    assert!(matches!(&ours, DownReason::Refused(why) if why.contains("WRITE: remote access error")), "{ours:?}");
    assert!(matches!(&theirs, DownReason::Violation(why) if why.contains("stopped the queue pair")), "{theirs:?}");

    let link = pair.connect(0);
    pair.fabric(1).disconnect(link.0[1], DownReason::Closed("done".into()));
    assert_eq!(pair.dead(link), [DownReason::PeerClosed("done".into()), DownReason::Closed("done".into())]);

    let link = pair.connect(0);
    let long = "ä".repeat(1000);
    pair.fabric(1).disconnect(link.0[1], DownReason::Violation(long.clone()));
    assert_eq!(pair.dead(link)[0], DownReason::Refused(long[..512].into()));
}

/// The greeting is acknowledged, and the peer has answered it, before this side looks. So both completions are taken
/// in one round.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn an_answer_comes_behind_connected() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    for initiator in [0, 1] {
        connected_comes_first(&mut pair, initiator, |pair| _ = pair.fabric(initiator).ring());
    }
}

/// A request that nothing else hands to the device leaves with the next probe.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn waiting_request_leaves_with_a_probe() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    let link = pair.connect(0);
    pair.works(link);
    let (from, to) = (link.0[0], link.0[1]);
    let kind = SendKind::Send { data: Data::Inline(&[b"late"]), immediate: None };
    pair.fabric(0).links.get_mut(from).unwrap().post(Posted::Send(WorkId(77), None), kind);
    pair.hear(1, "Message", |heard| (*heard == Heard::Message(to, b"late".to_vec())).then_some(()));
    pair.hear(0, "SendDone", |heard| (*heard == Heard::SendDone(from, WorkId(77))).then_some(()));
}

/// Neither side keeps anything of a link that has ended.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn an_ended_link_leaves_nothing() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    for round in 0..3 {
        let link = pair.connect(0);
        for side in 0..2 {
            pair.grant(side, link, slice(0, 64));
        }
        pair.fabric(0).disconnect(link.0[0], DownReason::Closed("done".into()));
        pair.dead(link);
        for side in 0..2 {
            let fabric = pair.fabric(side);
            assert!(fabric.links.is_empty() && !fabric.links.is_any_waiting() && fabric.draining.is_empty());
            assert_eq!((fabric.queues.spoken_for(), fabric.queues.len()), (0, 1), "round {round}");
            assert_eq!(fabric.regions.used_bytes(), LEN);
        }
    }
}

/// A window has 256 keys. More grants than that succeed one after the other. Each has a key that opens, and no key
/// comes twice.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_window_is_renewed_when_its_keys_are_used() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    let link = pair.connect(0);
    let mut keys = std::collections::HashSet::new();
    for round in 0..600 {
        let remote = pair.grant(1, link, slice(0, 64));
        assert!(keys.insert(remote.key()), "round {round}: a key came again");
        if round % 64 == 0 {
            let work = pair.post_write(0, link, &[slice(0, 64)], remote, None).unwrap();
            pair.write_done(0, link, work);
        }
        pair.revoke(1, link, remote);
        let id = link.0[1];
        assert_eq!(pair.fabric(1).links.get(id).unwrap().windows.len(), usize::from(round % 256 != 255));
    }
}

/// Each revoke of a grant is answered, and the invalidation is posted once: a second one would panic the guest's
/// kernel.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_grant_is_invalidated_once() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, slice(0, 64));
    let before = pair.fabric(1).counters().invalidations;
    let (id, tag) = (link.0[1], pair.tag_of(1, link, remote));
    for _ in 0..3 {
        pair.fabric(1).revoke(id, remote.key(), tag).unwrap();
    }
    for _ in 0..3 {
        pair.hear(1, "Revoked", |h| (*h == Heard::Revoked(id, remote.key(), tag)).then_some(()));
    }
    assert_eq!(pair.fabric(1).counters().invalidations, before + 1);
    pair.works(link);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_grant_of_nothing_is_answered_and_not_bound() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    let link = pair.connect(0);
    let before = pair.fabric(1).counters().binds;
    let remote = pair.grant(1, link, slice(64, 0));
    assert_eq!((remote.len, pair.fabric(1).counters().binds), (0, before));
    let work = pair.post_write(0, link, &[], remote, None).unwrap();
    pair.write_done(0, link, work);
    pair.revoke(1, link, remote);
    pair.works(link);
}

/// A key of a window opens nothing before its bind, even if it is guessed.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_key_before_its_grant_opens_nothing() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, slice(0, 64));
    pair.revoke(1, link, remote);
    let key = remote.key().0;
    let next = RemoteSlice { keys: RailKeys::from(RemoteKey(key & !0xFF | key.wrapping_add(1) & 0xFF)), ..remote };
    let before = pair.fill(1, 0, 64, 5);
    pair.fill(0, 0, 64, 6);
    pair.post_write(0, link, &[slice(0, 64)], next, Some(1)).unwrap();
    pair.dead(link);
    assert!(pair.read(1, 0, 64) == before);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn grants_that_end_with_their_segment_are_reported() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, slice(0, 64));
    pair.fabric(1).deregister(Pair::<VerbsRig>::SEGMENT).unwrap();
    let revoked = Heard::Revoked(link.0[1], remote.key(), pair.tag_of(1, link, remote));
    pair.hear(1, "Revoked", |heard| (*heard == revoked).then_some(()));
    let memory = pair.sides[1].memory.clone();
    pair.fabric(1).register(Pair::<VerbsRig>::SEGMENT, memory).unwrap();
    pair.works(link);
}

/// A write that was posted from a segment before it was deregistered is still sent.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_segment_stays_registered_until_it_is_sent() {
    let len = 4 << 20;
    let mut pair = Pair::new(VerbsRig(config()), len);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, slice(0, len));
    let bytes = pair.fill(0, 0, len, 9);
    let work = pair.post_write(0, link, &[slice(0, len)], remote, None).unwrap();
    pair.fabric(0).deregister(Pair::<VerbsRig>::SEGMENT).unwrap();
    pair.write_done(0, link, work);
    assert!(pair.read(1, 0, len) == bytes);
    assert!(!pair.fabric(0).regions.any_retired());
}

/// A link that is stuck, and whose own grant is being revoked, does not hold up the deregistration of a segment that
/// it does not use.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_segment_that_goes_holds_up_no_other_link() {
    // A peer without a receive slot is asked again after 0.6 s, seven times in all. That is longer than deregistering
    // waits.
    let slow = |config| VerbsConfig { receive_slots: 8, min_rnr_timer: 0, ..config };
    for config in [slow(config()), slow(pool())] {
        let mut pair = Pair::new(VerbsRig(config), LEN);
        let (stuck, link) = (pair.connect(0), pair.connect(0));
        let (extra, id) = (pair.rig.memory(4096), SegmentId(2));
        pair.fabric(1).register(id, extra).unwrap();
        let remote = pair.grant(1, link, LocalSlice { segment: id, offset: 0, len: 4096 });
        let elsewhere = pair.grant(1, stuck, slice(0, 64));
        let tag = pair.tag_of(1, stuck, elsewhere);
        // More messages than the peer has receive slots, while the peer takes none.
        let messages: Vec<_> = (0..14_u8).map(|n| vec![n; 100]).collect();
        for message in &messages {
            pair.post_send(1, stuck, message).unwrap();
        }
        pair.fabric(1).revoke(stuck.0[1], elsewhere.key(), tag).unwrap();
        pair.round_of(1);
        pair.round_of(1);
        assert!(pair.fabric(1).links.get(stuck.0[1]).unwrap().sends.in_flight() > 0, "it waits for the peer");
        pair.fabric(1).deregister(id).unwrap();
        let id = stuck.0[0];
        for message in messages {
            pair.hear(0, "Message", |heard| (*heard == Heard::Message(id, message.clone())).then_some(()));
        }
        pair.works(stuck);
        // The link that used the segment is still up, too, and its grant is gone.
        pair.post_write(0, link, &[slice(0, 64)], remote.sub(0, 64).unwrap(), None).unwrap();
        pair.dead(link);
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn registration_is_counted_and_all_or_nothing() {
    let config = VerbsConfig { max_registered_bytes: 3 * LEN, ..config() };
    let mut fabric = VerbsFabric::open(config).unwrap();
    for id in 0..3 {
        fabric.register(SegmentId(id), Arc::new(segment(LEN))).unwrap();
    }
    let refused = fabric.register(SegmentId(3), Arc::new(segment(LEN))).unwrap_err().to_string();
    assert!(
        refused.contains("65536 bytes more than the 196608 that are, and the limit for this fabric is 196608"),
        "{refused}"
    );
    assert!(fabric.offer(LinkId(1)).is_err(), "a link's own memory is registered too");
    assert_eq!(fabric.deregister(SegmentId(3)), Err(FabricError::UnknownSegment(SegmentId(3))));
    fabric.deregister(SegmentId(0)).unwrap();
    fabric.register(SegmentId(3), Arc::new(segment(LEN))).unwrap();
    assert_eq!(fabric.regions.used_bytes(), 3 * LEN);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn missing_devices_and_bad_settings_are_named() {
    let refused = |change: fn(&mut VerbsConfig)| {
        let mut config = config();
        change(&mut config);
        VerbsFabric::open(config).unwrap_err().to_string()
    };
    assert!(refused(|c| c.device = Some("mlx9".into())).contains("mlx9"));
    assert!(refused(|c| c.port = Some(9)).contains('9'));
    assert!(refused(|c| c.gid_index = Some(4000)).contains("4000"));
    assert!(refused(|c| c.retry_count = 7).contains("retry_count = 7"));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_link_begins_once_and_not_without_an_answer() {
    let times = VerbsConfig { handshake_timeout: Duration::from_millis(300), ..config() };
    let mut pair = Pair::new(VerbsRig(times), 4096);
    let link = pair.new_link();
    let wrong = |result| matches!(result, Err(FabricError::WrongState { .. }));
    let offer = pair.fabric(0).offer(link.0[0]).unwrap();
    assert!(wrong(pair.fabric(0).offer(link.0[0])));
    assert!(wrong(pair.fabric(0).accept(link.0[0], &offer)));
    // The initiator never comes.
    pair.fabric(1).accept(link.0[1], &offer).unwrap();
    let reason = pair.hear(1, "LinkDown", |h| match h {
        Heard::Down(_, reason) => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(reason, DownReason::NotConnected("the peer did not answer in time".into()));
    let connected = pair.connect(0).0[0];
    assert!(wrong(pair.fabric(0).offer(connected)));
}

/// A grant that is reported once it is in force may be announced over any path.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_completed_grant_is_in_force() {
    let completed = VerbsConfig { grants: GrantReport::Completed, ..config() };
    let mut pair = Pair::new(VerbsRig(completed), LEN);
    let link = pair.connect(0);
    for round in 0..50 {
        let id = link.0[1];
        pair.fabric(1).grant(id, slice(0, 64), GrantAccess::Write, round).unwrap();
        let remote = pair.hear(1, "Granted", |h| match h {
            Heard::Granted(_, tag, remote) if *tag == round => Some(*remote),
            _ => None,
        });
        let work = pair.post_write(0, link, &[slice(0, 64)], remote, None).unwrap();
        pair.write_done(0, link, work);
        pair.fabric(1).revoke(id, remote.key(), round).unwrap();
        pair.hear(1, "Revoked", |h| (*h == Heard::Revoked(id, remote.key(), round)).then_some(()));
    }
}
