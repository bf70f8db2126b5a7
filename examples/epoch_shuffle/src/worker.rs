//! A worker of the job.

use crate::Error;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, UInt8Array, UInt32Array};
use digits::dataset::Dataset;
use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use transfer_client::BlockingClient;
use transfer_exchange::{By, Exchange, ExchangeError, ExchangeExt};

/// The number of workers. Each has one task and one partition.
pub(crate) const WORKERS: u32 = 4;

/// The number of epochs.
pub(crate) const EPOCHS: u32 = 3;

/// The digits of one step of training.
const BATCH: NonZeroUsize = NonZeroUsize::new(32).expect("not 0");

/// The seed of the split. Every worker loads the same data.
const SPLIT: u64 = 1;

/// The time that a call may take: others may have to start again first.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a worker begins: at the first epoch, or where an earlier process of it was killed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    pub(crate) rank: u32,
    /// The number of processes that this worker had before.
    pub(crate) attempt: u32,
    pub(crate) epoch: u32,
    /// The number of rows of that epoch that were seen before.
    pub(crate) position: u64,
}

/// The number of digits.
pub(crate) fn rows() -> Result<usize, Error> {
    Ok(Dataset::load(SPLIT)?.train.len())
}

/// A worker's quarter of the digits, each with its number in the whole data set.
fn quarter(rank: u32) -> Result<RecordBatch, Error> {
    let digits = Dataset::load(SPLIT)?.shard(rank as usize, WORKERS as usize);
    let numbers = (0..digits.len() as u32).map(|n| n * WORKERS + rank);
    let pixels = digits.iter().map(|digit| Some(digit.pixels.map(Some)));
    let pixels = FixedSizeListArray::from_iter_primitive::<arrow_array::types::Float32Type, _, _>(pixels, 64);
    debug_assert!(pixels.values().as_any().is::<Float32Array>());
    Ok(RecordBatch::try_from_iter([
        ("row", Arc::new(UInt32Array::from_iter_values(numbers)) as ArrayRef),
        ("digit", Arc::new(UInt8Array::from_iter_values(digits.iter().map(|digit| digit.label as u8)))),
        ("pixels", Arc::new(pixels)),
    ])?)
}

/// Runs a worker. Its arguments are the socket of its sidecar, and the numbers of its [`Start`].
pub(crate) fn run(arguments: &[String]) -> Result<(), Error> {
    let [socket, numbers @ ..] = arguments else { return Err("a worker needs a socket".into()) };
    let numbers = numbers.iter().map(|n| n.parse()).collect::<Result<Vec<u64>, _>>()?;
    let [rank, attempt, epoch, position] = numbers[..] else { return Err("a worker needs four numbers".into()) };
    let start = Start { rank: rank as u32, attempt: attempt as u32, epoch: epoch as u32, position };
    let client = BlockingClient::connect(socket).name(format!("worker-{rank}")).arena_bytes(16 << 20).call()?;
    let digits = quarter(start.rank)?;
    for epoch in start.epoch..EPOCHS {
        let from = if epoch == start.epoch { start.position } else { 0 };
        train(&client, &digits, start, epoch, from)?;
    }
    Ok(())
}

/// An epoch: shuffles all digits, and sees a quarter of them.
fn train(client: &BlockingClient, digits: &RecordBatch, of: Start, epoch: u32, from: u64) -> Result<(), Error> {
    let named = client.exchange(format!("epoch-{epoch}"));
    let exchange = match of.rank {
        0 => named.partitions(WORKERS).tasks(WORKERS).open().call()?,
        _ => named.join().timeout(CALL_TIMEOUT).call()?,
    };
    let seed = u64::from(epoch);
    write(&exchange, digits, of, seed)?;

    // Once all tasks have committed, the rows come in an order that the seed chooses, and no process or attempt.
    let mut partition = exchange.partition(of.rank).timeout(CALL_TIMEOUT);
    partition = partition.in_order_of(seed).rows_per_batch(BATCH).from_position(from);
    loop {
        let batch = match partition.next() {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            // A worker was killed. Its next process writes its task again.
            Err(transfer_exchange::Error::Exchange(ExchangeError::Lost { .. })) => continue,
            Err(e) => return Err(e.into()),
        };
        for row in batch.column(0).as_primitive::<UInt32Type>().values() {
            step(epoch, *row)?;
        }
    }

    // What this worker has committed stays until all have seen their rows.
    client.barrier(format!("epoch-{epoch}"), WORKERS).wait().timeout(CALL_TIMEOUT).call()?;
    if of.rank == 0 {
        exchange.release().call()?;
    }
    Ok(())
}

/// A step of training: says the row, and waits until the job has seen it. A worker that is killed has not gone further
/// than that.
fn step(epoch: u32, row: u32) -> Result<(), Error> {
    let mut said = std::io::stdout().lock();
    writeln!(said, "{epoch} {row}")?;
    said.flush()?;
    match std::io::stdin().read_line(&mut String::new())? {
        0 => Err("the job has gone".into()),
        _ => Ok(()),
    }
}

/// Writes this worker's digits, unless an earlier process of it has done so and they are still there.
fn write(exchange: &Exchange<BlockingClient>, digits: &RecordBatch, of: Start, seed: u64) -> Result<(), Error> {
    let mut task = match exchange.task(of.rank, of.attempt).timeout(CALL_TIMEOUT).call() {
        Ok(task) => task,
        Err(transfer_exchange::Error::Exchange(ExchangeError::Committed { .. })) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    task.write(digits, By::Random(seed)).call()?;
    task.commit().call()?;
    Ok(())
}
