//! Pushes and fetches of a record batch of many columns, in turns with a dense tensor of the same size.

use super::answer::{Answer, CALL_TIMEOUT, Failed};
use crate::clock::now_ns;
use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use transfer_client::{BlockingClient, DType, Error, Frozen};

const DENSE: &str = "columns/dense";
const BATCH: &str = "columns/batch";

/// A task with the batch and the tensor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Columns {
    /// Publishes the batch and the tensor.
    Publish {
        /// The size of each, in bytes.
        len: u64,
        /// The number of columns of the batch, of 64-bit floats.
        columns: u64,
    },
    /// Pushes both to a worker elsewhere, in turns. Answers with pairs of durations.
    Push {
        /// The size of each, in bytes.
        len: u64,
        /// The number of columns of the batch.
        columns: u64,
        /// The number of rounds.
        rounds: u64,
        /// The target worker.
        to: String,
    },
    /// Fetches both, in turns. Answers with pairs of durations.
    Fetch {
        /// The number of rounds.
        rounds: u64,
    },
}

impl Columns {
    pub(super) fn perform(self, client: &BlockingClient) -> Result<Answer, Failed> {
        match self {
            Columns::Publish { len, columns } => {
                let (dense, batch) = both(client, len, columns)?;
                client.push_frozen(DENSE, &dense).timeout(CALL_TIMEOUT).call().map_err(Error::from)?;
                let pushed = client.push_batch(BATCH, &batch).timeout(CALL_TIMEOUT).call().map_err(Error::from)?;
                Ok(Answer::Times { ns: Vec::new(), copied: pushed.report.copied })
            }
            Columns::Push { len, columns, rounds, to } => {
                let (dense, batch) = both(client, len, columns)?;
                let (dense_key, batch_key) = (format!("{DENSE}/{to}"), format!("{BATCH}/{to}"));
                in_turns(
                    rounds,
                    || {
                        client
                            .push_frozen(&dense_key, &dense)
                            .to(&to)
                            .timeout(CALL_TIMEOUT)
                            .call()
                            .map(drop)
                            .map_err(Error::from)
                    },
                    || {
                        client
                            .push_batch(&batch_key, &batch)
                            .to(&to)
                            .timeout(CALL_TIMEOUT)
                            .call()
                            .map(drop)
                            .map_err(Error::from)
                    },
                )
            }
            Columns::Fetch { rounds } => in_turns(
                rounds,
                || client.fetch(DENSE).timeout(CALL_TIMEOUT).call().map(drop),
                || client.fetch_batch(BATCH).timeout(CALL_TIMEOUT).call().map(drop),
            ),
        }
    }
}

/// Makes a tensor and a batch of `len` bytes each, in the arena.
fn both(client: &BlockingClient, len: u64, columns: u64) -> Result<(Frozen, RecordBatch), Failed> {
    let mut dense = client.allocate(DType::U8, [len])?;
    dense.as_mut_bytes().fill(3);
    let fields: Vec<_> = (0..columns).map(|n| Field::new(format!("c{n}"), DataType::Float64, false)).collect();
    let rows = usize::try_from(len / columns.max(1) / 8)?;
    let mut builder = client.batch_builder(&Arc::new(Schema::new(fields)))?.rows(rows)?;
    for at in 0..usize::try_from(columns)? {
        builder.column_at(at)?.values_mut::<f64>(rows)?.fill(at as f64);
    }
    Ok((dense.freeze(), builder.finish()?))
}

/// Measures both calls in each round: first the batch, then the tensor.
fn in_turns(
    rounds: u64,
    mut dense: impl FnMut() -> Result<(), Error>,
    mut batch: impl FnMut() -> Result<(), Error>,
) -> Result<Answer, Failed> {
    // The first calls make names, descriptions and slots known, and are not measured.
    dense()?;
    batch()?;
    let mut pairs = Vec::new();
    for _ in 0..rounds {
        let started = now_ns();
        batch()?;
        let between = now_ns();
        dense()?;
        pairs.push((between - started, now_ns() - between));
    }
    Ok(Answer::Pairs(pairs))
}
