//! Published versions that are read as the bases of deltas.

use super::Session;
use std::sync::Arc;
use transfer_core::op::Push;
use transfer_core::tensor::{Key, TensorMeta, Version};
use transfer_core::wire::ranges::{read_ranges, table_bytes};
use transfer_memory::arena::{Arena, Block};

/// A version that this session has published. Its memory stays as it is until this is dropped, even if the sidecar returns it
/// before.
pub(crate) struct Base {
    session: Arc<Session>,
    pub(crate) push: Push,
    /// The bytes per second at which versions of the key leave this node for the node that gets them slowest. 0: it is not known.
    pub(crate) link_rate: u64,
    allocations: Vec<u64>,
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Base").field("push", &self.push).finish_non_exhaustive()
    }
}

impl Base {
    /// Finds a version that is published. `None` if this session has not published it, or it has ended.
    pub(crate) fn find(session: &Arc<Session>, key: &Key, version: Version) -> Option<Base> {
        session.with_loan(key, version, |loan| {
            let deltas = loan.deltas().into_iter().map(|(offset, _)| offset);
            let lent = loan.along.iter().copied().chain([loan.lent.allocation]).chain(deltas);
            // What is lent is held once more, while nobody can return it.
            let allocations = lent.filter(|at| session.arena().hold(*at)).collect();
            let (session, link_rate) = (session.clone(), loan.link_rate);
            Base { session, push: loan.push.clone(), link_rate, allocations }
        })
    }
}

/// The memory of a push's delta, and earlier deltas that are lent with it once more.
#[derive(Debug)]
pub(crate) struct LentDeltas {
    block: Option<Block>,
    session: Arc<Session>,
    earlier: Vec<u64>,
}

impl LentDeltas {
    /// Holds the earlier ones, which start at these offsets, and are held by the caller.
    pub(crate) fn new(session: &Arc<Session>, block: Block, earlier: impl Iterator<Item = u64>) -> LentDeltas {
        let earlier = earlier.filter(|at| session.arena().hold(*at)).collect();
        LentDeltas { block: Some(block), session: session.clone(), earlier }
    }

    /// Records that the sidecar has them.
    pub(crate) fn lend(mut self) {
        self.earlier.clear();
        if let Some(block) = self.block.take() {
            let _ = block.lend();
        }
    }
}

impl Drop for LentDeltas {
    fn drop(&mut self) {
        for delta in &self.earlier {
            // It was held.
            let _ = self.session.arena().give_back(*delta);
        }
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        for allocation in &self.allocations {
            // It was held.
            let _ = self.session.arena().give_back(*allocation);
        }
        self.session.room_is_free();
    }
}

/// The bytes of a push where they lie in the arena: its metadata and its body.
pub(crate) struct PushedBytes<'a> {
    arena: &'a Arena,
    /// Where each range starts in the version, and where it lies, in their order.
    ranges: Vec<(u64, u64)>,
}

impl<'a> PushedBytes<'a> {
    /// Finds them. The caller holds the memory of the push.
    pub(crate) fn new(arena: &'a Arena, offset: u64, meta: &TensorMeta, ranges: u32) -> PushedBytes<'a> {
        let mut found = vec![(0, offset)];
        let mut table = vec![0; table_bytes(ranges) as usize];
        // The table was written by this process.
        if ranges > 0 && arena.copy_out(offset + meta.body_offset(), &mut table).is_ok() {
            let mut at = meta.body_offset();
            for range in read_ranges(&table) {
                found.push((at, range.offset));
                at += range.len;
            }
        }
        PushedBytes { arena, ranges: found }
    }

    /// Copies the bytes from this place on.
    pub(crate) fn read(&self, mut at: u64, mut to: &mut [u8]) {
        let mut next = self.ranges.partition_point(|(start, _)| *start <= at);
        while !to.is_empty() {
            let Some((start, offset)) = self.ranges.get(next.saturating_sub(1)) else { return };
            let end = self.ranges.get(next).map_or(u64::MAX, |(end, _)| *end);
            let (part, rest) = to.split_at_mut((to.len() as u64).min(end - at) as usize);
            // The sidecar checks these ranges against the arena, too.
            let _ = self.arena.copy_out(offset + (at - start), part);
            (at, to, next) = (at + part.len() as u64, rest, next + 1);
        }
    }
}
