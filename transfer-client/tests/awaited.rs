//! The async client against a sidecar that the test plays.
#![allow(clippy::unwrap_used, reason = "test")]

mod sidecar;

use sidecar::{Honest, Script, Sidecar};
use std::future::{Future, IntoFuture};
use std::task::{Context, Waker};
use std::time::Duration;
use transfer_client::{Client, DType, Error, NoDelta, SessionEnd};

async fn start(script: impl Script, arena_bytes: u64) -> (Sidecar, Client) {
    let (sidecar, socket) = Sidecar::start(script);
    let client = Client::from_socket(socket).name("trainer-0").arena_bytes(arena_bytes).await.unwrap();
    (sidecar, client)
}

/// Starts a call, and gives it up at once.
fn start_and_drop(future: impl IntoFuture) {
    let mut future = Box::pin(future.into_future());
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

async fn told(sidecar: &Sidecar, expected: impl Fn(&sidecar::Heard) -> bool) {
    for _ in 0..2000 {
        if expected(&sidecar.heard()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?}", sidecar.heard());
}

#[tokio::test]
async fn pushed_tensor_is_fetched() {
    let (sidecar, client) = start(Honest::default(), 1 << 20).await;
    let free = client.arena_free_bytes();
    // A fetch may be sent before its push.
    let early = tokio::spawn(client.fetch("w").exactly(1).into_future());
    let mut w = client.allocate(DType::F64, [2]).unwrap();
    w.as_mut_slice::<f64>().unwrap().copy_from_slice(&[1.0, 2.0]);
    assert_eq!(client.push_tensor("w", w).await.unwrap().version, 1);
    let early = early.await.unwrap().unwrap();
    assert_eq!(early.as_slice::<f64>().unwrap(), [1.0, 2.0]);
    client.push_slice("w", [3], &[1u8, 2, 3]).await.unwrap();
    assert!(client.fetch("w").exactly(1).await.is_err());
    drop(early);
    client.delete("w").await.unwrap();
    told(&sidecar, |heard| heard.leases == 0 && heard.pushed == 0).await;
    assert!(client.delete("w").await.is_err());
    assert_eq!(client.arena_free_bytes(), free);
}

// Promise: dropped-calls, seen to fail
#[tokio::test]
async fn a_dropped_call_is_cancelled_and_its_late_result_released() {
    let (sidecar, client) = start(Honest::default(), 1 << 20).await;
    let free = client.arena_free_bytes();
    start_and_drop(client.fetch("later"));
    told(&sidecar, |heard| heard.cancelled.len() == 1).await;
    // The answer is faster than the cancellation.
    client.push_tensor("k", client.allocate(DType::U8, [1]).unwrap()).await.unwrap();
    for _ in 0..100 {
        start_and_drop(client.fetch("k"));
        start_and_drop(client.push_tensor("p", client.allocate(DType::U8, [1]).unwrap()));
        start_and_drop(client.fetch_many(["k", "later", "k"]));
    }
    // Some calls found the ring full, and were never sent.
    client.delete("k").await.unwrap();
    client.delete("p").await.unwrap();
    told(&sidecar, |heard| heard.leases == 0 && heard.pushed == 0 && heard.released.len() > 50).await;
    assert!(client.delete("p").await.is_err());
    assert_eq!(client.arena_free_bytes(), free);
}

#[tokio::test]
async fn allocations_wait_and_give_up_in_time() {
    let (_sidecar, client) = start(Honest::default(), 4096).await;
    client.push_tensor("k", client.allocate(DType::U8, [4096]).unwrap()).await.unwrap();
    let full = client.allocate_wait(DType::U8, [1]).timeout(Duration::from_millis(30)).await;
    assert!(matches!(full, Err(Error::ArenaFull { .. })));
    let waiting = tokio::spawn(client.allocate_wait(DType::U8, [1]).timeout(Duration::from_secs(20)).into_future());
    client.delete("k").await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn calls_wait_for_a_full_ring() {
    let (sidecar, client) = start(Honest::default(), 1 << 20).await;
    sidecar.set_deaf(true);
    let tensors: Vec<_> = (0..2000).map(|i| (format!("key-{i}"), client.allocate(DType::U8, [1]).unwrap())).collect();
    let keys: Vec<_> = tensors.iter().map(|(key, _)| key.clone()).collect();
    let pushes = tokio::spawn(client.push_many(tensors).into_future());
    tokio::time::sleep(Duration::from_millis(30)).await;
    sidecar.set_deaf(false);
    assert!(pushes.await.unwrap().into_iter().all(|r| r.is_ok()));
    let fetched = client.fetch_many(&keys).await;
    assert!(fetched.iter().all(|t| t.as_ref().unwrap().version() == 1));
    // The releases find a full ring; the driver sends the rest.
    sidecar.set_deaf(true);
    drop(fetched);
    sidecar.set_deaf(false);
    told(&sidecar, |heard| heard.leases == 0).await;
}

// Promise: deltas, seen to fail
#[tokio::test]
async fn pushes_keep_their_order_where_a_delta_finds_a_full_ring() {
    let (sidecar, client) = start(Honest::default(), 16 << 20).await;
    let long = || client.allocate(DType::U8, [2 << 20]).unwrap();
    client.push_tensor("w", long()).await.unwrap();
    sidecar.set_deaf(true);
    let tensors: Vec<_> = (0..2000).map(|i| (format!("key-{i}"), client.allocate(DType::U8, [1]).unwrap())).collect();
    let mut pushes = Box::pin(client.push_many(tensors).into_future());
    let mut first = Box::pin(client.push_tensor("w", long()).delta_of(1).into_future());
    let mut second = Box::pin(client.push_tensor("w", long()).delta_of(1).into_future());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pushes.as_mut().poll(&mut cx).is_pending());
    assert!(first.as_mut().poll(&mut cx).is_pending());
    assert!(second.as_mut().poll(&mut cx).is_pending());
    // Nobody who waits has it until there is room, unless it is given up for the want of it.
    tokio::time::sleep(Duration::from_millis(200)).await;
    sidecar.set_deaf(false);
    let second = second.await.unwrap().version;
    assert_eq!((first.await.unwrap().version, second), (2, 3));
    assert!(pushes.await.into_iter().all(|r| r.is_ok()));
}

// Promise: deltas
#[tokio::test]
async fn delta_is_made_only_where_the_whole_version_is_not_there_sooner() {
    for (link_rate, whole) in [(0, None), (1, None), (u64::MAX, Some(NoDelta::FastLinks))] {
        let (_sidecar, client) = start(Honest::with_link_rate(link_rate), 64 << 20).await;
        let push = || client.push_tensor("w", client.allocate(DType::U8, [16 << 20]).unwrap());
        push().await.unwrap();
        let delta = push().delta_of(1).await.unwrap().delta.unwrap();
        assert_eq!((delta.link_rate, delta.whole, delta.bytes > 0), (link_rate, whole, whole.is_none()), "{delta:?}");
        assert!(delta.compared > 0 && (whole.is_none() || delta.compared < 1 << 20), "{delta:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_and_threads_share_a_session() {
    const ROUNDS: u64 = 300;
    let (sidecar, client) = start(Honest::default(), 1 << 20).await;
    let threads: Vec<_> = (0..2)
        .map(|i| {
            let client = client.blocking();
            std::thread::spawn(move || {
                for round in 1..=ROUNDS {
                    client.fetch(format!("task-{i}")).at_least(round).call().unwrap();
                    let t = client.allocate(DType::U8, [1]).unwrap();
                    client.push_tensor(format!("thread-{i}"), t).version(round).call().unwrap();
                }
            })
        })
        .collect();
    let tasks: Vec<_> = (0..2)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move {
                for round in 1..=ROUNDS {
                    let t = client.allocate(DType::U8, [1]).unwrap();
                    client.push_tensor(format!("task-{i}"), t).version(round).await.unwrap();
                    client.fetch(format!("thread-{i}")).at_least(round).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    told(&sidecar, |heard| heard.leases == 0 && heard.pushed == 4).await;
}

#[tokio::test]
async fn futures_fail_when_the_sidecar_dies() {
    let (mut sidecar, client) = start(Honest::default(), 1 << 20).await;
    let waiting = tokio::spawn(client.fetch("never").into_future());
    told(&sidecar, |heard| heard.requests == 1).await;
    sidecar.kill();
    assert_eq!(waiting.await.unwrap().unwrap_err(), Error::SidecarGone(SessionEnd::Closed));
    assert_eq!(client.fetch("never").await.unwrap_err(), Error::SidecarGone(SessionEnd::Closed));
}

#[tokio::test]
async fn connect_fails_without_a_listener() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("worker.sock");
    let e = Client::connect(&path).await.unwrap_err();
    assert!(matches!(e, Error::Connect(_)) && e.can_retry(), "{e}");
    assert!(e.to_string().contains("worker.sock"), "{e}");
    assert!(matches!(Client::connect(&path).name("").await, Err(Error::Name(_))));
}
