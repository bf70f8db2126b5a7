//! Tests of versions that spread through their readers: which time nodes and fetches have, and which nodes are blamed.

use super::pair::{bytes, key, name};
use super::solo::{LINK, OURS, Solo};
use super::spreading::{
    DIGEST, FAR_NAME, FETCH_TIMEOUT, LEN, OTHER, OTHER_NAME, THIRD, describe, fetch_for, has_fetched, land, last,
    proves, reader, redirect,
};
use super::spreading_ends::{answers, fetch_of, is_given_up, patience, searcher};
use crate::memory::{RemoteKey, RemoteSlice};
use crate::op::{Command, Failure, FailureCode, Push};
use crate::tensor::{Select, Version};
use crate::wire::landing::{HEADER_BYTES, SlotGrant, SlotNumber};
use crate::wire::message::{Body, NameRef, Role};
use std::time::Duration;

/// Returns how many nodes were asked.
fn asked(solo: &Solo) -> usize {
    solo.sent.iter().filter(|message| message.body.name() == "RELAY_REQUEST").count()
}

/// Lets the other node fail that was asked last.
fn fails(solo: &mut Solo, code: FailureCode) {
    let index = solo.last("RELAY_REQUEST").index;
    solo.at = OTHER;
    solo.hear(Role::Pull, index, Body::ErrorStatus(Failure::new(code, "a test")));
}

// Promise: spreading
#[test]
fn fetch_that_ends_when_it_is_sent_to_a_node_stops_nothing() {
    let mut solo = searcher(Duration::from_secs(8));
    solo.link_to(THIRD, "far");
    let index = redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
    solo.fill_pool();
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    solo.wait(Duration::from_secs(5));
    // The time of the search is over. The owner answers a short fetch when that has no time left.
    let short = Duration::from_secs(1);
    fetch_for(&mut solo, Select::Exactly(Version(1)), short);
    solo.now = solo.now + short;
    redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
    solo.wait(Duration::ZERO);
    solo.free_pool();
    solo.at = OTHER;
    solo.grant();
    fails(&mut solo, FailureCode::VersionGone);
    for _ in 0..3 {
        solo.wait(Duration::ZERO);
    }
    solo.at = LINK;
    solo.grant();
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("TENSOR_RE_REQUEST", index));
    assert_eq!(solo.ended, None);
}

// Promise: spreading, seen to fail
#[test]
fn node_that_gets_a_slot_late_gives_no_time_to_others() {
    for (waits, asks) in [(30, 2), (78, 2), (100, 1)] {
        let mut solo = searcher(Duration::from_secs(8));
        solo.link_to(THIRD, "far");
        redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
        let early = waits.min(78);
        patience(&mut solo, early, Duration::from_millis(50), answers);
        describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
        solo.grant();
        // It has until 5.95 s, and all others only until 4 s.
        solo.wait((waits - early) * Duration::from_millis(50));
        fails(&mut solo, FailureCode::VersionGone);
        assert_eq!(asked(&solo), asks, "after {waits} looks");
        if asks == 1 {
            solo.at = LINK;
            solo.grant();
            assert_eq!(last(&solo), "TENSOR_RE_REQUEST");
        }
        assert_eq!(solo.ended, None);
    }
}

// Promise: spreading, seen to fail
#[test]
fn node_that_stops_behind_its_slot_is_blamed_though_the_fetch_has_no_more_time() {
    for (timeout, given_up, is_blamed) in [(16, 8000, true), (8, 4000, false), (1000, 10_000, true)] {
        let mut solo = searcher(Duration::from_secs(timeout));
        redirect(&mut solo, [OTHER_NAME; 3]);
        describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
        solo.grant();
        let step = Duration::from_millis(50);
        let before = patience(&mut solo, given_up / 50 - 1, step, |_| {});
        assert_eq!((before, is_given_up(&solo)), ((given_up / 50 - 1) * step, false));
        assert!(solo.sent.iter().all(|message| message.body.name() != "CANCEL"));
        solo.wait(step);
        assert_eq!(is_given_up(&solo), is_blamed, "of {timeout} s");
        solo.at = LINK;
        solo.grant();
        assert_eq!((last(&solo), &solo.ended), ("TENSOR_RE_REQUEST", &None));
    }
}

// Promise: spreading, seen to fail
#[test]
fn node_without_room_is_not_blamed() {
    for (code, is_blamed) in [(FailureCode::PoolFull, false), (FailureCode::VersionGone, true)] {
        let mut solo = reader();
        solo.link_to(THIRD, "far");
        redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
        fails(&mut solo, code);
        assert_eq!((asked(&solo), is_given_up(&solo), &solo.ended), (2, is_blamed, &None));
    }
}

// Promise: spreading, seen to fail
#[test]
fn node_may_be_silent_while_it_is_written_to() {
    let mut solo = searcher(FETCH_TIMEOUT);
    let op = solo.op();
    solo.command(op, Command::Push(Push::new(key("mine"), bytes(8), 0)));
    solo.answer();
    solo.at = OTHER;
    let mine = NameRef { id: 6, generation: 0 };
    solo.hear(Role::Pull, 0, Body::Name { name: mine, text: name("mine") });
    let remote = RemoteSlice::new(0, LEN + HEADER_BYTES, RemoteKey(99));
    let slot = SlotGrant { number: SlotNumber::new(3, 1), capacity: LEN, remote, body: Vec::new() };
    let body = Body::TensorRequest {
        key: mine,
        select: Select::Latest,
        metadata_id: 0,
        tenant: OURS,
        excerpt: None,
        slot: None,
        held: None,
        direct: false,
        trace: None,
    };
    solo.hear(Role::Pull, 7, body);
    solo.hear(Role::Pull, 7, Body::TensorReRequest { slot });
    assert_eq!(solo.writes.len(), 1);
    redirect(&mut solo, [OTHER_NAME; 3]);
    let step = Duration::from_millis(50);
    assert_eq!(patience(&mut solo, 180, step, |_| {}), 180 * step, "the question may be behind the write");
    solo.at = OTHER;
    solo.placed();
    assert!(patience(&mut solo, 30, step, |_| {}) < 30 * step, "it has stopped");
    assert_eq!(solo.ended, None);
}

// Promise: spreading, seen to fail
#[test]
fn node_may_be_silent_while_it_has_a_slot_that_went_along() {
    let mut solo = searcher(FETCH_TIMEOUT);
    // It is also an owner, whose key was fetched before.
    fetch_of(&mut solo, "q", "other");
    describe(&mut solo, OTHER, "TENSOR_REQUEST", LEN);
    solo.grant();
    land(&mut solo, OTHER, "TENSOR_REQUEST", false);
    fetch_of(&mut solo, "q", "other");
    solo.grant();
    let Body::TensorRequest { slot: Some(_), .. } = solo.last("TENSOR_REQUEST").body else { panic!() };
    redirect_first(&mut solo);
    let step = Duration::from_millis(50);
    assert_eq!(patience(&mut solo, 180, step, |_| {}), 180 * step, "the answer may be behind the write");
    assert!(patience(&mut solo, 40, step, |_| {}) < 40 * step, "it has stopped");
    assert_eq!(solo.ended, None);
}

/// Answers the first request to the owner by the name of the other node.
fn redirect_first(solo: &mut Solo) {
    let asked = solo.sent.iter().find(|message| message.body.name() == "TENSOR_REQUEST").unwrap();
    let (index, meta) = (asked.index, bytes(LEN));
    let (version, identity) = (Version(1), super::spreading::identity(4));
    let body = Body::Redirect { version, identity, metadata_id: 1, digest: DIGEST, sources: [OTHER_NAME; 3], meta };
    solo.at = LINK;
    solo.hear(Role::Pull, index, body);
}

// Promise: spreading, seen to fail
#[test]
fn version_of_another_node_is_also_for_a_fetch_that_takes_it_from_the_owner() {
    for has_room in [true, false] {
        let mut solo = reader();
        let first = redirect(&mut solo, [OTHER_NAME; 3]);
        describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
        solo.grant();
        if !has_room {
            solo.fill_pool();
        }
        fetch_for(&mut solo, Select::AtLeast(Version(1)), Duration::from_secs(8));
        solo.at = LINK;
        solo.grant();
        let own = redirect(&mut solo, [OTHER_NAME; 3]);
        solo.revoke();
        solo.grant();
        assert_eq!(last(&solo) == "TENSOR_RE_REQUEST", has_room);
        // Another one has come since, and asks for what is here.
        fetch_for(&mut solo, Select::AtLeast(Version(1)), Duration::from_secs(9));
        land(&mut solo, OTHER, "RELAY_REQUEST", true);
        proves(&mut solo, DIGEST);
        assert_eq!(has_fetched(&solo), 2, "where there is room: {has_room}");
        let taken = solo.sent.iter().filter(|message| message.body.name() == "TAKEN").map(|message| message.index);
        assert_eq!(taken.collect::<Vec<_>>(), [first, own]);
        let Body::TensorRequest { held, .. } = solo.last("TENSOR_REQUEST").body else { unreachable!() };
        assert_eq!(held, Some(super::spreading::identity(4)));
        solo.at = LINK;
        for index in [first, own] {
            solo.hear(Role::Pull, index, Body::Cancelled);
        }
        assert_eq!(solo.ended, None);
    }
}
