//! Errors of views.

use arrow_schema::DataType;
use transfer_core::tensor::DType;

/// The reason why a view is impossible. The bytes are fine, and may have another view.
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
    /// The bytes are not aligned for the type.
    #[error(
        "{dtype} elements start at a multiple of {needed} bytes, these are at address \
         {address:#x}; copy them to look at them"
    )]
    Misaligned {
        /// The element type.
        dtype: DType,
        /// The alignment needed, in bytes.
        needed: usize,
        /// Their address.
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
    /// The requested Arrow type is not that of the element type.
    #[error("elements of type {dtype} are an Arrow array of {expected}, one of {found} was asked for")]
    WrongArrowType {
        /// The element type.
        dtype: DType,
        /// Its Arrow type.
        expected: DataType,
        /// The requested Arrow type.
        found: DataType,
    },
}
