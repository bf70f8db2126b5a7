//! Tests of versions that are written to disk and read back.

use super::pair::{Pair, Worker, bytes, key};
use crate::op::{Command, FailureCode, OpId, Reply, Request};
use crate::protocol::{SpillConfig, TensorFilter};
use crate::tensor::{BodyRange, Excerpt, Select, Spill, Version};
use crate::time::Time;
use std::time::Duration;

const CONFIG: SpillConfig =
    SpillConfig { high_percent: 60, low_percent: 20, tenant_bytes: 1 << 20, total_bytes: 1 << 20 };

fn pair() -> Pair {
    let mut pair = Pair::with(|config| config.spill = Some(CONFIG));
    pair.retention.spill = Spill::Now;
    pair
}

/// Pushes a version with metadata that is to be written at once, and returns whether its range came back.
fn push(pair: &mut Pair, w: Worker, name: &str, fill: u8) -> bool {
    pair.push(w, name, bytes(1000).with_metadata(100).unwrap(), fill, None);
    pair.settle();
    pair.replies(w).iter().any(|reply| matches!(reply, Reply::Returned { .. }))
}

fn take(pair: &mut Pair, r: Worker, name: &str, excerpt: Option<Box<Excerpt>>) -> Vec<u8> {
    pair.fetch_part(r, name, Select::Latest, excerpt);
    pair.settle();
    let (lease, version, _, got) = pair.fetched(r);
    assert_eq!(version, 1);
    pair.release(r, lease);
    pair.settle();
    got
}

fn on_disk(pair: &Pair, node: usize) -> u64 {
    pair.nodes[node].node.state().snapshot(Time(0)).spilled.versions
}

// Promise: rows-on-disk
#[test]
fn version_on_disk_is_read_at_its_node_and_at_another_one_in_whole_and_in_part() {
    let mut pair = pair();
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    pair.wait(Duration::from_secs(3));
    let pushed = pair.world.now();
    assert!(push(&mut pair, w, "k", 7), "its memory is the worker's again");
    assert_eq!(on_disk(&pair, 0), 1);
    let listed = pair.nodes[0].node.state().tensors(&TensorFilter::default(), 0, 10).entries;
    assert_eq!(
        (listed.len(), listed[0].version, listed[0].published_at),
        (1, Version(1), pushed),
        "it is the same version"
    );
    let part = || Some(Box::new(Excerpt::of_ranges(false, [BodyRange { offset: 64, len: 128 }]).unwrap()));
    for _ in 0..2 {
        for reader in [near, far, w] {
            let whole = take(&mut pair, reader, "k", None);
            assert_eq!((whole.len(), whole.iter().filter(|b| **b == 7).count()), (1128, 1128));
            assert_eq!(take(&mut pair, reader, "k", part()), vec![7; 128]);
        }
    }
    pair.command(w, OpId(1), Command::Delete { key: key("k") });
    pair.settle();
    assert_eq!(on_disk(&pair, 0), 0);
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

// Promise: rows-on-disk
#[test]
fn version_that_is_read_stays_in_memory_until_its_readers_are_done() {
    let mut pair = pair();
    let (w, r) = (pair.worker(0, "w"), pair.worker(0, "r"));
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    assert!(!push(&mut pair, w, "k", 7));
    let (lease, ..) = pair.fetched(r);
    assert_eq!(on_disk(&pair, 0), 0);
    pair.release(r, lease);
    pair.settle();
    assert!(matches!(pair.replies(w)[..], [Reply::Returned { .. }]));
    assert_eq!((on_disk(&pair, 0), take(&mut pair, r, "k", None).len()), (1, 1128));
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: failing-disks
#[test]
fn full_disk_leaves_the_version_in_memory_and_is_tried_again() {
    let mut pair = pair();
    let (w, r) = (pair.worker(0, "w"), pair.worker(0, "r"));
    pair.disk_is_full = true;
    assert!(!push(&mut pair, w, "k", 7));
    assert_eq!(pair.nodes[0].node.state().snapshot(Time(0)).spilled.failed_writes, 1);
    assert_eq!(take(&mut pair, r, "k", None).len(), 1128);
    pair.disk_is_full = false;
    pair.wait(Duration::from_secs(2));
    assert!(matches!(pair.replies(w)[..], [Reply::Returned { .. }]));
    assert_eq!(on_disk(&pair, 0), 1);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: failing-disks
#[test]
fn wrong_bytes_end_the_version_and_nothing_else() {
    for node in [0, 1] {
        let mut pair = pair();
        let (w, r) = (pair.worker(0, "w"), pair.worker(node, "r"));
        assert!(push(&mut pair, w, "k", 7));
        assert!(push(&mut pair, w, "other", 8));
        pair.disk_is_damaged = true;
        pair.fetch(r, "k", Select::Latest);
        pair.settle();
        let failure = pair.failed(r);
        assert_eq!(failure.code, FailureCode::VersionGone);
        assert!(failure.text.contains("flipped bits"), "{failure}");
        pair.disk_is_damaged = false;
        assert!(!pair.is_entered("k"));
        assert_eq!((on_disk(&pair, 0), take(&mut pair, r, "other", None).len()), (1, 1128));
        assert!(push(&mut pair, w, "k", 9), "the key is free");
        assert_eq!(take(&mut pair, r, "k", None)[0], 9);
        pair.ends_clean(&[(w, "w"), (r, "r")]);
    }
}

// Promise: rows-on-disk
#[test]
fn reads_wait_for_room_in_the_pool_and_one_that_is_given_up_leaves_nothing() {
    for node in [0, 1] {
        let mut pair = pair();
        let (w, r) = (pair.worker(0, "w"), pair.worker(node, "r"));
        let hog = pair.worker(0, "hog");
        pair.push(w, "hog", bytes(12_000), 1, None);
        assert!(push(&mut pair, w, "k", 7));
        // The pool of 16 KiB has room for one of these.
        pair.push(w, "large", bytes(12_000), 2, None);
        pair.settle();
        pair.replies(w);
        pair.fetch(hog, "hog", Select::Latest);
        pair.settle();
        let (lease, ..) = pair.fetched(hog);
        let op = pair.fetch(r, "large", Select::Latest);
        pair.settle();
        assert_eq!(pair.replies(r), []);
        pair.request(r, Request::Cancel { op });
        pair.settle();
        assert_eq!(pair.failed_with(r), FailureCode::Cancelled);
        pair.fetch(r, "large", Select::Latest);
        pair.settle();
        assert_eq!(pair.replies(r), []);
        pair.release(hog, lease);
        pair.settle();
        let (lease, _, _, got) = pair.fetched(r);
        assert_eq!(got, vec![2; 12_000]);
        pair.release(r, lease);
        pair.ends_clean(&[(w, "w"), (r, "r"), (hog, "hog")]);
    }
}
