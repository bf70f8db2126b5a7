//! Rows that are written to partitions come out of their blocks as they went in.

use super::super::block::{BlockReader, Decoded};
use super::super::partition::{Bounds, By, Place};
use super::super::testing::{Task, arena, batch, direct_types, rng, schema, staged_types};
use super::{Finished, Layout};
use arrow_array::*;
use arrow_schema::{DataType, Schema};
use arrow_select::take::take_record_batch;
use rand::Rng;
use std::sync::Arc;
use transfer_memory::arena::Arena;

fn decoded(reader: &BlockReader, finished: Finished) -> Vec<Vec<Decoded>> {
    let blocks = finished.partitions.into_iter();
    let decode = |block: super::Block| {
        let rows = block.rows();
        let decoded = reader.decode_bytes(block.into_frozen().bytes()).unwrap();
        assert_eq!(decoded.batch().num_rows() as u64, rows);
        decoded
    };
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
        by.choose(&batch, Place { partitions, task, first_row }, &mut chosen).unwrap();
        writer.write(&batch, by);
        first_row += rows as u64;
        written.push((batch, chosen));
    }
    let (reader, finished) = writer.finish();
    assert_eq!((finished.rows, finished.partitions.len()), (first_row, partitions as usize));
    check(&written, reader.schema(), &decoded(&reader, finished));
}

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
