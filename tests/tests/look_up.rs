//! Fetches of versions that are published on the same host: the client looks them up in shared memory without a
//! request, as safely as with one.

use std::collections::BTreeMap;
use std::time::Duration;
use transfer_tests::calls::update_and_watch;
use transfer_tests::http::get;
use transfer_tests::order::{Answer, FetchOrder, InPlace, Order, Select, UpdateOrder};
use transfer_tests::status::Seen;
use transfer_tests::{Scene, Sidecar, Spec, Worker, poll};

const LEN: u64 = 1 << 20;

fn metrics(sidecar: &Sidecar) -> BTreeMap<String, f64> {
    let body = get(&sidecar.http(), "/metrics").body;
    let samples = body.lines().filter_map(|line| line.rsplit_once(' '));
    samples.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect()
}

/// Waits until a metric of the sidecar has the given value.
fn until(sidecar: &Sidecar, name: &str, value: f64) {
    let seen = poll(|| match metrics(sidecar).get(name) {
        Some(found) if *found == value => Ok(()),
        found => Err(found.copied()),
    });
    assert_eq!(seen, Ok(()), "{name} is to be {value}");
}

fn blobs(n: u64) -> impl Fn(&Seen) -> bool {
    move |s| s.counters.as_ref().is_some_and(|c| c.blobs == n)
}

// Promise: lookups-without-requests, seen to fail
#[test]
fn repeated_fetches_are_served_by_the_board_alone() {
    let scene = Scene::with(&[&["--http-listen", "127.0.0.1:0"]]);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.a().worker("taker"));
    giver.push("k", Spec::bytes(LEN, 1)).get();
    // The first fetch sends a request, by which the sidecar learns that the key is wanted.
    taker.fetch("k").get();
    until(scene.a(), "transfer_board_versions", 1.0);
    // A push, a fetch, and the end of its lease.
    until(scene.a(), "transfer_ring_submissions_total", 3.0);
    for _ in 0..100 {
        let found = taker.fetch("k").get();
        assert_eq!((found.sum, found.version), (Spec::bytes(LEN, 1).sum(), 1));
        assert_eq!((found.report.fabric.as_str(), found.report.copied, found.report.bytes), ("local", 0, LEN));
        assert!(!found.place.expect("in a mapping").writable);
    }
    until(scene.a(), "transfer_board_hits_total", 100.0);
    assert_eq!(metrics(scene.a())["transfer_ring_submissions_total"], 3.0, "somebody was asked");
    assert_eq!(metrics(scene.a())["transfer_board_bytes_total"], 100.0 * LEN as f64);
    drop((giver, taker));
    scene.end();
}

// Promise: board-lookups, seen to fail
#[test]
fn a_push_that_is_done_is_found_at_once_and_a_deleted_key_is_not() {
    let scene = Scene::one();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.a().worker("taker"));
    for version in 1..=300 {
        giver.push("k", Spec::bytes(1000, version)).get();
        let select = [Select::Latest, Select::AtLeast(version), Select::Exactly(version)][version as usize % 3];
        let order = FetchOrder { key: "k".into(), select, timeout: Duration::from_secs(30), require: None, hold: None };
        let found = taker.order(Order::Fetch(order), |a| if let Answer::Fetched(f) = a { Some(f) } else { None }).get();
        assert_eq!((found.version, found.sum), (version, Spec::bytes(1000, version).sum()));
    }
    giver.delete("k").expect("it is its own");
    // The key is deleted, also on the board.
    let trouble = taker.fetch("k").timeout(Duration::from_secs(2)).trouble();
    assert!(["UnknownKey", "Deadline"].contains(&trouble.kind.as_str()), "{trouble}");
    drop((giver, taker));
    scene.end();
}

/// The writer reuses the memory of a version as soon as no hazard pointer names it. Readers check every element twice.
// Promise: board-lookups, seen to fail
#[test]
fn version_from_the_board_is_never_torn() {
    const LAST: u64 = 5000;
    let scene = Scene::with(&[&["--http-listen", "127.0.0.1:0"]]);
    let mut writer = Worker::of(scene.a(), "writer").arena_bytes(1 << 20).start();
    let mut readers = [scene.a().worker("one"), scene.a().worker("two")];
    let order = UpdateOrder { key: "weights".into(), way: InPlace::Snapshot, len: 2000, last: LAST };
    for seen in update_and_watch(&mut writer, &mut readers, &order) {
        assert!(seen > 0);
    }
    // At least one version came from the board. A version that was fetched by a request could not have been torn.
    let hits = || metrics(scene.a()).get("transfer_board_hits_total").copied().filter(|hits| *hits > 0.0).ok_or(());
    assert!(poll(hits).is_ok(), "nobody has found anything on the board");
    // Memory without a reader is free again.
    scene.a().until("only the newest is there", blobs(1));
    drop((writer, readers));
    scene.end();
}

// Promise: killed-worker, seen to fail
#[test]
fn killed_reader_holds_no_version() {
    let scene = Scene::one();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.a().worker("taker"));
    giver.push("k", Spec::bytes(LEN, 1)).get();
    taker.fetch("k").get();
    taker.fetch("k").hold("one").get();
    taker.fetch("k").hold("two").get();
    scene.a().until("both are counted", |s| s.sessions.iter().any(|s| s.worker == "taker" && s.leases == 2));
    giver.push("k", Spec::bytes(LEN, 2)).get();
    taker.release("one");
    assert!(blobs(2)(&scene.a().status()), "the other one is still being read");
    taker.kill();
    scene.a().until("its memory is back", blobs(1));
    drop(giver);
    scene.end();
}

/// A stopped reader keeps the version that it reads, and no other.
// Promise: stopped-worker, seen to fail
#[test]
fn a_reader_that_is_stopped_keeps_one_version() {
    let scene = Scene::one();
    let mut giver = Worker::of(scene.a(), "giver").arena_bytes(4 * LEN).start();
    let mut taker = scene.a().worker("taker");
    giver.push("k", Spec::bytes(LEN, 1)).get();
    taker.fetch("k").get();
    taker.fetch("k").hold("old").get();
    taker.freeze();
    for version in 2..=50 {
        giver.push("k", Spec::bytes(LEN, version)).get();
    }
    scene.a().until("the newest is held, and the one that is read", blobs(2));
    taker.go_on();
    assert_eq!(taker.read("old"), Spec::bytes(LEN, 1).sum());
    taker.release("old");
    scene.a().until("its memory is back", blobs(1));
    drop((giver, taker));
    scene.end();
}

/// The last entries of a board are not taken for published versions once its sidecar is gone.
// Promise: board-lookups, seen to fail
#[test]
fn board_of_a_dead_sidecar_serves_no_version() {
    let mut scene = Scene::one();
    let mut giver = Worker::of(scene.a(), "giver").that_comes_back().start();
    let mut taker = scene.a().worker("taker");
    giver.push("k", Spec::bytes(LEN, 1)).get();
    taker.fetch("k").get();
    taker.fetch("k").hold("old").get();
    scene.nodes[0].kill();
    taker.fetch("k").trouble().expect("SidecarGone", &[]);
    assert_eq!(taker.read("old"), Spec::bytes(LEN, 1).sum());
    scene.nodes[0].restart();
    scene.a().until("the giver is back", |s| s.sessions.len() == 1);
    let pushed = poll(|| giver.push("k", Spec::bytes(LEN, 2)).start().wait().map_err(|t| t.to_string()));
    pushed.expect("it has a sidecar again");
    taker.fetch("k").trouble().expect("SidecarGone", &[]);
    drop((giver, taker));
    scene.a().until("all have left", |s| s.sessions.is_empty());
    scene.note_idle_of(0);
    scene.end();
}

#[test]
fn fetches_without_a_board_all_ask_the_sidecar() {
    let scene = Scene::with(&[&["--http-listen", "127.0.0.1:0", "--board-entries", "0"]]);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.a().worker("taker"));
    giver.push("k", Spec::bytes(LEN, 1)).get();
    for _ in 0..5 {
        assert_eq!(taker.fetch("k").get().sum, Spec::bytes(LEN, 1).sum());
    }
    // One push, and for each of five fetches the fetch and the end of its lease.
    until(scene.a(), "transfer_ring_submissions_total", 11.0);
    assert_eq!(metrics(scene.a())["transfer_board_hits_total"], 0.0);
    drop((giver, taker));
    scene.end();
}
