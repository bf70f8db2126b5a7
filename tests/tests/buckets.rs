//! Bundles that do not fit the reader's landing pool: they come in buckets, whole or not at all.

use std::num::NonZeroU32;
use std::task::Waker;
use std::time::Duration;
use transfer_client::{
    Begun, BlockingClient, BundleTensor, Client, Error, FabricKind, FailureCode, Fetch, FetchedBundle, NodeConfig,
    Slice, Until, s,
};
use transfer_tests::{Carrier, Scene, Sidecar, WAIT_LIMIT, poll, sidecar_of_this_process};

/// The pool of each sidecar, and the bytes of a bundle.
const POOL: u64 = 4 << 20;
const TENSORS: u64 = 24 << 20;

/// The shortest bucket: a fetch takes hundreds of them.
const SHORT: u64 = 64 << 10;

fn scene() -> Scene {
    Scene::two_with(&["--pool-bytes", "4MiB"])
}

fn connect(sidecar: &Sidecar, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(sidecar.socket()).name(name).arena_bytes(80 << 20);
    connect.call().expect("the sidecar takes workers")
}

/// The lengths of the tensors, in elements: small ones, empty ones, and one that is longer than the pool.
fn lengths() -> Vec<u64> {
    let mut lengths: Vec<_> = (0..1000).map(|n| n % 37 * 8).collect();
    lengths.push((3 * POOL / 2) / 8);
    let rest = TENSORS / 8 - lengths.iter().sum::<u64>();
    lengths.extend([rest / 2, rest / 2, 1]);
    lengths
}

/// Pushes a bundle. Each element is the number of its tensor plus `seed`.
fn push(client: &BlockingClient, key: &str, version: u64, seed: u64) {
    let tensors: Vec<_> = lengths().iter().zip(seed..).map(|(len, value)| vec![value; *len as usize]).collect();
    let named = tensors.iter().enumerate().map(|(n, elements)| {
        (format!("t{n}"), BundleTensor::from_slice([elements.len() as u64], elements).expect("as long as its shape"))
    });
    client.push_bundle(key, named).version(version).call().expect("pushed");
}

/// Checks that each element of a bundle is what was pushed with this seed.
fn check(bundle: &FetchedBundle, seed: u64) {
    assert_eq!(bundle.len(), lengths().len());
    for ((n, (name, tensor)), len) in (0..).zip(bundle.iter()).zip(lengths()) {
        assert_eq!((name, tensor.shape()), (&format!("t{n}")[..], &[len][..]));
        let elements = tensor.as_slice::<u64>().expect("as pushed");
        assert!(elements.iter().all(|element| *element == n + seed), "{name} with seed {seed}");
    }
}

/// A blocking client learns with its next call what a fetch that it gave up has brought, and releases it.
pub(crate) fn until_pool_is_free(client: &BlockingClient, sidecar: &Sidecar) {
    poll(|| {
        client.take_answers();
        match sidecar.status().pools.iter().map(|pool| pool.used_bytes).sum::<u64>() {
            0 => Ok(()),
            used => Err(format!("{used} bytes of its pool are used")),
        }
    })
    .expect("its pool is free");
}

pub(crate) fn bytes_in(sidecar: &Sidecar) -> u64 {
    sidecar.status().links.iter().map(|link| link.bytes_in).sum()
}

// Promise: buckets
#[test]
fn bundle_larger_than_the_pool_comes_in_buckets() {
    let scene = scene();
    let (pusher, near, far) = (connect(scene.a(), "pusher"), connect(scene.a(), "near"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 100);
    let bundle = near.fetch_bundle("k").call().expect("by reference");
    check(&bundle, 100);
    assert_eq!(bundle.report().copied, 0);
    drop(bundle);
    let subscriber = far.bundle_subscriber("k").expect("a name");
    // The default bucket is larger than this pool, so it is divided.
    for (version, bucket) in [(1, None), (2, Some(SHORT)), (3, Some(1 << 20))] {
        if version > 1 {
            push(&pusher, "k", version, 100 * version);
        }
        let fetch = far.fetch_bundle("k").at_least(version);
        let fetch = if let Some(bytes) = bucket { fetch.bucket_bytes(bytes) } else { fetch };
        let bundle = fetch.call().expect("in buckets");
        assert_eq!(bundle.version(), version);
        check(&bundle, 100 * version);
        let report = bundle.report();
        assert_eq!(report.fabric.name(), Carrier::chosen().name());
        assert!(report.bytes >= TENSORS && report.copied >= TENSORS, "{report}");
        check(&subscriber.next().call().expect("in buckets"), 100 * version);
        assert_eq!(subscriber.seen(), Some(version));
        until_pool_is_free(&far, scene.b());
        // It stays readable when its reader is gone, as memory of this process.
        check(&bundle, 100 * version);
    }
    // Some tensors, which do not fit either: every other one, in several ranges of a bucket.
    let names: Vec<_> = (0..lengths().len()).step_by(2).map(|n| format!("t{n}")).collect();
    let part = far.fetch_bundle("k").only(&names).call().expect("in buckets");
    assert_eq!(part.len(), names.len());
    for (n, (name, tensor)) in (0..).step_by(2).zip(part.iter()) {
        let elements = tensor.as_slice::<u64>().expect("as pushed");
        assert_eq!((name, elements.len() as u64), (&format!("t{n}")[..], lengths()[n as usize]));
        assert!(elements.iter().all(|element| *element == n + 300), "{name}");
    }
    let none: Option<Slice> = None;
    let later = far.bundle_subscriber("k").expect("a name");
    let slices = later.next().slices([("t1000", none.clone()), ("t0", none)]).call().expect("whole tensors in buckets");
    assert_eq!(slices.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["t0", "t1000"]);
    let elements = slices.get("t1000").expect("asked for").to_vec::<u64>().expect("as pushed");
    assert_eq!(elements, vec![1300; lengths()[1000] as usize]);
    assert_eq!(later.seen(), Some(3));
    let e = far.fetch_bundle("k").slices([("t1000", s![1..])]).call().expect_err("parts of tensors come at once");
    assert_eq!(e.failure_code(), Some(FailureCode::TooLarge), "{e}");
    until_pool_is_free(&far, scene.b());
    drop((part, slices, later, subscriber, pusher, near, far));
    scene.end();
}

// Promise: buckets
#[test]
fn bundle_comes_in_buckets_on_a_runtime() {
    let scene = scene();
    let pusher = connect(scene.a(), "pusher");
    push(&pusher, "k", 1, 7);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(scene.b().socket()).name("async").await.expect("the sidecar takes workers");
        check(&client.fetch_bundle("k").await.expect("in buckets"), 7);
        let subscriber = client.bundle_subscriber("k").expect("a name");
        check(&subscriber.next().await.expect("in buckets"), 7);
    });
    drop(pusher);
    scene.end();
}

/// Over shared memory, where the sidecar of the reader copies.
// Promise: buckets
#[test]
fn buckets_come_over_shared_memory() {
    let pool: &[&str] = &["--listen", "127.0.0.1:0", "--pool-bytes", "4MiB"];
    let scene = Scene::over(Carrier::Shm, &[pool, pool]);
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 5);
    let bundle = far.fetch_bundle("k").call().expect("in buckets");
    check(&bundle, 5);
    let report = *bundle.report();
    assert_eq!(report.fabric, FabricKind::Shm);
    assert!(report.bytes >= TENSORS && report.copied >= 2 * TENSORS, "{report}");
    until_pool_is_free(&far, scene.b());
    // What is half there when its version is replaced is fetched anew.
    let mut fetch = half_way(&far, far.fetch_bundle("k"), scene.b());
    push(&pusher, "k", 2, 6);
    check(&fetch.wait(WAIT_LIMIT).expect("in time").expect("the newer version"), 6);
    drop(fetch);
    until_pool_is_free(&far, scene.b());
    drop((bundle, pusher, far));
    scene.end();
}

/// What is read in the memory of its owner needs no room in the pool.
#[test]
fn bundle_by_reference_between_two_sidecars_needs_no_buckets() {
    let pool: &[&str] = &["--listen", "127.0.0.1:0", "--verbs", "off", "--pool-bytes", "4MiB"];
    let scene = Scene::exactly(&[pool, pool]);
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 5);
    let bundle = far.fetch_bundle("k").call().expect("by reference");
    check(&bundle, 5);
    assert_eq!((bundle.report().fabric, bundle.report().copied), (FabricKind::Shm, 0));
    drop((bundle, pusher, far));
    scene.end();
}

/// A node inside the reader's process, whose calls do the work of its sidecar themselves.
// Promise: buckets
#[test]
fn buckets_come_to_an_embedded_node() {
    let _turn = sidecar_of_this_process();
    for (carrier, fabric) in [(Carrier::Tcp, FabricKind::Tcp), (Carrier::Shm, FabricKind::Shm)] {
        let scene = Scene::over(carrier, &[&["--listen", "127.0.0.1:0", "--pool-bytes", "4MiB"]]);
        let outside = connect(scene.a(), "outside");
        let config = NodeConfig::new("inside").set("listen", "127.0.0.1:0").set("pool_bytes", "4MiB");
        let config = config.set("directory", format!("http://{}", scene.a().address()));
        let config = config.set("shm_dir", scene.a().folder().display());
        let arguments = carrier.arguments();
        let config = arguments
            .chunks_exact(2)
            .fold(config, |config, pair| config.set(pair[0].trim_start_matches("--").replace('-', "_"), pair[1]));
        let inside = BlockingClient::embedded_with(config).name("inside").arena_bytes(80 << 20);
        let inside = inside.call().expect("a session");
        push(&outside, "out", 1, 3);
        push(&inside, "in", 1, 4);
        for (reader, key, seed) in [(&inside, "out", 3), (&outside, "in", 4)] {
            let bundle = reader.fetch_bundle(key).call().expect("in buckets");
            check(&bundle, seed);
            assert_eq!(bundle.report().fabric, fabric);
            assert!(bundle.report().copied >= TENSORS, "{}", bundle.report());
        }
        until_pool_is_free(&outside, scene.a());
        drop((inside, outside));
        scene.end();
    }
}

/// Begins a fetch, with the shortest buckets, and goes on until some have landed.
fn half_way(
    far: &BlockingClient,
    fetch: Fetch<BlockingClient, FetchedBundle>,
    reader: &Sidecar,
) -> Begun<'static, Result<FetchedBundle, Error>> {
    let before = bytes_in(reader);
    let mut fetch = fetch.bucket_bytes(SHORT).timeout(WAIT_LIMIT).begin();
    poll(|| {
        far.take_answers();
        assert!(fetch.poll(Waker::noop()).is_continue(), "it has hundreds of buckets");
        match bytes_in(reader) - before {
            some if some > 4 * SHORT => Ok(()),
            few => Err(format!("{few} bytes have landed")),
        }
    })
    .expect("buckets land");
    fetch
}

// Promise: buckets
#[test]
fn bundle_replaced_between_two_buckets_is_fetched_anew() {
    let scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 1000);
    let mut fetch = half_way(&far, far.fetch_bundle("k"), scene.b());
    push(&pusher, "k", 2, 2000);
    let bundle = fetch.wait(WAIT_LIMIT).expect("in time").expect("the newer version");
    assert_eq!(bundle.version(), 2);
    check(&bundle, 2000);
    drop(fetch);
    let mut fetch = half_way(&far, far.fetch_bundle("k").exactly(2), scene.b());
    push(&pusher, "k", 3, 3000);
    let e = fetch.wait(WAIT_LIMIT).expect("in time").expect_err("it is gone");
    assert_eq!(e.failure_code(), Some(FailureCode::VersionGone), "{e}");
    until_pool_is_free(&far, scene.b());
    drop((fetch, bundle, pusher, far));
    scene.end();
}

/// The owner ends, and another one publishes the same version under the key: other bytes, of the same shapes.
// Promise: buckets, seen to fail
#[test]
fn buckets_of_two_owners_are_never_mixed() {
    let scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 1000);
    let mut fetch = half_way(&far, far.fetch_bundle("k"), scene.b());
    drop(pusher);
    let pusher = connect(scene.a(), "other");
    push(&pusher, "k", 1, 2000);
    match fetch.wait(WAIT_LIMIT).expect("in time") {
        Ok(bundle) => check(&bundle, 2000),
        Err(e) => assert!(e.failure_code().is_some(), "{e}"),
    }
    until_pool_is_free(&far, scene.b());
    drop((fetch, pusher, far));
    scene.end();
}

// Promise: buckets
#[test]
fn buckets_that_are_given_up_or_lost_leave_nothing() {
    let mut scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 1000);
    drop(half_way(&far, far.fetch_bundle("k"), scene.b()));
    until_pool_is_free(&far, scene.b());
    let e = far.fetch_bundle("k").bucket_bytes(SHORT).timeout(Duration::from_millis(1)).call();
    assert!(e.is_err_and(|e| e.failure_code() == Some(FailureCode::Deadline)));
    until_pool_is_free(&far, scene.b());
    let mut fetch = half_way(&far, far.fetch_bundle("k"), scene.b());
    scene.nodes[0].kill();
    let e = fetch.wait(WAIT_LIMIT).expect("in time").expect_err("the peer is gone");
    assert!(e.failure_code().is_some(), "{e}");
    until_pool_is_free(&far, scene.b());
    // The reader's session goes on.
    push(&far, "own", 1, 1);
    check(&far.fetch_bundle("own").call().expect("by reference"), 1);
}

// Promise: buckets
#[test]
fn what_has_no_parts_and_does_not_fit_is_refused_with_both_lengths() {
    let scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    let elements = vec![1_u64; TENSORS as usize / 8];
    pusher.push_slice("tensor", [elements.len() as u64], &elements).call().expect("pushed");
    let counted = [("t", BundleTensor::from_slice([elements.len() as u64], &elements).expect("as long as its shape"))];
    pusher.push_bundle("counted", counted).keep(Until::Fetched(NonZeroU32::MIN)).call().expect("pushed");
    for key in ["tensor", "counted"] {
        let e = far.fetch_bundle(key).call().expect_err("too large");
        assert_eq!(e.failure_code(), Some(FailureCode::TooLarge), "{e}");
        assert!(e.to_string().contains("the landing pool"), "{e}");
    }
    drop((pusher, far));
    scene.end();
}
