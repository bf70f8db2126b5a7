//! What a push and a take-back do behind a delta, and how fast versions leave.

use std::future::{Future, IntoFuture};
use std::task::{Context, Waker};
use tokio::runtime::Builder;
use transfer_client::{BlockingClient, Client, DType, Error, NoDelta, TensorMut};
use transfer_tests::{Carrier, Scene};

/// One in a hundred of these bytes differs from the version before.
fn fill(tensor: &mut TensorMut, version: u64) {
    for (n, byte) in tensor.as_mut_bytes().iter_mut().enumerate() {
        let last = (n as u64 % 100..=version).step_by(100).last();
        *byte = (n % 251) as u8 ^ last.map_or(0, |last| last as u8 + 1);
    }
}

fn tensor(client: &BlockingClient, bytes: u64, version: u64) -> TensorMut {
    let mut tensor = client.allocate(DType::U8, [bytes]).expect("room");
    fill(&mut tensor, version);
    tensor
}

fn connect(scene: &Scene, name: &str) -> [BlockingClient; 2] {
    [scene.a(), scene.b()].map(|node| {
        let connect = BlockingClient::connect(node.socket()).name(format!("{name}-{}", node.name()));
        connect.arena_bytes(96 << 20).call().expect("the sidecar takes workers")
    })
}

// Promise: deltas, seen to fail
#[test]
fn version_behind_a_delta_that_cannot_be_written_stays_published() {
    let scene = Scene::two();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let socket = scene.a().socket();
    runtime.block_on(async {
        let client = Client::connect(socket).name("pusher").arena_bytes(256 << 20).await.expect("connected");
        let long = || client.allocate(DType::U8, [32 << 20]).expect("room");
        client.push_tensor("w", long()).await.expect("pushed");
        let frozen = long().freeze();
        let mut compared = Box::pin(client.push_tensor("w", long()).delta_of(1).into_future());
        let mut last = Box::pin(client.push_frozen("w", &frozen).into_future());
        let mut taken = Box::pin(client.take_back("w").into_future());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(compared.as_mut().poll(&mut cx).is_pending());
        assert!(last.as_mut().poll(&mut cx).is_pending());
        assert!(taken.as_mut().poll(&mut cx).is_pending());
        assert!(matches!(taken.await, Err(Error::NotAlone { .. })), "this process reads it");
        assert_eq!((compared.await.expect("pushed").version, last.await.expect("pushed").version), (2, 3));
        assert_eq!(client.fetch("w").await.expect("it stays").version(), 3);
    });
    drop(runtime);
    scene.end();
}

// Promise: deltas
#[test]
fn pushes_know_how_fast_versions_leave() {
    const LEN: u64 = 16 << 20;
    let scene = Scene::two();
    let [pusher, reader] = connect(&scene, "worker");
    let mut rates = Vec::new();
    for version in 1..=4 {
        let push = pusher.push_tensor("w", tensor(&pusher, LEN, version)).version(version).delta_of(version - 1);
        let delta = push.call().expect("pushed").delta.expect("it was to have one");
        let found = reader.fetch("w").at_least(version).call().expect("fetched");
        assert_eq!(found.report().delta, delta.bytes);
        // It follows from the rate and a sample.
        assert!(
            delta.bytes > 0 || delta.whole == Some(if version == 1 { NoDelta::NoBase } else { NoDelta::FastLinks })
        );
        rates.push(delta.link_rate > 0);
    }
    if Carrier::chosen().name() == "tcp" {
        // The first version has left before the second is pushed, and the third knows.
        assert_eq!(rates, [false, false, true, true]);
    }
    drop((pusher, reader));
    scene.end();
}
