//! Which rank is asked for which part of a global tensor.

use super::boxes::{Extent, IndexBox};
use super::records::RankLayout;
use crate::error::ShardedError;
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer_core::tensor::{InvalidSlice, Slice, SliceDim, SliceRange, TensorMeta, TensorName};

/// A shard: its rank, and its place among the rank's shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) rank: u32,
    pub(crate) shard: usize,
}

/// A global tensor, and who has which boxes of it.
#[derive(Debug)]
pub(crate) struct GlobalTensor {
    pub(crate) meta: TensorMeta,
    first_rank: u32,
    /// The boxes that differ, in order, and all that have them.
    pub(crate) boxes: Vec<(IndexBox, Vec<Holder>)>,
}

/// The global tensors of a state.
#[derive(Debug)]
pub(crate) struct Global {
    pub(crate) tensors: BTreeMap<TensorName, GlobalTensor>,
}

impl Global {
    /// Puts the shards of all ranks together.
    pub(crate) fn new(ranks: &[Arc<RankLayout>]) -> Result<Global, ShardedError> {
        let mut tensors: BTreeMap<TensorName, GlobalTensor> = BTreeMap::new();
        for (rank, layout) in (0..).zip(ranks) {
            for (at, shard) in layout.shards.iter().enumerate() {
                let found = tensors.entry(shard.name.clone()).or_insert_with(|| {
                    let (meta, boxes) = (shard.global.clone(), Vec::new());
                    GlobalTensor { meta, first_rank: rank, boxes }
                });
                if found.meta != shard.global {
                    return Err(ShardedError::Conflict {
                        name: shard.name.as_str().to_owned(),
                        first_rank: found.first_rank,
                        first: found.meta.clone(),
                        second_rank: rank,
                        second: shard.global.clone(),
                    });
                }
                if shard.place.volume() > 0 {
                    found.boxes.push((shard.place.clone(), vec![Holder { rank, shard: at }]));
                }
            }
        }
        for tensor in tensors.values_mut() {
            // Stable, so the holders of a box are in the order of their ranks.
            tensor.boxes.sort_by(|(a, _), (b, _)| a.cmp(b));
            tensor.boxes.dedup_by(|(later, more), (first, holders)| {
                let is_same = later == first;
                if is_same {
                    holders.append(more);
                }
                is_same
            });
        }
        Ok(Global { tensors })
    }

    /// Checks that all of each tensor is there.
    pub(crate) fn check(&self) -> Result<(), ShardedError> {
        for (name, tensor) in &self.tensors {
            let first = |holders: &[Holder], _: u64| holders.first().copied();
            if let Err(hole) = tensor.plan(&Target::whole(&tensor.meta), first) {
                let (name, meta) = (name.as_str().to_owned(), tensor.meta.clone());
                return Err(ShardedError::Hole { name, meta, range: hole.to_string() });
            }
        }
        Ok(())
    }
}

/// What is taken of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct TargetDim {
    start: u64,
    count: u64,
    step: u64,
}

/// A slice of a global tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    dims: Box<[TargetDim]>,
}

impl Target {
    fn whole(meta: &TensorMeta) -> Target {
        let dim = |len: &u64| TargetDim { start: 0, count: *len, step: 1 };
        Target { dims: meta.shape().dims().iter().map(dim).collect() }
    }

    /// Resolves a slice. Returns the description of what it takes, too.
    pub(crate) fn new(meta: &TensorMeta, slice: Option<&Slice>) -> Result<(Target, TensorMeta), InvalidSlice> {
        let Some(slice) = slice else { return Ok((Target::whole(meta), meta.clone())) };
        let found = slice.of(meta)?;
        // All bounds lie in their dimensions, as `of` has checked.
        let place =
            |bound: i64, len: u64| if bound < 0 { len.saturating_add_signed(bound) } else { bound.unsigned_abs() };
        let dim = |(n, len): (usize, &u64)| match slice.dims().get(n) {
            Some(SliceDim::Index(index)) => TargetDim { start: place(*index, *len), count: 1, step: 1 },
            Some(SliceDim::Range(SliceRange { start, stop, step })) => {
                let start = start.map_or(0, |bound| place(bound, *len));
                let stop = stop.map_or(*len, |bound| place(bound, *len));
                let step = step.unsigned_abs();
                TargetDim { start, count: stop.saturating_sub(start).div_ceil(step), step }
            }
            None => TargetDim { start: 0, count: *len, step: 1 },
        };
        let dims = meta.shape().dims().iter().enumerate().map(dim).collect();
        Ok((Target { dims }, found.meta().clone()))
    }

    /// The number of indices of each dimension, also of those that the slice drops.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.dims.iter().map(|dim| dim.count).collect()
    }

    /// Returns which of its indices lie in a box of the tensor.
    fn within(&self, place: &IndexBox) -> Option<IndexBox> {
        let dim = |(dim, place): (&TargetDim, &Extent)| {
            let first = place.start.saturating_sub(dim.start).div_ceil(dim.step);
            let end = place.end().saturating_sub(dim.start).div_ceil(dim.step).min(dim.count);
            (first < end).then(|| Extent { start: first, len: end - first })
        };
        self.dims.iter().zip(&place.0).map(dim).collect::<Option<_>>().map(IndexBox)
    }

    /// Returns the smallest box of the tensor that has these indices.
    pub(crate) fn of_tensor(&self, part: &IndexBox) -> IndexBox {
        let dim = |(dim, part): (&TargetDim, &Extent)| {
            let len = if part.len == 0 { 0 } else { (part.len - 1) * dim.step + 1 };
            Extent { start: dim.start + part.start * dim.step, len }
        };
        IndexBox(self.dims.iter().zip(&part.0).map(dim).collect())
    }

    /// Returns these indices as a slice of a shard that lies at `place` and has all of them. `None`: all of the shard.
    pub(crate) fn local(&self, part: &IndexBox, place: &IndexBox) -> Option<Slice> {
        let found = self.of_tensor(part);
        if found == *place && self.dims.iter().zip(&part.0).all(|(dim, part)| dim.step == 1 || part.len == 1) {
            return None;
        }
        let bound = |at: u64| i64::try_from(at).ok();
        let dims = found.0.iter().zip(&place.0).zip(&self.dims).map(|((found, place), dim)| {
            let start = found.start - place.start;
            let step = bound(dim.step).unwrap_or(i64::MAX);
            SliceDim::Range(SliceRange { start: bound(start), stop: bound(start + found.len), step })
        });
        Some(Slice::new(dims))
    }
}

/// A part that one shard has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) holder: Holder,
    /// Where its shard lies in the tensor.
    pub(crate) place: IndexBox,
    /// Its indices in the target.
    pub(crate) part: IndexBox,
}

impl GlobalTensor {
    /// Finds a shard for each index of the target, and none for two. `choose` takes one of the holders of a box, of which so many
    /// elements are needed.
    ///
    /// # Errors
    /// The first box of the tensor that nobody has.
    pub(crate) fn plan(
        &self,
        target: &Target,
        choose: impl FnMut(&[Holder], u64) -> Option<Holder>,
    ) -> Result<Vec<Piece>, IndexBox> {
        self.plan_part(target, IndexBox::all(&target.counts()), choose)
    }

    /// The ranks that have something of a box.
    pub(crate) fn holders_in(&self, wanted: &IndexBox) -> impl Iterator<Item = u32> {
        let those = self.boxes.iter().filter(move |(place, _)| place.intersect(wanted).is_some());
        those.flat_map(|(_, holders)| holders).map(|holder| holder.rank)
    }

    /// Finds shards for a part of the target.
    pub(crate) fn plan_part(
        &self,
        target: &Target,
        part: IndexBox,
        mut choose: impl FnMut(&[Holder], u64) -> Option<Holder>,
    ) -> Result<Vec<Piece>, IndexBox> {
        let (mut pieces, mut rest, mut next) = (Vec::new(), vec![part], Vec::new());
        rest.retain(|part| part.volume() > 0);
        for (place, holders) in &self.boxes {
            if rest.is_empty() {
                break;
            }
            let Some(within) = target.within(place) else { continue };
            let parts: Vec<_> = rest.iter().filter_map(|part| part.intersect(&within)).collect();
            if parts.is_empty() {
                continue;
            }
            let Some(holder) = choose(holders, parts.iter().map(IndexBox::volume).sum()) else { continue };
            for part in rest.drain(..) {
                match part.intersect(&within) {
                    Some(both) => {
                        part.without(&both, &mut next);
                        pieces.push(Piece { holder, place: place.clone(), part: both });
                    }
                    None => next.push(part),
                }
            }
            std::mem::swap(&mut rest, &mut next);
        }
        match rest.iter().min() {
            None => Ok(pieces),
            Some(hole) => Err(target.of_tensor(hole)),
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
