//! Bytes that cannot be seen as what was asked for.

use arrow_schema::DataType;
use transfer_core::tensor::DType;

/// A view that cannot be had. The bytes are fine, and can be looked at in another way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The bytes are no whole number of elements.
    #[error("{len} bytes are no whole number of {dtype} elements of {size} bytes")]
    WrongSize {
        /// The length in bytes.
        len: usize,
        /// The element type.
        dtype: DType,
        /// The size of one element, in bytes.
        size: usize,
    },
    /// The bytes start where no element of that type may.
    #[error(
        "{dtype} elements start at a multiple of {needed} bytes, these are at address \
         {address:#x}; copy them to look at them"
    )]
    Misaligned {
        /// The element type.
        dtype: DType,
        /// The alignment needed, in bytes.
        needed: usize,
        /// Where they are.
        address: usize,
    },
    /// Some bytes are no value of the element type.
    #[error("a byte is neither 0 nor 1, so it is no {dtype}")]
    InvalidValue {
        /// The element type.
        dtype: DType,
    },
    /// Arrow has no such array, or not in this layout.
    #[error("Arrow has no array of {dtype} elements as they lie here{}", match .dtype {
        DType::Bool => ": its booleans are packed, 8 to a byte; convert them, or view them as u8",
        _ => "; view their bytes as an array of unsigned integers of the same size",
    })]
    NoArrowType {
        /// The element type.
        dtype: DType,
    },
    /// Another Arrow type was asked for than the element type's own.
    #[error("elements of type {dtype} are an Arrow array of {expected}, one of {found} was asked for")]
    WrongArrowType {
        /// The element type.
        dtype: DType,
        /// Its Arrow type.
        expected: DataType,
        /// The Arrow type asked for.
        found: DataType,
    },
}
