//! Tests of versions that spread through their readers: nodes that fail, a link to the owner that ends, and fetches with different
//! deadlines.

use super::pair::bytes;
use super::solo::{LINK, Solo};
use super::spreading::{
    DIGEST, FAR_NAME, FETCH_TIMEOUT, LEN, OTHER, OTHER_NAME, THIRD, describe, fetch, fetch_for, has_fetched, land,
    last, proves, reader, redirect,
};
use crate::op::{Answer, Failure, FailureCode, OpId, Reply, Request};
use crate::protocol::Tenant;
use crate::protocol::landing::Want;
use crate::tensor::{Select, Version};
use crate::wire::message::{Body, Role};
use std::time::Duration;

// Promise: spreading, seen to fail
#[test]
fn short_fetch_has_its_own_time_whatever_it_waits_with() {
    // Both have come before the request, or the short one while the version is searched for.
    for is_late in [false, true] {
        let mut solo = reader();
        describe(&mut solo, LINK, "TENSOR_REQUEST", LEN);
        solo.grant();
        land(&mut solo, LINK, "TENSOR_REQUEST", false);
        solo.replies.clear();
        solo.sent.clear();
        let timeouts = [FETCH_TIMEOUT, Duration::from_secs(8)];
        for timeout in timeouts {
            fetch_for(&mut solo, Select::AtLeast(Version(1)), timeout);
            if is_late {
                // The request is under way before the next fetch comes.
                solo.at = LINK;
                solo.grant();
            }
        }
        solo.at = LINK;
        solo.grant();
        let index = redirect(&mut solo, [OTHER_NAME; 3]);
        solo.revoke();
        if is_late {
            solo.grant();
            redirect(&mut solo, [OTHER_NAME; 3]);
            solo.revoke();
        }
        solo.wait(Duration::from_millis(3900));
        assert!(solo.sent.iter().all(|message| message.body.name() != "TENSOR_RE_REQUEST"), "{is_late}");
        solo.wait(Duration::from_millis(200));
        solo.grant();
        let asked = solo.last("TENSOR_RE_REQUEST");
        assert_eq!((asked.index, solo.ended.as_ref()), (index, None), "half of the time of the short one is left");
        land(&mut solo, LINK, "TENSOR_RE_REQUEST", true);
        assert_eq!(has_fetched(&solo), 2);
    }
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
    solo.wait(Duration::from_secs(11));
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
