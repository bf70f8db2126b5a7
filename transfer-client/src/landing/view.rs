//! Memory of a tensor, seen as another one.

use crate::error::Error;
use transfer_core::op::{Failure, FailureCode};
use transfer_core::tensor::{BodyBox, DType, MAX_RANK, Repeat, Slice, TensorMeta};

/// A part of a tensor's memory as a tensor of its own: any element type and shape, with strides. Its elements rise in memory and do not
/// overlap, so the outer dimensions have the larger strides. It is where something is fetched into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryView {
    meta: TensorMeta,
    offset: u64,
    /// The distances from one index of a dimension to the next, in bytes.
    strides: Vec<u64>,
    /// `None` without elements.
    bytes: Option<BodyBox>,
}

impl MemoryView {
    /// Makes a view that begins `offset_bytes` behind the start of the tensor. Of each dimension, the outermost first, it has the length, and
    /// the distance from one index to the next in bytes; of types of 4 bits, a byte has two elements of the last dimension.
    ///
    /// # Errors
    /// [`Error::Shape`]; [`FailureCode::Invalid`] where the elements do not rise.
    pub fn strided(dtype: DType, dims: &[u64], offset_bytes: u64, strides_bytes: &[u64]) -> Result<MemoryView, Error> {
        let meta = TensorMeta::of(dtype, dims)?;
        let wrong = |why: String| {
            let text =
                format!("a view of {meta} at byte {offset_bytes} with strides of {strides_bytes:?} bytes: {why}");
            Error::from(Failure::new(FailureCode::Invalid, text))
        };
        if strides_bytes.len() != dims.len() || dims.len() > MAX_RANK {
            return Err(wrong(format!("{} dimensions need as many strides", dims.len())));
        }
        let view =
            MemoryView { offset: offset_bytes, strides: strides_bytes.to_vec(), bytes: None, meta: meta.clone() };
        if meta.len_bytes() == 0 {
            return Ok(view);
        }
        let bytes = view.part(&vec![0; dims.len()], &view.counts()).map_err(|e| wrong(e.to_string()))?;
        Ok(MemoryView { bytes: Some(bytes), ..view })
    }

    /// A slice of a tensor.
    pub(crate) fn slice(of: &TensorMeta, slice: &Slice) -> Result<MemoryView, Error> {
        let found = slice
            .of(of)
            .map_err(|e| Failure::new(FailureCode::Invalid, format!("the tensor to fetch into is {of}: {e}")))?;
        let size = of.dtype().size_bytes();
        let strides = found.dims().iter().map(|dim| dim.stride.saturating_mul(size)).collect();
        let (offset, bytes) = (found.offset().saturating_mul(size), found.bytes(0));
        Ok(MemoryView { meta: found.meta().clone(), offset, strides, bytes })
    }

    /// All of a tensor.
    pub(crate) fn whole(of: &TensorMeta) -> MemoryView {
        let (mut strides, mut inner) = (vec![0; of.shape().dims().len()], of.dtype().size_bytes());
        for (stride, len) in strides.iter_mut().zip(of.unit_dims()).rev() {
            *stride = inner;
            inner = inner.saturating_mul(len.max(1));
        }
        let bytes = BodyBox::new(0, of.len_bytes(), Repeats::new()).ok();
        MemoryView { meta: of.clone(), offset: 0, strides, bytes }
    }

    /// Element type and shape.
    #[must_use]
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Where its last byte ends in the tensor.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.bytes.as_ref().map_or(self.offset, BodyBox::end)
    }

    /// Its bytes in those of the tensor. `None` without elements.
    pub(crate) fn bytes(&self) -> Option<&BodyBox> {
        self.bytes.as_ref()
    }

    /// The number of indices of each dimension, in units.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.meta.unit_dims().collect()
    }

    /// The bytes of a box of it, which begins at these indices and has so many, in units. It lies in this view, and has elements.
    pub(crate) fn part(&self, starts: &[u64], counts: &[u64]) -> Result<BodyBox, Error> {
        let strides = || self.strides.iter().copied();
        let first = starts
            .iter()
            .zip(strides())
            .try_fold(self.offset, |at, (start, stride)| at.checked_add(start.checked_mul(stride)?));
        // A dimension with one index has any stride.
        let repeats = counts.iter().zip(strides()).map(|(count, stride)| Repeat { count: *count, stride });
        let bytes = BodyBox::new(first.unwrap_or(u64::MAX), self.meta.dtype().size_bytes(), repeats.collect());
        Ok(bytes.map_err(|e| Failure::new(FailureCode::Invalid, e.to_string()))?)
    }
}

type Repeats = smallvec::SmallVec<[Repeat; 2]>;
