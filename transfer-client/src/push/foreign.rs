//! Sources that the client did not allocate: slices, bytes, Arrow arrays.

use crate::error::Error;
use crate::push::Source;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, PrimitiveArray};
use transfer_core::tensor::{DType, Key, TensorMeta};

/// `bytes` as a tensor of that element type and shape, if they fill it exactly.
pub(crate) fn checked<'a>(dtype: DType, dims: &[u64], bytes: &'a [u8]) -> Result<Source<'a>, Error> {
    let meta = TensorMeta::of(dtype, dims)?;
    let (expected_bytes, found_bytes) = (meta.len_bytes(), bytes.len() as u64);
    match expected_bytes == found_bytes {
        true => Ok(Source::Bytes(bytes, meta)),
        false => Err(Error::WrongLength { meta, expected_bytes, found_bytes }),
    }
}

/// Describes the values of an array as a tensor of one dimension.
pub(crate) fn of_array<'a>(key: &Key, array: &'a dyn Array) -> Result<Source<'a>, Error> {
    let nulls = array.null_count();
    if nulls > 0 {
        return Err(Error::HasNulls { key: key.as_str().to_owned(), nulls, len: array.len() });
    }
    let found = None
        .or_else(|| values::<Int8Type>(array, DType::I8))
        .or_else(|| values::<UInt8Type>(array, DType::U8))
        .or_else(|| values::<Int16Type>(array, DType::I16))
        .or_else(|| values::<UInt16Type>(array, DType::U16))
        .or_else(|| values::<Int32Type>(array, DType::I32))
        .or_else(|| values::<UInt32Type>(array, DType::U32))
        .or_else(|| values::<Int64Type>(array, DType::I64))
        .or_else(|| values::<UInt64Type>(array, DType::U64))
        .or_else(|| values::<Float16Type>(array, DType::F16))
        .or_else(|| values::<Float32Type>(array, DType::F32))
        .or_else(|| values::<Float64Type>(array, DType::F64));
    let (dtype, bytes) = found.ok_or_else(|| Error::NotDense { data_type: array.data_type().to_string() })?;
    checked(dtype, &[array.len() as u64], bytes)
}

/// The values of an array of this type, as bytes. `None` for an array of another type.
fn values<A: ArrowPrimitiveType>(array: &dyn Array, dtype: DType) -> Option<(DType, &[u8])> {
    let array = array.as_any().downcast_ref::<PrimitiveArray<A>>()?;
    // The buffer of a slice of an array starts where the slice does.
    Some((dtype, array.values().inner().as_slice()))
}
