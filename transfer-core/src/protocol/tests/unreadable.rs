//! Tests of versions in an arena that a fabric cannot read: they are copied before they are sent.

use super::pair::{POOL_BYTES, Pair, Worker, bytes};
use crate::fabric::FabricKind;
use crate::memory::SegmentId;
use crate::op::{Answer, FailureCode, FetchedTensor, Reply, Report};
use crate::tensor::{Excerpt, Retention, Select, Slice, Until};
use std::num::NonZeroU32;
use std::time::Duration;

/// A pair, and a worker whose arena the fabric cannot read. The simulated one could, so the tests look at what is copied.
fn pair() -> (Pair, Worker, Worker) {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    let arena = SegmentId(u32::try_from(w.session.0).unwrap());
    pair.nodes[0].node.arena_is_unreadable(arena, FabricKind::Sim);
    (pair, w, r)
}

/// Fetches a version, and returns its bytes and the report.
fn take(pair: &mut Pair, r: Worker, text: &str, excerpt: Option<Box<Excerpt>>) -> (Vec<u8>, Report) {
    pair.fetch_part(r, text, Select::Latest, excerpt);
    pair.settle();
    let replies = pair.replies(r);
    let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else { panic!("{replies:?}") };
    let FetchedTensor { slice, report, .. } = tensor;
    let got = pair.memories[r.node].read(*slice).unwrap();
    pair.release(r, *lease);
    pair.settle();
    (got, *report)
}

// Promise: dead-sidecar, seen to fail
#[test]
fn it_is_fetched_in_whole_and_in_part_and_the_copy_is_counted() {
    let (mut pair, w, r) = pair();
    pair.push(w, "k", bytes(1000), 7, None);
    pair.settle();
    let slice = || Some(Box::new(Excerpt::slice(Slice::new([(64..192).into()])).unwrap()));
    for _ in 0..2 {
        let (whole, report) = take(&mut pair, r, "k", None);
        assert_eq!((whole, report.copied), (vec![7; 1000], 1000));
        let (part, report) = take(&mut pair, r, "k", slice());
        assert_eq!((part, report.copied), (vec![7; 128], 128));
    }
    assert_eq!(pair.replies(w).len(), 1, "the version stays where it is");
    let near = pair.worker(0, "near");
    let (whole, report) = take(&mut pair, near, "k", None);
    assert_eq!((whole, report.copied), (vec![7; 1000], 0), "a reader of this node gets it by reference");
    pair.ends_clean(&[(w, "w"), (r, "r"), (near, "near")]);
}

// Promise: dead-sidecar
#[test]
fn a_copy_counts_as_no_fetch() {
    let (mut pair, w, r) = pair();
    pair.retention = Retention { until: Until::Fetched(NonZeroU32::new(2).unwrap()), ..Retention::default() };
    pair.push(w, "k", bytes(100), 7, None);
    pair.settle();
    pair.replies(w);
    assert_eq!(take(&mut pair, r, "k", None).0, [7; 100]);
    assert!(pair.replies(w).is_empty(), "one fetch is left");
    assert_eq!(take(&mut pair, r, "k", None).0, [7; 100]);
    assert!(matches!(pair.replies(w)[..], [Reply::Returned { .. }]));
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: dead-sidecar, seen to fail
#[test]
fn it_is_pushed_in_order_and_its_memory_comes_back_when_it_has_landed() {
    let (mut pair, w, r) = pair();
    pair.hold_copies = true;
    for fill in 1..=3 {
        pair.push(w, "k", bytes(100), fill, Some("r"));
    }
    pair.settle();
    assert_eq!((pair.held_copies(), pair.replies(w).len()), (1, 0), "its first copy is under way");
    for fill in 1..=3 {
        pair.copy_all();
        pair.settle();
        let replies = pair.replies(w);
        let [Reply::Answer { answer: Answer::Pushed { version, report, .. }, .. }, Reply::Returned { .. }] =
            &replies[..]
        else {
            panic!("{replies:?}")
        };
        assert_eq!((version.0, report.copied), (fill.into(), 100));
        assert_eq!(take(&mut pair, r, "k", None).0, [fill; 100]);
    }
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: dead-sidecar
#[test]
fn pushes_that_end_while_they_are_copied_leave_nothing() {
    let (mut pair, w, r) = pair();
    pair.hold_copies = true;
    pair.push(w, "k", bytes(100), 1, Some("r"));
    pair.push(w, "k", bytes(100), 2, Some("r"));
    pair.wait(Duration::from_secs(2));
    let codes = pair.replies(w).into_iter().filter_map(|reply| match reply {
        Reply::Answer { answer: Answer::Failed { failure, .. }, .. } => Some(failure.code),
        _ => None,
    });
    assert_eq!(codes.collect::<Vec<_>>(), [FailureCode::PoolFull; 2]);
    pair.copy_all();
    pair.settle();
    // The next one goes, and a worker that leaves while its copy is made takes everything along.
    pair.push(w, "k", bytes(100), 3, Some("r"));
    pair.settle();
    pair.copy_all();
    pair.settle();
    assert_eq!(take(&mut pair, r, "k", None).0, [3; 100]);
    pair.push(w, "k", bytes(100), 4, Some("r"));
    pair.settle();
    assert_eq!(pair.held_copies(), 1);
    pair.leave(w, "w");
    pair.settle();
    pair.copy_all();
    pair.settle();
    pair.ends_clean(&[(r, "r")]);
}

// Promise: dead-sidecar
#[test]
fn what_does_not_fit_the_pool_is_refused_with_the_reason() {
    let (mut pair, w, r) = pair();
    pair.push(w, "k", bytes(POOL_BYTES + 1), 7, None);
    pair.settle();
    pair.replies(w);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let failure = pair.failed(r);
    assert_eq!(failure.code, FailureCode::TooLarge);
    assert!(failure.text.contains("before a restart of the sidecar"), "{failure}");
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}
