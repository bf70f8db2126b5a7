//! Exchanges of record batches in a worker.

use super::{Agent, lock, work};
use crate::order::{Answer, ShuffleOrder, Trouble};
use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use transfer_client::BlockingClient;
use transfer_exchange::{By, Error, Exchange, ExchangeExt, ExchangeTask};

/// The exchanges of a worker, the attempts that have not committed, and the batches that it holds.
#[derive(Default)]
pub(super) struct Shuffles {
    exchanges: HashMap<String, Exchange<BlockingClient>>,
    attempts: HashMap<(String, u32, u32), ExchangeTask<BlockingClient>>,
    held: Vec<RecordBatch>,
}

/// Returns `rows` rows of an attempt: their partitions take turns.
fn batch(partitions: u32, task: u32, attempt: u32, rows: u64) -> RecordBatch {
    let column = |of: &dyn Fn(u64) -> u32| Arc::new(UInt32Array::from_iter_values((0..rows).map(of))) as ArrayRef;
    let n = Arc::new(UInt64Array::from_iter_values(0..rows)) as ArrayRef;
    let part = column(&|n| (n % u64::from(partitions)) as u32);
    let columns = [("part", part), ("task", column(&|_| task)), ("attempt", column(&|_| attempt)), ("n", n)];
    RecordBatch::try_from_iter(columns).expect("the columns are of one length")
}

impl Agent {
    pub(super) fn shuffle(&self, order: ShuffleOrder) -> Result<Answer, Trouble> {
        self.shuffled(order).map_err(|e| work::exchange_trouble(&e))
    }

    fn exchange_of(&self, name: &str) -> Exchange<BlockingClient> {
        lock(&self.shuffles).exchanges.get(name).cloned().expect("a test opens or joins it before")
    }

    fn shuffled(&self, order: ShuffleOrder) -> Result<Answer, Error> {
        match order {
            ShuffleOrder::Open { name, partitions, tasks, deadline } => {
                let mut builder = self.client.exchange(&name).partitions(partitions).tasks(tasks);
                if let Some(deadline) = deadline {
                    builder = builder.deadline(deadline);
                }
                let exchange = builder.open().call()?;
                lock(&self.shuffles).exchanges.insert(name, exchange);
            }
            ShuffleOrder::Join(name) => {
                let exchange = self.client.exchange(&name).join().call()?;
                lock(&self.shuffles).exchanges.insert(name, exchange);
            }
            ShuffleOrder::Write { name, task, attempt, rows } => {
                let exchange = self.exchange_of(&name);
                let mut writer = exchange.task(task, attempt).call()?;
                let batch = batch(exchange.partitions(), task, attempt, rows);
                writer.write(&batch, By::Column("part")).call()?;
                lock(&self.shuffles).attempts.insert((name, task, attempt), writer);
            }
            ShuffleOrder::Commit { name, task, attempt } => {
                let writer = lock(&self.shuffles).attempts.remove(&(name, task, attempt));
                writer.expect("a test writes before").commit().call()?;
            }
            ShuffleOrder::Read { name, partition, hold, timeout } => {
                let mut partition = self.exchange_of(&name).partition(partition).timeout(timeout);
                let mut rows = Vec::new();
                while let Some(batch) = partition.next()? {
                    let (task, attempt) = (batch.column(1).as_primitive::<UInt32Type>(), batch.column(2));
                    let attempt = attempt.as_primitive::<UInt32Type>();
                    let n = batch.column(3).as_primitive::<UInt64Type>();
                    rows.extend((0..batch.num_rows()).map(|at| (task.value(at), attempt.value(at), n.value(at))));
                    if hold {
                        lock(&self.shuffles).held.push(batch);
                    }
                }
                rows.sort_unstable();
                return Ok(Answer::Rows(rows));
            }
            ShuffleOrder::Release(name) => {
                self.exchange_of(&name).release().timeout(Duration::from_secs(60)).call()?;
                lock(&self.shuffles).exchanges.remove(&name);
            }
        }
        Ok(Answer::Done)
    }
}
