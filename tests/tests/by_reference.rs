//! Two workers of one sidecar exchange a tensor by reference: the reader reads the memory that the writer wrote.

use transfer_proto::v1::Fabric;
use transfer_tests::status::finished;
use transfer_tests::{PushMode, Scene, Spec, Worker};

// Promise: no-copy-on-a-node, seen to fail
#[test]
fn the_reader_reads_the_memory_that_the_writer_wrote() {
    let scene = Scene::one();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.a().worker("taker"));
    for (way, key) in [(PushMode::Owned, "owned"), (PushMode::Frozen, "frozen")] {
        let spec = Spec::bytes(1 << 20, 5);
        let pushed = giver.push(key, spec.clone()).way(way).get();
        let fetched = taker.fetch(key).get();
        assert_eq!(fetched.sum, spec.sum());
        let (written, read) = (pushed.place.expect("in the arena"), fetched.place.expect("in a mapping"));
        assert_eq!((written.inode, written.offset), (read.inode, read.offset), "other memory");
        assert!(written.writable && !read.writable, "the reader could write");
        for report in [&pushed.report, &fetched.report] {
            assert_eq!((report.fabric.as_str(), report.copied, report.bytes), ("local", 0, 1 << 20));
        }
    }
    drop((giver, taker));
    scene.end();
}

/// A fetch by reference grows neither the landing pool, nor pinned memory, nor the reader's private memory by the size
/// of the tensor.
#[test]
fn fetch_by_reference_allocates_no_tensor_memory() {
    let scene = Scene::one();
    let mut giver = Worker::of(scene.a(), "giver").arena_bytes(80 << 20).start();
    let mut taker = Worker::of(scene.a(), "taker").arena_bytes(1 << 20).start();
    giver.push("small", Spec::bytes(64, 1)).get();
    taker.fetch("small").get();
    let before = scene.a().status();
    let own = private_bytes(&taker);
    giver.push("large", Spec::bytes(64 << 20, 2)).get();
    for i in 0..4 {
        let fetched = taker.fetch("large").hold(&i.to_string()).get();
        assert_eq!(fetched.report.copied, 0);
    }
    let after = scene.a().status();
    assert_eq!(before.pinned_bytes, after.pinned_bytes);
    assert_eq!(after.pools.iter().map(|p| p.used_bytes).sum::<u64>(), 0);
    let counters = after.counters.as_ref().expect("counters");
    assert_eq!((counters.leases, counters.blobs), (4, 2), "four leases of one range");
    let grown = private_bytes(&taker).saturating_sub(own);
    assert!(grown < 16 << 20, "the reader has {grown} bytes more of its own for a tensor of 64 MiB");
    let path = finished(&after, Fabric::Local);
    assert_eq!((path.copied_bytes, finished(&after, Fabric::Tcp).transfers), (0, 0));
    assert!(path.transfers >= 5, "{path:?}");
    drop((giver, taker));
    scene.end();
}

/// Returns the private memory of a worker's process, in bytes.
fn private_bytes(worker: &Worker) -> u64 {
    let path = format!("/proc/{}/smaps_rollup", worker.process_id());
    let text = std::fs::read_to_string(path).expect("the kernel tells what a process has");
    let kib = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    text.lines().filter(|l| l.starts_with("Private_")).filter_map(kib).sum::<u64>() << 10
}

/// A version stays while a worker reads it and newer versions are published. Afterwards its memory returns to the
/// writer.
// Promise: immutable-versions, seen to fail
#[test]
fn a_reader_keeps_its_version_while_newer_ones_come() {
    let scene = Scene::one();
    let mut giver = Worker::of(scene.a(), "giver").arena_bytes(4 << 20).start();
    let mut taker = scene.a().worker("taker");
    let free = giver.arena_free();
    giver.push("w", Spec::bytes(1 << 20, 1)).get();
    taker.fetch("w").hold("first").get();
    for version in 2..=20 {
        // There is room for three versions at most, so the memory of versions without a reader has to return.
        giver.push("w", Spec::bytes(1 << 20, version)).get();
        assert_eq!(taker.fetch("w").get().version, version);
        assert_eq!(taker.read("first"), Spec::bytes(1 << 20, 1).sum());
    }
    scene.a().until("two are held", |s| s.counters.as_ref().is_some_and(|c| c.blobs == 2));
    taker.release("first");
    giver.delete("w").expect("it is its own");
    scene.a().until("nothing is held", |s| s.counters.as_ref().is_some_and(|c| c.blobs == 0));
    let got = transfer_tests::poll(|| match giver.arena_free() {
        bytes if bytes == free => Ok(()),
        bytes => Err(bytes),
    });
    assert_eq!(got, Ok(()), "of {free} bytes");
    drop((giver, taker));
    scene.end();
}

/// Copies are counted: a socket's copies on both sides between nodes, and the copy of memory that lies outside the
/// arena.
// Promise: reports, seen to fail
#[test]
fn copies_are_counted() {
    let scene = Scene::two();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let len = 1 << 20;
    let pushed = giver.push("foreign", Spec::bytes(len, 1)).way(PushMode::Foreign).get();
    assert_eq!((pushed.report.copied, pushed.place), (len, None));
    let fetched = taker.fetch("foreign").get();
    assert_eq!(fetched.report.fabric, "tcp");
    // The bytes are copied into the socket and out of it, and at most once more if they arrived together with a header.
    assert!((2 * len..=3 * len).contains(&fetched.report.copied), "{}", fetched.report.text);
    let place = fetched.place.expect("in a landing segment");
    assert!(!place.writable, "the reader could write");
    let there = finished(&scene.b().status(), Fabric::Tcp);
    assert_eq!((there.transfers, there.bytes, there.copied_bytes), (1, len, fetched.report.copied));
    drop((giver, taker));
    scene.end();
}
