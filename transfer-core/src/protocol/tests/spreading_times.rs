//! Tests of versions that spread through their readers: how long a node is waited for, which nodes are blamed, and how many copies each node
//! sends.

use super::pair::{bytes, key, name};
use super::solo::{LINK, OURS, Solo};
use super::spreading::{
    CHUNKS, FETCH_TIMEOUT, LEN, OTHER, OTHER_NAME, asked, come, fetch_for, reader, redirect, refuses,
};
use super::spreading_ends::fetch_of;
use crate::fabric::LinkId;
use crate::memory::{RemoteKey, RemoteSlice};
use crate::op::{Command, FailureCode, OpId, Push, Request};
use crate::protocol::keys::{Fan, Keys};
use crate::protocol::slab::Id;
use crate::tensor::{Name, Select, Version};
use crate::time::Time;
use crate::wire::landing::{HEADER_BYTES, SlotGrant, SlotNumber};
use crate::wire::message::{Body, Message, NameRef, Role};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) fn is_given_up(solo: &Solo) -> bool {
    solo.sent.iter().any(|message| message.body.name() == "SOURCE_FAILED")
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

/// Lets time pass in steps, and `shows` signs of life between them. Returns for how long the node is not given up; at most that long.
fn patience(solo: &mut Solo, steps: u32, step: Duration, mut shows: impl FnMut(&mut Solo)) -> Duration {
    for waited in 1..=steps {
        solo.wait(step);
        if is_given_up(solo) {
            return waited * step;
        }
        shows(solo);
    }
    steps * step
}

/// A node whose worker has asked the owner, and waits for as long as this.
fn searcher(timeout: Duration) -> Solo {
    let mut solo = reader();
    solo.request(Request::Cancel { op: OpId(1) });
    let index = solo.last("TENSOR_REQUEST").index;
    solo.at = LINK;
    solo.hear(Role::Pull, index, Body::Cancelled);
    solo.sent.clear();
    fetch_for(&mut solo, Select::Latest, timeout);
    solo
}

const STEP: Duration = Duration::from_millis(50);

// Promise: spreading, seen to fail
#[test]
fn node_that_shows_no_sign_of_life_is_given_up_in_a_second_or_a_tenth_of_the_time() {
    for (timeout, given_up_after) in [(FETCH_TIMEOUT, 1000), (Duration::from_secs(4), 400)] {
        let mut solo = searcher(timeout);
        redirect(&mut solo, [OTHER_NAME; 3]);
        let waited = patience(&mut solo, 100, STEP, |_| {});
        assert_eq!((waited, &solo.ended), (Duration::from_millis(given_up_after), &None), "a node that has stopped");
    }
}

// Promise: spreading, seen to fail
#[test]
fn node_that_lives_and_sends_no_chunk_is_given_up() {
    let mut solo = searcher(FETCH_TIMEOUT);
    redirect(&mut solo, [OTHER_NAME; 3]);
    assert_eq!(patience(&mut solo, 2000, STEP, answers), Duration::from_secs(10));
    // Each chunk gives it that time.
    let mut solo = searcher(FETCH_TIMEOUT);
    redirect(&mut solo, [OTHER_NAME; 3]);
    assert_eq!(patience(&mut solo, 160, STEP, answers), Duration::from_secs(8));
    come(&mut solo, OTHER, [0]);
    answers(&mut solo);
    assert_eq!(patience(&mut solo, 2000, STEP, answers), Duration::from_secs(10));
}

// Promise: spreading, seen to fail
#[test]
fn owner_is_asked_when_half_of_the_time_is_over_unless_the_node_is_in_time() {
    for is_in_time in [false, true] {
        let mut solo = searcher(Duration::from_secs(16));
        redirect(&mut solo, [OTHER_NAME; 3]);
        patience(&mut solo, 150, STEP, answers);
        // Of eight chunks.
        come(&mut solo, OTHER, if is_in_time { 0..6 } else { 0..4 });
        answers(&mut solo);
        patience(&mut solo, 10, STEP, answers);
        let is_left = solo.sent.iter().any(|message| message.body.name() == "CANCEL");
        assert_eq!((is_left, is_given_up(&solo)), (!is_in_time, false), "the time of a fetch tells nothing of a node");
        if is_in_time {
            // Half of the rest.
            patience(&mut solo, 80, STEP, answers);
            assert!(solo.sent.iter().any(|message| message.body.name() == "CANCEL"));
        }
        assert_eq!(solo.ended, None);
    }
}

// Promise: spreading, seen to fail
#[test]
fn node_that_drains_is_not_blamed() {
    for (code, is_blamed) in [(FailureCode::Draining, false), (FailureCode::VersionGone, true)] {
        let mut solo = reader();
        redirect(&mut solo, [OTHER_NAME; 3]);
        refuses(&mut solo, OTHER, 0, code);
        assert_eq!((is_given_up(&solo), &solo.ended), (is_blamed, &None));
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
    assert_eq!(patience(&mut solo, 180, STEP, |_| {}), 180 * STEP, "the question may be behind the write");
    solo.at = OTHER;
    solo.placed();
    assert!(patience(&mut solo, 30, STEP, |_| {}) < 30 * STEP, "it has stopped");
    assert_eq!(solo.ended, None);
}

// Promise: spreading, seen to fail
#[test]
fn node_may_be_silent_while_it_has_a_slot_for_something_else() {
    let mut solo = searcher(FETCH_TIMEOUT);
    // It is also an owner.
    fetch_of(&mut solo, "q", "other");
    let index = solo.last("TENSOR_REQUEST").index;
    solo.at = OTHER;
    solo.hear(Role::Pull, index, Body::MetaDataUpdate { version: Version(1), metadata_id: 2, meta: bytes(LEN) });
    solo.grant();
    let asked_owner = solo.sent.iter().find(|message| message.body.name() == "TENSOR_REQUEST").unwrap().index;
    let identity = super::spreading::identity(4);
    let (chunk_bytes, sources) = (super::spreading::CHUNK, [OTHER_NAME; 3]);
    let body = Body::Redirect { version: Version(1), identity, metadata_id: 1, chunk_bytes, sources, meta: bytes(LEN) };
    solo.at = LINK;
    solo.hear(Role::Pull, asked_owner, body);
    solo.grant();
    assert_eq!(asked(&solo).len(), 4);
    assert_eq!(patience(&mut solo, 180, STEP, |_| {}), 180 * STEP, "the answer may be behind the write");
    assert!(patience(&mut solo, 40, STEP, |_| {}) < 40 * STEP, "it has stopped");
    assert_eq!((CHUNKS, &solo.ended), (8, &None));
}

// ---- all nodes ----

/// What nodes have sent that fetch a version at the same time.
struct Sent {
    by_owner: usize,
    by_busiest: usize,
    /// The time until the last node has the version, in units of the time of a copy, in thousandths.
    time: u64,
}

/// Lets this number of nodes ask at once for a version of 256 chunks. A node sends chunks to all that ask it in turn, over one link.
fn spread_to(readers: u32, out: usize) -> Sent {
    const COUNT: usize = 256;
    let (mut keys, blob) = (Keys::default(), Id::from_u64(0));
    let node = |n: u32| Name::new(&format!("n{n}")).unwrap();
    let mut children: BTreeMap<Option<Name>, Vec<Name>> = BTreeMap::new();
    let mut order = Vec::new();
    for n in 0..readers {
        let fan = Fan { out, now: Time(0), is_up: |_| true };
        let source = keys.spread(blob, (LinkId(n), &node(n)), &fan).map(|[first, ..]| first);
        children.entry(source.clone()).or_default().push(node(n));
        order.push((source, node(n)));
    }
    // When each node has each chunk: its source sends chunks to its readers in turn, each as soon as it has it and its link is free.
    let mut has: BTreeMap<Option<Name>, Vec<u64>> = BTreeMap::from([(None, vec![0; COUNT])]);
    let mut sources: Vec<_> = vec![None];
    sources.extend(order.iter().map(|(_, name)| Some(name.clone())));
    for source in sources {
        let at = has[&source].clone();
        let mut free = 0;
        for (number, there) in at.iter().enumerate() {
            for child in children.get(&source).into_iter().flatten() {
                free = free.max(*there) + 1;
                has.entry(Some(child.clone())).or_insert_with(|| vec![0; COUNT])[number] = free;
            }
        }
    }
    let last = has.values().filter_map(|chunks| chunks.last()).max().copied().unwrap_or(0);
    let by_owner = children.get(&None).map_or(0, Vec::len);
    let by_busiest = children.values().map(Vec::len).max().unwrap_or(0);
    Sent { by_owner, by_busiest, time: last * 1000 / COUNT as u64 }
}

// Promise: spreading, seen to fail
#[test]
fn no_node_sends_more_copies_than_the_fan_out() {
    for (readers, out, time) in
        [(7, 2, 2007), (40, 2, 2023), (200, 2, 2042), (7, 1, 1023), (40, 1, 1152), (200, 1, 1777)]
    {
        let sent = spread_to(readers, out);
        assert_eq!((sent.by_owner, sent.by_busiest, sent.time), (out, out, time), "{readers} readers");
    }
}
