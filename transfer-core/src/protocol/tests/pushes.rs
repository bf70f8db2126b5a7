//! Tests of pushes to a worker of another node.

use super::pair::{POOL_BYTES, Pair, Worker, bytes};
use crate::op::{Answer, FailureCode, Reply};
use crate::tensor::{DType, Select, TensorMeta, Version};
use crate::time::Time;

/// Pushes one version, and fetches and releases it. Returns the posts.
fn step(pair: &mut Pair, from: Worker, to: (Worker, &str), meta: TensorMeta, fill: u8) -> Vec<String> {
    pair.push(from, "k", meta.clone(), fill, Some(to.1));
    pair.settle();
    let replies = pair.replies(from);
    assert!(
        matches!(replies[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }, Reply::Returned { .. }]),
        "{replies:?}"
    );
    pair.fetch(to.0, "k", Select::Latest);
    pair.settle();
    let (lease, _, got, content) = pair.fetched(to.0);
    assert_eq!((content, &got), (vec![fill; meta.len_bytes() as usize], &meta));
    pair.release(to.0, lease);
    pair.settle();
    pair.posted()
}

#[test]
fn the_steady_state_is_one_write_and_one_idle() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    let first = step(&mut pair, w, (r, "ps"), bytes(100), 1);
    assert_eq!(first, ["NAME", "NAME", "NAME", "NAME", "BUFFER_REQUEST", "BUFFER_RESPONSE", "WRITE"]);
    // The second version frees the slot of the first.
    for fill in 2..20 {
        assert_eq!(step(&mut pair, w, (r, "ps"), bytes(100), fill), ["WRITE", "BUFFER_IDLE"]);
    }
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

#[test]
fn another_shape_costs_a_description_and_a_larger_one_a_request() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    step(&mut pair, w, (r, "ps"), bytes(100), 1);
    let same_size = TensorMeta::of(DType::F32, &[5, 5]).unwrap();
    assert_eq!(step(&mut pair, w, (r, "ps"), same_size, 2), ["META_DATA_UPDATE", "WRITE", "BUFFER_IDLE"]);
    assert_eq!(step(&mut pair, w, (r, "ps"), bytes(50), 3), ["META_DATA_UPDATE", "WRITE", "BUFFER_IDLE"]);
    let grown = step(&mut pair, w, (r, "ps"), bytes(300), 4);
    assert_eq!(grown, ["BUFFER_REQUEST", "BUFFER_RESPONSE", "WRITE"]);
    assert_eq!(step(&mut pair, w, (r, "ps"), bytes(300), 5), ["WRITE", "BUFFER_IDLE"]);
    assert_eq!(pair.nodes[1].node.state().snapshot(Time(0)).slots, 2);
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

#[test]
fn key_grows_with_one_slot_if_the_pool_is_too_small_for_two() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    step(&mut pair, w, (r, "ps"), bytes(POOL_BYTES / 4), 1);
    // The old version stays until the new one has landed, so the flow has only one slot at first.
    for fill in 2..6 {
        step(&mut pair, w, (r, "ps"), bytes(POOL_BYTES / 2 - 256), fill);
    }
    assert_eq!(pair.nodes[1].node.state().snapshot(Time(0)).slots, 2);
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

#[test]
fn empty_tensor_lands() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    step(&mut pair, w, (r, "ps"), TensorMeta::of(DType::F32, &[0]).unwrap(), 0);
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

#[test]
fn a_push_waits_while_the_versions_before_it_are_read() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    let mut leases = Vec::new();
    for fill in 1..3 {
        pair.push(w, "k", bytes(100), fill, Some("ps"));
        pair.settle();
        pair.fetch(r, "k", Select::Latest);
        pair.settle();
        leases.push(pair.fetched(r).0);
    }
    pair.replies(w);
    pair.push(w, "k", bytes(100), 3, Some("ps"));
    pair.settle();
    assert_eq!(pair.replies(w), []);
    pair.release(r, leases[0]);
    pair.settle();
    let replies = pair.replies(w);
    assert!(
        matches!(
            replies[..],
            [Reply::Answer { answer: Answer::Pushed { version: Version(3), .. }, .. }, Reply::Returned { .. }]
        ),
        "{replies:?}"
    );
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

/// A reader that has version 2 waits for a higher one, so the first push over a new link may not begin at 1 again. A push
/// that names its version may be one that was lost with the link.
#[test]
fn versions_rise_across_a_lost_link() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    for fill in 1..3 {
        step(&mut pair, w, (r, "ps"), bytes(100), fill);
    }
    for (round, (named, version)) in [(None, 3), (Some(3), 3), (None, 4)].into_iter().enumerate() {
        pair.world.break_connection(2 * round, "the cable was pulled");
        pair.settle();
        // Nothing was pushed over this link when it is lost.
        pair.reserve(w, "k", bytes(100), "ps");
        pair.settle();
        pair.world.break_connection(2 * round + 1, "the cable was pulled");
        pair.settle();
        pair.replies(w);
        pair.push_version(w, "k", named, bytes(100), 3, Some("ps"));
        pair.settle();
        let replies = pair.replies(w);
        let pushed = matches!(replies[0], Reply::Answer { answer: Answer::Pushed { version: Version(v), .. }, .. } if v == version);
        assert!(pushed, "{version}: {replies:?}");
    }
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

#[test]
fn preparing_leaves_one_write_for_the_first_push() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    pair.reserve(w, "k", bytes(100), "ps");
    pair.settle();
    assert!(matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Reserved, .. }]));
    // The slots must be in force when the peer learns of them, so the answer waits for the PONG.
    assert_eq!(pair.posted(), ["NAME", "PING", "PONG"]);
    assert_eq!(step(&mut pair, w, (r, "ps"), bytes(100), 1), ["WRITE"]);
    assert_eq!(step(&mut pair, w, (r, "ps"), bytes(100), 2), ["WRITE", "BUFFER_IDLE"]);
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

#[test]
fn impossible_push_fails_with_the_reason() {
    let mut pair = Pair::new();
    let (w, v, r) = (pair.worker(0, "w"), pair.worker(0, "v"), pair.worker(1, "ps"));
    pair.push(w, "k", bytes(8), 0, Some("nobody"));
    pair.settle();
    assert_eq!(pair.failed_with(w), FailureCode::UnknownWorker);
    pair.push(w, "k", bytes(POOL_BYTES / 2), 0, Some("ps"));
    pair.settle();
    assert_eq!(pair.failed_with(w), FailureCode::TooLarge, "two slots of half the pool do not fit");
    step(&mut pair, w, (r, "ps"), bytes(8), 1);
    for to in [None, Some("ps")] {
        pair.push(v, "k", bytes(8), 0, to);
        pair.settle();
        let failure = pair.failed(v);
        assert_eq!(failure.code, FailureCode::KeyOwned);
        assert!(failure.text.contains("\"w\""), "{failure}");
    }
    pair.push_version(w, "k", Some(1), bytes(8), 0, Some("ps"));
    pair.settle();
    assert_eq!(pair.failed_with(w), FailureCode::VersionNotRising);
    pair.push(w, "k", bytes(8), 2, Some("ps"));
    pair.settle();
    pair.replies(w);
    pair.leave(r, "ps");
    pair.settle();
    pair.push(w, "k", bytes(8), 3, Some("ps"));
    pair.settle();
    assert_eq!(pair.failed_with(w), FailureCode::UnknownWorker);
    pair.ends_clean(&[(w, "w"), (v, "v")]);
}

#[test]
fn one_key_goes_to_two_workers_of_a_node_in_turn() {
    let mut pair = Pair::new();
    let w = pair.worker(0, "w");
    let targets = [(pair.worker(1, "one"), "one"), (pair.worker(1, "two"), "two")];
    for round in 0..4 {
        for (i, to) in targets.into_iter().enumerate() {
            pair.push_version(w, "k", Some(round + 1), bytes(8), 1, Some(to.1));
            pair.settle();
            let replies = pair.replies(w);
            assert!(
                matches!(replies[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }, Reply::Returned { .. }]),
                "{round}.{i}: {replies:?}"
            );
        }
    }
    assert_eq!(pair.downs, [""; 0]);
    pair.ends_clean(&[(w, "w"), (targets[0].0, "one"), (targets[1].0, "two")]);
}

#[test]
fn worker_that_moves_to_the_node_of_its_target_keeps_its_key() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    step(&mut pair, w, (r, "ps"), bytes(8), 1);
    pair.leave(w, "w");
    let w = pair.worker(1, "w");
    pair.push(w, "k", bytes(8), 2, None);
    pair.settle();
    assert!(matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Pushed { version: Version(1), .. }, .. }]));
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    assert_eq!(pair.fetched(r).3, [2; 8]);
    assert_eq!(pair.downs, [""; 0]);
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

/// Returns whether the push has succeeded.
fn landed(pair: &mut Pair, w: Worker) -> bool {
    pair.replies(w).iter().any(|r| matches!(r, Reply::Answer { answer: Answer::Pushed { .. }, .. }))
}

#[test]
fn idle_slots_go_to_flows_that_wait_for_room() {
    // There is room for four slots, and each of three keys needs two.
    let size = POOL_BYTES / 4 - 64;
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    for round in 1..4 {
        for key in ["one", "two", "three"] {
            pair.push(w, key, bytes(size), round, Some("ps"));
            pair.settle();
            assert!(landed(&mut pair, w), "{key} in round {round}");
        }
    }
    let posted = pair.posted();
    assert!(posted.iter().any(|m| m == "BUFFER_RECALL") && posted.iter().any(|m| m == "RECALLED"), "{posted:?}");
    for key in ["one", "two", "three"] {
        pair.fetch(r, key, Select::Latest);
        pair.settle();
        let (lease, _, _, got) = pair.fetched(r);
        assert_eq!(got[..8], [3; 8], "{key}");
        pair.release(r, lease);
    }
    assert_eq!(pair.downs, [""; 0]);
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

/// A large tensor waits until the reader of another large one is done. The slots of small flows would not make enough
/// room for it, so the flows keep them.
#[test]
fn idle_slots_are_not_recalled_if_they_are_not_enough() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    pair.push(w, "small", bytes(100), 1, Some("ps"));
    pair.push(w, "held", bytes(POOL_BYTES / 2), 2, None);
    pair.push(w, "large", bytes(POOL_BYTES / 2), 3, None);
    pair.settle();
    pair.replies(w);
    pair.fetch(r, "held", Select::Latest);
    pair.settle();
    let (lease, ..) = pair.fetched(r);
    pair.fetch(r, "large", Select::Latest);
    pair.settle();
    pair.posted();
    for round in 2..6 {
        pair.push(w, "small", bytes(100), round, Some("ps"));
        pair.settle();
        assert!(landed(&mut pair, w), "round {round}");
    }
    assert!(!pair.posted().iter().any(|m| m == "BUFFER_RECALL"));
    pair.release(r, lease);
    pair.settle();
    let (lease, _, _, got) = pair.fetched(r);
    assert_eq!(got[..8], [3; 8]);
    pair.release(r, lease);
    assert_eq!(pair.downs, [""; 0]);
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

#[test]
fn operator_recalls_idle_slots_and_published_versions_stay() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    step(&mut pair, w, (r, "ps"), bytes(1000), 1);
    pair.push(w, "k", bytes(1000), 2, Some("ps"));
    pair.settle();
    pair.replies(w);
    pair.posted();
    let used = |pair: &Pair| pair.nodes[1].node.state().snapshot(Time(0)).pools.iter().map(|p| p.used).sum::<u64>();
    let before = used(&pair);
    assert_eq!(pair.nodes[1].node.recall_idle_slots(), 1);
    pair.settle();
    assert_eq!(pair.posted(), ["BUFFER_RECALL", "RECALLED"]);
    assert_eq!(used(&pair) * 2, before, "one of two slots");
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let (lease, version, _, got) = pair.fetched(r);
    assert_eq!((version, got), (2, vec![2; 1000]));
    pair.release(r, lease);
    pair.posted();
    assert_eq!(step(&mut pair, w, (r, "ps"), bytes(1000), 3), ["BUFFER_REQUEST", "BUFFER_RESPONSE", "WRITE"]);
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

/// No version could follow the highest number, and a push with it could be repeated without end.
#[test]
fn highest_number_is_refused_as_a_version() {
    for to in [None, Some("far")] {
        let mut pair = Pair::new();
        let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
        for _ in 0..2 {
            pair.push_version(w, "k", Some(u64::MAX), bytes(100), 1, to);
            pair.settle();
            let failure = pair.failed(w);
            assert_eq!(failure.code, FailureCode::Invalid);
            assert!(failure.text.contains("v18446744073709551614"), "{failure}");
        }
        pair.push_version(w, "k", Some(u64::MAX - 1), bytes(100), 2, to);
        pair.settle();
        assert!(matches!(
            pair.replies(w)[..],
            [Reply::Answer { answer: Answer::Pushed { version: Version::LAST, .. }, .. }, ..]
        ));
        // Neither the same version nor a push without a version number is possible then.
        for (version, code) in [(Some(u64::MAX - 1), FailureCode::VersionNotRising), (None, FailureCode::Invalid)] {
            pair.push_version(w, "k", version, bytes(100), 3, to);
            pair.settle();
            assert_eq!(pair.failed(w).code, code);
        }
        pair.ends_clean(&[(w, "w"), (far, "far")]);
    }
}
