//! The memory of a bundle that becomes writable again.

use super::writable::BundleMut;
use crate::error::{BundleError, Error};
use crate::memory::TensorMut;
use crate::push::TakenBack;
use crate::session::{Lent, Loan, Session};
use std::sync::Arc;
use std::task::Waker;
use transfer_core::memory::padded;
use transfer_core::op::Push;
use transfer_core::tensor::TensorMeta;
use transfer_core::wire::bundle::BundleTable;
use transfer_core::wire::ranges::{read_ranges, table_bytes};
use transfer_memory::arena::Block;

/// The memory of one version: the named allocations become tensors, and the others are freed.
#[derive(Debug)]
pub struct BundlePlan {
    tensors: Vec<(String, TensorMeta, Memory)>,
    /// The allocation of the metadata.
    head: u64,
}

/// The memory of one tensor.
#[derive(Debug)]
enum Memory {
    /// An allocation that the sidecar holds.
    Lent(u64),
    /// The first part of an allocation that the sidecar holds and that some tensors share, and the lengths of all parts.
    First(u64, Vec<u64>),
    /// The next part of that allocation.
    Next,
    /// A tensor without elements was not lent, so it gets new memory.
    New(Block),
}

/// The tensors of a bundle that is allocated.
#[derive(Debug)]
pub struct FreshBundle {
    /// Their names and descriptions.
    layout: Layout,
    /// Those that are allocated already.
    tensors: Vec<(String, TensorMut)>,
}

/// The names and descriptions of the tensors of a bundle.
pub(crate) type Layout = Arc<[(String, TensorMeta)]>;

impl FreshBundle {
    pub(crate) fn new(layout: Layout) -> FreshBundle {
        FreshBundle { layout, tensors: Vec::new() }
    }
}

/// All tensors of a bundle.
impl TakenBack for BundleMut {
    type Plan = BundlePlan;
    type Fresh = FreshBundle;

    fn plan(session: &Session, lent: Lent, push: &Push) -> Result<BundlePlan, Error> {
        plan(session, lent, push)
    }

    fn take_back(plan: BundlePlan, session: &Session, loan: Loan) -> Result<BundleMut, Error> {
        let BundlePlan { tensors, head } = plan;
        let not_alone = Error::NotAlone { meta: loan.push.meta.clone() };
        let lent = tensors.iter().filter_map(|(.., memory)| match memory {
            Memory::Lent(allocation) | Memory::First(allocation, _) => Some(*allocation),
            Memory::Next | Memory::New(_) => None,
        });
        let Ok(blocks) = session.arena().take_back_all(&lent.chain([head]).collect::<Vec<_>>()) else {
            session.give_back(loan);
            return Err(not_alone);
        };
        let (mut blocks, mut parts) = (blocks.into_iter(), Vec::new().into_iter());
        let mut named = Vec::with_capacity(tensors.len());
        for (name, meta, memory) in tensors {
            let block = match memory {
                Memory::New(block) => Some(block),
                // One block for each allocation.
                Memory::Lent(_) => blocks.next(),
                Memory::First(_, lens) => {
                    parts = blocks.next().and_then(|block| block.split(&lens).ok()).unwrap_or_default().into_iter();
                    parts.next()
                }
                Memory::Next => parts.next(),
            };
            // The lengths were compared with those of the allocation.
            named.push((name, TensorMut::new(block.ok_or_else(|| not_alone.clone())?, meta)));
        }
        // The metadata of the bundle.
        drop(blocks);
        session.room_is_free();
        Ok(BundleMut::new(named))
    }

    fn allocate(
        fresh: &mut FreshBundle,
        session: &Session,
        waker: &Waker,
        last_try: bool,
    ) -> Result<Option<BundleMut>, Error> {
        while let Some((name, meta)) = fresh.layout.get(fresh.tensors.len()) {
            let Some(block) = session.allocate_or_wait(meta.len_bytes(), waker, last_try)? else { return Ok(None) };
            fresh.tensors.push((name.clone(), TensorMut::new(block, meta.clone())));
        }
        Ok(Some(BundleMut::new(std::mem::take(&mut fresh.tensors))))
    }
}

fn plan(session: &Session, lent: Lent, push: &Push) -> Result<BundlePlan, Error> {
    let (arena, meta) = (session.arena(), &push.meta);
    let not_a_bundle = || BundleError::NotABundle { meta: meta.clone() };
    let read = |offset: u64, len: u64| {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        // The sidecar has checked these ranges against the arena when they were pushed.
        arena.copy_out(offset, &mut bytes).map(|()| bytes).map_err(|_| not_a_bundle())
    };
    let metadata = read(lent.offset, u64::from(meta.metadata_bytes()))?;
    if !BundleTable::is_bundle(&metadata) {
        return Err(not_a_bundle().into());
    }
    let table = BundleTable::read(&metadata).map_err(BundleError::from)?;
    let ranges = read(lent.offset + meta.body_offset(), table_bytes(push.ranges))?;
    let mut ranges = read_ranges(&ranges);
    // The range that the tensor lies in, and the offset of the range's end in the body.
    let (mut range, mut end) = (None, 0);
    let mut tensors: Vec<(_, _, Memory)> = Vec::with_capacity(table.entries().len());
    let mut shared: Option<SharedBlock> = None;
    for entry in table.entries() {
        let (name, meta) = (entry.name.as_str().to_owned(), entry.meta.clone());
        if meta.len_bytes() == 0 {
            tensors.push((name, meta, Memory::New(session.allocate(0)?)));
            continue;
        }
        while end <= entry.offset {
            range = ranges.next();
            end += range.ok_or_else(not_a_bundle)?.len;
        }
        let found = range.and_then(|range| Some(range.end()? - (end - entry.offset)));
        let (offset, len) = (found.ok_or_else(not_a_bundle)?, meta.len_bytes());
        let not_alone = |name, meta| BundleError::NotAlone { name, meta };
        match (&mut shared, arena.lent_around(offset)) {
            (None, Some((start, all, true))) if start == offset && all == len => {
                tensors.push((name, meta, Memory::Lent(offset)));
            }
            (None, Some((start, all, true))) if start == offset && all > len => {
                shared = Some(SharedBlock { first: tensors.len(), end: start + all, lens: vec![len], next: offset });
                tensors.push((name, meta, Memory::First(start, Vec::new())));
            }
            (Some(block), Some((.., true))) if block.next == offset => {
                block.lens.push(len);
                tensors.push((name, meta, Memory::Next));
            }
            _ => return Err(not_alone(name, meta).into()),
        }
        if let Some(block) = &mut shared {
            block.next = offset + padded(len).unwrap_or(len);
            if offset + len == block.end
                && let Some(SharedBlock { first, lens, .. }) = shared.take()
                && let Memory::First(_, all) = &mut tensors[first].2
            {
                *all = lens;
            }
        }
    }
    if let Some(block) = shared {
        // The allocation has more in it than tensors of this bundle.
        let (name, meta, _) = tensors.swap_remove(block.first);
        return Err(BundleError::NotAlone { name, meta }.into());
    }
    Ok(BundlePlan { tensors, head: lent.allocation })
}

/// An allocation that several tensors of a bundle share, as far as they were found.
struct SharedBlock {
    /// The index of the first of them.
    first: usize,
    /// The end of the allocation, without padding.
    end: u64,
    /// The lengths of those that were found.
    lens: Vec<u64>,
    /// Where the next one begins.
    next: u64,
}
