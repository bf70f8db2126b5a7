//! Hashes of rows, a column at a time. [`By::Hash`](super::By::Hash) says what the hash of each type is.

use super::{PartitionError, find, scale};
use super::{xxh64, xxh64_u64};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    BinaryViewType, ByteArrayType, ByteViewType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    Float16Type, Float32Type, Float64Type, RunEndIndexType, StringViewType,
};
use arrow_array::{
    Array, ArrowPrimitiveType, GenericByteArray, GenericByteViewArray, GenericListArray, GenericListViewArray,
    OffsetSizeTrait, RecordBatch, RunArray, downcast_dictionary_array, downcast_run_array,
};
use arrow_buffer::{ArrowNativeType, i256};
use arrow_schema::DataType;

/// The hash of a null: that of no bytes, with another seed, so that it differs from that of an empty string.
const NULL_SEED: u64 = 1;

pub(super) fn choose(
    batch: &RecordBatch,
    columns: &[&str],
    partitions: u32,
    chosen: &mut Vec<u32>,
) -> Result<(), PartitionError> {
    let mut of_rows: Option<Vec<u64>> = None;
    for column in columns {
        let of_column = hashes(find(batch, column)?).map_err(|NoHash(data_type)| PartitionError::BadKey {
            column: (*column).to_owned(),
            data_type: data_type.to_string(),
            expected: "which cannot be hashed: maps and unions cannot",
        })?;
        match &mut of_rows {
            None => of_rows = Some(of_column),
            Some(rows) => rows.iter_mut().zip(of_column).for_each(|(row, next)| *row = xxh64_u64(next, *row)),
        }
    }
    let of_rows = of_rows.ok_or(PartitionError::NoColumns)?;
    chosen.extend(of_rows.into_iter().map(|hash| scale(hash, partitions)));
    Ok(())
}

/// A type that cannot be hashed.
pub(super) struct NoHash(pub(super) DataType);

pub(super) type Hashes = Result<Vec<u64>, NoHash>;

/// The hash of each value.
pub(super) fn hashes(array: &dyn Array) -> Hashes {
    let number = |number| xxh64_u64(number, 0);
    let mut hashes: Vec<u64> = match array.data_type() {
        DataType::Null => vec![0; array.len()],
        DataType::Boolean => array.as_boolean().values().iter().map(|bit| number(u64::from(bit))).collect(),
        DataType::Int8 => numbers(array, |bytes| i8::from_ne_bytes(bytes) as u64),
        DataType::Int16 => numbers(array, |bytes| i16::from_ne_bytes(bytes) as u64),
        DataType::UInt8 => numbers(array, |bytes| u64::from(u8::from_ne_bytes(bytes))),
        DataType::UInt16 => numbers(array, |bytes| u64::from(u16::from_ne_bytes(bytes))),
        DataType::UInt32 => numbers(array, |bytes| u64::from(u32::from_ne_bytes(bytes))),
        DataType::Float16 => floats::<Float16Type>(array, |float| float.to_f64()),
        DataType::Float32 => floats::<Float32Type>(array, f64::from),
        DataType::Float64 => floats::<Float64Type>(array, |float| float),
        DataType::Decimal32(..) => decimals::<Decimal32Type>(array, i128::from),
        DataType::Decimal64(..) => decimals::<Decimal64Type>(array, i128::from),
        DataType::Decimal128(..) => decimals::<Decimal128Type>(array, |decimal| decimal),
        DataType::Decimal256(..) => array.as_primitive::<Decimal256Type>().values().iter().map(wide_decimal).collect(),
        DataType::Utf8 => bytes(array.as_string::<i32>()),
        DataType::LargeUtf8 => bytes(array.as_string::<i64>()),
        DataType::Binary => bytes(array.as_binary::<i32>()),
        DataType::LargeBinary => bytes(array.as_binary::<i64>()),
        DataType::Utf8View => views::<StringViewType>(array.as_byte_view()),
        DataType::BinaryView => views::<BinaryViewType>(array.as_byte_view()),
        DataType::FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary();
            (0..array.len()).map(|row| xxh64(array.value(row), 0)).collect()
        }
        DataType::Struct(_) => {
            let mut hashes = vec![0; array.len()];
            for column in array.as_struct().columns() {
                let of_column = self::hashes(column)?;
                hashes.iter_mut().zip(of_column).for_each(|(hash, next)| *hash = xxh64_u64(next, *hash));
            }
            hashes
        }
        DataType::List(_) => list(array.as_list::<i32>())?,
        DataType::LargeList(_) => list(array.as_list::<i64>())?,
        DataType::ListView(_) => list_view(array.as_list_view::<i32>())?,
        DataType::LargeListView(_) => list_view(array.as_list_view::<i64>())?,
        DataType::FixedSizeList(_, size) => {
            let (size, inner) = (*size as usize, self::hashes(array.as_fixed_size_list().values())?);
            (0..array.len()).map(|row| elements(&inner, row * size, size)).collect()
        }
        DataType::Dictionary(..) => {
            let array: &dyn Array = array;
            downcast_dictionary_array!(
                array => {
                    let values = self::hashes(array.values())?;
                    let of_key = |key: usize| values.get(key).copied().unwrap_or(0);
                    array.keys().values().iter().map(|key| of_key(key.as_usize())).collect()
                }
                other => return Err(NoHash(other.clone()))
            )
        }
        DataType::RunEndEncoded(..) => {
            let array: &dyn Array = array;
            downcast_run_array!(
                array => runs(array)?,
                other => return Err(NoHash(other.clone()))
            )
        }
        DataType::Map(..) | DataType::Union(..) => return Err(NoHash(array.data_type().clone())),
        // Integers, dates, times and intervals, by their width.
        other => match other.primitive_width() {
            Some(4) => numbers(array, |bytes| i32::from_ne_bytes(bytes) as u64),
            Some(8) => numbers(array, u64::from_ne_bytes),
            Some(16) => words::<16>(array).map(|bytes| xxh64(&bytes, 0)).collect(),
            _ => return Err(NoHash(other.clone())),
        },
    };
    if let Some(nulls) = array.logical_nulls() {
        let null = xxh64(&[], NULL_SEED);
        for (hash, is_valid) in hashes.iter_mut().zip(nulls.iter()) {
            if !is_valid {
                *hash = null;
            }
        }
    }
    Ok(hashes)
}

/// The values of an array of fixed width, each as its bytes.
pub(super) fn words<const WIDTH: usize>(array: &dyn Array) -> impl Iterator<Item = [u8; WIDTH]> {
    let data = array.to_data();
    let values = data.buffers().first().cloned().unwrap_or_default();
    let (first, len) = (data.offset(), data.len());
    (first..first + len).map_while(move |at| values.as_chunks::<WIDTH>().0.get(at).copied())
}

fn numbers<const WIDTH: usize>(array: &dyn Array, number: impl Fn([u8; WIDTH]) -> u64) -> Vec<u64> {
    words(array).map(|bytes| xxh64_u64(number(bytes), 0)).collect()
}

fn floats<T: ArrowPrimitiveType>(array: &dyn Array, double: impl Fn(T::Native) -> f64) -> Vec<u64> {
    let bits = |float: f64| match float {
        _ if float.is_nan() => f64::NAN.to_bits(),
        // Makes 0.0 of -0.0.
        _ => (float + 0.0).to_bits(),
    };
    array.as_primitive::<T>().values().iter().map(|float| xxh64_u64(bits(double(*float)), 0)).collect()
}

fn decimals<T: ArrowPrimitiveType>(array: &dyn Array, wide: impl Fn(T::Native) -> i128) -> Vec<u64> {
    array.as_primitive::<T>().values().iter().map(|decimal| xxh64(&wide(*decimal).to_le_bytes(), 0)).collect()
}

fn wide_decimal(decimal: &i256) -> u64 {
    match decimal.to_i128() {
        Some(narrow) => xxh64(&narrow.to_le_bytes(), 0),
        None => xxh64(&decimal.to_le_bytes(), 0),
    }
}

fn bytes<T: ByteArrayType>(array: &GenericByteArray<T>) -> Vec<u64> {
    let values = array.values().as_slice();
    let of_range = |range: &[T::Offset]| xxh64(&values[range[0].as_usize()..range[1].as_usize()], 0);
    array.offsets().windows(2).map(of_range).collect()
}

fn views<T: ByteViewType>(array: &GenericByteViewArray<T>) -> Vec<u64> {
    let value = |row| AsRef::<[u8]>::as_ref(array.value(row));
    (0..array.len()).map(|row| if array.is_null(row) { 0 } else { xxh64(value(row), 0) }).collect()
}

/// The hash of a list: that of its length, and then of each element.
fn elements(inner: &[u64], start: usize, len: usize) -> u64 {
    inner[start..start + len].iter().fold(xxh64_u64(len as u64, 0), |hash, next| xxh64_u64(*next, hash))
}

fn list<O: OffsetSizeTrait>(array: &GenericListArray<O>) -> Hashes {
    let offsets = array.offsets();
    let (first, last) = (offsets[0].as_usize(), offsets[array.len()].as_usize());
    // Only the elements of these rows: the array may be a slice of a long one.
    let inner = hashes(&array.values().slice(first, last - first))?;
    let of_range =
        |range: &[O]| elements(&inner, range[0].as_usize() - first, range[1].as_usize() - range[0].as_usize());
    Ok(offsets.windows(2).map(of_range).collect())
}

fn list_view<O: OffsetSizeTrait>(array: &GenericListViewArray<O>) -> Hashes {
    let inner = hashes(array.values())?;
    let ranges = array.offsets().iter().zip(array.sizes().iter());
    Ok(ranges.map(|(start, len)| elements(&inner, start.as_usize(), len.as_usize())).collect())
}

fn runs<R: RunEndIndexType>(array: &RunArray<R>) -> Hashes {
    let inner = hashes(array.values())?;
    Ok((0..array.len()).map(|row| inner[array.get_physical_index(row)]).collect())
}
