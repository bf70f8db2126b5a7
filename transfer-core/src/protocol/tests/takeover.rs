//! Tests of keys that go from one owner to another.

use super::pair::{Pair, Worker, bytes};
use crate::op::{Answer, FailureCode, Reply};
use crate::tensor::{Key, Life, Retention, Select, Until, Version};
use std::num::NonZeroU32;

fn newest(pair: &mut Pair, r: Worker) -> (u64, Vec<u8>) {
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let (lease, version, _, got) = pair.fetched(r);
    pair.release(r, lease);
    pair.settle();
    (version, got)
}

#[test]
fn a_key_that_is_taken_over_is_the_new_owners_on_one_node_and_across_two() {
    for node in [0, 1] {
        let mut pair = Pair::new();
        let (old, new) = (pair.worker(0, "old"), pair.worker(node, "new"));
        let (near, far) = (pair.worker(0, "near"), pair.worker(1, "far"));
        pair.push_version(old, "k", Some(9), bytes(100), 1, None);
        pair.settle();
        assert_eq!((newest(&mut pair, near).0, newest(&mut pair, far).0), (9, 9));
        pair.push(new, "k", bytes(100), 2, None);
        pair.settle();
        let failure = pair.failed(new);
        assert_eq!(failure.code, FailureCode::KeyOwned);
        assert!(failure.text.contains("\"old\"") && failure.text.contains("\"a\""), "{failure}");

        pair.replies(old);
        pair.takeover = true;
        pair.push(new, "k", bytes(100), 3, None);
        pair.settle();
        let replies = pair.replies(new);
        assert!(
            matches!(replies[..], [Reply::Answer { answer: Answer::Pushed { version: Version(1), .. }, .. }]),
            "{replies:?}"
        );
        assert!(matches!(pair.replies(old)[..], [Reply::Returned { .. }]));
        pair.takeover = false;
        assert_eq!(newest(&mut pair, near), (1, vec![3; 100]));
        assert_eq!(newest(&mut pair, far), (1, vec![3; 100]));
        pair.push_version(old, "k", Some(10), bytes(100), 4, None);
        pair.settle();
        assert!(pair.failed(old).text.contains("\"new\""));
        // The old owner takes the key over again.
        pair.takeover = true;
        pair.push(old, "k", bytes(100), 5, None);
        pair.settle();
        assert!(matches!(pair.replies(old)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]));
        pair.takeover = false;
        assert_eq!(newest(&mut pair, far), (1, vec![5; 100]));
        pair.ends_clean(&[(old, "old"), (new, "new"), (near, "near"), (far, "far")]);
    }
}

/// Who follows a stream waits for no version of another owner.
#[test]
fn a_stream_ends_for_its_readers_when_its_key_is_taken_over() {
    for node in [0, 1] {
        let mut pair = Pair::new();
        let (old, new) = (pair.worker(0, "old"), pair.worker(node, "new"));
        let (near, far) = (pair.worker(0, "near"), pair.worker(1, "far"));
        pair.retention = Retention { until: Until::Fetched(NonZeroU32::MIN), ..Retention::default() };
        pair.push_version(old, "k", Some(1), bytes(8), 1, None);
        pair.settle();
        for reader in [near, far] {
            pair.fetch(reader, "k", Select::Following(Version(2)));
        }
        pair.settle();
        pair.takeover = true;
        pair.push_version(new, "k", Some(1), bytes(8), 2, None);
        pair.settle();
        for reader in [near, far] {
            let failure = pair.failed(reader);
            assert_eq!(failure.code, FailureCode::VersionGone);
            assert!(failure.text.contains("\"old\"") && failure.text.contains("v1 was the last"), "{failure}");
        }
        pair.ends_clean(&[(old, "old"), (new, "new"), (near, "near"), (far, "far")]);
    }
}

#[test]
fn outlived_and_landed_keys_can_be_taken_over() {
    for landed in [false, true] {
        let mut pair = Pair::new();
        let (old, new) = (pair.worker(0, "old"), pair.worker(1, "new"));
        pair.retention = Retention { until: Until::Deleted, life: Life::Sidecar, ..Retention::default() };
        pair.push(old, "k", bytes(100), 1, landed.then_some("new"));
        pair.settle();
        if !landed {
            pair.leave(old, "old");
            pair.settle();
        }
        pair.takeover = true;
        pair.push(new, "k", bytes(100), 2, None);
        pair.settle();
        let replies = pair.replies(new);
        assert!(
            matches!(replies[..], [Reply::Answer { answer: Answer::Pushed { version: Version(1), .. }, .. }]),
            "{replies:?}"
        );
        pair.fetch(new, "k", Select::Exactly(Version(1)));
        pair.settle();
        assert_eq!(pair.fetched(new).3, [2; 100], "of the old owner's nothing is left");
        pair.command(new, crate::op::OpId(1), crate::op::Command::Delete { key: Key::new("k").unwrap() });
        pair.settle();
        let mut left = vec![(new, "new")];
        left.extend(landed.then_some((old, "old")));
        pair.ends_clean(&left);
    }
}

/// The directory repeatedly names a node that does not own the key. The fetch ends before its deadline, with
/// `NotOwner`.
#[test]
fn repeatedly_misdirected_fetch_ends_before_its_deadline() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "other", bytes(8), 1, None);
    pair.fetch(r, "other", Select::Latest);
    pair.settle();
    pair.fetched(r);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let mut times = 0;
    let k = Key::new("k").unwrap();
    let replies = loop {
        let replies = pair.replies(r);
        if !replies.is_empty() {
            break replies;
        }
        times += 1;
        let now = pair.world.now();
        pair.nodes[1].node.located(now, &k, &super::pair::name("a"), times);
        pair.settle();
        assert!(times < 100);
    };
    let [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!((failure.code, times), (FailureCode::NotOwner, 17), "{failure}");
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}
