//! The network goes and comes, and the device goes.

use super::*;
use std::process::Command;

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

/// Short times, so that a lost network is noticed soon.
fn impatient() -> VerbsConfig {
    VerbsConfig { timeout: 10, retry_count: 3, ..config() }
}

/// The links of a network that is gone die, idle ones too, with the status in words; when it is back, new ones work.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn link_down_and_up() {
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
    // Its address comes back a little after the port.
    let start = Instant::now();
    while transfer_verbs::choose::port(&transfer_verbs::choose::Wanted::default()).is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "the port does not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
    let again = pair.connect(0);
    pair.works(again);
}

/// A queue pair in error is rebuilt by a new link, a hundred times, and nothing is left of any.
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

/// A peer whose queue pair is in error says nothing; an idle side hears of it all the same.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_silent_death_is_heard_of_by_a_probe() {
    let mut pair = Pair::new(VerbsRig(impatient()), LEN);
    let link = pair.connect(0);
    pair.works(link);
    // The peer's queue pair is gone, and says nothing.
    let id = link.0[1];
    pair.fabric(1).links.get_mut(&id).unwrap().stop();
    let start = Instant::now();
    let reason = pair.hear(0, "LinkDown", |h| match h {
        Heard::Down(_, reason) => Some(reason.clone()),
        _ => None,
    });
    println!("heard after {:?}: {reason}", start.elapsed());
    assert!(matches!(&reason, DownReason::Lost(why) if why.contains("probe")), "{reason:?}");
    assert!(pair.fabric(0).counters().probes > 0);
}

/// The device is taken away while links are up: they die with that reason, what is asked afterwards is refused with it, and the next
/// device works.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn the_device_is_removed() {
    let mut pair = Pair::new(VerbsRig(impatient()), LEN);
    let link = pair.connect(0);
    pair.works(link);
    let name = pair.fabric(0).device_name().to_owned();
    // It may wait until everybody has closed the device.
    let mut removing = Command::new("rdma").args(["link", "delete", &name]).spawn().unwrap();
    let reasons = pair.dead(link);
    println!("{reasons:?}");
    println!("told by the device: {:?}", pair.fabric(0).broken);
    assert!(reasons.iter().all(|reason| matches!(reason, DownReason::Lost(_))), "{reasons:?}");
    let offered = pair.fabric(0).offer(LinkId(77));
    let registered = pair.fabric(0).register(SegmentId(9), Arc::new(segment(4096)));
    println!("afterwards: {offered:?} {registered:?}");
    drop(pair);
    removing.wait().unwrap();
    ip(&["rdma", "link", "add", &name, "type", "rxe", "netdev", &netdev()]);
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    let again = pair.connect(0);
    pair.works(again);
}
