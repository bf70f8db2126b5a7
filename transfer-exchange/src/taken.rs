//! Some rows of a batch, with none of the memory of the others.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, make_array};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_data::transform::MutableArrayData;
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_schema::{ArrowError, DataType};
use arrow_select::dictionary::garbage_collect_any_dictionary;
use arrow_select::take::take;
use std::sync::Arc;

/// Takes these rows of a batch. Arrow's kernel alone would keep all strings of the batch, or its whole dictionary.
pub(super) fn rows_of(batch: &RecordBatch, rows: &[u32]) -> Result<RecordBatch, ArrowError> {
    of(batch, rows, compact)
}

/// Takes these rows of a batch into memory of their own, so that the memory of the batch can be given back.
pub(super) fn copied_rows_of(batch: &RecordBatch, rows: &[u32]) -> Result<RecordBatch, ArrowError> {
    of(batch, rows, |taken| match holds_others(taken.data_type()) {
        // What is compact may still be shared, like a dictionary of which every value is used.
        true => Ok(make_array(copied(&compact(taken)?.to_data())?)),
        false => Ok(taken),
    })
}

/// Copies a batch into memory of its own.
pub(super) fn copied_batch(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().map(|column| Ok(make_array(copied(&column.to_data())?)));
    batch_of(batch, columns.collect::<Result<_, ArrowError>>()?, batch.num_rows())
}

fn of(
    batch: &RecordBatch,
    rows: &[u32],
    finish: impl Fn(ArrayRef) -> Result<ArrayRef, ArrowError>,
) -> Result<RecordBatch, ArrowError> {
    let indices = UInt32Array::from(rows.to_vec());
    let columns = batch.columns().iter().map(|column| finish(take(column, &indices, None)?));
    batch_of(batch, columns.collect::<Result<_, _>>()?, rows.len())
}

fn batch_of(like: &RecordBatch, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, ArrowError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(like.schema(), columns, &options)
}

/// Copies an array with all its buffers.
fn copied(data: &ArrayData) -> Result<ArrayData, ArrowError> {
    let copy = |buffer: &Buffer| Buffer::from(buffer.as_slice());
    let nulls = data.nulls().map(|nulls| {
        let bits = BooleanBuffer::new(copy(nulls.buffer()), nulls.offset(), nulls.len());
        NullBuffer::new(bits)
    });
    let children = data.child_data().iter().map(copied).collect::<Result<_, _>>()?;
    ArrayDataBuilder::new(data.data_type().clone())
        .len(data.len())
        .offset(data.offset())
        .nulls(nulls)
        .buffers(data.buffers().iter().map(copy).collect())
        .child_data(children)
        .build()
}

/// Whether rows that were taken may still hold values of other rows.
fn holds_others(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View
        | DataType::BinaryView
        | DataType::Dictionary(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_) => true,
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            holds_others(f.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|f| holds_others(f.data_type())),
        DataType::Union(fields, _) => fields.iter().any(|(_, f)| holds_others(f.data_type())),
        DataType::RunEndEncoded(_, values) => holds_others(values.data_type()),
        _ => false,
    }
}

/// Drops the values of other rows: otherwise each block would have all strings of a batch, or its whole dictionary.
fn compact(array: ArrayRef) -> Result<ArrayRef, ArrowError> {
    if !holds_others(array.data_type()) {
        return Ok(array);
    }
    match array.data_type() {
        DataType::Utf8View => Ok(Arc::new(array.as_string_view().gc())),
        DataType::BinaryView => Ok(Arc::new(array.as_binary_view().gc())),
        DataType::Dictionary(..) => {
            let small = garbage_collect_any_dictionary(array.as_any_dictionary())?;
            let small = small.as_any_dictionary();
            Ok(small.with_values(compact(small.values().clone())?))
        }
        DataType::ListView(_) | DataType::LargeListView(_) => {
            let data = array.to_data();
            let mut copied = MutableArrayData::new(vec![&data], false, data.len());
            (0..data.len()).try_for_each(|row| copied.try_extend(0, row, row + 1))?;
            compact_children(make_array(copied.freeze()))
        }
        _ => compact_children(array),
    }
}

fn compact_children(array: ArrayRef) -> Result<ArrayRef, ArrowError> {
    let data = array.to_data();
    let children = data.child_data().iter().map(|child| Ok(compact(make_array(child.clone()))?.to_data()));
    let children = children.collect::<Result<Vec<_>, ArrowError>>()?;
    Ok(make_array(data.into_builder().child_data(children).build()?))
}
