//! Tests of fetches that are answered by reference, and of the memory's fate when links fail, workers leave and peers
//! break the rules.

use super::pair::{ARENA_BYTES, Pair, Worker, bytes, key, name};
use super::solo::{KEY, LINK, OTHERS, OURS, SESSION, Solo};
use crate::fabric::FabricEvent;
use crate::memory::SegmentId;
use crate::op::{Answer, Command, FailureCode, FetchedTensor, LeaseId, OpId, Push, Reply, Request, TakeBack};
use crate::tensor::{Retention, Select, Until, Version};
use crate::wire::message::{Body, Role};
use std::num::NonZeroU32;
use std::time::Duration;

/// An owner at one node and a reader at the other, with the reader's lease of the owner's version.
struct Scene {
    pair: Pair,
    owner: Worker,
    reader: Worker,
    lease: LeaseId,
}

impl Scene {
    fn new() -> Scene {
        let mut pair = Pair::with_references(|_| {});
        let (owner, reader) = (pair.worker(0, "w"), pair.worker(1, "r"));
        pair.push(owner, "k", bytes(100), 7, None);
        pair.settle();
        pair.fetch(reader, "k", Select::Latest);
        pair.settle();
        let lease = pair.fetched(reader).0;
        pair.replies(owner);
        pair.posted();
        Scene { pair, owner, reader, lease }
    }

    /// Lets the owner publish another version. Returns whether the first version's range has returned.
    fn replace(&mut self) -> bool {
        self.pair.push(self.owner, "k", bytes(100), 8, None);
        self.pair.settle();
        self.came_back()
    }

    fn came_back(&mut self) -> bool {
        let replies = self.pair.replies(self.owner);
        replies.iter().any(|reply| matches!(reply, Reply::Returned { .. }))
    }

    fn lose_link(&mut self) {
        self.pair.world.break_connection(0, "the cable was pulled");
        self.pair.settle();
    }

    fn ends(self) {
        let Scene { pair, owner, reader, .. } = self;
        pair.ends_clean(&[(owner, "w"), (reader, "r")]);
    }
}

#[test]
fn fetch_reads_in_the_memory_of_the_owner() {
    let mut pair = Pair::with_references(|_| {});
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(100), 7, None);
    pair.settle();
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let replies = pair.replies(r);
    let [
        Reply::Answer {
            answer: Answer::Fetched { lease, tensor: FetchedTensor { version, slice, report, .. } }, ..
        },
    ] = &replies[..]
    else {
        panic!("{replies:?}")
    };
    let (segment, memory) = pair.kept[1][0];
    assert_eq!((*version, slice.segment, memory, slice.len, report.copied), (Version(1), segment, w.arena, 100, 0));
    assert_eq!(pair.posted(), ["NAME", "NAME", "TENSOR_REQUEST", "BY_REFERENCE"]);
    pair.release(r, *lease);
    pair.settle();
    assert_eq!(pair.posted(), ["RELEASE_REFERENCE"]);
    // The segment is known from the first fetch.
    for fill in [8, 9] {
        pair.push(w, "k", bytes(1000), fill, None);
        pair.fetch(r, "k", Select::AtLeast(Version(u64::from(fill) - 6)));
        pair.settle();
        let (lease, _, _, got) = pair.fetched(r);
        assert_eq!(
            (got, pair.posted()),
            (vec![fill; 1000], vec!["TENSOR_REQUEST".to_owned(), "BY_REFERENCE".to_owned()])
        );
        pair.release(r, lease);
        pair.settle();
        pair.posted();
    }
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn range_returns_only_when_its_reader_elsewhere_is_done() {
    let mut scene = Scene::new();
    assert!(!scene.replace(), "the first version is still being read");
    scene.pair.release(scene.reader, scene.lease);
    scene.pair.settle();
    assert!(scene.came_back());
    scene.ends();
}

#[test]
fn an_arena_stays_until_its_last_reader_elsewhere_is_done() {
    let mut scene = Scene::new();
    scene.pair.leave(scene.owner, "w");
    scene.pair.settle();
    assert_eq!(
        (scene.pair.nodes[0].node.state().snapshot(scene.pair.world.now()).blobs, scene.pair.kept[1].len()),
        (1, 1)
    );
    scene.pair.release(scene.reader, scene.lease);
    scene.pair.settle();
    assert_eq!(
        (scene.pair.nodes[0].node.state().snapshot(scene.pair.world.now()).blobs, scene.pair.kept[1].len()),
        (0, 0)
    );
    scene.pair.ends_clean(&[(scene.reader, "r")]);
}

/// After the link is lost, the peer cannot report its readers. The version stays until the host reports that no process
/// reads the segment.
// Promise: referenced-versions, seen to fail
#[test]
fn range_returns_after_a_lost_link_when_no_process_reads_it() {
    let mut scene = Scene::new();
    assert!(!scene.replace());
    scene.pair.still_reads = true;
    scene.lose_link();
    assert!(!scene.came_back());
    for _ in 0..3 {
        let asked = scene.pair.asked;
        scene.pair.wait(Duration::from_millis(150));
        assert!(!scene.came_back() && scene.pair.asked > asked);
    }
    assert_eq!(scene.pair.kept[1].len(), 1, "the reader reads on");
    scene.pair.release(scene.reader, scene.lease);
    scene.pair.settle();
    assert_eq!(scene.pair.kept[1].len(), 0, "and it was the last one");
    scene.pair.still_reads = false;
    scene.pair.wait(Duration::from_millis(150));
    assert!(scene.came_back());
    let asked = scene.pair.asked;
    scene.pair.wait(Duration::from_secs(1));
    assert_eq!(scene.pair.asked, asked, "there is nothing more to ask");
    scene.ends();
}

#[test]
fn new_link_does_not_end_the_references_of_the_old_one() {
    let mut scene = Scene::new();
    scene.pair.still_reads = true;
    scene.lose_link();
    scene.pair.fetch(scene.reader, "k", Select::Latest);
    scene.pair.settle();
    let (lease, ..) = scene.pair.fetched(scene.reader);
    assert_eq!(scene.pair.kept[1].len(), 2, "of the old link and of the new one");
    assert!(!scene.replace());
    scene.pair.release(scene.reader, lease);
    scene.pair.settle();
    assert!(!scene.came_back(), "the old one's reader reads on");
    scene.pair.still_reads = false;
    scene.pair.wait(Duration::from_millis(150));
    assert!(scene.came_back());
    scene.ends();
}

#[test]
fn a_version_is_taken_back_when_its_readers_elsewhere_are_done() {
    let mut scene = Scene::new();
    let take_back = |timeout| Command::TakeBack(TakeBack { key: super::pair::key("k"), version: None, timeout });
    scene.pair.command(scene.owner, OpId(901), take_back(Duration::from_millis(10)));
    scene.pair.wait(Duration::from_millis(20));
    let failure = scene.pair.failed(scene.owner);
    assert!(failure.code == FailureCode::Deadline && failure.text.contains("in 1 places"), "{failure:?}");
    scene.pair.command(scene.owner, OpId(902), take_back(Duration::from_secs(10)));
    scene.pair.settle();
    scene.pair.release(scene.reader, scene.lease);
    scene.pair.settle();
    assert!(matches!(
        scene.pair.replies(scene.owner)[..],
        [Reply::Answer { answer: Answer::TakenBack { version: Version(1), .. }, .. }]
    ));
    scene.ends();
}

/// Versions beyond the limit of references, and versions with a counted number of fetches, are sent.
#[test]
fn version_that_cannot_be_referenced_is_sent() {
    let mut pair = Pair::with_references(|config| config.max_references = 1);
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    let fetched = |pair: &mut Pair| {
        pair.settle();
        pair.posted();
        pair.fetch(r, "k", Select::Latest);
        pair.settle();
        let posted = pair.posted();
        (pair.fetched(r).0, posted.contains(&"BY_REFERENCE".to_owned()), posted.contains(&"WRITE".to_owned()))
    };
    pair.push(w, "k", bytes(100), 1, None);
    let (first, referred, written) = fetched(&mut pair);
    assert!(referred && !written);
    let (second, referred, written) = fetched(&mut pair);
    assert!(!referred && written, "there is one reference already");
    pair.release(r, second);
    pair.release(r, first);
    let (third, referred, written) = fetched(&mut pair);
    assert!(referred && !written, "there is none any more");
    pair.release(r, third);
    pair.retention.until = Until::Fetched(NonZeroU32::new(1).unwrap());
    pair.push(w, "k", bytes(100), 2, None);
    let (lease, referred, written) = fetched(&mut pair);
    assert!(!referred && written, "it may be fetched once");
    pair.release(r, lease);
    pair.retention = Retention::default();
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn cancelled_fetch_leaves_no_reference() {
    let mut pair = Pair::with_references(|_| {});
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "k", bytes(100), 1, None);
    pair.settle();
    // Cancel after each number of steps of the exchange.
    for steps in 0..12 {
        let op = pair.fetch(r, "k", Select::Latest);
        for _ in 0..steps {
            pair.poll();
            pair.world.step();
        }
        pair.request(r, Request::Cancel { op });
        pair.settle();
        for reply in pair.replies(r) {
            if let Reply::Answer { answer: Answer::Fetched { lease, .. }, .. } = reply {
                pair.release(r, lease);
            }
        }
        pair.settle();
        assert_eq!([0, 1].map(|i| pair.nodes[i].node.references.counts()), [(0, 0), (0, 0)], "after {steps} steps");
    }
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

/// The peer's number of the segment that the node of a [`Solo`] keeps.
const HANDLE: u32 = 9;

/// Makes a [`Solo`] whose peer allows references and has passed a segment.
pub(super) fn referring() -> Solo {
    let mut solo = Solo::new(|_| {});
    solo.node.fabric_event(solo.now, FabricEvent::References { link: LINK, mark: 8 }, None);
    assert!(solo.node.keep_segment(LINK, HANDLE, SegmentId(1 << 30), ARENA_BYTES));
    solo
}

fn referred(segment: u32, offset: u64) -> Body {
    referred_ranges(segment, offset, 0)
}

fn referred_ranges(segment: u32, offset: u64, ranges: u32) -> Body {
    Body::ByReference { lease: 3, segment, offset, ranges, version: Version(2), waited_us: 0, meta: bytes(8) }
}

pub(super) fn by_reference(offset: u64) -> Body {
    referred(HANDLE, offset)
}

/// A false message of a peer ends its link, and no fetch succeeds by it.
#[test]
fn false_messages_about_references_end_the_link() {
    let index =
        |solo: &Solo| solo.node.transfers.of(LINK).unwrap().pulls().iter().last().map_or(0, |(id, _)| id.short());
    let lies = [
        ("which was not passed", referred(HANDLE + 1, 0)),
        ("multiple of 64", by_reference(8)),
        ("end within its", by_reference(ARENA_BYTES)),
        ("end within its", by_reference(u64::MAX - 63)),
        ("131072 is the limit", referred_ranges(HANDLE, 0, 131_073)),
        ("end within its", referred_ranges(HANDLE, ARENA_BYTES - 64, 8)),
        ("which it does not hold", Body::ReleaseReference { lease: 7 }),
    ];
    for (words, lie) in lies {
        let mut solo = referring();
        solo.fetch(Select::AtLeast(Version(2)));
        let index = index(&solo);
        solo.hear(Role::Pull, index, lie);
        let ended = solo.ended.take().unwrap_or_else(|| panic!("{words}: it goes on"));
        assert!(ended.to_string().contains(words), "{ended}");
        assert!(solo.replies.is_empty());
        solo.lose_link();
    }
    // A link without references must not use them.
    let mut solo = Solo::new(|_| {});
    solo.fetch(Select::AtLeast(Version(2)));
    let index = index(&solo);
    solo.hear(Role::Pull, index, by_reference(0));
    assert!(solo.ended.is_some());
}

/// A worker of another tenant gets neither the version nor its description.
// Promise: references, seen to fail
#[test]
fn request_of_another_tenant_is_refused() {
    for (tenant, shared) in [(OURS, true), (OTHERS, false)] {
        let mut solo = referring();
        solo.push(None, Duration::from_secs(1));
        let (select, slot) = (Select::Latest, None);
        let body = Body::TensorRequest {
            key: KEY,
            select,
            metadata_id: 0,
            tenant,
            excerpt: None,
            slot,
            held: None,
            direct: false,
            trace: None,
        };
        solo.hear(Role::Pull, 5, body);
        assert_eq!(solo.shares.len() == 1, shared);
        let refused = solo.sent.iter().find_map(|m| match &m.body {
            Body::ErrorStatus(failure) => Some(failure.code),
            _ => None,
        });
        assert_eq!(refused, (!shared).then_some(FailureCode::PermissionDenied));
        assert!(!solo.sent.iter().any(|m| m.body.name() == "META_DATA_UPDATE"));
        solo.node.session_closed(solo.now, SESSION, "it left");
        solo.drain();
    }
}

/// A version that is shared with another tenant is sent as bytes, because a process that is passed a segment can read
/// all of it.
// Promise: shared-with-a-tenant, seen to fail
#[test]
fn version_shared_with_another_tenant_is_not_referenced() {
    let mut solo = referring();
    let op = solo.op();
    solo.command(
        op,
        Command::Push(Push {
            timeout: Duration::from_secs(1),
            readable_by: vec![name("1")],
            ..Push::new(key("k"), bytes(8), 0)
        }),
    );
    solo.answer();
    let (select, slot) = (Select::Latest, None);
    let body = Body::TensorRequest {
        key: KEY,
        select,
        metadata_id: 0,
        tenant: OTHERS,
        excerpt: None,
        slot,
        held: None,
        direct: false,
        trace: None,
    };
    solo.hear(Role::Pull, 5, body);
    assert!(solo.shares.is_empty(), "its segment is passed");
    assert_eq!(solo.last("META_DATA_UPDATE").index, 5);
}
