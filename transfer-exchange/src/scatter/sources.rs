//! The buffers of a batch, in the order of a layout's slots.

use super::layout::VIEW_BYTES;
use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_schema::DataType;

/// What a slot's rows are copied from. Each begins with the batch's first row.
#[derive(Debug)]
pub(super) enum Source {
    RowNumbers,
    Validity(Option<NullBuffer>),
    Fixed(Buffer),
    Bits(BooleanBuffer),
    /// The offsets, whose first is not 0 in a slice, and the bytes to which they refer.
    Offsets32(Buffer, Buffer),
    Offsets64(Buffer, Buffer),
    Views(Views),
    /// The bytes are copied with the slot before.
    Data,
}

/// The views of an array, and the buffers of their longer values.
#[derive(Debug)]
pub(super) struct Views {
    views: Buffer,
    buffers: Vec<Buffer>,
    nulls: Option<NullBuffer>,
}

/// The length up to which a value lies in its view (Arrow columnar format, "Variable-size Binary View Layout").
const INLINE_BYTES: usize = 12;

impl Views {
    /// The view of a row, and its bytes if they lie elsewhere.
    pub(super) fn get(&self, row: usize) -> ([u8; VIEW_BYTES], &[u8]) {
        let (views, _) = self.views.as_chunks::<VIEW_BYTES>();
        let view = match self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            // A null's view may be anything.
            true => [0; VIEW_BYTES],
            false => views[row],
        };
        let number = |at: usize| view[at..].first_chunk::<4>().map_or(0, |bytes| u32::from_ne_bytes(*bytes) as usize);
        match number(0) {
            len if len <= INLINE_BYTES => (view, &[]),
            len => (view, &self.buffers[number(8)][number(12)..][..len]),
        }
    }
}

impl Source {
    /// The length of a row's bytes.
    pub(super) fn len_of(&self, row: usize) -> usize {
        match self {
            Source::Offsets32(offsets, _) => {
                let offsets = offsets.typed_data::<i32>();
                (offsets[row + 1] - offsets[row]) as usize
            }
            Source::Offsets64(offsets, _) => {
                let offsets = offsets.typed_data::<i64>();
                (offsets[row + 1] - offsets[row]) as usize
            }
            Source::Views(views) => views.get(row).1.len(),
            _ => 0,
        }
    }

    /// The length of all rows' bytes.
    pub(super) fn len_of_all(&self, rows: usize) -> usize {
        match self {
            Source::Offsets32(offsets, _) => {
                let offsets = offsets.typed_data::<i32>();
                (offsets[rows] - offsets[0]) as usize
            }
            Source::Offsets64(offsets, _) => {
                let offsets = offsets.typed_data::<i64>();
                (offsets[rows] - offsets[0]) as usize
            }
            _ => (0..rows).map(|row| self.len_of(row)).sum(),
        }
    }
}

/// Finds the buffers. The batch must have the schema of a layout.
pub(super) fn sources(batch: &RecordBatch) -> Vec<Source> {
    let mut all = vec![Source::RowNumbers];
    batch.columns().iter().for_each(|column| add(column, &mut all));
    all
}

fn add(array: &dyn Array, all: &mut Vec<Source>) {
    if *array.data_type() == DataType::Null {
        return;
    }
    all.push(Source::Validity(array.nulls().filter(|nulls| nulls.null_count() > 0).cloned()));
    match array.data_type() {
        DataType::Boolean => all.push(Source::Bits(array.as_boolean().values().clone())),
        DataType::FixedSizeList(..) => add(array.as_fixed_size_list().values(), all),
        DataType::Struct(_) => array.as_struct().columns().iter().for_each(|column| add(column, all)),
        DataType::Utf8 => add_offsets(array.as_string::<i32>(), all),
        DataType::Binary => add_offsets(array.as_binary::<i32>(), all),
        DataType::LargeUtf8 => add_offsets(array.as_string::<i64>(), all),
        DataType::LargeBinary => add_offsets(array.as_binary::<i64>(), all),
        DataType::Utf8View => all.extend([views(array.as_string_view()), Source::Data]),
        DataType::BinaryView => all.extend([views(array.as_binary_view()), Source::Data]),
        _ => {
            let data = array.to_data();
            let width = match array.data_type() {
                DataType::FixedSizeBinary(width) => *width as usize,
                primitive => primitive.primitive_width().unwrap_or(0),
            };
            let (start, len) = (data.offset() * width, data.len() * width);
            let values = data.buffers().first().cloned().unwrap_or_default();
            all.push(Source::Fixed(values.slice_with_length(start, len)));
        }
    }
}

fn add_offsets<T: arrow_array::types::ByteArrayType>(array: &arrow_array::GenericByteArray<T>, all: &mut Vec<Source>) {
    let (offsets, values) = (array.offsets().inner().inner().clone(), array.values().clone());
    all.push(match size_of::<T::Offset>() {
        4 => Source::Offsets32(offsets, values),
        _ => Source::Offsets64(offsets, values),
    });
    all.push(Source::Data);
}

fn views<T: arrow_array::types::ByteViewType>(array: &arrow_array::GenericByteViewArray<T>) -> Source {
    let (views, buffers) = (array.views().inner().clone(), array.data_buffers().to_vec());
    Source::Views(Views { views, buffers, nulls: array.nulls().cloned() })
}
