//! Clients of a sidecar inside of this process.
#![cfg(feature = "embedded")]
#![allow(clippy::unwrap_used, reason = "test")]

use std::future::IntoFuture;
use std::path::Path;
use std::task::{Context, Waker};
use std::time::Duration;
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

/// A thread that looked every 10 ms would do so 40 times.
const WATCHED: Duration = Duration::from_millis(400);

/// How often a thread has gone to sleep.
fn sleeps_of(thread: &Path) -> u64 {
    let status = std::fs::read_to_string(thread.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Drops memory while another thread of this client waits for it. No other thread reads for the client, so that one sleeps where replies
/// would wake it, and looks at no other time.
fn goes_on_when_memory_is_dropped(client: &BlockingClient) {
    let held = client.allocate(DType::U8, [1 << 20]).unwrap();
    let (begins, began) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            begins.send(Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap())).unwrap();
            client.allocate_wait(DType::U8, [1 << 20]).timeout(Duration::from_secs(600)).call().map(drop)
        });
        let thread = began.recv().unwrap();
        while !std::fs::read_to_string(thread.join("stat")).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        let before = sleeps_of(&thread);
        std::thread::sleep(WATCHED);
        let looked = sleeps_of(&thread) - before;
        assert!(looked < 10, "it has looked {looked} times in {WATCHED:?}, and nothing has come");
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
    for _ in 0..3 {
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
