use super::*;
use crate::segment::{Lock, Mapping, Pages, PinnedBudget, Segment, SegmentOptions};
use crate::sync::Ordering;
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::channel;

const RANGE: RingRange = RingRange { offset: 128, capacity: MIN_CAPACITY };

fn mapping() -> Arc<Mapping> {
    let options = SegmentOptions { len: 16384, pages: Pages::Base, lock: Lock::No };
    Segment::create("ring", &options, &PinnedBudget::new(16384)).unwrap().mapping().clone()
}

fn ring() -> (Producer, Consumer) {
    let mapping = mapping();
    (Producer::new(mapping.clone(), RANGE).unwrap(), Consumer::new(mapping, RANGE).unwrap())
}

fn pop(consumer: &mut Consumer) -> Option<Vec<u8>> {
    consumer.try_pop(&mut [0; MAX_RECORD_BYTES]).unwrap().map(<[u8]>::to_vec)
}

#[test]
fn bad_places_are_refused() {
    let mapping = mapping();
    for (offset, capacity) in [(64, 8192), (0, 4096), (0, 8200), (0, 0), (0, 1 << 31)] {
        let range = RingRange { offset, capacity };
        assert_eq!(Producer::new(mapping.clone(), range).unwrap_err(), RingError::BadRange(range));
        assert_eq!(Consumer::new(mapping.clone(), range).unwrap_err(), RingError::BadRange(range));
    }
    for offset in [8192, u64::MAX - 127] {
        let range = RingRange { offset, capacity: 8192 };
        assert!(matches!(Consumer::new(mapping.clone(), range), Err(RingError::Map(_))));
    }
}

#[test]
fn records_appear_when_published() {
    let (mut p, mut c) = ring();
    assert!(p.try_push(b"one").unwrap() && p.try_push(b"").unwrap());
    assert_eq!(pop(&mut c), None);
    p.publish();
    assert_eq!(pop(&mut c).unwrap(), b"one");
    assert_eq!(pop(&mut c).unwrap(), b"");
    assert_eq!(pop(&mut c), None);
    assert_eq!(p.try_push(&[0; 2049]), Err(RingError::TooLong { len: 2049 }));
    assert_eq!(p.prepare_wait(2049), Err(RingError::TooLong { len: 2049 }));
}

#[test]
fn wake_ups_are_asked_for_once() {
    let (mut p, mut c) = ring();
    assert!(!p.should_wake());
    assert!(c.prepare_sleep());
    p.try_push(b"x").unwrap();
    p.publish();
    assert!(p.should_wake() && !p.should_wake());
    assert!(!c.prepare_sleep(), "there is something");
    assert!(!p.should_wake());

    while p.try_push(&[7; 2000]).unwrap() {}
    assert!(p.prepare_wait(2000).unwrap());
    assert!(p.try_push(b"small").unwrap());
    assert!(c.prepare_sleep() || pop(&mut c).is_some());
    assert!(c.should_wake() && !c.should_wake());
    while pop(&mut c).is_some() {}
    assert!(!p.prepare_wait(2000).unwrap(), "there is room");
    assert!(!c.should_wake());
}

/// One record at a time, and bursts that are longer than the part to which the producer keeps otherwise.
#[test]
fn ring_that_is_empty_goes_on_at_its_start() {
    const RECORD: [u8; 100] = [7; 100];
    let (mut p, mut c) = ring();
    let touched = |p: &Producer| {
        let words = (0..u64::from(MIN_CAPACITY)).step_by(8);
        let last = words.filter(|at| p.region().length_at(*at).load(Ordering::Relaxed) != 0).last();
        last.map_or(0, |at| at + 8)
    };
    for _ in 0..1000 {
        assert!(p.try_push(&RECORD).unwrap());
        p.publish();
        assert_eq!(pop(&mut c).unwrap(), RECORD);
    }
    let alone = touched(&p);
    assert!(alone < u64::from(MIN_CAPACITY) / 2, "{alone} bytes of {MIN_CAPACITY}");
    for burst in 1..=76 {
        // The first ones may lie before a padding.
        let pushed = (0..burst).take_while(|_| p.try_push(&RECORD).unwrap()).count();
        p.publish();
        for _ in 0..pushed {
            assert_eq!(pop(&mut c).unwrap(), RECORD);
        }
        assert_eq!(pop(&mut c), None);
    }
    assert!(touched(&p) > u64::from(MIN_CAPACITY) * 7 / 8, "a burst has all of it");
}

/// Two real threads with real sleeps exchange many records, so that a lost wake-up hangs and a torn record fails.
#[test]
fn millions_of_records_pass_between_two_threads() {
    const RECORDS: u32 = 2_000_000;
    let (mut p, mut c) = ring();
    let (wake_consumer, consumer_bell) = channel();
    let (wake_producer, producer_bell) = channel();
    let fill = |rng: &mut SmallRng, record: &mut Vec<u8>| {
        // Mostly short records, some of the largest size.
        let len =
            if rng.random_ratio(1, 64) { rng.random_range(0..=MAX_RECORD_BYTES) } else { rng.random_range(0..96) };
        record.resize(len, 0);
        rng.fill_bytes(record);
    };
    let producer = std::thread::spawn(move || {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut record = Vec::new();
        for i in 0..RECORDS {
            fill(&mut rng, &mut record);
            while !p.try_push(&record).unwrap() {
                let full = p.prepare_wait(record.len()).unwrap();
                if p.should_wake() {
                    wake_consumer.send(()).unwrap();
                }
                if full {
                    producer_bell.recv().unwrap();
                }
            }
            if i % 7 == 0 || i + 1 == RECORDS {
                p.publish();
                if p.should_wake() {
                    wake_consumer.send(()).unwrap();
                }
            }
        }
    });
    let mut rng = SmallRng::seed_from_u64(1);
    let mut expected = Vec::new();
    let mut buffer = [0; MAX_RECORD_BYTES];
    let mut received = 0;
    while received < RECORDS {
        while let Some(record) = c.try_pop(&mut buffer).unwrap() {
            fill(&mut rng, &mut expected);
            assert!(record == expected, "record {received}");
            received += 1;
            // The producer and its bell may be gone once the last record is published.
            if c.should_wake() {
                let _ = wake_producer.send(());
            }
        }
        if received < RECORDS && c.prepare_sleep() {
            consumer_bell.recv().unwrap();
            c.awake();
        }
    }
    producer.join().unwrap();
}

proptest! {
    #[test]
    fn ring_behaves_as_a_queue(steps in prop::collection::vec((0u8..4, 0usize..=MAX_RECORD_BYTES), 1..400)) {
        let (mut p, mut c) = ring();
        let (mut pushed, mut visible) = (VecDeque::new(), VecDeque::new());
        for (n, (step, len)) in steps.into_iter().enumerate() {
            match step {
                0 | 1 => {
                    let record = vec![n as u8; len];
                    let used: u64 = pushed.iter().chain(&visible).map(|r: &Vec<u8>| entry_bytes(r.len())).sum();
                    if p.try_push(&record).unwrap() {
                        pushed.push_back(record);
                    } else {
                        // Refused only if the record would not fit together with the padding at the end, which is longest if the
                        // ring was empty.
                        let capacity = u64::from(MIN_CAPACITY);
                        prop_assert!(used + capacity / 8 * 5 + MAX_ENTRY_BYTES + entry_bytes(len) > capacity);
                    }
                }
                2 => {
                    p.publish();
                    visible.append(&mut pushed);
                }
                _ => prop_assert_eq!(pop(&mut c), visible.pop_front()),
            }
        }
    }

    /// Whatever the peer writes into the ring, each call ends, and returns either a record or an error.
    #[test]
    fn garbage_is_an_error_or_a_record(
        seed in any::<u64>(),
        tail in prop_oneof![any::<u64>(), 0u64..20_000, (0u64..2500).prop_map(|n| n * 8)],
    ) {
        let (p, mut c) = ring();
        let mut rng = SmallRng::seed_from_u64(seed);
        for index in (0..u64::from(MIN_CAPACITY)).step_by(8) {
            let word = match rng.random_range(0..8) {
                0 => rng.random(),
                1 => WRAP,
                _ => rng.random_range(0..2100),
            };
            p.region().length_at(index).store(word, Ordering::Relaxed);
        }
        p.region().header().tail.0.store(tail, Ordering::Relaxed);
        let mut buffer = [0; MAX_RECORD_BYTES];
        let mut records = 0;
        while let Ok(Some(_)) = c.try_pop(&mut buffer) {
            records += 1;
        }
        prop_assert!(records <= u64::from(MIN_CAPACITY) / 8);
    }
}

/// Input: the producer's word (8 bytes), the consumer's (8 bytes), then the content of the ring, from its start on.
// Promise: hostile-workers, seen to fail
#[test]
fn fuzz_ring() {
    let mapping = mapping();
    let words = |tail: u64, head: u64| [tail.to_le_bytes(), head.to_le_bytes()].concat();
    let record = |len: u32| [&len.to_le_bytes()[..], &vec![7; entry_bytes(len as usize) as usize - 4]].concat();
    let examples = [
        [words(8, 0), record(0)].concat(),
        [words(16 + 104, 16), record(5), record(96)].concat(),
        [words(2056 * 3, 0), record(2048), record(2047), record(2046)].concat(),
        [words(16, 8), record(4), u32::MAX.to_le_bytes().to_vec()].concat(),
    ];
    transfer_fuzz::Target::new("ring", examples).max_len(16 + MIN_CAPACITY as usize).run(|bytes| {
        let Some((words, data)) = bytes.split_at_checked(16) else { return "too short".into() };
        let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().unwrap());
        let mut p = Producer::new(mapping.clone(), RANGE).unwrap();
        let mut c = Consumer::new(mapping.clone(), RANGE).unwrap();
        let start = RANGE.offset + HEADER_BYTES;
        mapping.copy_in(start, &vec![0; MIN_CAPACITY as usize]).unwrap();
        mapping.copy_in(start, data).unwrap();
        p.region().header().tail.0.store(word(0), Ordering::Relaxed);
        p.region().header().head.0.store(word(8), Ordering::Relaxed);
        let mut buffer = [0; MAX_RECORD_BYTES];
        let (mut records, mut taken) = (0, 0);
        let read = loop {
            match c.try_pop(&mut buffer) {
                Ok(Some(record)) => {
                    records += 1;
                    taken += entry_bytes(record.len());
                    assert!(taken <= word(0) && taken <= MIN_CAPACITY.into(), "more than was published");
                }
                Ok(None) => break "all is read".to_owned(),
                Err(e) => {
                    assert_eq!(c.try_pop(&mut buffer), Err(e), "an error stays");
                    break e.to_string();
                }
            }
        };
        // The consumer has published its head. The test sets it back to the word of the input.
        p.region().header().head.0.store(word(8), Ordering::Relaxed);
        let mut pushed = 0;
        let written = loop {
            match p.try_push(&[1; 2000]) {
                Ok(true) => pushed += 1,
                Ok(false) => break "full".to_owned(),
                Err(e) => break e.to_string(),
            }
        };
        assert!(pushed <= MIN_CAPACITY / 2008, "{pushed} records of 2,000 bytes");
        format!("{read}; {written}; {}", if records > 0 { "some" } else { "none" })
    });
}

#[test]
fn absurd_indexes_are_errors() {
    let (mut p, mut c) = ring();
    let mut buffer = [0; MAX_RECORD_BYTES];
    assert!(p.try_push(&[1; 100]).unwrap());
    p.publish();
    assert!(c.try_pop(&mut buffer).unwrap().is_some());
    for found in [96, 0, 104 + 8192 + 8, 105, u64::MAX, u64::MAX - 7] {
        p.region().header().tail.0.store(found, Ordering::Relaxed);
        assert!(!c.prepare_sleep());
        let e = RingError::AbsurdTail { found, known: 104, limit: 104 + 8192 };
        assert_eq!(c.try_pop(&mut buffer), Err(e));
        assert_eq!(c.try_pop(&mut buffer), Err(e));
    }
    while p.try_push(&[1; 100]).unwrap() {}
    let published = p.region().header().tail.0.load(Ordering::Relaxed);
    p.publish();
    assert!(p.region().header().tail.0.load(Ordering::Relaxed) < published, "the hostile tail is gone");
    for found in [96, 103, 1 << 40, u64::MAX] {
        p.region().header().head.0.store(found, Ordering::Relaxed);
        assert!(matches!(p.try_push(&[1; 100]), Err(RingError::AbsurdHead { known: 104, .. })), "{found}");
    }
}

#[test]
fn absurd_records_are_errors() {
    let mut buffer = [0; MAX_RECORD_BYTES];
    let mut pop_with = |len: u32, tail: u64| {
        let (p, mut c) = ring();
        p.region().length_at(0).store(len, Ordering::Relaxed);
        p.region().header().tail.0.store(tail, Ordering::Relaxed);
        c.try_pop(&mut buffer).map(|r| r.map(<[u8]>::len))
    };
    assert_eq!(pop_with(2048, 2056), Ok(Some(2048)));
    assert_eq!(pop_with(2049, 4096), Err(RingError::AbsurdRecord { index: 0, len: 2049, limit: 2048 }));
    assert_eq!(pop_with(5, 8), Err(RingError::AbsurdRecord { index: 0, len: 5, limit: 4 }));
    assert_eq!(pop_with(WRAP, 8192), Err(RingError::AbsurdWrap { index: 0, skipped: 8192 }));
    let (p, mut c) = ring();
    for (at, len) in [(0, 0), (8, WRAP)] {
        p.region().length_at(at).store(len, Ordering::Relaxed);
    }
    p.region().header().tail.0.store(16, Ordering::Relaxed);
    assert_eq!(pop(&mut c).unwrap(), b"");
    let skips_too_much = RingError::AbsurdWrap { index: 8, skipped: 8184 };
    assert_eq!(c.try_pop(&mut [0; MAX_RECORD_BYTES]), Err(skips_too_much));
    assert_eq!(pop_with(WRAP - 1, 8192), Err(RingError::AbsurdRecord { index: 0, len: WRAP - 1, limit: 2048 }));
}

/// A side that sleeps is woken even if nonsense was written over its sleep word.
#[test]
fn an_absurd_sleep_word_wakes_once() {
    let (producer, consumer) = ring();
    producer.region().header().consumer_sleeps.0.store(0xDEAD_BEEF, Ordering::Relaxed);
    producer.region().header().producer_sleeps.0.store(u32::MAX, Ordering::Relaxed);
    assert_eq!([producer.should_wake(), producer.should_wake()], [true, false]);
    assert_eq!([consumer.should_wake(), consumer.should_wake()], [true, false]);
}
