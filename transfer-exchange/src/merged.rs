//! Fetching the blocks of several tasks from the node that has them, by one request.
//!
//! A sidecar has the bundles of all tasks that ran at its node. So a reader at another node asks it for the blocks of many
//! tasks together, and they land as one body. The sidecar sends all of them or none: if one is not in its memory at that
//! moment, the blocks of each of these tasks are fetched alone, as they would be without this. Where bundles are read in
//! place nothing has to move, and each is fetched by itself.

use crate::attempt::Attempt;
use crate::error::Error;
use crate::manifest::range_of;
use crate::part::Blocks;
use crate::state::ExchangeState;
use std::sync::Arc;
use transfer_client::BundleError;
use transfer_client::flow::Io;
use transfer_core::exchange::{bundle_rest, bundle_stem};
use transfer_core::tensor::{BodyRange, Gathered, GatheredPart, MAX_GATHERED_BYTES, Name};

/// The most bytes that the blocks of several tasks have together. They take one landing, which is free when the last of
/// them is dropped. Blocks of one task that are longer come alone.
pub(super) const MAX_MERGED_BYTES: u64 = 1 << 20;

/// The bytes that the shortest part takes in a request.
const MIN_PART_BYTES: usize = 15;

/// The blocks of a task for a partition, and how another node is asked for them.
pub(super) struct OfTask {
    pub(super) task: u32,
    attempt: Arc<Attempt>,
    parts: Vec<(GatheredPart, Vec<(u64, u64)>)>,
}

/// Tasks of one node, whose blocks are asked for together.
pub(super) struct Merged {
    node: Name,
    pub(super) tasks: Vec<OfTask>,
    /// The length of their blocks.
    pub(super) bytes: u64,
    wire_bytes: usize,
}

impl OfTask {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|(part, _)| part.range().len).sum()
    }

    fn wire_bytes(&self) -> usize {
        self.parts.iter().map(|(part, _)| part.wire_bytes()).sum()
    }
}

impl Merged {
    /// Begins with a task. `None` if its blocks are not fetched from another node.
    pub(super) fn new(of: OfTask) -> Option<Merged> {
        let node = of.attempt.node.clone()?;
        let (bytes, wire_bytes) = (of.bytes(), of.wire_bytes());
        Some(Merged { node, tasks: vec![of], bytes, wire_bytes })
    }

    /// Whether the blocks of this attempt are at the same node.
    pub(super) fn is_near(&self, attempt: &Attempt) -> bool {
        attempt.node.as_ref() == Some(&self.node)
    }

    /// Adds a task if the request takes it.
    pub(super) fn add(&mut self, of: OfTask) -> bool {
        let (bytes, wire_bytes) = (self.bytes + of.bytes(), self.wire_bytes + of.wire_bytes());
        let fits = self.is_near(&of.attempt) && bytes <= MAX_MERGED_BYTES && wire_bytes <= MAX_GATHERED_BYTES;
        if fits {
            (self.bytes, self.wire_bytes) = (bytes, wire_bytes);
            self.tasks.push(of);
        }
        fits
    }

    /// Whether it is of no use to look for another task.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= MAX_MERGED_BYTES || self.wire_bytes + MIN_PART_BYTES > MAX_GATHERED_BYTES
    }
}

impl ExchangeState {
    /// How another node is asked for the blocks of a task together with others. `None` if they have to be fetched alone: the
    /// attempt is not known, is read in place, or has bundles whose tables were not read yet.
    pub(super) fn to_merge(&self, task: u32, number: u32, partition: u32) -> Option<OfTask> {
        let attempt = self.known(task).filter(|known| known.number == number && known.node.is_some())?;
        let mut parts = Vec::new();
        for bundle in attempt.bundles_of(partition) {
            let places = bundle.places()?;
            let wanted = places.blocks(bundle.blocks_of(partition))?;
            let range = range_of(wanted)?;
            let part = GatheredPart::new(&bundle_rest((task, number), bundle.number), range).ok()?;
            parts.push((part, wanted.to_vec()));
        }
        Some(OfTask { task, attempt, parts })
    }

    /// Fetches the blocks of these tasks by one request. `None` if they could not be fetched together.
    pub(super) async fn fetch_merged(&self, io: &Io, merged: Merged) -> Option<Vec<(u32, Blocks)>> {
        let (node, tasks) = (merged.node.clone(), merged.tasks.len());
        let parts = merged.tasks.iter().flat_map(|of| &of.parts).map(|(part, _)| part.clone()).collect();
        let gathered = Gathered::new(bundle_stem(&self.name, self.id()).ok()?, parts).ok()?;
        let fetched = self.blocks_of_all(io, gathered, merged).await;
        fetched
            .inspect_err(|e| tracing::debug!(exchange = self.name, %node, tasks, "their blocks are fetched alone: {e}"))
            .ok()
    }

    async fn blocks_of_all(&self, io: &Io, gathered: Gathered, merged: Merged) -> Result<Vec<(u32, Blocks)>, Error> {
        let (timeout, expected_bytes) = (io.left(io.timeout()), gathered.len_bytes());
        let body = io.run(io.client().fetch_gathered(gathered).timeout(timeout)).await?;
        if body.body_len() != expected_bytes {
            return Err(BundleError::WrongLength { expected_bytes, found_bytes: body.body_len() }.into());
        }
        let (mut at, mut report) = (0, Some(body.report()));
        let mut found = Vec::with_capacity(merged.tasks.len());
        for OfTask { task, attempt, parts } in merged.tasks {
            let mut blocks = Vec::new();
            for (part, wanted) in parts {
                let BodyRange { offset, len } = part.range();
                for (start, len) in wanted {
                    blocks.push(body.bytes(at + (start - offset), len)?);
                }
                at += len;
            }
            // The report is that of all of them, and counts once.
            found.push((task, Blocks { attempt, blocks, report: report.take() }));
        }
        Ok(found)
    }
}
