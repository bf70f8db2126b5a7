//! Partitions that are read in several passes.

use crate::block::Decoded;
use crate::order_tests::{blocks, ids, tasks};
use crate::passes::{InOrder, Then};
use crate::testing::{arena, batch, direct_types, rng, schema, staged_types};
use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
use rand::seq::SliceRandom;
use std::num::NonZeroUsize;

const SEED: u64 = 12;

fn in_order(memory: u64, position: u64, rows: usize) -> InOrder {
    let mut order = InOrder::new(SEED);
    (order.memory, order.position) = (memory, position);
    order.rows_per_batch = NonZeroUsize::new(rows).unwrap();
    order
}

/// What a reader gets whose tasks come in another order in each pass; the passes; and the most rows that were held.
fn read(mut order: InOrder, schema: &SchemaRef, blocks: &[(u32, Decoded)]) -> (Vec<RecordBatch>, usize, usize) {
    let (mut rng, mut blocks) = (rng(40), blocks.to_vec());
    let (mut all, mut passes, mut most) = (Vec::new(), 0, 0);
    let mut then = Then::ReadAgain;
    while then != Then::End {
        if then == Then::ReadAgain {
            passes += 1;
            blocks.shuffle(&mut rng);
            for (task, block) in &blocks {
                order.take(*task, block, true).unwrap();
                most = most.max(order.held_rows());
            }
        }
        let before = order.position;
        let batches: Vec<_> = std::iter::from_fn(|| order.next().unwrap()).collect();
        assert_eq!(order.position, before + batches.iter().map(|batch| batch.num_rows() as u64).sum::<u64>());
        all.extend(batches);
        then = order.go_on(schema);
    }
    (all, passes, most)
}

// Promise: memory-of-an-order, seen to fail
#[test]
fn batches_are_the_same_with_any_memory() {
    let arena = arena(64);
    let mut rng = rng(41);
    for data_type in direct_types().into_iter().chain(staged_types()) {
        let schema = schema(std::slice::from_ref(&data_type));
        let tasks = tasks(&mut rng, &schema);
        let blocks = blocks(&arena, &schema, &tasks, 4096, &mut rng);
        let (all, passes, _) = read(in_order(u64::MAX, 0, 50), &schema, &blocks);
        assert_eq!(passes, 1);
        let size: u64 = blocks.iter().map(|(_, block)| block.len_bytes()).sum();
        for memory in [0, size / 3, size, size * 4] {
            let (found, passes, _) = read(in_order(memory, 0, 50), &schema, &blocks);
            assert_eq!(found, all, "{data_type} with {memory} bytes");
            assert!(passes > 2 || memory >= size, "{passes} passes with {memory} bytes of {size}");
        }
    }
}

// Promise: memory-of-an-order, seen to fail
#[test]
fn no_more_rows_are_held_than_the_memory_is_enough_for() {
    let arena = arena(64);
    let mut rng = rng(42);
    let schema = schema(&[DataType::Utf8, DataType::Int64]);
    let tasks = [vec![batch(&mut rng, &schema, 0, 30_000)], vec![batch(&mut rng, &schema, 30_000, 20_000)]];
    let blocks = blocks(&arena, &schema, &tasks, 1 << 16, &mut rng);
    let rows: usize = blocks.iter().map(|(_, block)| block.row_numbers().len()).sum();
    let needed: u64 =
        blocks.iter().map(|(_, block)| 2 * block.len_bytes() + 40 * block.row_numbers().len() as u64).sum();
    assert_eq!(read(in_order(needed, 0, 8192), &schema, &blocks).1, 1);
    for parts in [2, 5, 40] {
        let (found, passes, most) = read(in_order(needed / parts, 0, 8192), &schema, &blocks);
        let (parts, rows_in_part) = (parts as usize, rows.div_ceil(parts as usize));
        assert!(most <= rows_in_part && most > rows_in_part / 2, "{most} of {rows} rows, {parts} parts");
        assert!((parts + 1..=parts + 3).contains(&passes), "{passes} passes for {parts} parts");
        assert!(found[..found.len() - 1].iter().all(|batch| batch.num_rows() == 8192));
        assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), rows);
    }
}

#[test]
fn reading_goes_on_from_any_row() {
    let arena = arena(64);
    let mut rng = rng(43);
    let schema = schema(&[DataType::Utf8View]);
    let tasks = tasks(&mut rng, &schema);
    let blocks = blocks(&arena, &schema, &tasks, 4096, &mut rng);
    let all = ids(&read(in_order(u64::MAX, 0, 50), &schema, &blocks).0);
    for memory in [0, 20_000, 60_000] {
        for position in [0, 1, 49, 50, 51, all.len() - 1, all.len(), all.len() + 1, usize::MAX] {
            let (found, passes, _) = read(in_order(memory, position as u64, 7), &schema, &blocks);
            assert_eq!(ids(&found), all[position.min(all.len())..], "{memory} bytes, from {position}");
            // The rows before that position are counted and not read.
            assert!(position < all.len() || passes == 1, "{passes}");
        }
    }
}

// Promise: memory-of-an-order, seen to fail
#[test]
fn blocks_in_a_pool_are_given_back_at_once() {
    for memory in [u64::MAX, 30_000] {
        for data_type in direct_types().into_iter().chain(staged_types()) {
            let arena = arena(64);
            let free = arena.free_bytes();
            let mut rng = rng(44);
            let schema = schema(std::slice::from_ref(&data_type));
            let tasks = tasks(&mut rng, &schema);
            let mut order = in_order(memory, 0, 50);
            let mut then = Then::ReadAgain;
            while then != Then::End {
                if then == Then::ReadAgain {
                    for (task, block) in blocks(&arena, &schema, &tasks, 1 << 16, &mut rng) {
                        order.take(task, &block, true).unwrap();
                    }
                    assert_eq!(arena.free_bytes(), free, "{data_type}");
                }
                while order.next().unwrap().is_some() {}
                then = order.go_on(&schema);
            }
        }
    }
}

#[test]
fn tasks_that_write_other_rows_are_noticed() {
    let arena = arena(64);
    let mut rng = rng(45);
    let schema = schema(&[DataType::Utf8]);
    let tasks = tasks(&mut rng, &schema);
    let blocks = blocks(&arena, &schema, &tasks, 4096, &mut rng);
    let size = blocks.iter().map(|(_, block)| block.len_bytes()).sum();
    let mut order = in_order(size, 0, 50);
    blocks.iter().for_each(|(task, block)| order.take(*task, block, true).unwrap());
    assert_eq!(order.go_on(&schema), Then::ReadAgain);
    // One block less.
    blocks[1..].iter().for_each(|(task, block)| order.take(*task, block, true).unwrap());
    let then = order.go_on(&schema);
    assert!(matches!(then, Then::Changed { expected, found } if found < expected), "{then:?}");
    assert!(order.next().unwrap().is_none());
    assert_eq!(order.go_on(&schema), then);
}
