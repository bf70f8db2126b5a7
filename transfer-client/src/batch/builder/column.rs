//! Columns that are being written.

use super::room::{Bits, Room};
use crate::error::{BatchError, Error};
use crate::session::Session;
use arrow_array::builder::make_view;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow_buffer::{Buffer, ToByteSlice};
use arrow_data::ArrayData;
use arrow_schema::{DataType, FieldRef, UnionMode};
use std::sync::Arc;
use transfer_memory::view::Element;

/// A column and its children. `buffers` contains its values, in the order of Arrow's layout.
#[derive(Debug)]
pub(super) struct Column {
    field: FieldRef,
    len: usize,
    nulls: Option<Bits>,
    /// The values of a boolean column.
    bits: Bits,
    buffers: Vec<Room>,
    children: Vec<Column>,
    dictionary: Option<ArrayRef>,
    /// The end of the last list of a list-view column, in elements of its child.
    closed: usize,
}

impl Column {
    pub(super) fn new(field: &FieldRef, session: &Arc<Session>) -> Result<Column, Error> {
        let children: Vec<FieldRef> = match field.data_type() {
            DataType::List(f)
            | DataType::LargeList(f)
            | DataType::ListView(f)
            | DataType::LargeListView(f)
            | DataType::FixedSizeList(f, _)
            | DataType::Map(f, _) => vec![f.clone()],
            DataType::Struct(fields) => fields.iter().cloned().collect(),
            DataType::Union(fields, _) => fields.iter().map(|(_, f)| f.clone()).collect(),
            DataType::RunEndEncoded(ends, values) => vec![ends.clone(), values.clone()],
            _ => Vec::new(),
        };
        let children = children.iter().map(|f| Column::new(f, session)).collect::<Result<Vec<_>, _>>()?;
        let layout = arrow_data::layout(field.data_type());
        let mut buffers: Vec<Room> = layout.buffers.iter().map(|_| Room::default()).collect();
        if layout.variadic {
            buffers.push(Room::default());
        }
        let nulls = (layout.can_contain_null_mask && field.is_nullable()).then(Bits::default);
        let (field, bits, dictionary) = (field.clone(), Bits::default(), None);
        let mut column = Column { field, len: 0, nulls, bits, buffers, children, dictionary, closed: 0 };
        column.end_offset(session, 0)?;
        Ok(column)
    }

    /// Makes room for `rows` more rows.
    pub(super) fn reserve(&mut self, session: &Session, rows: usize) -> Result<(), Error> {
        if let Some(nulls) = &mut self.nulls {
            nulls.reserve(session, rows)?;
        }
        let width = match self.field.data_type() {
            DataType::Boolean => return self.bits.reserve(session, rows),
            DataType::FixedSizeBinary(width) => *width as usize,
            DataType::Dictionary(key, _) => key.primitive_width().unwrap_or(0),
            data_type => data_type.primitive_width().or(offset_width(data_type)).unwrap_or(0),
        };
        if let Some(values) = self.buffers.first_mut() {
            values.reserve(session, rows.saturating_mul(width))?;
        }
        match self.field.data_type() {
            DataType::Struct(_) => self.children.iter_mut().try_for_each(|child| child.reserve(session, rows)),
            DataType::FixedSizeList(_, size) => {
                let rows = rows.saturating_mul(*size as usize);
                self.children.iter_mut().try_for_each(|child| child.reserve(session, rows))
            }
            _ => Ok(()),
        }
    }

    /// Writes the end of the elements so far, in a column that has offsets.
    fn end_offset(&mut self, session: &Session, end: usize) -> Result<(), Error> {
        let views = matches!(self.field.data_type(), DataType::ListView(_) | DataType::LargeListView(_));
        match (offset_width(self.field.data_type()), self.buffers.first_mut()) {
            (Some(width), Some(offsets)) if !views => self::offset(offsets, session, width, end, &self.field),
            _ => Ok(()),
        }
    }

    fn has_value(&mut self, session: &Session, count: usize) -> Result<(), Error> {
        self.len += count;
        self.nulls.as_mut().map_or(Ok(()), |nulls| nulls.push_ones(session, count))
    }

    fn append_null(&mut self, session: &Session) -> Result<(), Error> {
        match &mut self.nulls {
            Some(nulls) => nulls.push(session, false)?,
            None if *self.field.data_type() == DataType::Null => {}
            None => return Err(self.wrong("one that can be null")),
        }
        self.append_nothing(session)
    }

    /// Appends a row without a value. The children of such a row are never read.
    fn append_nothing(&mut self, session: &Session) -> Result<(), Error> {
        self.len += 1;
        match self.field.data_type().clone() {
            DataType::Boolean => self.bits.push(session, false),
            DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => {
                self.end_offset(session, self.buffers[1].len())
            }
            DataType::Utf8View | DataType::BinaryView => self.buffers[0].zeros(session, 16),
            DataType::List(_) | DataType::LargeList(_) | DataType::Map(..) => {
                self.end_offset(session, self.children[0].len)
            }
            DataType::ListView(_) | DataType::LargeListView(_) => {
                let width = offset_width(self.field.data_type()).unwrap_or(0);
                self.buffers.iter_mut().try_for_each(|buffer| buffer.zeros(session, width))
            }
            DataType::FixedSizeList(_, size) => {
                let child = &mut self.children[0];
                (0..size).try_for_each(|_| child.append_below_null(session))
            }
            DataType::Struct(_) => self.children.iter_mut().try_for_each(|child| child.append_below_null(session)),
            DataType::FixedSizeBinary(width) => self.buffers[0].zeros(session, width as usize),
            DataType::Dictionary(key, _) => self.buffers[0].zeros(session, key.primitive_width().unwrap_or(0)),
            other => match (other.primitive_width(), self.buffers.first_mut()) {
                (Some(width), Some(values)) => values.zeros(session, width),
                _ => Ok(()),
            },
        }
    }

    /// Appends a value below a null. The child must have an element there, which need not be null itself.
    fn append_below_null(&mut self, session: &Session) -> Result<(), Error> {
        match (self.nulls.is_some(), self.field.data_type()) {
            (false, DataType::Union(..) | DataType::RunEndEncoded(..)) => {
                Err(self.wrong("what can be null below a null"))
            }
            (true, _) => self.append_null(session),
            (false, _) => self.append_nothing(session),
        }
    }

    fn wrong(&self, used_as: &str) -> Error {
        let (column, found) = (self.field.name().clone(), self.field.to_string());
        BatchError::WrongColumn { column, found, used_as: used_as.to_owned() }.into()
    }

    pub(super) fn finish(self) -> Result<ArrayData, BatchError> {
        let Column { field, len, nulls, bits, buffers, children, dictionary, .. } = self;
        let children = children.into_iter().map(Column::finish).collect::<Result<Vec<_>, _>>()?;
        let made = ArrayData::builder(field.data_type().clone()).len(len).child_data(children);
        let made = made.nulls(nulls.and_then(Bits::finish_nulls));
        let mut buffers: Vec<Buffer> = match field.data_type() {
            DataType::Boolean => vec![bits.finish().into_inner()],
            _ => buffers.into_iter().map(Room::finish).collect(),
        };
        if matches!(field.data_type(), DataType::Utf8View | DataType::BinaryView) && buffers[1].is_empty() {
            buffers.truncate(1);
        }
        let made = match field.data_type() {
            DataType::Dictionary(_, value) => {
                let values = dictionary.unwrap_or_else(|| arrow_array::new_empty_array(value));
                made.child_data(vec![values.to_data()])
            }
            _ => made,
        };
        made.buffers(buffers).build().map_err(BatchError::arrow("a column cannot be built"))
    }
}

/// The width of the offsets or views of a column of strings, bytes, or lists.
fn offset_width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Utf8 | DataType::Binary | DataType::List(_) | DataType::Map(..) | DataType::ListView(_) => Some(4),
        DataType::LargeUtf8 | DataType::LargeBinary | DataType::LargeList(_) | DataType::LargeListView(_) => Some(8),
        _ => None,
    }
}

fn offset(room: &mut Room, session: &Session, width: usize, value: usize, field: &FieldRef) -> Result<(), Error> {
    let limit = if width == 4 { i32::MAX as usize } else { i64::MAX as usize };
    if value > limit {
        let (column, found) = (field.name().clone(), field.to_string());
        let used_as = format!("room for {value} bytes or elements, which needs a large type");
        return Err(BatchError::WrongColumn { column, found, used_as }.into());
    }
    room.extend(session, &(value as u64).to_le_bytes()[..width])
}

/// A writable column of a [`BatchBuilder`](super::BatchBuilder): value by value, slice by slice, or in place.
#[derive(Debug)]
pub struct ColumnMut<'a> {
    column: &'a mut Column,
    session: &'a Arc<Session>,
}

impl<'a> ColumnMut<'a> {
    pub(super) fn new(column: &'a mut Column, session: &'a Arc<Session>) -> ColumnMut<'a> {
        ColumnMut { column, session }
    }

    /// The number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.column.len
    }

    /// Whether it has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.column.len == 0
    }

    /// Appends a number, a time or a decimal; in a dictionary column, a key.
    ///
    /// # Errors
    /// [`Error::Batch`] if the column has another type; [`Error::ArenaFull`], [`Error::TooLargeForArena`].
    pub fn append<T: ArrowPrimitiveType>(&mut self, value: T::Native) -> Result<(), Error> {
        self.append_slice::<T>(&[value])
    }

    /// Appends many values; see [`ColumnMut::append`].
    ///
    /// # Errors
    /// Those of [`ColumnMut::append`].
    pub fn append_slice<T: ArrowPrimitiveType>(&mut self, values: &[T::Native]) -> Result<(), Error> {
        let data_type = match self.column.field.data_type() {
            DataType::Dictionary(key, _) => key,
            other => other,
        };
        if !PrimitiveArray::<T>::is_compatible(data_type) {
            return Err(self.column.wrong(&T::DATA_TYPE.to_string()));
        }
        self.column.buffers[0].extend(self.session, values.to_byte_slice())?;
        self.column.has_value(self.session, values.len())
    }

    /// Appends `count` numbers and returns them to be written in place. They contain left-over values.
    ///
    /// # Errors
    /// Those of [`ColumnMut::append`]; also if `T` is not as wide as the column's values.
    pub fn values_mut<T: Element>(&mut self, count: usize) -> Result<&mut [T], Error> {
        if self.column.field.data_type().primitive_width() != Some(size_of::<T>()) || size_of::<T>() > 8 {
            return Err(self.column.wrong(&format!("values of type {}", T::DTYPE)));
        }
        self.column.has_value(self.session, count)?;
        self.column.buffers[0].next_elements(self.session, count)
    }

    /// Appends a boolean.
    ///
    /// # Errors
    /// Those of [`ColumnMut::append`].
    pub fn append_bool(&mut self, value: bool) -> Result<(), Error> {
        if *self.column.field.data_type() != DataType::Boolean {
            return Err(self.column.wrong("Boolean"));
        }
        self.column.bits.push(self.session, value)?;
        self.column.has_value(self.session, 1)
    }

    /// Appends a string to a column of strings of any width, or of views.
    ///
    /// # Errors
    /// Those of [`ColumnMut::append`].
    pub fn append_str(&mut self, value: &str) -> Result<(), Error> {
        match self.column.field.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => self.append_any(value.as_bytes()),
            _ => Err(self.column.wrong("strings")),
        }
    }

    /// Appends bytes to a column of bytes of any width, of views, or of a fixed size.
    ///
    /// # Errors
    /// Those of [`ColumnMut::append`].
    pub fn append_bytes(&mut self, value: &[u8]) -> Result<(), Error> {
        match self.column.field.data_type() {
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => self.append_any(value),
            DataType::FixedSizeBinary(width) if *width as usize == value.len() => {
                self.column.buffers[0].extend(self.session, value)?;
                self.column.has_value(self.session, 1)
            }
            _ => Err(self.column.wrong(&format!("{} bytes", value.len()))),
        }
    }

    fn append_any(&mut self, value: &[u8]) -> Result<(), Error> {
        let column = &mut *self.column;
        let at = column.buffers[1].len();
        let views = matches!(column.field.data_type(), DataType::Utf8View | DataType::BinaryView);
        if views {
            let offset = match u32::try_from(at + value.len()) {
                Ok(end) if end <= i32::MAX as u32 => at as u32,
                _ => return Err(column.wrong("room for more than 2 GiB")),
            };
            column.buffers[0].extend(self.session, &make_view(value, 0, offset).to_le_bytes())?;
        }
        if !views || value.len() > 12 {
            column.buffers[1].extend(self.session, value)?;
        }
        column.end_offset(self.session, column.buffers[1].len())?;
        column.has_value(self.session, 1)
    }

    /// Appends a null.
    ///
    /// # Errors
    /// Those of [`ColumnMut::append`]; also if the column is not nullable.
    pub fn append_null(&mut self) -> Result<(), Error> {
        self.column.append_null(self.session)
    }

    /// The child column: the elements of a list, the entries of a map, the fields of a struct. Write there first, and
    /// then [close](ColumnMut::close).
    ///
    /// # Errors
    /// [`Error::Batch`] if there is none.
    pub fn child(&mut self, at: usize) -> Result<ColumnMut<'_>, Error> {
        match at < self.column.children.len() {
            true => Ok(ColumnMut { column: &mut self.column.children[at], session: self.session }),
            false => Err(self.column.wrong(&format!("one with {} columns below", at + 1))),
        }
    }

    /// Ends a list, map, or struct. It contains the elements that were appended to its children since the previous end.
    ///
    /// # Errors
    /// Those of [`ColumnMut::append`].
    pub fn close(&mut self) -> Result<(), Error> {
        let column = &mut *self.column;
        match column.field.data_type() {
            DataType::List(_) | DataType::LargeList(_) | DataType::Map(..) => {
                column.end_offset(self.session, column.children[0].len)?;
            }
            DataType::ListView(_) | DataType::LargeListView(_) => {
                let width = offset_width(column.field.data_type()).unwrap_or(0);
                let (end, start) = (column.children[0].len, column.closed);
                column.closed = end;
                offset(&mut column.buffers[0], self.session, width, start, &column.field)?;
                offset(&mut column.buffers[1], self.session, width, end - start, &column.field)?;
            }
            DataType::FixedSizeList(..) | DataType::Struct(_) => {}
            _ => return Err(column.wrong("a list, a map or a struct")),
        }
        column.has_value(self.session, 1)
    }

    /// The column of that variant of a union. Append exactly one value to it.
    ///
    /// # Errors
    /// Those of [`ColumnMut::append`].
    pub fn variant(&mut self, type_id: i8) -> Result<ColumnMut<'_>, Error> {
        let column = &mut *self.column;
        let DataType::Union(fields, mode) = column.field.data_type() else { return Err(column.wrong("a union")) };
        let Some(at) = fields.iter().position(|(id, _)| id == type_id) else {
            return Err(column.wrong(&format!("a union with a variant {type_id}")));
        };
        let mode = *mode;
        column.buffers[0].extend(self.session, &type_id.to_le_bytes())?;
        match mode {
            UnionMode::Dense => {
                let start = column.children[at].len;
                offset(&mut column.buffers[1], self.session, 4, start, &column.field)?;
            }
            UnionMode::Sparse => {
                let mut others = column.children.iter_mut().enumerate().filter(|(n, _)| *n != at);
                others.try_for_each(|(_, child)| child.append_below_null(self.session))?;
            }
        }
        column.len += 1;
        Ok(ColumnMut { column: &mut column.children[at], session: self.session })
    }

    /// The values column of a run-end encoded column. Append exactly one value to it; the value stands for the next
    /// `rows` rows.
    ///
    /// # Errors
    /// Those of [`ColumnMut::append`].
    pub fn run(&mut self, rows: usize) -> Result<ColumnMut<'_>, Error> {
        let column = &mut *self.column;
        let DataType::RunEndEncoded(ends, _) = column.field.data_type() else { return Err(column.wrong("runs")) };
        let (width, end) = (ends.data_type().primitive_width().unwrap_or(0), column.len.saturating_add(rows));
        if rows == 0 || end as u64 > i64::MAX as u64 >> (64 - 8 * width) {
            return Err(column.wrong(&format!("a run of {rows} rows behind {}", column.len)));
        }
        column.children[0].buffers[0].extend(self.session, &(end as u64).to_le_bytes()[..width])?;
        column.children[0].len += 1;
        column.len = end;
        Ok(ColumnMut { column: &mut column.children[1], session: self.session })
    }

    /// Sets the values of a dictionary. Values outside of the arena are copied when the batch is pushed.
    ///
    /// # Errors
    /// [`Error::Batch`] if the column has no such dictionary.
    pub fn dictionary(&mut self, values: ArrayRef) -> Result<(), Error> {
        match self.column.field.data_type() {
            DataType::Dictionary(_, value) if value.as_ref() == values.data_type() => {
                self.column.dictionary = Some(values);
                Ok(())
            }
            _ => Err(self.column.wrong(&format!("one with a dictionary of {}", values.data_type()))),
        }
    }
}
