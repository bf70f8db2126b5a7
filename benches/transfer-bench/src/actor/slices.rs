//! Fetches of a block of a matrix, in turns with as many bytes that lie one behind the other.

use super::answer::{Answer, CALL_TIMEOUT, Failed};
use crate::clock::now_ns;
use serde::{Deserialize, Serialize};
use transfer_client::{BlockingClient, DType, s};

const MATRIX: &str = "slices/matrix";

/// A task with the matrix, of 32-bit floats.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Slices {
    /// Publishes a square matrix.
    Publish {
        /// The number of its rows, and of its columns.
        side: u64,
    },
    /// Fetches the first rows and columns, and as many bytes of whole rows, in turns. Answers with pairs of durations.
    Fetch {
        /// The number of rows of the block.
        rows: u64,
        /// The number of columns of the block.
        columns: u64,
        /// The number of whole rows with as many bytes.
        whole_rows: u64,
        /// The number of rounds.
        rounds: u64,
    },
}

impl Slices {
    pub(super) fn perform(self, client: &BlockingClient) -> Result<Answer, Failed> {
        match self {
            Slices::Publish { side } => {
                let mut matrix = client.allocate(DType::F32, [side, side])?;
                let row = usize::try_from(side)?;
                for (n, row) in matrix.as_mut_slice::<f32>()?.chunks_mut(row).enumerate() {
                    row.fill(n as f32);
                }
                client.push_tensor(MATRIX, matrix).timeout(CALL_TIMEOUT).call()?;
                Ok(Answer::Done)
            }
            Slices::Fetch { rows, columns, whole_rows, rounds } => {
                let fetch = |slice, last: u64| {
                    let started = now_ns();
                    let found = client.fetch(MATRIX).slice(slice).timeout(CALL_TIMEOUT).call()?;
                    let took = now_ns() - started;
                    let read: Vec<f32> = found.to_vec()?;
                    match read.last() == Some(&((last - 1) as f32)) && read.len() as u64 == rows * columns {
                        true => Ok(took),
                        false => Err(Failed::from("the slice has other elements")),
                    }
                };
                let mut pairs = Vec::new();
                // The first of each makes names and memory known, and is not measured.
                for round in 0..=rounds {
                    let block = fetch(s![0..rows, 0..columns], rows)?;
                    let whole = fetch(s![0..whole_rows], whole_rows)?;
                    if round > 0 {
                        pairs.push((block, whole));
                    }
                }
                Ok(Answer::Pairs(pairs))
            }
        }
    }
}
