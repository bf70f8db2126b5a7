//! Clients of a sidecar inside of this process.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used, reason = "test")]

mod thread;

use std::future::IntoFuture;
use std::task::{Context, Waker};
use std::time::Duration;
use thread::{Thread, becomes};
use transfer_client::{BlockingClient, Client, DType, Error, FabricKind, FailureCode, embedded_socket};

#[tokio::test]
async fn two_clients_share_the_sidecar_of_the_process() -> Result<(), Error> {
    let trainer = Client::embedded().name("trainer").arena_bytes(1 << 20).await?;
    let reader = Client::embedded().name("reader").arena_bytes(0).await?;
    let mut weights = trainer.allocate(DType::F32, [16])?;
    weights.as_mut_slice::<f32>()?.fill(0.5);
    trainer.push_tensor("w", weights).version(7).await?;

    let weights = reader.fetch("w").at_least(7).await?;
    assert_eq!((weights.version(), weights.as_slice::<f32>()?), (7, &[0.5; 16][..]));
    assert_eq!((weights.report().fabric, weights.report().copied), (FabricKind::Local, 0));
    let e = reader.push_slice("w", [1], &[1u8]).await.map_err(Error::from);
    assert_eq!(e.map_err(|e| e.failure_code()), Err(Some(FailureCode::KeyOwned)));
    drop((trainer, reader));
    assert_eq!(weights.as_slice::<f32>()?, [0.5; 16]);
    Ok(())
}

/// Starts a call, and gives it up at once.
fn start_and_drop(future: impl IntoFuture) {
    let mut future = Box::pin(future.into_future());
    let _ = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
}

/// Drops memory while another thread of this client waits for more of it. No other thread reads for the client, so that one sleeps where
/// replies would wake it, and looks at no other time.
fn goes_on_when_memory_is_dropped(client: &BlockingClient) {
    let mut held: Vec<_> = (0..4).map(|_| client.allocate(DType::U8, [1 << 18]).unwrap()).collect();
    let (begins, began) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            begins.send(Thread::current()).unwrap();
            client.allocate_wait(DType::U8, [1 << 20]).timeout(Duration::from_secs(600)).call().map(drop)
        });
        let thread = began.recv().unwrap();
        thread.wait_until_asleep();
        thread.assert_asleep();
        // Each wakes it, and is too little.
        while held.len() > 1 {
            let before = thread.sleeps();
            drop(held.pop());
            assert!(becomes(|| thread.sleeps() > before), "it has looked, and sleeps again");
            thread.wait_until_asleep();
        }
        thread.assert_asleep();
        drop(held);
        waits.join().unwrap().expect("there is room");
    });
}

#[test]
fn a_thread_that_waits_for_room_goes_on_when_another_one_drops_memory() {
    let client = BlockingClient::embedded().name("waits for room").arena_bytes(1 << 20).call().unwrap();
    // The other one does not turn the engine, and sleeps on its socket.
    let socket = embedded_socket().unwrap();
    let other = BlockingClient::connect(socket).name("waits at a socket").arena_bytes(1 << 20).call().unwrap();
    for _ in 0..2 {
        goes_on_when_memory_is_dropped(&client);
        goes_on_when_memory_is_dropped(&other);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_calls_disturb_no_other_and_leave_nothing_behind() {
    const ROUNDS: u64 = 200;
    let writer = Client::embedded().name("writer").arena_bytes(1 << 20).await.unwrap();
    let reader = Client::embedded().name("another reader").arena_bytes(0).await.unwrap();
    let tasks: Vec<_> = (0..4)
        .map(|i| {
            let (writer, reader, key) = (writer.clone(), reader.clone(), format!("key-{i}"));
            tokio::spawn(async move {
                for round in 1..=ROUNDS {
                    let t = writer.allocate_wait(DType::U64, [32]).timeout(Duration::from_secs(20));
                    let mut t = t.await.unwrap();
                    t.as_mut_slice::<u64>().unwrap().fill(round);
                    // The fetch is sent before its version is pushed.
                    let fetched = tokio::spawn(reader.fetch(&key).exactly(round).into_future());
                    tokio::task::yield_now().await;
                    start_and_drop(reader.fetch(&key));
                    writer.push_tensor(&key, t).version(round).await.unwrap();
                    start_and_drop(reader.fetch(&key));
                    start_and_drop(reader.fetch(&key).at_least(round + 1));
                    start_and_drop(writer.push_slice(format!("{key}/dropped"), [3], &[1u8, 2, 3]));
                    let fetched = fetched.await.unwrap().unwrap();
                    assert_eq!(fetched.as_slice::<u64>().unwrap(), [round; 32]);
                }
                writer.delete(&key).await.unwrap();
                let _ = writer.delete(format!("{key}/dropped")).await;
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // All of the arena is free again.
    writer.allocate_wait(DType::U8, [1 << 20]).timeout(Duration::from_secs(20)).await.unwrap();
}
