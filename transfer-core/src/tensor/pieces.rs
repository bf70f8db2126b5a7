//! A slice of a tensor in pieces, for a reader that cannot take all of it at once.

use super::slice::place;
use super::{InvalidSlice, Slice, SliceDim, SliceRange, TensorMeta};
use smallvec::SmallVec;

/// A slice of a tensor of a known shape, to be taken in pieces. Each piece is a slice of the tensor, and the pieces follow each other
/// in the slice, row-major.
#[derive(Debug, Clone)]
pub struct SlicePieces {
    meta: TensorMeta,
    dims: SmallVec<[PieceDim; 4]>,
}

/// What the slice takes of a dimension of the tensor.
#[derive(Debug, Clone, Copy)]
enum PieceDim {
    Index(i64),
    /// Indices from `first` on, one every `step`. Of the result there are `count`, in units of [`TensorMeta::unit_dims`], with
    /// `per_unit` elements each.
    Range {
        first: u64,
        step: u64,
        count: u64,
        per_unit: u64,
    },
}

impl SlicePieces {
    /// Creates the pieces of a slice of this tensor.
    ///
    /// # Errors
    /// [`InvalidSlice`], as [`Slice::of`].
    pub fn new(slice: &Slice, whole: &TensorMeta) -> Result<SlicePieces, InvalidSlice> {
        let meta = slice.of(whole)?.meta().clone();
        let mut counts = meta.unit_dims();
        let last = whole.shape().dims().len().saturating_sub(1);
        let dims = whole.shape().dims().iter().enumerate().map(|(dim, len)| {
            let SliceRange { start, step, .. } = match slice.dims().get(dim) {
                Some(SliceDim::Index(index)) => return PieceDim::Index(*index),
                Some(SliceDim::Range(range)) => *range,
                None => SliceRange::ALL,
            };
            let first = start.and_then(|start| place(start, *len)).unwrap_or(0);
            let per_unit = if dim == last { whole.dtype().elements_per_unit() } else { 1 };
            PieceDim::Range { first, step: step.unsigned_abs(), count: counts.next().unwrap_or(0), per_unit }
        });
        let dims = dims.collect();
        drop(counts);
        Ok(SlicePieces { meta, dims })
    }

    /// Returns the description of the slice.
    #[must_use]
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Returns the piece that begins at this byte of the slice, at an element, and its length in bytes. It has at most `max_bytes`, and at least an
    /// element. `None` at the end.
    #[must_use]
    pub fn piece(&self, from: u64, max_bytes: u64) -> Option<(Slice, u64)> {
        if from >= self.meta.len_bytes() {
            return None;
        }
        let size = self.meta.dtype().size_bytes();
        let (at, most) = (from / size, (max_bytes / size).max(1));
        // Inside of the outermost dimension whose indices are short enough, and at one of whose the piece begins, a piece takes all.
        let mut dims: SmallVec<[SliceDim; 4]> = SmallVec::new();
        let (mut inner, mut len, mut is_cut) = (1, 1, false);
        for dim in self.dims.iter().rev() {
            let PieceDim::Range { first, step, count, per_unit } = *dim else {
                if let PieceDim::Index(index) = *dim {
                    dims.push(SliceDim::Index(index));
                }
                continue;
            };
            let index = at / inner % count;
            let outer = inner * count;
            let taken = match is_cut {
                true => index..index + 1,
                false if outer <= most && at.is_multiple_of(outer) => {
                    len = outer;
                    0..count
                }
                false => {
                    is_cut = true;
                    let taken = (most / inner).min(count - index);
                    len = taken * inner;
                    index..index + taken
                }
            };
            inner = outer;
            let element = |unit: u64| first + step * (unit * per_unit);
            let stop = first + step * (taken.end * per_unit - 1) + 1;
            let bound = |at: u64| Some(i64::try_from(at).unwrap_or(i64::MAX));
            let step = i64::try_from(step).unwrap_or(i64::MAX);
            dims.push(SliceDim::Range(SliceRange { start: bound(element(taken.start)), stop: bound(stop), step }));
        }
        dims.reverse();
        Some((Slice::new(dims), len * size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Packing};
    use proptest::prelude::*;

    fn range(start: Option<i64>, stop: Option<i64>, step: i64) -> SliceDim {
        SliceDim::Range(SliceRange { start, stop, step })
    }

    /// The bytes of a slice, by their places in the tensor, in the order of the slice.
    fn bytes_of(slice: &Slice, whole: &TensorMeta) -> Vec<u64> {
        let found = slice.of(whole).unwrap();
        let runs = Packing::new(found.bytes(0).into_iter().collect());
        runs.into_iter().flat_map(|run| run.from..run.from + run.len).collect()
    }

    fn texts(slice: &Slice, whole: &TensorMeta, max_bytes: u64) -> Vec<String> {
        let pieces = SlicePieces::new(slice, whole).unwrap();
        let (mut at, mut texts) = (0, Vec::new());
        while let Some((piece, len)) = pieces.piece(at, max_bytes) {
            texts.push(piece.to_string());
            at += len;
        }
        texts
    }

    // Promise: large-tensors
    #[test]
    fn pieces_are_as_long_as_they_may_be() {
        let whole = TensorMeta::of(DType::F32, &[10, 4, 8]).unwrap();
        let all = Slice::default();
        assert_eq!(texts(&all, &whole, 1 << 20), ["[0:10, 0:4, 0:8]"]);
        assert_eq!(texts(&all, &whole, 4 * 128), ["[0:4, 0:4, 0:8]", "[4:8, 0:4, 0:8]", "[8:10, 0:4, 0:8]"]);
        assert_eq!(texts(&all, &whole, 100)[..3], ["[0:1, 0:3, 0:8]", "[0:1, 3:4, 0:8]", "[1:2, 0:3, 0:8]"]);
        assert_eq!(texts(&all, &whole, 20)[..2], ["[0:1, 0:1, 0:5]", "[0:1, 0:1, 5:8]"]);
        let slice = Slice::new([range(Some(-9), None, 4), SliceDim::Index(-1), range(Some(1), Some(-1), 2)]);
        assert_eq!(texts(&slice, &whole, 24), ["[1:6:4, -1, 1:6:2]", "[9:10:4, -1, 1:6:2]"]);
        // A shorter limit from somewhere inside on.
        let pieces = SlicePieces::new(&all, &whole).unwrap();
        assert_eq!(pieces.piece(128 + 32, 1 << 20).unwrap().0.to_string(), "[1:2, 1:4, 0:8]");
        assert_eq!(pieces.piece(10 * 128, 64), None);
        // Two elements share a byte.
        let packed = TensorMeta::of(DType::U4, &[8]).unwrap();
        assert_eq!(texts(&Slice::new([range(Some(2), None, 1)]), &packed, 2), ["[2:6]", "[6:8]"]);
    }

    fn cases() -> impl Strategy<Value = (Vec<u64>, Vec<SliceDim>)> {
        let dim = (1_u64..6).prop_flat_map(|len| {
            let bound = proptest::option::of(-(len as i64)..=len as i64);
            let whole = (bound.clone(), bound, 1_i64..4).prop_map(|(start, stop, step)| range(start, stop, step));
            let index = (-(len as i64)..len as i64).prop_map(SliceDim::Index);
            (Just(len), prop_oneof![3 => whole, 1 => index])
        });
        (proptest::collection::vec(dim, 1..5), 0_usize..5).prop_map(|(dims, named)| {
            let (lens, mut slice): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            slice.truncate(named);
            (lens, slice)
        })
    }

    proptest! {
        // Promise: large-tensors
        #[test]
        fn pieces_are_the_slice((mut dims, slice) in cases(), dtype in proptest::sample::select(&DType::ALL), limits in proptest::collection::vec(1_u64..200, 1..4)) {
            if let Some(last) = dims.last_mut() {
                *last *= dtype.elements_per_unit();
            }
            let (whole, slice) = (TensorMeta::of(dtype, &dims).unwrap(), Slice::new(slice));
            let Ok(pieces) = SlicePieces::new(&slice, &whole) else {
                prop_assert!(slice.of(&whole).is_err());
                return Ok(());
            };
            let (mut at, mut found) = (0, Vec::new());
            for limit in limits.into_iter().cycle() {
                let Some((piece, len)) = pieces.piece(at, limit) else { break };
                prop_assert!(len > 0 && len <= limit.max(dtype.size_bytes()));
                prop_assert_eq!(piece.of(&whole).unwrap().meta().len_bytes(), len);
                found.extend(bytes_of(&piece, &whole));
                at += len;
            }
            prop_assert_eq!(found, bytes_of(&slice, &whole));
        }
    }
}
