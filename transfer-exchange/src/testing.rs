//! What the tests of the exchange share: an arena without a sidecar, tensors in it, and random batches of any type.

use crate::block::BlockReader;
use crate::partition::By;
use crate::scatter::{Finished, Scatter};
use arrow_array::builder::{BinaryViewBuilder, StringViewBuilder};
use arrow_array::*;
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Fields, IntervalUnit, Schema, SchemaRef, TimeUnit, UnionFields, UnionMode};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::num::NonZeroU32;
use std::sync::Arc;
use transfer_client::TensorMut;
use transfer_core::memory::SegmentId;
use transfer_memory::arena::Arena;
use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

pub(super) fn rng(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}

pub(super) fn arena(mib: u64) -> Arena {
    let len = mib << 20;
    let options = SegmentOptions { len, pages: Pages::Base, lock: Lock::No };
    let segment = Segment::create("arena", &options, &PinnedBudget::new(len)).unwrap();
    Arena::new(SegmentId(1), segment.mapping().clone()).unwrap()
}

/// A tensor of bytes that are left over from another one.
pub(super) fn tensor(arena: &Arena, len: u64) -> TensorMut {
    let mut tensor = TensorMut::of_block(arena.allocate(len).unwrap()).unwrap();
    tensor.as_mut_bytes().fill(0xa5);
    tensor
}

/// A task of an arena.
pub(super) struct Task {
    pub(super) arena: Arena,
    pub(super) scatter: Scatter,
}

impl Task {
    pub(super) fn new(arena: &Arena, schema: &SchemaRef, partitions: u32, task: u32, largest_block: usize) -> Task {
        let scatter = Scatter::new(schema, NonZeroU32::new(partitions).unwrap(), task, largest_block).unwrap();
        Task { arena: arena.clone(), scatter }
    }

    pub(super) fn write(&mut self, batch: &RecordBatch, by: By<'_>) {
        let placement = self.scatter.prepare(batch, &by).unwrap();
        let blocks = placement.sizes().iter().map(|size| tensor(&self.arena, *size)).collect();
        self.scatter.place(placement, blocks);
    }

    pub(super) fn finish(mut self) -> (BlockReader, Finished) {
        let reader = BlockReader::new(self.scatter.schema_message()).unwrap();
        let placement = self.scatter.prepare_rest().unwrap();
        let blocks = placement.sizes().iter().map(|size| tensor(&self.arena, *size)).collect();
        self.scatter.place(placement, blocks);
        (reader, self.scatter.finish())
    }
}

fn field(name: &str, data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new(name, data_type, true))
}

/// Types whose rows are copied straight into blocks.
pub(super) fn direct_types() -> Vec<DataType> {
    let mut types = vec![
        DataType::Null,
        DataType::Boolean,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Timestamp(TimeUnit::Second, None),
        DataType::Timestamp(TimeUnit::Nanosecond, Some("+02:00".into())),
        DataType::Date32,
        DataType::Date64,
        DataType::Time32(TimeUnit::Millisecond),
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Duration(TimeUnit::Microsecond),
        DataType::Interval(IntervalUnit::YearMonth),
        DataType::Interval(IntervalUnit::DayTime),
        DataType::Interval(IntervalUnit::MonthDayNano),
        DataType::Decimal32(9, 2),
        DataType::Decimal64(18, 2),
        DataType::Decimal128(38, 10),
        DataType::Decimal256(76, 10),
        DataType::FixedSizeBinary(5),
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::Utf8View,
        DataType::BinaryView,
    ];
    types.push(DataType::FixedSizeList(field("item", DataType::Float32), 3));
    types.push(DataType::FixedSizeList(field("item", DataType::Boolean), 5));
    let point =
        Fields::from(vec![field("x", DataType::Int64), field("name", DataType::Utf8), field("b", DataType::Boolean)]);
    types.push(DataType::Struct(point));
    let pair = DataType::Struct(Fields::from(vec![field("x", DataType::Int16), field("y", DataType::Boolean)]));
    types.push(DataType::FixedSizeList(field("item", pair), 2));
    types
}

/// Types that Arrow's kernels take apart.
pub(super) fn staged_types() -> Vec<DataType> {
    let dictionary = |key: DataType, value: DataType| DataType::Dictionary(Box::new(key), Box::new(value));
    let variants = UnionFields::try_new([0, 3], [field("a", DataType::Int32), field("b", DataType::Utf8)]).unwrap();
    let entry =
        Fields::from(vec![Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Int32, true)]);
    let ends = Arc::new(Field::new("run_ends", DataType::Int32, false));
    vec![
        DataType::List(field("item", DataType::Int64)),
        DataType::LargeList(field("item", DataType::Utf8View)),
        DataType::List(field("item", DataType::List(field("item", DataType::Boolean)))),
        DataType::ListView(field("item", DataType::Utf8)),
        DataType::LargeListView(field("item", DataType::Int8)),
        DataType::FixedSizeList(field("item", DataType::Utf8), 2),
        DataType::FixedSizeList(field("item", DataType::Int8), 0),
        DataType::FixedSizeBinary(0),
        DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entry), false)), false),
        DataType::Union(variants.clone(), UnionMode::Dense),
        DataType::Union(variants, UnionMode::Sparse),
        dictionary(DataType::Int8, DataType::Utf8),
        dictionary(DataType::UInt16, DataType::Utf8View),
        DataType::List(field("item", dictionary(DataType::Int32, DataType::Utf8))),
        DataType::Struct(Fields::from(vec![field("d", dictionary(DataType::Int16, DataType::Int64))])),
        DataType::RunEndEncoded(ends, field("values", DataType::Utf8)),
    ]
}

fn text(rng: &mut SmallRng) -> String {
    let len = if rng.random_ratio(1, 8) { rng.random_range(20..90) } else { rng.random_range(0..15) };
    (0..len).map(|_| if rng.random_ratio(1, 10) { 'ü' } else { char::from(rng.random_range(b'a'..=b'z')) }).collect()
}

fn lengths(rng: &mut SmallRng, len: usize) -> Vec<usize> {
    (0..len).map(|_| rng.random_range(0..4)).collect()
}

/// Random values of a type. One in four arrays without nulls.
pub(super) fn array(rng: &mut SmallRng, data_type: &DataType, len: usize) -> ArrayRef {
    let has_nulls = rng.random_ratio(3, 4);
    let valid: Vec<bool> = (0..len).map(|_| !has_nulls || rng.random_ratio(4, 5)).collect();
    let nulls = Some(NullBuffer::from(valid.clone()));
    let texts = |rng: &mut SmallRng| valid.iter().map(|valid| valid.then(|| text(rng))).collect::<Vec<_>>();
    let bytes = |rng: &mut SmallRng| {
        texts(rng).into_iter().map(|text| text.map(|text| [text.as_bytes(), &[0xff]].concat())).collect::<Vec<_>>()
    };
    match data_type {
        DataType::Null => Arc::new(NullArray::new(len)),
        DataType::Boolean => {
            Arc::new(BooleanArray::new((0..len).map(|_| rng.random()).collect::<Vec<bool>>().into(), nulls))
        }
        DataType::Utf8 => Arc::new(StringArray::from_iter(texts(rng))),
        DataType::LargeUtf8 => Arc::new(LargeStringArray::from_iter(texts(rng))),
        DataType::Binary => Arc::new(BinaryArray::from_iter(bytes(rng))),
        DataType::LargeBinary => Arc::new(LargeBinaryArray::from_iter(bytes(rng))),
        DataType::Utf8View => {
            let mut builder = StringViewBuilder::new().with_fixed_block_size(64);
            texts(rng).into_iter().for_each(|text| builder.append_option(text));
            Arc::new(builder.finish())
        }
        DataType::BinaryView => {
            let mut builder = BinaryViewBuilder::new().with_fixed_block_size(64);
            bytes(rng).into_iter().for_each(|bytes| builder.append_option(bytes));
            Arc::new(builder.finish())
        }
        DataType::FixedSizeBinary(width) => {
            let values: Vec<u8> = (0..len * *width as usize).map(|_| rng.random()).collect();
            Arc::new(FixedSizeBinaryArray::try_new_with_len(*width, values.into(), nulls, len).unwrap())
        }
        DataType::FixedSizeList(item, size) => {
            let values = array(rng, item.data_type(), len * *size as usize);
            Arc::new(FixedSizeListArray::try_new_with_length(item.clone(), *size, values, nulls, len).unwrap())
        }
        DataType::Struct(fields) => {
            let columns = fields.iter().map(|f| array(rng, f.data_type(), len)).collect();
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, len).unwrap())
        }
        DataType::List(item) => {
            let offsets = OffsetBuffer::<i32>::from_lengths(lengths(rng, len));
            let values = array(rng, item.data_type(), offsets[len] as usize);
            Arc::new(ListArray::new(item.clone(), offsets, values, nulls))
        }
        DataType::LargeList(item) => {
            let offsets = OffsetBuffer::<i64>::from_lengths(lengths(rng, len));
            let values = array(rng, item.data_type(), offsets[len] as usize);
            Arc::new(LargeListArray::new(item.clone(), offsets, values, nulls))
        }
        DataType::ListView(item) => {
            let (starts, lens): (Vec<i32>, Vec<i32>) =
                (0..len).map(|_| (rng.random_range(0..6), rng.random_range(0..4))).unzip();
            let values = array(rng, item.data_type(), 10);
            Arc::new(ListViewArray::new(item.clone(), starts.into(), lens.into(), values, nulls))
        }
        DataType::LargeListView(item) => {
            let (starts, lens): (Vec<i64>, Vec<i64>) =
                (0..len).map(|_| (rng.random_range(0..6), rng.random_range(0..4))).unzip();
            let values = array(rng, item.data_type(), 10);
            Arc::new(LargeListViewArray::new(item.clone(), starts.into(), lens.into(), values, nulls))
        }
        DataType::Map(entries, _) => {
            let offsets = OffsetBuffer::<i32>::from_lengths(lengths(rng, len));
            let DataType::Struct(fields) = entries.data_type() else { panic!("{data_type}") };
            let count = offsets[len] as usize;
            let keys: ArrayRef = Arc::new(StringArray::from_iter_values((0..count).map(|_| text(rng))));
            let values = array(rng, fields[1].data_type(), count);
            let inner = StructArray::try_new_with_length(fields.clone(), vec![keys, values], None, count).unwrap();
            Arc::new(MapArray::new(entries.clone(), offsets, inner, nulls, false))
        }
        DataType::Union(fields, mode) => {
            let ids: Vec<i8> = fields.iter().map(|(id, _)| id).collect();
            let chosen: Vec<usize> = (0..len).map(|_| rng.random_range(0..ids.len())).collect();
            let type_ids = chosen.iter().map(|n| ids[*n]).collect::<Vec<i8>>().into();
            let count = |n: usize| chosen.iter().filter(|chosen| **chosen == n).count();
            let is_dense = *mode == UnionMode::Dense;
            let children = fields.iter().enumerate();
            let children =
                children.map(|(n, (_, f))| array(rng, f.data_type(), if is_dense { count(n) } else { len })).collect();
            let offsets: ScalarBuffer<i32> =
                (0..len).map(|row| chosen[..row].iter().filter(|n| **n == chosen[row]).count() as i32).collect();
            Arc::new(UnionArray::try_new(fields.clone(), type_ids, is_dense.then_some(offsets), children).unwrap())
        }
        DataType::Dictionary(key, value) => {
            let count = rng.random_range(1..60);
            let values = array(rng, value, count);
            let width = key.primitive_width().unwrap();
            let keys: Vec<u8> = (0..len)
                .flat_map(|_| {
                    rng.random_range(0..count as u64).to_le_bytes().into_iter().take(width).collect::<Vec<_>>()
                })
                .collect();
            let data = ArrayData::builder(data_type.clone()).len(len).nulls(nulls).add_buffer(aligned(&keys));
            make_array(data.add_child_data(values.to_data()).build().unwrap())
        }
        DataType::RunEndEncoded(_, values) => {
            let mut ends: Vec<i32> = (1..len as i32).filter(|_| rng.random_ratio(1, 3)).collect();
            ends.extend((len > 0).then_some(len as i32));
            let values = array(rng, values.data_type(), ends.len());
            Arc::new(RunArray::<types::Int32Type>::try_new(&ends.into(), &values).unwrap())
        }
        primitive => {
            // Small numbers, which every decimal has room for, and which are often equal.
            let width = primitive.primitive_width().unwrap();
            let number = |rng: &mut SmallRng| i128::from(rng.random_range(-50..100_i8));
            let extended = |number: i128| [number.to_le_bytes(), [if number < 0 { 0xff } else { 0 }; 16]].concat();
            let values: Vec<u8> = (0..len).flat_map(|_| extended(number(rng))[..width].to_vec()).collect();
            let data = ArrayData::builder(primitive.clone()).len(len).nulls(nulls).add_buffer(aligned(&values));
            make_array(data.build().unwrap())
        }
    }
}

/// A buffer with the alignment of every type.
fn aligned(bytes: &[u8]) -> Buffer {
    let mut buffer = arrow_buffer::MutableBuffer::new(bytes.len());
    buffer.extend_from_slice(bytes);
    buffer.into()
}

/// A schema of these types: the first column is a number that no other row has.
pub(super) fn schema(types: &[DataType]) -> SchemaRef {
    let fields = types.iter().enumerate().map(|(n, data_type)| Field::new(format!("c{n}"), data_type.clone(), true));
    Arc::new(Schema::new([Field::new("id", DataType::UInt64, false)].into_iter().chain(fields).collect::<Vec<_>>()))
}

/// Random rows, whose numbers begin with `first`. Half of the batches are slices of longer ones.
pub(super) fn batch(rng: &mut SmallRng, schema: &SchemaRef, first: u64, rows: usize) -> RecordBatch {
    let (before, after) = if rng.random() { (rng.random_range(0..20), rng.random_range(0..20)) } else { (0, 0) };
    let all = before + rows + after;
    let ids = (0..all as u64).map(|n| (first + n).wrapping_sub(before as u64));
    let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(ids));
    let others = schema.fields().iter().skip(1).map(|f| array(rng, f.data_type(), all));
    let columns = [ids].into_iter().chain(others.collect::<Vec<_>>()).collect();
    RecordBatch::try_new(schema.clone(), columns).unwrap().slice(before, rows)
}
