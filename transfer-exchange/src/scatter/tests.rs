//! Rows that are written to partitions come out of their blocks as they went in.

use super::{Finished, LARGEST_BLOCK_BYTES, Layout, Scatter};
use crate::block::{BlockReader, Decoded};
use crate::error::PartitionError;
use crate::partition::{Bounds, By, RowPosition};
use crate::testing::{Task, arena, batch, direct_types, rng, schema, staged_types};
use arrow_array::cast::AsArray;
use arrow_array::*;
use arrow_schema::{DataType, Field, Schema};
use arrow_select::take::take_record_batch;
use rand::Rng;
use std::sync::Arc;
use transfer_client::BatchError;
use transfer_memory::arena::Arena;

fn decoded(reader: &BlockReader, finished: Finished) -> Vec<Vec<Decoded>> {
    let blocks = finished.partitions.into_iter();
    let decode = |block: super::Block| reader.decode(&block.frozen().clone().into_bytes()).unwrap();
    blocks.map(|blocks| blocks.into_iter().map(decode).collect()).collect()
}

/// Compares the blocks of a task with what was written: the rows of each partition, in the order of writing, with their
/// numbers.
fn check(written: &[(RecordBatch, Vec<u32>)], schema: &Arc<Schema>, partitions: &[Vec<Decoded>]) {
    for (partition, blocks) in (0_u32..).zip(partitions) {
        let mut first = 0_u64;
        let (mut expected, mut numbers) = (Vec::new(), Vec::new());
        for (batch, chosen) in written {
            let rows: Vec<u32> =
                (0..batch.num_rows() as u32).filter(|row| chosen[*row as usize] == partition).collect();
            numbers.extend(rows.iter().map(|row| first + u64::from(*row)));
            first += batch.num_rows() as u64;
            if !rows.is_empty() {
                expected.push(take_record_batch(batch, &UInt32Array::from(rows)).unwrap());
            }
        }
        let found: Vec<u64> = blocks.iter().flat_map(|block| block.row_numbers().collect::<Vec<_>>()).collect();
        assert_eq!(found, numbers, "partition {partition}");
        // A row at a time, because dictionaries of several batches may have no room in one.
        let rows = |batches: Vec<&RecordBatch>| {
            let rows = batches.into_iter().flat_map(|batch| (0..batch.num_rows()).map(|row| batch.slice(row, 1)));
            rows.collect::<Vec<_>>()
        };
        let found = rows(blocks.iter().map(Decoded::batch).collect());
        assert_eq!(found.len(), numbers.len());
        for (found, expected) in found.iter().zip(rows(expected.iter().collect())) {
            assert_eq!(found.schema_ref(), schema);
            assert_eq!(found.columns(), expected.columns(), "partition {partition}");
        }
    }
}

/// Plays a random task of these types.
fn play(arena: &Arena, seed: u64, types: &[DataType]) {
    let mut rng = rng(seed);
    let schema = schema(types);
    let partitions = [1, 2, 7, 64][rng.random_range(0..4)];
    let task = rng.random_range(0..3);
    let mut writer = Task::new(arena, &schema, partitions, task, 1 << rng.random_range(12..16));
    let bounds = (1..partitions).map(u64::from).collect::<Vec<_>>();
    let bounds = Bounds::new(["id"], vec![Arc::new(UInt64Array::from(bounds))]).unwrap();
    let (mut written, mut first_row) = (Vec::new(), 0);
    let mut taken: Vec<Vec<super::Block>> = (0..partitions).map(|_| Vec::new()).collect();
    for _ in 0..rng.random_range(1..6) {
        let rows = [0, 1, 3, 100, 700][rng.random_range(0..5)];
        let batch = batch(&mut rng, &schema, first_row, rows);
        let by = match rng.random_range(0..4) {
            0 => By::Hash(&["id"]),
            1 => By::Range(&bounds),
            2 => By::Random(seed),
            _ => By::RoundRobin,
        };
        let mut chosen = Vec::new();
        by.choose(&batch, RowPosition { partitions, task, first_row }, &mut chosen).unwrap();
        writer.write(&batch, by);
        first_row += rows as u64;
        written.push((batch, chosen));
        // Blocks are taken before the end now and then, and may come back.
        if rng.random_ratio(1, 3) {
            let blocks = writer.scatter.take();
            match rng.random() {
                true => blocks.into_iter().for_each(|(partition, block)| taken[partition].push(block)),
                false => writer.scatter.give_back(blocks),
            }
        }
    }
    let (reader, mut finished) = writer.finish();
    for (taken, blocks) in taken.iter_mut().zip(&mut finished.partitions) {
        taken.append(blocks);
        std::mem::swap(taken, blocks);
    }
    assert_eq!((finished.rows, finished.partitions.len()), (first_row, partitions as usize));
    check(&written, reader.schema(), &decoded(&reader, finished));
}

// Promise: exchange-rows, seen to fail
#[test]
fn rows_of_random_tasks_come_out_as_they_went_in() {
    let arena = arena(64);
    let (direct, staged) = (direct_types(), staged_types());
    let mut rng = rng(1);
    for seed in 0..150 {
        let mut types: Vec<DataType> =
            (0..rng.random_range(0..5)).map(|_| direct[rng.random_range(0..direct.len())].clone()).collect();
        if seed % 3 == 0 {
            types.push(staged[rng.random_range(0..staged.len())].clone());
        }
        play(&arena, seed, &types);
    }
}

// Promise: exchange-rows, seen to fail
#[test]
fn every_type_is_partitioned() {
    let arena = arena(64);
    for (seed, data_type) in (0..).zip(direct_types()) {
        assert!(Layout::new(&schema(std::slice::from_ref(&data_type))).is_some(), "{data_type} is copied twice");
        (0..4).for_each(|n| play(&arena, 1000 + 10 * seed + n, std::slice::from_ref(&data_type)));
    }
    for (seed, data_type) in (0..).zip(staged_types()) {
        assert!(Layout::new(&schema(std::slice::from_ref(&data_type))).is_none(), "{data_type}");
        (0..4).for_each(|n| play(&arena, 5000 + 10 * seed + n, std::slice::from_ref(&data_type)));
    }
}

/// A task of one batch, and its blocks.
fn task(arena: &Arena, batch: &RecordBatch, by: By<'_>, partitions: u32) -> (BlockReader, Finished) {
    let mut writer = Task::new(arena, batch.schema_ref(), partitions, 0, LARGEST_BLOCK_BYTES);
    writer.write(batch, by);
    writer.finish()
}

fn numbers(rows: i64, columns: usize) -> RecordBatch {
    let column = |n| (format!("c{n}"), Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef);
    RecordBatch::try_from_iter((0..columns).map(column)).unwrap()
}

// Promise: exchange-rows, seen to fail
#[test]
fn rows_go_to_4096_partitions() {
    let arena = arena(64);
    let batch = numbers(20_000, 2);
    let mut writer = Task::new(&arena, batch.schema_ref(), 4096, 0, LARGEST_BLOCK_BYTES);
    let mut expected = vec![Vec::new(); 4096];
    for n in 0..3 {
        let mut chosen = Vec::new();
        let place = RowPosition { partitions: 4096, task: 0, first_row: n * 20_000 };
        By::Hash(&["c1"]).choose(&batch, place, &mut chosen).unwrap();
        writer.write(&batch, By::Hash(&["c1"]));
        (0_i64..).zip(chosen).for_each(|(row, partition)| expected[partition as usize].push(row));
    }
    let (reader, finished) = writer.finish();
    let blocks: usize = finished.partitions.iter().map(Vec::len).sum();
    assert!((4000..8192).contains(&blocks), "{blocks} blocks");
    for (decoded, expected) in decoded(&reader, finished).iter().zip(expected) {
        let column = |block: &Decoded| block.batch().column(0).as_primitive::<types::Int64Type>().values().to_vec();
        assert_eq!(decoded.iter().flat_map(column).collect::<Vec<i64>>(), expected);
    }
}

#[test]
fn blocks_double_up_to_the_largest_size_and_are_full() {
    let arena = arena(64);
    let batch = numbers(64, 8);
    let mut writer = Task::new(&arena, batch.schema_ref(), 1, 0, 64 << 10);
    for _ in 0..100 {
        writer.write(&batch, By::RoundRobin);
    }
    let (_, finished) = writer.finish();
    let sizes: Vec<u64> = finished.partitions[0].iter().map(super::Block::len_bytes).collect();
    // 64 rows of 68 bytes fit into 8 KiB with their message.
    for (size, target) in sizes.iter().zip([8, 16, 32, 64, 64, 64, 64]) {
        assert!((target * 800..=target * 1024).contains(size), "{sizes:?}");
    }
    let bytes: u64 = sizes.iter().sum();
    assert!(bytes < 6400 * 68 * 105 / 100, "{bytes} bytes for 6,400 rows of 68");
}

/// The last blocks are cut to what they hold.
// Promise: bytes-of-blocks, seen to fail
#[test]
fn blocks_of_few_rows_are_small() {
    let arena = arena(64);
    for columns in [1, 8] {
        let (_, finished) = task(&arena, &numbers(3 * 64, columns), By::RoundRobin, 64);
        for block in finished.partitions.iter().flatten() {
            assert!(block.len_bytes() <= 1536, "{} bytes for 3 rows", block.len_bytes());
        }
    }
}

// Promise: exchange-rows
#[test]
fn a_row_that_is_larger_than_a_block_has_its_own() {
    let arena = arena(128);
    let large = "x".repeat(3 << 20);
    let texts = ["a", &large, "b", &large, &large, "c"];
    let columns: [ArrayRef; 3] = [
        Arc::new(StringArray::from_iter_values(texts)),
        Arc::new(StringViewArray::from_iter_values(texts)),
        Arc::new(DictionaryArray::<types::Int8Type>::from_iter(texts)),
    ];
    for column in columns {
        let ones: ArrayRef = Arc::new(Int8Array::from(vec![1; 6]));
        let batch = RecordBatch::try_from_iter([("text", column), ("n", ones)]).unwrap();
        let (reader, finished) = task(&arena, &batch, By::RoundRobin, 1);
        let lens: Vec<u64> = finished.partitions[0].iter().map(super::Block::len_bytes).collect();
        assert!(lens.iter().all(|len| *len < 4 << 20), "{lens:?}");
        check(&[(batch.clone(), vec![0; 6])], batch.schema_ref(), &decoded(&reader, finished));
    }
}

#[test]
fn one_long_value_does_not_scatter_the_rows_behind_it() {
    let arena = arena(64);
    let large = "x".repeat(3 << 20);
    let texts = [large.as_str()].into_iter().chain(["short"; 12]);
    let batch =
        RecordBatch::try_from_iter([("t", Arc::new(StringArray::from_iter_values(texts)) as ArrayRef)]).unwrap();
    let (reader, finished) = task(&arena, &batch, By::RoundRobin, 1);
    let decoded = decoded(&reader, finished);
    assert_eq!(decoded[0].iter().map(|block| block.batch().num_rows()).collect::<Vec<_>>(), [1, 12]);
    check(&[(batch.clone(), vec![0; 13])], batch.schema_ref(), &decoded);
}

/// A partition whose strings are longer than those of others still has blocks without much room for nothing.
#[test]
fn blocks_of_long_strings_are_full_too() {
    let arena = arena(64);
    let len = |row: usize| if row.is_multiple_of(4) { 400 } else { 3 };
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..8000).map(|row| "y".repeat(len(row)))));
    let numbers = numbers(8000, 12);
    let names = (0..12).map(|n| format!("c{n}")).zip(numbers.columns().to_vec());
    let batch = RecordBatch::try_from_iter(names.chain([("t".to_owned(), texts)])).unwrap();
    let mut writer = Task::new(&arena, batch.schema_ref(), 4, 0, LARGEST_BLOCK_BYTES);
    for _ in 0..10 {
        writer.write(&batch, By::RoundRobin);
    }
    let (_, finished) = writer.finish();
    for (partition, text) in [(0, 400), (1, 3)] {
        let bytes: u64 = finished.partitions[partition].iter().map(super::Block::len_bytes).sum();
        let needed = 20_000 * (text + 8 + 12 * 8);
        assert!(bytes < needed * 115 / 100, "{bytes} bytes for {needed}, partition {partition}");
        // As many as it takes to double, and one for each further MiB.
        let (found, most) = (finished.partitions[partition].len(), 3 + needed * 105 / 100 / (1 << 20));
        assert!(found as u64 <= most, "{found} blocks for {needed} bytes, at most {most}");
    }
}

/// What a dictionary or a view refers to comes along, and nothing else.
// Promise: bytes-of-blocks, seen to fail
#[test]
fn blocks_have_no_values_of_other_rows() {
    let arena = arena(64);
    let texts: Vec<String> = (0..1000).map(|n| format!("{n:0>100}")).collect();
    let item = Arc::new(Field::new("item", DataType::Utf8View, true));
    let views = || Arc::new(StringViewArray::from_iter_values(&texts));
    let one_each = arrow_buffer::OffsetBuffer::from_lengths([1; 1000]);
    let list_views = ListViewArray::new(item.clone(), (0..1000).collect(), vec![1; 1000].into(), views(), None);
    let columns: [ArrayRef; 4] = [
        views(),
        Arc::new(DictionaryArray::<types::Int32Type>::from_iter(texts.iter().map(String::as_str))),
        Arc::new(ListArray::new(item, one_each, views(), None)),
        Arc::new(list_views),
    ];
    for column in columns {
        let batch = RecordBatch::try_from_iter([("text", column)]).unwrap();
        let (_, finished) = task(&arena, &batch, By::RoundRobin, 100);
        for block in finished.partitions.iter().flatten() {
            assert!(block.len_bytes() < 3000, "{} bytes for 10 rows of {}", block.len_bytes(), batch.schema());
        }
    }
}

/// Dictionaries that together have more values than keys get blocks of their own.
// Promise: exchange-rows, seen to fail
#[test]
fn dictionaries_that_do_not_fit_together_are_kept_apart() {
    let arena = arena(64);
    let batch = |from: usize| {
        let texts: Vec<String> = (from..from + 100).map(|n| n.to_string()).collect();
        let dictionary = DictionaryArray::<types::Int8Type>::from_iter(texts.iter().map(String::as_str));
        RecordBatch::try_from_iter([("d", Arc::new(dictionary) as ArrayRef)]).unwrap()
    };
    let mut writer = Task::new(&arena, batch(0).schema_ref(), 1, 0, LARGEST_BLOCK_BYTES);
    let written: Vec<_> = (0..5).map(|n| (batch(n * 100), vec![0; 100])).collect();
    written.iter().for_each(|(batch, _)| writer.write(batch, By::RoundRobin));
    let (reader, finished) = writer.finish();
    check(&written, reader.schema(), &decoded(&reader, finished));
}

// Promise: bytes-of-blocks, seen to fail
#[test]
fn nothing_of_an_earlier_tensor_is_in_a_block() {
    let arena = arena(64);
    let mut rng = rng(8);
    for data_type in direct_types().into_iter().chain(staged_types()) {
        let schema = schema(std::slice::from_ref(&data_type));
        let (_, finished) = task(&arena, &batch(&mut rng, &schema, 0, 300), By::Random(1), 3);
        for block in finished.partitions.into_iter().flatten() {
            // Random bytes are 0xa5 now and then, but not four times in a row.
            let frozen = block.frozen();
            assert!(!frozen.as_bytes().windows(4).any(|bytes| bytes == [0xa5; 4]), "{data_type}");
        }
    }
}

#[test]
fn arrays_of_blocks_are_views_of_their_memory() {
    let arena = arena(64);
    let mut rng = rng(9);
    for data_type in direct_types().into_iter().chain(staged_types()) {
        let schema = schema(std::slice::from_ref(&data_type));
        let (reader, finished) = task(&arena, &batch(&mut rng, &schema, 0, 50), By::RoundRobin, 1);
        let decoded = decoded(&reader, finished);
        for column in decoded[0].iter().flat_map(|block| block.batch().columns()) {
            let data = column.to_data();
            for buffer in data.buffers().iter().filter(|buffer| !buffer.is_empty()) {
                assert!(arena.mapping().offset_of(buffer.as_ptr()).is_some(), "{data_type} was copied");
            }
        }
        assert!(arena.used_bytes() > 0, "the arrays keep the memory");
        drop(decoded);
        assert_eq!(arena.used_bytes(), 0);
    }
}

#[test]
fn a_placement_that_is_dropped_has_written_nothing() {
    let arena = arena(64);
    for types in [direct_types(), staged_types()] {
        let (schema, mut rng) = (schema(&types[..5]), rng(10));
        let batches: Vec<RecordBatch> = (0..4).map(|n| batch(&mut rng, &schema, n * 500, 500)).collect();
        let mut writer = Task::new(&arena, &schema, 5, 0, 8 << 10);
        for batch in &batches {
            drop(writer.scatter.prepare(batch, &By::RoundRobin).unwrap());
            writer.write(batch, By::RoundRobin);
        }
        drop(writer.scatter.prepare(&batches[0], &By::RoundRobin).unwrap());
        let (reader, finished) = writer.finish();
        let chosen = |n: u32| (0..500).map(|row| (n * 500 + row) % 5).collect();
        let written: Vec<_> = (0_u32..).zip(batches).map(|(n, batch)| (batch, chosen(n))).collect();
        check(&written, reader.schema(), &decoded(&reader, finished));
    }
}

#[test]
fn batches_of_other_schemas_are_refused() {
    let (one, two) = (numbers(1, 1), numbers(1, 2));
    let scatter = Scatter::new(one.schema_ref(), std::num::NonZeroU32::MIN, 0, LARGEST_BLOCK_BYTES).unwrap();
    let e = scatter.prepare(&two, &By::RoundRobin).unwrap_err();
    assert!(matches!(e, PartitionError::Batch(BatchError::OtherSchema { .. })), "{e}");
}

#[test]
fn rows_without_columns_are_partitioned() {
    let arena = arena(64);
    let rows = RecordBatchOptions::new().with_row_count(Some(10));
    let batch = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &rows).unwrap();
    let (reader, finished) = task(&arena, &batch, By::RoundRobin, 3);
    let counts: Vec<usize> = decoded(&reader, finished).iter().map(|blocks| blocks[0].batch().num_rows()).collect();
    assert_eq!(counts, [4, 3, 3]);
}

/// Row numbers whose differences do not fit 32 bits.
#[test]
fn rows_that_are_far_apart_are_in_different_blocks() {
    let arena = arena(64);
    let mut rng = rng(11);
    for data_type in [DataType::Int8, staged_types()[0].clone()] {
        let schema = schema(&[data_type]);
        let batch = batch(&mut rng, &schema, 0, 2);
        let mut writer = Task::new(&arena, &schema, 2, 0, LARGEST_BLOCK_BYTES);
        writer.write(&batch, By::Column("id"));
        writer.scatter.rows += u64::from(u32::MAX);
        writer.write(&batch, By::Column("id"));
        let (reader, finished) = writer.finish();
        let numbers = |decoded: &Decoded| decoded.row_numbers().collect::<Vec<u64>>();
        let blocks = decoded(&reader, finished);
        let blocks: Vec<Vec<Vec<u64>>> = blocks.iter().map(|blocks| blocks.iter().map(numbers).collect()).collect();
        let far = (1 << 32) + 1;
        assert_eq!(blocks, [[[0], [far]], [[1], [far + 1]]]);
    }
}

#[test]
fn blocks_of_rows_that_waited_are_full_too() {
    let arena = arena(64);
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let lists = |rows: i64| {
        let numbers = Arc::new(Int64Array::from_iter_values(0..rows * 15));
        let lengths = arrow_buffer::OffsetBuffer::from_repeated_length(15, rows as usize);
        let lists: ArrayRef = Arc::new(ListArray::new(item.clone(), lengths, numbers, None));
        RecordBatch::try_from_iter([("l", lists)]).unwrap()
    };
    // 4 MiB in one batch, and in many small ones.
    for (rows, batches, most) in [(32_768, 1, 5), (32, 1024, 13)] {
        let batch = lists(rows);
        let mut writer = Task::new(&arena, batch.schema_ref(), 1, 0, LARGEST_BLOCK_BYTES);
        for _ in 0..batches {
            writer.write(&batch, By::RoundRobin);
        }
        let (_, finished) = writer.finish();
        let lens: Vec<u64> = finished.partitions[0].iter().map(super::Block::len_bytes).collect();
        assert!(lens.len() <= most && lens.iter().sum::<u64>() < (4 << 20) * 105 / 100, "{lens:?}");
        assert!(lens.iter().all(|len| *len < (1 << 20) * 105 / 100), "{lens:?}");
    }
}

#[test]
fn rows_of_thousands_of_columns_share_blocks() {
    let arena = arena(64);
    let batch = numbers(40, 8000);
    let (reader, finished) = task(&arena, &batch, By::RoundRobin, 2);
    let decoded = decoded(&reader, finished);
    assert!(decoded.iter().all(|blocks| blocks.len() == 1), "{} blocks", decoded[0].len());
    let rows: Vec<_> = (0..40).map(|row| row % 2).collect();
    check(&[(batch.clone(), rows)], batch.schema_ref(), &decoded);
}
