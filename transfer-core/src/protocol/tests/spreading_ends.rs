//! Tests of versions that spread through their readers: nodes that fail, a link to the owner that ends, and fetches with different
//! deadlines.

use super::pair::{POOL_BYTES, Pair, bytes, key, name};
use super::solo::{LINK, OURS, Solo};
use super::spreading::{
    DIGEST, FAR_NAME, FETCH_TIMEOUT, LEN, OTHER, OTHER_NAME, THIRD, describe, fetch, fetch_for, has_fetched, land,
    last, proves, reader, redirect,
};
use crate::op::{Answer, Command, Failure, FailureCode, Fetch, OpId, Push, Reply, Request};
use crate::protocol::landing::Want;
use crate::protocol::{Control, Tenant};
use crate::tensor::{Select, Version};
use crate::wire::message::{Body, Message, NameRef, Role};
use std::time::Duration;

// Promise: spreading, seen to fail
#[test]
fn short_fetch_has_its_own_time_whatever_it_waits_with() {
    let mut solo = fetched_before();
    // Both have come before the request.
    for timeout in [FETCH_TIMEOUT, Duration::from_secs(8)] {
        fetch_for(&mut solo, Select::AtLeast(Version(1)), timeout);
    }
    solo.at = LINK;
    solo.grant();
    let index = redirect(&mut solo, [OTHER_NAME; 3]);
    solo.revoke();
    solo.wait(Duration::from_millis(3900));
    assert!(solo.sent.iter().all(|message| message.body.name() != "TENSOR_RE_REQUEST"));
    solo.wait(Duration::from_millis(200));
    solo.grant();
    let asked = solo.last("TENSOR_RE_REQUEST");
    assert_eq!((asked.index, solo.ended.as_ref()), (index, None), "half of the time of the short one is left");
    // Its own time tells nothing of the node.
    assert!(!is_given_up(&solo));
    land(&mut solo, LINK, "TENSOR_RE_REQUEST", true);
    assert_eq!(has_fetched(&solo), 2);
}

/// A reader that has had the version, which does not spread.
fn fetched_before() -> Solo {
    let mut solo = reader();
    describe(&mut solo, LINK, "TENSOR_REQUEST", LEN);
    solo.grant();
    land(&mut solo, LINK, "TENSOR_REQUEST", false);
    solo.replies.clear();
    solo.sent.clear();
    solo
}

// Promise: spreading, seen to fail
#[test]
fn fetch_with_less_time_than_a_search_asks_the_owner_by_itself() {
    for (timeout, asks_owner) in [(FETCH_TIMEOUT, false), (Duration::from_secs(8), true)] {
        let mut solo = fetched_before();
        for (timeout, select) in [(FETCH_TIMEOUT, Select::Latest), (timeout, Select::AtLeast(Version(1)))] {
            fetch_for(&mut solo, select, timeout);
            solo.at = LINK;
            solo.grant();
            redirect(&mut solo, [OTHER_NAME; 3]);
            solo.revoke();
        }
        let index = solo.last("TENSOR_REQUEST").index;
        solo.grant();
        assert_eq!(solo.sent.iter().any(|message| message.body.name() == "TENSOR_RE_REQUEST"), asks_owner);
        assert_eq!(solo.sent.iter().filter(|message| message.body.name() == "RELAY_REQUEST").count(), 1);
        // The other one goes on where it is.
        assert_eq!(patience(&mut solo, 120, Duration::from_millis(50), answers), Duration::from_secs(6));
        if asks_owner {
            assert_eq!(solo.last("TENSOR_RE_REQUEST").index, index);
            land(&mut solo, LINK, "TENSOR_RE_REQUEST", true);
            assert_eq!(has_fetched(&solo), 2, "what has come is for both");
        }
        assert_eq!(solo.ended, None);
    }
}

// Promise: spreading, seen to fail
#[test]
fn node_that_begins_to_send_late_has_half_of_what_is_left() {
    let mut solo = searcher(Duration::from_secs(8));
    let index = redirect(&mut solo, [OTHER_NAME; 3]);
    assert_eq!(patience(&mut solo, 78, Duration::from_millis(50), answers), Duration::from_millis(3900));
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    solo.grant();
    // 3.9 s have passed, and 2.05 s more are half of the rest.
    solo.wait(Duration::from_secs(2));
    assert!(solo.sent.iter().all(|message| message.body.name() != "CANCEL"));
    solo.wait(Duration::from_millis(100));
    solo.at = LINK;
    solo.grant();
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("TENSOR_RE_REQUEST", index));
    assert!(!is_given_up(&solo), "that the fetch has no more time tells nothing of the node");
    assert_eq!(solo.ended, None);
}

// Promise: spreading, seen to fail
#[test]
fn version_that_is_too_large_here_is_no_fault_of_a_node() {
    let mut solo = searcher(FETCH_TIMEOUT);
    redirect_to(&mut solo, (1, 4), 2 * POOL_BYTES);
    describe(&mut solo, OTHER, "RELAY_REQUEST", 2 * POOL_BYTES);
    let failed = solo.replies.iter().find_map(|reply| match reply {
        Reply::Answer { answer: Answer::Failed { failure, .. }, .. } => Some(failure.code),
        _ => None,
    });
    assert_eq!((failed, is_given_up(&solo), &solo.ended), (Some(FailureCode::TooLarge), false, &None));
}

/// Answers the last request to the owner by the name of the other node, for this version and identity and a body of this length.
pub(super) fn redirect_to(solo: &mut Solo, (version, identity): (u64, u64), len: u64) {
    let index = solo.last("TENSOR_REQUEST").index;
    let (version, identity, meta) = (Version(version), super::spreading::identity(identity), bytes(len));
    let body = Body::Redirect { version, identity, metadata_id: 1, digest: DIGEST, sources: [OTHER_NAME; 3], meta };
    solo.at = LINK;
    solo.hear(Role::Pull, index, body);
}

// Promise: spreading, seen to fail
#[test]
fn node_that_writes_something_else_may_be_silent_meanwhile() {
    let mut solo = searcher(FETCH_TIMEOUT);
    redirect(&mut solo, [OTHER_NAME; 3]);
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    solo.grant();
    let written = solo.last("RELAY_REQUEST").index;
    // It is asked for another version while it writes this one.
    fetch(&mut solo, Select::AtLeast(Version(2)));
    solo.at = LINK;
    solo.grant();
    redirect_to(&mut solo, (2, 5), LEN);
    solo.revoke();
    assert_ne!(solo.last("RELAY_REQUEST").index, written);
    let waited = patience(&mut solo, 190, Duration::from_millis(50), |_| {});
    assert_eq!(waited, Duration::from_millis(9500), "an answer would be behind that");
    solo.wait(Duration::from_secs(2));
    let cancelled = solo.sent.iter().filter(|message| message.body.name() == "CANCEL").count();
    assert_eq!((cancelled, &solo.ended), (2, &None), "both have had their time");
}

// Promise: spreading, seen to fail
#[test]
fn fetch_keeps_its_place_in_the_queue_for_room_when_a_node_fails() {
    let mut solo = reader();
    let index = redirect(&mut solo, [OTHER_NAME; 3]);
    solo.fill_pool();
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    // Another fetch waits behind it.
    fetch(&mut solo, Select::AtLeast(Version(2)));
    let later = solo.last("TENSOR_REQUEST").index;
    solo.at = LINK;
    let body = Body::MetaDataUpdate { version: Version(2), metadata_id: 2, meta: bytes(LEN) };
    solo.hear(Role::Pull, later, body);
    let first = |solo: &Solo| match solo.node.landing.first(Tenant::User(0)) {
        Some(Want::Pull(link, id)) => (link, id.short()),
        other => panic!("{other:?}"),
    };
    let relay = solo.last("RELAY_REQUEST").index;
    assert_eq!(first(&solo), (OTHER, relay));
    solo.at = OTHER;
    solo.hear(Role::Pull, relay, Body::ErrorStatus(Failure::new(FailureCode::VersionGone, "a test")));
    assert_eq!((first(&solo), solo.ended), ((LINK, index), None));
}

// Promise: spreading, seen to fail
#[test]
fn owner_is_told_which_node_has_not_sent_a_version() {
    let mut solo = reader();
    let index = redirect(&mut solo, [FAR_NAME, OTHER_NAME, OTHER_NAME]);
    solo.link_to(THIRD, "far");
    let relay = solo.last("RELAY_REQUEST").index;
    let gone = Failure::new(FailureCode::VersionGone, "a test");
    solo.hear(Role::Pull, relay, Body::ErrorStatus(gone));
    let told = |solo: &Solo| {
        let told = solo.sent.iter().filter_map(|message| match message.body {
            Body::SourceFailed { source } => Some((message.index, source)),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(&solo), [(index, 0)]);
    // The next one has stopped.
    for _ in 0..3 {
        solo.wait(Duration::from_millis(500));
    }
    assert_eq!((told(&solo), &solo.ended), (vec![(index, 0), (index, 1)], &None));
}

// Promise: spreading, seen to fail
#[test]
fn reader_goes_on_with_a_node_when_the_link_to_the_owner_ends() {
    for digest in [DIGEST, [0; 16]] {
        let mut solo = reader();
        redirect(&mut solo, [OTHER_NAME; 3]);
        describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
        solo.grant();
        solo.at = LINK;
        solo.lose_link();
        solo.wait(Duration::ZERO);
        land(&mut solo, OTHER, "RELAY_REQUEST", true);
        assert_eq!(has_fetched(&solo), 0, "it is not compared yet");
        proves(&mut solo, digest);
        let failed = solo.replies.iter().find_map(|reply| match reply {
            Reply::Answer { answer: Answer::Failed { failure, .. }, .. } => Some(failure.code),
            _ => None,
        });
        match digest == DIGEST {
            true => assert_eq!((has_fetched(&solo), failed), (1, None)),
            false => assert_eq!((has_fetched(&solo), failed), (0, Some(FailureCode::PeerLost))),
        }
    }
    // The last one that waits gives it up.
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    solo.at = LINK;
    solo.lose_link();
    solo.wait(Duration::ZERO);
    assert!(solo.sent.iter().all(|message| message.body.name() != "CANCEL"));
    solo.request(Request::Cancel { op: OpId(1) });
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("CANCEL", solo.last("RELAY_REQUEST").index));
}

// Promise: spreading, seen to fail
#[test]
fn node_is_looked_at_and_another_one_asked_though_the_link_to_the_owner_has_ended() {
    for has_begun in [false, true] {
        let mut solo = reader();
        solo.link_to(THIRD, "far");
        redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
        let first = solo.last("RELAY_REQUEST").index;
        if has_begun {
            describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
            solo.grant();
        }
        solo.at = LINK;
        solo.lose_link();
        let count = |solo: &Solo| solo.sent.iter().filter(|message| message.body.name() == "RELAY_REQUEST").count();
        solo.wait(Duration::ZERO);
        assert_eq!(count(&solo), 1);
        for _ in 0..if has_begun { 19 } else { 2 } {
            solo.wait(Duration::from_millis(500));
            answers(&mut solo);
            assert!(solo.sent.iter().all(|message| message.body.name() != "CANCEL"));
        }
        for _ in 0..if has_begun { 1 } else { 2 } {
            solo.wait(Duration::from_millis(500));
        }
        assert_eq!((count(&solo), solo.last("CANCEL").index), (2, first), "the first one has stopped");
        // The other one sends it.
        describe(&mut solo, THIRD, "RELAY_REQUEST", LEN);
        solo.grant();
        land(&mut solo, THIRD, "RELAY_REQUEST", true);
        proves(&mut solo, DIGEST);
        assert_eq!((has_fetched(&solo), &solo.ended), (1, &None));
    }
}

// Promise: spreading, seen to fail
#[test]
fn fetch_fails_where_no_node_is_left_and_the_link_to_the_owner_has_ended() {
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    solo.at = LINK;
    solo.lose_link();
    for _ in 0..3 {
        solo.wait(Duration::from_millis(500));
    }
    let Some(Reply::Answer { answer: Answer::Failed { failure, .. }, .. }) = solo.replies.last() else { panic!() };
    assert_eq!((failure.code, last(&solo)), (FailureCode::PeerLost, "CANCEL"), "{failure:?}");
}

/// Lets more be in flight on the owner's link than ends in a round.
fn busy(solo: &mut Solo) {
    let op = solo.op();
    solo.command(op, Command::Push(Push::new(key("mine"), bytes(8), 0)));
    solo.answer();
    solo.at = LINK;
    let mine = NameRef { id: 7, generation: 0 };
    solo.hear(Role::Pull, 0, Body::Name { name: mine, text: name("mine") });
    for index in 0..100 {
        let body = Body::TensorRequest {
            key: mine,
            select: Select::AtLeast(Version(2)),
            metadata_id: 0,
            tenant: OURS,
            excerpt: None,
            slot: None,
            held: None,
            direct: false,
            trace: None,
        };
        solo.hear(Role::Pull, 1000 + index, body);
    }
    solo.replies.clear();
}

// Promise: spreading, seen to fail
#[test]
fn search_goes_on_before_all_has_ended_that_was_in_flight_to_the_owner() {
    let searching = || {
        let mut solo = reader();
        solo.link_to(THIRD, "far");
        redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
        busy(&mut solo);
        solo.lose_link();
        solo.replies.clear();
        solo
    };
    // The node sends it.
    let mut solo = searching();
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    solo.grant();
    land(&mut solo, OTHER, "RELAY_REQUEST", true);
    proves(&mut solo, DIGEST);
    assert_eq!(has_fetched(&solo), 1);
    // It refuses, and the next one is asked.
    let mut solo = searching();
    let index = solo.last("RELAY_REQUEST").index;
    solo.at = OTHER;
    solo.hear(Role::Pull, index, Body::ErrorStatus(Failure::new(FailureCode::VersionGone, "a test")));
    describe(&mut solo, THIRD, "RELAY_REQUEST", LEN);
    solo.grant();
    land(&mut solo, THIRD, "RELAY_REQUEST", true);
    proves(&mut solo, DIGEST);
    assert_eq!(has_fetched(&solo), 1);
    // It has a slot, and is not looked at while it writes.
    let mut solo = searching();
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    solo.grant();
    for _ in 0..19 {
        solo.wait(Duration::from_millis(500));
        assert!(solo.sent.iter().all(|message| message.body.name() != "CANCEL"));
    }
    assert_eq!(solo.ended, None);
}

// Promise: spreading, seen to fail
#[test]
fn search_waits_for_a_link_though_the_link_to_the_owner_has_ended() {
    // Another node is asked, if there is a link to it.
    let mut solo = reader();
    redirect(&mut solo, [FAR_NAME, OTHER_NAME, OTHER_NAME]);
    assert!(solo.sent.iter().all(|message| message.body.name() != "RELAY_REQUEST"));
    solo.at = LINK;
    solo.lose_link();
    assert_eq!((last(&solo), has_failed(&solo)), ("RELAY_REQUEST", None));
    // The fetch has no more time.
    let mut solo = reader();
    redirect(&mut solo, [FAR_NAME; 3]);
    solo.at = LINK;
    solo.lose_link();
    solo.wait(FETCH_TIMEOUT);
    assert_eq!(has_failed(&solo), Some(FailureCode::PeerLost));
    for is_up in [true, false] {
        let mut solo = reader();
        redirect(&mut solo, [FAR_NAME; 3]);
        solo.at = LINK;
        solo.lose_link();
        for _ in 0..4 {
            solo.wait(Duration::from_millis(500));
        }
        assert_eq!(has_failed(&solo), None);
        if !is_up {
            solo.node.connect_failed(solo.now, &name("far"), "a test");
            solo.drain();
            assert_eq!(has_failed(&solo), Some(FailureCode::PeerLost));
            continue;
        }
        solo.link_to(THIRD, "far");
        describe(&mut solo, THIRD, "RELAY_REQUEST", LEN);
        solo.grant();
        land(&mut solo, THIRD, "RELAY_REQUEST", true);
        proves(&mut solo, DIGEST);
        assert_eq!((has_fetched(&solo), &solo.ended), (1, &None));
    }
}

// Promise: spreading, seen to fail
#[test]
fn last_node_has_all_of_the_time_when_the_link_to_the_owner_ends() {
    for waits_here in [false, true] {
        let mut solo = reader();
        redirect(&mut solo, [OTHER_NAME; 3]);
        if waits_here {
            solo.fill_pool();
        }
        describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
        solo.grant();
        solo.at = LINK;
        solo.lose_link();
        for _ in 0..60 {
            solo.wait(Duration::from_millis(500));
        }
        assert!(solo.sent.iter().all(|message| message.body.name() != "CANCEL"));
        if waits_here {
            solo.free_pool();
            solo.wait(Duration::ZERO);
            solo.at = OTHER;
            solo.grant();
            assert_eq!(last(&solo), "TENSOR_RE_REQUEST");
        }
        land(&mut solo, OTHER, "RELAY_REQUEST", true);
        proves(&mut solo, DIGEST);
        assert_eq!((has_fetched(&solo), &solo.ended), (1, &None));
    }
}

// Promise: spreading, seen to fail
#[test]
fn fetch_keeps_its_place_in_the_queue_for_room_when_the_link_to_the_owner_ends() {
    let mut solo = reader();
    solo.link_to(THIRD, "far");
    redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
    solo.fill_pool();
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    fetch_of(&mut solo, "q", "far");
    describe(&mut solo, THIRD, "TENSOR_REQUEST", LEN);
    solo.at = LINK;
    solo.lose_link();
    let index = solo.last("RELAY_REQUEST").index;
    solo.at = OTHER;
    solo.hear(Role::Pull, index, Body::ErrorStatus(Failure::new(FailureCode::VersionGone, "a test")));
    describe(&mut solo, THIRD, "RELAY_REQUEST", LEN);
    let relay = solo.last("RELAY_REQUEST").index;
    assert_ne!(relay, solo.last("TENSOR_REQUEST").index);
    let first = match solo.node.landing.first(Tenant::User(0)) {
        Some(Want::Pull(link, id)) => (link, id.short()),
        other => panic!("{other:?}"),
    };
    assert_eq!((first, solo.ended), ((THIRD, relay), None));
}

/// Lets the worker fetch a key of a node to which there is a link.
pub(super) fn fetch_of(solo: &mut Solo, of: &str, node: &str) {
    let op = solo.op();
    let (key, select, timeout) = (key(of), Select::Latest, FETCH_TIMEOUT);
    let (require, trace, excerpt, base) = (None, None, None, None);
    let fetch = Fetch { key: key.clone(), select, timeout, require, trace, watches: false, excerpt, base };
    solo.command(op, Command::Fetch(fetch));
    if solo.controls.iter().any(|control| matches!(control, Control::Directory(_))) {
        solo.controls.clear();
        solo.node.located(solo.now, &key, &name(node), 1);
        solo.drain();
    }
}

fn has_failed(solo: &Solo) -> Option<FailureCode> {
    solo.replies.iter().find_map(|reply| match reply {
        Reply::Answer { answer: Answer::Failed { failure, .. }, .. } => Some(failure.code),
        _ => None,
    })
}

pub(super) fn is_given_up(solo: &Solo) -> bool {
    solo.sent.iter().any(|message| message.body.name() == "SOURCE_FAILED")
}

/// Lets time pass in steps, and `shows` signs of life between them. Returns for how long the node is not given up; at most that long.
pub(super) fn patience(solo: &mut Solo, steps: u32, step: Duration, mut shows: impl FnMut(&mut Solo)) -> Duration {
    for waited in 1..=steps {
        solo.wait(step);
        if is_given_up(solo) {
            return waited * step;
        }
        shows(solo);
    }
    steps * step
}

// Promise: spreading, seen to fail
#[test]
fn node_that_shows_no_sign_of_life_is_given_up_in_a_second_or_a_tenth_of_the_time() {
    let step = Duration::from_millis(50);
    for (timeout, given_up_after) in [(FETCH_TIMEOUT, 1000), (Duration::from_secs(4), 400)] {
        let mut solo = searcher(timeout);
        let index = redirect(&mut solo, [OTHER_NAME; 3]);
        let waited = patience(&mut solo, 100, step, |_| {});
        assert_eq!(waited, Duration::from_millis(given_up_after), "a node that has stopped");
        solo.at = LINK;
        solo.grant();
        assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("TENSOR_RE_REQUEST", index));
        assert_eq!(solo.ended, None);
    }
    // One that waits itself answers, and has half of the time.
    let mut solo = searcher(FETCH_TIMEOUT);
    redirect(&mut solo, [OTHER_NAME; 3]);
    assert_eq!(patience(&mut solo, 2000, step, answers), Duration::from_secs(100));
}

/// Answers a sign of life that the other node was asked for.
pub(super) fn answers(solo: &mut Solo) {
    let ping = solo.sent.iter().rposition(|message| message.body.name() == "PING");
    if let Some(ping) = ping {
        let Message { role, index, .. } = solo.sent.remove(ping);
        solo.at = OTHER;
        solo.hear(role, index, Body::Pong);
    }
}

#[test]
fn node_that_writes_is_given_up_when_its_time_is_over() {
    let mut solo = searcher(FETCH_TIMEOUT);
    redirect(&mut solo, [OTHER_NAME; 3]);
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    solo.grant();
    assert_eq!(patience(&mut solo, 190, Duration::from_millis(50), |_| {}), Duration::from_millis(9500));
}

/// A node whose worker has asked the owner, and waits for as long as this.
pub(super) fn searcher(timeout: Duration) -> Solo {
    let mut solo = reader();
    let before = solo.last("TENSOR_REQUEST").index;
    fetch_for(&mut solo, Select::AtLeast(Version(1)), timeout);
    assert_ne!(solo.last("TENSOR_REQUEST").index, before, "a request of its own");
    solo
}

// Promise: spreading, seen to fail
#[test]
fn slot_goes_along_with_a_request_in_the_room_of_what_is_kept_for_others() {
    for is_read in [false, true] {
        let mut solo = reader();
        describe(&mut solo, LINK, "TENSOR_REQUEST", LEN);
        solo.grant();
        land(&mut solo, LINK, "TENSOR_REQUEST", true);
        let Some(Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }) = solo.replies.pop() else { panic!() };
        if !is_read {
            solo.request(Request::Release { lease });
        }
        solo.fill_pool();
        let kept = solo.node.state().snapshot(solo.now).base_bytes;
        fetch(&mut solo, Select::AtLeast(Version(2)));
        assert_eq!(solo.has_to_grant(), !is_read, "{kept} bytes were kept");
        let left = solo.node.state().snapshot(solo.now).base_bytes;
        assert_eq!(left, if is_read { kept } else { 0 }, "what is read is not given up: that makes no room");
    }
}

// Promise: spreading, seen to fail
#[test]
fn nothing_is_given_up_that_makes_too_little_room() {
    for (len, is_kept) in [(LEN * 3 / 2, true), (LEN - 100, false)] {
        let mut solo = reader();
        // What is asked for later is described before.
        fetch_of(&mut solo, "q", "there");
        let op = OpId(2);
        solo.at = LINK;
        let index = solo.last("TENSOR_REQUEST").index;
        let meta = bytes(len);
        solo.hear(Role::Pull, index, Body::MetaDataUpdate { version: Version(1), metadata_id: 2, meta });
        solo.grant();
        solo.request(Request::Cancel { op });
        solo.hear(Role::Pull, index, Body::Cancelled);
        solo.revoke();
        redirect_once(&mut solo);
        let Some(Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }) = solo.replies.pop() else { panic!() };
        solo.request(Request::Release { lease });
        solo.fill_pool();
        let kept = solo.node.state().snapshot(solo.now).base_bytes;
        assert!(kept > 0);
        fetch_of(&mut solo, "q", "there");
        let left = solo.node.state().snapshot(solo.now).base_bytes;
        assert_eq!((left, solo.has_to_grant()), (if is_kept { kept } else { 0 }, !is_kept));
    }
}

/// Lets the version of `k` come from another node.
fn redirect_once(solo: &mut Solo) {
    fetch(solo, Select::AtLeast(Version(1)));
    redirect(solo, [OTHER_NAME; 3]);
    describe(solo, OTHER, "RELAY_REQUEST", LEN);
    solo.grant();
    land(solo, OTHER, "RELAY_REQUEST", true);
    proves(solo, DIGEST);
}

#[test]
fn room_of_what_is_kept_for_others_is_no_full_pool() {
    let mut pair = Pair::with(|config| (config.fan_out, config.spreads_from) = (4, 1));
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    for (k, kept) in [("k1", 1), ("k2", 2), ("k3", 2)] {
        pair.push(w, k, bytes(POOL_BYTES * 2 / 5), 1, None);
        pair.settle();
        pair.fetch(r, k, Select::Latest);
        pair.settle();
        let (lease, ..) = pair.fetched(r);
        pair.release(r, lease);
        pair.settle();
        let used = pair.nodes[1].node.state().snapshot(pair.world.now()).pools.remove(0).used;
        assert_eq!(used / (POOL_BYTES * 2 / 5), kept, "{k}");
    }
    assert_eq!(pair.events[1], []);
}
