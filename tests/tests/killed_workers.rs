//! Workers killed with SIGKILL in the middle of an operation: nothing of them is left, and no other worker is affected.

use std::time::Duration;
use transfer_proto::v1::Fabric;
use transfer_tests::status::{finished, operations_of};
use transfer_tests::{Carrier, Scene, Spec};

const LEN: u64 = 3 << 20;

/// Returns two sidecars, and over TCP also a scene with one. One sidecar uses no carrier, so testing it once is enough.
fn scenes() -> impl Iterator<Item = Scene> {
    let one = (Carrier::chosen() == Carrier::Tcp).then(Scene::one);
    one.into_iter().chain(std::iter::once_with(Scene::two)).map(Scene::with_bystanders)
}

// Promise: killed-worker, seen to fail
#[test]
fn killed_worker_loses_its_leases() {
    for mut scene in scenes() {
        let (mut giver, mut victim) = (scene.a().worker("giver"), scene.b().worker("victim"));
        let mut other = scene.b().worker("other");
        giver.push("w", Spec::bytes(LEN, 1)).get();
        for name in ["one", "two", "three"] {
            victim.fetch("w").hold(name).get();
        }
        other.fetch("w").hold("mine").get();
        // A newer version is published: only the leases of the victim and of the other reader hold the old one.
        giver.push("w", Spec::bytes(LEN, 2)).get();
        scene.b().until("four leases are held", |s| s.counters.as_ref().is_some_and(|c| c.leases >= 4));
        victim.kill();
        scene.b().until("the victim's leases are gone", |s| {
            s.sessions.iter().all(|s| s.worker != "victim")
                && s.sessions.iter().any(|s| s.worker == "other" && s.leases == 1)
        });
        assert_eq!(other.read("mine"), Spec::bytes(LEN, 1).sum(), "what others read stays");
        assert_eq!(other.fetch("w").get().sum, Spec::bytes(LEN, 2).sum());
        scene.others_go_on();
        drop((giver, other));
        scene.end();
    }
}

#[test]
fn killed_worker_loses_its_waiting_fetches() {
    for mut scene in scenes() {
        let (mut giver, mut victim) = (scene.a().worker("giver"), scene.b().worker("victim"));
        giver.push("w", Spec::bytes(LEN, 1)).get();
        let nowhere = victim.fetch("nowhere").start();
        let later = victim.fetch("w").at_least(2).start();
        scene.b().until("two fetches wait", |s| operations_of(s, "victim") == 2);
        if scene.nodes.len() == 2 {
            scene.a().until("the owner's node knows of one", |s| s.links.iter().any(|l| l.serves >= 1));
        }
        victim.kill();
        drop((nowhere, later));
        scene.b().until("the victim is gone", |s| s.sessions.iter().all(|s| s.worker != "victim"));
        scene.others_go_on();
        // The version that the victim waited for is published, and no other worker is affected.
        giver.push("w", Spec::bytes(LEN, 2)).get();
        scene.others_go_on();
        drop(giver);
        scene.end();
    }
}

/// A push waits for room at the other node, and its bytes lie in the arena of a killed worker.
#[test]
fn killed_worker_loses_its_waiting_push() {
    let mut scene = Scene::two_with(&["--pool-bytes", "8MiB"]).with_bystanders();
    let (mut victim, mut taker) = (scene.a().worker("victim"), scene.b().worker("taker"));
    let mut giver = scene.a().worker("giver");
    for hold in ["one", "two"] {
        giver.push(hold, Spec::bytes(LEN, 1)).get();
        taker.fetch(hold).hold(hold).get();
    }
    let pending = victim.push("w", Spec::bytes(LEN / 2, 1)).to("taker").start();
    scene.b().until("the push waits for room", |s| s.pools.iter().any(|p| p.waiting == 1));
    victim.kill();
    drop(pending);
    scene.a().until("the victim is gone", |s| s.sessions.iter().all(|s| s.worker != "victim"));
    scene.others_go_on();
    taker.release("one");
    scene.others_go_on();
    drop((giver, taker));
    scene.end();
}

/// The worker is killed at an arbitrary moment while it pushes as fast as it can.
// Promise: finished-push-to
#[test]
fn worker_killed_in_a_storm_of_pushes_leaves_nothing() {
    for mut scene in scenes() {
        let mut taker = scene.b().worker("taker");
        for round in 0..4 {
            let mut victim = scene.a().worker("victim");
            let fabric = if scene.nodes.len() == 2 { Carrier::chosen().kind() } else { Fabric::Local };
            let waiting = taker.fetch("w").hold("w").start();
            let storm = victim.push("w", Spec::bytes(LEN, 1)).to("taker").storm();
            assert_eq!(waiting.get().sum, Spec::bytes(LEN, 1).sum(), "round {round}");
            let before = finished(&scene.b().status(), fabric).transfers;
            scene.b().until("some more have come", |s| finished(s, fabric).transfers > before + 2);
            victim.kill();
            drop(storm);
            assert_eq!(taker.read("w"), Spec::bytes(LEN, 1).sum(), "round {round}");
            taker.release("w");
            scene.a().until("the victim is gone", |s| s.sessions.iter().all(|s| s.worker != "victim"));
            scene.others_go_on();
        }
        // The victim's key is free for others, once the directory has learned of its end.
        scene.a().until("its key is free", |s| s.directory.as_ref().is_some_and(|d| d.keys == 2));
        let mut heir = scene.a().worker("heir");
        heir.push("w", Spec::bytes(10, 3)).to("taker").get();
        assert_eq!(taker.fetch("w").get().sum, Spec::bytes(10, 3).sum());
        drop((heir, taker));
        scene.end();
    }
}

/// The worker is killed at an arbitrary moment while it fetches as fast as it can.
// Promise: killed-worker
#[test]
fn worker_killed_in_a_storm_of_fetches_leaves_nothing() {
    for mut scene in scenes() {
        let mut giver = scene.a().worker("giver");
        giver.push("w", Spec::bytes(LEN, 1)).get();
        for _ in 0..4 {
            let mut victim = scene.b().worker("victim");
            let fabric = if scene.nodes.len() == 2 { Carrier::chosen().kind() } else { Fabric::Local };
            let before = finished(&scene.b().status(), fabric).transfers;
            let storms = [victim.fetch("w").storm(), victim.fetch("w").storm()];
            scene.b().until("some have come", |s| finished(s, fabric).transfers > before + 20);
            victim.kill();
            drop(storms);
            scene.b().until("the victim is gone", |s| s.sessions.iter().all(|s| s.worker != "victim"));
            scene.others_go_on();
        }
        drop(giver);
        scene.end();
    }
}

/// Other workers wait for a tensor of the killed worker. Their fetches end at their deadline, or when the key is
/// published again.
// Promise: killed-worker, seen to fail
#[test]
fn waiting_fetches_survive_the_death_of_the_owner() {
    for mut scene in scenes() {
        let (mut victim, mut taker) = (scene.a().worker("victim"), scene.b().worker("taker"));
        victim.push("w", Spec::bytes(LEN, 1)).get();
        taker.fetch("w").hold("old").get();
        let next = taker.fetch("w").at_least(2).start();
        let short = taker.fetch("w").at_least(2).timeout(Duration::from_millis(300)).start();
        scene.b().until("they wait", |s| operations_of(s, "taker") >= 1);
        victim.kill();
        scene.a().until("the victim is gone", |s| s.sessions.iter().all(|s| s.worker != "victim"));
        let trouble = short.trouble();
        assert!(["UnknownKey", "Deadline"].contains(&trouble.kind.as_str()), "{trouble}");
        assert_eq!(taker.read("old"), Spec::bytes(LEN, 1).sum(), "what is being read stays");
        // A worker of the same name connects: the key has a new epoch, which may start at any version.
        let mut heir = scene.a().worker("victim");
        heir.push("w", Spec::bytes(LEN, 7)).version(2).get();
        assert_eq!(next.get().sum, Spec::bytes(LEN, 7).sum());
        scene.others_go_on();
        drop((heir, taker));
        scene.end();
    }
}

/// A worker that is stopped does not read its replies, and no other worker waits for it.
// Promise: stopped-worker
#[test]
fn stopped_worker_holds_up_no_other_worker() {
    for mut scene in scenes() {
        let (mut giver, mut stopped) = (scene.a().worker("giver"), scene.b().worker("stopped"));
        let waiting = stopped.fetch("w").start();
        scene.b().until("it waits", |s| operations_of(s, "stopped") == 1);
        stopped.freeze();
        giver.push("w", Spec::bytes(LEN, 1)).get();
        scene.others_go_on();
        stopped.go_on();
        assert_eq!(waiting.get().sum, Spec::bytes(LEN, 1).sum());
        drop((giver, stopped));
        scene.end();
    }
}

/// A polling sidecar that has no work still checks its sockets: a worker with the name of the killed one is admitted.
// Promise: killed-worker, seen to fail
#[test]
fn idle_polling_sidecar_notices_a_killed_worker() {
    let scene = Scene::with(&[&["--poll", "busy"]]);
    for _ in 0..3 {
        scene.a().worker("victim").kill();
    }
    scene.a().worker("victim").close();
    scene.end();
}
