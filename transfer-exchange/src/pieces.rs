//! Rows that are published before the commit, so that their sidecar can write them to disk.
//!
//! When there is no room in the arena, an attempt publishes the blocks that it has so far, as bundles that may be written
//! to disk. Then it starts new blocks. Nobody reads these bundles before the commit, which publishes the list of them. An
//! attempt that does not commit deletes them, as it does with all else that it has published.

use crate::block::Block;
use crate::calls::{How, push};
use crate::error::Error;
use crate::manifest::{BLOCKS_PER_BUNDLE, Starts};
use crate::scatter::Chosen;
use crate::state::ExchangeState;
use crate::written::{Writing, Written};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transfer_client::flow::Io;
use transfer_client::{BundleTensor, DType, Spill, TensorMut};

/// The most bytes of such a bundle: its memory is free when all of it is written.
const BUNDLE_BYTES: u64 = 16 << 20;

/// The longest time for which smaller ones wait.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// The room that an attempt keeps for the table of a bundle, and the part of the arena that it is at most. Without it,
/// a full arena would have no room for what frees it.
const TABLE_RESERVE: (u64, u64) = (128 << 10, 64);

/// The attempt whose rows these are.
#[derive(Clone, Copy)]
pub(super) struct AttemptContext<'a> {
    pub(super) io: &'a Io,
    pub(super) shared: &'a Arc<ExchangeState>,
    pub(super) task: u32,
    pub(super) attempt: u32,
}

/// Blocks that are being published. What is left when it is dropped goes back.
struct UnpublishedBlocks {
    written: Arc<Mutex<Written>>,
    blocks: VecDeque<(usize, Block)>,
}

impl Drop for UnpublishedBlocks {
    fn drop(&mut self) {
        let mut written = self.written.lock();
        if let Some(scatter) = &mut written.scatter {
            scatter.give_back(self.blocks.drain(..));
        }
        if let Some(holding) = &written.holding {
            holding.rest();
        }
    }
}

impl UnpublishedBlocks {
    /// The number of blocks of the next bundle.
    fn next(&self) -> usize {
        let (mut count, mut bytes) = (0, 0);
        for (_, block) in &self.blocks {
            if count == BLOCKS_PER_BUNDLE as usize || count > 0 && bytes + block.len_bytes() > BUNDLE_BYTES {
                break;
            }
            (count, bytes) = (count + 1, bytes + block.len_bytes());
        }
        count
    }
}

/// Adds the lengths of blocks to those of their partitions.
pub(super) fn add_lengths(lengths: &mut Vec<u64>, blocks: &[(usize, Block)]) {
    for (partition, block) in blocks {
        if lengths.len() <= *partition {
            lengths.resize(partition + 1, 0);
        }
        lengths[*partition] += block.len_bytes();
    }
}

impl Writing {
    /// Allocates the blocks of rows, and copies the rows. If there is no room, it publishes what was written before.
    pub(super) async fn write(&self, of: AttemptContext<'_>, chosen: Chosen) -> Result<(), Error> {
        self.reserve(of);
        let mut placement = self.plan(chosen)?;
        loop {
            match self.blocks(of, placement.sizes()).await? {
                Some(blocks) => {
                    self.place(placement, blocks);
                    return Ok(());
                }
                None => {
                    // New blocks have to be planned.
                    let Some(chosen) = placement.into_chosen() else { return Ok(()) };
                    placement = self.plan(chosen)?;
                }
            }
        }
    }

    /// Allocates blocks. `None` if there was no room, and other blocks were published to make some.
    async fn blocks(&self, of: AttemptContext<'_>, sizes: &[u64]) -> Result<Option<Vec<TensorMut>>, Error> {
        let io = of.io;
        if let Some(blocks) = allocate_now(io, sizes)? {
            return Ok(Some(blocks));
        }
        let threshold = &of.shared.threshold;
        if self.block_bytes() >= threshold.of(io.client().arena_bytes()) && self.publish(of, Spill::Now).await? {
            return Ok(None);
        }
        loop {
            match allocate(io, sizes, io.left(ROOM_TIMEOUT)).await {
                Err(transfer_client::Error::ArenaFull { .. }) if Instant::now() < io.limit() => {
                    threshold.waited_in_vain();
                    if self.publish(of, Spill::Now).await? {
                        return Ok(None);
                    }
                }
                allocated => return Ok(Some(allocated?)),
            }
        }
    }

    /// Allocates the blocks of rows that wait on the heap, at the end.
    pub(super) async fn write_rest(&self, of: AttemptContext<'_>) -> Result<(), Error> {
        loop {
            let rest = self.0.lock().scatter.as_ref().map(|scatter| scatter.prepare_rest()).transpose()?;
            let Some(rest) = rest else { return Ok(()) };
            if let Some(blocks) = self.blocks(of, rest.sizes()).await? {
                self.place(rest, blocks);
                return Ok(());
            }
        }
    }

    /// Keeps some room for the table of the next bundle, if there is any.
    fn reserve(&self, of: AttemptContext<'_>) {
        let mut written = self.0.lock();
        if written.reserve.is_none() {
            let (most, part) = TABLE_RESERVE;
            let len = most.min(of.io.client().arena_bytes() / part);
            written.reserve = of.io.client().allocate(DType::U8, [len]).ok();
        }
    }

    /// Publishes all blocks. Returns whether there were any.
    pub(super) async fn publish(&self, of: AttemptContext<'_>, spill: Spill) -> Result<bool, Error> {
        let AttemptContext { io, shared, task, attempt } = of;
        let blocks = self.take();
        let mut left = UnpublishedBlocks { written: self.0.clone(), blocks: blocks.into() };
        if left.blocks.is_empty() {
            return Ok(false);
        }
        while !left.blocks.is_empty() {
            let count = left.next();
            let (number, key) = {
                let mut written = self.0.lock();
                written.reserve = None;
                written.last_bundle += 1;
                let number = written.last_bundle;
                let key = shared.bundle_key((task, attempt), number)?;
                match &written.holding {
                    Some(holding) => holding.add(key.clone())?,
                    None => written.holding = Some(shared.ledger.hold(task, attempt, vec![key.clone()])?),
                }
                (number, key)
            };
            let bundle = left.blocks.iter().take(count);
            let starts = Starts::of(shared.partitions(), bundle.clone().map(|(partition, _)| *partition));
            push(io, io.client().push_bundle(key, named(bundle)), How::Rows(spill)).await?;
            let published: Vec<_> = left.blocks.drain(..count).collect();
            let mut written = self.0.lock();
            written.bundles.0.push((number, starts));
            add_lengths(&mut written.lengths, &published);
        }
        drop(left);
        self.reserve(of);
        Ok(true)
    }
}

/// The blocks of a bundle, with the names that they have there.
pub(super) fn named<'a>(
    blocks: impl IntoIterator<Item = &'a (usize, Block)>,
) -> impl Iterator<Item = (String, BundleTensor<'a>)> {
    blocks.into_iter().enumerate().map(|(n, (_, block))| (n.to_string(), BundleTensor::from(block.frozen())))
}

/// Allocates blocks. `None` if there is no room for all of them now.
pub(super) fn allocate_now(io: &Io, sizes: &[u64]) -> Result<Option<Vec<TensorMut>>, Error> {
    let mut blocks = Vec::with_capacity(sizes.len());
    for size in sizes {
        match io.client().allocate(DType::U8, [*size]) {
            Ok(block) => blocks.push(block),
            Err(transfer_client::Error::ArenaFull { .. }) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(Some(blocks))
}

/// Allocates blocks, and waits for room.
async fn allocate(io: &Io, sizes: &[u64], timeout: Duration) -> Result<Vec<TensorMut>, transfer_client::Error> {
    let limit = Instant::now() + timeout;
    let mut blocks = Vec::with_capacity(sizes.len());
    for size in sizes {
        let left = limit.saturating_duration_since(Instant::now());
        blocks.push(io.run(io.client().allocate_wait(DType::U8, [*size]).timeout(left)).await?);
    }
    Ok(blocks)
}
