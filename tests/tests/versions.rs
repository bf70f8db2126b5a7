//! Publishers and subscribers: on one node and between two, blocking and async, and over a restart of the sidecar.

use arrow_array::{ArrayRef, Int32Array, RecordBatch};
use std::sync::Arc;
use std::time::Duration;
use transfer_client::{
    BlockingClient, Client, DType, EpochBegan, Error, FabricKind, FailureCode, Publisher, Subscriber, Tensor,
    TensorMut, Until,
};
use transfer_tests::{Scene, Sidecar, Spec, poll};

/// A wait that is to end early.
const SHORT: Duration = Duration::from_millis(50);

fn connect(sidecar: &Sidecar, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(sidecar.socket()).name(name).arena_bytes(1 << 20);
    connect.call().expect("the sidecar takes workers")
}

fn filled<F: transfer_client::AnyClient>(publisher: &Publisher<F>, value: u64) -> TensorMut {
    let mut tensor = publisher.allocate(DType::U64, [64]).expect("there is room");
    tensor.as_mut_slice::<u64>().expect("of that type").fill(value);
    tensor
}

/// Publishes `value` as the version of the same number.
fn push(publisher: &Publisher<transfer_client::BlockingClient>, value: u64) {
    publisher.push(filled(publisher, value)).version(value).call().expect("it is published");
}

/// The version, whose every element has its number.
fn version(tensor: Result<Tensor, Error>) -> u64 {
    let tensor = tensor.expect("it is fetched");
    assert_eq!(tensor.as_slice::<u64>().expect("of that type"), [tensor.version(); 64]);
    tensor.version()
}

fn failed<T>(fetched: Result<T, Error>, code: FailureCode) {
    assert_eq!(fetched.map(drop).map_err(|e| e.failure_code()), Err(Some(code)));
}

// Promise: subscribers, seen to fail
#[test]
fn subscriber_returns_each_version_once_and_the_newest_first() {
    for scene in [Scene::with(&[&[]]), Scene::two()] {
        let (near, last) = (connect(scene.a(), "giver"), connect(scene.nodes.last().expect("a node"), "taker"));
        let (weights, read) = (near.publisher("w").expect("a key"), last.subscriber("w").expect("a key"));
        assert_eq!((weights.key(), read.key(), read.seen()), ("w", "w", None));
        failed(last.subscriber("w").expect("a key").timeout(SHORT).next().call(), FailureCode::UnknownKey);
        push(&weights, 1);
        assert_eq!(version(read.next().call()), 1);
        push(&weights, 2);
        push(&weights, 9);
        assert_eq!((version(read.next().call()), read.seen()), (9, Some(9)));
        // What was not returned is not skipped, however often it was waited for.
        failed(read.next().timeout(SHORT).call(), FailureCode::Deadline);
        drop(read.next());
        assert_eq!((version(read.latest().call()), read.seen()), (9, Some(9)));
        let behind = last.subscriber("w").expect("a key").after(9);
        std::thread::scope(|scope| {
            let waits = [&read, &behind].map(|read| scope.spawn(move || version(read.next().call())));
            push(&weights, 10);
            for wait in waits {
                assert_eq!(wait.join().expect("no panic"), 10);
            }
        });
        drop((near, last, weights, read, behind));
        scene.end();
    }
}

/// A subscriber that waits is woken by the publisher, and finds what it looks for without the sidecar.
// Promise: subscribers, seen to fail
#[test]
fn subscriber_finds_announced_versions_in_order() {
    const COUNT: u64 = 2000;
    let scene = Scene::with(&[&[]]);
    let (giver, taker) = (connect(scene.a(), "giver"), connect(scene.a(), "taker"));
    let (weights, read) = (giver.publisher("w").expect("a key"), taker.subscriber("w").expect("a key"));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut found = Vec::new();
            while found.last() != Some(&COUNT) {
                found.push(version(read.next().call()));
            }
            found
        });
        (1..=COUNT).for_each(|value| push(&weights, value));
        let found = reader.join().expect("no panic");
        assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
    });
    drop((giver, taker, weights, read));
    scene.end();
}

// Promise: subscribers
#[test]
fn subscriber_goes_on_after_a_restart_of_the_sidecar() {
    let mut scene = Scene::with(&[&[]]);
    let (giver, taker) = (connect(scene.a(), "giver"), connect(scene.a(), "taker"));
    let (weights, read) = (giver.publisher("w").expect("a key"), taker.subscriber("w").expect("a key"));
    // It waits for each, so it knows the notice of the key.
    for value in 1..=3 {
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| version(read.next().call()));
            push(&weights, value);
            assert_eq!(waits.join().expect("no panic"), value);
        });
    }
    scene.nodes[0].kill();
    scene.nodes[0].restart();
    let gone = |client: &BlockingClient| poll(|| client.gone().map_or(Ok(()), Err));
    assert_eq!((gone(&giver), gone(&taker)), (Ok(()), Ok(())));
    push(&weights, 4);
    assert_eq!(version(read.next().call()), 4);
    assert_eq!(version(read.latest().call()), 4);
    drop((giver, taker, weights, read));
    scene.end();
}

/// A trainer at version 1,000 dies, and goes on from its checkpoint at 901: on one node and between two, fetched and landed.
// Promise: subscribers
#[test]
fn subscriber_gets_versions_that_begin_again() {
    for (scene, to) in [(Scene::with(&[&[]]), None), (Scene::two(), None), (Scene::two(), Some("taker"))] {
        let taker = connect(scene.nodes.last().expect("a node"), "taker");
        let read = taker.subscriber("w").expect("a key");
        let push = |scene: &Scene, version: u64| {
            let mut trainer = scene.a().worker("trainer");
            let pushed = trainer.push("w", Spec::bytes(4096, 1)).version(version);
            match to {
                Some(to) => pushed.to(to).get(),
                None => pushed.get(),
            };
            trainer
        };
        let next = || read.next().call().map(|tensor| tensor.version());
        let first = push(&scene, 1000);
        assert_eq!((next(), read.epoch_began()), (Ok(1000), None));
        std::thread::scope(|scope| {
            let waits = scope.spawn(next);
            first.kill();
            scene.a().until("it is gone", |s| s.sessions.iter().all(|s| s.worker != "trainer"));
            let again = push(&scene, 901);
            assert_eq!(waits.join().expect("no panic"), Ok(901));
            let began = Some(EpochBegan { last: 1000, first: 901 });
            assert_eq!((read.epoch_began(), read.seen()), (began, Some(901)));
            // Each once, also in this epoch.
            failed(read.next().timeout(SHORT).call(), FailureCode::Deadline);
            drop(again);
        });
        // Nobody waits while it begins again, and the first that is seen is not its first.
        scene.a().until("it is gone", |s| s.sessions.iter().all(|s| s.worker != "trainer"));
        let again = push(&scene, 500);
        assert_eq!((next(), read.epoch_began()), (Ok(500), Some(EpochBegan { last: 901, first: 500 })));
        let late = taker.fetch("w").at_least(901).timeout(SHORT).call().map(drop).expect_err("it is at 500");
        assert_eq!(late.failure_code(), Some(FailureCode::Deadline));
        assert!(late.to_string().contains("v901") && late.to_string().contains("v500"), "{late}");
        drop((again, taker, read));
        scene.end();
    }
}

/// A worker that takes a key over begins it again.
// Promise: subscribers
#[test]
fn subscriber_gets_the_versions_of_a_takeover() {
    for scene in [Scene::with(&[&[]]), Scene::two()] {
        let taker = connect(scene.nodes.last().expect("a node"), "taker");
        let (old, new) = (connect(scene.a(), "old"), connect(scene.nodes.last().expect("a node"), "new"));
        let read = taker.subscriber("w").expect("a key");
        push(&old.publisher("w").expect("a key"), 9);
        assert_eq!(version(read.next().call()), 9);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| version(read.next().call()));
            let weights = new.publisher("w").expect("a key");
            weights.push(filled(&weights, 3)).version(3).takeover().call().expect("it takes the key");
            assert_eq!(waits.join().expect("no panic"), 3);
        });
        assert_eq!(read.epoch_began(), Some(EpochBegan { last: 9, first: 3 }));
        drop((old, new, taker, read));
        scene.end();
    }
}

#[test]
fn options_of_a_publisher_hold_for_each_push() {
    let scene = Scene::two();
    let (giver, taker) = (connect(scene.a(), "giver"), connect(scene.b(), "taker"));
    let kept = giver.publisher("kept").expect("a key").keep(Until::Deleted);
    (1..=2).for_each(|value| push(&kept, value));
    assert_eq!([1, 2].map(|n| version(taker.fetch("kept").exactly(n).call())), [1, 2]);
    // An option of one push is that of no other.
    kept.push(filled(&kept, 3)).keep(Until::Replaced).version(3).call().expect("it is published");
    push(&kept, 4);
    failed(taker.fetch("kept").exactly(3).call(), FailureCode::VersionGone);

    let landed = giver.publisher("landed").expect("a key").to("taker").require(FabricKind::Tcp);
    let pushed = landed.push_slice([64], &[1u64; 64]).call().expect("it lands");
    assert_eq!((pushed.version, pushed.report.fabric), (1, FabricKind::Tcp));
    let read = taker.subscriber("landed").expect("a key").require(FabricKind::Local);
    assert_eq!(version(read.next().call()), 1);
    let far = taker.subscriber("kept").expect("a key").require(FabricKind::Verbs);
    failed(far.next().call(), FailureCode::RequireUnmet);
    assert_eq!(far.seen(), None);

    let wrong = giver.publisher("wrong").expect("a key").to("no such name\n");
    for _ in 0..2 {
        let error = wrong.push(filled(&wrong, 1)).call().expect_err("no worker has that name");
        assert!(error.to_string().contains("no such name"), "{error}");
    }
    assert!(giver.publisher("").is_err() && taker.subscriber("").is_err());
    drop((giver, taker, kept, landed, wrong, read, far));
    scene.end();
}

#[test]
fn batches_tables_and_bundles_have_subscribers() {
    let scene = Scene::two();
    tokio::runtime::Runtime::new().expect("a runtime").block_on(all_kinds(&scene));
    scene.end();
}

async fn all_kinds(scene: &Scene) {
    let connect = |sidecar: &Sidecar, name: &str| Client::connect(sidecar.socket()).name(name).arena_bytes(1 << 20);
    let giver = connect(scene.a(), "giver").await.expect("a session");
    let taker = connect(scene.b(), "taker").await.expect("a session");
    let column: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("x", column)]).expect("one column");
    let publisher = |key: &str| giver.publisher(key).expect("a key");

    publisher("batch").push_batch(&batch).await.expect("it is published");
    let read: Subscriber<_, _> = taker.batch_subscriber("batch").expect("a key");
    assert_eq!(read.next().await.expect("it is fetched").into_batch(), batch);

    let pushed = publisher("table").push_table(batch.schema_ref(), [&batch, &batch]).version(5).await;
    pushed.expect("it is published");
    let read = taker.table_subscriber("table").expect("a key").after(4);
    assert_eq!(read.next().await.expect("it is fetched").into_batches(), [batch.clone(), batch]);
    assert_eq!(read.seen(), Some(5));

    let tensors = ["w", "b"].map(|name| (name, giver.allocate(DType::U8, [3]).expect("there is room")));
    publisher("bundle").push_bundle(tensors).await.expect("it is published");
    let read = taker.bundle_subscriber("bundle").expect("a key");
    let names = |bundle: transfer_client::FetchedBundle| bundle.len();
    assert_eq!(read.next().await.map(names).ok(), Some(2));

    // A subscriber that is given up while it waits has missed nothing.
    let (weights, read) = (publisher("w"), taker.subscriber("w").expect("a key"));
    tokio::select! {
        biased;
        fetched = std::future::IntoFuture::into_future(read.next()) => panic!("nothing is published: {fetched:?}"),
        () = tokio::task::yield_now() => {}
    }
    weights.push(filled(&weights, 1)).await.expect("it is published");
    assert_eq!(version(read.next().await), 1);
    let snapshot = filled(&weights, 2);
    weights.push_snapshot(&snapshot).await.expect("it is published");
    assert_eq!(version(read.next().await), 2);
    weights.push_frozen(&filled(&weights, 3).freeze()).await.expect("it is published");
    assert_eq!(version(read.next().await), 3);
}
