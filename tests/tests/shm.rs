//! Two sidecars on one host choose shared memory by default if they share a directory, also from two containers. A
//! sidecar that cannot use it says why. The other suites test the behaviour that all fabrics share. Some of it is
//! repeated here, because this fabric needs no configuration.

use std::process::Command;
use transfer_proto::v1::Fabric;
use transfer_tests::container::{Container, namespaces};
use transfer_tests::{Carrier, Scene, Sidecar, Spec, Worker, status};

/// More than the data plane copies in one piece, and enough to employ the copy pool.
const LEN: u64 = 9 << 20;

/// Arguments with which the receiving side copies. tests/shm_reference.rs tests fetches without a copy.
const LISTEN: [&str; 6] = ["--listen", "127.0.0.1:0", "--verbs", "off", "--shm-reference", "off"];

/// Pushes and fetches tensors in both directions, and checks that this carrier carried all of them.
#[track_caller]
fn both_ways(scene: &Scene, carrier: Carrier, seed: u64) {
    let names = [format!("a-{seed}"), format!("b-{seed}")];
    let mut workers = [scene.a().worker(&names[0]), scene.b().worker(&names[1])];
    exchange(&mut workers, &names, carrier, seed);
    assert_eq!(workers.map(|worker| worker.close().success()), [true, true]);
}

#[track_caller]
fn exchange(workers: &mut [Worker; 2], names: &[String; 2], carrier: Carrier, seed: u64) {
    for from in [0, 1] {
        for len in [100, LEN / 3] {
            let spec = Spec::bytes(len, seed + from as u64);
            let (fetched, pushed) = (format!("fetched-{from}-{seed}-{len}"), format!("pushed-{from}-{seed}-{len}"));
            workers[from].push(&fetched, spec.clone()).get();
            let there = workers[1 - from].fetch(&fetched).get();
            assert_eq!(there.sum, spec.sum());
            carrier.carried(&there.report);
            let push = workers[from].push(&pushed, spec.clone()).to(&names[1 - from]).get();
            carrier.carried(&push.report);
            assert_eq!(workers[1 - from].fetch(&pushed).get().sum, spec.sum());
        }
    }
}

fn link_over(sidecar: &Sidecar, fabric: Fabric) -> bool {
    sidecar.status().links.iter().any(|link| link.fabric() == fabric)
}

// Promise: choice-of-shared-memory, seen to fail
#[test]
fn shm_is_chosen_by_default() {
    let scene = Scene::exactly(&[&LISTEN, &LISTEN]);
    both_ways(&scene, Carrier::Shm, 1);
    assert!(link_over(scene.a(), Fabric::Shm) && !link_over(scene.a(), Fabric::Tcp));
    assert_eq!(status::finished(&scene.b().status(), Fabric::Tcp).transfers, 0);
    for node in &scene.nodes {
        let status = node.status();
        assert_eq!(status.links[0].why, "", "nothing better was passed over");
        let shm = status.fabric_states.iter().find(|state| state.fabric() == Fabric::Shm).expect("it is shown");
        let socket = node.folder().join(format!("{}.shm", node.name())).display().to_string();
        assert!(shm.available && shm.settings.iter().any(|s| s.name == "socket" && s.value == socket), "{shm:?}");
    }
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("w", Spec::bytes(5000, 1)).get();
    taker.fetch("w").require("shm").get();
    taker.fetch("w").require("tcp").trouble().expect("RequireUnmet", &["tcp", "is shm"]);
    drop((giver, taker));
    scene.end();
}

/// TCP carries if one sidecar has shm off, or if the two have different directories. Both say why.
// Promise: reports, seen to fail
#[test]
fn tcp_carries_without_shm_and_says_why() {
    let elsewhere = tempfile::tempdir().expect("a folder");
    let off = [&LISTEN[..], &["--shm", "off"]].concat();
    let apart = [&LISTEN[..], &["--shm-dir", elsewhere.path().to_str().expect("a plain path")]].concat();
    for (other, why) in [(off, "--shm off"), (apart, "--shm-dir")] {
        let scene = Scene::exactly(&[&LISTEN, &other]);
        both_ways(&scene, Carrier::Tcp, 1);
        let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
        giver.push("w", Spec::bytes(5000, 1)).get();
        taker.fetch("w").require("shm").trouble().expect("RequireUnmet", &["shm", "is tcp", why]);
        for node in &scene.nodes {
            let link = node.status().links[0].clone();
            assert!(link.why.contains(why), "{link:?}");
        }
        drop((giver, taker));
        scene.end();
    }
}

/// A link continues after a sidecar was stopped for a while. After a sidecar was killed and restarted, there is a new
/// link.
#[test]
fn shm_survives_stopped_and_killed_sidecars() {
    let mut scene = Scene::exactly(&[&LISTEN, &LISTEN]);
    let mut giver = Worker::of(scene.a(), "giver").arena_bytes(64 << 20).start();
    let mut taker = scene.b().worker("taker");
    let spec = |seed| Spec::bytes(LEN, seed);
    giver.push("w", spec(1)).get();
    assert_eq!(taker.fetch("w").get().sum, spec(1).sum());
    scene.b().freeze();
    giver.push("w", spec(2)).get();
    let waiting = taker.fetch("w").at_least(2).start();
    scene.b().go_on();
    assert_eq!(waiting.get().sum, spec(2).sum());
    for _ in 0..2 {
        let before = status::finished(&scene.a().status(), Fabric::Shm).transfers;
        let storms = [taker.fetch("w").storm(), giver.push("v", spec(3)).to("taker").storm()];
        scene.a().until("bytes fly", |s| status::finished(s, Fabric::Shm).transfers >= before + 4);
        scene.nodes[1].kill();
        let [fetches, pushes] = storms;
        fetches.trouble().expect("SidecarGone", &[]);
        let trouble = pushes.trouble();
        assert!(trouble.can_retry, "{trouble}");
        drop(taker);
        scene.nodes[1].restart();
        taker = scene.b().worker("taker");
        let again = taker.fetch("w").get();
        assert_eq!(again.sum, spec(2).sum());
        Carrier::Shm.carried(&again.report);
    }
    drop((giver, taker));
    scene.note_idle_of(1);
    scene.end();
}

/// The owner's sidecar is killed while readers copy a tensor of its worker. A fetch that succeeds returns the
/// published bytes.
// Promise: late-copies
#[test]
fn killed_owner_is_never_half_read() {
    let mut scene = Scene::exactly(&[&LISTEN, &LISTEN]);
    let mut giver = scene.b().worker("giver");
    for round in 0..2_u64 {
        let (mut taker, key) = (scene.a().worker("taker"), format!("w-{round}"));
        let spec = Spec::bytes(LEN, 10 + round);
        giver.push(&key, spec.clone()).get();
        taker.fetch(&key).get();
        let fetches: Vec<_> = (0..4).map(|_| taker.fetch(&key).start()).collect();
        scene.nodes[1].kill();
        for fetch in fetches {
            if let Ok(fetched) = fetch.wait() {
                assert_eq!(fetched.sum, spec.sum(), "torn bytes");
            }
        }
        drop(taker);
        drop(giver);
        scene.nodes[1].restart();
        giver = scene.b().worker("giver");
    }
    drop(giver);
    scene.note_idle_of(1);
    scene.end();
}

/// Two sidecars, each in a container of its own, share one directory. They choose shm because they can meet there, and
/// not by their addresses. Neither is told to copy, but both do, because their user ids mean nothing to each other.
/// The test needs `unshare` and root. Without them, it reports that it did not run.
// Promise: choice-of-shared-memory, seen to fail
#[test]
fn shm_is_chosen_between_two_containers() {
    let tried =
        Command::new("unshare").args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "true"]).output();
    if !rustix::process::geteuid().is_root() || !tried.as_ref().is_ok_and(|output| output.status.success()) {
        transfer_tests::not_run(&format!("no containers can be made here ({tried:?})"));
        return;
    }
    let folder = tempfile::Builder::new().prefix("transfer-test-").tempdir().expect("a folder");
    let container = Some(Container::new().with_the_host_s_network());
    let a = Sidecar::start_in(container, folder.path(), "a", &LISTEN[..4]);
    let url = format!("http://{}", a.address());
    let join = [&LISTEN[..4], &["--directory", &url]].concat();
    let mut nodes = [Sidecar::start_in(container, folder.path(), "b", &join), a];
    nodes.reverse();
    let apart = [nodes[0].process_id(), nodes[1].process_id()].map(namespaces);
    assert!(apart[0].iter().zip(&apart[1]).filter(|(a, b)| a != b).count() >= 4, "{apart:?}");
    let names = ["a-1".to_owned(), "b-1".to_owned()];
    let mut workers = [nodes[0].worker(&names[0]), nodes[1].worker(&names[1])];
    exchange(&mut workers, &names, Carrier::Shm, 1);
    drop(workers);
    for node in &mut nodes {
        assert!(node.terminate().success());
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").flatten().map(|f| f.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".shm")), "{left:?}");
}
