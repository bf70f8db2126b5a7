//! Slices: a range of each dimension of a tensor, in numpy's form.

use super::{BodyBox, InvalidShape, Repeat, Shape, TensorMeta};
use smallvec::SmallVec;
use std::fmt;
use std::ops::{Range, RangeFrom, RangeFull, RangeTo};

/// A range of one dimension, as numpy writes it: `start:stop:step`. A negative bound counts from the end, and an open
/// one is the dimension's own.
///
/// Both bounds must lie in the dimension. numpy cuts off what lies beyond it; here that is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SliceRange {
    /// The first index. `None`: 0.
    pub start: Option<i64>,
    /// The index behind the last one. `None`: the length of the dimension. At or before `start`, the range is empty.
    pub stop: Option<i64>,
    /// The distance between two indices. 1 and more are valid.
    pub step: i64,
}

impl SliceRange {
    /// The whole dimension.
    pub const ALL: SliceRange = SliceRange { start: None, stop: None, step: 1 };

    /// Takes only every index that is a multiple of `step` behind the first one.
    #[must_use]
    pub fn step(self, step: i64) -> SliceRange {
        SliceRange { step, ..self }
    }
}

/// What a [`Slice`] takes of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SliceDim {
    /// A range of its indices.
    Range(SliceRange),
    /// One index. The result does not have the dimension.
    Index(i64),
}

/// A slice of a tensor: what it takes of each dimension, the outermost first. Dimensions behind the last one that it
/// names are whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Slice(Box<[SliceDim]>);

/// The error for a slice that does not fit a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("slice {slice} does not fit shape {shape}: {why}")]
pub struct InvalidSlice {
    /// The slice.
    pub slice: Slice,
    /// The tensor's shape.
    pub shape: Shape,
    /// The reason.
    pub why: Misfit,
}

/// Why a slice does not fit a tensor. Dimensions are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// The tensor has no dimensions.
    #[error("a tensor without dimensions has no slices, fetch all of it")]
    Scalar,
    /// The slice names more dimensions than the tensor has.
    #[error("it has {dims} dimensions, at most {rank} would fit")]
    TooManyDims {
        /// The number of dimensions that it names.
        dims: usize,
        /// The number of dimensions of the tensor.
        rank: usize,
    },
    /// A step is below 1.
    #[error("step {step} of dimension {dim} is below 1")]
    Step {
        /// The dimension.
        dim: usize,
        /// The step.
        step: i64,
    },
    /// A bound lies outside of its dimension.
    #[error("bound {bound} of dimension {dim} lies outside of it, -{len} to {len} would fit; bounds are not cut off")]
    Bound {
        /// The dimension.
        dim: usize,
        /// The bound.
        bound: i64,
        /// The length of the dimension.
        len: u64,
    },
    /// An index lies outside of its dimension.
    #[error("index {index} lies outside of dimension {dim}, which has {len} indices")]
    Index {
        /// The dimension.
        dim: usize,
        /// The index.
        index: i64,
        /// The length of the dimension.
        len: u64,
    },
    /// A row lies outside of the outermost dimension.
    #[error("index {index} is no row, {}", rows_that_fit(*len))]
    Row {
        /// The index.
        index: i64,
        /// The number of rows.
        len: u64,
    },
    /// Two elements share a byte along the last dimension, and it separates them.
    #[error(
        "two elements share a byte in dimension {dim}: its bounds have to be even, and its step 1, and it has no index"
    )]
    SharedByte {
        /// The dimension.
        dim: usize,
    },
    /// The result has no valid shape, which no slice of a valid tensor causes.
    #[error("its result would be too large")]
    TooLarge,
}

/// What would be right in place of a row that is not there.
fn rows_that_fit(len: u64) -> String {
    match len.checked_sub(1) {
        Some(last) => format!("0 to {last} would fit; negative ones do not count from the end"),
        None => "there are none".to_owned(),
    }
}

impl From<InvalidShape> for Misfit {
    fn from(_: InvalidShape) -> Misfit {
        Misfit::TooLarge
    }
}

/// A dimension of a [`TensorBox`], in units of [`DType::size_bytes`](super::DType::size_bytes): an element, or the elements
/// that share a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoxDim {
    /// The number of indices; of the last dimension, of units.
    pub count: u64,
    /// The distance from one to the next, in units. 0 where there is no second index to tell it from the first, and the
    /// distance would not fit 63 bits.
    pub stride: u64,
}

/// A slice of a tensor of a known shape: where its elements lie in that tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorBox {
    meta: TensorMeta,
    offset: u64,
    dims: SmallVec<[BoxDim; 2]>,
}

impl Slice {
    /// Creates a slice.
    pub fn new(dims: impl IntoIterator<Item = SliceDim>) -> Slice {
        Slice(dims.into_iter().collect())
    }

    /// Returns what it takes of each dimension, the outermost first.
    #[must_use]
    pub fn dims(&self) -> &[SliceDim] {
        &self.0
    }

    /// Returns where the elements lie in a tensor.
    ///
    /// # Errors
    /// [`InvalidSlice`], with the slice, the shape, and what would fit.
    pub fn of(&self, whole: &TensorMeta) -> Result<TensorBox, InvalidSlice> {
        let resolved = resolve(&self.0, whole);
        resolved.map_err(|why| InvalidSlice { slice: self.clone(), shape: whole.shape().clone(), why })
    }
}

fn resolve(slice: &[SliceDim], whole: &TensorMeta) -> Result<TensorBox, Misfit> {
    let lens = whole.shape().dims();
    match (slice.len(), lens.len()) {
        (_, 0) => return Err(Misfit::Scalar),
        (dims, rank) if dims > rank => return Err(Misfit::TooManyDims { dims, rank }),
        _ => {}
    }
    let (mut dims, mut counts) = (SmallVec::new(), SmallVec::<[u64; 4]>::new());
    let last = lens.len() - 1;
    // Of a tensor without elements, products may overflow, and nothing depends on them.
    let (mut offset, mut inner) = (0_u64, Some(1_u64));
    for (dim, len) in lens.iter().copied().enumerate().rev() {
        let per_unit = if dim == last { whole.dtype().elements_per_unit() } else { 1 };
        let (first, kept) = match slice.get(dim).copied().unwrap_or(SliceDim::Range(SliceRange::ALL)) {
            SliceDim::Index(index) => {
                let at = place(index, len).filter(|at| *at < len).ok_or(Misfit::Index { dim, index, len })?;
                (at, None)
            }
            SliceDim::Range(SliceRange { step, .. }) if step < 1 => return Err(Misfit::Step { dim, step }),
            SliceDim::Range(SliceRange { start, stop, step }) => {
                let bound = |bound: Option<i64>, open| match bound {
                    None => Ok(open),
                    Some(bound) => place(bound, len).ok_or(Misfit::Bound { dim, bound, len }),
                };
                let (start, stop) = (bound(start, 0)?, bound(stop, len)?);
                (start, Some((stop.saturating_sub(start).div_ceil(step.unsigned_abs()), step.unsigned_abs())))
            }
        };
        let shares = |(count, step): (u64, u64)| step == 1 && (first | count).is_multiple_of(per_unit);
        if per_unit > 1 && !kept.is_some_and(shares) {
            return Err(Misfit::SharedByte { dim });
        }
        let at = inner.and_then(|inner| inner.checked_mul(first / per_unit)).unwrap_or(0);
        offset = offset.checked_add(at).unwrap_or(0);
        if let Some((count, step)) = kept {
            counts.push(count);
            let count = count / per_unit;
            let stride = inner.and_then(|inner| inner.checked_mul(step)).filter(|stride| *stride < 1 << 63);
            dims.push(BoxDim { count, stride: stride.unwrap_or(0) });
        }
        inner = inner.and_then(|inner| inner.checked_mul(len / per_unit));
    }
    dims.reverse();
    counts.reverse();
    Ok(TensorBox { meta: TensorMeta::of(whole.dtype(), &counts)?, offset, dims })
}

/// Returns the place that a bound names in a dimension. The end of the dimension is one.
pub(super) fn place(bound: i64, len: u64) -> Option<u64> {
    let at = if bound < 0 { i128::from(bound) + i128::from(len) } else { i128::from(bound) };
    u64::try_from(at).ok().filter(|at| *at <= len)
}

impl TensorBox {
    /// Returns the description of the slice, as a tensor of its own.
    #[must_use]
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Returns where its first element lies in the tensor, in units. Without elements this says nothing.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns its dimensions, the outermost first.
    #[must_use]
    pub fn dims(&self) -> &[BoxDim] {
        &self.dims
    }

    /// Returns the bytes of the slice in those of its tensor, which begins at `base`. `None` if it has no elements.
    #[must_use]
    pub fn bytes(&self, base: u64) -> Option<BodyBox> {
        let size = self.meta.dtype().size_bytes();
        // A distance that does not fit is one of a dimension with one index, or of a tensor without elements.
        let stride = |dim: &BoxDim| dim.stride.checked_mul(size).unwrap_or(0);
        let repeats = self.dims.iter().map(|dim| Repeat { count: dim.count, stride: stride(dim) });
        BodyBox::new(base.checked_add(self.offset.checked_mul(size)?)?, size, repeats.collect()).ok()
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (n, dim) in self.0.iter().enumerate() {
            f.write_str(if n > 0 { ", " } else { "" })?;
            match dim {
                SliceDim::Index(index) => write!(f, "{index}")?,
                SliceDim::Range(SliceRange { start, stop, step }) => {
                    let text = |bound: &Option<i64>| bound.map_or_else(String::new, |n| n.to_string());
                    write!(f, "{}:{}", text(start), text(stop))?;
                    if *step != 1 {
                        write!(f, ":{step}")?;
                    }
                }
            }
        }
        f.write_str("]")
    }
}

/// An integer that can be a bound.
pub trait Bound: Copy {
    /// Returns the bound. What does not fit becomes the largest one, which fits no tensor.
    fn bound(self) -> i64;
}

macro_rules! bounds {
    ($($int:ty),*) => {$(
        impl Bound for $int {
            fn bound(self) -> i64 {
                i64::try_from(self).unwrap_or(i64::MAX)
            }
        }

        impl From<$int> for SliceDim {
            fn from(index: $int) -> SliceDim {
                SliceDim::Index(index.bound())
            }
        }
    )*};
}

bounds!(i32, i64, isize, u32, u64, usize);

impl<B: Bound> From<Range<B>> for SliceRange {
    fn from(range: Range<B>) -> SliceRange {
        SliceRange { start: Some(range.start.bound()), stop: Some(range.end.bound()), step: 1 }
    }
}

impl<B: Bound> From<RangeFrom<B>> for SliceRange {
    fn from(range: RangeFrom<B>) -> SliceRange {
        SliceRange { start: Some(range.start.bound()), ..SliceRange::ALL }
    }
}

impl<B: Bound> From<RangeTo<B>> for SliceRange {
    fn from(range: RangeTo<B>) -> SliceRange {
        SliceRange { stop: Some(range.end.bound()), ..SliceRange::ALL }
    }
}

impl From<RangeFull> for SliceRange {
    fn from(_: RangeFull) -> SliceRange {
        SliceRange::ALL
    }
}

macro_rules! dims {
    ($($range:ty $(, $bound:ident)?;)*) => {$(
        impl$(<$bound: Bound>)? From<$range> for SliceDim {
            fn from(range: $range) -> SliceDim {
                SliceDim::Range(range.into())
            }
        }
    )*};
}

dims! {
    SliceRange;
    RangeFull;
    Range<B>, B;
    RangeFrom<B>, B;
    RangeTo<B>, B;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Packing};
    use proptest::prelude::*;

    fn range(start: Option<i64>, stop: Option<i64>, step: i64) -> SliceDim {
        SliceDim::Range(SliceRange { start, stop, step })
    }

    fn tensor(dims: &[u64]) -> TensorMeta {
        TensorMeta::of(DType::F32, dims).unwrap()
    }

    /// The indices that Python's `range(*slice.indices(len))` has, for bounds in the dimension.
    fn indices(dim: SliceDim, len: u64) -> Vec<u64> {
        let at = |bound: i64| if bound < 0 { bound + len as i64 } else { bound };
        match dim {
            SliceDim::Index(index) => vec![at(index) as u64],
            SliceDim::Range(SliceRange { start, stop, step }) => {
                let (start, stop) = (at(start.unwrap_or(0)), stop.map_or(len as i64, at));
                (start..stop.max(start)).step_by(step as usize).map(|n| n as u64).collect()
            }
        }
    }

    /// The flat numbers of the elements of a slice, row-major: the plain model.
    fn model(slice: &Slice, dims: &[u64]) -> Vec<u64> {
        let mut elements = vec![0];
        for (n, len) in dims.iter().enumerate() {
            let taken = indices(slice.dims().get(n).copied().unwrap_or(range(None, None, 1)), *len);
            elements = elements.iter().flat_map(|e| taken.iter().map(move |i| e * len + i)).collect();
        }
        elements
    }

    /// Whether a slice of the last dimension separates elements that share a byte.
    fn separates(dim: Option<SliceDim>, len: u64, per_unit: u64) -> bool {
        let at = |bound: i64| (if bound < 0 { bound + len as i64 } else { bound }) as u64;
        per_unit > 1
            && match dim {
                None => false,
                Some(SliceDim::Index(_)) => true,
                Some(SliceDim::Range(SliceRange { start, stop, step })) => {
                    let (start, stop) = (start.map_or(0, at), stop.map_or(len, at));
                    step != 1 || start % per_unit != 0 || stop.saturating_sub(start) % per_unit != 0
                }
            }
    }

    fn misfit(dims: &[u64], slice: &[SliceDim]) -> (Misfit, String) {
        let e = Slice::new(slice.iter().copied()).of(&tensor(dims)).unwrap_err();
        (e.why, e.to_string())
    }

    #[test]
    fn slice_that_does_not_fit_is_refused_with_shape_and_slice() {
        let (why, text) = misfit(&[3, 4], &[range(Some(-4), None, 1)]);
        assert_eq!(why, Misfit::Bound { dim: 0, bound: -4, len: 3 });
        assert_eq!(
            text,
            "slice [-4:] does not fit shape [3, 4]: bound -4 of dimension 0 lies outside of it, -3 to 3 would fit; bounds are not cut \
             off"
        );
        let (why, text) = misfit(&[3, 4], &[range(None, None, 1), range(Some(1), Some(5), 2)]);
        assert_eq!(why, Misfit::Bound { dim: 1, bound: 5, len: 4 });
        assert!(text.starts_with("slice [:, 1:5:2] does not fit shape [3, 4]"), "{text}");
        assert_eq!(misfit(&[3], &[range(None, None, 0)]).0, Misfit::Step { dim: 0, step: 0 });
        assert_eq!(misfit(&[3], &[range(None, None, -1)]).0, Misfit::Step { dim: 0, step: -1 });
        let all = range(None, None, 1);
        assert_eq!(misfit(&[3], &[all, all]).0, Misfit::TooManyDims { dims: 2, rank: 1 });
        assert_eq!(misfit(&[], &[all]).0, Misfit::Scalar);
        assert_eq!(misfit(&[], &[]).0, Misfit::Scalar);
        for index in [3, -4, i64::MAX, i64::MIN] {
            assert_eq!(misfit(&[3], &[SliceDim::Index(index)]).0, Misfit::Index { dim: 0, index, len: 3 });
        }
        assert_eq!(misfit(&[0], &[SliceDim::Index(0)]).0, Misfit::Index { dim: 0, index: 0, len: 0 });
    }

    #[test]
    fn index_drops_its_dimension() {
        let slice = Slice::new([SliceDim::from(-1), SliceDim::from(..), SliceRange::from(1..).step(2).into()]);
        assert_eq!(slice.to_string(), "[-1, :, 1::2]");
        let found = slice.of(&tensor(&[2, 3, 5, 7])).unwrap();
        assert_eq!((found.meta().shape().dims(), found.offset()), (&[3, 2, 7][..], 105 + 7));
        assert_eq!(found.dims().iter().map(|dim| dim.stride).collect::<Vec<_>>(), [35, 14, 1]);
        assert_eq!(Slice::new([SliceDim::from(2)]).of(&tensor(&[4])).unwrap().meta(), &tensor(&[]));
    }

    // Promise: slices-that-do-not-fit
    #[test]
    fn elements_that_share_a_byte_stay_together() {
        let whole = TensorMeta::of(DType::I4, &[4, 8]).unwrap();
        let of = |dims: [SliceDim; 2]| Slice::new(dims).of(&whole);
        let found = of([range(Some(2), None, 1), range(Some(2), Some(-2), 1)]).unwrap();
        assert_eq!((found.meta().shape().dims(), found.meta().len_bytes(), found.offset()), (&[2, 4][..], 4, 9));
        assert_eq!(found.dims(), [BoxDim { count: 2, stride: 4 }, BoxDim { count: 2, stride: 1 }]);
        for dim in [range(Some(1), None, 1), range(None, Some(3), 1), range(None, None, 2), SliceDim::Index(2)] {
            let e = of([range(None, None, 1), dim]).unwrap_err();
            assert_eq!(e.why, Misfit::SharedByte { dim: 1 });
            assert!(e.to_string().contains("bounds have to be even"), "{e}");
        }
    }

    #[test]
    fn distances_that_do_not_fit_are_zero_where_they_do_not_matter() {
        let step = SliceRange { step: i64::MAX, ..SliceRange::ALL };
        let found = Slice::new([step.into()]).of(&tensor(&[4, 1 << 40])).unwrap();
        assert_eq!(found.dims()[0], BoxDim { count: 1, stride: 0 });
        assert_eq!(found.bytes(0).unwrap().len_bytes(), 4 << 40);
        let found = Slice::default().of(&tensor(&[u64::MAX, u64::MAX, 0])).unwrap();
        assert_eq!((found.meta().len_bytes(), found.bytes(0)), (0, None));
        assert_eq!(found.dims()[0].stride, 0);
    }

    fn cases() -> impl Strategy<Value = (Vec<u64>, Vec<SliceDim>)> {
        let dim = (0_u64..6).prop_flat_map(|len| {
            let bound = proptest::option::of(-(len as i64)..=len as i64);
            let whole = (bound.clone(), bound, 1_i64..4).prop_map(|(start, stop, step)| range(start, stop, step));
            let part = match len {
                0 => whole.boxed(),
                _ => prop_oneof![3 => whole, 1 => (-(len as i64)..len as i64).prop_map(SliceDim::Index)].boxed(),
            };
            (Just(len), part)
        });
        (proptest::collection::vec(dim, 1..6), 0_usize..6).prop_map(|(dims, named)| {
            let (lens, mut slice): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
            slice.truncate(named);
            (lens, slice)
        })
    }

    proptest! {
        // Promise: slices
        #[test]
        fn elements_are_those_of_the_model((mut dims, slice) in cases(), dtype in proptest::sample::select(&DType::ALL)) {
            let (size, per_unit, last) = (dtype.size_bytes(), dtype.elements_per_unit(), dims.len() - 1);
            dims[last] *= per_unit;
            let whole = TensorMeta::of(dtype, &dims).unwrap();
            let slice = Slice::new(slice);
            let found = slice.of(&whole);
            if separates(slice.dims().get(last).copied(), dims[last], per_unit) {
                let refused = Err(Misfit::SharedByte { dim: last });
                prop_assert_eq!(found.map_err(|e| e.why), refused);
                return Ok(());
            }
            let (found, expected) = (found.unwrap(), model(&slice, &dims));
            // In units: the elements that share a byte follow each other.
            let expected: Vec<_> = expected.into_iter().step_by(per_unit as usize).map(|e| e / per_unit).collect();
            prop_assert_eq!(found.meta().len_bytes(), expected.len() as u64 * size);
            // By the strides, as a reader sees the whole tensor.
            let mut seen = vec![found.offset()];
            for dim in found.dims() {
                seen = seen.iter().flat_map(|e| (0..dim.count).map(move |n| e + n * dim.stride)).collect();
            }
            prop_assert!(expected.is_empty() || seen == expected);
            // By the runs, as they are sent.
            let base = 128;
            let mut sent = Vec::new();
            for run in Packing::new(found.bytes(base).into_iter().collect()) {
                prop_assert_eq!(run.to, sent.len() as u64 * size);
                let first = (run.from - base) / size;
                sent.extend(first..first + run.len / size);
            }
            prop_assert_eq!(sent, expected);
        }

        // Promise: slices-that-do-not-fit, seen to fail
        #[test]
        fn bounds_outside_of_the_dimension_are_refused(len in 0_u64..9, beyond in 1_i64..9, step in 1_i64..3) {
            for bound in [len as i64 + beyond, -(len as i64) - beyond, i64::MAX, i64::MIN] {
                for dim in [range(Some(bound), None, step), range(None, Some(bound), step)] {
                    let refused = Slice::new([dim]).of(&tensor(&[len])).map_err(|e| e.why);
                    prop_assert_eq!(refused, Err(Misfit::Bound { dim: 0, bound, len }));
                }
            }
        }
    }
}
