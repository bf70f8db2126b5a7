//! Tests of fetches of the same by several workers of a node: the version comes once.

use super::pair::{Pair, Worker, bytes, key};
use super::solo::{LINK, Solo};
use crate::fabric::FabricKind;
use crate::op::{Answer, Command, FailureCode, Fetch, FetchedTensor, LeaseId, OpId, Reply, Request};
use crate::protocol::landing::SlotState;
use crate::protocol::rules::{Broken, Rules};
use crate::protocol::{NodeConfig, SharedFetches, Tenant};
use crate::tensor::{Excerpt, Retention, Select, Slice, Until, Version};
use crate::wire::landing::{Header, SlotNumber};
use crate::wire::message::{Body, Role};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

const LEN: u64 = 1000;

/// Workers of the node that does not have the key.
fn readers<const N: usize>(pair: &mut Pair) -> [Worker; N] {
    std::array::from_fn(|n| pair.worker(1, &format!("r{n}")))
}

fn count(posted: &[String], what: &str) -> usize {
    posted.iter().filter(|word| *word == what).count()
}

fn shared(pair: &Pair) -> SharedFetches {
    pair.nodes[1].node.state().meters().shared()
}

/// Returns the only answer of a worker.
#[track_caller]
fn answer(pair: &mut Pair, r: Worker) -> (LeaseId, FetchedTensor) {
    let replies = pair.replies(r);
    let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else { panic!("{replies:?}") };
    (*lease, tensor.clone())
}

/// Ends all workers.
fn end(pair: Pair, owner: Worker, readers: &[Worker]) {
    let names: Vec<_> = (0..readers.len()).map(|n| format!("r{n}")).collect();
    let readers = readers.iter().copied().zip(names.iter().map(String::as_str));
    pair.ends_clean(&readers.chain([(owner, "w")]).collect::<Vec<_>>());
}

// Promise: one-pull-for-a-node, seen to fail
#[test]
fn eight_workers_of_a_node_get_a_version_that_came_once() {
    for is_early in [false, true] {
        let mut pair = Pair::new();
        let (w, all) = (pair.worker(0, "w"), readers::<8>(&mut pair));
        if !is_early {
            pair.push(w, "k", bytes(LEN), 7, None);
        }
        for r in all {
            pair.fetch(r, "k", Select::Latest);
        }
        pair.settle();
        if is_early {
            pair.push(w, "k", bytes(LEN), 7, None);
            pair.settle();
        }
        let posted = pair.posted();
        assert_eq!((count(&posted, "WRITE"), count(&posted, "TENSOR_REQUEST")), (1, 2), "{posted:?}");
        assert_eq!(count(&posted, "UNCHANGED"), 1);
        let answers = all.map(|r| answer(&mut pair, r));
        let [(_, first), others @ ..] = &answers;
        assert_eq!(pair.memories[1].read(first.slice).unwrap(), [7; LEN as usize]);
        assert_eq!((first.report.fabric, first.report.bytes), (FabricKind::Sim, LEN));
        for (_, other) in others {
            assert_eq!((other.slice, other.version), (first.slice, first.version), "the same memory");
            let report = other.report;
            assert_eq!((report.fabric, report.bytes, report.copied), (FabricKind::Local, LEN, 0));
        }
        assert_eq!(shared(&pair), SharedFetches { fetches: 7, bytes: 7 * LEN });
        end(pair, w, &all);
    }
}

/// Returns what `r1` gets that asks after the first push and a second one are done, while the first version is on its way
/// to `r0`.
fn fetched_after_a_second_push(configure: impl Fn(&mut NodeConfig)) -> u64 {
    let mut pair = Pair::with(configure);
    let (w, all) = (pair.worker(0, "w"), readers::<2>(&mut pair));
    pair.push(w, "k", bytes(LEN), 1, None);
    pair.fetch(all[0], "k", Select::Latest);
    while count(&pair.posted(), "WRITE") == 0 {
        pair.poll();
        assert!(pair.world.step());
    }
    pair.push(w, "k", bytes(LEN), 2, None);
    pair.poll();
    pair.fetch(all[1], "k", Select::Latest);
    pair.settle();
    let (first, second) = (answer(&mut pair, all[0]).1, answer(&mut pair, all[1]).1);
    assert_eq!(first.version, Version(1));
    pair.replies(w);
    end(pair, w, &all);
    second.version.0
}

// Promise: version-choices, seen to fail
#[test]
fn a_fetch_gets_nothing_older_than_what_was_published_when_it_came() {
    assert_eq!(fetched_after_a_second_push(|_| {}), 2);
    let broken = |config: &mut NodeConfig| config.rules = Rules::but(Some(Broken::SharesEarlierAnswers));
    assert_eq!(fetched_after_a_second_push(broken), 1, "the mistake is noticed");
}

/// The key is deleted and pushed anew, with the same number, while its first version is on its way.
#[test]
fn a_version_of_the_same_number_from_another_time_is_another_version() {
    let mut pair = Pair::new();
    let (w, all) = (pair.worker(0, "w"), readers::<2>(&mut pair));
    pair.push(w, "k", bytes(LEN), 1, None);
    pair.fetch(all[0], "k", Select::Exactly(Version(1)));
    while count(&pair.posted(), "WRITE") == 0 {
        pair.poll();
        assert!(pair.world.step());
    }
    pair.command(w, OpId(9999), Command::Delete { key: key("k") });
    pair.push(w, "k", bytes(LEN), 2, None);
    pair.poll();
    pair.fetch(all[1], "k", Select::Exactly(Version(1)));
    pair.settle();
    for (r, fill) in all.into_iter().zip([1, 2]) {
        let (_, version, _, got) = pair.fetched(r);
        assert_eq!((version, got), (1, vec![fill; LEN as usize]));
    }
    assert_eq!(shared(&pair), SharedFetches::default());
    pair.replies(w);
    end(pair, w, &all);
}

// Promise: one-pull-for-a-node, seen to fail
#[test]
fn a_fetch_that_is_given_up_ends_alone_and_the_last_one_ends_the_request() {
    let mut pair = Pair::new();
    let (w, all) = (pair.worker(0, "w"), readers::<3>(&mut pair));
    // Nobody has published it yet.
    pair.push(w, "k", bytes(LEN), 1, None);
    let ops = all.map(|r| pair.fetch(r, "k", Select::AtLeast(Version(2))));
    pair.settle();
    pair.posted();
    pair.request(all[0], Request::Cancel { op: ops[0] });
    pair.settle();
    assert_eq!((pair.failed_with(all[0]), pair.posted()), (FailureCode::Cancelled, vec![]));
    // A worker that leaves gives up, too.
    pair.leave(all[1], "r1");
    pair.settle();
    assert_eq!(count(&pair.posted(), "CANCEL"), 0);
    pair.push(w, "k", bytes(LEN), 2, None);
    pair.settle();
    let (lease, version, _, got) = pair.fetched(all[2]);
    assert_eq!((version, got), (2, vec![2; LEN as usize]));
    pair.release(all[2], lease);
    pair.posted();
    let ops = [all[0], all[2]].map(|r| (r, pair.fetch(r, "k", Select::AtLeast(Version(3)))));
    pair.settle();
    for (r, op) in ops {
        assert_eq!(count(&pair.posted(), "CANCEL"), 0);
        pair.request(r, Request::Cancel { op });
        pair.settle();
    }
    let posted = pair.posted();
    assert_eq!((count(&posted, "CANCEL"), count(&posted, "CANCELLED")), (1, 1));
    pair.replies(w);
    pair.ends_clean(&[(w, "w"), (all[0], "r0"), (all[2], "r2")]);
}

#[test]
fn all_fetches_of_a_request_fail_with_its_link_or_its_version() {
    let mut pair = Pair::new();
    let (w, all) = (pair.worker(0, "w"), readers::<3>(&mut pair));
    pair.push(w, "k", bytes(LEN), 1, None);
    for r in all {
        pair.fetch(r, "k", Select::Exactly(Version(2)));
    }
    pair.settle();
    pair.push_version(w, "k", Some(3), bytes(LEN), 3, None);
    pair.settle();
    for r in all {
        assert_eq!(pair.failed_with(r), FailureCode::VersionGone);
        pair.fetch(r, "k", Select::Exactly(Version(4)));
    }
    pair.settle();
    let (link, now) = (pair.links[1].unwrap(), pair.world.now());
    pair.nodes[1].node.fabric_event(
        now,
        crate::fabric::FabricEvent::LinkDown { link, reason: crate::fabric::DownReason::Closed("a test".into()) },
        None,
    );
    pair.poll();
    for r in all {
        assert_eq!(pair.failed_with(r), FailureCode::PeerLost);
    }
}

#[test]
fn a_key_that_has_moved_is_looked_up_once_more_for_all_who_wait() {
    let mut pair = Pair::new();
    let (w, all) = (pair.worker(0, "w"), readers::<3>(&mut pair));
    pair.push(w, "k", bytes(LEN), 1, None);
    for r in all {
        pair.fetch(r, "k", Select::AtLeast(Version(2)));
    }
    pair.settle();
    pair.command(w, OpId(9999), Command::Delete { key: key("k") });
    pair.settle();
    pair.push_version(w, "k", Some(2), bytes(LEN), 2, None);
    pair.settle();
    for r in all {
        assert_eq!(pair.fetched(r).3, [2; LEN as usize]);
    }
    pair.replies(w);
    end(pair, w, &all);
}

#[test]
fn equal_slices_share_a_request_and_different_ones_do_not() {
    let mut pair = Pair::new();
    let (w, all) = (pair.worker(0, "w"), readers::<4>(&mut pair));
    let half = |n: i64| Some(Box::new(Excerpt::slice(Slice::new([(n * 500..n * 500 + 500).into()])).unwrap()));
    pair.push(w, "k", bytes(LEN), 1, None);
    for (n, r) in all.into_iter().enumerate() {
        pair.fetch_part(r, "k", Select::Latest, half(n as i64 % 2));
    }
    pair.settle();
    assert_eq!(count(&pair.posted(), "WRITE"), 2);
    let answers = all.map(|r| answer(&mut pair, r).1);
    assert_eq!(answers[0].slice, answers[2].slice);
    assert_eq!(answers[1].slice, answers[3].slice);
    assert_ne!(answers[0].slice, answers[1].slice);
    assert!(answers.iter().all(|a| a.is_part && a.report.bytes == 500));
    end(pair, w, &all);
}

// Promise: one-pull-for-a-node
#[test]
fn fetches_that_are_counted_come_each_by_itself() {
    let mut pair = Pair::new();
    let (w, all) = (pair.worker(0, "w"), readers::<4>(&mut pair));
    let until = Until::Fetched(NonZeroU32::new(3).unwrap());
    pair.retention = Retention { until, ..Retention::default() };
    pair.push_version(w, "k", Some(5), bytes(LEN), 1, None);
    for r in all {
        pair.fetch(r, "k", Select::Exactly(Version(5)));
    }
    pair.settle();
    assert_eq!(count(&pair.posted(), "WRITE"), 3);
    assert_eq!(shared(&pair), SharedFetches::default());
    let is_fetched = |reply: &Reply| matches!(reply, Reply::Answer { answer: Answer::Fetched { .. }, .. });
    let got = all.map(|r| pair.replies(r).iter().filter(|reply| is_fetched(reply)).count());
    assert_eq!(got.iter().sum::<usize>(), 3, "and none for the fourth");
    end(pair, w, &all);
}

// Promise: other-tenants, seen to fail
#[test]
fn workers_of_two_tenants_share_nothing() {
    let mut pair = Pair::new();
    let (w, friend) = (pair.worker(0, "w"), pair.worker(1, "friend"));
    let stranger = pair.worker_of(Tenant::User(1), 1, "stranger");
    pair.readable_by = vec![super::pair::name("1")];
    pair.push(w, "k", bytes(LEN), 1, None);
    for r in [friend, stranger] {
        pair.fetch(r, "k", Select::Latest);
    }
    pair.settle();
    assert_eq!(count(&pair.posted(), "WRITE"), 2);
    let [friends, strangers] = [friend, stranger].map(|r| answer(&mut pair, r).1);
    assert_ne!(friends.slice.segment, strangers.slice.segment);
    pair.ends_clean(&[(w, "w"), (friend, "friend"), (stranger, "stranger")]);
}

#[test]
fn a_required_fabric_carries_it_for_the_worker_that_requires_it() {
    let mut pair = Pair::new();
    let (w, all) = (pair.worker(0, "w"), readers::<2>(&mut pair));
    pair.push(w, "k", bytes(LEN), 1, None);
    for r in all {
        let (select, timeout, require) = (Select::Latest, Duration::from_secs(1), Some(FabricKind::Sim));
        let (key, trace, watches, excerpt) = (key("k"), None, false, None);
        pair.command(
            r,
            OpId(5),
            Command::Fetch(Fetch { key, select, timeout, require, trace, watches, excerpt, base: None }),
        );
    }
    pair.settle();
    assert!(all.into_iter().all(|r| answer(&mut pair, r).1.report.fabric == FabricKind::Sim));
    end(pair, w, &all);
}

/// What is kept for the next fetches would fill the pool, and another fetch needs the room.
// Promise: full-pools, seen to fail
#[test]
fn what_is_kept_for_the_next_fetches_is_given_up_before_anyone_waits_for_room() {
    let mut solo = Solo::new(|_| {});
    solo.fetch(Select::Latest);
    solo.fetch(Select::Latest);
    let index = solo.last("TENSOR_REQUEST").index;
    let meta = bytes(LEN);
    solo.hear(Role::Pull, index, Body::MetaDataUpdate { version: Version(1), metadata_id: 1, meta: meta.clone() });
    solo.grant();
    let open = solo.node.landing.slots_of(LINK).unwrap().ids(|s| matches!(s.state, SlotState::Granted(_)));
    solo.land(&Header {
        slot: SlotNumber(open[0].short()),
        index,
        metadata_id: 1,
        version: Version(1),
        body_len: LEN,
        pieces: 1,
        waited_us: 0,
        name: 0,
        retention: Retention::default(),
        packed: false,
        deltas_follow: false,
        is_delta: false,
        spreads: false,
        identity: NonZeroU64::new(4),
    });
    solo.revoke();
    let [Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }] = solo.replies[..] else { panic!() };
    let held = |solo: &Solo| match solo.last("TENSOR_REQUEST").body {
        Body::TensorRequest { held, .. } => held,
        _ => unreachable!(),
    };
    let again = solo.last("TENSOR_REQUEST").index;
    assert_eq!(held(&solo), NonZeroU64::new(4));
    solo.request(Request::Release { lease });
    solo.fill_pool();
    let used = |solo: &Solo| solo.node.landing.pools()[&Tenant::User(0)].alloc().largest_free();
    assert_eq!(used(&solo), 0, "one version is kept for the second fetch");
    solo.fetch(Select::AtLeast(Version(1)));
    let other = solo.last("TENSOR_REQUEST").index;
    solo.hear(Role::Pull, other, Body::MetaDataUpdate { version: Version(1), metadata_id: 1, meta });
    assert!(solo.has_to_grant(), "there is room for the other fetch");
    // The answer finds nothing here any more, and the version is asked for anew.
    solo.hear(Role::Pull, again, Body::Unchanged { version: Version(1) });
    assert_eq!((held(&solo), solo.ended.as_ref()), (None, None));
    assert_ne!(solo.last("TENSOR_REQUEST").index, other);
}
