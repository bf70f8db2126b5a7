//! Shapes, and the description of a dense tensor.

use super::DType;
use crate::memory::padded;
use smallvec::SmallVec;
use std::fmt;

/// The most dimensions a tensor may have.
pub const MAX_RANK: usize = 32;

/// The most bytes of metadata that may lie in front of a tensor's body: 256 for each tensor of the largest bundle.
pub const MAX_METADATA_BYTES: u32 = 32 << 20;

/// A shape that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidShape {
    /// More than [`MAX_RANK`] dimensions.
    #[error("a tensor has at most {MAX_RANK} dimensions, this one has {rank}")]
    RankTooHigh {
        /// The number found.
        rank: usize,
    },
    /// The size in bytes does not fit 64 bits.
    #[error("{dtype}{shape} would have more than 2^63 bytes")]
    TooLarge {
        /// The element type.
        dtype: DType,
        /// The shape.
        shape: Shape,
    },
    /// Elements that share a byte do not fill their last one.
    #[error(
        "{dtype}{shape} cannot be: two elements of {dtype} share a byte along the last dimension, so that has to be \
         there, and even"
    )]
    OddLastDimension {
        /// The element type.
        dtype: DType,
        /// The shape.
        shape: Shape,
    },
    /// More than [`MAX_METADATA_BYTES`].
    #[error("a tensor has at most {MAX_METADATA_BYTES} bytes of metadata in front of it, this one has {bytes}")]
    MetadataTooLong {
        /// The number found.
        bytes: u32,
    },
}

/// The dimensions of a tensor, outermost first, in elements. Rank 0 is a scalar.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[u64; 2]>);

impl Shape {
    /// A shape of these dimensions.
    ///
    /// # Errors
    /// [`InvalidShape::RankTooHigh`].
    pub fn new(dims: &[u64]) -> Result<Shape, InvalidShape> {
        if dims.len() > MAX_RANK {
            return Err(InvalidShape::RankTooHigh { rank: dims.len() });
        }
        Ok(Shape(SmallVec::from_slice(dims)))
    }

    /// The dimensions, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[u64] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The description of a dense tensor, row-major: element type and shape. Its size in bytes is known to fit.
///
/// What else there is to say of it, in bytes that nobody on the way looks at, lies in front of the body, in the same range, padded
/// to whole [`ALIGNMENT`](crate::memory::ALIGNMENT)s: a schema and the lengths of a batch's buffers, for instance. So metadata of any
/// length is written with the bytes that it describes, and a message only tells how long it is.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorMeta {
    dtype: DType,
    shape: Shape,
    metadata_bytes: u32,
}

impl TensorMeta {
    /// Describes a tensor.
    ///
    /// # Errors
    /// [`InvalidShape::TooLarge`] where the size in bytes is not below 2^63; [`InvalidShape::OddLastDimension`].
    pub fn new(dtype: DType, shape: Shape) -> Result<TensorMeta, InvalidShape> {
        let per_unit = dtype.elements_per_unit();
        if per_unit > 1 && shape.dims().last().is_none_or(|last| !last.is_multiple_of(per_unit)) {
            return Err(InvalidShape::OddLastDimension { dtype, shape });
        }
        match checked_len(dtype, &shape) {
            Some(_) => Ok(TensorMeta { dtype, shape, metadata_bytes: 0 }),
            None => Err(InvalidShape::TooLarge { dtype, shape }),
        }
    }

    /// Describes a tensor of these dimensions.
    ///
    /// # Errors
    /// Any [`InvalidShape`].
    pub fn of(dtype: DType, dims: &[u64]) -> Result<TensorMeta, InvalidShape> {
        TensorMeta::new(dtype, Shape::new(dims)?)
    }

    /// The same with so many bytes of metadata in front of the body.
    ///
    /// # Errors
    /// [`InvalidShape::MetadataTooLong`], or [`InvalidShape::TooLarge`] where both together are.
    pub fn with_metadata(self, metadata_bytes: u32) -> Result<TensorMeta, InvalidShape> {
        if metadata_bytes > MAX_METADATA_BYTES {
            return Err(InvalidShape::MetadataTooLong { bytes: metadata_bytes });
        }
        // Neither is close to 2^64.
        let fits = in_front(metadata_bytes) + self.body_bytes() < 1 << 63;
        let TensorMeta { dtype, shape, .. } = self;
        match fits {
            true => Ok(TensorMeta { dtype, shape, metadata_bytes }),
            false => Err(InvalidShape::TooLarge { dtype, shape }),
        }
    }

    /// The tensor that these parts describe.
    ///
    /// # Errors
    /// Any [`InvalidShape`].
    pub fn from_parts(parts: &MetaParts<'_>) -> Result<TensorMeta, InvalidShape> {
        let MetaParts { dtype, dims, metadata_bytes } = *parts;
        TensorMeta::of(dtype, dims)?.with_metadata(metadata_bytes)
    }

    /// All that the description says.
    #[must_use]
    pub fn parts(&self) -> MetaParts<'_> {
        let TensorMeta { dtype, shape, metadata_bytes } = self;
        MetaParts { dtype: *dtype, dims: shape.dims(), metadata_bytes: *metadata_bytes }
    }

    /// How many bytes of metadata lie in front of the body, without padding.
    #[must_use]
    pub fn metadata_bytes(&self) -> u32 {
        self.metadata_bytes
    }

    /// Where the body begins in the tensor's range, in bytes.
    #[must_use]
    pub fn body_offset(&self) -> u64 {
        in_front(self.metadata_bytes)
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The dimensions in units of [`DType::size_bytes`]: those of the shape, but the last one is half as long if two
    /// elements share a byte.
    pub fn unit_dims(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + '_ {
        units(self.dtype, &self.shape)
    }

    /// The size in bytes, with what lies in front of the body.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.body_offset() + self.body_bytes()
    }

    fn body_bytes(&self) -> u64 {
        // It fits, as `new` has checked. If one dimension is 0, the product of the others may overflow; the result is 0 all the same.
        self.unit_dims().fold(1u64, u64::wrapping_mul) * self.dtype.size_bytes()
    }
}

/// All that a [`TensorMeta`] says. Who packs descriptions takes this apart and puts it together by name, in the messages between
/// sidecars and workers, on boards, and in notices: a field that is added fails to compile where it would be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaParts<'a> {
    /// The element type.
    pub dtype: DType,
    /// The dimensions, the slowest first.
    pub dims: &'a [u64],
    /// How many bytes of metadata lie in front of the body, without padding.
    pub metadata_bytes: u32,
}

/// The room that so much metadata takes.
fn in_front(metadata_bytes: u32) -> u64 {
    padded(u64::from(metadata_bytes)).unwrap_or(0)
}

fn checked_len(dtype: DType, shape: &Shape) -> Option<u64> {
    // A dimension of 0 makes the tensor empty whatever the others are.
    if shape.dims().contains(&0) {
        return Some(0);
    }
    let units = units(dtype, shape).try_fold(1u64, u64::checked_mul)?;
    units.checked_mul(dtype.size_bytes()).filter(|n| *n < 1 << 63)
}

fn units(dtype: DType, shape: &Shape) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + '_ {
    let last = shape.dims().len().saturating_sub(1);
    shape.dims().iter().enumerate().map(move |(i, n)| if i == last { n / dtype.elements_per_unit() } else { *n })
}

impl fmt::Display for TensorMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)?;
        match self.metadata_bytes {
            0 => Ok(()),
            n => write!(f, " behind {n} B of metadata"),
        }
    }
}

impl fmt::Debug for TensorMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(TensorMeta::of(DType::F32, &[4096, 4096]).unwrap().len_bytes(), 64 << 20);
        assert_eq!(TensorMeta::of(DType::C64, &[]).unwrap().len_bytes(), 8);
        assert_eq!(TensorMeta::of(DType::C128, &[3]).unwrap().len_bytes(), 48);
        assert_eq!(TensorMeta::of(DType::F64, &[0]).unwrap().len_bytes(), 0);
        assert_eq!(TensorMeta::of(DType::F64, &[u64::MAX, u64::MAX, 0]).unwrap().len_bytes(), 0);
    }

    // Promise: four-bit-elements, seen to fail
    #[test]
    fn elements_of_4_bits_share_bytes_along_the_last_dimension() {
        for dtype in [DType::F4E2M1, DType::I4, DType::U4] {
            let meta = TensorMeta::of(dtype, &[3, 6]).unwrap();
            assert_eq!((meta.len_bytes(), meta.unit_dims().collect::<Vec<_>>()), (9, vec![3, 3]));
            assert_eq!(TensorMeta::of(dtype, &[7, 0]).unwrap().len_bytes(), 0);
            for dims in [&[][..], &[3], &[4, 1], &[0, 5]] {
                let error = TensorMeta::of(dtype, dims).unwrap_err();
                assert!(matches!(error, InvalidShape::OddLastDimension { .. }), "{error}");
                assert!(error.to_string().contains(&format!("{dtype}{dims:?} cannot be")), "{error}");
            }
            // Twice as many elements as bytes fit.
            assert_eq!(TensorMeta::of(dtype, &[(1 << 63) + 2]).unwrap().len_bytes(), (1 << 62) + 1);
            assert!(matches!(TensorMeta::of(dtype, &[2, u64::MAX - 1]), Err(InvalidShape::TooLarge { .. })));
        }
    }

    #[test]
    fn metadata_lies_in_front_of_the_body() {
        let meta = TensorMeta::of(DType::F32, &[10]).unwrap().with_metadata(65).unwrap();
        assert_eq!((meta.metadata_bytes(), meta.body_offset(), meta.len_bytes()), (65, 128, 168));
        let too_long = MAX_METADATA_BYTES + 1;
        assert!(
            matches!(meta.with_metadata(too_long), Err(InvalidShape::MetadataTooLong { bytes }) if bytes == too_long)
        );
        let large = TensorMeta::of(DType::U8, &[(1 << 63) - 1]).unwrap();
        assert!(matches!(large.with_metadata(1), Err(InvalidShape::TooLarge { .. })));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        assert!(matches!(TensorMeta::of(DType::F64, &[u64::MAX, 2]), Err(InvalidShape::TooLarge { .. })));
        assert!(matches!(TensorMeta::of(DType::U8, &[1 << 63]), Err(InvalidShape::TooLarge { .. })));
        assert!(matches!(TensorMeta::of(DType::U8, &[1; 33]), Err(InvalidShape::RankTooHigh { rank: 33 })));
    }
}
