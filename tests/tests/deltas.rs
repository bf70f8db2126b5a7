//! Deltas: a node that has the version before gets what has changed.

use std::future::{Future, IntoFuture};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::runtime::Builder;
use transfer_client::{
    BlockingClient, BundleTensor, Client, DType, FailureCode, FetchedBundle, NoDelta, PushedDelta, PushedShards, Rank,
    Report, Shard, TensorMut, s,
};
use transfer_tests::{Carrier, Scene, poll};

fn connect(socket: PathBuf, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(socket).name(name).arena_bytes(64 << 20);
    connect.call().expect("the sidecar takes workers")
}

/// The tensors of a model: weights that change, and others.
const SHAPES: [(&str, DType, &[u64]); 4] = [
    ("w", DType::BF16, &[1024, 1024]),
    ("scales", DType::F32, &[33, 7]),
    ("nothing", DType::I64, &[0, 5]),
    ("steps", DType::U8, &[101]),
];

/// The bytes of a tensor at a version: one in 50 elements of two bytes differs from the version before.
fn bytes_of(name: &str, len: usize, version: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|n| (n * 31 + n / 251 + name.len()) as u8).collect();
    for v in 1..=version {
        let first = (v as usize * 17) % 50;
        bytes.chunks_mut(2).skip(first).step_by(50).for_each(|element| element.fill(v as u8));
    }
    bytes
}

fn tensor(client: &BlockingClient, (name, dtype, dims): (&str, DType, &[u64]), version: u64) -> TensorMut {
    let mut tensor = client.allocate(dtype, dims).expect("room");
    let len = tensor.as_bytes().len();
    tensor.as_mut_bytes().copy_from_slice(&bytes_of(name, len, version));
    tensor
}

fn model(client: &BlockingClient, version: u64) -> [(&'static str, TensorMut); 4] {
    SHAPES.map(|shape| (shape.0, tensor(client, shape, version)))
}

#[track_caller]
fn check(bundle: &FetchedBundle, version: u64) {
    assert_eq!((bundle.version(), bundle.len()), (version, SHAPES.len()));
    for (name, tensor) in bundle.iter() {
        let found = tensor.as_bytes();
        assert!(found == bytes_of(name, found.len(), version), "{name} of version {version}");
    }
}

/// Whether the version came as a delta, which it may where bytes move between the two nodes.
fn is_delta(report: &Report) -> bool {
    report.delta > 0 && report.delta < report.bytes / 10
}

fn pushed(delta: Option<PushedDelta>) -> PushedDelta {
    delta.expect("a delta was asked for")
}

fn all_is_free(client: &BlockingClient, free: u64) {
    poll(|| {
        // A worker learns with its next call which memory is free again.
        let _ = client.delete("none").call();
        match client.arena_free_bytes() {
            now if now == free => Ok(()),
            now => Err(format!("{now} of {free} bytes are free")),
        }
    })
    .expect("all memory comes back");
}

// Promise: deltas, seen to fail
#[test]
fn bundle_comes_as_what_has_changed() {
    let scene = Scene::two();
    let (pusher, near) = (connect(scene.a().socket(), "pusher"), connect(scene.a().socket(), "near"));
    let (far, late) = (connect(scene.b().socket(), "far"), connect(scene.b().socket(), "late"));
    let free = pusher.arena_free_bytes();
    let mut kept = Vec::new();
    for version in 1..=5 {
        let push = pusher.push_bundle("policy", model(&pusher, version)).version(version).delta_of(version - 1);
        let delta = pushed(push.call().expect("pushed").delta);
        if version == 1 {
            assert_eq!((delta.bytes, delta.whole), (0, Some(NoDelta::NoBase)));
        } else {
            assert!(delta.bytes > 0 && delta.whole.is_none(), "{delta:?}");
            assert!((delta.compared / 100..delta.compared / 30).contains(&delta.changed), "{delta:?}");
        }
        let bundle = near.fetch_bundle("policy").at_least(version).call().expect("fetched");
        assert_eq!((bundle.report().fabric.name(), bundle.report().delta), ("local", 0));
        check(&bundle, version);
        let bundle = far.fetch_bundle("policy").at_least(version).call().expect("fetched");
        let report = *bundle.report();
        assert_eq!(report.fabric.name(), Carrier::chosen().name());
        assert_eq!(is_delta(&report), version > 1, "{report}");
        check(&bundle, version);
        kept.push(bundle);
        // The other worker of that node shares it.
        let shared = late.fetch_bundle("policy").call().expect("fetched");
        assert_eq!((shared.report().fabric.name(), shared.version()), ("local", version));
    }
    kept.iter().zip(1..).for_each(|(bundle, version)| check(bundle, version));
    drop(kept);
    pusher.delete("policy").call().expect("its own");
    all_is_free(&pusher, free);
    drop((pusher, near, far, late));
    scene.end();
}

// Promise: deltas
#[test]
fn reader_that_has_missed_versions_gets_their_deltas() {
    // It misses versions 3, 5 and 6, and 8 to 10.
    let read = [1, 2, 4, 7, 11, 12];
    for (chain, deltas) in [
        (0, [false, true, false, false, false, true]),
        (1, [false, true, true, false, false, true]),
        (2, [false, true, true, true, false, true]),
        (8, [false, true, true, true, true, true]),
    ] {
        let scene = Scene::two();
        let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
        let free = pusher.arena_free_bytes();
        let subscriber = far.bundle_subscriber("policy").expect("a key");
        let mut came = Vec::new();
        for version in 1..=12 {
            let push = pusher.push_bundle("policy", model(&pusher, version)).version(version).delta_of(version - 1);
            let delta = pushed(push.keep_chain(chain).call().expect("pushed").delta);
            assert_eq!(delta.bytes > 0, version > 1);
            assert_eq!(u64::from(delta.kept), version.saturating_sub(2).min(u64::from(chain)), "version {version}");
            if read.contains(&version) {
                let bundle = subscriber.next().call().expect("fetched");
                check(&bundle, version);
                came.push(bundle.report().delta > 0);
            }
        }
        assert_eq!(came, deltas, "a chain of {chain}");
        let long = pusher.push_bundle("policy", model(&pusher, 13)).delta_of(12).keep_chain(9);
        let error = long.call().expect_err("at most 8");
        assert_eq!(error.error().failure_code(), Some(FailureCode::Invalid), "{error}");
        drop(error);
        pusher.delete("policy").call().expect("its own");
        all_is_free(&pusher, free);
        drop((pusher, far, subscriber));
        scene.end();
    }
}

// Promise: deltas, seen to fail
#[test]
fn versions_without_a_delta_say_why() {
    let scene = Scene::two();
    let (pusher, far) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "far"));
    let free = pusher.arena_free_bytes();
    let shape = SHAPES[0];
    let push = |tensor: TensorMut, version| {
        let pushed = pusher.push_tensor("w", tensor).version(version).delta_of(version - 1).call().expect("pushed");
        let fetched = far.fetch("w").at_least(version).call().expect("fetched");
        (pushed.delta.expect("asked for"), fetched.report().delta)
    };
    let (delta, came) = push(tensor(&pusher, shape, 1), 1);
    assert_eq!((delta.whole, delta.compared, came), (Some(NoDelta::NoBase), 0, 0));
    let (delta, came) = push(tensor(&pusher, shape, 2), 2);
    assert!(delta.whole.is_none() && came == delta.bytes && came > 0, "{delta:?}");
    let (delta, came) = push(tensor(&pusher, ("w", DType::BF16, &[2048, 512]), 3), 3);
    assert_eq!((delta.whole, delta.compared, came), (Some(NoDelta::OtherLayout), 0, 0));
    let mut other = pusher.allocate(DType::BF16, [2048, 512]).expect("room");
    other.as_mut_bytes().fill(1);
    let (delta, came) = push(other, 4);
    assert_eq!((delta.whole, came), (Some(NoDelta::TooDense), 0));
    assert!(delta.changed * 2 > delta.compared && delta.compared > 0, "{delta:?}");
    // The memory of a version with a delta is taken back like any other.
    let mut last = pusher.allocate(DType::BF16, [2048, 512]).expect("room");
    last.as_mut_bytes().fill(1);
    last.as_mut_bytes()[7] = 9;
    assert!(push(last, 5).0.bytes > 0);
    let taken = pusher.take_back("w").call().expect("nobody reads it");
    assert_eq!(taken.as_bytes()[6..9], [1, 9, 1]);
    drop(taken);
    pusher.delete("w").call().expect("its own");
    all_is_free(&pusher, free);
    drop((pusher, far));
    scene.end();
}

// Promise: deltas, seen to fail
#[test]
fn poll_of_a_push_makes_no_long_delta() {
    let scene = Scene::two();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(give_up_while_a_delta_is_made(scene.a().socket()));
    drop(runtime);
    scene.end();
}

/// Polls pushes once, until one is given up before it is sent: its delta is being made.
async fn give_up_while_a_delta_is_made(socket: PathBuf) {
    let connect = Client::connect(socket).name("pusher").arena_bytes(128 << 20);
    let pusher = connect.await.expect("the sidecar takes workers");
    let push = |version: u64| {
        let mut tensor = pusher.allocate(DType::U8, [16 << 20]).expect("room");
        tensor.as_mut_bytes()[..100].fill(version as u8);
        pusher.push_tensor("w", tensor).version(version)
    };
    push(1).await.expect("pushed");
    let (free, mut newest) = (pusher.arena_free_bytes(), 1);
    for version in 2..20 {
        let mut pushing = Box::pin(push(version).delta_of(newest).into_future());
        assert!(pushing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(pushing);
        let published = pusher.fetch("w").await.expect("fetched").version();
        if published == newest {
            let is_free = || match pusher.arena_free_bytes() {
                now if now == free => Ok(()),
                now => Err(format!("{now} of {free} bytes are free")),
            };
            return poll(is_free).expect("what was compared comes back");
        }
        // The other thread was faster than this one.
        newest = published;
    }
    panic!("each push was sent when it was polled once");
}

// Promise: deltas, seen to fail
#[test]
fn pushes_of_a_key_keep_their_order_while_deltas_are_made() {
    let scene = Scene::two();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(push_behind_a_delta(scene.a().socket()));
    drop(runtime);
    scene.end();
}

/// Polls a push whose delta takes long, and then others of its key, of which each way to be sent would be faster.
async fn push_behind_a_delta(socket: PathBuf) {
    let connect = Client::connect(socket).name("pusher").arena_bytes(256 << 20);
    let pusher = connect.await.expect("the sidecar takes workers");
    let long = || pusher.allocate(DType::U8, [32 << 20]).expect("room");
    let short = || pusher.allocate(DType::U8, [64]).expect("room");
    assert_eq!(pusher.push_tensor("w", long()).await.expect("pushed").version, 1);
    let mut first = Box::pin(pusher.push_tensor("w", long()).delta_of(1).into_future());
    let mut second = Box::pin(pusher.push_tensor("w", short()).delta_of(1).into_future());
    let mut third = Box::pin(pusher.push_tensor("w", long()).into_future());
    let mut fourth = Box::pin(pusher.push_many([("w", short())]).into_future());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut cx).is_pending());
    assert!(second.as_mut().poll(&mut cx).is_pending());
    assert!(third.as_mut().poll(&mut cx).is_pending());
    assert!(fourth.as_mut().poll(&mut cx).is_pending());
    // None of them needs another one to be awaited.
    let fourth = fourth.await.pop().expect("one result").expect("pushed").version;
    let third = third.await.expect("pushed").version;
    let second = second.await.expect("pushed").version;
    let first = first.await.expect("pushed");
    assert_eq!([first.version, second, third, fourth], [2, 3, 4, 5]);
    assert!(pushed(first.delta).bytes > 0);
    // A delete that came later ends the version, and does not find the key without it.
    assert_eq!(pusher.push_tensor("w", long()).await.expect("pushed").version, 6);
    let mut last = Box::pin(pusher.push_tensor("w", long()).delta_of(6).into_future());
    let mut wide = Box::pin(pusher.push_tensor("w", long()).into_future());
    assert!(last.as_mut().poll(&mut cx).is_pending());
    assert!(wide.as_mut().poll(&mut cx).is_pending());
    // One whose time is over is not sent, also while its future lives.
    let mut late = Box::pin(pusher.delete("w").timeout(Duration::from_micros(1)).into_future());
    let error = late.as_mut().await.expect_err("its time is over");
    assert_eq!(error.failure_code(), Some(FailureCode::Deadline), "{error}");
    let next = pusher.push_tensor("w", long()).into_future();
    assert_eq!([last.await.expect("pushed").version, wide.await.expect("pushed").version], [7, 8]);
    assert_eq!(next.await.expect("pushed").version, 9);
    assert_eq!(pusher.fetch("w").await.expect("it was not deleted").version(), 9);
    drop(late);
    let mut last = Box::pin(pusher.push_tensor("w", long()).delta_of(9).into_future());
    let mut wide = Box::pin(pusher.push_tensor("w", long()).into_future());
    assert!(last.as_mut().poll(&mut cx).is_pending());
    assert!(wide.as_mut().poll(&mut cx).is_pending());
    pusher.delete("w").await.expect("its own");
    assert_eq!([last.await.expect("pushed").version, wide.await.expect("pushed").version], [10, 11]);
    let gone = pusher.fetch("w").timeout(Duration::from_millis(100)).await.expect_err("it was deleted");
    assert_eq!(gone.failure_code(), Some(FailureCode::UnknownKey), "{gone}");
    // What is taken back is the version that was pushed before.
    for is_long in [true, false] {
        pusher.push_tensor("back", long()).version(1).await.expect("pushed");
        let mut next = if is_long { long() } else { short() };
        next.as_mut_bytes()[..3].fill(7);
        let mut compared = Box::pin(pusher.push_tensor("back", long()).delta_of(1).into_future());
        let mut last = Box::pin(pusher.push_tensor("back", next).delta_of(2).into_future());
        let mut taken = Box::pin(pusher.take_back("back").into_future());
        assert!(compared.as_mut().poll(&mut cx).is_pending());
        assert!(last.as_mut().poll(&mut cx).is_pending());
        assert!(taken.as_mut().poll(&mut cx).is_pending());
        let taken = taken.await.expect("nobody reads it");
        assert_eq!(taken.as_bytes()[..3], [7, 7, 7]);
        assert_eq!([compared.await.expect("pushed").version, last.await.expect("pushed").version], [2, 3]);
        pusher.delete("back").await.expect("its own");
    }
}

// Promise: deltas, seen to fail
#[test]
fn push_whose_time_is_over_before_its_delta_is_made_is_not_sent() {
    let scene = Scene::two();
    let pusher = connect(scene.a().socket(), "pusher");
    let free = pusher.arena_free_bytes();
    let filled = |bytes: u64| {
        let mut tensor = pusher.allocate(DType::U8, [bytes]).expect("room");
        tensor.as_mut_bytes().fill(1);
        tensor
    };
    for bytes in [1 << 10, 16 << 20] {
        pusher.push_tensor("w", filled(bytes)).version(1).call().expect("pushed");
        let late = pusher.push_tensor("w", filled(bytes)).version(2).delta_of(1).timeout(Duration::ZERO);
        let error = late.call().expect_err("its time is over");
        assert_eq!(error.error().failure_code(), Some(FailureCode::Deadline), "{error}");
        assert_eq!(error.into_tensor().expect("the tensor comes back").as_bytes()[..2], [1, 1]);
        // One that another thread compares.
        let late = pusher.push_tensor("w", filled(bytes)).version(2).delta_of(1).timeout(Duration::from_micros(300));
        let mut late = late.begin();
        let ended = loop {
            if let ControlFlow::Break(ended) = late.poll(Waker::noop()) {
                break ended;
            }
        };
        drop(late);
        if bytes > 1 << 20 {
            assert_eq!(ended.expect_err("its time is over").error().failure_code(), Some(FailureCode::Deadline));
            assert_eq!(pusher.fetch("w").call().expect("fetched").version(), 1);
        }
        pusher.delete("w").call().expect("its own");
    }
    all_is_free(&pusher, free);
    drop(pusher);
    scene.end();
}

/// Nothing is kept where that is configured, and metrics say what came.
#[test]
fn sidecar_without_room_for_bases_gets_whole_versions() {
    let scene = Scene::exactly(&[
        &["--listen", "127.0.0.1:0", "--verbs", "off", "--shm", "off"],
        &["--listen", "127.0.0.1:0", "--verbs", "off", "--shm", "off", "--base-bytes", "0"],
    ]);
    let (pusher, far) = (connect(scene.nodes[0].socket(), "pusher"), connect(scene.nodes[1].socket(), "far"));
    for version in 1..=2 {
        let push = pusher.push_bundle("policy", model(&pusher, version)).version(version).delta_of(version - 1);
        push.call().expect("pushed");
        let bundle = far.fetch_bundle("policy").at_least(version).call().expect("fetched");
        check(&bundle, version);
        assert_eq!(bundle.report().delta, 0);
    }
    drop((pusher, far));
    scene.end();
}

/// The rows of "w" that each of two ranks has, and its columns.
const ROWS: u64 = 512;
const COLUMNS: u64 = 512;

/// The elements of the rows of a rank. One in 50 differs from the version before.
fn rows(rank: u32, version: u64) -> Vec<u8> {
    bytes_of(&"w".repeat(1 + rank as usize), (2 * ROWS * COLUMNS) as usize, version)
}

/// Pushes a rank of two: its rows of "w", and "scales", which both have.
fn push_rank(client: &BlockingClient, rank: u32, (version, restart): (u64, u64), base: u64) -> PushedShards {
    let mut w = client.allocate(DType::BF16, [ROWS, COLUMNS]).expect("room");
    w.as_mut_bytes().copy_from_slice(&rows(rank, version));
    let scales = tensor(client, SHAPES[1], version);
    let place = [u64::from(rank) * ROWS, 0];
    let shards = [Shard::new("w", [2 * ROWS, COLUMNS], place, w), Shard::new("scales", SHAPES[1].2, [0, 0], scales)];
    let push =
        client.push_shards("policy", version, Rank { rank, world_size: 2 }, shards).restart(restart).delta_of(base);
    push.timeout(Duration::from_secs(20)).call().expect("pushed")
}

/// Two sidecars, and two ranks at the first one.
fn two_ranks(scene: &Scene) -> [BlockingClient; 2] {
    ["rank-0", "rank-1"].map(|name| connect(scene.nodes[0].socket(), name))
}

#[track_caller]
fn check_shards(bundle: &FetchedBundle, version: u64) {
    assert_eq!((bundle.version(), bundle.len()), (version, 2));
    assert!(bundle.get("w").expect("it has w").as_bytes() == [rows(0, version), rows(1, version)].concat());
    let scales = bundle.get("scales").expect("it has scales").as_bytes();
    assert!(scales == bytes_of("scales", scales.len(), version));
}

// Promise: deltas, seen to fail
#[test]
fn shards_come_as_what_has_changed() {
    let scene = Scene::two();
    let ranks = two_ranks(&scene);
    let (near, far) = (connect(scene.a().socket(), "near"), connect(scene.b().socket(), "far"));
    // It has the layout of rank 1.
    let second = connect(scene.b().socket(), "second");
    for version in 1..=4 {
        for (rank, client) in (0..).zip(&ranks) {
            let delta = pushed(push_rank(client, rank, (version, 0), version - 1).pushed.delta);
            assert_eq!((delta.bytes > 0, delta.whole), (version > 1, (version == 1).then_some(NoDelta::NoBase)));
        }
        let bundle = near.fetch_sharded("policy").at_least(version).call().expect("fetched");
        assert_eq!((bundle.report().fabric.name(), bundle.report().delta), ("local", 0));
        check_shards(&bundle, version);
        let bundle = far.fetch_sharded("policy").at_least(version).call().expect("fetched");
        let report = *bundle.report();
        assert_eq!(report.fabric.name(), Carrier::chosen().name());
        assert_eq!(is_delta(&report), version > 1, "{report}");
        check_shards(&bundle, version);
        // Its node has that now.
        let slice = second.fetch_sharded("policy").slices([("w", s![ROWS.., ..])]).call().expect("fetched");
        assert!(slice.get("w").expect("it has w").as_bytes() == rows(1, version), "of version {version}");
        // Parts of shards come as they are.
        let part = far.fetch_sharded("policy").slices([("w", s![ROWS - 10..ROWS + 10, ..])]).call().expect("fetched");
        let expected = [rows(0, version), rows(1, version)].concat();
        let (start, end) = ((2 * (ROWS - 10) * COLUMNS) as usize, (2 * (ROWS + 10) * COLUMNS) as usize);
        assert!(part.get("w").expect("it has w").as_bytes() == &expected[start..end]);
        assert_eq!(part.report().delta, 0);
    }
    drop((ranks, near, far, second));
    scene.end();
}

// Promise: deltas, seen to fail
#[test]
fn reader_with_the_layout_of_a_rank_gets_the_delta_of_that_rank() {
    let scene = Scene::two();
    let (ranks, far) = (two_ranks(&scene), connect(scene.b().socket(), "far"));
    let mut came = Vec::new();
    for version in 1..=6 {
        for (rank, client) in (0..).zip(&ranks) {
            push_rank(client, rank, (version, 0), version - 1);
        }
        // The reader misses version 3.
        if version != 3 {
            let slice = far.fetch_sharded("policy").at_least(version).slices([("w", s![ROWS.., ..])]).verify();
            let slice = slice.call().expect("fetched");
            assert!(slice.get("w").expect("it has w").as_bytes() == rows(1, version), "of version {version}");
            came.push((version, is_delta(slice.report())));
        }
    }
    assert_eq!(came, [(1, false), (2, true), (4, true), (5, true), (6, true)]);
    drop((ranks, far));
    scene.end();
}

// Promise: deltas, seen to fail
#[test]
fn shards_have_no_delta_of_what_was_before_a_restart() {
    let scene = Scene::two();
    let (ranks, far) = (two_ranks(&scene), connect(scene.b().socket(), "far"));
    let mut came = Vec::new();
    // The versions begin again with the number of one that readers have.
    for (version, restart, is_first) in [(1, 0, true), (2, 0, false), (2, 1, true), (3, 1, false)] {
        for (rank, client) in (0..).zip(&ranks) {
            let delta = pushed(push_rank(client, rank, (version, restart), version - 1).pushed.delta);
            assert_eq!(delta.whole, is_first.then_some(NoDelta::NoBase));
        }
        let bundle = far.fetch_sharded("policy").at_least(version).call().expect("fetched");
        check_shards(&bundle, version);
        came.push(is_delta(bundle.report()));
    }
    assert_eq!(came, [false, true, false, true]);
    drop((ranks, far));
    scene.end();
}

/// A node that keeps no bases gets the shards as they are, and one whose pool has no room for all shards of a rank gets them in buckets.
#[test]
fn sidecar_without_room_for_bases_gets_whole_shards() {
    for limit in [["--base-bytes", "0"], ["--pool-bytes", "256KiB"]] {
        let alone = ["--listen", "127.0.0.1:0", "--verbs", "off", "--shm", "off"];
        let scene = Scene::exactly(&[&alone, &[&alone[..], &limit].concat()]);
        let (ranks, far) = (two_ranks(&scene), connect(scene.nodes[1].socket(), "far"));
        for version in 1..=2 {
            for (rank, client) in (0..).zip(&ranks) {
                push_rank(client, rank, (version, 0), version - 1);
            }
            let bundle = far.fetch_sharded("policy").at_least(version).call().expect("fetched");
            check_shards(&bundle, version);
            assert_eq!(bundle.report().delta, 0, "{limit:?}");
        }
        drop((ranks, far));
        scene.end();
    }
}

/// A pool that has room for the shards of one rank and a half.
const POOL: [&str; 8] = ["--listen", "127.0.0.1:0", "--verbs", "off", "--shm", "off", "--pool-bytes", "768KiB"];

// Promise: deltas, seen to fail
#[test]
fn shards_of_a_rank_do_not_stay_in_a_pool_that_has_no_room_for_all_ranks() {
    let scene = Scene::exactly(&[&POOL[..6], &POOL]);
    let (ranks, far) = (two_ranks(&scene), connect(scene.nodes[1].socket(), "far"));
    for version in 1..=2 {
        for (rank, client) in (0..).zip(&ranks) {
            push_rank(client, rank, (version, 0), version - 1);
            // A tensor that this rank has alone, and that is longer than a bucket.
            let mut own = client.allocate(DType::BF16, [ROWS, COLUMNS]).expect("room");
            own.as_mut_bytes().copy_from_slice(&rows(rank, version));
            let shards = [Shard::new(format!("w{rank}"), [ROWS, COLUMNS], [0, 0], own)];
            let push = client.push_shards("own", version, Rank { rank, world_size: 2 }, shards).delta_of(version - 1);
            push.timeout(Duration::from_secs(20)).call().expect("pushed");
        }
        let bundle = far.fetch_sharded("policy").at_least(version).call().expect("fetched");
        check_shards(&bundle, version);
        let own = far.fetch_sharded("own").at_least(version).bucket_bytes(128 << 10).call().expect("fetched");
        for rank in 0..2 {
            assert!(own.get(&format!("w{rank}")).expect("it has it").as_bytes() == rows(rank, version));
        }
    }
    drop((ranks, far));
    scene.end();
}

// Promise: deltas, seen to fail
#[test]
fn rank_is_not_gone_where_there_is_no_room_for_all_of_its_shards() {
    let scene = Scene::exactly(&[&POOL[..6], &POOL]);
    let (ranks, far) = (two_ranks(&scene), connect(scene.nodes[1].socket(), "far"));
    let taken = ranks[0].allocate(DType::U8, [400 << 10]).expect("room");
    ranks[0].push_tensor("taken", taken).call().expect("pushed");
    let taken = far.fetch("taken").call().expect("fetched");
    for (rank, client) in (0..).zip(&ranks) {
        push_rank(client, rank, (1, 0), 0);
    }
    let bundle = far.fetch_sharded("policy").bucket_bytes(64 << 10).timeout(Duration::from_secs(60)).call();
    check_shards(&bundle.expect("fetched in buckets"), 1);
    drop((taken, ranks, far));
    scene.end();
}

// Promise: deltas, seen to fail
#[test]
fn shards_have_no_delta_of_what_was_before_a_push_that_failed() {
    let scene = Scene::two();
    let (ranks, far) = (two_ranks(&scene), connect(scene.b().socket(), "far"));
    let large = vec![0_u8; 70 << 20];
    for version in 1..=4 {
        if version == 3 {
            let bytes = BundleTensor::from_bytes(DType::U8, [70 << 20], &large).expect("its length");
            let shards = [Shard::new("w", [70 << 20], [0], bytes)];
            let failed = ranks[0].push_shards("policy", version, Rank { rank: 0, world_size: 2 }, shards).delta_of(2);
            failed.timeout(Duration::from_secs(1)).call().expect_err("the arena has 64 MiB");
        }
        for (rank, client) in (0..).zip(&ranks) {
            let delta = pushed(push_rank(client, rank, (version, 0), version - 1).pushed.delta);
            let has_none = version == 1 || (version, rank) == (3, 0);
            assert_eq!(delta.whole, has_none.then_some(NoDelta::NoBase), "version {version} of rank {rank}");
        }
        check_shards(&far.fetch_sharded("policy").at_least(version).call().expect("fetched"), version);
    }
    drop((ranks, far));
    scene.end();
}
