//! Ranges of the arena that are lent to the sidecar and returned.

use super::home::Former;
use std::sync::Arc;
use transfer_core::memory::{ALIGNMENT, LocalSlice};
use transfer_memory::arena::{Arena, Block, LentSlice, OpenBlock};

/// A range that is about to be pushed.
#[derive(Debug)]
pub(crate) enum Held {
    /// A range with one owner: an allocated tensor.
    Own(Block),
    /// Part of a frozen allocation, which other code of this process may read.
    Shared(SharedRange),
    /// Metadata and a table that this push owns, the frozen ranges that the table names, and the copied ones.
    Gathered { head: Block, ranges: Vec<SharedRange>, copied: Option<Block> },
    /// The allocations into which a fetch lands.
    Landing(Vec<SharedRange>),
    /// A range that the sidecar held before its restart, the other allocations that were lent with it, and the sessions
    /// in which it was lent.
    Again(Lent, Vec<u64>, Vec<Arc<Former>>),
}

/// A pushed range, as both sides name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lent {
    /// Its start in the arena: the sidecar's name of it.
    pub(crate) offset: u64,
    /// The start of its allocation: the arena's name of it.
    pub(crate) allocation: u64,
    /// Whether it had one owner.
    pub(crate) owned: bool,
}

impl Lent {
    fn own(block: &Block) -> Lent {
        let offset = block.slice().offset;
        Lent { offset, allocation: offset, owned: true }
    }
}

impl Held {
    /// The descriptions of the ranges into which a fetch lands, once they are lent.
    pub(crate) fn destinations(&self) -> Vec<Lent> {
        match self {
            Held::Landing(ranges) => ranges.iter().map(SharedRange::lent).collect(),
            _ => Vec::new(),
        }
    }

    /// Its description once it is lent with a push.
    pub(crate) fn to_lend(&self) -> Lent {
        match self {
            Held::Own(block) => Lent::own(block),
            // Nothing pushes it.
            Held::Landing(_) => Lent { offset: 0, allocation: 0, owned: false },
            Held::Again(lent, ..) => *lent,
            Held::Gathered { head, .. } => {
                let offset = head.slice().offset;
                Lent { offset, allocation: offset, owned: false }
            }
            Held::Shared(range) => range.lent(),
        }
    }

    /// The other lent allocations of this push; an allocation appears once for each time that it was lent.
    pub(crate) fn along(&self) -> Vec<u64> {
        match self {
            Held::Gathered { ranges, copied, .. } => {
                let copied = copied.as_ref().map(|block| block.slice().offset);
                ranges.iter().map(|range| range.shared.allocation).chain(copied).collect()
            }
            Held::Again(_, along, _) => along.clone(),
            Held::Own(_) | Held::Shared(_) | Held::Landing(_) => Vec::new(),
        }
    }

    /// The earlier sessions in which the sidecar held the range.
    pub(crate) fn formers(&self) -> Vec<Arc<Former>> {
        match self {
            Held::Again(.., formers) => formers.clone(),
            Held::Own(_) | Held::Shared(_) | Held::Gathered { .. } | Held::Landing(_) => Vec::new(),
        }
    }

    /// Lends the range: from now on the sidecar holds it.
    pub(crate) fn lend(self) {
        match self {
            Held::Own(block) => drop(block.lend()),
            Held::Landing(ranges) => ranges.into_iter().for_each(|mut range| range.arena = None),
            Held::Shared(mut range) => range.arena = None,
            Held::Gathered { head, ranges, copied } => {
                for block in copied.into_iter().chain([head]) {
                    let _ = block.lend();
                }
                ranges.into_iter().for_each(|mut range| range.arena = None);
            }
            // It has been counted as lent since then.
            Held::Again(..) => {}
        }
    }
}

/// A frozen range, or an open one, that the arena already counts as lent, so that it stays. It is returned if this is dropped without
/// being lent.
#[derive(Debug)]
pub(crate) struct SharedRange {
    arena: Option<Arena>,
    shared: LentSlice,
}

impl SharedRange {
    /// Finds the range of `len` bytes at `pointer`. `None` if it does not lie in one frozen allocation, or is not
    /// aligned for a push.
    pub(crate) fn find(arena: &Arena, pointer: *const u8, len: u64) -> Option<SharedRange> {
        let range = SharedRange::find_anywhere(arena, pointer, len)?;
        range.shared.slice.offset.is_multiple_of(ALIGNMENT).then_some(range)
    }

    /// Finds the range of `len` bytes at `pointer` for a gathered push, even if it is not aligned for a push of its
    /// own.
    pub(crate) fn find_anywhere(arena: &Arena, pointer: *const u8, len: u64) -> Option<SharedRange> {
        let shared = arena.share(pointer, len)?;
        Some(SharedRange { arena: Some(arena.clone()), shared })
    }

    /// The memory of an open block. `None` if it is lent as often as can be counted.
    pub(crate) fn of_open(arena: &Arena, block: &OpenBlock) -> Option<SharedRange> {
        Some(SharedRange { arena: Some(arena.clone()), shared: block.lend()? })
    }

    fn lent(&self) -> Lent {
        Lent { offset: self.shared.slice.offset, allocation: self.shared.allocation, owned: false }
    }

    /// The range.
    pub(crate) fn slice(&self) -> LocalSlice {
        self.shared.slice
    }

    /// The end of its allocation in the arena, padding included.
    pub(crate) fn allocation_end(&self) -> u64 {
        self.shared.allocation_end
    }
}

impl Drop for SharedRange {
    fn drop(&mut self) {
        if let Some(arena) = &self.arena {
            // The arena counts it, since `find`.
            let _ = arena.give_back(self.shared.allocation);
        }
    }
}
