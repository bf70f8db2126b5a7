//! Tests of versions that are taken back to be written again.

use super::pair::{Pair, Worker, bytes, key};
use crate::op::{Answer, Command, FailureCode, OpId, Reply, Request, TakeBack};
use crate::tensor::{Retention, Select, Until, Version};
use crate::time::Time;
use std::time::Duration;

fn take_back(pair: &mut Pair, w: Worker, version: Option<u64>) {
    let (op, key, version) = (OpId(900), key("k"), version.map(Version));
    pair.command(w, op, Command::TakeBack(TakeBack { key, version, timeout: Duration::from_secs(1) }));
    pair.settle();
}

#[test]
fn take_back_waits_for_readers_on_both_nodes_and_fetches_wait_for_the_next_version() {
    let mut pair = Pair::new();
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    pair.push(w, "k", bytes(100), 1, None);
    pair.fetch(near, "k", Select::Latest);
    pair.settle();
    let lease = pair.fetched(near).0;
    pair.replies(w);
    take_back(&mut pair, w, None);
    pair.fetch(far, "k", Select::Latest);
    pair.settle();
    assert_eq!((pair.replies(w), pair.replies(far)), (vec![], vec![]));
    pair.release(near, lease);
    pair.settle();
    let replies = pair.replies(w);
    assert!(
        matches!(replies[..], [Reply::Answer { answer: Answer::TakenBack { version: Version(1), .. }, .. }]),
        "{replies:?}"
    );
    pair.push(w, "k", bytes(100), 2, None);
    pair.settle();
    assert_eq!(pair.fetched(far).1, 2);
    // A version that is being sent counts as being read.
    pair.fetch(far, "k", Select::Latest);
    while pair.nodes[0].node.state().snapshot(Time(0)).on_links.serves == 0 {
        pair.poll();
        assert!(pair.world.step());
    }
    pair.replies(w);
    take_back(&mut pair, w, None);
    assert!(matches!(
        pair.replies(w)[..],
        [Reply::Answer { answer: Answer::TakenBack { version: Version(2), .. }, .. }]
    ));
    assert_eq!(pair.fetched(far).3, [2; 100]);
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

#[test]
fn version_is_published_again_if_its_readers_exceed_the_deadline() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(0, "r"));
    pair.push(w, "k", bytes(100), 1, None);
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let lease = pair.fetched(r).0;
    pair.replies(w);
    take_back(&mut pair, w, None);
    pair.wait(Duration::from_millis(10));
    pair.fetch(r, "k", Select::Latest);
    pair.wait(Duration::from_millis(990));
    let failure = pair.failed(w);
    assert_eq!(failure.code, FailureCode::Deadline);
    assert!(failure.text.contains("version 1") && failure.text.contains("1 places"), "{failure}");
    let again = pair.fetched(r);
    assert_eq!((again.1, again.3), (1, vec![1; 100]));
    pair.release(r, again.0);
    pair.release(r, lease);
    take_back(&mut pair, w, Some(1));
    assert!(matches!(
        pair.replies(w)[..],
        [Reply::Answer { answer: Answer::TakenBack { version: Version(1), .. }, .. }]
    ));
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn an_older_version_is_taken_back_and_the_newest_stays() {
    let mut pair = Pair::new();
    let (w, r, other) = (pair.worker(0, "w"), pair.worker(0, "r"), pair.worker(0, "other"));
    pair.retention = Retention { until: Until::Deleted, ..Retention::default() };
    pair.push(w, "k", bytes(100), 1, None);
    pair.push(w, "k", bytes(100), 2, None);
    pair.settle();
    pair.replies(w);
    pair.fetch(r, "k", Select::Exactly(Version(1)));
    pair.settle();
    let lease = pair.fetched(r).0;
    take_back(&mut pair, w, Some(1));
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    assert_eq!(pair.fetched(r).1, 2);
    pair.request(w, Request::Cancel { op: OpId(900) });
    pair.settle();
    assert_eq!(pair.failed_with(w), FailureCode::Cancelled);
    pair.fetch(r, "k", Select::Exactly(Version(1)));
    pair.settle();
    let second = pair.fetched(r).0;
    assert_eq!(second, lease);
    take_back(&mut pair, w, Some(1));
    pair.leave(r, "r");
    pair.settle();
    assert!(
        matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::TakenBack { version: Version(1), .. }, .. }]),
        "its reader's end is enough"
    );
    take_back(&mut pair, w, Some(1));
    assert_eq!(pair.failed_with(w), FailureCode::VersionGone);
    take_back(&mut pair, other, None);
    assert_eq!(pair.failed_with(other), FailureCode::NotOwner);
    pair.ends_clean(&[(w, "w"), (other, "other")]);
}
