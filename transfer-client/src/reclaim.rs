//! The memory of a published version that becomes writable again.

use crate::bundle::BundleError;
use crate::session::{Lent, Loan, Session};
use crate::{BundleMut, Error, TensorMut};
use std::fmt;
use std::sync::Arc;
use transfer_core::memory::padded;
use transfer_core::op::Push;
use transfer_core::tensor::TensorMeta;
use transfer_core::wire::bundle::BundleTable;
use transfer_core::wire::ranges::{read_ranges, table_bytes};
use transfer_memory::arena::Block;

/// A writable tensor with its name in its bundle. A tensor of its own has an empty name.
pub(crate) type Named = (String, TensorMut);

/// The names and descriptions of the tensors that are allocated if there is no version to take back.
pub(crate) type Layout = Arc<[(String, TensorMeta)]>;

/// What becomes of a version that is taken back, and how.
pub(crate) struct Way<T> {
    plan: fn(&Session, Lent, &Push) -> Result<Reclaimed, Error>,
    finish: fn(Vec<Named>) -> Option<T>,
}

/// The memory of one version, as it can be taken back.
#[derive(Debug)]
pub(crate) enum Reclaimed {
    /// It stays with this process's other holders.
    Kept,
    /// The named allocations become tensors, and the others are freed.
    Tensors {
        /// The range by which the sidecar knows the version.
        offset: u64,
        tensors: Vec<(String, TensorMeta, Memory)>,
        /// The allocation of the metadata, for a bundle.
        head: Option<u64>,
    },
}

/// The memory of one tensor.
#[derive(Debug)]
pub(crate) enum Memory {
    /// An allocation that the sidecar holds.
    Lent(u64),
    /// The first part of an allocation that the sidecar holds and that some tensors share, and the lengths of all parts.
    First(u64, Vec<u64>),
    /// The next part of that allocation.
    Next,
    /// A tensor without elements was not lent, so it gets new memory.
    New(Block),
}

impl<T> Clone for Way<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Way<T> {}

impl<T> fmt::Debug for Way<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way").finish_non_exhaustive()
    }
}

impl Way<TensorMut> {
    /// One tensor.
    pub(crate) const TENSOR: Self =
        Way { plan: plan_tensor, finish: |mut tensors| tensors.pop().map(|(_, tensor)| tensor) };
}

impl Way<BundleMut> {
    /// All tensors of a bundle.
    pub(crate) const BUNDLE: Self = Way { plan: plan_bundle, finish: |tensors| Some(BundleMut::new(tensors)) };
}

impl Way<()> {
    /// Nothing: the memory stays with its other holders.
    pub(crate) const KEPT: Self = Way { plan: |_, _, _| Ok(Reclaimed::Kept), finish: |_| Some(()) };
}

impl<T> Way<T> {
    /// Finds the memory of a published version.
    ///
    /// # Errors
    /// The reason why it cannot become writable.
    pub(crate) fn plan(&self, session: &Session, lent: Lent, push: &Push) -> Result<Reclaimed, Error> {
        (self.plan)(session, lent, push)
    }

    /// Makes the result of these tensors.
    pub(crate) fn finish(&self, tensors: Vec<Named>) -> Result<T, Error> {
        (self.finish)(tensors).ok_or(Error::Ended)
    }

    /// Makes the memory of a version that was taken back writable. `planned` is the plan of the version that was found
    /// before, which may be another one.
    ///
    /// # Errors
    /// The reason why the memory is not writable. It is then free once its other holders are done.
    pub(crate) fn reclaim(&self, session: &Session, planned: Option<Reclaimed>, loan: Loan) -> Result<T, Error> {
        let planned = match planned {
            Some(Reclaimed::Tensors { offset, .. }) if offset != loan.lent.offset => None,
            planned => planned,
        };
        let plan = match planned.map_or_else(|| self.plan(session, loan.lent, &loan.push), Ok) {
            Ok(plan) => plan,
            Err(error) => {
                session.give_back(loan);
                return Err(error);
            }
        };
        let not_alone = Error::NotAlone { meta: loan.push.meta.clone() };
        if !session.home().is_read_no_more(&loan.formers) {
            session.give_back(loan);
            return Err(not_alone);
        }
        let Reclaimed::Tensors { tensors, head, .. } = plan else {
            session.give_back(loan);
            return self.finish(Vec::new());
        };
        let lent = tensors.iter().filter_map(|(.., memory)| match memory {
            Memory::Lent(allocation) | Memory::First(allocation, _) => Some(*allocation),
            Memory::Next | Memory::New(_) => None,
        });
        let Ok(blocks) = session.arena().take_back_all(&lent.chain(head).collect::<Vec<_>>()) else {
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
        let done = self.finish(named);
        // The metadata of a bundle.
        drop(blocks);
        session.room_is_free();
        done
    }
}

fn plan_tensor(session: &Session, lent: Lent, push: &Push) -> Result<Reclaimed, Error> {
    let alone = session.arena().lent_at(lent.allocation).is_some_and(|(_, alone)| alone);
    if !lent.owned || !alone {
        return Err(Error::NotAlone { meta: push.meta.clone() });
    }
    let tensors = vec![(String::new(), push.meta.clone(), Memory::Lent(lent.allocation))];
    Ok(Reclaimed::Tensors { offset: lent.offset, tensors, head: None })
}

fn plan_bundle(session: &Session, lent: Lent, push: &Push) -> Result<Reclaimed, Error> {
    let (arena, meta) = (session.arena(), &push.meta);
    let not_a_bundle = || BundleError::NotABundle { meta: meta.clone() };
    let read = |offset: u64, len: u64| {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        // The sidecar has checked these ranges against the arena when they were pushed.
        arena.mapping().copy_out(offset, &mut bytes).map(|()| bytes).map_err(|_| not_a_bundle())
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
    Ok(Reclaimed::Tensors { offset: lent.offset, tensors, head: Some(lent.allocation) })
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
