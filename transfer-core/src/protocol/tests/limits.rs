//! Tests of the limits on keys and versions of a worker, a user and a node.

use super::pair::{Pair, bytes, key};
use crate::op::{Answer, Command, FailureCode, OpId, Reply};
use crate::protocol::{Limits, LimitsReached};
use crate::tensor::{Life, Retention, Until};

/// Pushes a tensor. Returns the error text if the push fails with `Busy`.
fn push(pair: &mut Pair, w: super::pair::Worker, text: &str) -> Result<(), String> {
    pair.push(w, text, bytes(8), 1, None);
    pair.settle();
    match &pair.replies(w).into_iter().find(|r| !matches!(r, Reply::Returned { .. })) {
        Some(Reply::Answer { answer: Answer::Pushed { .. }, .. }) => Ok(()),
        Some(Reply::Answer { answer: Answer::Failed { failure, .. }, .. }) if failure.code == FailureCode::Busy => {
            Err(failure.text.clone())
        }
        other => panic!("{other:?}"),
    }
}

fn delete(pair: &mut Pair, w: super::pair::Worker, text: &str) {
    pair.command(w, OpId(1), Command::Delete { key: key(text) });
    pair.settle();
    pair.replies(w);
}

fn refused(pair: &mut Pair, w: super::pair::Worker, text: &str, words: [&str; 2]) {
    let why = push(pair, w, text).expect_err("it is at the limit");
    assert!(words.iter().all(|word| why.contains(word)) && why.contains("delete some, or raise it"), "{why}");
}

// Promise: bounded-keys, seen to fail
#[test]
fn keys_of_a_worker_are_limited() {
    let mut pair = Pair::with(|config| config.limits.keys_per_worker = 3);
    let (w, other) = (pair.worker(0, "w"), pair.worker(0, "other"));
    for text in ["a", "b", "c"] {
        push(&mut pair, w, text).expect("there is room");
    }
    refused(&mut pair, w, "d", ["worker w has 3 keys", "limits.keys_per_worker"]);
    push(&mut pair, w, "a").expect("it has that one");
    push(&mut pair, other, "d").expect("it is another worker");
    delete(&mut pair, w, "b");
    push(&mut pair, w, "e").expect("there is room again");
    refused(&mut pair, w, "f", ["worker w has 3 keys", "limits.keys_per_worker"]);
    assert_eq!(pair.nodes[0].node.state().limits_reached(), LimitsReached { keys: 2, ..LimitsReached::default() });
    pair.ends_clean(&[(w, "w"), (other, "other")]);
}

/// At most one version exists at a time, so the limit counts the keys.
#[test]
fn a_key_without_versions_counts() {
    let mut pair = Pair::with(|config| config.limits.keys_per_worker = 2);
    let (w, r) = (pair.worker(0, "w"), pair.worker(0, "r"));
    pair.retention =
        Retention { until: Until::Fetched(std::num::NonZeroU32::MIN), life: Life::Session, ..Retention::default() };
    for text in ["a", "b"] {
        push(&mut pair, w, text).expect("there is room");
        pair.fetch(r, text, crate::tensor::Select::Latest);
        pair.settle();
        let (lease, ..) = pair.fetched(r);
        pair.release(r, lease);
        pair.settle();
        pair.replies(w);
    }
    refused(&mut pair, w, "c", ["worker w has 2 keys", "limits.keys_per_worker"]);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: bounded-keys, seen to fail
#[test]
fn keys_of_a_user_are_limited() {
    let mut pair = Pair::with(|config| config.limits.keys_per_user = 3);
    let (w, v) = (pair.worker(0, "w"), pair.worker(0, "v"));
    pair.retention.life = Life::Sidecar;
    push(&mut pair, w, "a").expect("there is room");
    push(&mut pair, w, "b").expect("there is room");
    push(&mut pair, v, "c").expect("there is room");
    refused(&mut pair, v, "d", ["user id 0 has 3 keys", "limits.keys_per_user"]);
    // A key that has outlived its worker counts for its user.
    pair.leave(w, "w");
    pair.settle();
    refused(&mut pair, v, "d", ["user id 0 has 3 keys", "limits.keys_per_user"]);
    let w = pair.worker(0, "w");
    push(&mut pair, w, "a").expect("it goes on with it");
    delete(&mut pair, w, "a");
    push(&mut pair, v, "d").expect("there is room again");
}

// Promise: bounded-keys, seen to fail
#[test]
fn keys_of_a_node_are_limited() {
    let mut pair = Pair::with(|config| config.limits.keys_per_node = 3);
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    for text in ["a", "b", "c"] {
        push(&mut pair, w, text).expect("there is room");
    }
    refused(&mut pair, w, "d", ["node a has 3 keys", "limits.keys_per_node"]);
    // A push from another node is limited too.
    pair.push(far, "d", bytes(8), 1, Some("w"));
    pair.settle();
    let failure = pair.failed(far);
    assert!(failure.code == FailureCode::Busy && failure.text.contains("node a has 3 keys"), "{failure}");
    delete(&mut pair, w, "a");
    pair.push(far, "d", bytes(8), 1, Some("w"));
    pair.settle();
    assert!(matches!(pair.replies(far)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }, ..]));
    refused(&mut pair, w, "e", ["node a has 3 keys", "limits.keys_per_node"]);
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}

/// One key, whose versions all stay published.
// Promise: bounded-keys, seen to fail
#[test]
fn retained_versions_are_limited() {
    type Case = (fn(&mut Limits), [&'static str; 2]);
    let cases: [Case; 3] = [
        (|limits| limits.versions_per_worker = 3, ["worker w has 3 versions", "limits.versions_per_worker"]),
        (|limits| limits.versions_per_user = 3, ["user id 0 has 3 versions", "limits.versions_per_user"]),
        (|limits| limits.versions_per_node = 3, ["node a has 3 versions", "limits.versions_per_node"]),
    ];
    for (set, words) in cases {
        let mut pair = Pair::with(|config| set(&mut config.limits));
        let w = pair.worker(0, "w");
        pair.retention = Retention { until: Until::Deleted, life: Life::Session, ..Retention::default() };
        for _ in 0..3 {
            push(&mut pair, w, "k").expect("there is room");
        }
        refused(&mut pair, w, "k", words);
        assert_eq!(
            pair.nodes[0].node.state().limits_reached(),
            LimitsReached { versions: 1, ..LimitsReached::default() }
        );
        delete(&mut pair, w, "k");
        push(&mut pair, w, "k").expect("there is room again");
        pair.ends_clean(&[(w, "w")]);
    }
}
