//! Two nodes that granted keys and names while they could not reach the directory, and their reactions to its
//! decisions.

use super::pair::{Pair, Worker, bytes, name};
use crate::op::{Answer, FailureCode, LeaseId, Reply, Request};
use crate::tensor::{Key, Select, Version};

fn held(pair: &mut Pair, r: Worker) -> LeaseId {
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    pair.fetched(r).0
}

// Promise: key-at-two-nodes, seen to fail
#[test]
fn key_granted_twice_belongs_to_its_owner_in_the_directory() {
    let mut pair = Pair::new();
    let (first, second) = (pair.worker(0, "first"), pair.worker(1, "second"));
    let (near, far) = (pair.worker(0, "near"), pair.worker(1, "far"));
    pair.push_version(first, "k", Some(9), bytes(100), 1, None);
    pair.settle();
    let lease = held(&mut pair, near);
    // The directory has forgotten the key, and the other node has not heard of it.
    pair.forget("k");
    pair.push(second, "k", bytes(100), 2, None);
    pair.settle();
    assert!(matches!(
        pair.replies(second)[..],
        [Reply::Answer { answer: Answer::Pushed { version: Version(1), .. }, .. }]
    ));
    pair.replies(first);
    pair.nodes[0].node.claim_all();
    pair.settle();
    // The range stays unchanged while it is read.
    assert_eq!(pair.replies(first), []);
    pair.push_version(first, "k", Some(10), bytes(100), 3, None);
    pair.settle();
    let failure = pair.failed(first);
    assert_eq!(failure.code, FailureCode::KeyOwned);
    assert!(failure.text.contains("\"second\"") && failure.text.contains("\"b\""), "{failure}");
    for r in [near, far] {
        pair.fetch(r, "k", Select::Latest);
        pair.settle();
        let (lease, version, _, got) = pair.fetched(r);
        assert_eq!((version, got), (1, vec![2; 100]));
        pair.release(r, lease);
    }
    pair.replies(first);
    pair.release(near, lease);
    pair.settle();
    assert!(matches!(pair.replies(first)[..], [Reply::Returned { .. }]));
    pair.ends_clean(&[(first, "first"), (second, "second"), (near, "near"), (far, "far")]);
}

/// The node has granted a claim itself, and the directory's late answer arrives when the key has no version. The entry
/// is removed, so that no key without an owner stays in the directory.
#[test]
fn unwanted_grant_of_a_key_is_given_back() {
    let mut pair = Pair::new();
    let w = pair.worker(0, "w");
    let k = Key::new("k").unwrap();
    let now = pair.world.now();
    pair.enter("k", "w", 0);
    pair.nodes[0].node.claimed(now, &k, Ok(0));
    pair.settle();
    assert!(!pair.is_entered("k"));
    pair.ends_clean(&[(w, "w")]);
}

/// The pusher cancels while the directory is being asked. The key then has no owner; a worker that published nothing
/// must not own it.
#[test]
fn claim_is_given_back_when_its_pushes_are_cancelled() {
    for takeover in [false, true] {
        let mut pair = Pair::new();
        let (first, second) = (pair.worker(0, "first"), pair.worker(1, "second"));
        if takeover {
            pair.push(second, "k", bytes(100), 1, None);
            pair.settle();
            pair.replies(second);
        }
        pair.takeover = takeover;
        let op = pair.push(first, "k", bytes(100), 2, None);
        pair.request(first, Request::Cancel { op });
        pair.settle();
        assert_eq!(pair.failed(first).code, FailureCode::Cancelled);
        assert!(!pair.is_entered("k"));
        pair.takeover = false;
        pair.replies(second);
        pair.push(second, "k", bytes(100), 3, None);
        pair.settle();
        let replies = pair.replies(second);
        assert!(matches!(replies[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]), "{replies:?}");
        pair.ends_clean(&[(first, "first"), (second, "second")]);
    }
}

// Promise: name-at-two-nodes, seen to fail
#[test]
fn name_granted_twice_belongs_to_its_worker_in_the_directory() {
    let mut pair = Pair::new();
    let (loser, near) = (pair.worker(0, "same"), pair.worker(0, "near"));
    let (winner, far) = (pair.worker(1, "same"), pair.worker(1, "far"));
    pair.push(far, "other", bytes(100), 7, None);
    pair.push(loser, "k", bytes(100), 1, None);
    pair.push(loser, "landed", bytes(100), 2, Some("far"));
    pair.settle();
    let lease = held(&mut pair, near);
    pair.replies(loser);
    let now = pair.world.now();
    pair.nodes[0].node.name_lost(now, loser.session, &name("b"));
    pair.settle();
    // The versions that it published are not entered anywhere. Only their readers still hold them.
    assert!(!pair.is_entered("k") && !pair.is_entered("landed"));
    // The worker gets no range back while it is read.
    assert!(matches!(pair.replies(loser)[..], []));
    for to in [None, Some("far"), Some("near")] {
        pair.push(loser, "k", bytes(100), 3, to);
        pair.settle();
        let failure = pair.failed(loser);
        assert_eq!(failure.code, FailureCode::KeyOwned);
        assert!(failure.text.contains("\"same\"") && failure.text.contains("\"b\""), "{failure}");
    }
    pair.reserve(loser, "k", bytes(100), "far");
    pair.settle();
    assert_eq!(pair.failed(loser).code, FailureCode::KeyOwned);
    // The worker can still read.
    pair.fetch(loser, "other", Select::Latest);
    pair.settle();
    let (other, _, _, got) = pair.fetched(loser);
    assert_eq!(got, [7; 100]);
    pair.release(loser, other);
    // Pushes to the name go to the other worker.
    pair.push(near, "for", bytes(100), 4, Some("same"));
    pair.push(winner, "k", bytes(100), 5, None);
    pair.settle();
    pair.fetch(winner, "for", Select::Latest);
    pair.settle();
    let replies = pair.replies(winner);
    let [
        Reply::Answer { answer: Answer::Pushed { .. }, .. },
        Reply::Answer { answer: Answer::Fetched { lease: got, .. }, .. },
    ] = replies[..]
    else {
        panic!("{replies:?}")
    };
    pair.release(winner, got);
    pair.release(near, lease);
    pair.settle();
    pair.ends_clean(&[(winner, "same"), (loser, "same"), (near, "near"), (far, "far")]);
}
