//! Ranges of the arena on their way to the sidecar and back.

use super::home::Former;
use std::sync::Arc;
use transfer_core::memory::{ALIGNMENT, LocalSlice};
use transfer_memory::arena::{Arena, Block, Shared};

/// A range that is to be pushed.
#[derive(Debug)]
pub(crate) enum Held {
    /// With one owner: a tensor that was allocated.
    Own(Block),
    /// Part of an allocation that is frozen, and that others in this process read.
    Shared(SharedRange),
    /// Metadata and a table, which are ours alone, and what the table names: ranges that others here read, and what was copied.
    Gathered { head: Block, ranges: Vec<SharedRange>, copied: Option<Block> },
    /// What the sidecar held before its restart, and is to hold again; with what was lent along, and the sessions in which it was.
    Again(Lent, Vec<u64>, Vec<Arc<Former>>),
}

/// A range that was pushed, as both sides call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lent {
    /// Where it starts in the arena: what the sidecar calls it.
    pub(crate) offset: u64,
    /// Where its allocation starts: what the arena calls it.
    pub(crate) allocation: u64,
    /// Whether it had one owner.
    pub(crate) owned: bool,
}

impl Held {
    /// What it will be called once it is lent.
    pub(crate) fn to_lend(&self) -> Lent {
        match self {
            Held::Own(block) => {
                let offset = block.slice().offset;
                Lent { offset, allocation: offset, owned: true }
            }
            Held::Again(lent, ..) => *lent,
            Held::Gathered { head, .. } => {
                let offset = head.slice().offset;
                Lent { offset, allocation: offset, owned: false }
            }
            Held::Shared(range) => {
                Lent { offset: range.shared.slice.offset, allocation: range.shared.allocation, owned: false }
            }
        }
    }

    /// The other allocations that are lent along, once for each time.
    pub(crate) fn along(&self) -> Vec<u64> {
        match self {
            Held::Gathered { ranges, copied, .. } => {
                let copied = copied.as_ref().map(|block| block.slice().offset);
                ranges.iter().map(|range| range.shared.allocation).chain(copied).collect()
            }
            Held::Again(_, along, _) => along.clone(),
            Held::Own(_) | Held::Shared(_) => Vec::new(),
        }
    }

    /// Sessions before this one in which the sidecar held it.
    pub(crate) fn formers(&self) -> Vec<Arc<Former>> {
        match self {
            Held::Again(.., formers) => formers.clone(),
            Held::Own(_) | Held::Shared(_) | Held::Gathered { .. } => Vec::new(),
        }
    }

    /// From now on the sidecar holds it.
    pub(crate) fn lend(self) {
        match self {
            Held::Own(block) => drop(block.lend()),
            Held::Shared(mut range) => range.arena = None,
            Held::Gathered { head, ranges, copied } => {
                for block in copied.into_iter().chain([head]) {
                    let _ = block.lend();
                }
                ranges.into_iter().for_each(|mut range| range.arena = None);
            }
            // It is counted as lent since then.
            Held::Again(..) => {}
        }
    }
}

/// A frozen range that the arena counts as lent already, so that it stays; taken back when this is dropped and was not lent.
#[derive(Debug)]
pub(crate) struct SharedRange {
    arena: Option<Arena>,
    shared: Shared,
}

impl SharedRange {
    /// The range of `len` bytes at `pointer`. None where it does not lie in one frozen allocation, or where no push can start.
    pub(crate) fn find(arena: &Arena, pointer: *const u8, len: u64) -> Option<SharedRange> {
        let range = SharedRange::find_anywhere(arena, pointer, len)?;
        range.shared.slice.offset.is_multiple_of(ALIGNMENT).then_some(range)
    }

    /// The same, also where no push of its own could start: as part of what a push gathers.
    pub(crate) fn find_anywhere(arena: &Arena, pointer: *const u8, len: u64) -> Option<SharedRange> {
        let shared = arena.share(pointer, len)?;
        Some(SharedRange { arena: Some(arena.clone()), shared })
    }

    /// Where it lies.
    pub(crate) fn slice(&self) -> LocalSlice {
        self.shared.slice
    }

    /// Where its allocation ends in the arena, padding included.
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
