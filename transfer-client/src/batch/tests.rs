//! Decoding of valid and invalid batches. End-to-end tests cover all kinds of valid batches.

use super::encode::{Encoded, Encoder};
use super::messages::{Decoded, Decoder};
use super::{ALIGNMENT, BatchError, MAX_DEPTH};
use crate::gathered::Body;
use crate::gathered::OutOfBody;
use arrow_array::builder::{Int32Builder, ListBuilder, StringViewBuilder};
use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::*;
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Fields, Schema, UnionFields};
use std::sync::Arc;
use transfer_core::memory::SegmentId;
use transfer_memory::arena::Arena;
use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};
use transfer_memory::view::Bytes;

const ARENA: u64 = 1 << 20;

fn arena() -> Arena {
    let options = SegmentOptions { len: ARENA, pages: Pages::Base, lock: Lock::No };
    let segment = Segment::create("arena", &options, &PinnedBudget::new(ARENA)).unwrap();
    Arena::new(SegmentId(1), segment.mapping().clone()).unwrap()
}

fn bytes(arena: &Arena, bytes: &[u8]) -> Bytes {
    let mut block = arena.allocate(bytes.len() as u64).unwrap();
    block.as_bytes_mut().copy_from_slice(bytes);
    block.freeze()
}

/// The body, as it lands at another node.
fn landed(encoded: &Encoded) -> Vec<u8> {
    let mut body = Vec::new();
    for buffer in &encoded.buffers {
        body.extend_from_slice(buffer);
        body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
    }
    body
}

fn encode(batches: &[RecordBatch]) -> Encoded {
    Encoder::new(batches[0].schema_ref()).unwrap().encode(batches).unwrap()
}

fn decode(arena: &Arena, metadata: &[u8], body: &[u8]) -> Result<Decoded, BatchError> {
    Decoder::default().decode(&Body::of(metadata.to_vec(), [bytes(arena, body)]))
}

/// One batch for every way in which arrays are read.
fn examples() -> Vec<Vec<RecordBatch>> {
    let batch = |columns: Vec<(&str, ArrayRef)>| {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap()
    };
    let ints = || Arc::new(Int32Array::from(vec![Some(1), None, Some(3)])) as ArrayRef;
    let words = |n: usize| StringArray::from_iter_values((0..n).map(|w| format!("word {w}")));
    let mut views = StringViewBuilder::new();
    ["short", "a text that is longer than a view", ""].into_iter().for_each(|text| views.append_value(text));
    let mut lists = ListBuilder::new(Int32Builder::new());
    lists.append_value([Some(1), None]);
    lists.append_null();
    lists.append_value([Some(2)]);
    let dictionary = |n: usize| {
        let keys = Int8Array::from(vec![Some(0), None, Some(1)]);
        Arc::new(DictionaryArray::<Int8Type>::try_new(keys, Arc::new(words(n))).unwrap()) as ArrayRef
    };
    let variants =
        UnionFields::try_new([0, 1], [Field::new("a", DataType::Int32, true), Field::new("b", DataType::Utf8, true)])
            .unwrap();
    let dense = UnionArray::try_new(
        variants,
        ScalarBuffer::from(vec![0_i8, 1, 0]),
        Some(ScalarBuffer::from(vec![0, 0, 1])),
        vec![Arc::new(Int32Array::from(vec![1, 2])), Arc::new(words(1))],
    )
    .unwrap();
    let runs = RunArray::<Int32Type>::try_new(&Int32Array::from(vec![2, 3]), &words(2)).unwrap();
    let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(
        vec![Some(vec![Some(1), Some(2)]), None, Some(vec![Some(3), None])],
        2,
    );
    let entries =
        Fields::from(vec![Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Int32, true)]);
    let map = MapArray::new(
        Arc::new(Field::new("entries", DataType::Struct(entries.clone()), false)),
        OffsetBuffer::from_lengths([1, 0, 2]),
        StructArray::new(entries, vec![Arc::new(words(3)), ints()], None),
        None,
        false,
    );
    let list_view = ListViewArray::new(
        Arc::new(Field::new("item", DataType::Int32, true)),
        ScalarBuffer::from(vec![1, 0, 2]),
        ScalarBuffer::from(vec![2, 3, 0]),
        ints(),
        None,
    );
    let structure = StructArray::from(vec![(Arc::new(Field::new("i", DataType::Int32, true)), ints())]);
    let decimal = Decimal128Array::from(vec![1, 2, 3]).with_precision_and_scale(20, 2).unwrap();
    let none = RecordBatch::try_new_with_options(
        Arc::new(Schema::empty()),
        vec![],
        &RecordBatchOptions::new().with_row_count(Some(7)),
    )
    .unwrap();
    vec![
        vec![batch(vec![("ints", ints()), ("bools", Arc::new(BooleanArray::from(vec![true, false, true])))])],
        vec![batch(vec![("words", Arc::new(words(3))), ("views", Arc::new(views.finish()))])],
        vec![batch(vec![
            ("lists", Arc::new(lists.finish())),
            ("views", Arc::new(list_view)),
            ("fixed", Arc::new(fixed)),
        ])],
        vec![batch(vec![("dictionary", dictionary(3))]), batch(vec![("dictionary", dictionary(5))])],
        vec![batch(vec![("dense", Arc::new(dense)), ("runs", Arc::new(runs))])],
        vec![batch(vec![("map", Arc::new(map)), ("struct", Arc::new(structure)), ("decimal", Arc::new(decimal))])],
        vec![batch(vec![("nulls", Arc::new(NullArray::new(3)))])],
        vec![none],
    ]
}

#[test]
fn encoded_batches_are_decoded_without_a_copy() {
    let arena = arena();
    for batches in examples() {
        let encoded = encode(&batches);
        let body = landed(&encoded);
        assert_eq!((body.len(), body.len() % ALIGNMENT), (encoded.body_len(), 0));
        let decoded = decode(&arena, &encoded.metadata, &body).unwrap();
        assert_eq!((&decoded.batches, decoded.ended), (&batches, false));
        // In many ranges, as on one node.
        let ranges = encoded.buffers.iter().map(|buffer| {
            let mut padded = buffer.to_vec();
            padded.resize(padded.len().next_multiple_of(ALIGNMENT), 0);
            bytes(&arena, &padded)
        });
        let decoded = Decoder::default().decode(&Body::of(encoded.metadata.clone(), ranges)).unwrap();
        assert_eq!(decoded.batches, batches);
        if let Some(data) =
            decoded.batches[0].columns().first().map(|c| c.to_data()).filter(|d| !d.buffers().is_empty())
        {
            assert!(arena.mapping().offset_of(data.buffers()[0].as_ptr()).is_some(), "it was copied");
        }
    }
}

/// The sent bytes are Arrow's own stream, with the bodies behind the metadata.
#[test]
fn metadata_and_bodies_together_are_an_arrow_ipc_stream() {
    for batches in examples() {
        let encoded = encode(&batches);
        let (mut stream, mut rest, body, mut at) = (Vec::new(), &encoded.metadata[..], landed(&encoded), 0);
        while !rest.is_empty() {
            let len = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
            let (message, after) = rest.split_at(8 + len);
            let body_len = arrow_ipc::root_as_message(&message[8..]).unwrap().bodyLength() as usize;
            stream.extend_from_slice(message);
            stream.extend_from_slice(&body[at..at + body_len]);
            (rest, at) = (after, at + body_len);
        }
        let read = arrow_ipc::reader::StreamReader::try_new(&stream[..], None).unwrap();
        assert_eq!(read.collect::<Result<Vec<_>, _>>().unwrap(), batches);
    }
}

/// A valid push in the form of a fuzz target: the length of the metadata, the metadata, the body.
fn packed(encoded: &Encoded) -> Vec<u8> {
    [&(encoded.metadata.len() as u32).to_le_bytes()[..], &encoded.metadata, &landed(encoded)].concat()
}

// Promise: false-metadata, seen to fail
#[test]
fn fuzz_record_batches() {
    let arena = arena();
    let target =
        transfer_fuzz::Target::new("record-batches", examples().iter().map(|batches| packed(&encode(batches))));
    target.max_len(8192).bound(4 << 20).rounds(10_000).run(|input| {
        let Some((len, rest)) = input.split_first_chunk::<4>() else { return "too short".into() };
        let (metadata, body) = rest.split_at((u32::from_le_bytes(*len) as usize).min(rest.len()));
        match decode(&arena, metadata, body) {
            Ok(decoded) => {
                for batch in &decoded.batches {
                    // Everything that passed the checks is valid for Arrow, and can be read.
                    batch.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
                    let _ = format!("{batch:?}").len();
                }
                format!("{} batches", decoded.batches.len())
            }
            Err(e) => e.to_string(),
        }
    });
}

/// Lengths and numbers of nulls, or offsets and lengths.
type Pairs = Vec<(i64, i64)>;

/// A batch message with changed parts.
fn forged(change: impl FnOnce(&mut Pairs, &mut Pairs, &mut i64)) -> (Vec<u8>, Vec<u8>) {
    let batch = RecordBatch::try_from_iter([("n", Arc::new(Int32Array::from(vec![1, 2, 3])) as ArrayRef)]).unwrap();
    let encoded = encode(&[batch]);
    let (mut nodes, mut buffers, mut body_len) = (vec![(3, 0)], vec![(0, 0), (0, 12)], 64);
    change(&mut nodes, &mut buffers, &mut body_len);
    let mut fbb = flatbuffers::FlatBufferBuilder::new();
    let nodes: Vec<_> = nodes.iter().map(|(len, nulls)| arrow_ipc::FieldNode::new(*len, *nulls)).collect();
    let buffers: Vec<_> = buffers.iter().map(|(offset, len)| arrow_ipc::Buffer::new(*offset, *len)).collect();
    let (nodes, buffers) = (fbb.create_vector(&nodes), fbb.create_vector(&buffers));
    let mut batch = arrow_ipc::RecordBatchBuilder::new(&mut fbb);
    batch.add_length(3);
    batch.add_nodes(nodes);
    batch.add_buffers(buffers);
    let header = batch.finish().as_union_value();
    let mut message = arrow_ipc::MessageBuilder::new(&mut fbb);
    message.add_version(arrow_ipc::MetadataVersion::V5);
    message.add_header_type(arrow_ipc::MessageHeader::RecordBatch);
    message.add_bodyLength(body_len);
    message.add_header(header);
    let root = message.finish();
    fbb.finish(root, None);
    let schema_len = 8 + u32::from_le_bytes(encoded.metadata[4..8].try_into().unwrap()) as usize;
    let message = fbb.finished_data();
    let len = message.len().next_multiple_of(8);
    let mut metadata = [&encoded.metadata[..schema_len], &[0xff; 4], &(len as u32).to_le_bytes(), message].concat();
    metadata.resize(schema_len + 8 + len, 0);
    (metadata, landed(&encoded))
}

// Promise: false-metadata, seen to fail
#[test]
fn false_metadata_is_an_error() {
    let arena = arena();
    let refused = |change: fn(&mut Pairs, &mut Pairs, &mut i64)| {
        let (metadata, body) = forged(change);
        decode(&arena, &metadata, &body).unwrap_err()
    };
    let (metadata, body) = forged(|_, _, _| ());
    assert_eq!(decode(&arena, &metadata, &body).unwrap().batches[0].num_rows(), 3);
    // Ranges.
    for out in [(64, 12), (-1, 12), (0, -1), (0, 65), (i64::MAX, i64::MAX), (1 << 40, 12)] {
        let (metadata, body) = forged(|_, buffers, _| buffers[1] = out);
        assert!(matches!(decode(&arena, &metadata, &body), Err(BatchError::OutOfBody { .. })), "{out:?}");
    }
    assert!(matches!(
        refused(|_, b, _| b[1] = (0, 11)),
        BatchError::TooShort { needed_bytes: 12, found_bytes: 11, .. }
    ));
    let misaligned = refused(|_, b, _| b[1] = (1, 12));
    assert!(misaligned.to_string().contains("Misaligned"), "{misaligned}");
    // Lengths.
    assert!(matches!(refused(|n, _, _| n[0] = (-1, 0)), BatchError::Metadata { found: -1, .. }));
    assert!(matches!(refused(|n, _, _| n[0] = (i64::MAX, 0)), BatchError::Metadata { .. }));
    assert!(matches!(refused(|n, _, _| n[0] = (1 << 39, 0)), BatchError::TooShort { .. }));
    assert!(matches!(refused(|n, _, _| n[0] = (2, 0)), BatchError::Arrow { .. }), "fewer than the batch has rows");
    // Nulls.
    assert!(matches!(refused(|n, _, _| n[0] = (3, 1)), BatchError::TooShort { .. }), "nulls without a bitmap");
    assert!(matches!(refused(|n, b, _| (n[0], b[0]) = ((3, 1), (0, 1))), BatchError::Metadata { found: 1, .. }));
    assert!(matches!(refused(|n, b, _| (n[0], b[0]) = ((3, -1), (0, 1))), BatchError::Metadata { found: -1, .. }));
    // Too few, and too many.
    assert!(matches!(refused(|n, _, _| n.clear()), BatchError::Cut { .. }));
    assert!(matches!(refused(|_, b, _| b.truncate(1)), BatchError::Cut { .. }));
    assert!(matches!(refused(|n, _, _| n.push((0, 0))), BatchError::Metadata { .. }));
    assert!(matches!(refused(|_, b, _| b.push((0, 0))), BatchError::Metadata { .. }));
    // The body.
    for wrong in [-64, 0, 65, 128, i64::MIN] {
        let (metadata, body) = forged(|_, _, len| *len = wrong);
        assert!(decode(&arena, &metadata, &body).is_err(), "{wrong}");
    }
    // Messages.
    let (metadata, body) = forged(|_, _, _| ());
    for cut in [0, 7, 8, 100, metadata.len() - 1] {
        assert!(decode(&arena, &metadata[..cut], &body).is_err(), "{cut}");
    }
    let schema_len = 8 + u32::from_le_bytes(metadata[4..8].try_into().unwrap()) as usize;
    assert!(matches!(decode(&arena, &metadata[schema_len..], &body), Err(BatchError::Cut { missing: "a schema" })));
    assert!(matches!(decode(&arena, &[&metadata[..], &[0; 3]].concat(), &body), Err(BatchError::Metadata { .. })));
}

/// Nulls in non-nullable fields, in places where Arrow's own conversions would panic or not check.
// Promise: false-metadata, seen to fail
#[test]
fn schema_with_false_nullability_is_an_error() {
    let arena = arena();
    let values = || Arc::new(StringArray::from(vec![Some("a"), None])) as ArrayRef;
    let dictionary = || DictionaryArray::<Int8Type>::try_new(Int8Array::from(vec![0, 1]), values()).unwrap();
    let runs = || RunArray::<Int32Type>::try_new(&Int32Array::from(vec![1, 2]), &values()).unwrap();
    for column in [values(), Arc::new(dictionary()), Arc::new(runs())] {
        let of = |nullable| {
            let field = Arc::new(Field::new("f", column.data_type().clone(), nullable));
            let structure = DataType::Struct(vec![field.clone()].into());
            let list = DataType::List(Arc::new(Field::new("item", structure.clone(), true)));
            (field, [structure, list])
        };
        let (field, _) = of(true);
        let inner: ArrayRef = Arc::new(StructArray::from(vec![(field, column.clone())]));
        let item = Arc::new(Field::new("item", inner.data_type().clone(), true));
        let list: ArrayRef = Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([2]), inner.clone(), None));
        for (array, n) in [(inner, 0), (list, 1)] {
            let right = RecordBatch::try_from_iter_with_nullable([("c", array, true)]).unwrap();
            let schema = Schema::new(vec![Field::new("c", of(false).1[n].clone(), true)]);
            let (right, lies) = (encode(&[right]), Encoder::new(&Arc::new(schema)).unwrap().encode([]).unwrap());
            let schema_len = 8 + u32::from_le_bytes(right.metadata[4..8].try_into().unwrap()) as usize;
            let metadata = [&lies.metadata[..], &right.metadata[schema_len..]].concat();
            assert!(decode(&arena, &right.metadata, &landed(&right)).is_ok());
            let e = decode(&arena, &metadata, &landed(&right)).unwrap_err();
            assert!(matches!(e, BatchError::Arrow { .. }), "{e}");
        }
    }
}

#[test]
fn invalid_and_too_deeply_nested_types_are_errors() {
    let schema = |data_type| Schema::new(vec![Field::new("deep", data_type, true)]);
    let nested =
        |depth: usize| (1..depth).fold(DataType::Int8, |t, _| DataType::List(Arc::new(Field::new("item", t, true))));
    super::schema::check_schema(&schema(nested(MAX_DEPTH))).unwrap();
    let e = super::schema::check_schema(&schema(nested(MAX_DEPTH + 1))).unwrap_err();
    assert!(matches!(e, BatchError::TooDeep { limit: MAX_DEPTH, .. }), "{e}");
    let entries = |key_nulls| {
        let fields = vec![Field::new("k", DataType::Utf8, key_nulls), Field::new("v", DataType::Int8, true)];
        DataType::Map(Arc::new(Field::new("e", DataType::Struct(fields.into()), false)), false)
    };
    super::schema::check_schema(&schema(entries(false))).unwrap();
    let dictionary = |key, value| DataType::Dictionary(Box::new(key), Box::new(value));
    for wrong in [
        DataType::FixedSizeBinary(-1),
        DataType::Decimal128(39, 0),
        DataType::Decimal32(0, 0),
        DataType::Decimal256(1, 100),
        entries(true),
        dictionary(DataType::Utf8, DataType::Utf8),
        dictionary(DataType::Int8, dictionary(DataType::Int8, DataType::Utf8)),
    ] {
        let e = super::schema::check_schema(&schema(wrong)).unwrap_err();
        assert!(matches!(e, BatchError::BadType { .. }) && e.to_string().contains("deep"), "{e}");
    }
    // The greatest depth still passes the verifier of flatbuffers.
    let batch = RecordBatch::new_empty(Arc::new(schema(nested(MAX_DEPTH))));
    let encoded = encode(std::slice::from_ref(&batch));
    let decoded = decode(&arena(), &encoded.metadata, &landed(&encoded)).unwrap();
    assert_eq!(decoded.batches, [batch]);
}

#[test]
fn empty_buffers_are_aligned_for_every_type() {
    let body = Body::of(Vec::new(), []);
    let empty: Buffer = body.buffer(0, 0).unwrap();
    assert!(empty.is_empty() && empty.as_ptr().addr().is_multiple_of(ALIGNMENT));
    assert!(matches!(body.buffer(1, 0), Err(OutOfBody { .. })));
    assert!(matches!(body.buffer(0, 1), Err(OutOfBody { .. })));
}
