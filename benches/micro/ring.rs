//! A record through a ring in shared memory.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use transfer_benches::Runner;
use transfer_memory::ring::{Consumer, MAX_RECORD_BYTES, Producer, RingError, RingRange};
use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentError, SegmentOptions};

const RANGE: RingRange = RingRange { offset: 0, capacity: 1 << 18 };

#[derive(Debug)]
enum Failed {
    Segment(#[allow(dead_code, reason = "printed")] SegmentError),
    Ring(#[allow(dead_code, reason = "printed")] RingError),
}

fn main() -> Result<(), Failed> {
    let runner = Runner::from_arguments();
    for len in [64, 256] {
        one_by_one(&runner, len)?;
        batch(&runner, len)?;
    }
    two_threads(&runner)
}

fn ring() -> Result<(Producer, Consumer), Failed> {
    let options = SegmentOptions { len: RANGE.len_bytes(), pages: Pages::Base, lock: Lock::No };
    let budget = PinnedBudget::new(1 << 30);
    let segment = Segment::create("bench-ring", &options, &budget).map_err(Failed::Segment)?;
    let producer = Producer::new(segment.mapping().clone(), RANGE).map_err(Failed::Ring)?;
    let consumer = Consumer::new(segment.mapping().clone(), RANGE).map_err(Failed::Ring)?;
    Ok((producer, consumer))
}

fn one_by_one(runner: &Runner, len: usize) -> Result<(), Failed> {
    let ((mut producer, mut consumer), record) = (ring()?, vec![7u8; len]);
    let mut buffer = [0; MAX_RECORD_BYTES];
    runner.measure(&format!("ring: push, publish, pop of {len} B"), 1, || {
        let pushed = producer.try_push(black_box(&record));
        producer.publish();
        let woken = producer.should_wake();
        let popped = consumer.try_pop(&mut buffer).map(|record| record.map(<[u8]>::len));
        black_box((pushed, woken, popped))
    });
    Ok(())
}

fn batch(runner: &Runner, len: usize) -> Result<(), Failed> {
    const BATCH: u64 = 256;
    let ((mut producer, mut consumer), record) = (ring()?, vec![7u8; len]);
    let mut buffer = [0; MAX_RECORD_BYTES];
    runner.measure(&format!("ring: {BATCH} pushes, one publish, as many pops of {len} B"), BATCH, || {
        for _ in 0..BATCH {
            let _ = black_box(producer.try_push(black_box(&record)));
        }
        producer.publish();
        for _ in 0..BATCH {
            let _ = black_box(consumer.try_pop(&mut buffer));
        }
    });
    Ok(())
}

/// Measures with the consumer in another thread. Both threads spin.
fn two_threads(runner: &Runner) -> Result<(), Failed> {
    const COUNT: u64 = 10_000;
    let (mut producer, mut consumer) = ring()?;
    let record = [7u8; 64];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; MAX_RECORD_BYTES];
            while !stop.load(Ordering::Relaxed) {
                while let Ok(Some(record)) = consumer.try_pop(&mut buffer) {
                    black_box(record);
                }
                std::hint::spin_loop();
            }
        });
        runner.measure("ring: push and publish of 64 B to another thread", COUNT, || {
            for _ in 0..COUNT {
                while !matches!(producer.try_push(&record), Ok(true)) {
                    std::hint::spin_loop();
                }
                producer.publish();
            }
        });
        stop.store(true, Ordering::Relaxed);
    });
    Ok(())
}
