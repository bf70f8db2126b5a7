//! Tests of versions that spread through their readers: the owner, and a reader.

use super::pair::{bytes, key, name};
use super::solo::{KEY, LINK, OURS, Solo};
use crate::fabric::LinkId;
use crate::memory::{RemoteKey, RemoteSlice};
use crate::op::{Answer, Command, Failure, FailureCode, Fetch, OpId, Push, Reply, Request};
use crate::protocol::{Control, HostDone};
use crate::tensor::{Retention, Select, Version};
use crate::wire::landing::{HEADER_BYTES, Header, SlotGrant, SlotNumber};
use crate::wire::message::{Body, NameRef, Role};
use std::num::NonZeroU64;
use std::time::Duration;

pub(super) const OTHER: LinkId = LinkId(8);
pub(super) const THIRD: LinkId = LinkId(9);
const FOURTH: LinkId = LinkId(10);
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(1000);
/// The length of a version, and of its chunks: seven of 128 bytes and one of 104.
pub(super) const LEN: u64 = 1000;
pub(super) const CHUNK: u64 = 128;
pub(super) const CHUNKS: u64 = 8;
pub(super) const DIGEST: [u8; 16] = [9; 16];

/// The numbers, at the owner's link, of the nodes that it names.
const NAMED: [(NameRef, &str); 3] = [
    (NameRef { id: 5, generation: 0 }, "other"),
    (NameRef { id: 6, generation: 0 }, "far"),
    (NameRef { id: 7, generation: 0 }, "there"),
];
pub(super) const OTHER_NAME: NameRef = NAMED[0].0;
pub(super) const FAR_NAME: NameRef = NAMED[1].0;
pub(super) const OWNER_NAME: NameRef = NAMED[2].0;
/// The number of the owner's name at the link of the other node.
pub(super) const THERE: NameRef = NameRef { id: 5, generation: 0 };
/// The number of this node's name.
const HERE: NameRef = NameRef { id: 5, generation: 0 };

pub(super) fn identity(n: u64) -> NonZeroU64 {
    NonZeroU64::new(n).unwrap()
}

pub(super) fn slot(len: u64) -> SlotGrant {
    let remote = RemoteSlice::new(0, HEADER_BYTES, RemoteKey(99));
    let body = vec![RemoteSlice::new(4096, len, RemoteKey(98))];
    SlotGrant { number: SlotNumber::new(3, 1), capacity: len, remote, body }
}

// ---- the owner ----

/// A node that owns a key of which a node gets the version from here. Others are sent to that one.
fn owner() -> Solo {
    let mut solo = Solo::new(|config| (config.fan_out, config.spreads_from, config.chunk_bytes) = (1, 1, CHUNK));
    solo.hear(Role::Pull, 0, Body::Name { name: HERE, text: name("here") });
    for (link, node) in [(OTHER, "other"), (THIRD, "third")] {
        link_to(&mut solo, link, node);
    }
    push(&mut solo);
    asks(&mut solo, LINK, 1);
    solo
}

/// Lets a link come up to a node that knows the name of this one.
fn link_to(solo: &mut Solo, link: LinkId, node: &str) {
    solo.link_to(link, node);
    solo.hear(Role::Pull, 0, Body::Name { name: HERE, text: name("here") });
}

fn push(solo: &mut Solo) {
    let op = solo.op();
    let offset = op.0 * 2048;
    solo.command(op, Command::Push(Push { timeout: FETCH_TIMEOUT, ..Push::new(key("k"), bytes(LEN), offset) }));
    solo.answer();
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

/// Lets a peer ask the owner for a chunk.
fn asks_for_chunk(solo: &mut Solo, link: LinkId, index: u32, (offset, len): (u64, u64)) {
    solo.at = link;
    let identity = solo.sent.iter().rev().find_map(|message| match message.body {
        Body::Redirect { identity, .. } => Some(identity),
        _ => None,
    });
    let body = Body::ChunkRequest {
        key: KEY,
        tenant: OURS,
        owner: HERE,
        incarnation: 1,
        version: Version(1),
        identity: identity.unwrap(),
        offset,
        slot: slot(len),
        trace: None,
    };
    solo.hear(Role::Pull, index, body);
}

pub(super) fn last(solo: &Solo) -> &'static str {
    solo.sent.last().unwrap().body.name()
}

/// The first of the nodes that the last REDIRECT names.
fn first_named(solo: &Solo) -> String {
    let Body::Redirect { sources, .. } = solo.last("REDIRECT").body else { unreachable!() };
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
fn owner_holds_a_version_for_nodes_that_ask_for_its_chunks() {
    let mut solo = owner();
    let Body::Redirect { chunk_bytes, .. } = solo.last("REDIRECT").body else { unreachable!() };
    assert_eq!((chunk_bytes, first_named(&solo).as_str(), held(&solo)), (CHUNK, "here", 0));
    assert_eq!(solo.digests, [], "what comes from the owner needs none");
    asks(&mut solo, OTHER, 2);
    assert_eq!((first_named(&solo).as_str(), held(&solo)), ("there", 1));
    // It is replaced, and the node drains.
    push(&mut solo);
    solo.node.drain(solo.now);
    solo.drain();
    for (link, index, range) in [(LINK, 10, (0, CHUNK)), (OTHER, 11, (7 * CHUNK, 104))] {
        asks_for_chunk(&mut solo, link, index, range);
        let header = solo.headers.last().unwrap();
        assert_eq!((header.version, header.index, header.body_len), (Version(1), index, range.1));
        assert!(header.spreads, "nodes may be sent to the one that gets it");
    }
    solo.hear(Role::Pull, 2, Body::Taken);
    assert_eq!((last(&solo), held(&solo), &solo.ended), ("CANCELLED", 0, &None));
}

// Promise: spreading, seen to fail
#[test]
fn chunk_is_sent_only_to_nodes_for_which_the_version_is_held() {
    let mut solo = owner();
    let count = solo.headers.len();
    asks_for_chunk(&mut solo, THIRD, 10, (0, CHUNK));
    assert_eq!((last(&solo), solo.headers.len()), ("ERROR_STATUS", count));
    asks(&mut solo, THIRD, 11);
    asks_for_chunk(&mut solo, THIRD, 12, (0, CHUNK));
    assert_eq!((solo.headers.len(), &solo.ended), (count + 1, &None));
    solo.hear(Role::Pull, 11, Body::Cancel);
    asks_for_chunk(&mut solo, THIRD, 13, (0, CHUNK));
    assert_eq!(last(&solo), "ERROR_STATUS");
    for range in [(7 * CHUNK, CHUNK), (u64::MAX, 1)] {
        let mut solo = owner();
        asks_for_chunk(&mut solo, LINK, 10, range);
        assert!(solo.ended.is_some(), "{range:?}");
    }
}

// Promise: spreading, seen to fail
#[test]
fn node_that_has_taken_a_version_is_named_first() {
    let mut solo = owner();
    asks(&mut solo, OTHER, 2);
    solo.hear(Role::Pull, 2, Body::Taken);
    assert_eq!((last(&solo), held(&solo)), ("CANCELLED", 0));
    asks(&mut solo, THIRD, 3);
    assert_eq!(first_named(&solo), "other", "the first one is still receiving it");
}

// Promise: spreading, seen to fail
#[test]
fn node_that_has_not_sent_a_version_is_named_no_more() {
    let mut solo = owner();
    asks(&mut solo, OTHER, 2);
    solo.hear(Role::Pull, 2, Body::Taken);
    asks(&mut solo, THIRD, 3);
    solo.hear(Role::Pull, 3, Body::SourceFailed { source: 0 });
    link_to(&mut solo, FOURTH, "fourth");
    asks(&mut solo, FOURTH, 4);
    assert_eq!(first_named(&solo), "third");
    // When it asks again it gets it from here, and has it then.
    asks(&mut solo, OTHER, 5);
    assert_eq!(first_named(&solo), "here");
    solo.hear(Role::Pull, 5, Body::Taken);
    asks(&mut solo, LINK, 6);
    link_to(&mut solo, LinkId(11), "fifth");
    asks(&mut solo, LinkId(11), 7);
    assert_eq!((first_named(&solo).as_str(), &solo.ended), ("other", &None));
}

// Promise: spreading, seen to fail
#[test]
fn digests_are_made_for_nodes_that_are_sent_to_others() {
    let mut solo = owner();
    asks(&mut solo, OTHER, 2);
    let count = |solo: &Solo| {
        let sent = solo.sent.iter().filter_map(|message| match &message.body {
            Body::Digests { digests, .. } if message.index == 2 => Some(digests.len() as u64),
            _ => None,
        });
        sent.sum::<u64>()
    };
    for made in 0..CHUNKS {
        assert_eq!((solo.digests.len(), count(&solo)), (1, 0), "{made} of them are made");
        proves(&mut solo, DIGEST);
    }
    assert_eq!((solo.digests.len(), count(&solo)), (0, CHUNKS));
    // They are not made again.
    asks(&mut solo, THIRD, 3);
    assert_eq!((last(&solo), solo.digests.len()), ("DIGESTS", 0));
    // Nobody waits for them any more.
    let mut solo = owner();
    asks(&mut solo, OTHER, 2);
    solo.hear(Role::Pull, 2, Body::Cancel);
    proves(&mut solo, DIGEST);
    assert_eq!((solo.digests.len(), &solo.ended), (0, &None));
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
    solo.grant();
    op
}

/// A node with links to the owner of a key and to another node. Its worker has asked the owner.
pub(super) fn reader() -> Solo {
    reader_of(Solo::new(|_| {}))
}

pub(super) fn reader_of(mut solo: Solo) -> Solo {
    for (number, text) in NAMED {
        solo.hear(Role::Pull, 0, Body::Name { name: number, text: name(text) });
    }
    solo.link_to(OTHER, "other");
    solo.hear(Role::Pull, 0, Body::Name { name: THERE, text: name("there") });
    fetch(&mut solo, Select::Latest);
    solo
}

/// Answers the last request to the owner by the names of nodes, with all digests.
pub(super) fn redirect(solo: &mut Solo, sources: [NameRef; 3]) -> u32 {
    let index = redirect_without_digests(solo, sources, LEN);
    digests(solo, index, 0, CHUNKS);
    index
}

pub(super) fn redirect_without_digests(solo: &mut Solo, sources: [NameRef; 3], len: u64) -> u32 {
    let index = solo.last("TENSOR_REQUEST").index;
    let (version, identity, meta) = (Version(1), identity(4), bytes(len));
    let body = Body::Redirect { version, identity, metadata_id: 1, chunk_bytes: CHUNK, sources, meta };
    solo.at = LINK;
    solo.hear(Role::Pull, index, body);
    solo.grant();
    index
}

/// Lets the owner send the digests of so many chunks for a request, from one on.
pub(super) fn digests(solo: &mut Solo, index: u32, first: u32, count: u64) {
    solo.at = LINK;
    solo.hear(Role::Pull, index, Body::Digests { first, digests: vec![DIGEST; count as usize] });
}

/// Returns the numbers of the chunks that were asked for, in order.
pub(super) fn asked(solo: &Solo) -> Vec<u64> {
    let asked = solo.sent.iter().filter_map(|message| match message.body {
        Body::ChunkRequest { offset, .. } => Some(offset / CHUNK),
        _ => None,
    });
    asked.collect()
}

/// Returns the last request for a chunk: its index, and the slot.
pub(super) fn chunk_request(solo: &Solo, number: u64) -> (u32, SlotGrant) {
    let found = solo.sent.iter().rev().find_map(|message| match &message.body {
        Body::ChunkRequest { offset, slot, .. } if *offset == number * CHUNK => Some((message.index, slot.clone())),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("chunk {number} was not asked for: {:?}", asked(solo)))
}

/// Lets a chunk land, for the last request for it.
pub(super) fn land(solo: &mut Solo, link: LinkId, number: u64) {
    write(solo, link, number);
    solo.revoke();
    solo.grant();
}

/// Lets a chunk land whose slot is not closed.
pub(super) fn write(solo: &mut Solo, link: LinkId, number: u64) {
    let (index, slot) = chunk_request(solo, number);
    solo.at = link;
    solo.land(&Header {
        slot: slot.number,
        index,
        metadata_id: 0,
        version: Version(1),
        body_len: slot.capacity,
        pieces: 1,
        waited_us: 0,
        name: 0,
        retention: Retention::default(),
        packed: false,
        deltas_follow: false,
        is_delta: false,
        spreads: true,
        identity: Some(identity(4)),
    });
}

/// Lets chunks come from another node than the owner.
pub(super) fn come(solo: &mut Solo, link: LinkId, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        land(solo, link, number);
        proves(solo, DIGEST);
    }
}

pub(super) fn proves(solo: &mut Solo, digest: [u8; 16]) {
    let (now, tag) = (solo.now, solo.digests.remove(0));
    solo.node.host_done(now, tag, HostDone::Digest(digest));
    solo.drain();
    solo.grant();
}

/// Lets the other node refuse a chunk.
pub(super) fn refuses(solo: &mut Solo, link: LinkId, number: u64, code: FailureCode) {
    let (index, _) = chunk_request(solo, number);
    solo.at = link;
    solo.hear(Role::Pull, index, Body::ErrorStatus(Failure::new(code, "a test")));
}

/// Lets the peer of a link confirm that it writes no more for these requests, and closes their slots.
pub(super) fn cancelled(solo: &mut Solo, link: LinkId, indices: &[u32]) {
    solo.at = link;
    for index in indices {
        solo.hear(Role::Pull, *index, Body::Cancelled);
    }
    solo.revoke();
    solo.grant();
}

pub(super) fn has_fetched(solo: &Solo) -> usize {
    let is_it = |reply: &&Reply| matches!(reply, Reply::Answer { answer: Answer::Fetched { .. }, .. });
    solo.replies.iter().filter(is_it).count()
}

// Promise: spreading, seen to fail
#[test]
fn version_comes_in_chunks_of_which_few_are_asked_for_at_a_time() {
    let mut solo = reader();
    let index = redirect(&mut solo, [OTHER_NAME; 3]);
    assert_eq!(asked(&solo), [0, 1, 2, 3]);
    // In any order.
    for (number, next) in [(2, 4), (0, 5), (4, 6), (1, 7)] {
        land(&mut solo, OTHER, number);
        assert_eq!(asked(&solo).last(), Some(&next));
    }
    for number in [3, 5, 6, 7] {
        assert_eq!(has_fetched(&solo), 0);
        land(&mut solo, OTHER, number);
    }
    for _ in 0..CHUNKS {
        assert_eq!(has_fetched(&solo), 0, "it is not compared yet");
        proves(&mut solo, DIGEST);
    }
    assert_eq!((has_fetched(&solo), last(&solo), solo.sent.last().unwrap().index), (1, "TAKEN", index));
    let Some(Reply::Answer { answer: Answer::Fetched { tensor, .. }, .. }) = solo.replies.last() else { panic!() };
    assert_eq!((tensor.report.bytes, tensor.report.relayed, asked(&solo).len()), (LEN, LEN, 8));
    assert_eq!(solo.ended, None);
}

// Promise: spreading, seen to fail
#[test]
fn what_comes_from_the_owner_is_not_compared() {
    let mut solo = reader();
    let index = redirect_without_digests(&mut solo, [OWNER_NAME; 3], LEN);
    for number in 0..CHUNKS {
        land(&mut solo, LINK, number);
    }
    assert_eq!((has_fetched(&solo), last(&solo), solo.sent.last().unwrap().index), (1, "TAKEN", index));
    let Some(Reply::Answer { answer: Answer::Fetched { tensor, .. }, .. }) = solo.replies.last() else { panic!() };
    assert_eq!((tensor.report.relayed, solo.digests.len(), &solo.ended), (0, 0, &None));
}

// Promise: spreading, seen to fail
#[test]
fn chunk_waits_for_the_digest_of_the_owner() {
    let mut solo = reader();
    let index = redirect_without_digests(&mut solo, [OTHER_NAME; 3], LEN);
    come(&mut solo, OTHER, 0..CHUNKS);
    digests(&mut solo, index, 0, 5);
    assert_eq!(has_fetched(&solo), 0);
    digests(&mut solo, index, 5, 3);
    assert_eq!((has_fetched(&solo), &solo.ended), (1, &None));
    // Others than the next ones are a mistake.
    for first in [1, 7, 8] {
        let mut solo = reader();
        let index = redirect_without_digests(&mut solo, [OTHER_NAME; 3], LEN);
        digests(&mut solo, index, 0, 7);
        digests(&mut solo, index, first, if first == 7 { 2 } else { 1 });
        assert!(solo.ended.is_some(), "from {first} on");
    }
}

// Promise: spreading, seen to fail
#[test]
fn what_has_come_is_kept_when_a_node_fails() {
    for refuses_it in [true, false] {
        let mut solo = reader();
        let index = redirect(&mut solo, [OTHER_NAME; 3]);
        come(&mut solo, OTHER, [0, 1]);
        let before = asked(&solo).len() + usize::from(!refuses_it);
        match refuses_it {
            true => refuses(&mut solo, OTHER, 2, FailureCode::VersionGone),
            false => {
                land(&mut solo, OTHER, 2);
                proves(&mut solo, [0; 16]);
            }
        }
        let told = solo.sent.iter().any(|message| matches!(message.body, Body::SourceFailed { source: 0 }));
        assert_eq!((told, has_fetched(&solo)), (true, 0));
        let given_up: Vec<_> = solo.sent.iter().filter(|m| m.body.name() == "CANCEL").map(|m| m.index).collect();
        assert_eq!(given_up.len(), if refuses_it { 3 } else { 4 });
        // The owner is asked for the others.
        solo.revoke();
        solo.grant();
        cancelled(&mut solo, OTHER, &given_up);
        let mut came = 0;
        while let Some(number) = asked(&solo).get(before + came).copied() {
            land(&mut solo, LINK, number);
            came += 1;
        }
        assert_eq!((has_fetched(&solo), came, last(&solo), solo.sent.last().unwrap().index), (1, 6, "TAKEN", index));
        let Some(Reply::Answer { answer: Answer::Fetched { tensor, .. }, .. }) = solo.replies.last() else { panic!() };
        assert_eq!((tensor.report.relayed >= 2 * CHUNK, &solo.ended), (true, &None));
    }
}

#[test]
fn nothing_is_searched_for_where_nobody_waits_any_more() {
    let mut solo = reader();
    let (first, later) = (OpId(1), fetch(&mut solo, Select::Latest));
    solo.request(Request::Cancel { op: first });
    redirect_without_digests(&mut solo, [OTHER_NAME; 3], LEN);
    assert_eq!(asked(&solo), []);
    assert!(solo.sent.iter().any(|message| message.body.name() == "CANCEL"));
    assert_eq!(last(&solo), "TENSOR_REQUEST", "the later fetch asks anew");
    solo.request(Request::Cancel { op: later });
    assert_eq!(solo.ended, None);
}

// Promise: full-pools
#[test]
fn nothing_is_asked_for_before_there_is_room() {
    let mut solo = reader();
    solo.fill_pool();
    redirect(&mut solo, [OTHER_NAME; 3]);
    solo.wait(FETCH_TIMEOUT / 4);
    assert_eq!(asked(&solo), []);
    solo.free_pool();
    solo.grant();
    assert_eq!(asked(&solo), [0, 1, 2, 3]);
    let mut solo = reader();
    solo.fill_pool();
    redirect(&mut solo, [OTHER_NAME; 3]);
    solo.wait(FETCH_TIMEOUT);
    let Some(Reply::Answer { answer: Answer::Failed { failure, .. }, .. }) = solo.replies.last() else { panic!() };
    assert_eq!(failure.code, FailureCode::PoolFull, "{failure:?}");
}

// Promise: spreading
#[test]
fn node_that_is_not_reached_costs_little_and_only_once() {
    let mut solo = reader();
    redirect(&mut solo, [FAR_NAME, OTHER_NAME, OTHER_NAME]);
    assert!(solo.controls.iter().any(|c| matches!(c, Control::Connect { peer } if *peer == name("far"))));
    assert_eq!(asked(&solo), []);
    solo.wait(Duration::from_secs(3));
    solo.grant();
    assert_eq!(asked(&solo).len(), 4);
    // The next fetch waits for the same.
    fetch(&mut solo, Select::AtLeast(Version(1)));
    redirect_without_digests(&mut solo, [FAR_NAME, OTHER_NAME, OTHER_NAME], LEN);
    assert_eq!((asked(&solo).len(), &solo.ended), (4, &None));
    come(&mut solo, OTHER, 0..CHUNKS);
    assert_eq!(has_fetched(&solo), 2);
    let mut solo = reader();
    redirect(&mut solo, [FAR_NAME, OTHER_NAME, OTHER_NAME]);
    solo.node.connect_failed(solo.now, &name("far"), "a test");
    solo.drain();
    solo.grant();
    assert_eq!(asked(&solo).len(), 4);
}
