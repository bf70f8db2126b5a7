//! Full landing pools: a call that needs room waits, gets an error at its deadline, and gets room when there is some.

use std::time::Duration;
use transfer_tests::{Scene, Spec, Trouble, WAIT_LIMIT};

const LEN: u64 = 3 << 20;
const SOON: Duration = Duration::from_millis(300);

fn scene() -> Scene {
    Scene::two_with(&["--pool-bytes", "8MiB"]).with_bystanders()
}

/// Returns the error of a call that gets no room. The call needs time to ask for room: with less, it would fail with
/// `Deadline` and not say why.
fn told(mut call: impl FnMut(Duration) -> Trouble) -> Trouble {
    let mut timeout = SOON;
    loop {
        let trouble = call(timeout);
        if trouble.kind != "Deadline" || timeout > WAIT_LIMIT / 4 {
            return trouble;
        }
        timeout *= 2;
    }
}

// Promise: full-pools, seen to fail
#[test]
fn fetches_wait_for_room() {
    let mut scene = scene();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let keys = ["one", "two", "three", "four"];
    for (key, seed) in keys.into_iter().zip(1..) {
        giver.push(key, Spec::bytes(LEN, seed)).get();
    }
    taker.fetch("one").hold("one").get();
    taker.fetch("two").hold("two").get();
    let used = scene.b().status().pools[0].used_bytes;
    assert!(used > 2 * LEN, "{used}");
    // The fetch waits, and its error at the deadline names the pool.
    let trouble = told(|timeout| taker.fetch("three").timeout(timeout).trouble());
    trouble.expect("PoolFull", &["\"three\"", "landing pool"]);
    assert!(trouble.can_retry, "{trouble}");
    let patient = ["three", "four"].map(|key| {
        let fetch = taker.fetch(key).timeout(WAIT_LIMIT).hold(key).start();
        let waiting = if key == "three" { 1 } else { 2 };
        scene.b().until("it waits for room", |s| s.pools[0].waiting == waiting);
        fetch
    });
    // Small tensors of other workers have room, and do not wait behind these fetches.
    scene.others_go_on();
    // Room for one tensor goes to the first fetch, and the second one continues to wait.
    for ((fetch, seed), held) in patient.into_iter().zip(3..).zip(["one", "two"]) {
        taker.release(held);
        assert_eq!(fetch.get().sum, Spec::bytes(LEN, seed).sum());
    }
    drop((giver, taker));
    scene.end();
}

#[test]
fn pushes_wait_for_room() {
    let mut scene = scene();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("held", Spec::bytes(2 * LEN, 1)).get();
    taker.fetch("held").hold("held").get();
    // A push needs two landing slots.
    let push = |seed| Spec::bytes(LEN / 2, seed);
    let trouble = told(|timeout| giver.push("w", push(1)).to("taker").timeout(timeout).trouble());
    trouble.expect("PoolFull", &["\"w\"", "\"taker\"", "pool"]);
    assert!(trouble.can_retry, "{trouble}");
    let patient = giver.push("w", push(2)).to("taker").timeout(WAIT_LIMIT).start();
    scene.b().until("it waits for room", |s| s.pools[0].waiting == 1);
    scene.others_go_on();
    taker.release("held");
    patient.get();
    assert_eq!(taker.fetch("w").get().sum, push(2).sum());
    drop((giver, taker));
    scene.end();
}

/// A push waits while both of its slots are being read, and continues when one of them is free again.
// Promise: fetch-after-push-to
#[test]
fn a_push_waits_for_its_readers() {
    let mut scene = scene();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    for version in 1..=2 {
        giver.push("w", Spec::bytes(LEN, version)).to("taker").get();
        taker.fetch("w").hold(&version.to_string()).get();
    }
    let third = Spec::bytes(LEN, 3);
    let trouble = told(|timeout| giver.push("w", third.clone()).to("taker").timeout(timeout).trouble());
    trouble.expect("PoolFull", &["\"w\"", "still being read"]);
    let patient = giver.push("w", Spec::bytes(LEN, 4)).to("taker").timeout(WAIT_LIMIT).start();
    scene.others_go_on();
    taker.release("1");
    if let Err(trouble) = patient.wait() {
        panic!("{trouble}: {:#?} {:#?}", scene.a().status(), scene.b().status());
    }
    assert_eq!(taker.fetch("w").get().sum, Spec::bytes(LEN, 4).sum());
    assert_eq!(taker.read("2"), Spec::bytes(LEN, 2).sum());
    drop((giver, taker));
    scene.end();
}

/// A waiter that gives up makes way for those behind it, without bystanders whose tensors come and go.
// Promise: full-pools, seen to fail
#[test]
fn expired_waiter_lets_the_next_one_through() {
    let scene = Scene::two_with(&["--pool-bytes", "8MiB"]);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("held", Spec::bytes(LEN, 1)).get();
    giver.push("large", Spec::bytes(2 * LEN, 2)).get();
    giver.push("small", Spec::bytes(LEN, 3)).get();
    taker.fetch("held").hold("held").get();
    let large = taker.fetch("large").timeout(SOON * 10).start();
    scene.b().until("the large one waits", |s| s.pools[0].waiting == 1);
    let small = taker.fetch("small").start();
    large.trouble().expect("PoolFull", &["\"large\""]);
    assert_eq!(small.get().sum, Spec::bytes(LEN, 3).sum(), "there was room for this one all the while");
    drop((giver, taker));
    scene.end();
}

// Promise: full-pools, seen to fail
#[test]
fn push_larger_than_the_pool_is_refused_and_a_fetch_is_not() {
    let mut scene = scene();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let mut near = scene.a().worker("near");
    let spec = Spec::bytes(9 << 20, 1);
    giver.push("w", spec.clone()).get();
    // It comes in buckets.
    assert_eq!(taker.fetch("w").get().sum, spec.sum());
    // The size does not matter on the pusher's node, where nothing has to land.
    assert_eq!(near.fetch("w").get().sum, spec.sum());
    // A push needs two slots.
    let half = Spec::bytes(5 << 20, 2);
    giver.push("x", half.clone()).to("taker").trouble().expect("TooLarge", &["\"x\"", "5242880", "8388608"]);
    giver.push("x", Spec::bytes(1 << 20, 3)).to("taker").get();
    assert_eq!(taker.fetch("x").get().sum, Spec::bytes(1 << 20, 3).sum(), "the key can be used all the same");
    // A key whose tensors become too large keeps its last version that was not.
    giver.push("x", half).to("taker").trouble().expect("TooLarge", &["\"x\""]);
    assert_eq!(taker.fetch("x").get().sum, Spec::bytes(1 << 20, 3).sum());
    scene.others_go_on();
    drop((giver, taker, near));
    scene.end();
}

/// A push of foreign memory waits for room in the worker's arena, and the error says how much is free.
#[test]
fn push_waits_for_room_in_a_full_arena() {
    let mut scene = Scene::one().with_bystanders();
    let mut giver = transfer_tests::Worker::of(scene.a(), "giver").arena_bytes(4 << 20).start();
    let mut taker = scene.a().worker("taker");
    giver.push("w", Spec::bytes(9 << 20, 1)).trouble().expect("TooLargeForArena", &["9 MiB", "4 MiB"]);
    giver.push("one", Spec::bytes(LEN, 1)).get();
    let trouble = giver.push("two", Spec::bytes(LEN, 2)).timeout(SOON).trouble();
    trouble.expect("ArenaFull", &["3 MiB", "4 MiB"]);
    assert!(trouble.can_retry, "{trouble}");
    let patient = giver.push("two", Spec::bytes(LEN, 2)).start();
    scene.others_go_on();
    giver.delete("one").expect("it is its own");
    patient.get();
    assert_eq!(taker.fetch("two").get().sum, Spec::bytes(LEN, 2).sum());
    drop((giver, taker));
    scene.end();
}
