//! Two sidecars on one host whose workers read each other's memory: a fetch hands over the owner's memory without a
//! copy. Whichever process dies, memory is not overwritten while it is read, and all of it is freed in the end.

use std::time::{Duration, Instant};
use transfer_proto::v1::Fabric;
use transfer_tests::order::Report;
use transfer_tests::{Scene, Spec, Worker, poll, status};

const LEN: u64 = 3 << 20;

/// The size of an arena with room for six tensors.
const ARENA: u64 = 6 * LEN;

const LISTEN: [&str; 4] = ["--listen", "127.0.0.1:0", "--verbs", "off"];

fn two() -> Scene {
    Scene::exactly(&[&LISTEN, &LISTEN])
}

/// Starts a worker whose arena is soon full.
fn giver(scene: &Scene, node: usize) -> Worker {
    Worker::of(&scene.nodes[node], "giver").arena_bytes(ARENA).start()
}

#[track_caller]
fn by_reference(report: &Report) {
    assert_eq!((report.fabric.as_str(), report.copied), ("shm", 0), "{}", report.text);
}

#[track_caller]
fn by_copy(report: &Report) {
    let copies = report.bytes..=report.bytes + 512;
    assert!(report.fabric == "shm" && copies.contains(&report.copied), "{}", report.text);
}

/// Waits until the arena holds only the newest version and the small tensor that this function pushes. A worker learns
/// of returned ranges in its next call, and a reader of what it can unmap in a call of its own, which is `read`.
#[track_caller]
fn until_free(giver: &mut Worker, mut read: impl FnMut()) {
    let freed = poll(|| {
        read();
        giver.push("small", Spec::bytes(64, 1)).get();
        match giver.arena_free() {
            free if free >= ARENA - LEN - 4096 => Ok(()),
            free => Err(free),
        }
    });
    assert_eq!(freed, Ok(()), "what nobody reads any more does not come back");
}

// Promise: references, seen to fail
#[test]
fn fetch_reads_the_owners_memory() {
    let scene = two();
    let (mut giver, mut taker) = (giver(&scene, 0), scene.b().worker("taker"));
    for (version, len) in [(1, 1), (2, 4096), (3, LEN), (4, 64), (5, LEN / 2)] {
        let spec = Spec::bytes(len, version);
        giver.push("w", spec.clone()).get();
        let fetched = taker.fetch("w").at_least(version).get();
        assert_eq!(fetched.sum, spec.sum());
        by_reference(&fetched.report);
    }
    // A fetch that comes before its push, and requires shm, reads the owner's memory, too.
    let early = taker.fetch("early").require("shm").start();
    giver.push("early", Spec::bytes(5000, 9)).get();
    let fetched = early.get();
    assert_eq!(fetched.sum, Spec::bytes(5000, 9).sum());
    by_reference(&fetched.report);
    let there = status::finished(&scene.b().status(), Fabric::Shm);
    assert_eq!((there.transfers, there.copied_bytes), (6, 0));
    drop((giver, taker));
    scene.end();
}

/// A reader keeps its version while newer ones are published and the owner's arena is reused.
#[test]
fn held_version_survives_newer_versions() {
    let scene = two();
    let (mut giver, mut taker) = (giver(&scene, 0), scene.b().worker("taker"));
    giver.push("w", Spec::bytes(LEN, 1)).get();
    by_reference(&taker.fetch("w").hold("old").get().report);
    for version in 2..20 {
        giver.push("w", Spec::bytes(LEN, version)).get();
        let fetched = taker.fetch("w").at_least(version).get();
        assert_eq!((fetched.version, fetched.sum), (version, Spec::bytes(LEN, version).sum()));
        by_reference(&fetched.report);
    }
    assert_eq!(taker.read("old"), Spec::bytes(LEN, 1).sum());
    assert!(giver.arena_free() < ARENA - LEN, "one is the newest, one is being read");
    taker.release("old");
    until_free(&mut giver, || ());
    drop((giver, taker));
    scene.end();
}

/// The reader's sidecar, which holds the memory for its worker, is killed and restarted. The worker reads on, and the
/// memory is not overwritten until it is done.
// Promise: referenced-versions, seen to fail
#[test]
fn reader_survives_its_killed_sidecar() {
    let mut scene = two();
    let mut giver = giver(&scene, 0);
    for killed in [false, true] {
        let mut taker = scene.b().worker("taker");
        let first = giver.push("w", Spec::bytes(LEN, 1)).get().version;
        by_reference(&taker.fetch("w").hold("old").get().report);
        scene.nodes[1].kill();
        scene.nodes[1].restart();
        let mut next = scene.b().worker("next");
        // The owner's sidecar has checked for readers more than once by then.
        let looked = Instant::now() + Duration::from_millis(500);
        for version in first + 1.. {
            giver.push("w", Spec::bytes(LEN, version)).get();
            by_reference(&next.fetch("w").at_least(version).get().report);
            assert!(giver.arena_free() <= ARENA - 2 * LEN, "one is the newest, one is being read");
            if version > first + 20 && Instant::now() > looked {
                break;
            }
        }
        assert_eq!(taker.read("old"), Spec::bytes(LEN, 1).sum());
        if killed {
            taker.kill();
        } else {
            taker.release("old");
            drop(taker);
        }
        until_free(&mut giver, || ());
        drop(next);
        scene.b().until("all have left", |s| s.sessions.is_empty());
    }
    drop(giver);
    scene.note_idle_of(1);
    scene.end();
}

/// The owner's sidecar is killed, and its worker continues with a new one. Memory that others read is not overwritten.
// Promise: referenced-versions, seen to fail
#[test]
fn read_memory_of_a_restarted_owner_is_not_reused() {
    let mut scene = two();
    let mut giver = Worker::of(scene.b(), "giver").arena_bytes(ARENA).that_comes_back().start();
    let mut taker = scene.a().worker("taker");
    giver.push("w", Spec::bytes(LEN, 1)).get();
    by_reference(&taker.fetch("w").hold("old").get().report);
    scene.nodes[1].kill();
    scene.nodes[1].restart();
    scene.b().until("the giver is back", |s| s.sessions.len() == 1);
    for version in 2..20 {
        let pushed = poll(|| giver.push("w", Spec::bytes(LEN, version)).start().wait().map_err(|t| t.to_string()));
        assert!(pushed.is_ok(), "{pushed:?}");
    }
    assert!(giver.arena_free() <= ARENA - 2 * LEN, "one is the newest, one is being read");
    assert_eq!(taker.read("old"), Spec::bytes(LEN, 1).sum());
    taker.release("old");
    until_free(&mut giver, || drop(taker.fetch("w").get()));
    drop((giver, taker));
    scene.b().until("all have left", |s| s.sessions.is_empty());
    scene.note_idle_of(1);
    scene.end();
}

/// The worker that owns the memory dies or leaves. Its readers read on, and the memory is freed with the last of them.
#[test]
fn memory_of_a_dead_owner_stays_for_its_readers() {
    let scene = two();
    let mut taker = scene.b().worker("taker");
    for killed in [false, true] {
        let mut giver = giver(&scene, 0);
        giver.push("w", Spec::bytes(LEN, 1)).get();
        by_reference(&taker.fetch("w").hold("old").get().report);
        if killed {
            giver.kill();
        } else {
            drop(giver);
        }
        scene.a().until("it has left", |s| s.sessions.is_empty());
        assert_eq!(taker.read("old"), Spec::bytes(LEN, 1).sum());
        taker.release("old");
    }
    drop(taker);
    scene.end();
}

/// A reader that is killed releases all tensors that it held.
// Promise: referenced-versions, seen to fail
#[test]
fn killed_reader_releases_its_references() {
    let scene = two();
    let mut giver = giver(&scene, 0);
    let mut taker = scene.b().worker("taker");
    giver.push("w", Spec::bytes(LEN, 1)).get();
    for name in ["one", "two", "three"] {
        by_reference(&taker.fetch("w").hold(name).get().report);
    }
    giver.push("w", Spec::bytes(LEN, 2)).get();
    assert!(giver.arena_free() <= ARENA - 2 * LEN);
    taker.kill();
    until_free(&mut giver, || ());
    drop(giver);
    scene.end();
}

/// The receiver copies if either sidecar has `--shm-reference off`.
// Promise: references, seen to fail
#[test]
fn receiver_copies_if_references_are_off() {
    let off = [&LISTEN[..], &["--shm-reference", "off"]].concat();
    for arguments in [[&LISTEN[..], &off[..]], [&off[..], &LISTEN[..]]] {
        let scene = Scene::exactly(&arguments);
        let (mut giver, mut taker) = (giver(&scene, 0), scene.b().worker("taker"));
        giver.push("w", Spec::bytes(LEN, 1)).get();
        let fetched = taker.fetch("w").get();
        assert_eq!(fetched.sum, Spec::bytes(LEN, 1).sum());
        by_copy(&fetched.report);
        drop((giver, taker));
        scene.end();
    }
}
