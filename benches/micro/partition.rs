//! Partitioning on one core: 64 partitions, 8 columns of 8 bytes, batches of 8,192 rows; beside Arrow's own kernels. A
//! row has 64 bytes, so 64 ns for one are 1 GB/s.
#![forbid(unsafe_code)]

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt32Array};
use arrow_schema::ArrowError;
use arrow_select::take::take_record_batch;
use std::hint::black_box;
use std::sync::Arc;
use transfer_benches::Runner;
use transfer_client::BlockingClient;
use transfer_exchange::{By, Error, ExchangeExt};

const PARTITIONS: u32 = 64;
const ROWS: u64 = 8192;
/// The rows of one task: 64 MiB.
const TASK_ROWS: u64 = 1 << 20;

#[derive(Debug)]
enum Failed {
    Arrow(#[allow(dead_code, reason = "printed")] ArrowError),
    Exchange(#[allow(dead_code, reason = "printed")] Error),
}

fn main() -> Result<(), Failed> {
    let runner = Runner::from_arguments();
    let client = BlockingClient::embedded().name("bench").arena_bytes(256 << 20).call();
    let client = client.map_err(|e| Failed::Exchange(e.into()))?;
    let numbers = numbers(ROWS, 8).map_err(Failed::Arrow)?;

    let mut copies: Vec<Vec<u8>> = vec![vec![0; ROWS as usize * 8]; 8];
    runner.measure("rows: copied as they are, 8 columns", ROWS, || {
        for (copy, column) in copies.iter_mut().zip(numbers.columns()) {
            copy.copy_from_slice(&column.to_data().buffers()[0]);
        }
        black_box(&mut copies);
    });
    // The partitions are given, and the rows are not put together: this does less than a shuffle has to.
    let groups = groups();
    runner.measure("rows: arrow's take for each of 64 partitions", ROWS, || {
        groups
            .iter()
            .map(|rows| take_record_batch(&numbers, rows).map(|batch| batch.num_rows()))
            .sum::<Result<usize, _>>()
    });
    for (name, by) in [
        ("hash of a number", By::Hash(&["c0"])),
        ("hash of two numbers", By::Hash(&["c0", "c1"])),
        ("at random", By::Random(1)),
        ("in turn", By::RoundRobin),
    ] {
        task(&runner, &format!("rows: by {name} into 64 partitions"), &client, &numbers, by, PARTITIONS)?;
    }
    for count in [1, 1024, 4096] {
        let name = format!("rows: by hash of a number into {count} partitions");
        task(&runner, &name, &client, &numbers, By::Hash(&["c0"]), count)?;
    }
    let large = self::numbers(ROWS * 16, 8).map_err(Failed::Arrow)?;
    let name = "rows: the same into 4096, batches of 131,072 rows";
    task(&runner, name, &client, &large, By::Hash(&["c0"]), 4096)?;
    let texts = texts().map_err(Failed::Arrow)?;
    let name = "rows: by hash of a text of 24 bytes, and 5 numbers";
    task(&runner, name, &client, &texts, By::Hash(&["text"]), PARTITIONS)
}

/// Measures attempts of a task that write many batches and do not commit. Their blocks are free again at their end.
fn task(
    runner: &Runner,
    name: &str,
    client: &BlockingClient,
    batch: &RecordBatch,
    by: By<'_>,
    partitions: u32,
) -> Result<(), Failed> {
    let exchange = client.exchange(name).partitions(partitions).tasks(1).open().call().map_err(Failed::Exchange)?;
    let batches = TASK_ROWS / batch.num_rows() as u64;
    let mut attempts = 0_u32..;
    runner.measure(name, TASK_ROWS, || {
        let attempt = exchange.task(0, attempts.next().unwrap_or_default()).call();
        let written = attempt.and_then(|mut task| (0..batches).try_for_each(|_| task.write(batch, by).call()));
        // A benchmark of failures would be misleading.
        written.unwrap_or_else(|e| {
            eprintln!("{e:?}");
            std::process::exit(1)
        });
    });
    exchange.release().call().map_err(Failed::Exchange)
}

/// Numbers without an order.
fn number(row: u64, column: u64) -> i64 {
    let mixed = (row * 31 + column + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)) as i64
}

fn numbers(rows: u64, columns: u64) -> Result<RecordBatch, ArrowError> {
    RecordBatch::try_from_iter((0..columns).map(|column| {
        let values = Int64Array::from_iter_values((0..rows).map(|row| number(row, column)));
        (format!("c{column}"), Arc::new(values) as ArrayRef)
    }))
}

/// A text of 24 bytes, and five numbers: 64 bytes, and the offset.
fn texts() -> Result<RecordBatch, ArrowError> {
    let text = StringArray::from_iter_values((0..ROWS).map(|row| format!("{:024x}", number(row, 0))));
    let numbers = numbers(ROWS, 5)?;
    let columns =
        numbers.schema_ref().fields().iter().zip(numbers.columns()).map(|(f, c)| (f.name().as_str(), c.clone()));
    RecordBatch::try_from_iter([("text", Arc::new(text) as ArrayRef)].into_iter().chain(columns))
}

/// The rows of 64 partitions, spread like those of a hash.
fn groups() -> Vec<UInt32Array> {
    let of =
        |partition: u64| (0..ROWS).filter(move |row| number(*row, 7) as u64 >> 58 == partition).map(|row| row as u32);
    (0..u64::from(PARTITIONS)).map(|partition| UInt32Array::from_iter_values(of(partition))).collect()
}
