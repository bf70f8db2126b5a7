//! Workers that outlive a restart of their sidecar: their versions are published again, and they do nothing for it.

use std::time::Duration;
use transfer_tests::order::Until;
use transfer_tests::{Ctl, Scene, Spec, Worker, poll};

const LEN: u64 = 1 << 20;

fn back(sidecar: &transfer_tests::Sidecar, name: &str) -> Worker {
    Worker::of(sidecar, name).that_comes_back().start()
}

/// Repeats `ask` until the worker's client is connected again.
fn once_back<T>(mut ask: impl FnMut() -> Result<T, transfer_tests::Trouble>) -> T {
    let asked = poll(|| match ask() {
        Err(trouble) if trouble.kind == "SidecarGone" => {
            assert!(trouble.can_retry, "{trouble}");
            Err(trouble)
        }
        answer => Ok(answer),
    });
    asked.expect("it comes back").unwrap_or_else(|trouble| panic!("{trouble}"))
}

fn fetch(worker: &mut Worker, key: &str) -> (u64, u64) {
    let got = once_back(|| worker.fetch(key).start().wait());
    (got.version, got.sum)
}

// Promise: dead-sidecar, seen to fail
#[test]
fn published_versions_come_back_and_fetched_ones_stay() {
    for kill in [true, false] {
        let mut scene = Scene::two();
        let (mut giver, mut near) = (back(scene.a(), "giver"), back(scene.a(), "near"));
        let mut far = back(scene.b(), "far");
        giver.push("k", Spec::bytes(LEN, 1)).version(5).keep(Until::Deleted).get();
        giver.push("k", Spec::bytes(LEN, 2)).version(6).get();
        giver.push("k", Spec::bytes(LEN, 3)).version(9).get();
        giver.push("deleted", Spec::bytes(LEN, 4)).get();
        giver.delete("deleted").expect("it is the giver's");
        near.fetch("k").hold("old").get();
        let waiting = near.fetch("k").at_least(10).start();
        scene.a().until("a fetch waits", |s| s.sessions.iter().any(|s| s.operations == 1));
        if kill {
            scene.nodes[0].kill();
        } else {
            assert_eq!(scene.nodes[0].terminate().code(), Some(0));
        }
        let trouble = waiting.trouble();
        trouble.expect("SidecarGone", &["connect again"]);
        assert!(trouble.can_retry);
        scene.nodes[0].restart();
        // Workers come back by themselves: `giver` has made no call since the restart.
        scene.a().until("both are back", |s| s.sessions.len() == 2);
        assert_eq!(fetch(&mut near, "k"), (9, Spec::bytes(LEN, 3).sum()));
        assert_eq!(fetch(&mut giver, "k"), (9, Spec::bytes(LEN, 3).sum()));
        assert_eq!(near.fetch("k").exactly(5).get().sum, Spec::bytes(LEN, 1).sum());
        near.fetch("k").exactly(6).trouble().expect("VersionGone", &["v6"]);
        near.fetch("deleted").timeout(Duration::from_secs(2)).trouble().expect("UnknownKey", &["deleted"]);
        let got = poll(|| far.fetch("k").start().wait().map_err(|t| t.to_string()));
        assert_eq!(got.map(|g| (g.version, g.sum)), Ok((9, Spec::bytes(LEN, 3).sum())));
        assert_eq!(near.read("old"), Spec::bytes(LEN, 3).sum());
        // Its arena is mapped read-only from now on. An RDMA device does not read such memory before Linux 6.2.
        let pushed = poll(|| giver.push("p", Spec::bytes(LEN, 6)).to("far").start().wait().map_err(|t| t.to_string()));
        pushed.expect("it is pushed to the other node");
        assert_eq!(far.fetch("p").get().sum, Spec::bytes(LEN, 6).sum());
        giver.push("k", Spec::bytes(LEN, 5)).version(10).get();
        assert_eq!(near.fetch("k").get().version, 10);
        drop((giver, near, far));
        for node in [0, 1] {
            scene.nodes[node].until("all have left", |s| s.sessions.is_empty());
            scene.note_idle_of(node);
        }
        scene.end();
    }
}

/// A version that a reader fetched before the restart stays as it is, also when the version is replaced afterwards. The
/// new sidecar knows nothing of that reader, but the kernel does.
// Promise: dead-sidecar, seen to fail
#[test]
fn memory_read_across_a_restart_is_not_reused() {
    let mut scene = Scene::one();
    let mut giver = Worker::of(scene.a(), "giver").arena_bytes(4 * LEN).that_comes_back().start();
    let mut reader = back(scene.a(), "reader");
    giver.push("k", Spec::bytes(LEN, 1)).get();
    reader.fetch("k").hold("old").get();
    // A stopped reader cannot come back, and so cannot tell the new sidecar what it reads.
    reader.freeze();
    scene.nodes[0].kill();
    scene.nodes[0].restart();
    scene.a().until("the giver is back", |s| s.sessions.len() == 1);
    for version in 2..50 {
        let seed = version;
        once_back(|| giver.push("k", Spec::bytes(LEN, seed)).start().wait());
    }
    assert!(giver.arena_free() <= 2 * LEN, "one version is the newest, one is still being read");
    reader.go_on();
    assert_eq!(reader.read("old"), Spec::bytes(LEN, 1).sum());
    reader.release("old");
    reader.kill();
    let freed = poll(|| match giver.arena_free() {
        free if free >= 3 * LEN => Ok(()),
        free => Err(free),
    });
    assert_eq!(freed, Ok(()), "with its last reader it is free");
    drop(giver);
    scene.a().until("all have left", |s| s.sessions.is_empty());
    scene.note_idle_of(0);
    scene.end();
}

/// The sidecar is restarted again while the worker is still coming back.
#[test]
fn restarts_in_a_row_lose_nothing() {
    let mut scene = Scene::one();
    let mut giver = back(scene.a(), "giver");
    for key in 0..20 {
        giver.push(&format!("k{key}"), Spec::bytes(1000, key)).get();
    }
    for _ in 0..5 {
        scene.nodes[0].kill();
        scene.nodes[0].restart();
    }
    let mut taker = back(scene.a(), "taker");
    for key in 0..20 {
        assert_eq!(taker.fetch(&format!("k{key}")).get().sum, Spec::bytes(1000, key).sum());
    }
    drop((giver, taker));
    scene.a().until("all have left", |s| s.sessions.is_empty());
    scene.note_idle_of(0);
    scene.end();
}

/// A command that holds tensors or watches the sidecar reports that the sidecar is gone, instead of ending as if it had
/// succeeded.
#[test]
fn long_running_commands_report_that_the_sidecar_is_gone() {
    let mut scene = Scene::one();
    let file = scene.folder().join("data.log");
    std::fs::write(&file, "data").expect("written");
    let words = ["push", "k", file.to_str().expect("a path")];
    let mut push = Ctl::of(scene.a(), &words).hold();
    let mut watch = Ctl::of(scene.a(), &["watch", "sessions", "--every", "50ms"]).hold_until("1 worker");
    let mut events = Ctl::of(scene.a(), &["events", "--after", "0"]).hold_until("session opened");
    scene.nodes[0].kill();
    push.complains("is gone, and nothing is published until it is back");
    watch.complains("cannot reach a sidecar");
    assert_eq!(events.ended(), Some(3));
    events.complains("is gone, or the connection to it broke");
    scene.nodes[0].restart();
    push.complains("is back, and all is published again");
    Ctl::of(scene.a(), &["fetch", "k", "-"]).ends(0, &["data"]);
    let worker = scene.a().worker("newcomer");
    watch.until("newcomer");
    drop(worker);
    assert_eq!(watch.interrupt(), None);

    // A drain also ends a push that would have ended by its time limit.
    let mut timed = Ctl::of(scene.a(), &["push", "l", words[2], "--hold", "5s"]).hold_until("\"l\" version 1");
    Ctl::of(scene.a(), &["drain", "--deadline", "10s"]).ends(0, &["finished"]);
    assert_eq!(timed.ended(), Some(3));
    timed.complains("nothing of it is published any more");
    push.complains("is gone, and nothing is published until it is back");
    assert_eq!(push.interrupt(), Some(3));
}
