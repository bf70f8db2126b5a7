//! The models. Loom runs each in every order of its steps.

use crate::budget::PinnedBudget;
use crate::entry;
use crate::hazards;
use crate::region::Memory;
use crate::ring::{Consumer, MAX_RECORD_BYTES, MIN_CAPACITY, Producer, RingRange};
use crate::segment::Mapping;
use crate::sync::{AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;
use std::time::{Duration, Instant};

const RANGE: RingRange = RingRange { offset: 0, capacity: MIN_CAPACITY };

fn ring() -> (Producer, Consumer) {
    let mapping = Arc::new(Mapping(Arc::new(Memory::new(RANGE.capacity))));
    let producer = Producer::new(mapping.clone(), RANGE).expect("a good range");
    (producer, Consumer::new(mapping, RANGE).expect("a good range"))
}

fn record(number: u8) -> Vec<u8> {
    // The lengths differ, so that records meet the end of the data in more than one way.
    vec![number; [12, 4, 9][usize::from(number) % 3]]
}

/// One side's doorbell. A ring before the wait is not lost, like a byte in a socket.
#[derive(Clone)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    /// Makes a doorbell. With `is_rung`, the first wait ends without a cause.
    fn rung(is_rung: bool) -> Bell {
        Bell(Arc::new((Mutex::new(is_rung), Condvar::new())))
    }

    fn ring(&self) {
        *self.0.0.lock().expect("nobody panics") = true;
        self.0.1.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.0.0.lock().expect("nobody panics");
        while !*rung {
            rung = self.0.1.wait(rung).expect("nobody panics");
        }
        *rung = false;
    }
}

fn push_all(mut producer: Producer, records: u8, own: &Bell, others: &Bell) {
    for number in 1..=records {
        while !producer.try_push(&record(number)).expect("the consumer keeps to the rules") {
            let is_full = producer.prepare_wait(MAX_RECORD_BYTES).expect("the consumer keeps to the rules");
            if producer.should_wake() {
                others.ring();
            }
            if is_full {
                own.wait();
            }
        }
        producer.publish();
        if producer.should_wake() {
            others.ring();
        }
    }
}

fn pop_all(mut consumer: Consumer, records: u8, own: &Bell, others: &Bell) {
    let mut buffer = [0; MAX_RECORD_BYTES];
    let mut next = 1;
    while next <= records {
        while let Some(found) = consumer.try_pop(&mut buffer).expect("the producer keeps to the rules") {
            assert_eq!(found, record(next), "record {next} is torn, lost or out of order");
            next += 1;
            if consumer.should_wake() {
                others.ring();
            }
        }
        if next <= records && consumer.prepare_sleep() {
            own.wait();
            consumer.awake();
        }
    }
}

/// Passes records through a ring, one thread at each end. A lost wake-up is a deadlock here, and loom reports it.
fn conversation(records: u8, preemptions: usize, for_nothing: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    let runs = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = runs.clone();
    model.check(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (producer, consumer) = ring();
        let (for_producer, for_consumer) = (Bell::rung(for_nothing), Bell::rung(for_nothing));
        let bells = (for_producer.clone(), for_consumer.clone());
        let pushing = thread::spawn(move || push_all(producer, records, &bells.0, &bells.1));
        pop_all(consumer, records, &for_consumer, &for_producer);
        pushing.join().expect("the producer ends");
    });
    println!("{records} records: {} runs", runs.load(std::sync::atomic::Ordering::Relaxed));
}

// Promise: rings, seen to fail
#[test]
fn record_arrives_whole_and_its_wake_up_is_not_lost() {
    conversation(1, 3, false);
}

/// The ring has no room for three records at once, and the third begins at the start again: both sides have to sleep
/// and be woken.
// Promise: rings, seen to fail
#[test]
fn full_ring_wraps_around() {
    conversation(4, 2, false);
}

/// The doorbell may have been rung for an earlier record.
// Promise: rings, seen to fail
#[test]
fn spurious_wake_up_leads_back_to_sleep() {
    conversation(4, 2, true);
}

#[test]
fn budget_is_never_exceeded_and_fully_returned() {
    loom::model(|| {
        let budget = PinnedBudget::new(100);
        let other = budget.clone();
        let reserve = |budget: &PinnedBudget, len| {
            let reserved = budget.reserve(len).ok();
            assert!(budget.used() <= 100);
            reserved
        };
        let there = thread::spawn(move || reserve(&other, 60).is_some());
        let here = reserve(&budget, 50).is_some();
        assert!(there.join().expect("it ends") || here, "one of them fits");
        assert_eq!(budget.used(), 0);
    });
}

#[test]
fn who_waits_for_returning_memory_gets_it() {
    loom::model(|| {
        let budget = PinnedBudget::new(100);
        let ending = budget.reserve(60).expect("it is free");
        let other = budget.clone();
        ending.begin_return();
        // A wake-up that is lost is a deadlock here, for loom's clock stands still.
        let waiting = thread::spawn(move || {
            other.wait_for_returning(70, Instant::now() + Duration::from_secs(600));
            other.reserve(70).is_ok()
        });
        drop(ending);
        assert!(waiting.join().expect("no panic"));
        assert_eq!(budget.used(), 0);
    });
}

/// Words in shared memory, all zero.
fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

/// A writer replaces a version while a reader looks it up, and reuses the memory as soon as no hazard pointer names it.
fn board(with_release: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        // An entry of a sequence, a ticket and a version; a bucket of two hazard pointers; and the tensor of ticket 1.
        let shared = Arc::new((words(3), words(2), AtomicU64::new(11)));
        entry::write(&shared.0, &[1, 11]);
        let theirs = shared.clone();
        let reader = thread::spawn(move || {
            let (entry, bucket, tensor) = &*theirs;
            let sequence = entry::begin(entry)?;
            let (ticket, version) = (entry::word(entry, 0), entry::word(entry, 1));
            if !entry::is_whole(entry, sequence) {
                return None;
            }
            assert!(matches!((ticket, version), (1, 11) | (2, 22)), "torn: {ticket}, {version}");
            let hazard = hazards::protect(bucket, ticket).expect("one of two is free");
            let is_held = entry::is_unchanged(entry, sequence);
            if is_held && ticket == 1 {
                assert_eq!(tensor.load(Ordering::Relaxed), 11, "used again under a reader");
            }
            if !with_release {
                return Some((ticket, is_held, false));
            }
            hazards::clear(&bucket[hazard]);
            let tells = !entry::is_unchanged(entry, sequence);
            Some((ticket, is_held, tells))
        });
        let (entry, bucket, tensor) = &*shared;
        entry::write(entry, &[2, 22]);
        entry::changed();
        let is_protected = hazards::is_protected(bucket, 1);
        if !is_protected {
            tensor.store(99, Ordering::Relaxed);
        }
        let found = reader.join().expect("it ends");
        if with_release && let Some((1, _, tells)) = found {
            // Either the writer has seen that no reader holds the version, or it will be told.
            assert!(!is_protected || tells, "the writer waits for ever");
            assert!(!hazards::is_protected(bucket, 1));
        }
    });
}

// Promise: board-lookups, seen to fail
#[test]
fn held_version_is_not_overwritten() {
    board(false);
}

// Promise: board-lookups, seen to fail
#[test]
fn writer_is_told_when_a_hazard_pointer_is_cleared() {
    board(true);
}

/// Two threads of one worker take different hazard pointers.
#[test]
fn hazard_pointers_belong_to_one_reader_each() {
    loom::model(|| {
        let bucket = Arc::new(words(2));
        let other = bucket.clone();
        let there = thread::spawn(move || hazards::protect(&other, 7));
        let here = hazards::protect(&bucket, 7);
        let there = there.join().expect("it ends");
        assert!(here.is_some() && there.is_some() && here != there);
    });
}

/// A worker replaces a version in a notice. Its sidecar reads that in the ring, and reuses the memory as soon as no
/// hazard pointer names it. A reader looks the version up meanwhile.
fn notice(with_release: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        // The sidecar's entry, of a sequence alone; a notice of a sequence, a ticket and a version; a bucket of two
        // hazard pointers; the tensor of ticket 1; and the newest ticket in the ring.
        let shared = Arc::new((words(1), words(3), words(2), AtomicU64::new(11), AtomicU64::new(1)));
        entry::write(&shared.1, &[1, 11]);
        let theirs = shared.clone();
        let worker = thread::spawn(move || {
            let (_, notice, _, _, ring) = &*theirs;
            entry::open(notice);
            ring.store(2, Ordering::Release);
            entry::close(notice, &[2, 22]);
        });
        let theirs = shared.clone();
        let reader = thread::spawn(move || {
            let (entry, notice, bucket, tensor, ring) = &*theirs;
            let in_entry = entry::begin(entry)?;
            let sequence = entry::begin(notice)?;
            let (ticket, version) = (entry::word(notice, 0), entry::word(notice, 1));
            if !entry::is_whole(notice, sequence) {
                return None;
            }
            assert!(matches!((ticket, version), (1, 11) | (2, 22)), "torn: {ticket}, {version}");
            assert!(ring.load(Ordering::Relaxed) >= ticket, "it is found before the sidecar can hear of it");
            let hazard = hazards::protect(bucket, ticket).expect("one of two is free");
            let is_held = entry::is_unchanged(entry, in_entry) && entry::is_at(notice, sequence);
            if is_held && ticket == 1 {
                assert_eq!(tensor.load(Ordering::Relaxed), 11, "used again under a reader");
            }
            if !with_release {
                return Some((ticket, false));
            }
            hazards::clear(&bucket[hazard]);
            let tells = !(entry::is_unchanged(entry, in_entry) && entry::is_at(notice, sequence));
            Some((ticket, tells))
        });
        let (_, _, bucket, tensor, ring) = &*shared;
        let is_pushed = ring.load(Ordering::Acquire) == 2;
        entry::changed();
        let is_protected = is_pushed && hazards::is_protected(bucket, 1);
        if is_pushed && !is_protected {
            tensor.store(99, Ordering::Relaxed);
        }
        worker.join().expect("it ends");
        let found = reader.join().expect("it ends");
        if with_release && let Some((1, tells)) = found {
            // Either the sidecar has seen that no reader holds the version, or it will be told.
            assert!(!is_protected || tells, "the sidecar waits for ever");
            assert!(!hazards::is_protected(bucket, 1));
        }
    });
}

// Promise: versions-from-notices, seen to fail
#[test]
fn held_version_of_a_notice_is_not_overwritten() {
    notice(false);
}

#[test]
fn sidecar_is_told_when_a_hazard_pointer_to_a_notice_is_cleared() {
    notice(true);
}
