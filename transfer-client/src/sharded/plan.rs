//! Which rank is asked for which part of a global tensor.

use super::boxes::{Extent, IndexBox};
use super::records::RankLayout;
use crate::error::ShardedError;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use transfer_core::tensor::{InvalidSlice, Slice, SliceDim, SliceRange, TensorMeta, TensorName};

/// A shard: its rank, and its place among the rank's shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) rank: u32,
    pub(crate) shard: usize,
}

/// A box of a tensor, and all that have it, in the order of their ranks.
#[derive(Debug)]
struct Held {
    place: IndexBox,
    holders: SmallVec<[Holder; 1]>,
}

/// A global tensor, and who has which boxes of it.
#[derive(Debug)]
pub(crate) struct GlobalTensor {
    pub(crate) meta: TensorMeta,
    first_rank: u32,
    /// The boxes that differ, in the order in which they begin in dimension `along`.
    boxes: Vec<Held>,
    /// The dimension in which boxes begin at the most places, and the outermost of several.
    along: usize,
    /// The length of the longest box in it.
    longest: u64,
}

/// The global tensors of a state.
#[derive(Debug)]
pub(crate) struct Global {
    pub(crate) tensors: BTreeMap<TensorName, Arc<GlobalTensor>>,
}

impl Global {
    /// Puts the shards of all ranks together.
    pub(crate) fn new(ranks: &[Arc<RankLayout>]) -> Result<Global, ShardedError> {
        let mut tensors: BTreeMap<TensorName, GlobalTensor> = BTreeMap::new();
        for (rank, layout) in (0..).zip(ranks) {
            for (at, shard) in layout.shards.iter().enumerate() {
                let found = match tensors.get_mut(shard.name.as_str()) {
                    Some(found) => found,
                    None => tensors.entry(shard.name.clone()).or_insert(GlobalTensor {
                        meta: shard.global.clone(),
                        first_rank: rank,
                        boxes: Vec::new(),
                        along: 0,
                        longest: 0,
                    }),
                };
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
                    let holders = SmallVec::from([Holder { rank, shard: at }]);
                    found.boxes.push(Held { place: shard.place.clone(), holders });
                }
            }
        }
        let sorted = |(name, mut tensor): (TensorName, GlobalTensor)| {
            tensor.sort();
            (name, Arc::new(tensor))
        };
        Ok(Global { tensors: tensors.into_iter().map(sorted).collect() })
    }

    /// Checks that all of each tensor is there.
    pub(crate) fn check(&self) -> Result<(), ShardedError> {
        for (name, tensor) in &self.tensors {
            let first = |holders: &[Holder], _: u64| holders.first().copied();
            let target = Target::whole(&tensor.meta);
            if let Err(hole) = tensor.plan(&target, target.all(), first, |_| {}) {
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

    /// All of its indices.
    pub(crate) fn all(&self) -> IndexBox {
        IndexBox(self.dims.iter().map(|dim| Extent { start: 0, len: dim.count }).collect())
    }

    /// Whether the elements of a part lie one behind the other in a shard at this place.
    pub(crate) fn is_run(&self, part: &IndexBox, place: &IndexBox) -> bool {
        let has_steps = self.dims.iter().zip(&part.0).any(|(dim, part)| dim.step != 1 && part.len > 1);
        // Behind the first dimension with several indices, all others are whole.
        let mut inner = part.0.iter().zip(&place.0).skip_while(|(part, _)| part.len == 1).skip(1);
        !has_steps && inner.all(|(part, place)| part.len == place.len)
    }

    /// Returns which of its indices lie in a box of the tensor.
    pub(crate) fn within(&self, place: &IndexBox) -> Option<IndexBox> {
        let dim = |(dim, place): (&TargetDim, &Extent)| {
            // Most targets have no steps, and a division takes longer than all else here.
            let index = |at: u64| if dim.step == 1 { at } else { at.div_ceil(dim.step) };
            let first = index(place.start.saturating_sub(dim.start));
            let end = index(place.end().saturating_sub(dim.start)).min(dim.count);
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
pub(crate) struct Piece<'a> {
    pub(crate) holder: Holder,
    /// Where its shard lies in the tensor.
    pub(crate) place: &'a IndexBox,
    /// Its indices in the target.
    pub(crate) part: IndexBox,
}

impl GlobalTensor {
    /// Brings the boxes into their order, and those that are the same together.
    fn sort(&mut self) {
        let starts = |dim: usize| {
            let mut starts: Vec<u64> = self.boxes.iter().map(|held| held.place.0[dim].start).collect();
            starts.sort_unstable();
            starts.dedup();
            starts.len()
        };
        self.along = (0..self.meta.shape().dims().len()).rev().max_by_key(|dim| starts(*dim)).unwrap_or(0);
        let extent = |held: &Held| held.place.0.get(self.along).copied();
        self.longest = self.boxes.iter().filter_map(extent).map(|extent| extent.len).max().unwrap_or(0);
        // Stable, so the holders of a box are in the order of their ranks.
        self.boxes.sort_by(|a, b| extent(a).cmp(&extent(b)).then_with(|| a.place.cmp(&b.place)));
        self.boxes.dedup_by(|later, first| {
            let is_same = later.place == first.place;
            if is_same {
                first.holders.append(&mut later.holders);
            }
            is_same
        });
    }

    /// The boxes that differ, and all that have each.
    pub(crate) fn boxes(&self) -> impl Iterator<Item = (&IndexBox, &[Holder])> {
        self.boxes.iter().map(|held| (&held.place, &*held.holders))
    }

    /// The boxes that have something of a box.
    fn boxes_in(&self, wanted: &IndexBox) -> impl Iterator<Item = &Held> {
        let range = match wanted.0.get(self.along) {
            None => 0..self.boxes.len(),
            Some(extent) => {
                let start = |held: &Held| held.place.0[self.along].start;
                let first = self.boxes.partition_point(|held| start(held).saturating_add(self.longest) <= extent.start);
                first..self.boxes.partition_point(|held| start(held) < extent.end())
            }
        };
        let those = self.boxes.get(range).unwrap_or_default();
        those.iter().filter(move |held| held.place.common_volume(wanted) > 0)
    }

    /// The ranks that have something of a box.
    pub(crate) fn holders_in(&self, wanted: &IndexBox) -> impl Iterator<Item = u32> {
        self.boxes_in(wanted).flat_map(|held| &held.holders).map(|holder| holder.rank)
    }

    /// Finds a shard for each index of a part of the target, and none for two, and calls `each` with the pieces. `choose` takes one of the
    /// holders of a box, of which this number of elements is needed.
    ///
    /// # Errors
    /// The first box of the tensor that nobody has.
    pub(crate) fn plan<'a>(
        &'a self,
        target: &Target,
        part: IndexBox,
        mut choose: impl FnMut(&[Holder], u64) -> Option<Holder>,
        mut each: impl FnMut(Piece<'a>),
    ) -> Result<(), IndexBox> {
        let wanted = target.of_tensor(&part);
        let mut rest = vec![part];
        rest.retain(|part| part.volume() > 0);
        for Held { place, holders } in self.boxes_in(&wanted) {
            if rest.is_empty() {
                break;
            }
            // A step may leave it out.
            let Some(within) = target.within(place) else { continue };
            let elements = rest.iter().map(|part| part.common_volume(&within)).sum();
            if elements == 0 {
                continue;
            }
            let Some(holder) = choose(holders, elements) else { continue };
            // From the last one on, so that what is left of a part is not looked at.
            for at in (0..rest.len()).rev() {
                if let Some(part) = rest[at].intersect(&within) {
                    rest.swap_remove(at).without(&part, self.along, &mut rest);
                    each(Piece { holder, place, part });
                }
            }
        }
        match rest.iter().min() {
            None => Ok(()),
            Some(hole) => Err(target.of_tensor(hole)),
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
