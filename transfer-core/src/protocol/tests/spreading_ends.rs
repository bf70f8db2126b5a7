//! Tests of versions that spread through their readers: nodes that fail, late writes, and a link to the owner that ends.

use super::pair::{POOL_BYTES, Pair, bytes, key, name};
use super::solo::{LINK, OURS, Solo};
use super::spreading::{
    CHUNK, CHUNKS, DIGEST, FAR_NAME, FETCH_TIMEOUT, LEN, OTHER, OTHER_NAME, OWNER_NAME, THIRD, asked, cancelled,
    chunk_request, come, digests, fetch_for, has_fetched, land, last, proves, reader, redirect,
    redirect_without_digests, refuses, write,
};
use super::spreading_times::{answers, is_given_up};
use crate::op::{Answer, Command, FailureCode, Fetch, OpId, Push, Reply, Request};
use crate::protocol::landing::Want;
use crate::protocol::{Control, HostDone, Tenant};
use crate::tensor::{Select, Version};
use crate::wire::message::{Body, NameRef, Role};
use std::time::Duration;

/// Returns the requests that were given up.
fn given_up(solo: &Solo) -> Vec<u32> {
    solo.sent.iter().filter(|message| message.body.name() == "CANCEL").map(|message| message.index).collect()
}

pub(super) fn has_failed(solo: &Solo) -> Option<FailureCode> {
    solo.replies.iter().find_map(|reply| match reply {
        Reply::Answer { answer: Answer::Failed { failure, .. }, .. } => Some(failure.code),
        _ => None,
    })
}

fn used(solo: &Solo) -> u64 {
    solo.node.state().snapshot(solo.now).pools.remove(0).used
}

/// Lets the other node be silent until it is given up.
fn is_silent(solo: &mut Solo) {
    for _ in 0..3 {
        solo.wait(Duration::from_millis(500));
        solo.grant();
    }
    assert!(is_given_up(solo));
}

/// Lets the host make the copies that it was asked for.
fn copies(solo: &mut Solo) {
    for tag in std::mem::take(&mut solo.copies) {
        solo.node.host_done(solo.now, tag, HostDone::Copied);
        solo.drain();
    }
    solo.grant();
}

// Promise: spreading, seen to fail
// Promise: range-reuse, seen to fail
#[test]
fn chunk_is_asked_for_again_only_when_nobody_else_can_write_it() {
    let mut solo = reader();
    solo.link_to(THIRD, "far");
    redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
    come(&mut solo, OTHER, [0]);
    assert_eq!(asked(&solo), [0, 1, 2, 3, 4]);
    is_silent(&mut solo);
    assert_eq!(asked(&solo)[5..], [5, 6, 7], "the others may still be written");
    let closing = given_up(&solo);
    // One of them is written after all, and given up all the same.
    let before = chunk_request(&solo, 2);
    write(&mut solo, OTHER, 2);
    solo.revoke();
    solo.grant();
    assert_eq!(asked(&solo)[8..], [2], "its slot is closed");
    assert_ne!(chunk_request(&solo, 2), before);
    come(&mut solo, THIRD, [5, 6, 7, 2]);
    assert_eq!(has_fetched(&solo), 0);
    cancelled(&mut solo, OTHER, &closing);
    assert_eq!(asked(&solo)[9..], [1, 3, 4]);
    come(&mut solo, THIRD, [1, 3, 4]);
    assert_eq!((has_fetched(&solo), &solo.ended), (1, &None));
}

// Promise: spreading, seen to fail
// Promise: range-reuse, seen to fail
#[test]
fn search_goes_on_in_other_memory_where_a_node_does_not_confirm_that_it_writes_no_more() {
    let mut solo = reader();
    solo.link_to(THIRD, "far");
    redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
    come(&mut solo, OTHER, [0, 1]);
    is_silent(&mut solo);
    come(&mut solo, THIRD, [6, 7]);
    assert!(asked(&solo).len() == 8 && solo.copies.is_empty());
    let before = used(&solo);
    solo.wait(Duration::from_secs(1));
    assert_eq!(solo.copies.len(), 2, "what has come is two runs");
    copies(&mut solo);
    assert_eq!(asked(&solo)[8..], [2, 3, 4, 5]);
    assert!(used(&solo) > before);
    // What it writes late harms nobody.
    solo.at = OTHER;
    let late = given_up(&solo);
    come(&mut solo, THIRD, [2, 3, 4, 5]);
    assert_eq!((has_fetched(&solo), &solo.ended), (1, &None));
    cancelled(&mut solo, OTHER, &late);
    assert!(used(&solo) < before, "the memory before is free");
    assert_eq!(solo.ended, None);
}

#[test]
fn search_that_ends_while_it_moves_leaves_nothing() {
    let mut solo = reader();
    solo.link_to(THIRD, "far");
    redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
    come(&mut solo, OTHER, [0, 1]);
    is_silent(&mut solo);
    come(&mut solo, THIRD, [6, 7]);
    solo.wait(Duration::from_secs(1));
    solo.request(Request::Cancel { op: OpId(1) });
    copies(&mut solo);
    let late: Vec<_> = given_up(&solo);
    solo.at = LINK;
    solo.hear(Role::Pull, late[late.len() - 1], Body::Cancelled);
    cancelled(&mut solo, OTHER, &late[..4]);
    assert_eq!((used(&solo), &solo.ended), (0, &None));
}

#[test]
fn nothing_is_copied_where_nothing_has_come() {
    let mut solo = reader();
    let index = redirect_without_digests(&mut solo, [OTHER_NAME; 3], 3 * CHUNK);
    digests(&mut solo, index, 0, 3);
    is_silent(&mut solo);
    solo.wait(Duration::ZERO);
    solo.grant();
    assert_eq!((asked(&solo), solo.copies.len()), (vec![0, 1, 2, 0, 1, 2], 0));
    for number in 0..3 {
        land(&mut solo, LINK, number);
    }
    assert_eq!((has_fetched(&solo), solo.last("TAKEN").index), (1, index));
}

// Promise: spreading, seen to fail
#[test]
fn version_that_is_too_large_here_is_no_fault_of_a_node() {
    let mut solo = reader();
    let index = solo.last("TENSOR_REQUEST").index;
    let (version, meta) = (Version(1), bytes(2 * POOL_BYTES));
    let identity = super::spreading::identity(4);
    let (chunk_bytes, sources) = (1 << 20, [OTHER_NAME; 3]);
    solo.at = LINK;
    solo.hear(Role::Pull, index, Body::Redirect { version, identity, metadata_id: 1, chunk_bytes, sources, meta });
    assert_eq!((has_failed(&solo), is_given_up(&solo)), (Some(FailureCode::TooLarge), false));
    assert_eq!((last(&solo), &solo.ended), ("CANCEL", &None));
}

#[test]
fn chunks_of_no_use_are_a_mistake() {
    for chunk_bytes in [0, 63, 1] {
        let mut solo = reader();
        let index = solo.last("TENSOR_REQUEST").index;
        let identity = super::spreading::identity(4);
        let sources = [OTHER_NAME; 3];
        let body =
            Body::Redirect { version: Version(1), identity, metadata_id: 1, chunk_bytes, sources, meta: bytes(LEN) };
        solo.at = LINK;
        solo.hear(Role::Pull, index, body);
        assert!(solo.ended.is_some(), "{chunk_bytes}");
    }
}

// Promise: spreading, seen to fail
#[test]
fn owner_is_told_which_node_has_not_sent_a_version() {
    let mut solo = reader();
    solo.link_to(THIRD, "far");
    let index = redirect(&mut solo, [FAR_NAME, OTHER_NAME, OTHER_NAME]);
    refuses(&mut solo, THIRD, 0, FailureCode::VersionGone);
    let told = |solo: &Solo| {
        let told = solo.sent.iter().filter_map(|message| match message.body {
            Body::SourceFailed { source } => Some((message.index, source)),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(&solo), [(index, 0)]);
    solo.revoke();
    solo.grant();
    // The next one has stopped.
    for _ in 0..3 {
        solo.wait(Duration::from_millis(500));
    }
    assert_eq!((told(&solo), &solo.ended), (vec![(index, 0), (index, 1)], &None));
}

// Promise: spreading
#[test]
fn refusal_of_the_owner_fails_the_fetch() {
    let mut solo = reader();
    redirect_without_digests(&mut solo, [OWNER_NAME; 3], LEN);
    refuses(&mut solo, LINK, 0, FailureCode::Busy);
    assert_eq!((has_failed(&solo), &solo.ended), (Some(FailureCode::Busy), &None));
}

// Promise: spreading, seen to fail
#[test]
fn node_whose_link_ends_costs_what_was_in_flight() {
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    come(&mut solo, OTHER, [0, 1, 2]);
    solo.at = OTHER;
    solo.lose_link();
    solo.wait(Duration::ZERO);
    solo.grant();
    let mut came = 7;
    while let Some(number) = asked(&solo).get(came).copied() {
        land(&mut solo, LINK, number);
        came += 1;
    }
    assert_eq!((has_fetched(&solo), asked(&solo).len()), (1, 12));
}

// Promise: spreading, seen to fail
#[test]
fn reader_goes_on_with_a_node_when_the_link_to_the_owner_ends() {
    for digest in [DIGEST, [0; 16]] {
        let mut solo = reader();
        redirect(&mut solo, [OTHER_NAME; 3]);
        come(&mut solo, OTHER, [0]);
        solo.at = LINK;
        solo.lose_link();
        solo.wait(Duration::ZERO);
        come(&mut solo, OTHER, 1..CHUNKS - 1);
        land(&mut solo, OTHER, CHUNKS - 1);
        assert_eq!(has_fetched(&solo), 0, "it is not compared yet");
        proves(&mut solo, digest);
        match digest == DIGEST {
            true => assert_eq!((has_fetched(&solo), has_failed(&solo)), (1, None)),
            false => assert_eq!((has_fetched(&solo), has_failed(&solo)), (0, Some(FailureCode::PeerLost))),
        }
    }
    // The last one that waits gives it up.
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    solo.at = LINK;
    solo.lose_link();
    solo.wait(Duration::ZERO);
    assert_eq!(given_up(&solo), []);
    solo.request(Request::Cancel { op: OpId(1) });
    assert!(given_up(&solo).len() >= 4);
}

// Promise: spreading, seen to fail
#[test]
fn fetch_that_does_not_know_all_digests_fails_with_the_link_to_the_owner() {
    let mut solo = reader();
    let index = redirect_without_digests(&mut solo, [OTHER_NAME; 3], LEN);
    digests(&mut solo, index, 0, CHUNKS - 1);
    solo.lose_link();
    solo.wait(Duration::ZERO);
    assert_eq!((has_failed(&solo), given_up(&solo).len()), (Some(FailureCode::PeerLost), 4));
}

// Promise: spreading, seen to fail
#[test]
fn node_is_looked_at_and_another_one_asked_though_the_link_to_the_owner_has_ended() {
    let mut solo = reader();
    solo.link_to(THIRD, "far");
    redirect(&mut solo, [OTHER_NAME, FAR_NAME, FAR_NAME]);
    come(&mut solo, OTHER, [0, 1]);
    solo.at = LINK;
    solo.lose_link();
    for _ in 0..2 {
        solo.wait(Duration::from_millis(500));
        answers(&mut solo);
        assert_eq!(given_up(&solo), []);
    }
    for _ in 0..3 {
        solo.wait(Duration::from_millis(500));
        solo.grant();
    }
    let closing = given_up(&solo);
    assert_eq!((closing.len(), asked(&solo)[6..].to_vec()), (4, vec![6, 7]), "the first one has stopped");
    // Its link ends, too.
    solo.at = OTHER;
    solo.lose_link();
    solo.wait(Duration::ZERO);
    solo.grant();
    assert_eq!(asked(&solo).len(), 10);
    let mut came = 6;
    while let Some(number) = asked(&solo).get(came).copied() {
        come(&mut solo, THIRD, [number]);
        came += 1;
    }
    assert_eq!((has_fetched(&solo), came), (1, 12));
}

// Promise: spreading
#[test]
fn fetch_fails_where_no_node_is_left_and_the_link_to_the_owner_has_ended() {
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    solo.at = LINK;
    solo.lose_link();
    refuses(&mut solo, OTHER, 0, FailureCode::VersionGone);
    assert_eq!(has_failed(&solo), Some(FailureCode::PeerLost));
}

/// Lets more be in flight on the owner's link than ends in a round.
fn busy(solo: &mut Solo) {
    let op = solo.op();
    solo.command(op, Command::Push(Push::new(key("mine"), bytes(8), 0)));
    solo.answer();
    solo.at = LINK;
    let mine = NameRef { id: 8, generation: 0 };
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
    come(&mut solo, OTHER, 0..CHUNKS);
    assert_eq!(has_fetched(&solo), 1);
    // It refuses, and the next one is asked.
    let mut solo = searching();
    refuses(&mut solo, OTHER, 0, FailureCode::VersionGone);
    solo.revoke();
    solo.grant();
    let closing = given_up(&solo);
    cancelled(&mut solo, OTHER, &closing);
    let mut came = 0;
    while let Some(number) = asked(&solo).get(4 + came).copied() {
        come(&mut solo, THIRD, [number]);
        came += 1;
    }
    assert_eq!((has_fetched(&solo), &solo.ended), (1, &None));
}

// Promise: spreading
#[test]
fn search_waits_for_a_link_though_the_link_to_the_owner_has_ended() {
    // Another node is asked, if there is a link to it.
    let mut solo = reader();
    redirect(&mut solo, [FAR_NAME, OTHER_NAME, OTHER_NAME]);
    assert_eq!(asked(&solo), []);
    solo.at = LINK;
    solo.lose_link();
    solo.grant();
    assert_eq!((asked(&solo).len(), has_failed(&solo)), (4, None));
    // The fetch has no more time.
    let mut solo = reader();
    redirect(&mut solo, [FAR_NAME; 3]);
    solo.at = LINK;
    solo.lose_link();
    solo.wait(FETCH_TIMEOUT);
    assert_eq!((has_failed(&solo), used(&solo)), (Some(FailureCode::PeerLost), 0));
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
            assert_eq!((has_failed(&solo), used(&solo)), (Some(FailureCode::PeerLost), 0));
            continue;
        }
        solo.link_to(THIRD, "far");
        solo.grant();
        come(&mut solo, THIRD, 0..CHUNKS);
        assert_eq!((has_fetched(&solo), &solo.ended), (1, &None));
    }
}

// Promise: spreading, seen to fail
#[test]
fn fetch_keeps_its_place_in_the_queue_for_room_when_the_link_to_the_owner_ends() {
    let mut solo = reader();
    solo.fill_pool();
    redirect(&mut solo, [OTHER_NAME; 3]);
    // Another fetch waits behind it.
    solo.link_to(THIRD, "far");
    fetch_of(&mut solo, "q", "far");
    let later = solo.last("TENSOR_REQUEST").index;
    let body = Body::MetaDataUpdate { version: Version(2), metadata_id: 2, meta: bytes(LEN) };
    solo.hear(Role::Pull, later, body);
    solo.at = LINK;
    solo.lose_link();
    match solo.node.landing.first(Tenant::User(0)) {
        Some(Want::Pull(link, _)) => assert_eq!(link, OTHER),
        other => panic!("{other:?}"),
    }
    solo.free_pool();
    solo.grant();
    come(&mut solo, OTHER, 0..CHUNKS);
    assert_eq!((has_fetched(&solo), &solo.ended), (1, &None));
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

/// Lets the version of `k` come from another node, and its reader release it.
fn kept() -> Solo {
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    come(&mut solo, OTHER, 0..CHUNKS);
    solo
}

// Promise: spreading, seen to fail
#[test]
fn slot_goes_along_with_a_request_in_the_room_of_what_is_kept_for_others() {
    for is_read in [false, true] {
        let mut solo = kept();
        let Some(Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }) = solo.replies.pop() else { panic!() };
        if !is_read {
            solo.request(Request::Release { lease });
        }
        // What is asked for later is described before.
        fetch_of(&mut solo, "q", "there");
        let index = solo.last("TENSOR_REQUEST").index;
        let meta = bytes(LEN - 100);
        solo.at = LINK;
        solo.hear(Role::Pull, index, Body::MetaDataUpdate { version: Version(1), metadata_id: 2, meta });
        solo.grant();
        solo.request(Request::Cancel { op: OpId(2) });
        solo.hear(Role::Pull, index, Body::Cancelled);
        solo.revoke();
        solo.fill_pool();
        let kept = solo.node.state().snapshot(solo.now).base_bytes;
        assert!(kept > 0);
        fetch_of(&mut solo, "q", "there");
        let left = solo.node.state().snapshot(solo.now).base_bytes;
        assert_eq!(left, if is_read { kept } else { 0 }, "what is read is not given up: that makes no room");
    }
}

// Promise: spreading, seen to fail
#[test]
fn fetches_with_little_time_share_a_search() {
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    come(&mut solo, OTHER, [0, 1]);
    fetch_for(&mut solo, Select::AtLeast(Version(1)), Duration::from_secs(2));
    redirect_without_digests(&mut solo, [OTHER_NAME; 3], LEN);
    for _ in 0..2 {
        answers(&mut solo);
        solo.wait(Duration::from_millis(490));
    }
    assert_eq!((given_up(&solo).len(), is_given_up(&solo)), (1, false));
    // Half of its time is over: the owner is asked for what is missing, for both.
    answers(&mut solo);
    solo.wait(Duration::from_millis(100));
    solo.grant();
    let closing = given_up(&solo);
    assert_eq!((closing.len(), is_given_up(&solo)), (5, false), "its own time tells nothing of the node");
    cancelled(&mut solo, OTHER, &closing[1..]);
    let mut came = 0;
    while let Some(number) = asked(&solo).get(6 + came).copied() {
        land(&mut solo, LINK, number);
        came += 1;
    }
    assert_eq!((has_fetched(&solo), came, &solo.ended), (2, 6, &None));
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
