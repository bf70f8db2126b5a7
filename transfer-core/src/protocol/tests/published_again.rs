//! A worker that comes back to a new sidecar publishes its versions again, one by one. A fetch of the newest version
//! must not get an older one meanwhile.

use super::pair::{Pair, Worker, bytes};
use crate::op::{Answer, FailureCode, FetchedTensor, OpId, Reply};
use crate::protocol::Tenant;
use crate::tensor::{Life, Retention, Select, Spill, Until, Version};
use std::time::Duration;

const STAYS: Retention = Retention { until: Until::Deleted, life: Life::Session, spill: Spill::Never };

struct Back {
    pair: Pair,
    giver: Worker,
    near: Worker,
    far: Worker,
}

impl Back {
    /// Publishes the first version, and announces that others follow.
    fn new(retention: Retention) -> Back {
        let mut pair = Pair::new();
        for n in &mut pair.nodes {
            n.node.add_board(Tenant::User(0), 8);
        }
        let (giver, near, far) = (pair.worker(0, "giver"), pair.worker(0, "near"), pair.worker(1, "far"));
        pair.retention = retention;
        let mut back = Back { pair, giver, near, far };
        back.publish(5, true);
        back
    }

    fn publish(&mut self, version: u64, more_follow: bool) -> OpId {
        self.pair.more_follow = more_follow;
        let op = self.pair.push_version(self.giver, "k", Some(version), bytes(8), version as u8, None);
        self.pair.settle();
        op
    }

    /// Returns the version that a reader has got, if any.
    fn got(&mut self, reader: Worker) -> Option<u64> {
        let replies = self.pair.replies(reader);
        let [Reply::Answer { answer: Answer::Fetched { lease, tensor: FetchedTensor { version, .. } }, .. }] =
            &replies[..]
        else {
            assert_eq!(replies, []);
            return None;
        };
        self.pair.release(reader, *lease);
        self.pair.settle();
        Some(version.0)
    }

    fn fetch(&mut self, reader: Worker, select: Select) -> Option<u64> {
        self.pair.fetch(reader, "k", select);
        self.pair.settle();
        self.got(reader)
    }

    fn end(self) {
        self.pair.ends_clean(&[(self.giver, "giver"), (self.near, "near"), (self.far, "far")]);
    }
}

// Promise: dead-sidecar, seen to fail
#[test]
fn latest_waits_for_the_newest_and_an_older_version_can_be_fetched() {
    let mut back = Back::new(STAYS);
    let (near, far) = (back.near, back.far);
    for reader in [near, far] {
        assert_eq!(back.fetch(reader, Select::Exactly(Version(5))), Some(5));
        assert_eq!(back.fetch(reader, Select::Latest), None);
        assert_eq!(back.fetch(reader, Select::AtLeast(Version(2))), None);
    }
    back.publish(7, true);
    assert_eq!((back.got(near), back.got(far)), (None, None));
    assert!(back.pair.board.find(Tenant::User(0), "k").is_none(), "nobody finds it without asking either");
    back.publish(9, false);
    for reader in [near, far] {
        let versions: Vec<_> = back.pair.replies(reader).iter().map(version_of).collect();
        assert_eq!(versions, [Some(9), Some(9)]);
        back.pair.fetch(reader, "k", Select::Exactly(Version(6)));
        back.pair.settle();
        assert_eq!(back.pair.failed_with(reader), FailureCode::VersionGone);
    }
    assert_eq!(back.fetch(near, Select::Latest), Some(9));
    assert_eq!(back.pair.board.find(Tenant::User(0), "k").map(|shown| shown.version), Some(Version(9)));
}

fn version_of(reply: &Reply) -> Option<u64> {
    let Reply::Answer { answer: Answer::Fetched { tensor: FetchedTensor { version, .. }, .. }, .. } = reply else {
        return None;
    };
    Some(version.0)
}

#[test]
fn latest_is_the_highest_published_version_if_the_last_push_fails() {
    // The first is refused at once, the second when its turn comes.
    for last in [u64::MAX, 3] {
        let mut back = Back::new(STAYS);
        let (near, far) = (back.near, back.far);
        assert_eq!((back.fetch(near, Select::Latest), back.fetch(far, Select::Latest)), (None, None));
        back.publish(last, false);
        assert_eq!((back.got(near), back.got(far)), (Some(5), Some(5)));
        back.end();
    }
}

#[test]
fn failed_push_before_the_last_changes_nothing() {
    let mut back = Back::new(STAYS);
    let near = back.near;
    assert_eq!(back.fetch(near, Select::Latest), None);
    back.publish(3, true);
    assert_eq!(back.got(near), None);
    back.publish(9, false);
    assert_eq!(back.got(near), Some(9));
    back.end();
}

#[test]
fn versions_that_outlive_a_worker_are_found_without_its_last_one() {
    let mut back = Back::new(Retention { life: Life::Sidecar, ..STAYS });
    let near = back.near;
    assert_eq!(back.fetch(near, Select::Latest), None);
    back.pair.leave(back.giver, "giver");
    back.pair.settle();
    assert_eq!(back.got(near), Some(5));
}

#[test]
fn fetches_end_at_their_deadline_if_the_last_version_never_comes() {
    let mut back = Back::new(STAYS);
    let (near, far) = (back.near, back.far);
    assert_eq!((back.fetch(near, Select::Latest), back.fetch(far, Select::Latest)), (None, None));
    back.pair.wait(Duration::from_secs(2));
    for reader in [near, far] {
        assert_eq!(back.pair.failed_with(reader), FailureCode::Deadline);
    }
    back.end();
}
