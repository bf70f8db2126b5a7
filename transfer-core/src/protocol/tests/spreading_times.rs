//! Tests of versions that spread through their readers: which time nodes and fetches have, and which nodes are blamed.

use super::pair::name;
use super::solo::{LINK, Solo};
use super::spreading::{FAR_NAME, LEN, OTHER, OTHER_NAME, THIRD, describe, fetch_for, last, redirect};
use super::spreading_ends::{answers, is_given_up, patience, searcher};
use crate::op::{Failure, FailureCode};
use crate::tensor::{Select, Version};
use crate::wire::message::{Body, Role};
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

// Promise: spreading, seen to fail
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
