//! Arrays, made of a message's description of a batch: the length of each, its number of nulls, and its buffers.
//!
//! Lengths and ranges are checked here. Arrow checks the contents of the buffers: offsets, keys, type ids, runs, UTF-8,
//! numbers of nulls.

use super::BatchError;
use super::schema::dictionary_id;
use crate::gathered::Body;
use arrow_array::{Array, ArrayRef, StructArray, UnionArray, make_array, new_empty_array};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow_data::{ArrayData, ArrayDataBuilder};
use arrow_ipc::RecordBatch;
use arrow_schema::{ArrowError, DataType, Field, Fields, UnionMode};
use std::collections::HashMap;

/// The longest array. Arrow multiplies lengths of arrays.
const MAX_ROWS: usize = 1 << 40;

/// The longest array that may have less than one byte per value. Code that visits each of its values, or its nulls,
/// pays for the announced length, although no bytes were sent for it.
const MAX_ROWS_UNSENT: usize = i32::MAX as usize;

/// The arrays of one batch, in the order in which its message lists their parts.
pub(super) struct Arrays<'a> {
    pub(super) rows: usize,
    nodes: Box<dyn Iterator<Item = (i64, i64)> + 'a>,
    buffers: Box<dyn Iterator<Item = (i64, i64)> + 'a>,
    /// The number of buffers, besides the views, of each array of views.
    variadic: Box<dyn Iterator<Item = i64> + 'a>,
    body: &'a Body,
    /// The start of the batch's own body within the whole body.
    start: u64,
    len: u64,
    dictionaries: &'a HashMap<i64, ArrayRef>,
}

impl<'a> Arrays<'a> {
    pub(super) fn new(
        batch: &RecordBatch<'a>,
        body: &'a Body,
        (start, len): (u64, u64),
        dictionaries: &'a HashMap<i64, ArrayRef>,
    ) -> Result<Arrays<'a>, BatchError> {
        if batch.compression().is_some() {
            return Err(BatchError::Metadata { what: "the compression", found: 1, expected: "none" });
        }
        let (nodes, buffers) = (batch.nodes(), batch.buffers());
        Ok(Arrays {
            rows: length("the number of rows", batch.length())?,
            nodes: Box::new(nodes.into_iter().flatten().map(|node| (node.length(), node.null_count()))),
            buffers: Box::new(buffers.into_iter().flatten().map(|buffer| (buffer.offset(), buffer.length()))),
            variadic: Box::new(batch.variadicBufferCounts().into_iter().flatten()),
            body,
            start,
            len,
            dictionaries,
        })
    }

    /// Checks that the message lists nothing else.
    pub(super) fn end(&mut self) -> Result<(), BatchError> {
        let left = self.nodes.next().is_some() || self.buffers.next().is_some() || self.variadic.next().is_some();
        match left {
            false => Ok(()),
            true => {
                let what = "what a message lists besides its arrays";
                Err(BatchError::Metadata { what, found: 1, expected: "nothing" })
            }
        }
    }

    /// The next array.
    pub(super) fn array(&mut self, field: &Field) -> Result<ArrayRef, BatchError> {
        Ok(make_array(self.data(field)?))
    }

    fn data(&mut self, field: &Field) -> Result<ArrayData, BatchError> {
        let data_type = field.data_type();
        let (len, null_count) = self.nodes.next().ok_or(BatchError::Cut { missing: "the length of an array" })?;
        let len = length("the length of an array", len)?;
        let is_sent = match data_type {
            DataType::Null
            | DataType::RunEndEncoded(..)
            | DataType::FixedSizeBinary(0)
            | DataType::FixedSizeList(_, 0) => false,
            DataType::Struct(fields) => !fields.is_empty(),
            _ => true,
        };
        if !is_sent && len > MAX_ROWS_UNSENT {
            let what = "the length of an array without values";
            return Err(BatchError::Metadata { what, found: len as i64, expected: "at most 2^31 - 1" });
        }
        let nulls = match data_type {
            DataType::Null | DataType::Union(..) | DataType::RunEndEncoded(..) => None,
            _ => self.nulls(data_type, len, null_count)?,
        };
        let made = ArrayData::builder(data_type.clone()).len(len).nulls(nulls.clone());
        let made = match data_type {
            DataType::Null => made,
            DataType::Boolean => made.add_buffer(self.exactly(data_type, Some(len.div_ceil(8)))?),
            DataType::FixedSizeBinary(width) => made.add_buffer(self.values(data_type, len, *width as usize)?),
            DataType::Utf8 | DataType::Binary => {
                made.add_buffer(self.offsets(data_type, len, 4)?).add_buffer(self.buffer()?)
            }
            DataType::LargeUtf8 | DataType::LargeBinary => {
                made.add_buffer(self.offsets(data_type, len, 8)?).add_buffer(self.buffer()?)
            }
            DataType::Utf8View | DataType::BinaryView => self.views(made, data_type, len)?,
            DataType::List(f) | DataType::Map(f, _) => {
                made.add_buffer(self.offsets(data_type, len, 4)?).add_child_data(self.data(f)?)
            }
            DataType::LargeList(f) => made.add_buffer(self.offsets(data_type, len, 8)?).add_child_data(self.data(f)?),
            DataType::ListView(f) => self.list_view(made, data_type, len, 4, f)?,
            DataType::LargeListView(f) => self.list_view(made, data_type, len, 8, f)?,
            DataType::FixedSizeList(f, _) => made.add_child_data(self.data(f)?),
            DataType::Struct(fields) => return self.structure(fields, len, nulls),
            DataType::RunEndEncoded(ends, values) => {
                made.add_child_data(self.data(ends)?).add_child_data(self.data(values)?)
            }
            DataType::Union(..) => return self.union(data_type, len),
            DataType::Dictionary(key, value) => {
                let width = key.primitive_width().unwrap_or(0);
                let keys = self.values(data_type, len, width)?;
                let values = dictionary_id(field).and_then(|id| self.dictionaries.get(&id));
                // Dictionary values that no key refers to need not be sent.
                let values = values.map_or_else(|| new_empty_array(value), ArrayRef::clone);
                made.add_buffer(keys).add_child_data(values.to_data())
            }
            primitive => {
                let width = primitive.primitive_width().ok_or_else(|| BatchError::BadType {
                    field: field.name().clone(),
                    data_type: primitive.to_string(),
                    expected: "this version knows no such type",
                })?;
                made.add_buffer(self.values(data_type, len, width)?)
            }
        };
        made.build().map_err(lie)
    }

    /// The validity bitmap, if there are nulls. It is listed for every array, and empty if nothing is null.
    fn nulls(&mut self, data_type: &DataType, len: usize, null_count: i64) -> Result<Option<NullBuffer>, BatchError> {
        let bitmap = self.buffer()?;
        if null_count == 0 {
            return Ok(None);
        }
        let bitmap = cut(data_type, bitmap, Some(len.div_ceil(8)))?;
        let nulls = NullBuffer::new(BooleanBuffer::new(bitmap, 0, len));
        match nulls.null_count() as i64 == null_count {
            true => Ok(Some(nulls)),
            false => {
                let what = "the number of nulls of an array";
                Err(BatchError::Metadata { what, found: null_count, expected: "what its bitmap says" })
            }
        }
    }

    fn views(
        &mut self,
        made: ArrayDataBuilder,
        data_type: &DataType,
        len: usize,
    ) -> Result<ArrayDataBuilder, BatchError> {
        let count = self.variadic.next().ok_or(BatchError::Cut { missing: "the number of an array's buffers" })?;
        let mut made = made.add_buffer(self.values(data_type, len, 16)?);
        // Stops at the last buffer, whatever the announced number is.
        for _ in 0..length("the number of an array's buffers", count)? {
            made = made.add_buffer(self.buffer()?);
        }
        Ok(made)
    }

    fn list_view(
        &mut self,
        made: ArrayDataBuilder,
        data_type: &DataType,
        len: usize,
        width: usize,
        field: &Field,
    ) -> Result<ArrayDataBuilder, BatchError> {
        let (offsets, sizes) = (self.values(data_type, len, width)?, self.values(data_type, len, width)?);
        Ok(made.add_buffer(offsets).add_buffer(sizes).add_child_data(self.data(field)?))
    }

    /// Makes a struct. Arrow looks for nulls below a non-nullable field, in the values of a dictionary for instance,
    /// only if a struct is made of typed parts; otherwise it assumes that there are none.
    fn structure(&mut self, fields: &Fields, len: usize, nulls: Option<NullBuffer>) -> Result<ArrayData, BatchError> {
        let columns = fields.iter().map(|f| self.array(f)).collect::<Result<Vec<_>, _>>()?;
        let made = StructArray::try_new_with_length(fields.clone(), columns, nulls, len);
        Ok(made.map_err(lie)?.into_data())
    }

    /// Makes a union. Arrow checks its type ids and offsets only if it is made of typed parts.
    fn union(&mut self, data_type: &DataType, len: usize) -> Result<ArrayData, BatchError> {
        let DataType::Union(fields, mode) = data_type else { return Err(BatchError::Cut { missing: "a union" }) };
        let type_ids = ScalarBuffer::<i8>::new(self.values(data_type, len, 1)?, 0, len);
        let offsets = match mode {
            UnionMode::Sparse => None,
            UnionMode::Dense => {
                let offsets = aligned(data_type, self.values(data_type, len, 4)?, 4)?;
                Some(ScalarBuffer::<i32>::new(offsets, 0, len))
            }
        };
        let children = fields.iter().map(|(_, field)| self.array(field)).collect::<Result<Vec<_>, _>>()?;
        let union = UnionArray::try_new(fields.clone(), type_ids, offsets, children).map_err(lie)?;
        Ok(union.into_data())
    }

    /// `len` values of `width` bytes.
    fn values(&mut self, data_type: &DataType, len: usize, width: usize) -> Result<Buffer, BatchError> {
        self.exactly(data_type, len.checked_mul(width))
    }

    /// One more offset than there are elements; none if there are no elements.
    fn offsets(&mut self, data_type: &DataType, len: usize, width: usize) -> Result<Buffer, BatchError> {
        let buffer = self.buffer()?;
        match len == 0 && buffer.is_empty() {
            true => Ok(buffer),
            false => cut(data_type, buffer, (len + 1).checked_mul(width)),
        }
    }

    fn exactly(&mut self, data_type: &DataType, needed: Option<usize>) -> Result<Buffer, BatchError> {
        let buffer = self.buffer()?;
        cut(data_type, buffer, needed)
    }

    /// The next buffer, within the batch's own body.
    fn buffer(&mut self) -> Result<Buffer, BatchError> {
        let (offset, len) = self.buffers.next().ok_or(BatchError::Cut { missing: "a buffer" })?;
        let within = u64::try_from(offset).ok().zip(u64::try_from(len).ok());
        let within = within.filter(|(offset, len)| offset.checked_add(*len).is_some_and(|end| end <= self.len));
        let (at, bytes) = within.ok_or(BatchError::OutOfBody { offset, len, body_len: self.len })?;
        Ok(self.body.buffer(self.start + at, bytes)?)
    }
}

fn length(what: &'static str, len: i64) -> Result<usize, BatchError> {
    let found = usize::try_from(len).ok().filter(|len| *len <= MAX_ROWS);
    found.ok_or(BatchError::Metadata { what, found: len, expected: "from 0 to 2^40" })
}

fn cut(data_type: &DataType, buffer: Buffer, needed: Option<usize>) -> Result<Buffer, BatchError> {
    match needed.filter(|needed| *needed <= buffer.len()) {
        Some(needed) => Ok(buffer.slice_with_length(0, needed)),
        None => Err(BatchError::TooShort {
            data_type: data_type.to_string(),
            needed_bytes: needed.map_or(u64::MAX, |n| n as u64),
            found_bytes: buffer.len() as u64,
        }),
    }
}

fn aligned(data_type: &DataType, buffer: Buffer, to: usize) -> Result<Buffer, BatchError> {
    match buffer.as_ptr().addr().is_multiple_of(to) {
        true => Ok(buffer),
        false => Err(lie(ArrowError::InvalidArgumentError(format!("misaligned buffer of {data_type}")))),
    }
}

fn lie(e: ArrowError) -> BatchError {
    BatchError::arrow("an array is not what the metadata says")(e)
}
