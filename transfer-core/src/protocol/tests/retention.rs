//! Tests of how long versions stay published.

use super::pair::{Pair, Worker, bytes, key};
use crate::op::{Answer, Command, FailureCode, OpId, Reply, Request};
use crate::tensor::{Life, Retention, Select, Until, Version};
use crate::time::Time;
use std::num::NonZeroU32;
use std::time::Duration;

const SESSION: Life = Life::Session;

fn fetched_times(n: u32) -> Retention {
    Retention { until: Until::Fetched(NonZeroU32::new(n).unwrap()), life: SESSION, ..Retention::default() }
}

fn exactly(version: u64) -> Select {
    Select::Exactly(Version(version))
}

/// Fetches and releases a version. Returns its number and its bytes.
fn take(pair: &mut Pair, r: Worker, select: Select) -> (u64, Vec<u8>) {
    pair.fetch(r, "k", select);
    pair.settle();
    let (lease, version, _, got) = pair.fetched(r);
    pair.release(r, lease);
    pair.settle();
    (version, got)
}

fn refused(pair: &mut Pair, r: Worker, select: Select) -> FailureCode {
    pair.fetch(r, "k", select);
    pair.settle();
    pair.failed_with(r)
}

/// Makes two pairs of the worker that pushes and a reader: one reader at the same node, one at the other.
fn readers(pair: &mut Pair) -> [(Worker, Worker, &'static str); 2] {
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    [(w, near, "near"), (w, far, "far")]
}

#[test]
fn a_version_that_is_kept_until_deleted_stays_beside_newer_ones() {
    for i in 0..2 {
        let mut pair = Pair::new();
        let all = readers(&mut pair);
        let (w, r, _) = all[i];
        pair.retention = Retention { until: Until::Deleted, life: SESSION, ..Retention::default() };
        pair.push(w, "k", bytes(100), 1, None);
        pair.push(w, "k", bytes(100), 2, None);
        pair.retention = Retention::default();
        pair.push(w, "k", bytes(100), 3, None);
        pair.push(w, "k", bytes(100), 4, None);
        pair.settle();
        let replies = pair.replies(w);
        let returned = replies.iter().filter(|r| matches!(r, Reply::Returned { .. })).count();
        assert_eq!(returned, 1, "only the third was replaced: {replies:?}");
        assert_eq!(take(&mut pair, r, Select::Latest), (4, vec![4; 100]));
        assert_eq!(take(&mut pair, r, exactly(1)), (1, vec![1; 100]));
        assert_eq!(take(&mut pair, r, exactly(2)), (2, vec![2; 100]));
        assert_eq!(refused(&mut pair, r, exactly(3)), FailureCode::VersionGone);
        pair.command(w, OpId(1), Command::Delete { key: key("k") });
        pair.settle();
        let returned = pair.replies(w).iter().filter(|r| matches!(r, Reply::Returned { .. })).count();
        assert_eq!(returned, 3);
        pair.ends_clean(&all.map(|(_, r, name)| (r, name)).into_iter().chain([(w, "w")]).collect::<Vec<_>>());
    }
}

// Promise: end-of-a-stream, seen to fail
#[test]
fn owner_hears_how_many_versions_wait_for_their_fetches() {
    for i in 0..2 {
        let mut pair = Pair::new();
        let all = readers(&mut pair);
        let (w, r, _) = all[i];
        pair.retention = fetched_times(1);
        for version in 1..=3 {
            pair.push(w, "k", bytes(100), version, None);
        }
        pair.settle();
        pair.replies(w);
        let count = |number, name| Request::CountUnfetched { number, key: key(name) };
        let told = |replies: Vec<Reply>| -> Vec<_> {
            let unfetched = replies.into_iter().filter_map(|reply| match reply {
                Reply::Unfetched { number, left } => Some((number, left)),
                _ => None,
            });
            unfetched.collect()
        };
        // Another worker's key, and one that is not there, have no versions to count.
        pair.request(r, count(1, "k"));
        pair.settle();
        assert_eq!(told(pair.replies(r)), [(1, None)]);
        pair.request(w, count(2, "none"));
        // A later request takes the place of an earlier one.
        pair.request(w, count(3, "k"));
        pair.request(w, count(4, "k"));
        // A version that is still read has got all its fetches.
        pair.fetch(r, "k", exactly(1));
        pair.settle();
        let (lease, ..) = pair.fetched(r);
        for version in 2..=3 {
            take(&mut pair, r, exactly(version));
        }
        let left = [(2, None), (3, Some(3)), (4, Some(3)), (4, Some(2)), (4, Some(1)), (4, Some(0))];
        assert_eq!(told(pair.replies(w)), left);
        // It ends with 0, and with the key.
        pair.push(w, "k", bytes(100), 4, None);
        pair.settle();
        take(&mut pair, r, exactly(4));
        assert_eq!((told(pair.replies(w)), told(pair.replies(r))), (vec![], vec![]));
        pair.push(w, "k", bytes(100), 5, None);
        pair.settle();
        pair.request(w, count(5, "k"));
        pair.command(w, OpId(100), Command::Delete { key: key("k") });
        pair.settle();
        assert_eq!(told(pair.replies(w)), [(5, Some(1))]);
        pair.release(r, lease);
        pair.settle();
        pair.ends_clean(&all.map(|(_, r, name)| (r, name)).into_iter().chain([(w, "w")]).collect::<Vec<_>>());
    }
}

#[test]
fn version_is_gone_after_its_number_of_fetches() {
    for i in 0..2 {
        let mut pair = Pair::new();
        let all = readers(&mut pair);
        let (w, r, _) = all[i];
        pair.retention = fetched_times(2);
        pair.push(w, "k", bytes(100), 1, None);
        pair.push(w, "k", bytes(100), 2, None);
        pair.settle();
        pair.replies(w);
        assert_eq!(take(&mut pair, r, exactly(1)).0, 1);
        assert_eq!(pair.replies(w), []);
        assert_eq!(take(&mut pair, r, exactly(1)).0, 1);
        assert!(matches!(pair.replies(w)[..], [Reply::Returned { .. }]), "it goes back after the second");
        assert_eq!(refused(&mut pair, r, exactly(1)), FailureCode::VersionGone);
        assert_eq!(take(&mut pair, r, Select::Latest).0, 2);
        assert_eq!(take(&mut pair, r, Select::Latest).0, 2);
        // The newest version is used up, so the next fetch waits for a newer one.
        pair.fetch(r, "k", Select::Latest);
        pair.settle();
        assert_eq!(pair.replies(r), []);
        pair.push(w, "k", bytes(100), 3, None);
        pair.settle();
        assert_eq!(pair.fetched(r).1, 3);
        pair.ends_clean(&all.map(|(_, r, name)| (r, name)).into_iter().chain([(w, "w")]).collect::<Vec<_>>());
    }
}

// Promise: retention, seen to fail
#[test]
fn waiters_use_up_the_fetches_of_a_version() {
    let mut pair = Pair::new();
    let all = readers(&mut pair);
    let (w, near, far) = (all[0].0, all[0].1, all[1].1);
    for _ in 0..2 {
        pair.fetch(near, "k", Select::Latest);
        pair.fetch(far, "k", Select::Latest);
    }
    pair.settle();
    pair.retention = fetched_times(3);
    pair.push(w, "k", bytes(100), 1, None);
    pair.settle();
    let got = |replies: Vec<Reply>| {
        replies.iter().filter(|r| matches!(r, Reply::Answer { answer: Answer::Fetched { .. }, .. })).count()
    };
    assert_eq!(got(pair.replies(near)) + got(pair.replies(far)), 3);
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

#[test]
fn cancelled_fetch_of_a_peer_does_not_count() {
    let mut pair = Pair::new();
    let all = readers(&mut pair);
    let (w, near, far) = (all[0].0, all[0].1, all[1].1);
    pair.retention = fetched_times(1);
    pair.push(w, "k", bytes(100), 1, None);
    let op = pair.fetch(far, "k", Select::Latest);
    // The owner has sent the description, and holds the version for that request.
    let told = |pair: &Pair| pair.nodes[0].node.state().snapshot(Time(0)).on_links.serves == 1;
    while !told(&pair) {
        pair.poll();
        assert!(pair.world.step());
    }
    pair.fetch(near, "k", Select::Latest);
    assert_eq!(pair.replies(near), []);
    pair.request(far, Request::Cancel { op });
    pair.settle();
    assert_eq!(pair.failed_with(far), FailureCode::Cancelled);
    assert_eq!(pair.fetched(near).1, 1);
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

#[test]
fn version_that_outlives_its_worker_stays_and_its_key_goes_to_the_next_of_that_name() {
    for i in 0..2 {
        let mut pair = Pair::new();
        let all = readers(&mut pair);
        let (w, r, _) = all[i];
        pair.retention = Retention { until: Until::Replaced, life: Life::Sidecar, ..Retention::default() };
        pair.push(w, "k", bytes(100), 1, None);
        pair.push_version(w, "k", Some(7), bytes(100), 2, None);
        pair.settle();
        pair.leave(w, "w");
        pair.settle();
        assert_eq!(take(&mut pair, r, Select::Latest), (7, vec![2; 100]));
        // No other worker may own the key. The next worker of that name may begin with any version.
        pair.push(all[0].1, "k", bytes(8), 9, None);
        pair.settle();
        assert_eq!(pair.failed_with(all[0].1), FailureCode::KeyOwned);
        let heir = pair.worker(0, "w");
        assert_eq!(take(&mut pair, r, Select::Latest).0, 7);
        pair.retention = Retention::default();
        pair.push_version(heir, "k", Some(3), bytes(100), 3, None);
        pair.settle();
        assert_eq!(take(&mut pair, r, Select::Latest), (3, vec![3; 100]));
        pair.ends_clean(&[(all[0].1, "near"), (all[1].1, "far"), (heir, "w")]);
    }
}

#[test]
fn version_of_an_earlier_epoch_is_found_only_by_its_exact_number() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(0, "r"));
    pair.retention = Retention { until: Until::Deleted, life: Life::Sidecar, ..Retention::default() };
    pair.push_version(w, "k", Some(10), bytes(8), 1, None);
    pair.push_version(w, "k", Some(11), bytes(8), 2, None);
    pair.settle();
    pair.leave(w, "w");
    let heir = pair.worker(0, "w");
    pair.push_version(heir, "k", Some(1), bytes(8), 3, None);
    pair.settle();
    assert_eq!(take(&mut pair, r, Select::Latest).0, 1);
    assert_eq!(take(&mut pair, r, exactly(10)), (10, vec![1; 8]));
    pair.fetch(r, "k", Select::AtLeast(Version(5)));
    pair.settle();
    assert_eq!(pair.replies(r), [], "it waits for this epoch's");
    // A version of this epoch with the same number replaces the earlier one.
    pair.push_version(heir, "k", Some(11), bytes(8), 4, None);
    pair.settle();
    assert_eq!(pair.fetched(r).1, 11);
    assert_eq!(take(&mut pair, r, exactly(11)), (11, vec![4; 8]));
    pair.command(heir, OpId(1), Command::Delete { key: key("k") });
    pair.settle();
    pair.ends_clean(&[(heir, "w"), (r, "r")]);
}

// Promise: subscribers, seen to fail
#[test]
fn reader_of_another_version_than_the_one_it_has_seen_goes_back_only_in_another_epoch() {
    let after = |version| Select::After(Version(version));
    for i in 0..2 {
        let mut pair = Pair::new();
        let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
        let r = [near, far][i];
        pair.retention = fetched_times(1);
        pair.push_version(w, "k", Some(4), bytes(8), 1, None);
        pair.push_version(w, "k", Some(5), bytes(8), 2, None);
        pair.settle();
        assert_eq!(take(&mut pair, r, Select::Latest).0, 5);
        pair.fetch(r, "k", after(5));
        pair.settle();
        assert_eq!(pair.replies(r), [], "4 has a fetch left, and is older");
        pair.push_version(w, "k", Some(6), bytes(8), 3, None);
        pair.settle();
        let (lease, version, ..) = pair.fetched(r);
        assert_eq!(version, 6);
        pair.release(r, lease);
        pair.settle();
        // It waits where it is, and the owner is not the one that it was.
        pair.fetch(r, "k", after(6));
        pair.settle();
        pair.leave(w, "w");
        let heir = pair.worker(0, "w");
        pair.retention = Retention::default();
        pair.push_version(heir, "k", Some(2), bytes(8), 4, None);
        pair.settle();
        let (lease, version, ..) = pair.fetched(r);
        assert_eq!(version, 2);
        pair.release(r, lease);
        assert_eq!(take(&mut pair, r, after(1)).0, 2);
        assert_eq!(take(&mut pair, r, after(7)).0, 2);
        pair.fetch(r, "k", after(2));
        pair.settle();
        assert_eq!(pair.replies(r), []);
        pair.push_version(heir, "k", Some(3), bytes(8), 5, None);
        pair.settle();
        let (lease, version, ..) = pair.fetched(r);
        assert_eq!(version, 3);
        pair.release(r, lease);
        pair.settle();
        pair.ends_clean(&[(heir, "w"), (near, "near"), (far, "far")]);
    }
}

#[test]
fn landed_versions_keep_their_retention_and_their_flow_continues() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.retention = Retention { until: Until::Deleted, life: Life::Sidecar, ..Retention::default() };
    for fill in 1..6 {
        pair.push(w, "k", bytes(1000), fill, Some("r"));
        pair.settle();
        assert!(
            matches!(pair.replies(w)[0], Reply::Answer { answer: Answer::Pushed { .. }, .. }),
            "two slots are enough for any number"
        );
    }
    for version in 1..6u8 {
        assert_eq!(take(&mut pair, r, exactly(version.into())), (version.into(), vec![version; 1000]));
    }
    pair.leave(w, "w");
    pair.settle();
    assert_eq!(take(&mut pair, r, Select::Latest).0, 5);
    let heir = pair.worker(0, "w");
    pair.retention = fetched_times(1);
    pair.push(heir, "k", bytes(1000), 9, Some("r"));
    pair.settle();
    assert_eq!(take(&mut pair, r, Select::Latest), (1, vec![9; 1000]));
    pair.wait(Duration::from_millis(1));
    // When the owner ends, only the versions that do not outlive it end.
    pair.leave(heir, "w");
    pair.settle();
    assert_eq!(take(&mut pair, r, exactly(3)).0, 3);
    assert_eq!(pair.nodes[1].node.state().snapshot(Time(0)).slots, 0);
    let last = pair.worker(1, "w");
    pair.command(last, OpId(1), Command::Delete { key: key("k") });
    pair.settle();
    assert!(matches!(pair.replies(last)[..], [Reply::Answer { answer: Answer::Deleted, .. }]));
    pair.ends_clean(&[(last, "w"), (r, "r")]);
}

/// Lets the nodes look for parents as often as it takes until an absent one counts as gone.
fn look_often(pair: &mut Pair) {
    for _ in 0..8 {
        pair.wait(Duration::from_secs(2));
    }
}

// Promise: rows-of-dead-workers
#[test]
fn version_that_stays_with_its_parent_ends_with_it() {
    // The parent is published at the same node, at the other one, or is published at the other one and then outlives its
    // worker together with its own parent.
    for (node, chain) in [(0, false), (1, false), (1, true)] {
        let mut pair = Pair::new();
        let (w, owner, r) = (pair.worker(0, "w"), pair.worker(node, "owner"), pair.worker(1, "r"));
        pair.push(owner, "x", bytes(8), 1, None);
        pair.retention.life = Life::Parent;
        if chain {
            let middle = pair.worker(1, "middle");
            pair.push(middle, "x/y", bytes(8), 1, None);
            pair.settle();
            pair.leave(middle, "middle");
        }
        let name = if chain { "x/y/z" } else { "x/z" };
        pair.push(w, name, bytes(100), 7, None);
        pair.settle();
        pair.retention = Retention::default();
        pair.leave(w, "w");
        for _ in 0..3 {
            look_often(&mut pair);
            pair.fetch(r, name, Select::Latest);
            pair.settle();
            let (lease, _, _, got) = pair.fetched(r);
            assert_eq!(got, vec![7; 100]);
            pair.release(r, lease);
        }
        pair.command(owner, OpId(1), Command::Delete { key: key("x") });
        pair.settle();
        look_often(&mut pair);
        look_often(&mut pair);
        assert_eq!(pair.nodes.iter().map(|n| n.node.state().snapshot(Time(0)).blobs).sum::<u64>(), 0);
        pair.ends_clean(&[(owner, "owner"), (r, "r")]);
    }
}

// Promise: rows-of-dead-workers
#[test]
fn version_without_a_parent_cannot_stay_with_it() {
    let mut pair = Pair::new();
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    pair.retention.life = Life::Parent;
    pair.push(w, "k", bytes(8), 1, None);
    pair.settle();
    assert_eq!(pair.failed_with(w), FailureCode::Invalid);
    pair.push(w, "x/k", bytes(8), 1, Some("far"));
    pair.settle();
    assert_eq!(pair.failed_with(w), FailureCode::Invalid);
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}
