//! A client that is closed: every call that waits ends at once, and the worker's name is free.

use std::future::{Future, IntoFuture};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::time::Duration;
use transfer_client::{BlockingClient, Client, DType, FailureCode, embedded_socket};
use transfer_exchange::{Error, ExchangeExt};
use transfer_tests::{Scene, WAIT_LIMIT, poll, sidecar_of_this_process};

/// No wait ends by its own time-out.
const HOUR: Duration = Duration::from_secs(3600);
const ARENA: u64 = 1 << 20;

/// Makes each call that waits, of a client whose arena is full, and a version of which, under "held", has a reader.
macro_rules! waits {
    ($make:ident, $client:expr) => {
        vec![
            $make!($client, "fetch", |c| c.fetch("never").timeout(HOUR)),
            $make!($client, "at_least", |c| c.fetch("held").at_least(2).timeout(HOUR)),
            $make!($client, "latest again", |c| c.subscriber("held").expect("a key").after(1).timeout(HOUR).next()),
            $make!($client, "batch", |c| c.fetch_batch("never").timeout(HOUR)),
            $make!($client, "table", |c| c.fetch_table("never").timeout(HOUR)),
            $make!($client, "bundle", |c| c.fetch_bundle("never").timeout(HOUR)),
            $make!($client, "part of a bundle", |c| c.fetch_bundle("never").timeout(HOUR).only(["w"])),
            $make!($client, "barrier", |c| c.barrier("never", 2).wait().timeout(HOUR)),
            $make!($client, "exchange", |c| c.exchange("never").join().timeout(HOUR)),
            $make!($client, "room", |c| c.allocate_wait(DType::U8, [ARENA / 2]).timeout(HOUR)),
            $make!($client, "room for a push", |c| c
                .push_slice("k", [ARENA / 2], &[0u8; ARENA as usize / 2])
                .timeout(HOUR)),
            $make!($client, "take_back", |c| c.take_back("held").timeout(HOUR)),
        ]
    };
}

type Blocks = Box<dyn FnOnce() -> Result<(), Error> + Send>;
type Waits = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

macro_rules! blocking {
    ($client:expr, $name:literal, |$c:ident| $call:expr) => {{
        let $c = $client.clone();
        ($name, Box::new(move || $call.call().map(drop).map_err(Error::from)) as Blocks)
    }};
}

macro_rules! awaited {
    ($client:expr, $name:literal, |$c:ident| $call:expr) => {{
        let $c = $client.clone();
        ($name, Box::pin(async move { $call.await.map(drop).map_err(Error::from) }) as Waits)
    }};
}

/// Fills the arena, but for a little, and gives "held" a reader.
fn prepare(client: &BlockingClient) -> (impl Sized + use<>, impl Sized + use<>) {
    client.push_slice("held", [ARENA / 2], &vec![1u8; ARENA as usize / 2]).call().expect("room");
    let reader = client.fetch("held").call().expect("it is published");
    (reader, client.allocate(DType::U8, [ARENA / 4]).expect("room"))
}

fn check(name: &str, ended: Result<(), Error>) {
    let error = ended.expect_err(name);
    assert_eq!(error, transfer_client::Error::ClientClosed.into(), "{name}: {error}");
    assert!(!error.can_retry() && error.to_string().contains("this client was closed"), "{name}: {error}");
}

/// The name is taken by another client at once.
fn is_free(path: &PathBuf, name: &str) {
    let again = BlockingClient::connect(path).name(name).arena_bytes(0).call();
    again.expect("the name is free").close();
}

fn is_asleep(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
}

fn close_ends_blocking_waits(client: &BlockingClient, path: &PathBuf) {
    let held = prepare(client);
    let mut waits: Vec<(&str, Blocks)> = waits!(blocking, client);
    let (reader, stream) = (client.clone(), "stream");
    waits.push((stream, Box::new(move || Ok(reader.fetch_stream("never").timeout(HOUR).next().map(drop)?))));
    let threads: Vec<_> = waits
        .into_iter()
        .map(|(name, wait)| {
            let ((number, numbered), (ended, ends)) = (channel(), channel());
            std::thread::spawn(move || {
                number.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("it is received");
                ended.send(wait())
            });
            (name, numbered.recv().expect("it is sent"), ends)
        })
        .collect();
    for (name, number, _) in &threads {
        poll(|| if is_asleep(*number) { Ok(()) } else { Err("awake") }).unwrap_or_else(|e| panic!("{name} is {e}"));
    }
    client.close();
    is_free(path, client.name());
    for (name, _, ends) in threads {
        check(name, ends.recv_timeout(WAIT_LIMIT).unwrap_or_else(|_| panic!("{name} waits on")));
    }
    check("a later call", client.fetch("held").call().map(drop).map_err(Error::from));
    drop(held);
}

// Promise: closed-clients, seen to fail
#[test]
fn close_ends_every_wait_of_a_blocking_client() {
    let scene = Scene::one();
    let path = scene.a().socket();
    let client = BlockingClient::connect(&path).name("closed").arena_bytes(ARENA).call().expect("a session");
    close_ends_blocking_waits(&client, &path);
}

async fn close_ends_awaited_waits(client: Client, path: PathBuf) {
    let held = prepare(&client.blocking());
    let mut waits: Vec<(&str, Waits)> = waits!(awaited, client);
    let reader = client.clone();
    waits.push((
        "stream",
        Box::pin(async move { Ok(reader.fetch_stream("never").timeout(HOUR).next().await.map(drop)?) }),
    ));
    // Each has taken its first step, which sends it.
    let mut first = std::task::Context::from_waker(std::task::Waker::noop());
    for (name, wait) in &mut waits {
        assert!(wait.as_mut().poll(&mut first).is_pending(), "{name}");
    }
    let tasks: Vec<_> = waits.into_iter().map(|(name, wait)| (name, tokio::spawn(wait))).collect();
    client.close().await;
    is_free(&path, client.name());
    for (name, task) in tasks {
        let ended = tokio::time::timeout(WAIT_LIMIT, task).await.unwrap_or_else(|_| panic!("{name} waits on"));
        check(name, ended.expect("it does not panic"));
    }
    check("a later call", client.fetch("held").into_future().await.map(drop).map_err(Error::from));
    drop(held);
}

// Promise: closed-clients, seen to fail
#[test]
fn close_ends_every_wait_of_an_async_client() {
    let scene = Scene::one();
    let path = scene.a().socket();
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let client = Client::connect(&path).name("closed").arena_bytes(ARENA).await.expect("a session");
        close_ends_awaited_waits(client, path).await;
    });
}

// Promise: closed-clients
#[test]
fn close_ends_every_wait_of_embedded_clients() {
    let _turn = sidecar_of_this_process();
    let client = BlockingClient::embedded().name("closed").arena_bytes(ARENA).call().expect("a session");
    close_ends_blocking_waits(&client, &embedded_socket().expect("it runs"));
    drop(client);
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let client = Client::embedded().name("closed").arena_bytes(ARENA).await.expect("a session");
        close_ends_awaited_waits(client, embedded_socket().expect("it runs")).await;
    });
}

// Promise: closed-clients, seen to fail
#[test]
fn what_a_closed_client_has_fetched_stays_until_it_is_dropped() {
    let scene = Scene::one();
    let connect = |name: &str| {
        BlockingClient::connect(scene.a().socket()).name(name).arena_bytes(ARENA).call().expect("a session")
    };
    let (giver, reader) = (connect("giver"), connect("reader"));
    let push = |n: u8| giver.push_slice("k", [ARENA / 4], &vec![n; ARENA as usize / 4]).call().expect("room");
    push(1);
    // One is leased by the sidecar, the other is looked up.
    let kept = [reader.fetch("k").call().expect("it is there"), reader.fetch("k").call().expect("it is there")];
    reader.push_slice("mine", [1], &[1u8]).call().expect("room");
    drop(giver.fetch("mine").timeout(Duration::ZERO).call().expect("it is published"));
    reader.close();
    scene.a().until("its session is over", |s| s.sessions.len() == 1);
    let ended = giver.fetch("mine").timeout(Duration::ZERO).call().expect_err("what it published has ended");
    assert!(ended.failure_code() == Some(FailureCode::UnknownKey), "{ended}");
    for n in 2..20 {
        push(n);
        assert!(kept.iter().all(|tensor| tensor.as_bytes().iter().all(|byte| *byte == 1)), "version {n}");
    }
    drop((kept, reader));
    // All but the newest is free again.
    poll(|| match giver.allocate(DType::U8, [ARENA / 4 * 3]) {
        Ok(_) => Ok(()),
        Err(e) => {
            giver.take_answers();
            Err(e)
        }
    })
    .expect("room");
}

// Promise: closed-clients
#[test]
fn close_does_not_wait_for_a_sidecar_that_is_gone_and_no_session_follows() {
    let mut scene = Scene::one();
    let path = scene.a().socket();
    let connect = |name: &str| BlockingClient::connect(&path).name(name).arena_bytes(ARENA).call().expect("a session");
    let (client, witness) = (connect("closed"), connect("witness"));
    client.push_slice("k", [1], &[1u8]).call().expect("room");
    scene.nodes[0].kill();
    for client in [&client, &witness] {
        poll(|| client.gone().ok_or("it is not gone").map(drop)).expect("it is noticed");
    }
    client.close();
    assert_eq!(client.fetch("k").call().expect_err("it is closed"), transfer_client::Error::ClientClosed);
    scene.nodes[0].restart();
    // One that was not closed comes back, and the closed one had as much time.
    poll(|| witness.gone().map_or(Ok(()), Err)).expect("it comes back");
    is_free(&path, "closed");
    scene.a().until("none but the witness is there", |s| s.sessions.len() == 1);
    assert_eq!(scene.a().status().sessions[0].worker, "witness");
    assert!(witness.fetch("k").timeout(Duration::ZERO).call().is_err(), "what a closed client published stays ended");
}
