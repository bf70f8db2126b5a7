//! Tests of fetches, on one node and from another.

use super::pair::{POOL_BYTES, Pair, bytes, key};
use crate::fabric::FabricKind;
use crate::op::{Answer, Command, FailureCode, Fetch, OpId, Reply};
use crate::protocol::PassedOver;
use crate::tensor::{DType, Select, TensorMeta, Version};
use crate::time::Time;
use std::time::Duration;

#[test]
fn tensor_on_one_node_is_handed_over_by_reference() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(0, "r"));
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    pair.push(w, "k", bytes(100), 7, None);
    pair.settle();
    assert!(matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Pushed { version: Version(1), .. }, .. }]));
    let (lease, version, meta, got) = pair.fetched(r);
    assert_eq!((version, meta, got), (1, bytes(100), vec![7; 100]));
    pair.push(w, "k", bytes(100), 8, None);
    pair.settle();
    assert!(
        matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]),
        "the first version is still being read"
    );
    pair.release(r, lease);
    pair.settle();
    assert!(matches!(pair.replies(w)[..], [Reply::Returned { .. }]));
    assert_eq!(pair.posted(), [""; 0]);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn pull_takes_two_steps_then_one_and_names_are_sent_once() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(100), 1, None);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let (lease, _, _, got) = pair.fetched(r);
    assert_eq!(got, [1; 100]);
    let two_steps = ["NAME", "NAME", "TENSOR_REQUEST", "META_DATA_UPDATE", "TENSOR_RE_REQUEST", "WRITE"];
    assert_eq!(pair.posted(), two_steps);
    pair.release(r, lease);
    pair.push(w, "k", bytes(100), 2, None);
    pair.settle();
    pair.fetch(r, "k", Select::AtLeast(Version(2)));
    pair.settle();
    let (lease, _, _, got) = pair.fetched(r);
    assert_eq!(got, [2; 100]);
    assert_eq!(pair.posted(), ["TENSOR_REQUEST", "WRITE"]);
    pair.release(r, lease);
    // The tensor has grown, so the slot of the first message does not fit.
    pair.push(w, "k", bytes(200), 3, None);
    pair.settle();
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    assert_eq!(pair.fetched(r).3, [3; 200]);
    assert_eq!(pair.posted(), ["TENSOR_REQUEST", "META_DATA_UPDATE", "TENSOR_RE_REQUEST", "WRITE"]);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn unmet_requirement_is_reported_with_its_reason() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(100), 1, None);
    pair.settle();
    for (fabric, because) in [(FabricKind::Verbs, ", because it is a test"), (FabricKind::Shm, "")] {
        let (key, timeout, require) = (key("k"), Duration::from_secs(1), Some(fabric));
        let fetch = Fetch {
            key,
            select: Select::Latest,
            timeout,
            require,
            trace: None,
            watches: false,
            excerpt: None,
            base: None,
        };
        pair.command(r, OpId(u64::MAX), Command::Fetch(fetch));
        pair.settle();
        let failure = pair.failed(r);
        assert_eq!(failure.code, FailureCode::RequireUnmet);
        assert_eq!(failure.text, format!("{fabric} is required, but the link to node \"a\" is sim{because}"));
    }
    let passed: Vec<_> =
        pair.nodes[1].node.state().links("", 0, 9).entries.into_iter().flat_map(|l| l.passed_over).collect();
    assert_eq!(passed, [PassedOver { fabric: FabricKind::Verbs, why: "it is a test".into() }]);
    pair.replies(w);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: version-choices, seen to fail
#[test]
fn a_fetch_may_come_before_its_push() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.fetch(r, "k", Select::Exactly(Version(5)));
    pair.settle();
    assert_eq!(pair.replies(r), []);
    pair.push_version(w, "k", Some(5), bytes(8), 5, None);
    pair.settle();
    assert_eq!(pair.fetched(r).1, 5);
    pair.fetch(r, "k", Select::Exactly(Version(4)));
    pair.settle();
    assert_eq!(pair.failed_with(r), FailureCode::VersionGone);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn empty_tensor_keeps_its_shape() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    let meta = TensorMeta::of(DType::F32, &[0, 3]).unwrap();
    pair.push(w, "k", meta.clone(), 0, None);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let (_, version, got, content) = pair.fetched(r);
    assert_eq!((version, got, content), (1, meta, vec![]));
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn tensor_that_exceeds_the_pool_is_refused_and_its_request_cancelled() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    let big = TensorMeta::of(DType::U8, &[POOL_BYTES]).unwrap();
    pair.push(w, "big", big, 0, None);
    pair.fetch(r, "big", Select::Latest);
    pair.settle();
    let failure = pair.failed(r);
    assert_eq!(failure.code, FailureCode::TooLarge);
    assert!(failure.text.contains("16384"), "{failure}");
    assert_eq!(pair.posted().iter().filter(|m| m.starts_with("CANCEL")).count(), 2);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn wrong_location_is_resolved_again() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let (lease, ..) = pair.fetched(r);
    pair.release(r, lease);
    pair.command(w, crate::op::OpId(1), Command::Delete { key: key("k") });
    pair.settle();
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    assert_eq!(pair.replies(r), []);
    assert!(pair.posted().contains(&"ERROR_STATUS".to_owned()));
    // Another worker takes the key, at the reader's own node.
    let other = pair.worker(1, "other");
    pair.push(other, "k", bytes(8), 2, None);
    pair.settle();
    assert_eq!(pair.fetched(r).3, [2; 8]);
    pair.ends_clean(&[(w, "w"), (r, "r"), (other, "other")]);
}

// Promise: range-reuse, seen to fail
#[test]
fn slot_of_an_expired_fetch_is_free_only_when_the_owner_has_confirmed() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(8), 1, None);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let (lease, ..) = pair.fetched(r);
    pair.release(r, lease);
    // The description is known, so the request carries a slot.
    pair.fetch(r, "k", Select::AtLeast(Version(2)));
    pair.settle();
    assert_eq!(pair.nodes[1].node.state().snapshot(Time(0)).slots, 1);
    let at = pair.world.now() + Duration::from_secs(2);
    pair.world.advance(at);
    pair.nodes[1].node.timeout(at);
    pair.poll();
    assert_eq!(pair.failed_with(r), FailureCode::Deadline);
    assert_eq!(pair.nodes[1].node.state().snapshot(Time(0)).slots, 1, "nobody has confirmed yet");
    pair.settle();
    assert_eq!(pair.nodes[1].node.state().snapshot(Time(0)).slots, 0);
    assert!(pair.posted().ends_with(&["CANCEL".into(), "CANCELLED".into()]));
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

/// The pool has room for one version at a time. Each fetch of another key gets room when the earlier ones are done.
// Promise: full-pools, seen to fail
#[test]
fn fetches_get_room_in_the_order_of_their_requests() {
    let mut pair = Pair::new();
    let (w, holds) = (pair.worker(0, "w"), pair.worker(1, "holds"));
    let names = ["first", "second", "third"];
    let waiting = names.map(|name| pair.worker(1, name));
    for key in ["k"].into_iter().chain(names) {
        pair.push(w, key, bytes(super::pair::POOL_BYTES - 1024), 1, None);
    }
    pair.fetch(holds, "k", Select::Latest);
    pair.settle();
    for (worker, key) in waiting.into_iter().zip(names) {
        pair.fetch(worker, key, Select::Latest);
        pair.settle();
    }
    let mut holder = holds;
    for (at, next) in waiting.into_iter().enumerate() {
        let (lease, ..) = pair.fetched(holder);
        for later in &waiting[at..] {
            assert_eq!(pair.replies(*later), [], "there is no room");
        }
        pair.release(holder, lease);
        pair.settle();
        holder = next;
    }
    let (lease, ..) = pair.fetched(holder);
    pair.release(holder, lease);
    let [first, second, third] = waiting;
    pair.ends_clean(&[(w, "w"), (holds, "holds"), (first, "first"), (second, "second"), (third, "third")]);
}

#[test]
fn fetch_of_an_unknown_key_fails_at_its_deadline() {
    let mut pair = Pair::new();
    let r = pair.worker(1, "r");
    pair.fetch(r, "k", Select::Latest);
    pair.wait(Duration::from_secs(2));
    assert_eq!(pair.failed_with(r), FailureCode::UnknownKey);
    pair.ends_clean(&[(r, "r")]);
}

#[test]
fn metadata_that_exceeds_a_message_arrives_with_its_body() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    let meta = TensorMeta::of(DType::F32, &[10]).unwrap().with_metadata(5000).unwrap();
    pair.push(w, "pulled", meta.clone(), 1, None);
    pair.fetch(r, "pulled", Select::Latest);
    pair.settle();
    let (lease, _, got, content) = pair.fetched(r);
    assert_eq!((got, content), (meta.clone(), vec![1; 5056 + 40]));
    assert_eq!(pair.posted(), ["NAME", "NAME", "TENSOR_REQUEST", "META_DATA_UPDATE", "TENSOR_RE_REQUEST", "WRITE"]);
    pair.release(r, lease);
    pair.push(w, "pushed", meta.clone(), 2, Some("r"));
    pair.settle();
    pair.fetch(r, "pushed", Select::Latest);
    pair.settle();
    let (lease, _, got, content) = pair.fetched(r);
    assert_eq!((got, content), (meta, vec![2; 5056 + 40]));
    pair.release(r, lease);
    pair.replies(w);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

/// A worker of the reader's node claims the key, and the claim is refused while the reader waits. The reader still
/// finds the owner at the other node.
#[test]
fn refused_claim_keeps_no_reader_waiting() {
    let mut pair = Pair::new();
    let (owner, near, other) = (pair.worker(1, "owner"), pair.worker(0, "near"), pair.worker(0, "other"));
    pair.push(owner, "k", bytes(100), 1, None);
    pair.settle();
    // After the first fetch the key's location is known.
    for _ in 0..2 {
        pair.fetch(near, "k", Select::Latest);
        pair.settle();
        let (lease, version, ..) = pair.fetched(near);
        assert_eq!(version, 1);
        pair.release(near, lease);
        pair.push(other, "k", bytes(100), 2, None);
        pair.fetch(near, "k", Select::Latest);
        pair.settle();
        assert_eq!(pair.failed_with(other), FailureCode::KeyOwned);
        let (lease, version, ..) = pair.fetched(near);
        assert_eq!(version, 1);
        pair.release(near, lease);
    }
    pair.ends_clean(&[(owner, "owner"), (near, "near"), (other, "other")]);
}
