//! What operators see of exchanges: in the lists of `transferctl`, in the metrics and on the status page. And the limit on
//! partitions.

use arrow_array::{ArrayRef, FixedSizeBinaryArray, RecordBatch, UInt32Array};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use transfer_client::BlockingClient;
use transfer_exchange::{By, Committed, Error, Exchange, ExchangeError, ExchangeExt};
use transfer_tests::calls::done;
use transfer_tests::http::get;
use transfer_tests::order::{Order, ShuffleOrder};
use transfer_tests::{Carrier, Ctl, Scene, Sidecar, poll};

const PARTITIONS: u32 = 4;
const TASKS: u32 = 3;
const ARENA: u64 = 16 << 20;
const WATCHED: [&str; 6] = ["--listen", "127.0.0.1:0", "--pool-bytes", "32MiB", "--http-listen", "127.0.0.1:0"];

fn connect(sidecar: &Sidecar, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(sidecar.socket()).name(name).arena_bytes(ARENA);
    connect.call().expect("the sidecar takes workers")
}

/// Rows of 1,000 bytes for these partitions.
fn batch(partitions: &[u32]) -> RecordBatch {
    let bytes = FixedSizeBinaryArray::try_from_iter(partitions.iter().map(|p| vec![*p as u8; 1000]));
    let columns = [
        ("part", Arc::new(UInt32Array::from(partitions.to_vec())) as ArrayRef),
        ("bytes", Arc::new(bytes.expect("rows of one length")) as ArrayRef),
    ];
    RecordBatch::try_from_iter(columns).expect("the columns are of one length")
}

fn run(exchange: &Exchange<BlockingClient>, task: u32, partitions: &[u32]) -> Committed {
    let mut writer = exchange.task(task, 0).call().expect("it begins");
    writer.write(&batch(partitions), By::Column("part")).call().expect("there is room");
    writer.commit().call().expect("it is the first")
}

/// The exchanges that `transferctl` lists at a node.
fn listed(sidecar: &Sidecar, more: &[&str]) -> Vec<Value> {
    Ctl::of(sidecar, &[&["exchanges", "--json"], more].concat()).ends(0, &[]).json_lines()
}

/// Asks until the list says what is wanted.
#[track_caller]
fn until(sidecar: &Sidecar, more: &[&str], wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let seen = poll(|| {
        let seen = listed(sidecar, more);
        if wanted(&seen) { Ok(seen) } else { Err(seen) }
    });
    seen.unwrap_or_else(|seen| panic!("{seen:#?}"))
}

fn metric(sidecar: &Sidecar, name: &str) -> u64 {
    let page = get(&sidecar.http(), "/metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in {page}")).parse().expect("a number")
}

/// Scrapes until a metric has this value: a scrape may be a moment old.
#[track_caller]
fn until_metric(sidecar: &Sidecar, name: &str, value: u64) {
    let seen = poll(|| match metric(sidecar, name) {
        now if now == value => Ok(()),
        now => Err(now),
    });
    assert_eq!(seen, Ok(()), "{name} at {} becomes {value}", sidecar.name());
}

fn shown_on_page(sidecar: &Sidecar) -> Vec<Value> {
    let status: Value = serde_json::from_str(&get(&sidecar.http(), "/api/status").body).expect("it is JSON");
    status["exchanges"].as_array().expect("a list").clone()
}

fn numbers<const N: usize>(entry: &Value, fields: [&str; N]) -> [u64; N] {
    fields.map(|field| entry[field].as_u64().unwrap_or_else(|| panic!("{field} in {entry:#}")))
}

/// The bytes of each partition.
fn lengths(entry: &Value) -> Vec<u64> {
    entry["partition_bytes"].as_array().expect("a list").iter().map(|len| len.as_u64().expect("a number")).collect()
}

#[track_caller]
fn expect_skew(entry: &Value, largest: usize) {
    let lengths = lengths(entry);
    let (bytes, most) = (lengths.iter().sum::<u64>(), *lengths.iter().max().expect("there are partitions"));
    assert_eq!(numbers(entry, ["bytes", "largest_bytes", "largest_partition"]), [bytes, most, largest as u64]);
    assert_eq!((lengths.len(), lengths[largest]), (PARTITIONS as usize, most));
    let skew = entry["skew"].as_f64().expect("a number");
    assert!((skew - most as f64 * f64::from(PARTITIONS) / bytes as f64).abs() < 1e-9, "{entry:#}");
}

// Promise: exchange-lists
#[test]
fn rows_bytes_skew_and_waits_are_shown_at_each_node_and_together() {
    for carrier in [Carrier::Tcp, Carrier::Shm] {
        let scene = Scene::over(carrier, &[&WATCHED, &WATCHED]);
        let (a, b) = (connect(scene.a(), "a"), connect(scene.b(), "b"));
        let opened = a.exchange("epoch/7").partitions(PARTITIONS).tasks(TASKS).open().call().expect("opened");
        let joined = b.exchange("epoch/7").join().call().expect("joined");
        let nothing = numbers(&until(scene.a(), &[], |all| all.len() == 1)[0], ["committed", "rows", "bytes"]);
        assert_eq!(nothing, [0, 0, 0]);
        // Partition 1 has most rows at node a, partition 2 at node b, and partition 2 has most in all.
        let here = run(&opened, 0, &[[1; 40].as_slice(), &[2; 30], &[3; 10]].concat());
        let there = run(&joined, 1, &[[2; 60].as_slice(), &[0; 20]].concat());
        assert_eq!((here.rows, there.rows), (80, 80));

        // A reader waits for the task that has not committed.
        let mut partition = joined.partition(2).timeout(Duration::from_secs(60));
        let reader = std::thread::spawn(move || {
            let mut rows = 0;
            loop {
                match partition.next() {
                    Ok(batch) => rows += batch.map_or(0, |batch| batch.num_rows()),
                    Err(e) => return (rows, e),
                }
            }
        });
        let is_awaited = |all: &[Value]| all.len() == 1 && all[0]["waits"].as_array().is_some_and(|w| !w.is_empty());
        let at_b = until(scene.b(), &[], |all| is_awaited(all) && all[0]["committed"] == 1);
        let wait = &at_b[0]["waits"][0];
        assert_eq!((&wait["operation"], &wait["worker"], &wait["task"]), (&"read".into(), &"b".into(), &2.into()));
        assert_eq!((&wait["waits_for"], &wait["attempt"]), (&"task 2 to commit".into(), &Value::Null));
        assert!(at_b[0]["reads_waiting"].as_u64() >= Some(1), "{at_b:#?}");

        let at_a = until(scene.a(), &[], |all| all[0]["committed"] == 1);
        for (at, committed, opened_here, largest) in [(&at_a[0], here, true, 1), (&at_b[0], there, false, 2)] {
            assert_eq!((&at["name"], &at["opened_here"]), (&"epoch/7".into(), &opened_here.into()));
            assert_eq!(numbers(at, ["rows", "bytes"]), [committed.rows, committed.bytes]);
            assert_eq!(numbers(at, ["partitions", "tasks", "spilled_bytes", "writers_waiting"]), [4, 3, 0, 0]);
            // Bundles have tables beside their rows.
            assert!(at["memory_bytes"].as_u64() > Some(committed.bytes), "{at:#}");
            expect_skew(at, largest);
        }
        assert_eq!(at_a[0]["id"], at_b[0]["id"]);
        for node in [scene.a(), scene.b()] {
            let all = until(node, &["--cluster"], is_awaited);
            assert_eq!(all[0]["nodes"], serde_json::json!(["a", "b"]));
            assert_eq!(numbers(&all[0], ["committed", "rows"]), [2, 160]);
            let sums: Vec<_> = lengths(&at_a[0]).into_iter().zip(lengths(&at_b[0])).map(|(a, b)| a + b).collect();
            assert_eq!(lengths(&all[0]), sums);
            expect_skew(&all[0], 2);
            Ctl::of(node, &["exchanges", "--cluster"]).ends(0, &["epoch/7", "2 of 3", "160", "1 exchange, "]);
        }
        Ctl::of(scene.a(), &["exchanges"]).ends(0, &["epoch/7", "1 of 3", "80", "1 exchange, "]);
        Ctl::of(scene.a(), &["exchanges", "--prefix", "epoch/8"]).ends(0, &["0 exchanges"]);
        Ctl::of(scene.a(), &["watch", "--times", "1", "exchanges"]).ends(0, &["epoch/7"]);

        // The metrics and the status page say the same.
        for (node, committed, largest) in [(scene.a(), here, &at_a[0]), (scene.b(), there, &at_b[0])] {
            for (name, value) in [
                ("transfer_exchanges", 1),
                ("transfer_exchange_tasks_total", 1),
                ("transfer_exchange_rows_total", committed.rows),
                ("transfer_exchange_bytes_total", committed.bytes),
                ("transfer_exchange_memory_bytes", numbers(largest, ["memory_bytes"])[0]),
                ("transfer_exchange_spilled_bytes", 0),
                ("transfer_exchange_writers_waiting", 0),
            ] {
                until_metric(node, name, value);
            }
            let page = shown_on_page(node);
            assert_eq!((page.len(), &page[0]["name"]), (1, &"epoch/7".into()));
            assert_eq!(numbers(&page[0], ["rows", "bytes", "committed"]), [committed.rows, committed.bytes, 1]);
            assert_eq!(page[0]["skew"], largest["skew"]);
        }
        let seen = poll(|| match metric(scene.b(), "transfer_exchange_reads_waiting") {
            0 => Err("no read waits"),
            _ if shown_on_page(scene.b())[0]["waits"] != "b: task 2 to commit" => Err("the page does not say it"),
            _ => Ok(()),
        });
        assert_eq!(seen, Ok(()));

        opened.release().call().expect("released");
        let (rows, error) = reader.join().expect("it ends");
        assert_eq!(rows, 90);
        assert!(matches!(error, Error::Exchange(ExchangeError::Over { .. })), "{error}");
        drop((opened, joined));
        for node in [scene.a(), scene.b()] {
            until(node, &[], <[Value]>::is_empty);
            until_metric(node, "transfer_exchange_memory_bytes", 0);
            until_metric(node, "transfer_exchange_tasks_total", 1);
        }
        drop((a, b));
        scene.end();
    }
}

// Promise: exchange-lists
#[test]
fn bytes_on_disk_are_shown() {
    let program = std::env::current_exe().expect("this program has a path");
    // The usual folder for temporary files may lie in memory.
    let disk = tempfile::tempdir_in(program.parent().expect("it lies in a folder")).expect("a folder can be made");
    let path = disk.path().to_str().expect("the path is UTF-8");
    let scene = Scene::with(&[&[&WATCHED[..], &["--spill-dir", path]].concat()]);
    let client = connect(scene.a(), "a");
    let exchange = client.exchange("x").partitions(PARTITIONS).open().call().expect("opened");
    let mut writer = exchange.task(0, 0).call().expect("it begins");
    let rows: Vec<u32> = (0..1000).map(|n| n % PARTITIONS).collect();
    for _ in 0..2 * ARENA / 1_000_000 {
        writer.write(&batch(&rows), By::Column("part")).call().expect("there is room on disk");
    }
    let committed = writer.commit().call().expect("it is the first");
    let seen = until(scene.a(), &[], |all| all[0]["committed"] == 1 && all[0]["writers_waiting"] == 0);
    let [rows, bytes, memory, spilled] = numbers(&seen[0], ["rows", "bytes", "memory_bytes", "spilled_bytes"]);
    assert_eq!((rows, bytes), (committed.rows, committed.bytes));
    assert!(spilled > 0 && memory + spilled > bytes, "{memory} bytes in memory and {spilled} on disk of {bytes}");
    assert_eq!(lengths(&seen[0]).iter().sum::<u64>(), bytes);
    let seen = poll(|| {
        let list = numbers(&listed(scene.a(), &[])[0], ["spilled_bytes"])[0];
        let page = numbers(&shown_on_page(scene.a())[0], ["spilled"])[0];
        let metric = metric(scene.a(), "transfer_exchange_spilled_bytes");
        if list == page && list == metric { Ok(()) } else { Err((list, page, metric)) }
    });
    assert_eq!(seen, Ok(()));
    exchange.release().call().expect("released");
    until(scene.a(), &[], <[Value]>::is_empty);
    until_metric(scene.a(), "transfer_exchange_spilled_bytes", 0);
    drop((exchange, client));
    scene.end();
}

// Promise: exchange-lists
#[test]
fn rows_of_a_dead_worker_stay_in_the_list() {
    let scene = Scene::with(&[&WATCHED]);
    let opener = connect(scene.a(), "opener");
    let opened = opener.exchange("x").partitions(3).tasks(1).open().call().expect("opened");
    let mut writer = scene.a().worker("writer");
    for order in [
        ShuffleOrder::Join("x".into()),
        ShuffleOrder::Write { name: "x".into(), task: 0, attempt: 0, rows: 77 },
        ShuffleOrder::Commit { name: "x".into(), task: 0, attempt: 0 },
    ] {
        writer.order(Order::Shuffle(order), done).get();
    }
    let before = until(scene.a(), &[], |all| all.len() == 1 && all[0]["committed"] == 1);
    writer.kill();
    scene.a().until("its session has ended", |s| s.sessions.iter().all(|session| session.worker != "writer"));
    let after = listed(scene.a(), &[]);
    let fields = ["rows", "bytes", "committed", "memory_bytes"];
    assert_eq!((numbers(&after[0], fields), numbers(&after[0], ["rows"])), (numbers(&before[0], fields), [77]));
    opened.release().call().expect("released");
    until(scene.a(), &[], <[Value]>::is_empty);
    drop((opened, opener));
}

// Promise: partition-limit
#[test]
fn an_exchange_with_more_partitions_than_the_limit_is_not_opened() {
    let limit = ["--limits", "partitions_per_exchange=8"];
    let scene = Scene::over(Carrier::Tcp, &[&[&WATCHED[..], &limit].concat(), &WATCHED]);
    let (a, b) = (connect(scene.a(), "a"), connect(scene.b(), "b"));
    let refused = a.exchange("wide").partitions(9).tasks(2).open().call().expect_err("9 is above the limit");
    let text = "exchange \"wide\" would have 9 partitions, and the limit of node a is 8, which is \
                limits.partitions_per_exchange; open it with fewer, or raise the limit";
    assert_eq!(refused.to_string(), text);
    let Error::Exchange(ExchangeError::TooManyPartitions { name, found, .. }) = &refused else { panic!("{refused:?}") };
    assert_eq!((name.as_str(), *found, refused.can_retry()), ("wide", 9, false));
    until_metric(scene.a(), "transfer_limits_reached_total{of=\"partitions\"}", 1);
    assert_eq!(listed(scene.a(), &["--cluster"]), [Value::Null; 0]);
    // The name is free, and so are the counters.
    let narrow = a.exchange("wide").partitions(8).tasks(2).open().call().expect("8 is the limit");
    // Who opens it where there is no such limit may have more, and workers of node a may join.
    let wide = b.exchange("wider").partitions(9).tasks(1).open().call().expect("node b has no such limit");
    let joined = a.exchange("wider").join().call().expect("joined");
    run(&joined, 0, &[8; 10]);
    let all = until(scene.a(), &["--prefix", "wider"], |all| all.len() == 1 && all[0]["committed"] == 1);
    assert_eq!(numbers(&all[0], ["partitions", "largest_partition"]), [9, 8]);
    narrow.release().call().expect("released");
    wide.release().call().expect("released");
    drop((narrow, wide, joined, a, b));
    scene.end();
}
