//! Sidecars killed with SIGKILL and started again: calls that needed them fail, and everything else continues.

use transfer_tests::status::operations_of;
use transfer_tests::{Carrier, Scene, Spec};

const LEN: u64 = 3 << 20;

/// The owner's node dies while another node waits for its tensor. The owner's node does not host the directory.
// Promise: dead-peer, seen to fail
#[test]
fn fetches_fail_when_their_peer_dies_and_work_after_its_restart() {
    let mut scene = Scene::two().with_bystanders_at([0, 0]);
    let (mut taker, mut giver) = (scene.a().worker("taker"), scene.b().worker("giver"));
    giver.push("w", Spec::bytes(LEN, 1)).get();
    taker.fetch("w").hold("old").get();
    let waiting = [taker.fetch("w").at_least(2).start(), taker.fetch("w").exactly(3).start()];
    scene.b().until("the owner knows of both", |s| s.links.iter().any(|l| l.serves == 2));
    scene.nodes[1].kill();
    for fetch in waiting {
        let trouble = fetch.trouble();
        trouble.expect("PeerLost", &["\"w\"", "node \"b\"", "lost"]);
        assert!(trouble.can_retry, "{trouble}");
    }
    assert_eq!(taker.read("old"), Spec::bytes(LEN, 1).sum(), "what was fetched stays");
    let gone = giver.push("w", Spec::bytes(10, 2)).trouble();
    gone.expect("SidecarGone", &["connect again"]);
    scene.others_go_on();
    // The next call waits until the key is published again, at any node.
    let next = taker.fetch("w").start();
    scene.a().until("it waits", |s| operations_of(s, "taker") == 1);
    scene.nodes[1].restart();
    let mut again = scene.b().worker("giver");
    assert_ne!(again.incarnation(), giver.incarnation());
    again.push("w", Spec::bytes(LEN, 9)).get();
    let fetched = next.get();
    assert_eq!(fetched.sum, Spec::bytes(LEN, 9).sum());
    Carrier::chosen().carried(&fetched.report);
    scene.others_go_on();
    drop((taker, giver, again));
    scene.note_idle_of(1);
    scene.end();
}

/// The node of a receiver dies while one push to it waits for its readers, and another one waits for room.
// Promise: dead-peer, seen to fail
#[test]
fn pushes_fail_when_their_peer_dies_and_work_after_its_restart() {
    let mut scene = Scene::two_with(&["--pool-bytes", "8MiB"]).with_bystanders_at([0, 0]);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let spec = |seed| Spec::bytes(LEN, seed);
    giver.push("w", spec(1)).to("taker").get();
    taker.fetch("w").hold("first").get();
    giver.push("w", spec(2)).to("taker").get();
    taker.fetch("w").hold("second").get();
    // Both slots of one key are being read, and there is no room for another key.
    let waiting = [giver.push("w", spec(3)).to("taker").start(), giver.push("x", spec(4)).to("taker").start()];
    scene.b().until("one waits for room", |s| s.pools.iter().any(|p| p.waiting == 1));
    scene.a().until("both wait", |s| operations_of(s, "giver") == 2);
    scene.nodes[1].kill();
    for push in waiting {
        push.trouble().expect("PeerLost", &["\"taker\"", "node \"b\"", "lost"]);
    }
    scene.others_go_on();
    scene.nodes[1].restart();
    let mut again = scene.b().worker("taker");
    // The directory may learn a little later where the worker is.
    for key in ["w", "x"] {
        giver.push(key, Spec::bytes(LEN / 4, 5)).to("taker").get();
        assert_eq!(again.fetch(key).get().sum, Spec::bytes(LEN / 4, 5).sum());
    }
    drop((giver, taker, again));
    scene.note_idle_of(1);
    scene.end();
}

/// The node is killed while tensors are in flight in both directions.
// Promise: dead-peer, seen to fail
#[test]
fn transfers_in_flight_fail_when_a_node_dies() {
    let mut scene = Scene::two().with_bystanders_at([0, 0]);
    for round in 1..=3 {
        let (mut here, mut there) = (scene.a().worker("here"), scene.b().worker("there"));
        here.push("out", Spec::bytes(LEN, 1)).version(round).get();
        there.push("in", Spec::bytes(LEN, 2)).get();
        let storms = [
            here.push("to", Spec::bytes(LEN, 3)).to("there").storm(),
            here.fetch("in").storm(),
            there.fetch("out").storm(),
        ];
        scene.a().until("bytes fly both ways", |s| {
            transfer_tests::status::finished(s, Carrier::chosen().kind()).transfers >= 10
        });
        scene.nodes[1].kill();
        let [to, fetch, their] = storms;
        for (storm, what) in [(to, "push"), (fetch, "fetch")] {
            let trouble = storm.trouble();
            let known = ["PeerLost", "PeerUnreachable", "UnknownWorker", "UnknownKey", "Deadline"];
            assert!(known.contains(&trouble.kind.as_str()), "{what}: {trouble}");
            assert!(trouble.can_retry, "{what}: {trouble}");
        }
        their.trouble().expect("SidecarGone", &[]);
        scene.others_go_on();
        drop((here, there));
        scene.nodes[1].restart();
    }
    let (mut here, mut there) = (scene.a().worker("here"), scene.b().worker("there"));
    there.push("in", Spec::bytes(LEN, 9)).get();
    assert_eq!(here.fetch("in").get().sum, Spec::bytes(LEN, 9).sum());
    drop((here, there));
    scene.note_idle_of(1);
    scene.end();
}

/// The node that hosts the directory dies and comes back: the other nodes register again what they have.
// Promise: dead-directory, seen to fail
#[test]
fn directory_is_rebuilt_when_its_node_restarts() {
    let mut scene = Scene::two().with_bystanders_at([1, 1]);
    let (mut giver, mut near) = (scene.b().worker("giver"), scene.b().worker("near"));
    let mut lost = scene.a().worker("lost");
    giver.push("w", Spec::bytes(LEN, 1)).get();
    lost.fetch("w").hold("old").get();
    lost.push("theirs", Spec::bytes(LEN, 2)).get();
    near.fetch("theirs").hold("theirs").get();
    scene.nodes[0].kill();
    // One node is left alone: calls that need only known or local keys continue.
    scene.others_go_on();
    assert_eq!(near.fetch("w").get().sum, Spec::bytes(LEN, 1).sum());
    giver.push("w", Spec::bytes(LEN, 3)).get();
    assert_eq!(near.read("theirs"), Spec::bytes(LEN, 2).sum(), "what had landed stays");
    assert_eq!(lost.read("old"), Spec::bytes(LEN, 1).sum(), "a worker's memory outlives its sidecar");
    lost.fetch("w").trouble().expect("SidecarGone", &["stays readable", "connect again"]);
    giver.push("new", Spec::bytes(10, 4)).get();
    scene.nodes[0].restart();
    scene.b().until("it is attached again", |s| s.directory.as_ref().is_some_and(|d| d.attached));
    let mut again = scene.a().worker("lost");
    assert_eq!(again.fetch("w").get().sum, Spec::bytes(LEN, 3).sum(), "it was entered again");
    giver.push("new", Spec::bytes(10, 5)).get();
    assert_eq!(again.fetch("new").get().sum, Spec::bytes(10, 5).sum());
    again.push("theirs", Spec::bytes(10, 6)).get();
    assert_eq!(near.fetch("theirs").get().sum, Spec::bytes(10, 6).sum());
    drop((giver, near, lost, again));
    scene.note_idle_of(0);
    scene.end();
}
