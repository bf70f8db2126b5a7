//! Slices: parts of tensors, of which nothing else moves.

use super::call::Fetch;
use super::large::large_slice;
use super::tensor::Tensor;
use crate::error::{BatchError, Error, SessionEnd};
use crate::memory::check;
use crate::request::AnyClient;
use crate::session::Lease;
use std::sync::Arc;
use transfer_core::memory::LocalSlice;
use transfer_core::op::{Failure, FailureCode, FetchedTensor, Report};
use transfer_core::tensor::{DType, Key, Slice, TensorBox, TensorMeta, Version};
use transfer_memory::view::{Bytes, Element};

/// Makes a [`Slice`]: a range or an index for each dimension, the outermost first, with a step behind `;`. Dimensions
/// that it does not name are whole.
///
/// Ranges have numpy's meaning: a negative bound counts from the end, and an index drops its dimension. `s![0..1024,
/// -512..]` is `[0:1024, -512:]` there, `s![.., 0..10; 2]` is `[:, 0:10:2]`, and `s![3]` is `[3]`. There is one
/// difference: numpy cuts off bounds outside of the dimension, and here they are an error. Bounds are `i32`, `i64`,
/// `isize`, `u32`, `u64` or `usize`.
///
/// ```
/// use transfer_client::s;
/// assert_eq!(s![0..1024, -512.., ..; 4, -1].to_string(), "[0:1024, -512:, ::4, -1]");
/// ```
#[macro_export]
macro_rules! s {
    // A negative bound lies behind a positive one.
    (@dim $range:expr) => {{
        #[allow(clippy::reversed_empty_ranges)]
        let range = $range;
        $crate::SliceDim::from(range)
    }};
    (@dim $range:expr, $step:expr) => {{
        #[allow(clippy::reversed_empty_ranges)]
        let range = $range;
        $crate::SliceDim::from($crate::SliceRange::from(range).step($step))
    }};
    ($($range:expr $(; $step:expr)?),* $(,)?) => {
        $crate::Slice::new([$($crate::s!(@dim $range $(, $step)?)),*])
    };
}

/// A fetched slice of a tensor: read-only. Cheap to clone; all clones share its memory, which is released with the last
/// of them.
///
/// Where its version lies on this host, it is a view of that version, with the strides that it has there, and no byte has
/// moved. Elsewhere the slice alone has landed, and is contiguous. [`FetchedSlice::is_contiguous`] tells.
#[derive(Debug, Clone)]
pub struct FetchedSlice {
    bytes: Bytes,
    meta: TensorMeta,
    strides: Box<[u64]>,
    version: Version,
    report: Report,
}

impl FetchedSlice {
    /// Takes what was fetched: the slice, or all of its version.
    pub(crate) fn take(
        lease: Arc<Lease>,
        tensor: FetchedTensor,
        key: &Key,
        asked: &Slice,
    ) -> Result<FetchedSlice, Error> {
        let FetchedTensor { version, meta, slice, is_part, mut report, .. } = tensor;
        if meta.metadata_bytes() > 0 {
            return Err(BatchError::NotATensor { meta }.into());
        }
        let whole = LocalSlice { len: meta.len_bytes(), ..slice };
        let bytes = lease.session().clone().view(whole, lease)?;
        if is_part {
            return Ok(FetchedSlice::landed(bytes, meta, version, report));
        }
        let found = asked.of(&meta).map_err(|e| {
            let key = key.as_str();
            Failure::new(FailureCode::Invalid, format!("key {key:?} has {meta}: {e}"))
        })?;
        report.bytes = found.meta().len_bytes();
        let span = span(&found);
        let bytes =
            bytes.slice(span.0..span.0 + span.1).ok_or(SessionEnd::TooShort { slice, len_bytes: meta.len_bytes() })?;
        Ok(FetchedSlice::viewed(bytes, &found, version, report))
    }

    /// A slice whose elements lie one behind the other.
    pub(crate) fn landed(bytes: Bytes, meta: TensorMeta, version: Version, report: Report) -> FetchedSlice {
        let mut strides: Box<[u64]> = meta.unit_dims().collect();
        let mut inner = 1_u64;
        for len in strides.iter_mut().rev() {
            // It overflows only in a tensor without elements.
            inner = inner.saturating_mul(std::mem::replace(len, inner).max(1));
        }
        FetchedSlice { bytes, meta, strides, version, report }
    }

    /// A view of a tensor's bytes, from the first element of the slice to its last one.
    pub(crate) fn viewed(bytes: Bytes, found: &TensorBox, version: Version, report: Report) -> FetchedSlice {
        let strides = found.dims().iter().map(|dim| dim.stride).collect();
        FetchedSlice { bytes, meta: found.meta().clone(), strides, version, report }
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.meta.dtype()
    }

    /// The dimensions of the slice, outermost first, in elements.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        self.meta.shape().dims()
    }

    /// Element type and shape of the slice.
    #[must_use]
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// The distance from one index to the next of each dimension, in elements; of types of 4 bits in bytes, each of which
    /// has two elements of the last dimension. Of a dimension with one index it says nothing.
    #[must_use]
    pub fn strides(&self) -> &[u64] {
        &self.strides
    }

    /// Whether the elements lie one behind the other, row-major.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let mut inner = 1;
        self.meta.len_bytes() == 0
            || self.meta.unit_dims().zip(&self.strides).rev().all(|(len, stride)| {
                let fits = len == 1 || *stride == inner;
                inner *= len;
                fits
            })
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.0
    }

    /// The report of the fetch. Its bytes are those of the slice.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The bytes from the first element of the slice to its last one. Where it is not contiguous, others lie between
    /// them; see [`FetchedSlice::strides`].
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements, row-major, if they lie one behind the other. `None` if not: [`FetchedSlice::to_vec`] copies them.
    ///
    /// # Errors
    /// [`Error::WrongType`]; [`Error::View`] if bytes of a `bool` tensor are neither 0 nor 1.
    pub fn as_slice<T: Element>(&self) -> Result<Option<&[T]>, Error> {
        check::<T>(&self.meta)?;
        Ok(match self.is_contiguous() {
            true => Some(self.bytes.as_slice()?),
            false => None,
        })
    }

    /// A copy of the elements, row-major.
    ///
    /// # Errors
    /// [`Error::WrongType`]; [`Error::View`] if bytes of a `bool` tensor are neither 0 nor 1.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        check::<T>(&self.meta)?;
        if self.meta.len_bytes() == 0 {
            return Ok(Vec::new());
        }
        let all: &[T] = self.bytes.as_slice()?;
        let mut out = Vec::with_capacity((self.meta.len_bytes() / self.dtype().size_bytes()) as usize);
        self.runs(|first, len| out.extend_from_slice(&all[first..first + len]));
        Ok(out)
    }

    /// A copy of the elements' bytes, row-major.
    #[must_use]
    pub fn to_contiguous(&self) -> Vec<u8> {
        let (size, mut out) = (self.dtype().size_bytes() as usize, Vec::with_capacity(self.meta.len_bytes() as usize));
        self.runs(|first, len| out.extend_from_slice(&self.bytes[first * size..(first + len) * size]));
        out
    }

    /// Calls `each` with the bytes of the elements, row-major, as far as they lie one behind the other.
    pub(crate) fn each_run(&self, mut each: impl FnMut(&[u8])) {
        if self.is_contiguous() {
            return each(&self.bytes[..self.meta.len_bytes() as usize]);
        }
        let size = self.dtype().size_bytes() as usize;
        self.runs(|first, len| each(&self.bytes[first * size..(first + len) * size]));
    }

    /// Returns the memory, from the first element of the slice to its last one, without the description.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Calls `each` with the first element and the number of elements of each run, in units of the memory.
    fn runs(&self, mut each: impl FnMut(usize, usize)) {
        let dims = self.meta.unit_dims().zip(&self.strides).map(|(len, stride)| (len as usize, *stride as usize));
        let dims: Vec<_> = dims.filter(|(len, _)| *len != 1).collect();
        if dims.iter().any(|(len, _)| *len == 0) {
            return;
        }
        let (inner, outer) = match dims.split_last() {
            Some(((len, 1), outer)) => (*len, outer),
            _ => (1, &dims[..]),
        };
        let mut at = vec![0; outer.len()];
        let mut first = 0;
        loop {
            each(first, inner);
            let mut dim = outer.len();
            loop {
                if dim == 0 {
                    return;
                }
                dim -= 1;
                let (len, stride) = outer[dim];
                at[dim] += 1;
                first += stride;
                if at[dim] < len {
                    break;
                }
                first -= at[dim] * stride;
                at[dim] = 0;
            }
        }
    }
}

/// Returns where the elements lie in the tensor's bytes: the first byte, and the number of bytes to the last one.
pub(crate) fn span(found: &TensorBox) -> (usize, usize) {
    let b = found.bytes(0);
    b.map_or((0, 0), |b| (b.offset() as usize, (b.end() - b.offset()) as usize))
}

impl<C: AnyClient> Fetch<C, Tensor> {
    /// Fetches only this slice of the tensor; [`s!`](crate::s) makes one. Where the version has to move, nothing else
    /// does, and the report counts only the slice. Where it lies on this host, the slice is a view of it and no byte
    /// moves.
    ///
    /// The owner finds out what the slice is of the version that it sends. A slice that does not fit the version's shape
    /// fails with [`FailureCode::Invalid`], and the text names both: bounds are not cut off. A version that is kept
    /// until it is fetched a number of times can only be fetched as a whole.
    pub fn slice(self, slice: Slice) -> Fetch<C, FetchedSlice> {
        self.sliced(slice, FetchedSlice::take, large_slice)
    }
}
