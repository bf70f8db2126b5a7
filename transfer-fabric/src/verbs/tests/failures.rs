//! The network goes down and up, and the device fails.

use super::*;
use std::process::Command;
use transfer_verbs::{AsyncEvent, AsyncSource};

const LEN: u64 = 1 << 16;

fn slice(offset: u64, len: u64) -> LocalSlice {
    Pair::<VerbsRig>::slice(offset, len)
}

/// Runs a command of iproute2 in the guest.
fn ip(arguments: &[&str]) {
    let (program, arguments) = arguments.split_first().unwrap();
    let done = Command::new(program).args(arguments).status();
    assert!(done.as_ref().is_ok_and(|status| status.success()), "{program} {arguments:?}: {done:?}");
}

fn netdev() -> String {
    std::env::var("RDMA_NETDEV").unwrap_or_else(|_| "dummy0".to_owned())
}

fn address() -> String {
    std::env::var("RDMA_IP").unwrap_or_else(|_| "10.77.0.1".to_owned())
}

/// Returns a configuration with short times, so that a lost network is noticed soon.
fn impatient() -> VerbsConfig {
    VerbsConfig { timeout: 10, retry_count: 3, ..config() }
}

/// If the network is gone, its links die, idle ones too, and the reason names the status. When the network is back,
/// new links work.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn links_die_with_the_network_and_new_ones_work() {
    let mut pair = Pair::new(VerbsRig(impatient()), LEN);
    let (busy, idle) = (pair.connect(0), pair.connect(1));
    pair.works(busy);
    pair.works(idle);
    ip(&["ip", "link", "set", &netdev(), "down"]);
    pair.post_send(0, busy, b"into the void").unwrap();
    let reasons = [pair.dead(busy), pair.dead(idle)];
    println!("{reasons:?}");
    ip(&["ip", "link", "set", &netdev(), "up"]);
    assert!(reasons.iter().flatten().all(|reason| matches!(reason, DownReason::Lost(_))), "{reasons:?}");
    connects_again(&mut pair);
}

/// Connects once the port is up, which is a little later than its network device.
fn connects_again(pair: &mut Pair<VerbsRig>) {
    let start = Instant::now();
    while let Err(error) = pair.fabric(0).device.look_again() {
        assert!(start.elapsed() < Duration::from_secs(30), "the port does not come back: {error}");
        std::thread::sleep(Duration::from_millis(10));
    }
    let again = pair.connect(0);
    pair.works(again);
}

/// A new link replaces a queue pair in error, a hundred times, and nothing is left of any.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn links_die_and_are_rebuilt() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    for round in 0..100_u32 {
        let link = pair.connect((round % 2) as usize);
        let remote = pair.grant(1, link, slice(0, 64));
        pair.grant(0, link, slice(0, 64));
        let bad = RemoteSlice::new(remote.address, 64, RemoteKey(remote.key().0 ^ 0x4242_4200));
        pair.post_write(0, link, &[slice(0, 64)], if round % 3 == 0 { remote } else { bad }, Some(1)).unwrap();
        if round % 3 == 0 {
            pair.fabric(1).disconnect(link.0[1], DownReason::Closed("enough".into()));
        }
        pair.dead(link);
        for side in &mut pair.sides {
            side.heard.retain(|h| matches!(h, Heard::Down(..)));
        }
    }
    for side in 0..2 {
        assert!(pair.fabric(side).links.is_empty());
        assert_eq!((pair.fabric(side).queues.spoken_for(), pair.fabric(side).queues.len()), (0, 1));
    }
}

/// A peer whose queue pair is in error says nothing. An idle side notices that all the same.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn silent_death_is_noticed_by_a_probe() {
    let mut pair = Pair::new(VerbsRig(impatient()), LEN);
    let link = pair.connect(0);
    pair.works(link);
    // The peer's queue pair is gone, and says nothing.
    let id = link.0[1];
    pair.fabric(1).links.get_mut(id).unwrap().stop();
    let start = Instant::now();
    let reason = pair.hear(0, "LinkDown", |h| match h {
        Heard::Down(_, reason) => Some(reason.clone()),
        _ => None,
    });
    println!("heard after {:?}: {reason}", start.elapsed());
    assert!(matches!(&reason, DownReason::Lost(why) if why.contains("probe")), "{reason:?}");
    assert!(pair.fabric(0).counters().probes > 0);
}

/// A device that neither completes nor fails what is in flight does not keep its link for ever. Here it is a device that
/// was told to wait for hours for an acknowledgement.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn stalled_device_ends_its_link() {
    let stall_timeout = Some(Duration::from_secs(2));
    let mut pair = Pair::new(VerbsRig(VerbsConfig { timeout: 31, stall_timeout, ..config() }), LEN);
    let (stalled, healthy) = (pair.connect(0), pair.connect(0));
    pair.works(stalled);
    pair.works(healthy);
    pair.fabric(1).links.get_mut(stalled.0[1]).unwrap().stop();
    pair.post_send(0, stalled, b"nobody acknowledges it").unwrap();
    let (id, reason) = pair.hear(0, "LinkDown", |h| match h {
        Heard::Down(id, reason) => Some((*id, reason.clone())),
        _ => None,
    });
    assert_eq!(id, stalled.0[0]);
    assert!(matches!(&reason, DownReason::Lost(why) if why.contains("the device has stalled: ")), "{reason:?}");
    pair.works(healthy);
}

/// The device reports that it no longer works. All links die with that reason, later requests are refused with it, and
/// operations on own words are answered. The software device never reports that, so the test feeds the event in by
/// hand.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn failed_device_ends_its_links_and_refuses_requests() {
    let mut pair = Pair::new(VerbsRig(impatient()), LEN);
    let (link, offered) = (pair.connect(0), pair.new_link());
    pair.works(link);
    pair.fabric(0).offer(offered.0[0]).unwrap();
    pair.atomics(0).post_local_atomic(WorkId(9), slice(0, 8), AtomicOp::Load).unwrap();
    let fatal = AsyncEvent { source: AsyncSource::Device, code: 8 };
    pair.fabric(0).device_says(fatal);
    pair.fabric(0).device_says(fatal);
    let why = "rxe0 does not work any more: the device has failed".to_owned();
    let reasons = pair.dead(link);
    assert_eq!(reasons[0], DownReason::Lost(why.clone()));
    assert!(matches!(reasons[1], DownReason::Lost(_)), "{reasons:?}");
    let down = Heard::Down(offered.0[0], DownReason::NotConnected(why.clone()));
    pair.hear(0, "LinkDown", |heard| (*heard == down).then_some(()));
    let answered = Heard::LocalAtomicDone(WorkId(9), Err(why.clone()));
    pair.hear(0, "LocalAtomicDone", |heard| (*heard == answered).then_some(()));
    let fabric = pair.fabric(0);
    assert_eq!(fabric.post_send(link.0[0], WorkId(1), b"x"), Err(PostError::LinkDown(link.0[0])));
    let refused = [
        fabric.offer(LinkId(77)).unwrap_err(),
        fabric.register(SegmentId(9), Arc::new(segment(4096))).unwrap_err(),
        fabric.atomics().unwrap().post_local_atomic(WorkId(1), slice(0, 8), AtomicOp::Load).unwrap_err(),
    ];
    assert!(refused.iter().all(|error| error.to_string().contains(&why)), "{refused:?}");
    assert!(fabric.describe().contains(&("broken", why)));
    fabric.deregister(Pair::<VerbsRig>::SEGMENT).unwrap();
    // A fabric that is opened anew works.
    let (mut fabric, memory) = (pair.rig.fabric(), pair.sides[0].memory.clone());
    fabric.register(Pair::<VerbsRig>::SEGMENT, memory).unwrap();
    *pair.fabric(0) = fabric;
    let again = pair.connect(0);
    pair.works(again);
}

/// The port's address goes and comes back, at any index. Another address is used as soon as it is there.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn changed_address_is_used() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    let first = pair.fabric(0).device.gid.clone().unwrap();
    let own = address();
    for (address, other) in [("10.99.0.1", own.as_str()), (own.as_str(), "10.99.0.1")] {
        ip(&["ip", "addr", "add", &format!("{address}/24"), "dev", &netdev()]);
        ip(&["ip", "addr", "del", &format!("{other}/24"), "dev", &netdev()]);
        let ends = format!("::ffff:{address}");
        // The kernel's table follows a little later.
        let start = Instant::now();
        let link = loop {
            let link = pair.connect(0);
            if pair.fabric(0).describe().iter().any(|(what, is)| *what == "gid" && is.starts_with(&ends)) {
                break link;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", pair.fabric(0).describe());
        };
        pair.works(link);
    }
    let last = pair.fabric(0).device.gid.clone().unwrap();
    assert_eq!((last.gid, last.kind), (first.gid, first.kind));
}

/// Over a port that is down no link is tried. The offer fails at once.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_port_that_is_down_is_named() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    ip(&["ip", "link", "set", &netdev(), "down"]);
    let start = Instant::now();
    let refused = loop {
        match pair.fabric(0).offer(LinkId(1)) {
            Err(error) => break error.to_string(),
            Ok(_) => pair.fabric(0).disconnect(LinkId(1), DownReason::Closed("the port is up still".into())),
        }
        pair.round();
        assert!(start.elapsed() < Duration::from_secs(30), "the port does not go down");
    };
    ip(&["ip", "link", "set", &netdev(), "up"]);
    assert!(refused.contains("rxe0 port 1 down"), "{refused}");
    connects_again(&mut pair);
}
