//! A rank of a sharded state of square matrices, and a reader that takes half of each.

use super::answer::{Answer, CALL_TIMEOUT, Failed};
use crate::clock::now_ns;
use serde::{Deserialize, Serialize};
use transfer_client::{BlockingClient, BundleMut, BundleTensor, DType, Error, Rank, Shard, s};

const STATE: &str = "reshard/state";

/// The bundle of a rank, with the same bytes as its shards.
fn bundle_key(rank: u32) -> String {
    format!("reshard/bundle-{rank}")
}

/// The matrices, of 32-bit floats. All elements of a row are its number plus that of the matrix.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Matrices {
    /// Their number.
    pub(crate) count: u64,
    /// The number of rows, and of columns.
    pub(crate) side: u64,
    /// The number of ranks, which have equally many rows.
    pub(crate) ranks: u32,
}

impl Matrices {
    pub(crate) fn len_bytes(self) -> u64 {
        self.count * self.side * self.side * 4
    }

    fn rows(self, rank: u32) -> std::ops::Range<u64> {
        let each = self.side / u64::from(self.ranks);
        u64::from(rank) * each..(u64::from(rank) + 1) * each
    }
}

/// A task with the state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Reshard {
    /// Pushes the shards of a rank, and the same memory as a bundle.
    Push {
        /// The matrices.
        of: Matrices,
        /// The rank.
        rank: u32,
    },
    /// Fetches the first or the second half of each matrix. Answers with two moments, and the copied bytes.
    Fetch {
        /// The matrices.
        of: Matrices,
        /// Whether it is the second half.
        second: bool,
        /// Whether it is half of the columns, and not of the rows.
        columns: bool,
        /// Whether it lands in tensors of the reader's arena.
        into: bool,
    },
    /// Fetches the bundles of half of the ranks, all at once. Answers as [`Reshard::Fetch`].
    FetchBundles {
        /// The matrices.
        of: Matrices,
        /// Whether it is the second half.
        second: bool,
    },
}

impl Reshard {
    pub(super) fn perform(self, client: &BlockingClient) -> Result<Answer, Failed> {
        match self {
            Reshard::Push { of, rank } => push(client, of, rank),
            Reshard::Fetch { of, second, columns, into } => {
                let half = u64::from(second) * of.side / 2..(u64::from(second) + 1) * of.side / 2;
                let slice = if columns { s![.., half.clone()] } else { s![half.clone()] };
                let slices = (0..of.count).map(|n| (n.to_string(), slice.clone()));
                let rows = if columns { 0..of.side } else { half };
                if into {
                    let (rows_len, columns_len) = (rows.end - rows.start, if columns { of.side / 2 } else { of.side });
                    let tensor = |n: u64| Ok((n.to_string(), client.allocate(DType::F32, [rows_len, columns_len])?));
                    let tensors = (0..of.count).map(tensor).collect::<Result<BundleMut, Error>>()?;
                    let started = now_ns();
                    let fetch = client.fetch_sharded(STATE).slices(slices).timeout(CALL_TIMEOUT).into(tensors);
                    let fetched = fetch.call().map_err(Error::from)?;
                    let ended = now_ns();
                    check(of, |name| fetched.tensors().get(name)?.as_slice().ok(), rows)?;
                    return Ok(Answer::Times { ns: vec![started, ended], copied: fetched.report().copied });
                }
                let started = now_ns();
                let fetched = client.fetch_sharded(STATE).slices(slices).timeout(CALL_TIMEOUT).call()?;
                let ended = now_ns();
                check(of, |name| fetched.get(name)?.as_slice().ok(), rows)?;
                Ok(Answer::Times { ns: vec![started, ended], copied: fetched.report().copied })
            }
            Reshard::FetchBundles { of, second } => {
                let ranks = u32::from(second) * of.ranks / 2..(u32::from(second) + 1) * of.ranks / 2;
                let started = now_ns();
                let mut under_way: Vec<_> = ranks
                    .clone()
                    .map(|rank| client.fetch_bundle(bundle_key(rank)).timeout(CALL_TIMEOUT).begin())
                    .collect();
                let mut fetched = Vec::new();
                for fetch in &mut under_way {
                    fetched.push(fetch.wait(CALL_TIMEOUT).ok_or(Error::NoAnswer { waited: CALL_TIMEOUT })??);
                }
                let ended = now_ns();
                for (rank, bundle) in ranks.zip(&fetched) {
                    check(of, |name| bundle.get(name)?.as_slice().ok(), of.rows(rank))?;
                }
                let copied = fetched.iter().map(|bundle| bundle.report().copied).sum();
                Ok(Answer::Times { ns: vec![started, ended], copied })
            }
        }
    }
}

fn push(client: &BlockingClient, of: Matrices, rank: u32) -> Result<Answer, Failed> {
    let rows = of.rows(rank);
    let mut tensors = Vec::new();
    for n in 0..of.count {
        let mut tensor = client.allocate(DType::F32, [rows.end - rows.start, of.side])?;
        let row_len = usize::try_from(of.side)?;
        for (row, elements) in rows.clone().zip(tensor.as_mut_slice::<f32>()?.chunks_mut(row_len)) {
            elements.fill((row + n) as f32);
        }
        tensors.push((n.to_string(), tensor.freeze()));
    }
    let bundle = tensors.iter().map(|(name, tensor)| (name, BundleTensor::from(tensor)));
    client.push_bundle(bundle_key(rank), bundle).timeout(CALL_TIMEOUT).call().map_err(Error::from)?;
    let shard = |(name, tensor)| Shard::new(name, [of.side; 2], [rows.start, 0], BundleTensor::from(tensor));
    let shards = tensors.iter().map(|(name, tensor)| shard((name.as_str(), tensor)));
    let rank = Rank { rank, world_size: of.ranks };
    client.push_shards(STATE, 1, rank, shards).timeout(CALL_TIMEOUT).call()?;
    Ok(Answer::Done)
}

/// Looks at the first and the last element of each row.
fn check<'a>(
    of: Matrices,
    fetched: impl Fn(&str) -> Option<&'a [f32]>,
    rows: std::ops::Range<u64>,
) -> Result<(), Failed> {
    let row_count = usize::try_from(rows.end - rows.start)?;
    for n in 0..of.count {
        let tensor = fetched(&n.to_string()).ok_or("a matrix is missing")?;
        let row_len = tensor.len() / row_count;
        let is_right = |(row, elements): (u64, &[f32])| {
            let expected = Some((row + n) as f32);
            elements.first().copied() == expected && elements.last().copied() == expected
        };
        if row_len == 0 || !rows.clone().zip(tensor.chunks(row_len)).all(is_right) {
            return Err(format!("matrix {n} has other elements").into());
        }
    }
    Ok(())
}
