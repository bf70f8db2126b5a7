//! Tests of versions that spread through their readers: the owner, a reader, and a node that sends on.

use super::pair::{bytes, key, name};
use super::solo::{KEY, LINK, OURS, Solo};
use crate::fabric::LinkId;
use crate::memory::{RemoteKey, RemoteSlice};
use crate::op::{Answer, Command, Failure, FailureCode, Fetch, OpId, Reply, Request};
use crate::protocol::keys::{Fan, Keys, Spreads};
use crate::protocol::landing::SlotState;
use crate::protocol::slab::Id;
use crate::protocol::{Control, HostDone};
use crate::tensor::{Name, Retention, Select, Version};
use crate::time::Time;
use crate::wire::landing::{HEADER_BYTES, Header, SlotGrant, SlotNumber};
use crate::wire::message::{Body, NameRef, Role};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

pub(super) const OTHER: LinkId = LinkId(8);
pub(super) const THIRD: LinkId = LinkId(9);
const FOURTH: LinkId = LinkId(10);
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(1000);
pub(super) const LEN: u64 = 1000;
pub(super) const DIGEST: [u8; 16] = [9; 16];

/// The numbers, at the owner's link, of the nodes that it names.
const NAMED: [(NameRef, &str); 2] =
    [(NameRef { id: 5, generation: 0 }, "other"), (NameRef { id: 6, generation: 0 }, "far")];
pub(super) const OTHER_NAME: NameRef = NAMED[0].0;
pub(super) const FAR_NAME: NameRef = NAMED[1].0;
/// The number of the owner's name at the link of the other node.
const THERE: NameRef = NameRef { id: 5, generation: 0 };

pub(super) fn identity(n: u64) -> NonZeroU64 {
    NonZeroU64::new(n).unwrap()
}

fn slot() -> SlotGrant {
    let remote = RemoteSlice::new(0, LEN + HEADER_BYTES, RemoteKey(99));
    SlotGrant { number: SlotNumber::new(3, 1), capacity: LEN, remote, body: Vec::new() }
}

// ---- the owner ----

/// A node that owns a key and has sent its version to one node. Others are sent there.
fn owner() -> Solo {
    let mut solo = Solo::new(|config| (config.fan_out, config.spreads_from) = (1, 1));
    solo.link_to(OTHER, "other");
    solo.link_to(THIRD, "third");
    solo.push(None, FETCH_TIMEOUT);
    asks(&mut solo, LINK, 1);
    solo.hear(Role::Pull, 1, Body::TensorReRequest { slot: slot() });
    solo
}

fn asks(solo: &mut Solo, link: LinkId, index: u32) {
    solo.at = link;
    let body = Body::TensorRequest {
        key: KEY,
        select: Select::Latest,
        metadata_id: 0,
        tenant: OURS,
        excerpt: None,
        slot: None,
        held: None,
        direct: false,
        trace: None,
    };
    solo.hear(Role::Pull, index, body);
}

/// Lets the other node ask, which is sent to the first one.
fn redirected() -> Solo {
    let mut solo = owner();
    asks(&mut solo, OTHER, 2);
    let now = solo.now;
    let tag = solo.digests.pop().expect("the first redirect needs a digest");
    solo.node.host_done(now, tag, HostDone::Digest(DIGEST));
    solo.drain();
    assert_eq!(last(&solo), "REDIRECT");
    solo
}

pub(super) fn last(solo: &Solo) -> &'static str {
    solo.sent.last().unwrap().body.name()
}

/// The first of the nodes that the last message names, which is REDIRECT.
fn first_named(solo: &Solo) -> String {
    let Body::Redirect { sources, .. } = solo.sent.last().unwrap().body else { panic!("{}", last(solo)) };
    let mut names = solo.sent.iter().filter_map(|message| match &message.body {
        Body::Name { name, text } if *name == sources[0] => Some(text.as_str().to_owned()),
        _ => None,
    });
    names.next_back().expect("it is named")
}

fn held(solo: &Solo) -> u64 {
    solo.node.state().meters().spreading().held
}

// Promise: spreading, seen to fail
#[test]
fn owner_holds_a_version_for_the_nodes_that_it_has_sent_to_others() {
    let mut solo = redirected();
    assert_eq!(held(&solo), 1);
    let count = solo.headers.len();
    solo.push(None, FETCH_TIMEOUT);
    solo.hear(Role::Pull, 2, Body::TensorReRequest { slot: slot() });
    assert_eq!(solo.ended, None);
    assert_eq!((held(&solo), solo.headers.len()), (0, count + 1));
    let header = solo.headers.last().unwrap();
    assert_eq!((header.version, header.index), (Version(1), 2), "the version that is replaced meanwhile");
}

// Promise: spreading, seen to fail
#[test]
fn node_that_has_taken_a_version_is_named_first() {
    let mut solo = redirected();
    solo.hear(Role::Pull, 2, Body::Taken);
    assert_eq!((last(&solo), held(&solo)), ("CANCELLED", 0));
    asks(&mut solo, THIRD, 3);
    assert_eq!(first_named(&solo), "other", "the first one is still receiving it");
}

// Promise: spreading, seen to fail
#[test]
fn node_that_has_not_sent_a_version_is_named_no_more() {
    let mut solo = redirected();
    solo.hear(Role::Pull, 2, Body::Taken);
    asks(&mut solo, THIRD, 3);
    solo.hear(Role::Pull, 3, Body::SourceFailed { source: 0 });
    solo.link_to(FOURTH, "fourth");
    asks(&mut solo, FOURTH, 4);
    assert_eq!(first_named(&solo), "third");
    // When it asks again it has the version, once it has come.
    asks(&mut solo, OTHER, 5);
    solo.hear(Role::Pull, 5, Body::TensorReRequest { slot: slot() });
    solo.placed();
    solo.link_to(LinkId(11), "fifth");
    asks(&mut solo, LinkId(11), 6);
    assert_eq!((first_named(&solo).as_str(), &solo.ended), ("other", &None));
}

// Promise: spreading, seen to fail
#[test]
fn header_says_from_the_first_node_on_that_a_version_spreads() {
    assert!(owner().headers[0].spreads);
    let mut alone = Solo::new(|config| (config.fan_out, config.spreads_from) = (0, 1));
    alone.push(None, FETCH_TIMEOUT);
    asks(&mut alone, LINK, 1);
    alone.hear(Role::Pull, 1, Body::TensorReRequest { slot: slot() });
    assert!(!alone.headers[0].spreads);
}

// Promise: spreading, seen to fail
#[test]
fn owner_that_is_idle_answers_those_that_wait_for_a_digest() {
    let mut solo = owner();
    asks(&mut solo, OTHER, 2);
    assert_eq!(solo.digests.len(), 1);
    assert_ne!(solo.sent.last().unwrap().index, 2, "it waits for the digest");
    solo.at = LINK;
    solo.placed();
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("META_DATA_UPDATE", 2));
}

// ---- a reader ----

pub(super) fn fetch(solo: &mut Solo, select: Select) -> OpId {
    fetch_for(solo, select, FETCH_TIMEOUT)
}

pub(super) fn fetch_for(solo: &mut Solo, select: Select, timeout: Duration) -> OpId {
    let op = solo.op();
    let fetch =
        Fetch { key: key("k"), select, timeout, require: None, trace: None, watches: false, excerpt: None, base: None };
    solo.command(op, Command::Fetch(fetch));
    if solo.controls.iter().any(|control| matches!(control, Control::Directory(_))) {
        solo.controls.clear();
        solo.node.located(solo.now, &key("k"), &name("there"), 1);
        solo.drain();
    }
    op
}

/// A node with links to the owner of a key and to another node. Its worker has asked the owner.
pub(super) fn reader() -> Solo {
    let mut solo = Solo::new(|_| {});
    for (number, text) in NAMED {
        solo.hear(Role::Pull, 0, Body::Name { name: number, text: name(text) });
    }
    solo.link_to(OTHER, "other");
    solo.hear(Role::Pull, 0, Body::Name { name: THERE, text: name("there") });
    fetch(&mut solo, Select::Latest);
    solo
}

/// Answers the last request to the owner by the names of other nodes.
pub(super) fn redirect(solo: &mut Solo, sources: [NameRef; 3]) -> u32 {
    let index = solo.last("TENSOR_REQUEST").index;
    let (version, identity, meta) = (Version(1), identity(4), bytes(LEN));
    let body = Body::Redirect { version, identity, metadata_id: 1, digest: DIGEST, sources, meta };
    solo.at = LINK;
    solo.hear(Role::Pull, index, body);
    index
}

/// Describes a version of that length, for the last request of that kind.
pub(super) fn describe(solo: &mut Solo, link: LinkId, request: &str, len: u64) {
    let index = solo.last(request).index;
    solo.at = link;
    solo.hear(Role::Pull, index, Body::MetaDataUpdate { version: Version(1), metadata_id: 1, meta: bytes(len) });
}

/// Lets the version land, for the last request of that kind.
pub(super) fn land(solo: &mut Solo, link: LinkId, request: &str, spreads: bool) {
    let index = solo.last(request).index;
    solo.at = link;
    let open = solo.node.landing.slots_of(link).unwrap().ids(|s| matches!(s.state, SlotState::Granted(_)));
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
        spreads,
        identity: Some(identity(4)),
    });
    solo.revoke();
}

pub(super) fn proves(solo: &mut Solo, digest: [u8; 16]) {
    let (now, tag) = (solo.now, solo.digests.pop().unwrap());
    solo.node.host_done(now, tag, HostDone::Digest(digest));
    solo.drain();
}

pub(super) fn has_fetched(solo: &Solo) -> usize {
    let is_it = |reply: &&Reply| matches!(reply, Reply::Answer { answer: Answer::Fetched { .. }, .. });
    solo.replies.iter().filter(is_it).count()
}

// Promise: spreading, seen to fail
#[test]
fn owner_is_told_that_a_version_has_come_from_another_node() {
    let mut solo = reader();
    let index = redirect(&mut solo, [OTHER_NAME; 3]);
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    solo.grant();
    land(&mut solo, OTHER, "RELAY_REQUEST", true);
    assert_eq!(has_fetched(&solo), 0, "it is not compared yet");
    proves(&mut solo, DIGEST);
    assert_eq!((has_fetched(&solo), last(&solo), solo.sent.last().unwrap().index), (1, "TAKEN", index));
    assert_eq!(solo.ended, None);
}

// Promise: spreading, seen to fail
#[test]
fn version_is_taken_from_its_owner_where_no_other_node_has_sent_it() {
    for other_has in [false, true] {
        let mut solo = reader();
        let index = redirect(&mut solo, [OTHER_NAME; 3]);
        let relay = solo.last("RELAY_REQUEST").index;
        solo.at = OTHER;
        match other_has {
            false => {
                let gone = Failure::new(FailureCode::VersionGone, "a test");
                solo.hear(Role::Pull, relay, Body::ErrorStatus(gone));
            }
            true => {
                describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
                solo.grant();
                land(&mut solo, OTHER, "RELAY_REQUEST", true);
                proves(&mut solo, [0; 16]);
            }
        }
        solo.at = LINK;
        solo.grant();
        assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("TENSOR_RE_REQUEST", index), "the same request");
        land(&mut solo, LINK, "TENSOR_REQUEST", true);
        assert_eq!((has_fetched(&solo), &solo.ended), (1, &None));
    }
}

#[test]
fn nothing_is_searched_for_where_nobody_waits_any_more() {
    let mut solo = reader();
    let (first, later) = (OpId(1), fetch(&mut solo, Select::Latest));
    solo.request(Request::Cancel { op: first });
    redirect(&mut solo, [OTHER_NAME; 3]);
    assert!(solo.sent.iter().all(|message| message.body.name() != "RELAY_REQUEST"));
    assert!(solo.sent.iter().any(|message| message.body.name() == "CANCEL"));
    solo.at = LINK;
    solo.grant();
    assert_eq!(last(&solo), "TENSOR_REQUEST", "the later fetch asks anew");
    solo.request(Request::Cancel { op: later });
    assert_eq!(solo.ended, None);
}

#[test]
fn failure_says_what_was_waited_for() {
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    solo.fill_pool();
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    solo.wait(FETCH_TIMEOUT);
    let Some(Reply::Answer { answer: Answer::Failed { failure, .. }, .. }) = solo.replies.last() else { panic!() };
    assert_eq!(failure.code, FailureCode::PoolFull, "{failure:?}");
}

// Promise: spreading, seen to fail
#[test]
fn node_that_is_not_reached_costs_little_and_only_once() {
    let mut solo = reader();
    redirect(&mut solo, [FAR_NAME, OTHER_NAME, OTHER_NAME]);
    assert!(solo.controls.iter().any(|c| matches!(c, Control::Connect { peer } if *peer == name("far"))));
    assert!(solo.sent.iter().all(|message| message.body.name() != "RELAY_REQUEST"));
    solo.wait(Duration::from_secs(3));
    let relay = solo.last("RELAY_REQUEST").index;
    // The next version: the node is left out.
    fetch(&mut solo, Select::AtLeast(Version(1)));
    solo.at = LINK;
    solo.grant();
    redirect(&mut solo, [FAR_NAME, OTHER_NAME, OTHER_NAME]);
    assert_eq!(solo.last("RELAY_REQUEST").index, relay, "both wait for the same");
    assert_eq!(solo.ended, None);
    let mut solo = reader();
    redirect(&mut solo, [FAR_NAME, OTHER_NAME, OTHER_NAME]);
    solo.node.connect_failed(solo.now, &name("far"), "a test");
    solo.drain();
    assert_eq!(last(&solo), "RELAY_REQUEST");
}

// Promise: spreading, seen to fail
#[test]
fn node_is_not_given_up_while_there_is_no_room_here() {
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    solo.fill_pool();
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    solo.wait(Duration::from_secs(100));
    assert!(solo.sent.iter().all(|message| message.body.name() != "CANCEL"), "it waits for room here");
    solo.free_pool();
    solo.at = OTHER;
    solo.grant();
    assert_eq!(last(&solo), "TENSOR_RE_REQUEST");
    solo.wait(Duration::from_secs(9));
    assert!(solo.sent.iter().all(|message| message.body.name() != "CANCEL"));
    solo.wait(Duration::from_secs(2));
    assert!(solo.sent.iter().any(|message| message.body.name() == "CANCEL"), "now it is slow");
}

// ---- a node that sends on ----

/// Lets the other node ask for this publication of the owner.
pub(super) fn relay(solo: &mut Solo, index: u32, version: u64) {
    solo.at = OTHER;
    let body = Body::RelayRequest {
        key: KEY,
        tenant: OURS,
        owner: THERE,
        incarnation: 1,
        version: Version(version),
        identity: identity(4),
        trace: None,
    };
    solo.hear(Role::Pull, index, body);
}

// Promise: spreading, seen to fail
#[test]
fn request_waits_only_for_a_version_that_may_come() {
    let mut solo = reader();
    let op = solo.op();
    solo.request(Request::Cancel { op: OpId(op.0 - 1) });
    let asked = fetch(&mut solo, Select::AtLeast(Version(2)));
    relay(&mut solo, 3, 1);
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("ERROR_STATUS", 3), "version 1 does not come");
    relay(&mut solo, 4, 2);
    assert_ne!(solo.sent.last().unwrap().index, 4, "version 2 may come");
    solo.request(Request::Cancel { op: asked });
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("ERROR_STATUS", 4), "nobody waits for it any more");
}

// Promise: spreading, seen to fail
#[test]
fn node_that_had_no_room_once_is_waited_for() {
    let mut solo = reader();
    solo.fill_pool();
    describe(&mut solo, LINK, "TENSOR_REQUEST", LEN);
    relay(&mut solo, 3, 1);
    solo.hear(Role::Counter, 3, Body::Ping);
    solo.free_pool();
    solo.wait(Duration::ZERO);
    solo.hear(Role::Counter, 3, Body::Ping);
    assert!(solo.has_to_grant());
    assert_eq!((last(&solo), &solo.ended), ("PONG", &None));
    solo.at = LINK;
    solo.grant();
    land(&mut solo, LINK, "TENSOR_REQUEST", true);
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("META_DATA_UPDATE", 3));
}

/// A node that has a version, for which the other one has not granted a slot.
fn sends_on() -> Solo {
    let mut solo = reader();
    describe(&mut solo, LINK, "TENSOR_REQUEST", LEN);
    solo.grant();
    land(&mut solo, LINK, "TENSOR_REQUEST", true);
    let Some(Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }) = solo.replies.pop() else { panic!() };
    solo.request(Request::Release { lease });
    relay(&mut solo, 3, 1);
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("META_DATA_UPDATE", 3));
    solo
}

// Promise: full-pools
// Promise: spreading, seen to fail
#[test]
fn node_without_room_keeps_no_room_of_others() {
    let mut solo = sends_on();
    // What is left of the pool is taken, and a version needs more than that.
    solo.fill_pool();
    fetch(&mut solo, Select::AtLeast(Version(2)));
    let index = solo.last("TENSOR_REQUEST").index;
    solo.at = LINK;
    solo.hear(Role::Pull, index, Body::MetaDataUpdate { version: Version(2), metadata_id: 2, meta: bytes(LEN - 1) });
    assert!(solo.has_to_grant(), "it has the room of the version that nobody takes");
    solo.at = OTHER;
    solo.hear(Role::Pull, 3, Body::TensorReRequest { slot: slot() });
    assert_eq!((last(&solo), &solo.ended), ("ERROR_STATUS", &None));
}

// Promise: spreading, seen to fail
#[test]
fn node_without_room_for_a_version_is_waited_for_no_longer() {
    for has_room in [true, false] {
        let mut solo = reader();
        if !has_room {
            solo.fill_pool();
        }
        describe(&mut solo, LINK, "TENSOR_REQUEST", LEN);
        relay(&mut solo, 3, 1);
        assert_ne!(last(&solo), "ERROR_STATUS", "room may come at once");
        solo.hear(Role::Counter, 3, Body::Ping);
        assert_eq!(last(&solo), "PONG", "room may come until the next look");
        solo.hear(Role::Counter, 3, Body::Ping);
        let sent: Vec<_> = solo.sent.iter().filter(|m| m.index == 3).map(|m| (m.role, m.body.name())).collect();
        let expected = [(Role::Counter, "PONG"), (Role::Counter, "PONG"), (Role::Pull, "ERROR_STATUS")];
        assert_eq!(sent, expected[..2 + usize::from(!has_room)]);
        if !has_room {
            let Body::ErrorStatus(failure) = &solo.last("ERROR_STATUS").body else { unreachable!() };
            assert_eq!(failure.code, FailureCode::PoolFull, "it has not failed");
        }
        // A sign of life that is asked for by nobody.
        solo.hear(Role::Counter, 4, Body::Ping);
        assert_eq!((last(&solo), &solo.ended), ("PONG", &None));
    }
}

// Promise: spreading, seen to fail
#[test]
fn late_version_of_another_node_takes_the_place_of_no_newer_one() {
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    describe(&mut solo, OTHER, "RELAY_REQUEST", LEN);
    solo.grant();
    // Meanwhile the owner has published a newer one, and answers the next fetch itself.
    solo.now = Time(1000);
    fetch(&mut solo, Select::AtLeast(Version(2)));
    solo.at = LINK;
    solo.grant();
    let index = solo.last("TENSOR_REQUEST").index;
    solo.hear(Role::Pull, index, Body::MetaDataUpdate { version: Version(2), metadata_id: 2, meta: bytes(LEN) });
    solo.revoke();
    solo.grant();
    let open = solo.node.landing.slots_of(LINK).unwrap().ids(|s| matches!(s.state, SlotState::Granted(_)));
    solo.land(&Header {
        slot: SlotNumber(open[0].short()),
        index,
        metadata_id: 2,
        version: Version(2),
        body_len: LEN,
        pieces: 1,
        waited_us: 0,
        name: 0,
        retention: Retention::default(),
        packed: false,
        deltas_follow: true,
        is_delta: false,
        spreads: true,
        identity: Some(identity(5)),
    });
    solo.revoke();
    land(&mut solo, OTHER, "RELAY_REQUEST", true);
    proves(&mut solo, DIGEST);
    assert_eq!(has_fetched(&solo), 2);
    fetch(&mut solo, Select::Latest);
    let Body::TensorRequest { held, .. } = solo.last("TENSOR_REQUEST").body else { unreachable!() };
    assert_eq!(held, Some(identity(5)), "the newer one is the base of the next delta");
}

// ---- all nodes ----

/// What nodes have sent that fetch a version at the same time.
struct Sent {
    by_owner: usize,
    by_busiest: usize,
    /// How many copies were sent one after the other until the last node had the version, where each node sends its copies at a time.
    rounds: u64,
}

/// Lets this number of nodes ask at once. A copy takes a second for each that its sender sends at a time: two.
fn spread_to(readers: u32) -> Sent {
    let (mut keys, blob, two) = (Keys::default(), Id::from_u64(0), Duration::from_secs(2));
    let node = |n: u32| Name::new(&format!("n{n}")).unwrap();
    let (mut by_owner, mut by_node) = (0, BTreeMap::<Name, usize>::new());
    // When each node has the version; a node is sent only to those that have come before it.
    let mut has = BTreeMap::<Name, Duration>::new();
    for n in 0..readers {
        let (link, name) = (LinkId(n), node(n));
        let fan = Fan { out: 2, now: Time(0), is_up: |_| true };
        let mut decided = keys.spread(blob, (link, 0, &name), false, &fan);
        if let Spreads::Prove(_) = decided {
            keys.proved(blob, DIGEST);
            decided = keys.spread(blob, (link, 0, &name), true, &fan);
        }
        let source = match decided {
            Spreads::Send => {
                keys.send_begins(Time(0), blob, link, &name);
                by_owner += 1;
                Duration::ZERO
            }
            Spreads::Redirect(_, names) => {
                *by_node.entry(names[0].clone()).or_default() += 1;
                has[&names[0]]
            }
            Spreads::Prove(_) => panic!("there is a digest"),
        };
        has.insert(name, source + two);
    }
    let rounds = has.values().max().map_or(0, Duration::as_secs);
    Sent { by_owner, by_busiest: by_node.into_values().max().unwrap_or(0), rounds }
}

// Promise: spreading, seen to fail
#[test]
fn no_node_sends_more_copies_than_the_fan_out() {
    for (readers, rounds) in [(7, 6), (40, 10), (200, 14)] {
        let sent = spread_to(readers);
        assert_eq!((sent.by_owner, sent.by_busiest, sent.rounds), (2, 2, rounds), "{readers} readers");
    }
}
