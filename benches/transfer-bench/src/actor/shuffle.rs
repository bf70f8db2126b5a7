//! The tasks of a worker in an exchange of record batches: it writes a task of it, and reads some of its partitions.

use super::answer::{Answer, CALL_TIMEOUT, Failed};
use crate::clock::now_ns;
use arrow_array::{Array, ArrayRef, FixedSizeBinaryArray, RecordBatch};
use arrow_buffer::Buffer;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use transfer_client::BlockingClient;
use transfer_exchange::{By, Exchange, ExchangeExt};

/// The lengths of a record's key and of the rest of it, in bytes: those of the sort benchmark.
const KEY: usize = 10;
const REST: usize = 90;
/// The length of a record.
pub const RECORD: u64 = (KEY + REST) as u64;
/// The rows of each batch.
const BATCH: u64 = 1 << 16;

/// A task in an exchange.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Shuffle {
    /// Makes the records of this worker, in ordinary memory.
    Records {
        /// The number of records.
        records: u64,
        /// Each seed gives other records.
        seed: u64,
    },
    /// Opens an exchange.
    Open {
        /// Its name.
        name: String,
        /// The number of its partitions.
        partitions: u32,
        /// The number of its tasks.
        tasks: u32,
    },
    /// Joins an exchange.
    Join {
        /// Its name.
        name: String,
    },
    /// Partitions the records by the hash of their key, and drops the attempt. Answers with the first and the last
    /// moment.
    Partition {
        /// The task.
        task: u32,
        /// Its attempt.
        attempt: u32,
    },
    /// Partitions the records, commits them, and reads every byte of partitions. Answers with [`Answer::Shuffled`].
    Whole {
        /// The task.
        task: u32,
        /// Its attempt.
        attempt: u32,
        /// The partitions that are read.
        partitions: Range<u32>,
    },
    /// Ends the exchange, if this worker has opened it, and waits until the worker's arena is free again.
    End,
}

/// What a worker has for its tasks in an exchange.
#[derive(Debug, Default)]
pub(super) struct Shuffler {
    batches: Vec<RecordBatch>,
    exchange: Option<Exchange<BlockingClient>>,
    opened: bool,
    /// The free bytes of the arena before the first exchange.
    free: u64,
}

impl Shuffler {
    pub(super) fn perform(&mut self, task: Shuffle, client: &BlockingClient) -> Result<Answer, Failed> {
        match task {
            Shuffle::Records { records, seed } => {
                let starts = (0..records).step_by(BATCH as usize);
                let make = |start| batch(seed << 40 | start, BATCH.min(records - start));
                self.free = client.arena_free_bytes();
                self.batches = starts.map(make).collect::<Result<_, _>>()?;
                Ok(Answer::Done)
            }
            Shuffle::Open { name, partitions, tasks } => {
                let opening = client.exchange(name).partitions(partitions).tasks(tasks).open();
                (self.exchange, self.opened) = (Some(opening.timeout(CALL_TIMEOUT).call()?), true);
                Ok(Answer::Done)
            }
            Shuffle::Join { name } => {
                self.exchange = Some(client.exchange(name).join().timeout(CALL_TIMEOUT).call()?);
                Ok(Answer::Done)
            }
            Shuffle::Partition { task, attempt } => {
                let free = client.arena_free_bytes();
                let started = now_ns();
                let mut task = self.exchange()?.task(task, attempt).call()?;
                self.batches.iter().try_for_each(|batch| task.write(batch, By::Hash(&["key"])).call())?;
                let ended = now_ns();
                drop(task);
                until(client, free)?;
                Ok(Answer::Times { ns: vec![started, ended], copied: 0 })
            }
            Shuffle::Whole { task, attempt, partitions } => self.whole(task, attempt, partitions),
            Shuffle::End => {
                let exchange = self.exchange.take();
                if let Some(exchange) = exchange.filter(|_| std::mem::take(&mut self.opened)) {
                    exchange.release().call()?;
                }
                until(client, self.free)?;
                Ok(Answer::Done)
            }
        }
    }

    fn exchange(&self) -> Result<&Exchange<BlockingClient>, Failed> {
        self.exchange.as_ref().ok_or_else(|| "the worker is in no exchange".into())
    }

    fn whole(&self, task: u32, attempt: u32, partitions: Range<u32>) -> Result<Answer, Failed> {
        let started = now_ns();
        let exchange = self.exchange()?;
        let mut task = exchange.task(task, attempt).call()?;
        self.batches.iter().try_for_each(|batch| task.write(batch, By::Hash(&["key"])).call())?;
        task.commit().call()?;
        let committed = now_ns();
        let (mut rows, mut copied) = (0, 0);
        for partition in partitions {
            let mut reader = exchange.partition(partition).timeout(CALL_TIMEOUT);
            while let Some(batch) = reader.next()? {
                rows += batch.num_rows() as u64;
                batch.columns().iter().for_each(read);
            }
            copied += reader.report_of_all().map_or(0, |report| report.copied);
        }
        Ok(Answer::Shuffled { started, committed, ended: now_ns(), rows, copied })
    }
}

/// Waits until this many bytes of the arena are free. The memory of an exchange is free about a second after its end.
fn until(client: &BlockingClient, free: u64) -> Result<(), Failed> {
    let started = Instant::now();
    while client.arena_free_bytes() < free {
        if started.elapsed() > CALL_TIMEOUT {
            return Err("the arena is not free again".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Reads every byte of a column.
fn read(column: &ArrayRef) {
    for buffer in column.to_data().buffers() {
        let (words, rest) = buffer.as_chunks::<8>();
        let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
        std::hint::black_box((sum, rest.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte))));
    }
}

/// Makes records, beginning with this number.
fn batch(first: u64, rows: u64) -> Result<RecordBatch, Failed> {
    let bytes = |len: usize, salt: u64| {
        let words = (0..(rows * len as u64).div_ceil(8)).map(|n| mix((first << 8).wrapping_add(n) ^ salt));
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.truncate(rows as usize * len);
        FixedSizeBinaryArray::try_new(len as i32, Buffer::from_vec(bytes), None)
    };
    let (key, rest) = (bytes(KEY, 0)?, bytes(REST, 1 << 63)?);
    Ok(RecordBatch::try_from_iter([("key", Arc::new(key) as ArrayRef), ("rest", Arc::new(rest))])?)
}

/// A number without an order, for each number.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (n ^ (n >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}
