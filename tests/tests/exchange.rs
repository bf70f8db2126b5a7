//! Exchanges of record batches, on one node and between two: which rows a partition has, and when memory is free.

use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use transfer_client::{BlockingClient, Client, FailureCode};
use transfer_exchange::{By, Error, Exchange, ExchangeError, ExchangeExt, ExchangeTask, Partition};
use transfer_tests::{Carrier, Scene, Sidecar, poll};

const ARENA: u64 = 64 << 20;

fn connect(scene: &Scene, node: usize, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(scene.nodes[node].socket()).name(name).arena_bytes(ARENA);
    connect.call().expect("the sidecar takes workers")
}

/// Scenes of one node, of two that copy, and of two that read by reference. With a device, only of two over it.
fn scenes() -> Vec<Scene> {
    let listens: &[&str] = &["--listen", "127.0.0.1:0", "--pool-bytes", "64MiB"];
    match Carrier::chosen() {
        Carrier::Tcp | Carrier::Shm => {
            let over = |carrier| Scene::over(carrier, &[listens, listens]);
            let by_reference = Scene::exactly(&[listens, listens]);
            vec![Scene::one(), over(Carrier::Tcp), over(Carrier::Shm), by_reference]
        }
        _ => vec![Scene::two()],
    }
}

/// A row: its task, its attempt, and its number there.
type Row = (u32, u32, u64);

/// Rows, with the partition of each.
type Rows = Vec<(u32, Row)>;

fn batch(rows: &[(u32, Row)]) -> RecordBatch {
    let column = |of: fn(&(u32, Row)) -> u32| Arc::new(UInt32Array::from_iter_values(rows.iter().map(of))) as ArrayRef;
    let n = Arc::new(UInt64Array::from_iter_values(rows.iter().map(|(_, (_, _, n))| *n))) as ArrayRef;
    let columns = [("part", column(|r| r.0)), ("task", column(|r| r.1.0)), ("attempt", column(|r| r.1.1)), ("n", n)];
    RecordBatch::try_from_iter(columns).expect("the columns are of one length")
}

fn rows_of(batch: &RecordBatch) -> Vec<(u32, Row)> {
    use arrow_array::cast::AsArray;
    let number = |at: usize| batch.column(at).as_primitive::<UInt32Type>().values().clone();
    let (part, task, attempt) = (number(0), number(1), number(2));
    let n = batch.column(3).as_primitive::<UInt64Type>().values();
    (0..batch.num_rows()).map(|at| (part[at], (task[at], attempt[at], n[at]))).collect()
}

/// All rows of a partition, sorted.
fn read(mut partition: Partition<BlockingClient>) -> Result<Vec<(u32, Row)>, Error> {
    let mut rows = Vec::new();
    while let Some(batch) = partition.next()? {
        rows.extend(rows_of(&batch));
    }
    rows.sort_unstable();
    Ok(rows)
}

/// Rows of an attempt, for random partitions.
fn some_rows(random: &mut SmallRng, partitions: u32, task: u32, attempt: u32, most: u64) -> Vec<(u32, Row)> {
    let count = random.random_range(0..=most);
    (0..count).map(|n| (random.random_range(0..partitions), (task, attempt, n))).collect()
}

fn write(task: &mut ExchangeTask<BlockingClient>, rows: &[(u32, Row)], at_once: usize) {
    for rows in rows.chunks(at_once) {
        task.write(&batch(rows), By::Column("part")).call().expect("there is room");
    }
}

/// Waits until a client's arena is as free as it was.
#[track_caller]
fn until_free(client: &BlockingClient, free: u64) {
    let seen = poll(|| match client.arena_free_bytes() {
        now if now == free => Ok(()),
        now => {
            client.take_answers();
            Err(now)
        }
    });
    assert_eq!(seen, Ok(()), "{} of {free} bytes come back", client.name());
}

fn is_committed(error: &Error) -> bool {
    matches!(error, Error::Exchange(ExchangeError::Committed { .. }))
}

fn is_over(error: &Error) -> bool {
    matches!(error, Error::Exchange(ExchangeError::Over { .. }))
}

// Promise: attempts
#[test]
fn rows_of_a_partition_are_those_of_the_committed_attempts() {
    const PARTITIONS: u32 = 5;
    const TASKS: u32 = 6;
    for (n, scene) in (0_u64..).zip(scenes()) {
        let mut random = SmallRng::seed_from_u64(n);
        let last = scene.nodes.len() - 1;
        let clients: Vec<_> = (0..4).map(|n| connect(&scene, [0, last][n % 2], &format!("w{n}"))).collect();
        let free: Vec<_> = clients.iter().map(BlockingClient::arena_free_bytes).collect();
        for round in 0..3 {
            let exchange = clients[0].exchange("x").partitions(PARTITIONS).tasks(TASKS).open().call().expect("opened");
            let join = |client: &BlockingClient| client.exchange("x").join().call().expect("joined");
            let exchanges: Vec<_> = std::iter::once(exchange).chain(clients[1..].iter().map(join)).collect();
            assert_eq!((exchanges[3].partitions(), exchanges[3].tasks()), (PARTITIONS, TASKS));
            let mut model: BTreeMap<u32, Rows> = BTreeMap::new();
            let mut open: Vec<(ExchangeTask<BlockingClient>, Rows)> = Vec::new();
            let mut attempts = [0; TASKS as usize];
            while model.len() < TASKS as usize {
                if open.len() < 8 && random.random_ratio(2, 3) {
                    let task = random.random_range(0..TASKS);
                    let attempt = attempts[task as usize];
                    attempts[task as usize] += 1;
                    let exchange = &exchanges[random.random_range(0..exchanges.len())];
                    match exchange.task(task, attempt).call() {
                        Ok(mut writer) => {
                            assert!(!model.contains_key(&task));
                            let rows = some_rows(&mut random, PARTITIONS, task, attempt, 3000);
                            write(&mut writer, &rows, random.random_range(1..2000));
                            assert_eq!(writer.rows(), rows.len() as u64);
                            open.push((writer, rows));
                        }
                        Err(e) => assert!(is_committed(&e) && model.contains_key(&task), "{e}"),
                    }
                } else if !open.is_empty() {
                    let (writer, rows) = open.swap_remove(random.random_range(0..open.len()));
                    let task = writer.task();
                    if random.random_ratio(1, 3) {
                        drop(writer);
                        continue;
                    }
                    match writer.commit().call() {
                        Ok(committed) => {
                            assert_eq!(committed.rows, rows.len() as u64);
                            assert!(model.insert(task, rows).is_none(), "task {task} has committed twice");
                        }
                        Err(e) => assert!(is_committed(&e) && model.contains_key(&task), "{e}"),
                    }
                }
            }
            drop(open);
            for partition in 0..PARTITIONS {
                let mut expected: Vec<_> = model.values().flatten().filter(|(p, _)| *p == partition).copied().collect();
                expected.sort_unstable();
                for exchange in &exchanges {
                    let found = read(exchange.partition(partition)).expect("all have committed");
                    assert_eq!(found, expected, "partition {partition} in round {round}");
                }
            }
            exchanges[0].release().call().expect("it is its own");
            for (client, free) in clients.iter().zip(&free) {
                until_free(client, *free);
            }
        }
        drop(clients);
        scene.end();
    }
}

// Promise: attempts, seen to fail
#[test]
fn one_of_two_attempts_that_race_wins() {
    const TASKS: u32 = 24;
    for scene in scenes() {
        let last = scene.nodes.len() - 1;
        let clients = [connect(&scene, 0, "one"), connect(&scene, last, "two")];
        let free = clients.each_ref().map(BlockingClient::arena_free_bytes);
        let opened = clients[0].exchange("race").partitions(2).tasks(TASKS).open().call().expect("opened");
        let joined = clients[1].exchange("race").join().call().expect("joined");
        let start = Barrier::new(2);
        let run = |exchange: &Exchange<BlockingClient>, attempt: u32| {
            let mut won = BTreeSet::new();
            for task in 0..TASKS {
                // Both have begun before one commits.
                let mut writer = exchange.task(task, attempt).call().expect("nobody has committed");
                write(&mut writer, &[(0, (task, attempt, 1)), (1, (task, attempt, 2))], 9);
                start.wait();
                match writer.commit().call() {
                    Ok(_) => drop(won.insert(task)),
                    Err(Error::Exchange(ExchangeError::Committed { task: t, attempt: a, by, .. })) => {
                        assert_eq!((t, a, by), (task, attempt, 1 - attempt));
                    }
                    Err(e) => panic!("{e}"),
                }
                start.wait();
            }
            won
        };
        let (first, second) = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(&joined, 1));
            (run(&opened, 0), other.join().expect("no error"))
        });
        assert!(first.is_disjoint(&second));
        // The record and the anchor, and a note, a mark and a bundle for each task: those that lost have left nothing.
        // A sidecar closes a connection that says nothing for a second, so a slow machine may have to ask twice.
        let published = || -> Result<usize, String> {
            let of = |node: &Sidecar| node.admin().tensors("exchange/race").map(|tensors| tensors.len());
            scene.nodes.iter().map(of).sum::<Result<usize, _>>().map_err(|e| e.to_string())
        };
        let expected = 2 + 3 * TASKS as usize;
        let all = poll(|| published().and_then(|n| if n == expected { Ok(()) } else { Err(format!("{n} tensors")) }));
        assert_eq!(all, Ok(()), "of {expected}");
        assert_eq!(first.len() + second.len(), TASKS as usize);
        let expected: Vec<_> =
            (0..TASKS).map(|task| (0, (task, u32::from(second.contains(&task)), 1))).collect::<Vec<_>>();
        for exchange in [&opened, &joined] {
            let mut found = read(exchange.partition(0)).expect("all have committed");
            found.sort_unstable_by_key(|row| row.1.0);
            assert_eq!(found, expected);
        }
        opened.release().call().expect("it is its own");
        clients.iter().zip(free).for_each(|(client, free)| until_free(client, free));
        drop((opened, joined, clients));
        scene.end();
    }
}

// Promise: attempts
#[test]
fn dropped_attempt_leaves_nothing() {
    let scene = Scene::one();
    let client = connect(&scene, 0, "one");
    let free = client.arena_free_bytes();
    let exchange = client.exchange("x").partitions(3).tasks(3).open().call().expect("opened");
    let before = client.arena_free_bytes();
    let mut writer = exchange.task(0, 0).call().expect("begun");
    write(&mut writer, &[(0, (0, 0, 1)), (2, (0, 0, 2))], 9);
    assert!(client.arena_free_bytes() < before);
    drop(writer);
    until_free(&client, before);
    let mut again = exchange.task(0, 1).call().expect("begun");
    write(&mut again, &[(0, (0, 1, 1))], 9);
    again.commit().call().expect("nobody else has");
    // One that has lost.
    let mut late = exchange.task(1, 0).call().expect("begun");
    write(&mut late, &[(0, (1, 0, 1))], 9);
    let mut early = exchange.task(1, 1).call().expect("begun");
    write(&mut early, &[(0, (1, 1, 1))], 9);
    early.commit().call().expect("nobody else has");
    exchange.task(2, 0).call().expect("begun").commit().call().expect("nobody else has");
    assert!(late.commit().call().is_err_and(|e| is_committed(&e)));
    assert_eq!(read(exchange.partition(0)).expect("read"), [(0, (0, 1, 1)), (0, (1, 1, 1))]);
    assert_eq!(read(exchange.partition(2)).expect("read"), []);
    // The record and the anchor, and a note, a mark and a bundle for each task.
    let published = || scene.a().admin().tensors("exchange/x").expect("it answers").len();
    assert_eq!(poll(|| if published() == 11 { Ok(()) } else { Err(published()) }), Ok(()));
    // The last handle of the opener ends it, too.
    drop(exchange);
    until_free(&client, free);
    drop(client);
    scene.end();
}

// Promise: attempts
#[test]
fn async_readers_get_rows_as_tasks_commit_and_lose_none() {
    const TASKS: u32 = 40;
    let scene = Scene::two();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let connect = async |node: usize, name: &str| {
            Client::connect(scene.nodes[node].socket()).name(name).arena_bytes(ARENA).await.expect("connected")
        };
        let (writer, reader) = (connect(0, "writer").await, connect(1, "reader").await);
        let free = writer.arena_free_bytes();
        let exchange = writer.exchange("x").partitions(2).tasks(TASKS).open().await.expect("opened");
        let joined = reader.exchange("x").join().await.expect("joined");
        // More tasks than are waited for at a time, and the last ones commit first.
        let reads = [0, 1].map(|partition| {
            let mut partition = joined.partition(partition);
            tokio::spawn(async move {
                let (mut rows, mut given_up) = (Vec::new(), 0);
                loop {
                    match tokio::time::timeout(Duration::from_millis(20), partition.next()).await {
                        Err(_) => given_up += 1,
                        Ok(Ok(Some(batch))) => rows.extend(rows_of(&batch).into_iter().map(|(_, (task, _, _))| task)),
                        Ok(Ok(None)) => return (rows, given_up),
                        Ok(Err(e)) => panic!("{e}"),
                    }
                }
            })
        });
        for task in (0..TASKS).rev() {
            let mut attempt = exchange.task(task, 0).await.expect("begun");
            let rows = batch(&[(0, (task, 0, 1)), (1, (task, 0, 2)), (0, (task, 0, 3))]);
            attempt.write(&rows, By::Column("part")).await.expect("there is room");
            attempt.commit().await.expect("nobody else has");
        }
        for (partition, read) in (0..).zip(reads) {
            let (mut rows, given_up) = read.await.expect("no panic");
            rows.sort_unstable();
            let times = 2 - partition;
            let expected: Vec<_> = (0..TASKS).flat_map(|task| vec![task; times]).collect();
            assert_eq!(rows, expected, "{given_up} calls were given up");
        }
        exchange.release().await.expect("it is its own");
        drop((exchange, joined));
        poll(|| match writer.arena_free_bytes() {
            now if now == free => Ok(()),
            now => Err(now),
        })
        .expect("all memory comes back");
    });
    drop(runtime);
    scene.end();
}

// Promise: partition-moves-alone, seen to fail
#[test]
fn rows_are_read_where_they_were_written() {
    let listens: &[&str] = &["--listen", "127.0.0.1:0"];
    for (scene, copies) in [
        (Scene::one(), false),
        (Scene::exactly(&[listens, listens]), false),
        (Scene::over(Carrier::Tcp, &[listens, listens]), true),
    ] {
        let last = scene.nodes.len() - 1;
        let (writer, reader) = (connect(&scene, 0, "writer"), connect(&scene, last, "reader"));
        let exchange = writer.exchange("x").partitions(2).open().call().expect("opened");
        let rows: Vec<_> = (0..50_000).map(|n| (u32::from(n % 10 == 0), (0, 0, n))).collect();
        let mut task = exchange.task(0, 0).call().expect("begun");
        write(&mut task, &rows, 10_000);
        let committed = task.commit().call().expect("nobody else has");
        assert_eq!(committed.rows, 50_000);
        let mut partition = reader.exchange("x").join().call().expect("joined").partition(1);
        let mut count = 0;
        while let Some(batch) = partition.next().expect("committed") {
            count += batch.num_rows();
        }
        assert_eq!(count, 5_000);
        let report = partition.report_of_all().expect("it has rows");
        let (bytes, copied) = (report.bytes, report.copied);
        assert!(bytes < committed.bytes / 4, "{bytes} of {}: only the blocks of one partition", committed.bytes);
        assert_eq!(copied > 0, copies, "{copied}");
        exchange.release().call().expect("it is its own");
        drop((partition, exchange, writer, reader));
        scene.end();
    }
}

// Promise: attempts
#[test]
fn attempt_of_many_blocks_is_several_bundles() {
    const PARTITIONS: u32 = 2500;
    for scene in [Scene::one(), Scene::two()] {
        let last = scene.nodes.len() - 1;
        let (writer, reader) = (connect(&scene, 0, "writer"), connect(&scene, last, "reader"));
        let free = writer.arena_free_bytes();
        let exchange = writer.exchange("x").partitions(PARTITIONS).tasks(2).open().call().expect("opened");
        let joined = reader.exchange("x").join().call().expect("joined");
        let rows: Vec<_> = (0..u64::from(PARTITIONS)).map(|n| (n as u32, (1, 0, n))).collect();
        // Many rows of one partition, whose blocks are in two bundles.
        let many = (0..30_000).map(|n| (1999, (1, 0, 10_000 + n)));
        let rows: Vec<_> = rows.into_iter().chain(many).collect();
        let mut task = exchange.task(1, 0).call().expect("begun");
        write(&mut task, &rows, 10_000);
        task.commit().call().expect("nobody else has");
        // A task that writes nothing.
        exchange.task(0, 7).call().expect("begun").commit().call().expect("nobody else has");
        for exchange in [&exchange, &joined] {
            for partition in [0, 1998, 1999, 2000, PARTITIONS - 1] {
                let expected: Vec<_> = rows.iter().filter(|row| row.0 == partition).copied().collect();
                assert_eq!(read(exchange.partition(partition)).expect("read"), expected);
            }
        }
        exchange.release().call().expect("it is its own");
        until_free(&writer, free);
        drop((exchange, joined, writer, reader));
        scene.end();
    }
}

#[test]
fn order_of_a_seed_depends_on_nothing_else() {
    let scene = Scene::two();
    let clients = [connect(&scene, 0, "one"), connect(&scene, 1, "two")];
    let run = |attempt: u32, at_once: usize, by: [usize; 3]| {
        let opened = clients[0].exchange("x").partitions(2).tasks(3).open().call().expect("opened");
        let exchanges = [opened, clients[1].exchange("x").join().call().expect("joined")];
        for (task, by) in (0..3).zip(by) {
            let rows: Vec<_> = (0..900).map(|n| ((n % 2) as u32, (task, 0, n))).collect();
            let mut task = exchanges[by].task(task, attempt).call().expect("begun");
            write(&mut task, &rows, at_once);
            task.commit().call().expect("nobody else has");
        }
        let rows = NonZeroUsize::new(100).expect("not 0");
        let from = |seed: u64, position: u64| {
            let mut partition =
                exchanges[1].partition(1).in_order_of(seed).rows_per_batch(rows).from_position(position);
            let mut all = Vec::new();
            while let Some(batch) = partition.next().expect("all have committed") {
                all.extend(rows_of(&batch));
                assert_eq!(partition.position(), position + all.len() as u64);
            }
            let end = partition.position();
            assert_eq!(partition.from_position(7).position(), end, "it was read from another position");
            all
        };
        let (first, second) = (from(1, 0), from(2, 0));
        assert_eq!(from(1, 300), first[300..]);
        assert_eq!(from(1, 1_000_000), []);
        exchanges[0].release().call().expect("it is its own");
        (first, second)
    };
    let (first, second) = run(0, 900, [0, 0, 1]);
    assert_eq!(first.len(), 3 * 450);
    assert_ne!(first, second);
    assert_eq!(run(3, 77, [1, 0, 0]), (first, second));
    drop(clients);
    scene.end();
}

// Promise: end-of-an-exchange, seen to fail
#[test]
fn exchange_that_is_over_frees_all_memory_and_its_name() {
    for scene in scenes() {
        let last = scene.nodes.len() - 1;
        let clients = [connect(&scene, 0, "opener"), connect(&scene, last, "other")];
        let free = clients.each_ref().map(BlockingClient::arena_free_bytes);
        // Released by its opener, dropped by it, and by its deadline. Then the other one opens it.
        for (n, by) in [0, 0, 0, 1].into_iter().enumerate() {
            let (opener, other) = (&clients[by], &clients[1 - by]);
            // The one before may not be over yet.
            let exchange = poll(|| match builder_of(&clients[by], n).open().call() {
                Err(e) if matches!(e, Error::Exchange(ExchangeError::Exists { .. })) => Err(e),
                opened => Ok(opened.expect("opened")),
            });
            let exchange = exchange.expect("the name becomes free");
            assert!(matches!(
                opener.exchange("again").open().call(),
                Err(Error::Exchange(ExchangeError::Exists { .. }))
            ));
            assert!(matches!(
                other.exchange("again").open().call(),
                Err(Error::Exchange(ExchangeError::Exists { .. }))
            ));
            let joined = other.exchange("again").join().call().expect("joined");
            for (task, exchange) in [(0, &exchange), (1, &joined)] {
                let mut task = exchange.task(task, n as u32).call().expect("begun");
                write(&mut task, &[(0, (9, n as u32, 1)), (1, (9, n as u32, 2))], 9);
                task.commit().call().expect("nobody else has");
            }
            let held = joined.partition(0).next().expect("committed").expect("a batch");
            assert!(joined.task(0, 99).call().is_err_and(|e| is_committed(&e)));
            match n {
                1 => drop(exchange),
                2 => {}
                _ => exchange.release().call().expect("it is its own"),
            }
            // What was read stays readable.
            let over = poll(|| match joined.partition(1).next() {
                Err(e) if is_over(&e) => Ok(e.to_string()),
                other => Err(format!("{other:?}")),
            });
            let over = over.expect("it is over");
            let word = if n == 2 { "deadline" } else { "released" };
            assert!(over.contains("again") && over.contains(word), "{over}");
            assert_eq!(rows_of(&held)[0].1.1, n as u32);
            let e = joined.release().call().expect_err("it did not open it");
            assert!(
                matches!(&e, Error::Exchange(ExchangeError::NotOpener { opener, .. }) if *opener == clients[by].name())
            );
            drop((held, joined));
            clients.iter().zip(free).for_each(|(client, free)| until_free(client, free));
        }
        drop(clients);
        scene.end();
    }
}

fn builder_of(client: &BlockingClient, n: usize) -> transfer_exchange::ExchangeBuilder<BlockingClient> {
    let builder = client.exchange("again").partitions(2).tasks(2);
    if n == 2 { builder.deadline(Duration::from_secs(5)) } else { builder }
}

// Promise: room-to-write
#[test]
fn errors_of_exchanges_say_what_would_be_right() {
    let scene = Scene::one();
    let client = connect(&scene, 0, "one");
    let text = |e: Error| e.to_string();
    let open = |name: &str, partitions: u32, tasks: u32| {
        client.exchange(name).partitions(partitions).tasks(tasks).open().call().map(drop).map_err(text)
    };
    let wrong = |result: Result<(), String>, words: &[&str]| {
        let text = result.expect_err("it is wrong");
        words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is missing in: {text}"));
    };
    wrong(open("", 1, 1), &["needs a name"]);
    wrong(open(&"x".repeat(441), 1, 1), &["440", "441"]);
    wrong(open("x", 0, 1), &["\"x\"", "0 partitions", "1 to 4096"]);
    wrong(open("x", 4097, 1), &["4097 partitions"]);
    wrong(open("x", 1, 0), &["0 tasks", "1 to 2048"]);
    wrong(open("x", 1, 2049), &["2049 tasks"]);
    client.push_bytes("exchange/no", transfer_client::DType::U8, [3], &[1, 2, 3]).call().expect("pushed");
    wrong(client.exchange("no").join().call().map(drop).map_err(text), &["exchange/no", "not an exchange"]);
    let absent =
        client.exchange("never").join().timeout(Duration::from_millis(50)).call().expect_err("nobody opens it");
    assert_eq!(absent.failure_code(), Some(FailureCode::UnknownKey));

    let exchange = client.exchange("x").partitions(2).tasks(2).open().call().expect("opened");
    wrong(exchange.task(2, 0).call().map(drop).map_err(text), &["\"x\"", "task 2", "0 to 1"]);
    wrong(exchange.task(0, u32::MAX).call().map(drop).map_err(text), &["4294967295", "task 0"]);
    wrong(exchange.partition(2).next().map(drop).map_err(text), &["\"x\"", "partition 2", "0 to 1"]);
    let waited = exchange.partition(0).timeout(Duration::from_millis(50)).next().expect_err("nobody writes");
    assert!(waited.can_retry());
    wrong(Err(text(waited)), &["partition 0", "tasks 0, 1"]);

    let mut task = exchange.task(0, 0).call().expect("begun");
    wrong(
        task.write(&batch(&[(7, (0, 0, 0))]), By::Column("part")).call().map_err(text),
        &["task 0", "part", "7", "0 to 1"],
    );
    write(&mut task, &[(0, (0, 0, 1))], 9);
    let other = RecordBatch::try_from_iter([("n", Arc::new(UInt64Array::from(vec![1])) as ArrayRef)]).expect("valid");
    wrong(task.write(&other, By::RoundRobin).call().map_err(text), &["task 0", "part"]);
    // A call that is begun and not made yet has the task.
    let begun = task.write(&batch(&[(0, (0, 0, 3))]), By::RoundRobin);
    let again = task.write(&batch(&[(0, (0, 0, 2))]), By::RoundRobin);
    drop(begun);
    wrong(again.call().map_err(text), &["task 0", "has not ended"]);
    assert_eq!(task.rows(), 1);
    task.commit().call().expect("nobody else has");
    wrong(exchange.task(0, 0).call().map(drop).map_err(text), &["attempt 0", "task 0", "already"]);
    wrong(exchange.task(0, 1).call().map(drop).map_err(text), &["attempt 0 has committed task 0", "attempt 1"]);
    let mut second = exchange.task(1, 0).call().expect("begun");
    second.write(&other, By::RoundRobin).call().expect("there is room");
    second.commit().call().expect("nobody else has");
    let mixed = (0..2).find_map(|partition| read(exchange.partition(partition)).err());
    wrong(Err(text(mixed.expect("one of them has both"))), &["different schemas", "task 0", "task 1"]);
    exchange.release().call().expect("it is its own");
    drop((exchange, client));
    scene.end();
}

// Promise: room-to-write, seen to fail
#[test]
fn writing_waits_for_room_until_its_time_out() {
    let scene = Scene::one();
    let client =
        BlockingClient::connect(scene.a().socket()).name("small").arena_bytes(2 << 20).call().expect("connected");
    let free = client.arena_free_bytes();
    let exchange = client.exchange("x").open().call().expect("opened");
    let mut task = exchange.task(0, 0).call().expect("begun");
    let rows: Vec<_> = (0..10_000).map(|n| (0, (0, 0, n))).collect();
    let full = loop {
        match task.write(&batch(&rows), By::RoundRobin).timeout(Duration::from_millis(50)).call() {
            Ok(()) => {}
            Err(e) => break e,
        }
    };
    assert!(matches!(full, Error::Client(transfer_client::Error::ArenaFull { .. })) && full.can_retry(), "{full}");
    let written = task.rows();
    assert!(written >= 20_000 && written.is_multiple_of(10_000), "{written}: each batch as a whole");
    // Another attempt waits for the room that this one has.
    let mut other = exchange.task(0, 1).call().expect("begun");
    let mut waiting = other.write(&batch(&rows), By::RoundRobin).timeout(transfer_tests::WAIT_LIMIT).begin();
    assert!(waiting.wait(Duration::from_millis(50)).is_none(), "there is no room");
    drop(task);
    waiting.wait(transfer_tests::WAIT_LIMIT).expect("it ends").expect("there is room now");
    assert_eq!(other.rows(), 10_000);
    drop(other);
    exchange.release().call().expect("it is its own");
    until_free(&client, free);
    drop((waiting, exchange, client));
    scene.end();
}
