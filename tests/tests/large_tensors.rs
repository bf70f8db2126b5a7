//! Tensors, slices and record batches that do not fit the reader's landing pool: they come in buckets, whole or not at all.

use crate::buckets::{bytes_in, until_pool_is_free};
use arrow_array::{Array, Float64Array, RecordBatch, StringArray};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use transfer_client::{
    Begun, BlockingClient, Client, DType, Digest, DigestError, Error, FailureCode, Fetch, Landing, Tensor, Until, s,
};
use transfer_tests::{Carrier, Scene, Sidecar, WAIT_LIMIT, poll};

/// The pool of each sidecar, and the bytes of a tensor.
const POOL: u64 = 4 << 20;
const BYTES: u64 = 24 << 20;

/// Its rows and columns, of 8 bytes. No number of rows is a bucket.
const DIMS: [u64; 3] = [3, 1 << 10, 1 << 10];

/// The shortest bucket: a fetch takes hundreds of them.
const SHORT: u64 = 64 << 10;

fn scene() -> Scene {
    Scene::two_with(&["--pool-bytes", "4MiB"])
}

fn connect(sidecar: &Sidecar, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(sidecar.socket()).name(name).arena_bytes(96 << 20);
    connect.call().expect("the sidecar takes workers")
}

/// Elements that no shift and no other seed has.
fn elements(seed: u64) -> Vec<u64> {
    (0..BYTES / 8).map(|n| n * 3 + seed).collect()
}

fn push(client: &BlockingClient, key: &str, version: u64, seed: u64) {
    client.push_slice(key, DIMS, &elements(seed)).version(version).call().expect("pushed");
}

fn check(tensor: &Tensor, seed: u64) {
    assert_eq!((tensor.dtype(), tensor.shape()), (DType::U64, &DIMS[..]));
    assert!(tensor.as_slice::<u64>().expect("its type") == elements(seed), "seed {seed}");
}

// Promise: large-tensors, seen to fail
#[test]
fn tensor_larger_than_the_pool_comes_in_buckets() {
    let scene = scene();
    let (pusher, near, far) = (connect(scene.a(), "pusher"), connect(scene.a(), "near"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 100);
    let tensor = near.fetch("k").call().expect("by reference");
    check(&tensor, 100);
    assert_eq!(tensor.report().copied, 0);
    drop(tensor);
    let subscriber = far.subscriber("k").expect("a name");
    // The default bucket is larger than this pool, so it is divided.
    for (version, bucket) in [(1, None), (2, Some(SHORT)), (3, Some(1 << 20))] {
        if version > 1 {
            push(&pusher, "k", version, 100 * version);
        }
        let fetch = far.fetch("k").at_least(version);
        let fetch = if let Some(bytes) = bucket { fetch.bucket_bytes(bytes) } else { fetch };
        let tensor = fetch.call().expect("in buckets");
        assert_eq!(tensor.version(), version);
        check(&tensor, 100 * version);
        let report = tensor.report();
        assert_eq!(report.fabric.name(), Carrier::chosen().name());
        assert!(report.bytes == BYTES && report.copied >= BYTES, "{report}");
        check(&subscriber.next().call().expect("in buckets"), 100 * version);
        assert_eq!(subscriber.seen(), Some(version));
        until_pool_is_free(&far, scene.b());
        // It stays readable, as memory of this process.
        check(&tensor, 100 * version);
    }
    // Several at once, beside one that fits and one that nobody has pushed.
    pusher.push_slice("small", [2], &[1_u8, 2]).call().expect("pushed");
    // What the call itself holds takes 60 % of the pool.
    pusher.push_slice("held", [POOL * 6 / 10], &vec![3_u8; (POOL * 6 / 10) as usize]).call().expect("pushed");
    let both = far.fetch_many(["held", "k"]).call();
    both.into_iter().for_each(|one| drop(one.expect("there is room for both")));
    pusher.push_slice("flat", [BYTES / 8], &elements(5)).call().expect("pushed");
    let mut begun = far.fetch_many(["late", "k", "small", "flat"]).timeout(WAIT_LIMIT).begin();
    // The large ones do not wait for those before them, whose time they share.
    let before = bytes_in(scene.b());
    poll(|| {
        assert!(begun.poll(Waker::noop()).is_continue(), "one has not been pushed");
        far.take_answers();
        match bytes_in(scene.b()) - before {
            all if all >= 2 * BYTES => Ok(()),
            some => Err(format!("{some} bytes have landed")),
        }
    })
    .expect("both land");
    pusher.push_slice("late", [2], &[5_u8, 6]).call().expect("pushed");
    let mut many = begun.wait(WAIT_LIMIT).expect("in time");
    drop(begun);
    let flat = many.pop().expect("four").expect("in buckets");
    assert!(flat.as_slice::<u64>().expect("its type") == elements(5));
    assert_eq!(many.pop().expect("four").expect("it fits").as_bytes(), [1, 2]);
    check(&many.pop().expect("four").expect("in buckets"), 300);
    assert_eq!(many.pop().expect("four").expect("it was pushed").as_bytes(), [5, 6]);
    until_pool_is_free(&far, scene.b());
    drop((flat, many, subscriber, pusher, near, far));
    scene.end();
}

/// A bucket that fits the pool, but not beside what the reader holds there, would wait until its deadline.
// Promise: large-tensors, seen to fail
#[test]
fn buckets_find_room_beside_what_their_reader_holds() {
    let scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 100);
    let bytes = vec![3_u8; (POOL * 6 / 10) as usize];
    pusher.push_slice("held", [bytes.len() as u64], &bytes).call().expect("pushed");
    let held = far.fetch("held").call().expect("it fits");
    check(&far.fetch("k").bucket_bytes(POOL / 2).timeout(WAIT_LIMIT).call().expect("in shorter buckets"), 100);
    assert!(held.as_bytes() == bytes);
    drop((held, pusher, far));
    scene.end();
}

// Promise: large-tensors
#[test]
fn tensors_of_one_dimension_come_in_buckets() {
    let scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    // Two elements share a byte, and an odd number of elements.
    let bytes: Vec<u8> = (0..9 << 20).map(|n: u32| (n % 251) as u8).collect();
    for (dtype, len) in [(DType::U4, 2 * bytes.len()), (DType::U8, bytes.len()), (DType::Bool, 0)] {
        let some = if len == 0 { &[][..] } else { &bytes };
        pusher.push_bytes("k", dtype, [len as u64], some).call().expect("pushed");
        let tensor = far.fetch("k").call().expect("in buckets");
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[len as u64][..]));
        assert!(tensor.as_bytes() == some, "{dtype}");
    }
    let odd = &bytes[..(9 << 20) - 3];
    pusher.push_bytes("k", DType::U8, [odd.len() as u64], odd).call().expect("pushed");
    assert!(far.fetch("k").bucket_bytes(1 << 20).call().expect("in buckets").as_bytes() == odd);
    drop((pusher, far));
    scene.end();
}

// Promise: large-tensors, seen to fail
#[test]
fn slices_larger_than_the_pool_come_in_buckets() {
    let scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 9);
    let all = elements(9);
    let at = |i: u64, j: u64, k: u64| all[((i * DIMS[1] + j) * DIMS[2] + k) as usize];
    for bucket in [32 << 20, SHORT] {
        let slice = far.fetch("k").slice(s![-2.., 1..; 2, ..-4]).bucket_bytes(bucket).call().expect("in buckets");
        let expected = (1..3).flat_map(|i| (1..1 << 10).step_by(2).map(move |j| (i, j)));
        let expected: Vec<_> = expected.flat_map(|(i, j)| (0..1020).map(move |k| at(i, j, k))).collect();
        assert_eq!(slice.shape(), [2, 512, 1020]);
        assert!(slice.to_vec::<u64>().expect("its type") == expected);
        assert_eq!(slice.report().bytes, 8 * expected.len() as u64);
        // An index drops its dimension.
        let slice = far.fetch("k").slice(s![1]).bucket_bytes(bucket).call().expect("in buckets");
        assert_eq!(slice.shape(), &DIMS[1..]);
        assert!(slice.to_vec::<u64>().expect("its type") == all[1 << 20..2 << 20]);
    }
    let subscriber = far.subscriber("k").expect("a name");
    let slice = subscriber.next().slice(s![..2]).call().expect("in buckets");
    assert!(slice.to_vec::<u64>().expect("its type") == all[..2 << 20]);
    assert_eq!(subscriber.seen(), Some(1));
    let e = far.fetch("k").slice(s![..4]).call().expect_err("there are three");
    assert_eq!(e.failure_code(), Some(FailureCode::Invalid), "{e}");
    until_pool_is_free(&far, scene.b());
    drop((slice, subscriber, pusher, far));
    scene.end();
}

/// Over shared memory, where the sidecar of the reader copies; on a runtime; and into a tensor.
// Promise: large-tensors
#[test]
fn large_tensors_come_on_a_runtime_and_into_memory() {
    let pool: &[&str] = &["--listen", "127.0.0.1:0", "--pool-bytes", "4MiB"];
    let scene = Scene::over(Carrier::Shm, &[pool, pool]);
    let pusher = connect(scene.a(), "pusher");
    push(&pusher, "k", 1, 7);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let client = Client::connect(scene.b().socket()).name("async").arena_bytes(40 << 20);
        let client = client.await.expect("the sidecar takes workers");
        check(&client.fetch("k").await.expect("in buckets"), 7);
        let slice = client.fetch("k").slice(s![1..]).await.expect("in buckets");
        assert!(slice.to_vec::<u64>().expect("its type") == elements(7)[1 << 20..]);
        check(&client.subscriber("k").expect("a name").next().await.expect("in buckets"), 7);
        // It lands there, and beside where that was asked for, which needs buckets.
        for (is_staged, landing) in [(false, Landing::InPlace), (true, Landing::Staged)] {
            let into = client.fetch("k").into(client.allocate(DType::U64, DIMS).expect("room"));
            let fetched = if is_staged { into.staged() } else { into }.await.expect("it fits");
            assert_eq!((fetched.landing(), fetched.version()), (landing, 1));
            assert!(!is_staged || fetched.report().copied >= 2 * BYTES);
            assert!(fetched.into_tensor().as_slice::<u64>().expect("its type") == elements(7));
        }
        let other = client.allocate(DType::U64, [BYTES / 8]).expect("room");
        let failed = client.fetch("k").into(other).staged().await.expect_err("another shape");
        assert!(failed.into_tensor().is_some());
    });
    drop(pusher);
    scene.end();
}

// Promise: large-tensors
#[test]
fn large_tensors_are_compared_with_their_digests() {
    let scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    for (version, digest) in [(1, Digest::Xxh3), (2, Digest::Blake3)] {
        let elements = elements(version);
        let push = pusher.push_slice("k", DIMS, &elements).version(version);
        push.digest(digest).chunk_bytes(1 << 20).call().expect("pushed");
        for bucket in [SHORT, 32 << 20] {
            let tensor = far.fetch("k").bucket_bytes(bucket).require_digest().call().expect("in buckets");
            check(&tensor, version);
            assert_eq!(tensor.report().verified, BYTES);
        }
        let tensor = far.fetch("k").call().expect("not compared");
        check(&tensor, version);
        assert_eq!(tensor.report().verified, 0);
    }
    push(&pusher, "none", 1, 3);
    let before = bytes_in(scene.b());
    let e = far.fetch("none").require_digest().call().expect_err("it has none");
    assert!(bytes_in(scene.b()) - before < POOL, "it is refused before it moves");
    let Error::Digest(e) = e else { panic!("{e}") };
    assert_eq!(*e, DigestError::NoDigest { key: "none".into(), version: 1 });
    check(&far.fetch("none").verify().call().expect("in buckets"), 3);
    until_pool_is_free(&far, scene.b());
    drop((pusher, far));
    scene.end();
}

/// Begins a fetch, with the shortest buckets, and goes on until some have landed.
fn half_way(
    far: &BlockingClient,
    fetch: Fetch<BlockingClient, Tensor>,
    reader: &Sidecar,
) -> Begun<'static, Result<Tensor, Error>> {
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

// Promise: large-tensors
#[test]
fn tensor_replaced_between_two_buckets_is_fetched_anew() {
    let scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 1000);
    let mut fetch = half_way(&far, far.fetch("k"), scene.b());
    push(&pusher, "k", 2, 2000);
    let tensor = fetch.wait(WAIT_LIMIT).expect("in time").expect("the newer version");
    assert_eq!(tensor.version(), 2);
    check(&tensor, 2000);
    drop(fetch);
    // The newer one may have another shape, and may fit.
    let mut fetch = half_way(&far, far.fetch("k"), scene.b());
    pusher.push_slice("k", [2], &[7_u8, 8]).version(3).call().expect("pushed");
    assert_eq!(fetch.wait(WAIT_LIMIT).expect("in time").expect("the newer version").as_bytes(), [7, 8]);
    drop(fetch);
    push(&pusher, "k", 4, 4000);
    let mut fetch = half_way(&far, far.fetch("k").exactly(4), scene.b());
    push(&pusher, "k", 5, 5000);
    let e = fetch.wait(WAIT_LIMIT).expect("in time").expect_err("it is gone");
    assert_eq!(e.failure_code(), Some(FailureCode::VersionGone), "{e}");
    drop(fetch);
    // What replaces it may have no parts, or parts of another kind.
    push(&pusher, "k", 6, 6000);
    let mut fetch = half_way(&far, far.fetch("k"), scene.b());
    pusher.push_slice("k", [0; 0], &[7_u64]).version(7).call().expect("pushed");
    assert_eq!(fetch.wait(WAIT_LIMIT).expect("in time").expect("the newer version").as_bytes(), 7_u64.to_le_bytes());
    drop(fetch);
    push(&pusher, "k", 8, 8000);
    let mut fetch = half_way(&far, far.fetch("k"), scene.b());
    pusher.push_slice("k", [2], &[1_u8, 2]).version(9).digest(Digest::Xxh3).call().expect("pushed");
    assert_eq!(fetch.wait(WAIT_LIMIT).expect("in time").expect("the newer version").as_bytes(), [1, 2]);
    until_pool_is_free(&far, scene.b());
    drop((fetch, tensor, pusher, far));
    scene.end();
}

// Promise: large-tensors
#[test]
fn large_tensors_that_are_given_up_or_lost_leave_nothing() {
    let mut scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    push(&pusher, "k", 1, 1000);
    drop(half_way(&far, far.fetch("k"), scene.b()));
    until_pool_is_free(&far, scene.b());
    let e = far.fetch("k").bucket_bytes(SHORT).timeout(Duration::from_millis(1)).call();
    assert!(e.is_err_and(|e| e.failure_code() == Some(FailureCode::Deadline)));
    // What is fetched a number of times has no parts.
    pusher.push_slice("counted", DIMS, &elements(1)).keep(Until::Fetched(NonZeroU32::MIN)).call().expect("pushed");
    let e = far.fetch("counted").call().expect_err("it does not fit");
    assert_eq!(e.failure_code(), Some(FailureCode::TooLarge), "{e}");
    assert!(e.to_string().contains(&BYTES.to_string()) && e.to_string().contains(&POOL.to_string()), "{e}");
    until_pool_is_free(&far, scene.b());
    let mut fetch = half_way(&far, far.fetch("k"), scene.b());
    scene.nodes[0].kill();
    let e = fetch.wait(WAIT_LIMIT).expect("in time").expect_err("the peer is gone");
    assert!(e.failure_code().is_some(), "{e}");
    until_pool_is_free(&far, scene.b());
    // The reader's session goes on.
    push(&far, "own", 1, 1);
    check(&far.fetch("own").call().expect("by reference"), 1);
}

fn batch(rows: usize, seed: usize) -> RecordBatch {
    let numbers = Float64Array::from_iter_values((0..rows).map(|n| (n * 5 + seed) as f64));
    let texts = StringArray::from_iter_values((0..rows).map(|n| format!("row {n} of {seed}")));
    let columns = [("n", Arc::new(numbers) as Arc<dyn Array>), ("t", Arc::new(texts) as Arc<dyn Array>)];
    RecordBatch::try_from_iter(columns).expect("two columns")
}

// Promise: large-tensors, seen to fail
#[test]
fn record_batches_larger_than_the_pool_come_in_buckets() {
    let scene = scene();
    let (pusher, far) = (connect(scene.a(), "pusher"), connect(scene.b(), "far"));
    let (one, other) = (batch(200_000, 1), batch(150_000, 2));
    for digest in [None, Some(Digest::Xxh3)] {
        let push = pusher.push_batch("batch", &one);
        if let Some(digest) = digest { push.digest(digest) } else { push }.call().expect("pushed");
        let found = far.fetch_batch("batch").bucket_bytes(SHORT).verify().call().expect("in buckets");
        assert!(found.batch() == &one && found.report().copied >= POOL);
        assert_eq!(found.report().verified > POOL, digest.is_some());
        let both = [one.clone(), other.clone()];
        pusher.push_table("table", &one.schema(), &both).call().expect("pushed");
        let found = far.fetch_table("table").call().expect("in buckets");
        assert!(found.batches() == both);
    }
    let (batches, tables) = (far.batch_subscriber("batch"), far.table_subscriber("table"));
    let (batches, tables) = (batches.expect("a name"), tables.expect("a name"));
    assert!(batches.next().call().expect("in buckets").batch() == &one);
    assert_eq!(tables.next().call().expect("in buckets").batches().len(), 2);
    // What is no batch says so.
    push(&pusher, "tensor", 1, 1);
    let e = far.fetch_batch("tensor").call().expect_err("a tensor");
    assert_eq!(e.failure_code(), Some(FailureCode::TooLarge), "{e}");
    until_pool_is_free(&far, scene.b());
    drop((batches, tables, pusher, far));
    scene.end();
}

/// The reader is in the middle when another worker takes the key over and pushes its first version, of the same shape. Where it has come to
/// by then is left to the machine: each round ends with one of the two, whole.
// Promise: large-tensors
#[test]
fn parts_of_another_push_with_the_same_number_are_not_mixed() {
    let scene = scene();
    let (near, far) = (connect(scene.a(), "near"), connect(scene.b(), "far"));
    let (first, second) = (elements(1), elements(2));
    for round in 0..8 {
        let [before, after] = ["before", "after"].map(|name| connect(scene.a(), &format!("{name}-{round}")));
        let key = format!("k{round}");
        before.push_slice(&key, DIMS, &first).version(1).call().expect("pushed");
        let (reader, of, had) = (far.clone(), key.clone(), bytes_in(scene.b()));
        let reading = std::thread::spawn(move || reader.fetch(&of).bucket_bytes(SHORT).timeout(WAIT_LIMIT).call());
        poll(|| (bytes_in(scene.b()) > had + BYTES / 8).then_some(()).ok_or("it has not begun")).expect("it begins");
        after.push_slice(&key, DIMS, &second).version(1).takeover().call().expect("pushed");
        let tensor = reading.join().expect("it ends").expect("one of them");
        assert_eq!((tensor.version(), tensor.shape()), (1, &DIMS[..]));
        let got = tensor.as_slice::<u64>().expect("its type");
        assert!(got == first || got == second, "round {round}: a mixture");
    }
    until_pool_is_free(&far, scene.b());
    drop((near, far));
    scene.end();
}
