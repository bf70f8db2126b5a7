//! Views as Arrow buffers and arrays.

use super::{Bytes, Owner, ViewError};
use arrow_array::{ArrowPrimitiveType, PrimitiveArray};
use arrow_buffer::{Buffer, ScalarBuffer};
use arrow_schema::DataType;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use transfer_core::tensor::DType;

/// Returns the Arrow type whose arrays have the memory of a dense tensor of `dtype`, or `None` if Arrow has none: its
/// booleans are bit-packed, and it has no bfloat16, no complex numbers, and no floats of 8 or 4 bits.
#[must_use]
pub fn arrow_type(dtype: DType) -> Option<DataType> {
    match dtype {
        DType::I8 => Some(DataType::Int8),
        DType::U8 => Some(DataType::UInt8),
        DType::I16 => Some(DataType::Int16),
        DType::U16 => Some(DataType::UInt16),
        DType::I32 => Some(DataType::Int32),
        DType::U32 => Some(DataType::UInt32),
        DType::I64 => Some(DataType::Int64),
        DType::U64 => Some(DataType::UInt64),
        DType::F16 => Some(DataType::Float16),
        DType::F32 => Some(DataType::Float32),
        DType::F64 => Some(DataType::Float64),
        _ => None,
    }
}

/// The owner of an Arrow buffer. Arrow wants its owners to be nominally unwind-safe; this one is never accessed.
struct Keep {
    _owner: AssertUnwindSafe<Owner>,
}

impl Bytes {
    /// An Arrow buffer of the same bytes, at the same address. The view's owner is dropped with the last of the
    /// buffers and views.
    #[must_use]
    pub fn to_arrow_buffer(&self) -> Buffer {
        let keep = Arc::new(Keep { _owner: AssertUnwindSafe(self.owner().clone()) });
        // SAFETY: the bytes are valid and immutable while the owner lives, and the buffer holds it.
        unsafe { Buffer::from_custom_allocation(self.pointer(), self.len(), keep) }
    }

    /// An Arrow array of the same memory, without nulls: the elements of type `dtype`, flat, in row-major order.
    ///
    /// # Errors
    /// [`ViewError::NoArrowType`], also for [`DType::Bool`]; [`ViewError::WrongArrowType`] where `A` is not
    /// [`arrow_type`]'s; [`ViewError::WrongSize`], [`ViewError::Misaligned`].
    pub fn to_arrow<A: ArrowPrimitiveType>(&self, dtype: DType) -> Result<PrimitiveArray<A>, ViewError> {
        let expected = arrow_type(dtype).ok_or(ViewError::NoArrowType { dtype })?;
        if A::DATA_TYPE != expected {
            return Err(ViewError::WrongArrowType { dtype, expected, found: A::DATA_TYPE });
        }
        let (size, needed) = (size_of::<A::Native>(), align_of::<A::Native>());
        if !self.len().is_multiple_of(size) {
            return Err(ViewError::WrongSize { len: self.len(), dtype, size });
        }
        let address = self.as_ptr().addr();
        if !address.is_multiple_of(needed) {
            return Err(ViewError::Misaligned { dtype, needed, address });
        }
        // This panics if the buffer is misaligned, which was just checked.
        let values = ScalarBuffer::new(self.to_arrow_buffer(), 0, self.len() / size);
        Ok(PrimitiveArray::new(values, None))
    }
}
