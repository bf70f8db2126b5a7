//! Random record batches: every layout of Arrow's format, nested, with nulls, sliced, of any length.

use arrow_array::builder::{BinaryViewBuilder, StringViewBuilder};
use arrow_array::types::{Int16Type, Int32Type, Int64Type, RunEndIndexType};
use arrow_array::*;
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, FieldRef, Fields, IntervalUnit, Schema, TimeUnit, UnionFields, UnionMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// The depth to which types nest.
pub const DEPTH: u32 = 8;

/// A source of random schemas, arrays and batches.
#[derive(Debug)]
pub struct Chance(SmallRng);

impl Chance {
    /// Creates a source that yields the same values for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Chance {
        Chance(SmallRng::seed_from_u64(seed))
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n.max(1))
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.0.random_ratio(1, n)
    }

    /// Returns a random schema, and batches of it.
    pub fn table(&mut self, batches: usize) -> (Arc<Schema>, Vec<RecordBatch>) {
        let columns = self.below(6);
        let fields: Vec<_> = (0..columns).map(|n| self.field(&format!("c{n}"), DEPTH)).collect();
        let metadata = [("made".to_owned(), "by chance".to_owned())];
        let schema = Arc::new(
            Schema::new(fields).with_metadata(metadata.into_iter().collect::<std::collections::HashMap<_, _>>()),
        );
        let batches = (0..batches).map(|_| self.batch(&schema)).collect();
        (schema, batches)
    }

    /// Returns a batch of the given schema, with a random number of rows.
    pub fn batch(&mut self, schema: &Arc<Schema>) -> RecordBatch {
        let rows = [0, 1, 7, 64, 200][self.below(5)];
        let columns = schema.fields().iter().map(|field| self.array(field, rows)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options).expect("columns as the schema says")
    }

    fn field(&mut self, name: &str, depth: u32) -> Field {
        let data_type = self.data_type(depth);
        // Values below these types may be null, although the types have no nulls of their own.
        let has_nulls = matches!(data_type, DataType::Null | DataType::Union(..) | DataType::RunEndEncoded(..));
        let nullable = self.one_in(2) || has_nulls;
        Field::new(name, data_type, nullable)
    }

    fn data_type(&mut self, depth: u32) -> DataType {
        use DataType as D;
        let flat = [
            D::Null,
            D::Boolean,
            D::Int8,
            D::UInt8,
            D::Int16,
            D::UInt16,
            D::Int32,
            D::UInt32,
            D::Int64,
            D::UInt64,
            D::Float16,
            D::Float32,
            D::Float64,
            D::Timestamp(TimeUnit::Nanosecond, Some("+02:00".into())),
            D::Timestamp(TimeUnit::Second, None),
            D::Date32,
            D::Date64,
            D::Time32(TimeUnit::Millisecond),
            D::Time64(TimeUnit::Microsecond),
            D::Duration(TimeUnit::Second),
            D::Interval(IntervalUnit::YearMonth),
            D::Interval(IntervalUnit::DayTime),
            D::Interval(IntervalUnit::MonthDayNano),
            D::Decimal32(9, 2),
            D::Decimal64(18, -3),
            D::Decimal128(38, 5),
            D::Decimal256(76, 0),
            D::Utf8,
            D::LargeUtf8,
            D::Utf8View,
            D::Binary,
            D::LargeBinary,
            D::BinaryView,
            D::FixedSizeBinary(3),
            D::FixedSizeBinary(0),
        ];
        if depth <= 1 || self.one_in(3) {
            return flat[self.below(flat.len())].clone();
        }
        let item = |me: &mut Chance| Arc::new(me.field("item", depth - 1));
        match self.below(12) {
            0 => D::List(item(self)),
            1 => D::LargeList(item(self)),
            2 => D::ListView(item(self)),
            3 => D::LargeListView(item(self)),
            4 => D::FixedSizeList(item(self), [0, 1, 3][self.below(3)]),
            5 => D::Struct((0..self.below(4)).map(|n| self.field(&format!("f{n}"), depth - 1)).collect()),
            6 => {
                let value = Field::new("values", self.data_type(depth - 1), true);
                let entries = Fields::from(vec![Field::new("keys", D::Utf8, false), value]);
                D::Map(Arc::new(Field::new("entries", D::Struct(entries), false)), false)
            }
            7 | 8 => {
                let mode = if self.one_in(2) { UnionMode::Dense } else { UnionMode::Sparse };
                let fields =
                    (0..1 + self.below(3)).map(|n| (3 * n as i8, Arc::new(self.field(&format!("v{n}"), depth - 1))));
                D::Union(UnionFields::from_iter(fields.collect::<Vec<_>>()), mode)
            }
            9 | 10 => {
                let keys = [D::Int8, D::UInt16, D::Int32, D::Int64];
                let values = [D::Utf8, D::Int64, D::Utf8View, D::LargeBinary];
                D::Dictionary(Box::new(keys[self.below(4)].clone()), Box::new(values[self.below(4)].clone()))
            }
            _ => {
                let ends = [D::Int16, D::Int32, D::Int64][self.below(3)].clone();
                // arrow-ipc 60.1 miscounts the buffers of views below run-end encoded arrays without runs.
                let has_views = |t: &D| ["Utf8View", "BinaryView"].iter().any(|view| t.to_string().contains(view));
                let value = Some(self.data_type(depth - 1)).filter(|t| !has_views(t)).unwrap_or(D::Int16);
                D::RunEndEncoded(
                    Arc::new(Field::new("run_ends", ends, false)),
                    Arc::new(Field::new("values", value, true)),
                )
            }
        }
    }

    /// Returns an array of the given field, which may be a slice of a longer one.
    pub fn array(&mut self, field: &Field, len: usize) -> ArrayRef {
        let (before, behind) = if self.one_in(2) { (self.below(20), self.below(9)) } else { (0, 0) };
        let all = before + len + behind;
        self.whole(field, all).slice(before, len)
    }

    fn nulls(&mut self, field: &Field, len: usize) -> Option<NullBuffer> {
        let some = field.is_nullable() && !self.one_in(4);
        some.then(|| NullBuffer::new(self.bits(len)))
    }

    fn bits(&mut self, len: usize) -> BooleanBuffer {
        // The bits need not begin at a byte boundary.
        let shift = self.below(10);
        let bytes: Vec<u8> = (0..(len + shift).div_ceil(8)).map(|_| self.0.random()).collect();
        BooleanBuffer::new(Buffer::from(bytes), shift, len)
    }

    fn lengths(&mut self, len: usize) -> (Vec<usize>, usize) {
        let lengths: Vec<usize> = (0..len).map(|_| self.below(5)).collect();
        let total = lengths.iter().sum();
        (lengths, total)
    }

    fn text(&mut self) -> String {
        let letters = ["a", "b", "é", "漢", " "];
        (0..self.below(20)).map(|_| letters[self.below(5)]).collect()
    }

    /// Returns an array of the given field that is not a slice.
    fn whole(&mut self, field: &Field, len: usize) -> ArrayRef {
        let data_type = field.data_type();
        let made = ArrayData::builder(data_type.clone()).len(len);
        let nulls = match data_type {
            DataType::Null | DataType::Union(..) | DataType::RunEndEncoded(..) => None,
            _ => self.nulls(field, len),
        };
        let made = made.nulls(nulls.clone());
        let made = match data_type {
            DataType::Null => made,
            DataType::Boolean => return Arc::new(BooleanArray::new(self.bits(len), nulls)),
            DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => {
                let texts: Vec<String> = (0..len).map(|_| self.text()).collect();
                let lengths = texts.iter().map(String::len);
                let values = Buffer::from(texts.concat().into_bytes());
                let offsets = match data_type {
                    DataType::Utf8 | DataType::Binary => {
                        OffsetBuffer::<i32>::from_lengths(lengths).into_inner().into_inner()
                    }
                    _ => OffsetBuffer::<i64>::from_lengths(lengths).into_inner().into_inner(),
                };
                made.add_buffer(offsets).add_buffer(values)
            }
            DataType::Utf8View => {
                let mut builder = StringViewBuilder::new().with_fixed_block_size(64);
                (0..len).for_each(|at| match nulls.as_ref().is_some_and(|nulls| nulls.is_null(at)) {
                    true => builder.append_null(),
                    false => builder.append_value(self.text()),
                });
                return Arc::new(builder.finish());
            }
            DataType::BinaryView => {
                let mut builder = BinaryViewBuilder::new().with_fixed_block_size(64);
                (0..len).for_each(|at| match nulls.as_ref().is_some_and(|nulls| nulls.is_null(at)) {
                    true => builder.append_null(),
                    false => builder.append_value(self.text()),
                });
                return Arc::new(builder.finish());
            }
            DataType::FixedSizeBinary(width) => made.add_buffer(self.noise(len * *width as usize)),
            DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => {
                let (lengths, total) = self.lengths(len);
                let offsets = match data_type {
                    DataType::LargeList(_) => OffsetBuffer::<i64>::from_lengths(lengths).into_inner().into_inner(),
                    _ => OffsetBuffer::<i32>::from_lengths(lengths).into_inner().into_inner(),
                };
                made.add_buffer(offsets).add_child_data(self.array(item, total).to_data())
            }
            DataType::ListView(item) | DataType::LargeListView(item) => {
                let total = 30;
                // The views are in no order, and overlap.
                let (mut offsets, mut sizes) = (Vec::new(), Vec::new());
                for _ in 0..len {
                    let at = self.below(total);
                    offsets.push(at as i64);
                    sizes.push(self.below(total - at) as i64);
                }
                let buffer = |numbers: Vec<i64>| match data_type {
                    DataType::ListView(_) => Buffer::from_vec(numbers.into_iter().map(|n| n as i32).collect()),
                    _ => Buffer::from_vec(numbers),
                };
                made.add_buffer(buffer(offsets))
                    .add_buffer(buffer(sizes))
                    .add_child_data(self.array(item, total).to_data())
            }
            DataType::FixedSizeList(item, size) => {
                made.add_child_data(self.array(item, len * *size as usize).to_data())
            }
            DataType::Struct(fields) => {
                let columns = fields.iter().map(|field| self.array(field, len)).collect::<Vec<_>>();
                return match columns.is_empty() {
                    true => Arc::new(StructArray::new_empty_fields(len, nulls)),
                    false => Arc::new(StructArray::new(fields.clone(), columns, nulls)),
                };
            }
            DataType::Union(fields, mode) => return self.union(fields, *mode, len),
            DataType::Dictionary(key, value) => {
                let values = 1 + self.below(9);
                let child = self.array(&Field::new("values", value.as_ref().clone(), field.is_nullable()), values);
                let width = key.primitive_width().expect("an integer");
                let keys: Vec<u8> =
                    (0..len).flat_map(|_| (self.below(values) as u64).to_le_bytes().into_iter().take(width)).collect();
                made.add_buffer(buffer(&keys)).add_child_data(child.to_data())
            }
            DataType::RunEndEncoded(ends, values) => return self.runs(ends, values, len),
            DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
                let width = data_type.primitive_width().expect("a decimal");
                let value = |n: i32| [n.to_le_bytes().to_vec(), vec![if n < 0 { 0xff } else { 0 }; width - 4]].concat();
                let values: Vec<u8> = (0..len).flat_map(|_| value(self.0.random_range(-999..999))).collect();
                made.add_buffer(buffer(&values))
            }
            other => made.add_buffer(self.noise(len * other.primitive_width().expect("a number"))),
        };
        make_array(made.build().unwrap_or_else(|e| panic!("{data_type}: {e}")))
    }

    fn noise(&mut self, len: usize) -> Buffer {
        let bytes: Vec<u8> = (0..len).map(|_| self.0.random()).collect();
        buffer(&bytes)
    }

    fn union(&mut self, fields: &UnionFields, mode: UnionMode, len: usize) -> ArrayRef {
        let ids: Vec<i8> = fields.iter().map(|(id, _)| id).collect();
        let type_ids: Vec<i8> = (0..len).map(|_| ids[self.below(ids.len())]).collect();
        let mut counts = vec![0_usize; ids.len()];
        let mut offsets = Vec::new();
        for id in &type_ids {
            let at = ids.iter().position(|i| i == id).expect("one of them");
            offsets.push(counts[at] as i32);
            counts[at] += 1;
        }
        let (offsets, lengths) = match mode {
            UnionMode::Dense => (Some(ScalarBuffer::from(offsets)), counts),
            UnionMode::Sparse => (None, vec![len; ids.len()]),
        };
        let children = fields.iter().zip(lengths).map(|((_, field), len)| self.array(field, len)).collect();
        Arc::new(UnionArray::try_new(fields.clone(), type_ids.into(), offsets, children).expect("a union"))
    }

    fn runs(&mut self, ends: &FieldRef, values: &FieldRef, len: usize) -> ArrayRef {
        let (mut all, mut at) = (Vec::new(), 0);
        while at < len {
            at = (at + 1 + self.below(5)).min(len);
            all.push(at as i64);
        }
        let values = self.array(values, all.len());
        fn made<T: RunEndIndexType>(ends: Vec<T::Native>, values: &dyn Array) -> ArrayRef {
            let ends = PrimitiveArray::<T>::from_iter_values(ends);
            Arc::new(RunArray::<T>::try_new(&ends, values).expect("runs"))
        }
        match ends.data_type() {
            DataType::Int16 => made::<Int16Type>(all.into_iter().map(|n| n as i16).collect(), &values),
            DataType::Int32 => made::<Int32Type>(all.into_iter().map(|n| n as i32).collect(), &values),
            _ => made::<Int64Type>(all, &values),
        }
    }
}

/// Returns bytes at an address that is aligned for numbers of any width.
fn buffer(bytes: &[u8]) -> Buffer {
    let mut buffer = MutableBuffer::new(bytes.len());
    buffer.extend_from_slice(bytes);
    buffer.into()
}
