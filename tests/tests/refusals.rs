//! Requests that cannot be fulfilled, and their errors. Each error names the item, its value, and the party that has
//! to act.

use std::time::Duration;
use transfer_tests::{Scene, Spec, Worker};

const SOON: Duration = Duration::from_secs(2);

fn scenes() -> [Scene; 2] {
    [Scene::one().with_bystanders(), Scene::two().with_bystanders()]
}

fn small(seed: u64) -> Spec {
    Spec::bytes(1000, seed)
}

#[test]
fn unpublished_key_is_unknown_key() {
    for mut scene in scenes() {
        let mut taker = scene.b().worker("taker");
        let trouble = taker.fetch("nowhere").timeout(SOON).trouble();
        trouble.expect("UnknownKey", &["\"nowhere\"", "nobody", "2s"]);
        assert!(trouble.can_retry && trouble.fault == "Nobody", "{trouble}");
        let trouble = taker.fetch("nowhere").timeout(Duration::ZERO).trouble();
        trouble.expect("UnknownKey", &["\"nowhere\""]);
        scene.others_go_on();
        drop(taker);
        scene.end();
    }
}

#[test]
fn missing_version_times_out_or_is_gone() {
    for mut scene in scenes() {
        let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
        giver.push("w", small(3)).version(3).get();
        let trouble = taker.fetch("w").at_least(4).timeout(SOON).trouble();
        trouble.expect("Deadline", &["\"w\"", "4", "2s"]);
        assert!(trouble.can_retry, "{trouble}");
        taker.fetch("w").exactly(5).timeout(SOON).trouble().expect("Deadline", &["\"w\"", "5"]);
        // A version that was replaced.
        let trouble = taker.fetch("w").exactly(2).trouble();
        trouble.expect("VersionGone", &["\"w\"", "2", "3"]);
        assert!(!trouble.can_retry && trouble.fault == "Caller", "{trouble}");
        // A version that is skipped while a fetch waits for it.
        let skipped = taker.fetch("w").exactly(8).start();
        scene.b().until("it waits", |s| transfer_tests::status::operations_of(s, "taker") == 1);
        giver.push("w", small(9)).version(9).get();
        skipped.trouble().expect("VersionGone", &["\"w\"", "8", "9"]);
        scene.others_go_on();
        drop((giver, taker));
        scene.end();
    }
}

// Promise: rising-versions, seen to fail
#[test]
fn non_rising_version_is_refused() {
    for mut scene in scenes() {
        let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
        giver.push("w", small(5)).version(5).to("taker").get();
        for version in [5, 4, 0] {
            let trouble = giver.push("w", small(1)).version(version).to("taker").trouble();
            trouble.expect("VersionNotRising", &["\"w\"", "5", &version.to_string()]);
            assert!(!trouble.can_retry, "{trouble}");
        }
        assert_eq!(taker.fetch("w").get().sum, small(5).sum(), "what was published stays");
        giver.push("w", small(6)).version(6).to("taker").get();
        assert_eq!(taker.fetch("w").get().sum, small(6).sum());
        scene.others_go_on();
        drop((giver, taker));
        scene.end();
    }
}

#[test]
fn keys_of_512_bytes_pass_and_513_are_refused() {
    for mut scene in scenes() {
        let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
        // Each `ü` has two bytes in UTF-8.
        let longest = "ü".repeat(256);
        giver.push(&longest, small(1)).get();
        assert_eq!(taker.fetch(&longest).get().sum, small(1).sum());
        let to = "y".repeat(512);
        giver.push(&to, small(2)).to("taker").get();
        assert_eq!(taker.fetch(&to).get().sum, small(2).sum());
        let tensors = scene.a().admin().tensors("ü").expect("tensors");
        assert_eq!(tensors.iter().map(|t| t.key.len()).collect::<Vec<_>>(), [512]);
        let long = "k".repeat(513);
        for trouble in [giver.push(&long, small(1)).trouble(), taker.fetch(&long).trouble()] {
            trouble.expect("Name", &["512", "513", "kkk"]);
            assert!(!trouble.can_retry && trouble.fault == "Caller", "{trouble}");
        }
        taker.fetch("").trouble().expect("Name", &["at least 1 byte"]);
        giver.push("w", small(1)).to(&long).trouble().expect("Name", &["512", "513"]);
        scene.others_go_on();
        drop((giver, taker));
        scene.end();
    }
}

// Promise: one-owner, seen to fail
#[test]
fn foreign_key_is_refused_until_its_owner_deletes_it() {
    for mut scene in scenes() {
        let (mut owner, mut other) = (scene.a().worker("owner"), scene.b().worker("other"));
        owner.push("w", small(1)).get();
        let node = scene.a().name().to_owned();
        let words = ["\"w\"", "\"owner\"", &format!("node \"{node}\"")];
        let trouble = other.push("w", small(2)).trouble();
        trouble.expect("KeyOwned", &words);
        assert!(!trouble.can_retry && trouble.fault == "Caller", "{trouble}");
        assert_eq!(other.fetch("w").get().sum, small(1).sum());
        other.delete("w").expect_err("it is not its own").expect("NotOwner", &["\"w\""]);
        // A key that landed at another worker belongs to its pusher, too.
        owner.push("x", small(3)).to("other").get();
        other.push("x", small(4)).trouble().expect("KeyOwned", &["\"x\"", "\"owner\""]);
        // The key is free once its owner deletes it.
        owner.delete("w").expect("it is its own");
        let took = transfer_tests::poll(|| other.push("w", small(5)).start().wait());
        took.expect("the key is free");
        assert_eq!(owner.fetch("w").at_least(0).get().sum, small(5).sum());
        scene.others_go_on();
        drop((owner, other));
        scene.end();
    }
}

#[test]
fn unknown_worker_is_refused_until_it_connects() {
    for mut scene in scenes() {
        let mut giver = scene.a().worker("giver");
        let free = giver.arena_free();
        let trouble = giver.push("w", small(1)).to("nobody").trouble();
        trouble.expect("UnknownWorker", &["\"nobody\""]);
        assert!(trouble.can_retry, "{trouble}");
        assert_eq!(giver.arena_free(), free, "the tensor is its owner's again, who dropped it");
        // The worker may connect later.
        let mut late = scene.b().worker("nobody");
        giver.push("w", small(1)).to("nobody").get();
        assert_eq!(late.fetch("w").get().sum, small(1).sum());
        // The worker may leave again.
        assert!(late.close().success());
        scene.b().until("it is gone", |s| s.sessions.iter().all(|s| s.worker != "nobody"));
        scene.a().until("the directory knows", |s| {
            let here = s.sessions.len() as u64;
            s.directory.as_ref().is_some_and(|d| d.workers == here + u64::from(scene.nodes.len() == 2))
        });
        if scene.nodes.len() == 2 {
            giver.push("w", small(2)).to("nobody").trouble().expect("UnknownWorker", &["\"nobody\""]);
        }
        scene.others_go_on();
        drop(giver);
        scene.end();
    }
}

#[test]
fn taken_worker_name_is_refused() {
    for mut scene in scenes() {
        let first = scene.a().worker("twin");
        let trouble = Worker::of(scene.a(), "twin").try_start().expect_err("the name is taken");
        trouble.expect("Connect", &["twin", "name"]);
        assert!(trouble.can_retry, "{trouble}");
        if scene.nodes.len() == 2 {
            let trouble = Worker::of(scene.b(), "twin").try_start().expect_err("the name is taken elsewhere");
            trouble.expect("Connect", &["twin", "node a"]);
        }
        scene.others_go_on();
        assert!(first.close().success());
        let second = transfer_tests::poll(|| Worker::of(scene.b(), "twin").try_start());
        drop(second.expect("the name is free"));
        scene.end();
    }
}

#[test]
fn arena_beyond_the_limits_is_refused() {
    let arguments = ["--pool-bytes", "1MiB", "--pinned-limit", "64MiB", "--max-arena-bytes", "32MiB"];
    let scene = Scene::with(&[&arguments]).with_bystanders();
    let start = |name, bytes| Worker::of(scene.a(), name).arena_bytes(bytes).try_start();
    let trouble = start("greedy", 33 << 20).expect_err("it is too much for one");
    trouble.expect("Connect", &["33 MiB", "32 MiB at most (--max-arena-bytes)"]);
    assert!(!trouble.can_retry, "{trouble}");
    let one = start("one", 32 << 20).expect("there is room");
    let trouble = start("two", 32 << 20).expect_err("there is no room for another");
    trouble.expect("Connect", &["pinned memory", &(64 << 20).to_string()]);
    assert!(trouble.can_retry, "{trouble}");
    drop(one);
    let two = transfer_tests::poll(|| start("two", 32 << 20));
    drop(two.expect("there is room again"));
    scene.end();
}

#[test]
fn next_worker_gets_the_arena_of_one_that_has_ended() {
    // To unmap an arena takes a while. The next worker waits for that, and is not refused.
    let arena = 512 << 20;
    let scene = Scene::with(&[&["--pool-bytes", "1MiB", "--pinned-limit", "600MiB"]]).with_bystanders();
    for n in 0..3 {
        let worker = Worker::of(scene.a(), "trainer").arena_bytes(arena).try_start();
        let mut worker = worker.expect("there is room");
        // It ends while it reads its own version. Its name is free before its arena is.
        worker.push("w", small(n)).get();
        worker.fetch("w").hold("w").get();
        worker.kill();
    }
    scene.end();
}
