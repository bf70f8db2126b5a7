//! Tests that need an RDMA device: the choice of the fabric and its reason, a port that goes down, a device that is
//! removed, a training job. The other suites test the behaviour that all fabrics share, and `make test-rdma` runs them
//! over verbs too.

use std::process::Command;
use transfer_proto::v1::Fabric;
use transfer_tests::{Carrier, Scene, Sidecar, Spec, WAIT_LIMIT, Worker, poll, programs, status};

/// More than one message of a device can carry.
const LEN: u64 = 9 << 20;

/// Arguments of sidecars that share a directory, and would use shm.
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];
/// Arguments without shm, for sidecars that get no arguments of a carrier.
const NO_SHM: [&str; 4] = ["--listen", "127.0.0.1:0", "--shm", "off"];

fn two_over_verbs() -> Scene {
    Scene::over(Carrier::Verbs, &[&LISTEN, &LISTEN])
}

/// Runs a tool of the system, which must succeed.
fn tool(words: &[&str]) {
    let status = Command::new(words[0]).args(&words[1..]).status().unwrap_or_else(|e| panic!("{words:?}: {e}"));
    assert!(status.success(), "{words:?}: {status}");
}

/// The network interface below an RDMA device of the guest. The drop restores the interface and the device.
struct Cable {
    network: String,
    device: String,
}

impl Cable {
    /// Returns the interface below the device with this number.
    fn of(number: usize) -> Cable {
        Cable { network: format!("dummy{number}"), device: format!("rxe{number}") }
    }

    fn down(&self) {
        tool(&["ip", "link", "set", &self.network, "down"]);
    }

    fn up(&self) {
        tool(&["ip", "link", "set", &self.network, "up"]);
    }

    fn add_device(&self) {
        tool(&["rdma", "link", "add", &self.device, "type", "rxe", "netdev", &self.network]);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // The next test needs both, and this one may be panicking. A second device is not added: the command fails
        // then.
        let _ = Command::new("ip").args(["link", "set", &self.network, "up"]).status();
        let add = ["link", "add", &self.device, "type", "rxe", "netdev", &self.network];
        let _ = Command::new("rdma").args(add).output();
    }
}

/// Pushes and fetches tensors in both directions, and checks that this carrier carried all of them.
#[track_caller]
fn both_ways(scene: &Scene, carrier: Carrier, seed: u64) {
    let names = [format!("a-{seed}"), format!("b-{seed}")];
    let mut workers = [scene.a().worker(&names[0]), scene.b().worker(&names[1])];
    for from in [0, 1] {
        let spec = Spec::bytes(LEN / 2, seed + from as u64);
        let (fetched, pushed) = (format!("fetched-{from}-{seed}"), format!("pushed-{from}-{seed}"));
        workers[from].push(&fetched, spec.clone()).get();
        let there = workers[1 - from].fetch(&fetched).get();
        assert_eq!(there.sum, spec.sum());
        carrier.carried(&there.report);
        let push = workers[from].push(&pushed, spec.clone()).to(&names[1 - from]).get();
        carrier.carried(&push.report);
        assert_eq!(workers[1 - from].fetch(&pushed).get().sum, spec.sum());
    }
    let closed = workers.map(|worker| worker.close().success());
    assert_eq!(closed, [true, true]);
}

fn link_over(sidecar: &Sidecar, fabric: Fabric) -> bool {
    sidecar.status().links.iter().any(|link| link.fabric() == fabric)
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn rdma_is_chosen_by_default() {
    let scene = Scene::exactly(&[&NO_SHM, &NO_SHM]);
    both_ways(&scene, Carrier::Verbs, 1);
    assert!(link_over(scene.a(), Fabric::Verbs) && !link_over(scene.a(), Fabric::Tcp));
    let none = status::finished(&scene.b().status(), Fabric::Tcp);
    assert_eq!(none.transfers, 0);
    scene.end();
}

/// Only one sidecar has a device: TCP carries, and both say why it is not RDMA. A caller that requires RDMA gets an
/// error that says so.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn tcp_carries_if_one_node_has_no_rdma() {
    let off = [&NO_SHM[..], &["--verbs", "off"]].concat();
    let on = [&NO_SHM[..], &["--verbs", "on"]].concat();
    let scene = Scene::exactly(&[&off, &on]);
    both_ways(&scene, Carrier::Tcp, 1);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("w", Spec::bytes(5000, 1)).get();
    let why = ["verbs", "is tcp", "node a has no verbs", "--verbs off"];
    taker.fetch("w").require("verbs").trouble().expect("RequireUnmet", &why);
    giver.push("x", Spec::bytes(5000, 1)).to("taker").require("verbs").trouble().expect("RequireUnmet", &why);
    for node in &scene.nodes {
        let link = node.status().links[0].clone();
        assert!(link.why.contains("--verbs off"), "{link:?}");
    }
    drop((giver, taker));
    scene.end();
}

/// One sidecar has no device, and the other one requires RDMA. No link is made, and each call fails with the reason.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn required_rdma_without_a_device_fails_with_a_reason() {
    let off = [&NO_SHM[..], &["--verbs", "off"]].concat();
    let required = [&LISTEN[..], &Carrier::Verbs.arguments()[..]].concat();
    let scene = Scene::exactly(&[&off, &required]);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("w", Spec::bytes(5000, 1)).get();
    let trouble = taker.fetch("w").timeout(WAIT_LIMIT / 10).trouble();
    assert!(trouble.text.contains("verbs"), "{trouble}");
    let trouble = giver.push("x", Spec::bytes(5000, 1)).to("taker").timeout(WAIT_LIMIT / 10).trouble();
    assert!(trouble.text.contains("verbs"), "{trouble}");
    drop((giver, taker));
    scene.end();
}

/// The port goes down while tensors are in flight, and comes up again. Transfers in flight fail in time and with a
/// reason. Afterwards everything works again.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn link_recovers_after_a_port_goes_down_and_up() {
    let cable = Cable::of(0);
    let scene = two_over_verbs();
    both_ways(&scene, Carrier::Verbs, 1);
    for round in 0..3 {
        // The arena has room for one tensor that stays and two that are being pushed.
        let mut giver = Worker::of(scene.a(), "giver").arena_bytes(32 << 20).start();
        let mut taker = scene.b().worker("taker");
        giver.push("w", Spec::bytes(LEN, round)).get();
        let before = status::finished(&scene.b().status(), Fabric::Verbs).transfers;
        let storms = [
            giver.push("x", Spec::bytes(LEN, round)).to("taker").timeout(WAIT_LIMIT).storm(),
            taker.fetch("w").timeout(WAIT_LIMIT).storm(),
        ];
        scene.b().until("tensors fly", |s| status::finished(s, Fabric::Verbs).transfers >= before + 2);
        cable.down();
        for storm in storms {
            let trouble = storm.trouble();
            assert!(trouble.can_retry, "{trouble}");
            assert!(["PeerLost", "PeerUnreachable"].contains(&trouble.kind.as_str()), "{trouble}");
        }
        for node in &scene.nodes {
            node.until("its link is down", |s| s.links.is_empty());
        }
        cable.up();
        let again = poll(|| taker.fetch("w").start().wait()).unwrap_or_else(|trouble| panic!("never again: {trouble}"));
        assert_eq!(again.sum, Spec::bytes(LEN, round).sum());
        Carrier::Verbs.carried(&again.report);
        assert!(giver.close().success() && taker.close().success());
        for node in &scene.nodes {
            node.until("nothing is left", |s| status::Counts::of(s).is_nothing());
        }
    }
    both_ways(&scene, Carrier::Verbs, 50);
    scene.end();
}

/// One of two nodes is killed repeatedly, at any moment of a storm of fetches. The link is made anew each time.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn next_fetch_works_after_each_kill() {
    let mut scene = two_over_verbs();
    for round in 0..4_u64 {
        let mut giver = scene.a().worker("giver");
        let mut taker = scene.b().worker("taker");
        giver.push("w", Spec::bytes(LEN, round)).version(round + 1).get();
        let storm = taker.fetch("w").storm();
        scene.a().until("tensors fly", |s| status::finished(s, Fabric::Verbs).transfers >= round || s.links.len() == 1);
        scene.nodes[1].kill();
        storm.trouble().expect("SidecarGone", &[]);
        drop(taker);
        scene.nodes[1].restart();
        let mut taker = scene.b().worker("taker");
        let fetched =
            poll(|| taker.fetch("w").start().wait()).unwrap_or_else(|trouble| panic!("never again: {trouble}"));
        assert_eq!(fetched.sum, Spec::bytes(LEN, round).sum());
        Carrier::Verbs.carried(&fetched.report);
        assert!(giver.close().success() && taker.close().success());
        scene.a().until("nothing is left", |s| status::Counts::of(s).is_nothing());
    }
    scene.note_idle_of(1);
    scene.end();
}

/// Returns how many rails the first link was made with, and how many of them are live.
fn rails(status: &status::Seen) -> Option<(u32, u32)> {
    status.links.first().map(|link| (link.rails, link.rails_live))
}

/// The link uses two devices, with two queue pairs on each. The network below one device goes down in the middle of
/// transfers. No transfer fails, because the other device carries on. The rails of the first device lead: if that
/// device goes down, messages are in flight, too.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn transfers_survive_the_loss_of_one_of_two_devices() {
    let told = ["--verbs-device", "rxe0,rxe1", "--verbs-queue-pairs", "2", "--pool-bytes", "128MiB"];
    let told = [&LISTEN[..], &told].concat();
    let mut scene = Scene::over(Carrier::Verbs, &[&told, &told]);
    for round in 0..4 {
        let cable = Cable::of(round % 2);
        let mut workers: Vec<Worker> =
            scene.nodes.iter().map(|n| Worker::of(n, n.name()).arena_bytes(64 << 20).start()).collect();
        let spec = |from: usize, i: u64| Spec::bytes(LEN / 2, round as u64 * 100 + from as u64 * 10 + i);
        for (from, worker) in workers.iter_mut().enumerate() {
            for i in 0..4 {
                worker.push(&format!("pulled/{round}/{from}/{i}"), spec(from, 4 + i)).get();
            }
        }
        both_ways(&scene, Carrier::Verbs, round as u64);
        for node in &scene.nodes {
            node.until("all rails live", |s| rails(s) == Some((4, 4)));
        }
        let before = status::finished(&scene.b().status(), Fabric::Verbs).transfers;
        let mut pushes = Vec::new();
        let mut fetches = Vec::new();
        for from in [0, 1] {
            let target = scene.nodes[1 - from].name().to_owned();
            for i in 0..4 {
                let key = format!("pushed/{round}/{from}/{i}");
                pushes.push(workers[from].push(&key, spec(from, i)).to(&target).timeout(WAIT_LIMIT).start());
                let fetch = workers[1 - from].fetch(&format!("pulled/{round}/{from}/{i}")).timeout(WAIT_LIMIT);
                fetches.push((spec(from, 4 + i), fetch.start()));
            }
        }
        scene.b().until("tensors fly", |s| status::finished(s, Fabric::Verbs).transfers > before);
        cable.down();
        for (spec, fetch) in fetches {
            let fetched = fetch.get();
            assert_eq!(fetched.sum, spec.sum(), "round {round}");
            Carrier::Verbs.carried(&fetched.report);
        }
        for push in pushes {
            Carrier::Verbs.carried(&push.get().report);
        }
        for from in [0, 1] {
            for i in 0..4 {
                let landed = workers[1 - from].fetch(&format!("pushed/{round}/{from}/{i}")).get();
                assert_eq!(landed.sum, spec(from, i).sum(), "round {round}");
            }
        }
        // Whatever was in flight before, these transfers make both nodes notice the lost rails.
        both_ways(&scene, Carrier::Verbs, 1000 + round as u64);
        for node in &scene.nodes {
            node.until("the other device carries on", |s| rails(s) == Some((4, 2)));
        }
        cable.up();
        let closed = workers.into_iter().all(|worker| worker.close().success());
        assert!(closed);
        for node in &scene.nodes {
            node.until("nothing is left", |s| status::Counts::of(s).is_nothing());
        }
        // A new link has all rails again.
        scene.nodes[1].kill();
        scene.nodes[1].restart();
    }
    both_ways(&scene, Carrier::Verbs, 2000);
    scene.note_idle_of(1);
    scene.end();
}

/// The device is removed, and added again. The kernel waits for the processes that have it open (rxe cannot revoke
/// it), so the sidecars that use it are killed. Sidecars that start without it say why, and TCP carries. With the
/// device, RDMA carries again.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn tcp_carries_while_the_device_is_removed() {
    let cable = Cable::of(0);
    let mut scene = Scene::exactly(&[&NO_SHM, &NO_SHM]);
    both_ways(&scene, Carrier::Verbs, 1);
    let mut removal = Command::new("rdma").args(["link", "delete", "rxe0"]).spawn().expect("rdma is there");
    scene.nodes.iter_mut().for_each(Sidecar::kill);
    let removed = poll(|| removal.try_wait().expect("a child can be waited for").ok_or(()));
    assert!(removed.is_ok_and(|status| status.success()), "the device is free, and can be deleted");
    scene.nodes.iter_mut().for_each(Sidecar::restart);
    both_ways(&scene, Carrier::Tcp, 10);
    for node in &scene.nodes {
        let states = node.status().status.fabric_states;
        let verbs = states.iter().find(|state| state.fabric() == Fabric::Verbs).expect("it is told");
        assert!(!verbs.available && !verbs.why_not.is_empty(), "{verbs:?}");
    }
    cable.add_device();
    scene.nodes.iter_mut().for_each(Sidecar::kill);
    scene.nodes.iter_mut().for_each(Sidecar::restart);
    both_ways(&scene, Carrier::Verbs, 20);
    scene.note_idle_of(0);
    scene.note_idle_of(1);
    scene.end();
}

/// The tutorial's training job: its weights must equal those of one process, bit for bit.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn training_job_over_rdma_matches_one_process() {
    let mut demo = Command::new(programs::digits());
    demo.args([
        "demo",
        "--fabric",
        "verbs",
        "--steps",
        "60",
        "--rounds",
        "1",
        "--bulk-tensors",
        "3",
        "--bulk-mib",
        "9",
    ]);
    let output = demo.arg("--transferd").arg(programs::transferd()).output().expect("it can be started");
    let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Exit code 1 is about the accuracy, which takes more steps.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{text}");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = text.lines().map(words).collect();
    let equal = |line: &&String| line.contains("yes, bit for bit");
    assert_eq!(lines.iter().filter(equal).count(), 2, "over transfer and over gRPC messages: {text}");
    for path in [
        "A to A 120 4.6 MB local 0 B",
        "A to B 60 2.3 MB verbs 0 B",
        "B to A 60 2.3 MB verbs 0 B",
        "A to B 3 28.3 MB verbs 0 B",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(path)), "{path}: {text}");
    }
}
