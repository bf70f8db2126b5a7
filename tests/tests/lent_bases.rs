//! Bases that readers have from elsewhere, such as a checkpoint, and lend for deltas.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;
use transfer_client::{
    BlockingClient, BundleTensor, Client, DType, Digest, Error, FailureCode, FetchedBundle, LentBase, PushedDelta,
};
use transfer_tests::{Scene, poll};

fn connect(socket: PathBuf, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(socket).name(name).arena_bytes(64 << 20);
    connect.call().expect("the sidecar takes workers")
}

/// The tensors of a model.
const SHAPES: [(&str, DType, &[u64]); 4] = [
    ("w", DType::BF16, &[1024, 700]),
    ("scales", DType::F32, &[33, 7]),
    ("nothing", DType::I64, &[0, 5]),
    ("steps", DType::U8, &[101]),
];

/// A checkpoint: the bytes of each tensor at a version. One in 50 elements of two bytes differs from the version before.
fn checkpoint(version: u64) -> Vec<(&'static str, DType, &'static [u64], Vec<u8>)> {
    let tensor = |(name, dtype, dims): (&'static str, DType, &'static [u64])| {
        let len = dims.iter().product::<u64>() as usize * dtype.size_bytes() as usize;
        let mut bytes: Vec<u8> = (0..len).map(|n| (n * 31 + n / 251 + name.len()) as u8).collect();
        for v in 1..=version {
            let first = (v as usize * 17) % 50;
            bytes.chunks_mut(2).skip(first).step_by(50).for_each(|element| element.fill(v as u8));
        }
        (name, dtype, dims, bytes)
    };
    SHAPES.into_iter().map(tensor).collect()
}

fn tensors<'a>(
    of: &'a [(&'static str, DType, &'static [u64], Vec<u8>)],
) -> impl Iterator<Item = (&'static str, BundleTensor<'a>)> {
    of.iter().map(|(name, dtype, dims, bytes)| {
        (*name, BundleTensor::from_bytes(*dtype, dims, bytes).expect("as long as its shape"))
    })
}

/// Pushes a version that is what a checkpoint has.
fn push(pusher: &BlockingClient, version: u64) -> PushedDelta {
    let of = checkpoint(version);
    let push = pusher.push_bundle("policy", tensors(&of)).digest(Digest::Xxh3);
    push.version(version).delta_of(version - 1).call().expect("pushed").delta.expect("it was to have one")
}

fn push_all(pusher: &BlockingClient, versions: RangeInclusive<u64>) {
    for version in versions {
        push(pusher, version);
    }
}

fn lend(reader: &BlockingClient, version: u64) -> LentBase {
    reader.lend_base("policy", tensors(&checkpoint(version))).call().expect("lent")
}

#[track_caller]
fn check(bundle: &FetchedBundle, version: u64) {
    assert_eq!((bundle.version(), bundle.len()), (version, SHAPES.len()));
    for (name, _, _, bytes) in checkpoint(version) {
        assert!(bundle.get(name).expect("it has all").as_bytes() == bytes, "{name} of version {version}");
    }
}

/// Fetches the newest version, with this base. Returns the length of the delta as which it came.
#[track_caller]
fn fetch(reader: &BlockingClient, version: u64, base: &LentBase) -> u64 {
    let bundle = reader.fetch_bundle("policy").at_least(version).base(base).verify().call().expect("fetched");
    check(&bundle, version);
    bundle.report().delta
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

// Promise: lent-bases
#[test]
fn first_version_comes_as_what_has_changed_since_a_checkpoint() {
    // Versions 2 to 4 have deltas, and the newest keeps two before its own.
    for (of, is_delta) in [(1, true), (2, true), (3, true), (4, false), (9, false)] {
        let scene = Scene::two();
        let (pusher, reader) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "reader"));
        push_all(&pusher, 1..=4);
        let free = reader.arena_free_bytes();
        let base = lend(&reader, of);
        assert!(reader.arena_free_bytes() < free);
        let delta = fetch(&reader, 4, &base);
        assert_eq!(delta > 0, is_delta, "{delta} bytes for a checkpoint of version {of}");
        drop(base);
        all_is_free(&reader, free);
        // From then on the node has versions of its own.
        let delta = push(&pusher, 5);
        let bundle = reader.fetch_bundle("policy").at_least(5).call().expect("fetched");
        check(&bundle, 5);
        assert_eq!(bundle.report().delta, delta.bytes);
        drop((bundle, pusher, reader));
        scene.end();
    }
}

// Promise: lent-bases
#[test]
fn subscriber_begins_with_a_checkpoint_and_goes_on_without() {
    let scene = Scene::two();
    let (pusher, reader) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "reader"));
    let free = reader.arena_free_bytes();
    let subscriber = reader.bundle_subscriber("policy").expect("a key").after(1);
    let mut base = Some(lend(&reader, 1));
    push(&pusher, 1);
    for version in 2..=4 {
        let delta = push(&pusher, version).bytes;
        let next = subscriber.next();
        let bundle = match &base {
            Some(base) => next.base(base).call().expect("fetched"),
            None => next.call().expect("fetched"),
        };
        check(&bundle, version);
        assert!(delta > 0);
        assert_eq!(bundle.report().delta, delta, "version {version}");
        base = None;
    }
    all_is_free(&reader, free);
    drop((subscriber, pusher, reader));
    scene.end();
}

/// Lends this as a base of version 2 to a node that has none, fetches version 3, and returns the length of the delta as which it came.
fn delta_since(of: &[(&'static str, DType, &'static [u64], Vec<u8>)], kind: Digest, has_digests: bool) -> u64 {
    let scene = Scene::two();
    let (pusher, reader) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "reader"));
    for version in 1..=3 {
        let of = checkpoint(version);
        let push = pusher.push_bundle("policy", tensors(&of)).version(version).delta_of(version - 1);
        let push = if has_digests { push.digest(Digest::Xxh3) } else { push };
        push.call().expect("pushed");
    }
    let base = reader.lend_base("policy", tensors(of)).digest(kind).call().expect("lent");
    let delta = fetch(&reader, 3, &base);
    drop((base, pusher, reader));
    scene.end();
    delta
}

// Promise: lent-bases
#[test]
fn other_layouts_and_versions_without_digests_come_as_a_whole() {
    let all = checkpoint(2);
    assert!(delta_since(&all, Digest::Xxh3, true) > 0);
    assert_eq!(delta_since(&all, Digest::Xxh3, false), 0);
    assert_eq!(delta_since(&all, Digest::Blake3, true), 0);
    // The same tensors, but for one, in another order, with another name, and none at all.
    let turned: Vec<_> = all.iter().rev().cloned().collect();
    let mut renamed = all.clone();
    renamed[0].0 = "v";
    for other in [&all[1..], &turned, &renamed, &[]] {
        assert_eq!(delta_since(other, Digest::Xxh3, true), 0);
    }
}

// Promise: lent-bases
#[test]
fn base_of_another_worker_is_none() {
    let scene = Scene::two();
    let (pusher, reader) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "reader"));
    push_all(&pusher, 1..=3);
    let other = connect(scene.b().socket(), "other");
    let base = lend(&other, 2);
    assert_eq!(fetch(&reader, 3, &base), 0);
    drop((other, base, pusher, reader));
    scene.end();
}

// Promise: lent-bases
#[test]
fn base_of_a_sidecar_that_was_restarted_is_none() {
    let mut scene = Scene::two();
    let (pusher, reader) = (connect(scene.a().socket(), "pusher"), connect(scene.b().socket(), "reader"));
    push_all(&pusher, 1..=3);
    let free = reader.arena_free_bytes();
    let base = lend(&reader, 2);
    scene.nodes[1].kill();
    scene.nodes[1].restart();
    let fetched = poll(|| reader.fetch_bundle("policy").at_least(3).base(&base).call());
    let bundle = fetched.expect("it connects again");
    check(&bundle, 3);
    assert_eq!(bundle.report().delta, 0);
    drop((base, bundle));
    all_is_free(&reader, free);
    drop((pusher, reader));
    scene.end();
}

// Promise: lent-bases
#[test]
fn base_that_does_not_fit_the_arena_says_so() {
    let scene = Scene::two();
    let reader = connect(scene.b().socket(), "reader");
    let free = reader.arena_free_bytes();
    let large = vec![0_u8; 70 << 20];
    let tensor = BundleTensor::from_bytes(DType::U8, [70 << 20], &large).expect("its length");
    let error = reader.lend_base("policy", [("w", tensor)]).call().expect_err("the arena has 64 MiB");
    assert!(matches!(error, Error::TooLargeForArena { .. }), "{error}");
    all_is_free(&reader, free);
    drop(reader);
    scene.end();
}

// Promise: lent-bases
#[test]
fn asynchronous_fetch_takes_a_base() {
    let scene = Scene::two();
    let pusher = connect(scene.a().socket(), "pusher");
    push_all(&pusher, 1..=3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let socket = scene.b().socket();
    runtime.block_on(async {
        let reader = Client::connect(socket).name("reader").arena_bytes(64 << 20).await.expect("connected");
        let base = reader.lend_base("policy", tensors(&checkpoint(2))).await.expect("lent");
        let late = reader.fetch_bundle("policy").at_least(9).base(&base).timeout(Duration::from_millis(50));
        let error = late.await.expect_err("it is not published");
        assert_eq!(error.failure_code(), Some(FailureCode::Deadline), "{error}");
        let bundle = reader.fetch_bundle("policy").at_least(3).base(&base).await.expect("fetched");
        check(&bundle, 3);
        assert!(bundle.report().delta > 0, "{}", bundle.report());
    });
    drop((runtime, pusher));
    scene.end();
}
