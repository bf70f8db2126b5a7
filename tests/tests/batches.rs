//! Many tensors in one call, between two nodes: each tensor arrives or returns its own error, and the other tensors are
//! unaffected.

use transfer_client::{BlockingClient, Client, DType, Error, FailureCode, TensorMut, Until};
use transfer_tests::order::Report;
use transfer_tests::{Carrier, Scene, Spec, Worker, pattern};

fn connect(worker: &transfer_tests::Sidecar, name: &str) -> BlockingClient {
    BlockingClient::connect(worker.socket()).name(name).arena_bytes(16 << 20).call().expect("the sidecar takes workers")
}

/// Describes tensors of all sizes: empty, larger than a packet, and larger than one gather list holds.
fn specs(count: u64) -> Vec<Spec> {
    (0..count).map(|i| Spec::bytes(i * i * 73, 1000 + i)).collect()
}

fn filled(client: &BlockingClient, spec: &Spec) -> TensorMut {
    let mut tensor = client.allocate(DType::U8, &spec.shape).expect("there is room");
    pattern::fill(tensor.as_mut_bytes(), DType::U8, spec.seed);
    tensor
}

fn report(report: &transfer_client::Report) -> Report {
    let transfer_client::Report { fabric, bytes, copied, .. } = *report;
    Report { fabric: fabric.name().to_owned(), bytes, copied, relayed: report.relayed, text: report.to_string() }
}

#[test]
fn fetch_many_returns_each_tensor_or_its_error() {
    let scene = Scene::two();
    let (giver, taker) = (connect(scene.a(), "giver"), connect(scene.b(), "taker"));
    let specs = specs(60);
    let tensors: Vec<_> = (0..).zip(&specs).map(|(i, spec)| (format!("{i}"), filled(&giver, spec))).collect();
    for pushed in giver.push_many(tensors).call() {
        assert_eq!(pushed.expect("nothing is in the way").version, 1);
    }
    let keys = (0..specs.len()).map(|i| i.to_string());
    for (fetched, spec) in taker.fetch_many(keys).call().into_iter().zip(&specs) {
        let tensor = fetched.expect("it is published");
        assert_eq!(pattern::sum(tensor.as_bytes()), spec.sum(), "{spec:?}");
        Carrier::chosen().carried(&report(tensor.report()));
    }
    // One key is not published. Its fetch fails at the deadline, and the other two succeed.
    let some = ["3", "nobody's", "4"];
    let fetched = taker.fetch_many(some).timeout(transfer_tests::WAIT_LIMIT / 20).call();
    let sums: Vec<_> =
        fetched.iter().map(|f| f.as_ref().map(|t| pattern::sum(t.as_bytes())).map_err(ToString::to_string)).collect();
    assert_eq!((&sums[0], &sums[2]), (&Ok(specs[3].sum()), &Ok(specs[4].sum())));
    assert!(sums[1].is_err(), "nobody has pushed it");
    drop((fetched, giver, taker));
    scene.end();
}

#[test]
fn push_many_lands_each_tensor_at_the_receiver() {
    let scene = Scene::two();
    let (giver, taker) = (connect(scene.a(), "giver"), connect(scene.b(), "taker"));
    for version in 1..=3 {
        let specs = specs(40);
        let tensors: Vec<_> = (0..).zip(&specs).map(|(i, spec)| (format!("{i}"), filled(&giver, spec))).collect();
        for pushed in giver.push_many(tensors).version(version).to("taker").call() {
            Carrier::chosen().carried(&report(&pushed.expect("the taker is there").report));
        }
        let keys = (0..specs.len()).map(|i| i.to_string());
        for (fetched, spec) in taker.fetch_many(keys).exactly(version).call().into_iter().zip(&specs) {
            let tensor = fetched.expect("it has landed");
            assert_eq!(pattern::sum(tensor.as_bytes()), spec.sum(), "version {version}: {spec:?}");
            assert_eq!(tensor.report().fabric.name(), "local");
        }
    }
    let lost = giver.push_many([("lost", filled(&giver, &Spec::bytes(10, 1)))]).to("nobody").call();
    let error: Vec<_> = lost.into_iter().map(|l| l.expect_err("nobody is there").error().failure_code()).collect();
    assert_eq!(error, [Some(FailureCode::UnknownWorker)]);
    drop((giver, taker));
    scene.end();
}

/// Pushes one key many times without waiting in between. Each push is the version after the previous one, at the
/// pusher's node and at the receiver's.
// Promise: order-of-pushes, seen to fail
#[test]
fn pushes_of_one_key_get_versions_in_their_order() {
    let scene = Scene::two();
    let (giver, near, far) = (connect(scene.a(), "giver"), connect(scene.a(), "near"), connect(scene.b(), "far"));
    for (key, to) in [("here", "near"), ("there", "far")] {
        let specs: Vec<_> = (1..=40).map(|seed| Spec::bytes(10_000, seed)).collect();
        let tensors: Vec<_> = specs.iter().map(|spec| (key, filled(&giver, spec))).collect();
        let pushed = giver.push_many(tensors).to(to).keep(Until::Deleted).call();
        let versions: Vec<_> =
            pushed.into_iter().map(|pushed| pushed.expect("nothing is in the way").version).collect();
        assert_eq!(versions, (1..=40).collect::<Vec<_>>());
        let taker = if to == "near" { &near } else { &far };
        let newest = taker.fetch(key).call().expect("all are there");
        assert_eq!(newest.version(), 40);
        for (version, spec) in (1..).zip(&specs) {
            let fetched = taker.fetch(key).exactly(version).call().expect("it stays");
            assert_eq!(pattern::sum(fetched.as_bytes()), spec.sum(), "{key}: version {version}");
        }
    }
    drop((giver, near, far));
    scene.end();
}

/// Drops futures at many moments of a transfer. The pool has room for few tensors, so a slot that is not freed would
/// show.
#[test]
fn dropped_futures_leak_no_landing_slot() {
    const LEN: u64 = 3 << 20;
    let mut scene = Scene::two_with(&["--pool-bytes", "16MiB"]).with_bystanders();
    let mut giver = scene.a().worker("giver");
    let mut receiver = Worker::of(scene.b(), "receiver").start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (taker, pusher) = runtime
        .block_on(async {
            let taker = Client::connect(scene.b().socket()).name("taker").arena_bytes(0).await?;
            let pusher = Client::connect(scene.a().socket()).name("pusher").arena_bytes(16 << 20).await?;
            Ok::<_, Error>((taker, pusher))
        })
        .expect("the sidecars take workers");
    for round in 1..=40_u64 {
        let patience = std::time::Duration::from_micros(round * round * 30);
        // Each round has another size, so that a new slot is requested.
        let spec = Spec::bytes(LEN + round, round);
        giver.push("w", spec.clone()).version(round).get();
        runtime.block_on(async {
            let mut tensor =
                pusher.allocate_wait(DType::U8, &spec.shape).timeout(transfer_tests::WAIT_LIMIT).await.expect("room");
            pattern::fill(tensor.as_mut_bytes(), DType::U8, spec.seed);
            let push =
                pusher.push_tensor("x", tensor).version(round).to("receiver").timeout(transfer_tests::WAIT_LIMIT);
            let fetch = taker.fetch("w").exactly(round).timeout(transfer_tests::WAIT_LIMIT);
            let (fetched, pushed) = tokio::join!(
                tokio::time::timeout(patience, fetch.into_future()),
                tokio::time::timeout(patience, push.into_future())
            );
            if let Ok(fetched) = fetched {
                assert_eq!(pattern::sum(fetched.expect("it is published").as_bytes()), spec.sum());
            }
            if let Ok(pushed) = pushed {
                assert_eq!(pushed.expect("the receiver is there").version, round);
            }
        });
    }
    let last = Spec::bytes(LEN, 99);
    // The flow of "x" holds slots of an older size until its next version has arrived.
    runtime.block_on(async {
        let mut tensor =
            pusher.allocate_wait(DType::U8, &last.shape).timeout(transfer_tests::WAIT_LIMIT).await.expect("room");
        pattern::fill(tensor.as_mut_bytes(), DType::U8, last.seed);
        let push = pusher.push_tensor("x", tensor).version(99).to("receiver").timeout(transfer_tests::WAIT_LIMIT);
        push.into_future().await.expect("the receiver is there");
    });
    giver.push("w", last.clone()).version(99).get();
    giver.push("y", last.clone()).version(99).to("receiver").get();
    let fetched = runtime.block_on(taker.fetch("w").exactly(99).into_future()).expect("it is published");
    assert_eq!(pattern::sum(fetched.as_bytes()), last.sum());
    assert_eq!(receiver.fetch("y").exactly(99).get().sum, last.sum());
    scene.others_go_on();
    drop((fetched, giver, receiver, taker, pusher));
    drop(runtime);
    scene.end();
}
