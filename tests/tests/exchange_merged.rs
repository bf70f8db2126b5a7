//! Readers of exchanges that ask a node once for the blocks of all its tasks.

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use transfer_client::BlockingClient;
use transfer_exchange::{By, Error, Exchange, ExchangeError, ExchangeExt, Partition};
use transfer_tests::http::get;
use transfer_tests::{Scene, Sidecar};

const ARENA: u64 = 64 << 20;
const PARTITIONS: u32 = 5;
const ROWS: u64 = 100;

/// The reader is at node c, where the exchange was opened, and tasks run at all nodes.
const READER: usize = 2;

/// A row: its task, its attempt, and its number there.
type Row = (u32, u32, u64);

/// Three nodes whose metrics can be read. Between them bytes move.
fn three(pool: &str) -> Scene {
    let arguments = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--pool-bytes", pool];
    Scene::with(&[&arguments, &arguments, &arguments])
}

fn connect(scene: &Scene, node: usize) -> BlockingClient {
    let name = format!("worker-{}", scene.nodes[node].name());
    let connect = BlockingClient::connect(scene.nodes[node].socket()).name(&name).arena_bytes(ARENA);
    connect.call().expect("the sidecar takes workers")
}

/// A worker at each node, and its handle of one exchange. The last one has opened it.
fn opened(scene: &Scene, tasks: u32) -> (Vec<BlockingClient>, Vec<Exchange<BlockingClient>>) {
    let clients: Vec<_> = (0..scene.nodes.len()).map(|node| connect(scene, node)).collect();
    let last = &clients[READER];
    let exchange = last.exchange("x").partitions(PARTITIONS).tasks(tasks).open().call().expect("opened");
    let mut exchanges: Vec<_> =
        clients[..READER].iter().map(|client| client.exchange("x").join().call().expect("joined")).collect();
    exchanges.push(exchange);
    (clients, exchanges)
}

/// Runs an attempt: row `n` goes to partition `n % PARTITIONS`.
fn run(exchange: &Exchange<BlockingClient>, task: u32, attempt: u32, payload: usize) {
    let numbers = |of: fn(u64) -> u32| Arc::new(UInt32Array::from_iter_values((0..ROWS).map(of))) as ArrayRef;
    let same = |value: u32| Arc::new(UInt32Array::from(vec![value; ROWS as usize])) as ArrayRef;
    let payload = arrow_array::StringArray::from(vec!["x".repeat(payload); ROWS as usize]);
    let columns: [(&str, ArrayRef); 5] = [
        ("part", numbers(|n| (n % u64::from(PARTITIONS)) as u32)),
        ("task", same(task)),
        ("attempt", same(attempt)),
        ("n", Arc::new(UInt64Array::from_iter_values(0..ROWS))),
        ("payload", Arc::new(payload)),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("the columns are of one length");
    let mut writer = exchange.task(task, attempt).call().expect("nobody has committed");
    writer.write(&batch, By::Column("part")).call().expect("there is room");
    writer.commit().call().expect("nobody else has");
}

fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let number = |at: usize| batch.column(at).as_primitive::<UInt32Type>().values().clone();
    let (task, attempt) = (number(1), number(2));
    let n = batch.column(3).as_primitive::<UInt64Type>().values();
    (0..batch.num_rows()).map(|at| (task[at], attempt[at], n[at])).collect()
}

fn read(partition: &mut Partition<BlockingClient>, rows: &mut Vec<Row>) -> Result<(), Error> {
    while let Some(batch) = partition.next()? {
        rows.extend(rows_of(&batch));
    }
    Ok(())
}

/// The rows of a partition, if task `n` has committed with attempt `attempts[n]`.
fn expected(partition: u32, attempts: &[u32]) -> Vec<Row> {
    let tasks = (0_u32..).zip(attempts);
    let rows = |(task, attempt): (u32, &u32)| {
        let attempt = *attempt;
        (u64::from(partition)..ROWS).step_by(PARTITIONS as usize).map(move |n| (task, attempt, n))
    };
    tasks.flat_map(rows).collect()
}

#[track_caller]
fn expect(exchange: &Exchange<BlockingClient>, partition: u32, attempts: &[u32]) -> Partition<BlockingClient> {
    let (mut reader, mut rows) = (exchange.partition(partition), Vec::new());
    read(&mut reader, &mut rows).expect("all have committed");
    rows.sort_unstable();
    assert!(rows == expected(partition, attempts), "partition {partition} has {} rows", rows.len());
    reader
}

/// The number of requests of peers that a sidecar has answered with data.
fn served(sidecar: &Sidecar) -> u64 {
    // A page may be a tenth of a second old.
    std::thread::sleep(Duration::from_millis(250));
    let page = get(&sidecar.http(), "/metrics").body;
    let lines = page.lines().filter(|line| line.starts_with("transfer_transfers_total{"));
    let of_peers = lines.filter(|line| line.contains("operation=\"serve\""));
    of_peers.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).expect("a number")).sum()
}

// Promise: one-request-for-many-tasks, seen to fail
#[test]
fn node_is_asked_once_for_the_blocks_of_all_its_tasks() {
    const EACH: u32 = 50;
    const TASKS: u32 = 3 * EACH;
    let scene = three("64MiB");
    let (clients, exchanges) = opened(&scene, TASKS);
    (0..TASKS).for_each(|task| run(&exchanges[task as usize % 3], task, 0, 10));
    let attempts = vec![0; TASKS as usize];
    // The first partition also finds out where everything is: by the note of each task, and the table of its bundle.
    let start = [0, 1].map(|node| served(&scene.nodes[node]));
    expect(&exchanges[READER], 0, &attempts);
    let before = [0, 1].map(|node| served(&scene.nodes[node]));
    let first = [before[0] - start[0], before[1] - start[1]];
    println!("{first:?} requests for the first partition");
    assert!(first.iter().all(|asked| *asked < u64::from(3 * EACH)), "{first:?}");
    let mut bytes = 0;
    for partition in 1..PARTITIONS {
        let reader = expect(&exchanges[READER], partition, &attempts);
        let report = reader.report_of_all().expect("it has rows");
        bytes += report.bytes;
        let last = reader.report().expect("it has rows");
        assert!(last.bytes < report.bytes && report.origin.is_none());
    }
    let after = [0, 1].map(|node| served(&scene.nodes[node]));
    let asked = [after[0] - before[0], after[1] - before[1]];
    println!("{asked:?} requests for {} partitions of {EACH} tasks at each of two other nodes", PARTITIONS - 1);
    assert_eq!(asked, [u64::from(PARTITIONS - 1); 2], "one for each partition at each node");
    // Blocks have 4 KiB at least.
    assert!(bytes >= u64::from((PARTITIONS - 1) * TASKS) * 500, "{bytes}");
    // A reader that gives up leaves nothing, and neither does a batch that outlives its reader.
    let mut given_up = exchanges[READER].partition(3);
    let held = given_up.next().expect("committed").expect("it has rows");
    drop(given_up);
    let rows = rows_of(&held);
    assert!(rows.iter().all(|row| expected(3, &attempts).contains(row)));
    // In the order of a seed they are the same rows.
    let ordered = |memory: u64| {
        let mut rows = Vec::new();
        let mut reader = exchanges[READER].partition(2).in_order_of(7).memory(memory);
        read(&mut reader, &mut rows).expect("all have committed");
        rows
    };
    let (once, often) = (ordered(1 << 30), ordered(100_000));
    assert!(once == often);
    let sorted: BTreeSet<_> = once.into_iter().collect();
    assert!(sorted.into_iter().eq(expected(2, &attempts)));
    drop(held);
    exchanges[READER].release().call().expect("it is its own");
    drop((exchanges, clients));
    scene.end();
}

/// A pool that has no room for the blocks of several tasks, and tasks whose blocks are too long to come together.
// Promise: one-request-for-many-tasks
#[test]
fn blocks_that_cannot_come_together_come_alone() {
    const TASKS: u32 = 6;
    for (pool, payload) in [("64MiB", 60_000), ("2MiB", 10_000)] {
        let scene = three(pool);
        let (clients, exchanges) = opened(&scene, TASKS);
        (0..TASKS).for_each(|task| run(&exchanges[(task % 2) as usize], task, 0, payload));
        for partition in 0..PARTITIONS {
            expect(&exchanges[READER], partition, &[0; TASKS as usize]);
        }
        exchanges[READER].release().call().expect("it is its own");
        drop((exchanges, clients));
        scene.end();
    }
}

// Promise: one-request-for-many-tasks, seen to fail
#[test]
fn tasks_of_a_lost_node_are_lost_and_no_others() {
    const TASKS: u32 = 12;
    let mut scene = three("64MiB");
    let (mut clients, mut exchanges) = opened(&scene, TASKS);
    // Every third task at the node that is going to be lost.
    let at = |task: u32| if task.is_multiple_of(3) { 1 } else { (task % 2 * 2) as usize };
    (0..TASKS).for_each(|task| run(&exchanges[at(task)], task, 0, 10));
    let mut attempts = vec![0; TASKS as usize];
    expect(&exchanges[READER], 0, &attempts);
    // It knows where all blocks are, and has read some of them.
    let (mut reader, mut rows) = (exchanges[READER].partition(1), Vec::new());
    scene.nodes[1].kill();
    drop((clients.remove(1), exchanges.remove(1)));
    let lost: BTreeSet<u32> = (0..TASKS).filter(|task| at(*task) == 1).collect();
    let mut again = BTreeSet::new();
    loop {
        match read(&mut reader, &mut rows) {
            Ok(()) => break,
            Err(Error::Exchange(ExchangeError::Lost { tasks, .. })) => {
                for task in tasks {
                    assert!(lost.contains(&task) && again.insert(task), "task {task} is lost");
                    run(&exchanges[0], task, 1, 10);
                    attempts[task as usize] = 1;
                }
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(again, lost);
    rows.sort_unstable();
    assert!(rows == expected(1, &attempts), "{} rows", rows.len());
    for partition in 2..PARTITIONS {
        expect(&exchanges[1], partition, &attempts);
    }
    exchanges[1].release().call().expect("it is its own");
    drop((reader, exchanges, clients));
    scene.nodes[1].restart();
    scene.note_idle_of(1);
    scene.end();
}
