//! Blocks of strangers: any bytes are an error or a valid batch.

use crate::block::{BlockReader, HEADER_BYTES};
use crate::partition::By;
use crate::testing::{Task, arena, batch, direct_types, rng, schema, staged_types};
use arrow_array::Array;
use arrow_schema::DataType;
use transfer_client::BatchError;
use transfer_memory::arena::Arena;
use transfer_memory::view::Bytes;

/// The types of each block that is mutated.
fn types() -> Vec<Vec<DataType>> {
    let (direct, staged) = (direct_types(), staged_types());
    let pick = |of: &[DataType], names: &[&str]| {
        names
            .iter()
            .map(|name| of.iter().find(|t| t.to_string().starts_with(name)).unwrap().clone())
            .collect::<Vec<_>>()
    };
    let mut types = vec![
        pick(&direct, &["Int16", "Boolean", "Utf8"]),
        pick(&direct, &["Utf8View", "LargeBinary"]),
        pick(&direct, &["Struct", "FixedSizeList", "Null"]),
        pick(&direct, &["Decimal128", "FixedSizeBinary"]),
    ];
    types.extend(staged.into_iter().map(|data_type| vec![data_type]));
    types
}

/// A schema's message and a block of it, of a partition of a random task.
fn example(arena: &Arena, types: &[DataType]) -> (Vec<u8>, Vec<u8>) {
    let (schema, mut rng) = (schema(types), rng(20));
    let mut writer = Task::new(arena, &schema, 2, 0, 1 << 20);
    writer.write(&batch(&mut rng, &schema, 0, 30), By::RoundRobin);
    let message = writer.scatter.schema_message().to_vec();
    let (_, mut finished) = writer.finish();
    let block = finished.partitions[1].remove(0);
    let block = block.frozen();
    (message, block.as_bytes().to_vec())
}

fn bytes(arena: &Arena, bytes: &[u8]) -> Bytes {
    let mut block = arena.allocate(bytes.len().max(1) as u64).unwrap();
    block.as_bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    block.freeze().slice(0..bytes.len()).unwrap()
}

/// The form of a fuzz target: the length of the schema's message, the message, the block.
fn packed((message, block): &(Vec<u8>, Vec<u8>)) -> Vec<u8> {
    [&(message.len() as u32).to_le_bytes()[..], message, block].concat()
}

// Promise: false-blocks, seen to fail
#[test]
fn fuzz_exchange_blocks() {
    let arena = arena(8);
    let examples: Vec<_> = types().iter().map(|types| packed(&example(&arena, types))).collect();
    let target = transfer_fuzz::Target::new("exchange-blocks", examples);
    target.max_len(8192).bound(4 << 20).run(|input| {
        let Some((len, rest)) = input.split_first_chunk::<4>() else { return "too short".into() };
        let (message, block) = rest.split_at((u32::from_le_bytes(*len) as usize).min(rest.len()));
        let reader = match BlockReader::new(message) {
            Ok(reader) => reader,
            Err(e) => return format!("schema: {e}"),
        };
        match reader.decode(&bytes(&arena, block)) {
            Ok(decoded) => {
                let batch = decoded.batch();
                assert_eq!((batch.schema_ref(), decoded.row_numbers().len()), (reader.schema(), batch.num_rows()));
                let numbers: Vec<u64> = decoded.row_numbers().collect();
                assert!(numbers.is_sorted_by(|a, b| a < b));
                // Everything that passed the checks is valid for Arrow, and can be read.
                batch.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
                let _ = format!("{batch:?}").len();
                "a batch".into()
            }
            Err(e) => e.to_string(),
        }
    });
}

/// Each number of the header, and each length and offset that follows from it.
// Promise: false-blocks, seen to fail
#[test]
fn wrong_headers_are_refused() {
    let arena = arena(8);
    let (message, block) = example(&arena, &[DataType::Int16]);
    let reader = BlockReader::new(&message).unwrap();
    let decode = |block: &[u8]| reader.decode(&bytes(&arena, block)).map(|decoded| decoded.batch().num_rows());
    assert_eq!(decode(&block), Ok(15));
    let with = |at: usize, number: u64| {
        let mut wrong = block.clone();
        wrong[at..at + 8].copy_from_slice(&number.to_le_bytes());
        decode(&wrong).unwrap_err()
    };
    let said = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
    assert!(matches!(with(0, said(0) ^ 1 << 56), BatchError::Metadata { what: "the start of a block", .. }));
    for at in [8, 16, 32, 40] {
        for wrong in [0, said(at) - 1, said(at) + 1, block.len() as u64, u64::MAX, 1 << 63, u64::MAX / 4 + 1] {
            if wrong != said(at) {
                with(at, wrong);
            }
        }
    }
    assert!(matches!(with(24, u64::MAX), BatchError::Metadata { what: "a row number of a block", .. }));
    assert!(matches!(with(16, 14), BatchError::Metadata { what: "the number of rows of a block", .. }));
    // Row numbers: the first, and one that does not ascend.
    let numbers = said(32) as usize;
    assert_eq!(u32::from_le_bytes(block[numbers..numbers + 4].try_into().unwrap()), 0);
    for at in [numbers, numbers + 8] {
        let mut wrong = block.clone();
        wrong[at] = 1;
        let e = decode(&wrong).unwrap_err();
        assert!(matches!(e, BatchError::Metadata { what: "a row number of a block", .. }), "{e}");
    }
    let mut wrong = block.clone();
    wrong[16] = 16;
    wrong[numbers + 60..numbers + 64].copy_from_slice(&99_u32.to_le_bytes());
    let e = decode(&wrong).unwrap_err();
    assert!(matches!(e, BatchError::Metadata { what: "the number of rows of a block", found: 15, .. }), "{e}");
    for len in [0, 7, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, block.len() / 2, block.len() - 64] {
        assert!(decode(&block[..len]).is_err(), "{len}");
    }
    assert!(decode(&[&block[..], &[0; 64]].concat()).is_err(), "more than the body");
    assert!(matches!(BlockReader::new(&[]), Err(BatchError::Cut { missing: "a schema" })));
    assert!(BlockReader::new(&message[..message.len() - 8]).is_err());
}

#[test]
fn blocks_of_other_schemas_are_refused() {
    let arena = arena(8);
    let (message, _) = example(&arena, &[DataType::Int64, DataType::Utf8]);
    let (_, other) = example(&arena, &[DataType::Int16]);
    assert!(BlockReader::new(&message).unwrap().decode(&bytes(&arena, &other)).is_err());
}
