//! Exchanges of record batches, on one node and between two: which rows a partition has, and when memory is free.

use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use transfer_client::{
    Blocking, BlockingClient, By, Client, Error, Exchange, ExchangeError, ExchangeTask, FailureCode, Partition,
};
use transfer_tests::{Carrier, Scene, poll};

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

/// Rows, and the partition of each.
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
fn read(mut partition: Partition<Blocking>) -> Result<Vec<(u32, Row)>, Error> {
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

fn write(task: &mut ExchangeTask<Blocking>, rows: &[(u32, Row)], at_once: usize) {
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
            let mut model: BTreeMap<u32, Vec<(u32, Row)>> = BTreeMap::new();
            let mut open: Vec<(ExchangeTask<Blocking>, Vec<(u32, Row)>)> = Vec::new();
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
        let run = |exchange: &Exchange<Blocking>, attempt: u32| {
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

#[test]
fn dropped_attempt_leaves_nothing() {
    let scene = Scene::one();
    let client = connect(&scene, 0, "one");
    let free = client.arena_free_bytes();
    let exchange = client.exchange("x").partitions(3).open().call().expect("opened");
    let before = client.arena_free_bytes();
    let mut writer = exchange.task(0, 0).call().expect("begun");
    write(&mut writer, &[(0, (0, 0, 1)), (2, (0, 0, 2))], 9);
    assert!(client.arena_free_bytes() < before);
    drop(writer);
    until_free(&client, before);
    let mut again = exchange.task(0, 1).call().expect("begun");
    write(&mut again, &[(0, (0, 1, 1))], 9);
    again.commit().call().expect("nobody else has");
    assert_eq!(read(exchange.partition(0)).expect("read"), [(0, (0, 1, 1))]);
    assert_eq!(read(exchange.partition(2)).expect("read"), []);
    // The last handle of the opener ends it, too.
    drop(exchange);
    until_free(&client, free);
    drop(client);
    scene.end();
}
