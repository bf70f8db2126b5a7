//! The first eight bytes of values, as numbers that have the values' order. A comparison of two numbers decides for nearly
//! all pairs of values, and takes no call.
//!
//! `arrow-row` encodes whole values in their order, of any type. It would copy all bytes of each key, to compare with a few
//! bounds.

use super::hash::words;
use arrow_array::cast::AsArray;
use arrow_array::types::ByteArrayType;
use arrow_array::{Array, GenericByteArray};
use arrow_buffer::ArrowNativeType;
use arrow_schema::DataType;

/// For each value a number: where a value is less than another, its number is not greater. Values with equal numbers have
/// to be compared themselves. A null, which is less than every value, has 0. `None` for types that have no such numbers.
pub(super) fn prefixes(array: &dyn Array) -> Option<Vec<u64>> {
    let mut prefixes = match array.data_type() {
        DataType::UInt8 => numbers(array, |bytes| u8::from_ne_bytes(bytes).into()),
        DataType::UInt16 => numbers(array, |bytes| u16::from_ne_bytes(bytes).into()),
        DataType::UInt32 => numbers(array, |bytes| u32::from_ne_bytes(bytes).into()),
        DataType::UInt64 => numbers(array, u64::from_ne_bytes),
        DataType::Float32 => numbers(array, |bytes| float32(f32::from_ne_bytes(bytes))),
        DataType::Float64 => numbers(array, |bytes| float64(f64::from_ne_bytes(bytes))),
        DataType::Int8 => numbers(array, |bytes| signed(i8::from_ne_bytes(bytes).into())),
        DataType::Int16 => numbers(array, |bytes| signed(i16::from_ne_bytes(bytes).into())),
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) => {
            numbers(array, |bytes| signed(i32::from_ne_bytes(bytes).into()))
        }
        DataType::Int64 | DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_) => {
            numbers(array, |bytes| signed(i64::from_ne_bytes(bytes)))
        }
        DataType::Utf8 => bytes(array.as_string::<i32>()),
        DataType::LargeUtf8 => bytes(array.as_string::<i64>()),
        DataType::Binary => bytes(array.as_binary::<i32>()),
        DataType::LargeBinary => bytes(array.as_binary::<i64>()),
        DataType::FixedSizeBinary(_) => {
            let array = array.as_fixed_size_binary();
            (0..array.len()).map(|row| first_bytes(array.value(row))).collect()
        }
        _ => return None,
    };
    if let Some(nulls) = array.nulls() {
        prefixes.iter_mut().zip(nulls).filter(|(_, is_valid)| !is_valid).for_each(|(prefix, _)| *prefix = 0);
    }
    Some(prefixes)
}

fn numbers<const WIDTH: usize>(array: &dyn Array, number: impl Fn([u8; WIDTH]) -> u64) -> Vec<u64> {
    words(array).map(number).collect()
}

fn bytes<T: ByteArrayType>(array: &GenericByteArray<T>) -> Vec<u64> {
    let values = array.value_data();
    array.offsets().windows(2).map(|ends| first_bytes(&values[ends[0].as_usize()..ends[1].as_usize()])).collect()
}

/// The first eight bytes, and zeros behind the end of fewer.
#[inline]
fn first_bytes(value: &[u8]) -> u64 {
    match value.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut first = [0; 8];
            first[..value.len()].copy_from_slice(value);
            u64::from_be_bytes(first)
        }
    }
}

#[inline]
fn signed(n: i64) -> u64 {
    n as u64 ^ 1 << 63
}

/// IEEE 754's total order: a negative float has all of its bits flipped, another one its sign.
#[inline]
fn float32(f: f32) -> u64 {
    let bits = f.to_bits();
    u64::from(bits ^ (((bits as i32) >> 31) as u32 | 1 << 31))
}

/// As [`float32`].
#[inline]
fn float64(f: f64) -> u64 {
    let bits = f.to_bits();
    bits ^ (((bits as i64) >> 63) as u64 | 1 << 63)
}

#[cfg(test)]
mod tests {
    use super::super::range::Order;
    use super::prefixes;
    use arrow_array::{
        Array, ArrayRef, BinaryArray, Date32Array, DurationSecondArray, FixedSizeBinaryArray, Float32Array,
        Float64Array, Int8Array, Int64Array, LargeStringArray, StringArray, Time32SecondArray,
        TimestampNanosecondArray, UInt16Array, UInt64Array,
    };
    use std::cmp::Ordering;
    use std::sync::Arc;

    /// Every pair of values: numbers that differ have the values' order.
    fn has_the_order(array: ArrayRef) {
        let keys = [array.clone()];
        let order = Order::new(&["n".to_owned()], &keys, &keys).unwrap();
        let numbers = prefixes(&array).unwrap();
        assert_eq!(numbers.len(), array.len());
        for (left, right) in (0..array.len()).flat_map(|l| (0..array.len()).map(move |r| (l, r))) {
            let (values, prefixes) = (order.compare(left, right), numbers[left].cmp(&numbers[right]));
            let agree = prefixes == Ordering::Equal || prefixes == values;
            assert!(agree, "{}: {left} and {right} of {array:?}: {values:?} and {prefixes:?}", array.data_type());
        }
    }

    #[test]
    fn numbers_have_the_order_of_the_values() {
        let int8 = [None, Some(i8::MIN), Some(-1), Some(0), Some(1), Some(i8::MAX)];
        let int64 = [None, Some(i64::MIN), Some(-1), Some(0), Some(1), Some(i64::MAX)];
        let floats = [f64::NEG_INFINITY, -1e300, -1.5, -0.0, 0.0, 5e-324, 1.5, f64::INFINITY, f64::NAN, -f64::NAN];
        let words = ["", "a", "a\0", "a\0b", "abcdefg", "abcdefgh", "abcdefghi", "abcdefghz", "abd", "\u{fffd}"];
        let word = |n: usize| words.get(n).copied();
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(Int8Array::from(int8.to_vec())),
            Arc::new(Int64Array::from(int64.to_vec())),
            Arc::new(UInt16Array::from(vec![0, 1, u16::MAX])),
            Arc::new(UInt64Array::from(vec![Some(0), None, Some(1), Some(u64::MAX)])),
            Arc::new(Float64Array::from(floats.to_vec())),
            Arc::new(Float32Array::from(floats.map(|f| f as f32).to_vec())),
            // A signaling NaN is less than a quiet one.
            Arc::new(Float32Array::from(
                [0x7f80_0005, 0x7fc0_0000, 0xffc0_0000, 0xff80_0005].map(f32::from_bits).to_vec(),
            )),
            Arc::new(Date32Array::from(vec![-5, 0, 5])),
            Arc::new(Time32SecondArray::from(vec![-5, 0, 5])),
            Arc::new(TimestampNanosecondArray::from(vec![i64::MIN, -5, 0, 5])),
            Arc::new(DurationSecondArray::from(vec![-5, 0, i64::MAX])),
            Arc::new((0..11).map(word).collect::<StringArray>()),
            Arc::new((0..11).map(word).collect::<LargeStringArray>()),
            Arc::new((0..11).map(word).collect::<BinaryArray>()),
        ];
        for array in arrays {
            has_the_order(array.slice(1, array.len() - 1));
            has_the_order(array);
        }
        for size in [0, 3, 8, 10] {
            let value = |n: u8| (n != 7).then(|| vec![n % 5; size]);
            let of = FixedSizeBinaryArray::try_from_sparse_iter_with_size((0..12).map(value), size as i32).unwrap();
            has_the_order(Arc::new(of.slice(3, 9)));
        }
    }

    #[test]
    fn most_values_have_numbers_of_their_own() {
        let array: ArrayRef = Arc::new(Int64Array::from_iter_values(-50..50));
        let mut numbers = prefixes(&array).unwrap();
        numbers.dedup();
        assert_eq!(numbers.len(), 100);
    }
}
