//! An integer column that names the partition of each row.

use super::{PartitionError, find};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;

pub(super) fn choose(
    batch: &RecordBatch,
    column: &str,
    partitions: u32,
    chosen: &mut Vec<u32>,
) -> Result<(), PartitionError> {
    let array = find(batch, column)?;
    if let Some(row) = array.nulls().and_then(|nulls| (0..nulls.len()).find(|row| nulls.is_null(*row))) {
        return Err(PartitionError::IsNull { column: column.to_owned(), row });
    }
    let wrong = match array.data_type() {
        DataType::Int8 => values::<Int8Type>(array, partitions, chosen),
        DataType::Int16 => values::<Int16Type>(array, partitions, chosen),
        DataType::Int32 => values::<Int32Type>(array, partitions, chosen),
        DataType::Int64 => values::<Int64Type>(array, partitions, chosen),
        DataType::UInt8 => values::<UInt8Type>(array, partitions, chosen),
        DataType::UInt16 => values::<UInt16Type>(array, partitions, chosen),
        DataType::UInt32 => values::<UInt32Type>(array, partitions, chosen),
        DataType::UInt64 => values::<UInt64Type>(array, partitions, chosen),
        other => {
            let (column, data_type) = (column.to_owned(), other.to_string());
            let expected = "a column that names partitions must be one of integers";
            return Err(PartitionError::BadKey { column, data_type, expected });
        }
    };
    match wrong {
        None => Ok(()),
        Some((row, value)) => Err(PartitionError::OutOfRange { column: column.to_owned(), row, value, partitions }),
    }
}

/// Appends the values. Returns the first that is no partition, with its row.
fn values<T: ArrowPrimitiveType<Native: Into<i128>>>(
    array: &dyn Array,
    partitions: u32,
    chosen: &mut Vec<u32>,
) -> Option<(usize, i128)> {
    for (row, value) in array.as_primitive::<T>().values().iter().enumerate() {
        let value: i128 = (*value).into();
        match u32::try_from(value) {
            Ok(partition) if partition < partitions => chosen.push(partition),
            _ => return Some((row, value)),
        }
    }
    None
}
