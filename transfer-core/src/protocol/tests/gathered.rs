//! Tests of ranges of several versions that are fetched together.

use super::pair::{ARENA_BYTES, POOL_BYTES, Pair, Worker, bytes, key, name};
use super::solo::{KEY, ME, OTHERS, OURS, Solo};
use crate::fabric::{DownReason, FabricEvent};
use crate::op::{Answer, Command, Failure, FailureCode, Gather, LeaseId, OpId, Push, Reply, Request, TakeBack};
use crate::protocol::SpillConfig;
use crate::tensor::{BodyRange, DType, Gathered, GatheredPart, Select, Spill, TensorMeta, Until, Version};
use crate::time::Time;
use crate::wire::message::{Body, Message, NameRef, Role};
use crate::wire::ranges::ArenaRange;
use std::num::NonZeroU32;
use std::time::Duration;

const KEYS: [&str; 4] = ["x/0", "x/1", "x/2", "x/3"];
const REQUEST: [&str; 2] = ["NAME", "GATHER_REQUEST"];
const ANSWER: [&str; 3] = ["META_DATA_UPDATE", "TENSOR_RE_REQUEST", "WRITE"];

fn part(rest: &str, offset: u64, len: u64) -> GatheredPart {
    GatheredPart::new(rest, BodyRange { offset, len }).unwrap()
}

fn gather(pair: &mut Pair, r: Worker, op: u64, parts: &[GatheredPart]) {
    let gathered = Gathered::new(name("x/"), parts.to_vec()).unwrap();
    let timeout = Duration::from_secs(1);
    pair.command(r, OpId(op), Command::Gather(Gather { gathered, timeout, require: None, trace: None }));
}

/// The first 64 bytes of each key.
fn heads() -> Vec<GatheredPart> {
    KEYS.iter().map(|key| part(&key[2..], 0, 64)).collect()
}

/// A worker of node 0 has published all keys, each filled with its number, and a worker of node 1 knows where they are.
fn published(pair: &mut Pair) -> (Worker, Worker) {
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    for (fill, key) in (0..).zip(KEYS) {
        pair.push(w, key, bytes(1000).with_metadata(100).unwrap(), fill, None);
    }
    known(pair, r);
    pair.replies(w);
    (w, r)
}

/// A push at the end of the arena.
fn push_of(text: &str) -> Push {
    Push { timeout: Duration::from_secs(1), ..Push::new(key(text), bytes(0), ARENA_BYTES - 4096) }
}

/// Has a worker find the first key.
fn known(pair: &mut Pair, r: Worker) {
    pair.fetch(r, KEYS[0], Select::Latest);
    pair.settle();
    let lease = pair.fetched(r).0;
    pair.release(r, lease);
    pair.settle();
    pair.posted();
}

/// Expects that nothing but its publication holds each key: its worker can take it back at once.
#[track_caller]
fn expect_free(pair: &mut Pair, w: Worker) {
    for (op, text) in (5000..).zip(KEYS) {
        let timeout = Duration::from_secs(1);
        pair.command(w, OpId(op), Command::TakeBack(TakeBack { key: key(text), version: None, timeout }));
    }
    pair.poll();
    let replies = pair.replies(w);
    let is_back = |reply: &&Reply| matches!(reply, Reply::Answer { answer: Answer::TakenBack { .. }, .. });
    assert_eq!(replies.iter().filter(is_back).count(), KEYS.len(), "{replies:?}");
}

// Promise: one-request-for-many-tasks, seen to fail
#[test]
fn ranges_of_several_versions_land_as_one_body() {
    let mut pair = Pair::new();
    let (w, r) = published(&mut pair);
    // One whose body lies in several pieces, and one without metadata.
    let pieces = [(8192, 64), (4096, 128), (9000, 64)].map(|(offset, len)| ArenaRange { offset, len });
    for (fill, piece) in (10..).zip(pieces) {
        pair.world.write(w.arena, piece.offset, &vec![fill; piece.len as usize]);
    }
    let push = Push { meta: bytes(256).with_metadata(70).unwrap(), ranges: 3, ..push_of("x/pieces") };
    pair.push_ranges(w, 100, push, &pieces);
    pair.push(w, "x/plain", bytes(128), 9, None);
    pair.settle();
    let before = pair.nodes[0].node.common.steps.get();
    let parts = [
        part("0", 0, 64),
        part("3", 64, 128),
        part("pieces", 0, 256),
        part("pieces", 128, 128),
        part("plain", 64, 64),
        part("0", 0, 64),
    ];
    gather(&mut pair, r, 1, &parts);
    pair.settle();
    let (lease, version, meta, got) = pair.fetched(r);
    let expected: Vec<(usize, u8)> =
        vec![(64, 0), (128, 3), (64, 10), (128, 11), (64, 12), (64, 11), (64, 12), (64, 9), (64, 0)];
    let expected: Vec<u8> = expected.into_iter().flat_map(|(len, fill)| vec![fill; len]).collect();
    assert_eq!((version, meta), (0, bytes(704)));
    assert_eq!(got, expected);
    assert_eq!(pair.posted(), [&REQUEST[..], &ANSWER].concat());
    assert!(pair.nodes[0].node.common.steps.get() - before <= 2 * parts.len() as u64, "a step for each part");
    let landed = pair.nodes[1].node.state().snapshot(Time(0));
    assert_eq!((landed.leases, landed.on_links.pulls), (1, 0));
    pair.release(r, lease);
    // The next request on this link names nothing again.
    gather(&mut pair, r, 2, &heads());
    pair.settle();
    let (lease, _, _, got) = pair.fetched(r);
    assert_eq!(got, (0..4).flat_map(|fill| [fill; 64]).collect::<Vec<_>>());
    assert_eq!(pair.posted(), [&REQUEST[1..], &ANSWER].concat());
    pair.release(r, lease);
    pair.settle();
    expect_free(&mut pair, w);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: one-request-for-many-tasks, seen to fail
#[test]
fn one_part_that_is_not_there_fails_all_and_holds_nothing() {
    let spill = SpillConfig { high_percent: 60, low_percent: 20, tenant_bytes: 1 << 20, total_bytes: 1 << 20 };
    let refused = |what: &dyn Fn(&mut Pair, Worker), bad: GatheredPart| -> Failure {
        let mut pair = Pair::with(|config| config.spill = Some(spill));
        let (w, r) = published(&mut pair);
        what(&mut pair, w);
        pair.settle();
        pair.replies(w);
        pair.posted();
        gather(&mut pair, r, 1, &[&heads()[..], &[bad]].concat());
        pair.settle();
        assert_eq!(pair.posted(), [&REQUEST[..], &["ERROR_STATUS"]].concat());
        let failure = pair.failed(r);
        // The next request is answered, and nothing of the first is left.
        gather(&mut pair, r, 2, &heads());
        pair.settle();
        let lease = pair.fetched(r).0;
        pair.release(r, lease);
        pair.settle();
        expect_free(&mut pair, w);
        pair.ends_clean(&[(w, "w"), (r, "r")]);
        failure
    };
    let expect = |failure: Failure, code: FailureCode, said: &str| {
        assert_eq!(failure.code, code, "{failure}");
        assert!(failure.text.contains(said), "{failure}");
    };
    let nothing = |_: &mut Pair, _: Worker| {};
    expect(refused(&nothing, part("none", 0, 64)), FailureCode::NotOwner, "\"x/none\"");
    expect(refused(&nothing, part("3", 0, 1024)), FailureCode::Invalid, "key \"x/3\" has a body of 1000 bytes");
    expect(refused(&nothing, part("3", 1 << 37, 1 << 37)), FailureCode::Invalid, "\"x/3\"");
    let taken_back = |pair: &mut Pair, w: Worker| {
        pair.push(w, "x/back", bytes(64), 5, None);
        pair.settle();
        let command = TakeBack { key: key("x/back"), version: None, timeout: Duration::from_secs(1) };
        pair.command(w, OpId(900), Command::TakeBack(command));
    };
    expect(refused(&taken_back, part("back", 0, 64)), FailureCode::UnknownKey, "\"x/back\"");
    let on_disk = |pair: &mut Pair, w: Worker| {
        pair.retention.spill = Spill::Now;
        pair.push(w, "x/disk", bytes(1000).with_metadata(100).unwrap(), 5, None);
        pair.settle();
        assert_eq!(pair.nodes[0].node.state().snapshot(Time(0)).spilled.versions, 1);
        pair.retention.spill = Spill::default();
    };
    expect(refused(&on_disk, part("disk", 0, 64)), FailureCode::Invalid, "\"x/disk\" lies on the disk of node \"a\"");
    let counted = |pair: &mut Pair, w: Worker| {
        pair.retention.until = Until::Fetched(NonZeroU32::MIN);
        pair.push(w, "x/counted", bytes(64), 5, None);
        pair.retention.until = Until::default();
    };
    expect(refused(&counted, part("counted", 0, 64)), FailureCode::Invalid, "\"x/counted\"");
}

/// Has a reader hold so much of its pool that nothing else lands, and ask for parts. Their owner has described them.
fn without_room(pair: &mut Pair) -> (Worker, Worker, LeaseId) {
    let (w, r) = published(pair);
    pair.push(w, "full", bytes(POOL_BYTES - 64), 7, None);
    pair.fetch(r, "full", Select::Latest);
    pair.settle();
    let full = pair.fetched(r).0;
    pair.replies(w);
    gather(pair, r, 1, &heads());
    pair.settle();
    assert_eq!(pair.replies(r), []);
    assert_eq!(pair.nodes[0].node.state().snapshot(Time(0)).on_links.serves, 1);
    (w, r, full)
}

// Promise: one-request-for-many-tasks
#[test]
fn versions_are_held_until_the_last_byte_is_placed() {
    let mut pair = Pair::new();
    let (w, r, full) = without_room(&mut pair);
    for (op, text) in (900..).zip(KEYS) {
        let timeout = Duration::from_secs(1);
        pair.command(w, OpId(op), Command::TakeBack(TakeBack { key: key(text), version: None, timeout }));
    }
    pair.settle();
    assert_eq!(pair.replies(w), [], "the request still reads them");
    pair.release(r, full);
    pair.settle();
    let back = pair.replies(w);
    let is_back = |reply: &&Reply| matches!(reply, Reply::Answer { answer: Answer::TakenBack { .. }, .. });
    assert_eq!(back.iter().filter(is_back).count(), KEYS.len(), "{back:?}");
    assert_eq!(pair.fetched(r).3, (0..4).flat_map(|fill| [fill; 64]).collect::<Vec<_>>());
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: one-request-for-many-tasks, seen to fail
#[test]
fn request_that_is_given_up_lets_all_versions_go() {
    // Before the owner hears of it, while it waits for a slot, and while it writes.
    for steps in [0, 1, 2, 3, 4, 5, 6] {
        let mut pair = Pair::new();
        let (w, r) = published(&mut pair);
        gather(&mut pair, r, 1, &heads());
        for _ in 0..steps {
            pair.poll();
            pair.world.step();
        }
        pair.request(r, Request::Cancel { op: OpId(1) });
        pair.settle();
        match &pair.replies(r)[..] {
            [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] => {
                assert_eq!(failure.code, FailureCode::Cancelled);
            }
            [Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }] => {
                assert!(steps > 3, "it has landed in {steps} steps");
                pair.release(r, *lease);
            }
            other => panic!("{other:?}"),
        }
        pair.settle();
        expect_free(&mut pair, w);
        pair.ends_clean(&[(w, "w"), (r, "r")]);
    }
    let mut pair = Pair::new();
    let (w, r, full) = without_room(&mut pair);
    pair.request(r, Request::Cancel { op: OpId(1) });
    pair.settle();
    assert_eq!(pair.failed_with(r), FailureCode::Cancelled);
    expect_free(&mut pair, w);
    pair.release(r, full);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: one-request-for-many-tasks, seen to fail
#[test]
fn lost_link_lets_all_versions_go() {
    for steps in 0..7 {
        let mut pair = Pair::new();
        let (w, r) = published(&mut pair);
        gather(&mut pair, r, 1, &heads());
        for _ in 0..steps {
            pair.poll();
            pair.world.step();
        }
        // A message that breaks the rules ends the link.
        let link = pair.links[0].unwrap();
        pair.nodes[0].node.send(link, Role::Pull, 77, Body::Cancelled);
        pair.settle();
        assert!(pair.links == [None, None] && !pair.downs.is_empty(), "{:?}", pair.downs);
        match &pair.replies(r)[..] {
            [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] => {
                assert_eq!(failure.code, FailureCode::PeerLost, "{failure}");
            }
            [Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }] => pair.release(r, *lease),
            other => panic!("{other:?}"),
        }
        pair.settle();
        expect_free(&mut pair, w);
        pair.ends_clean(&[(w, "w"), (r, "r")]);
    }
}

// Promise: one-request-for-many-tasks, seen to fail
#[test]
fn only_a_node_that_was_found_before_is_asked() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    pair.push(w, "x/0", bytes(64), 1, None);
    pair.settle();
    gather(&mut pair, r, 1, &[part("0", 0, 64)]);
    pair.settle();
    let failure = pair.failed(r);
    assert!(failure.code == FailureCode::NotOwner && failure.text.contains("\"x/0\""), "{failure}");
    assert_eq!(pair.posted(), [""; 0]);
    known(&mut pair, r);
    // The key has moved, and the asker does not look for it.
    pair.command(w, OpId(1), Command::Delete { key: key("x/0") });
    pair.settle();
    gather(&mut pair, r, 2, &[part("0", 0, 64)]);
    pair.settle();
    assert_eq!(pair.failed_with(r), FailureCode::NotOwner);
    // One that is larger than the pool is not granted room.
    pair.push(w, "x/0", bytes(POOL_BYTES), 1, None);
    pair.settle();
    gather(&mut pair, r, 3, &[part("0", 0, POOL_BYTES)]);
    pair.settle();
    assert_eq!(pair.failed_with(r), FailureCode::TooLarge);
    // Nothing new of a node that drains.
    let now = pair.world.now();
    pair.nodes[0].node.drain(now);
    pair.settle();
    gather(&mut pair, r, 4, &[part("0", 0, 64)]);
    pair.settle();
    assert_eq!(pair.failed_with(r), FailureCode::Draining);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

/// What node `here` answers to a peer, and whether it has ended the link because of it.
fn answer_to(tenant: NameRef, stem: NameRef, parts: Vec<GatheredPart>) -> Result<Body, String> {
    let mut solo = Solo::new(|_| {});
    solo.push(None, Duration::from_secs(1));
    solo.sent.clear();
    solo.hear(Role::Pull, 5, Body::GatherRequest { stem, tenant, parts, trace: None });
    match solo.ended.take() {
        Some(DownReason::Violation(why)) => Err(why),
        Some(other) => panic!("{other:?}"),
        None => Ok(solo.sent.pop().unwrap().body),
    }
}

// Promise: one-request-for-many-tasks, seen to fail
#[test]
fn hostile_requests_are_refused_or_end_the_link() {
    let untold = NameRef { id: 9, generation: 0 };
    let one = || vec![part("", 0, 64)];
    let violation = |found: Result<Body, String>, said: &str| {
        assert!(found.as_ref().is_err_and(|why| why.contains(said)), "{found:?}");
    };
    violation(answer_to(OURS, untold, one()), "name 9.0");
    violation(answer_to(untold, KEY, one()), "name 9.0");
    violation(answer_to(OURS, KEY, Vec::new()), "at least one");
    violation(answer_to(OURS, KEY, vec![part("123456", 0, 64); 61]), "at most 960 bytes");
    violation(answer_to(OURS, KEY, vec![part(&"x".repeat(512), 0, 64)]), "at most 512 bytes");
    // `k` has 8 bytes, and belongs to tenant 0.
    let code = |found: Result<Body, String>| match found {
        Ok(Body::ErrorStatus(failure)) => failure.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(answer_to(OURS, KEY, one())), FailureCode::Invalid);
    assert_eq!(code(answer_to(OTHERS, KEY, one())), FailureCode::PermissionDenied);
    assert_eq!(code(answer_to(OURS, ME, one())), FailureCode::NotOwner);
    let most = u64::from(u32::MAX) * 64;
    assert_eq!(code(answer_to(OURS, KEY, vec![part("", most, most); 96])), FailureCode::Invalid);
}

// Promise: one-request-for-many-tasks, seen to fail
#[test]
fn hostile_answers_end_the_link() {
    let description = |meta: TensorMeta, metadata_id| Body::MetaDataUpdate { version: Version(0), metadata_id, meta };
    let reference = Body::ByReference {
        lease: 1,
        segment: 2,
        offset: 0,
        ranges: 0,
        version: Version(0),
        waited_us: 0,
        meta: bytes(64),
    };
    let answers = [
        (description(bytes(64), 0), false),
        (description(bytes(128), 0), true),
        (description(bytes(u64::MAX >> 2), 0), true),
        (description(bytes(64), 1), true),
        (description(TensorMeta::of(DType::U8, &[8, 8]).unwrap(), 0), true),
        (description(bytes(64).with_metadata(64).unwrap(), 0), true),
        (reference, true),
    ];
    for (answer, is_violation) in answers {
        let mut solo = Solo::new(|_| {});
        // The worker knows where the key is, because a fetch of it waits.
        solo.fetch(Select::Latest);
        let gathered = Gathered::new(name("k"), vec![part("", 0, 64)]).unwrap();
        let timeout = Duration::from_secs(1);
        let gather = Gather { gathered, timeout, require: None, trace: None };
        solo.command(OpId(77), Command::Gather(gather));
        let asked = solo.sent.iter().find(|m| m.body.name() == "GATHER_REQUEST").map(|m| m.index);
        solo.hear(Role::Pull, asked.unwrap(), answer.clone());
        assert_eq!(matches!(solo.ended, Some(DownReason::Violation(_))), is_violation, "{answer:?}: {:?}", solo.ended);
        solo.lose_link();
        let failed = |reply: &Reply| match reply {
            Reply::Answer { op: OpId(77), answer: Answer::Failed { failure, .. } } => {
                failure.code == FailureCode::PeerLost
            }
            _ => false,
        };
        assert!(solo.replies.iter().any(failed), "{:?}", solo.replies);
    }
}

/// The ranges lie in several places, so no reference names them.
// Promise: one-request-for-many-tasks, seen to fail
#[test]
fn answer_by_reference_ends_the_link() {
    let mut pair = Pair::with_references(|_| {});
    let (w, r) = published(&mut pair);
    gather(&mut pair, r, 1, &heads());
    // The owner's answer is still to come. The peer keeps the segment that it names.
    let (link, now) = (pair.links[1].unwrap(), pair.world.now());
    let segment = u32::try_from(w.session.0).unwrap();
    let (version, meta) = (Version(0), bytes(256));
    let reference = Body::ByReference { lease: 7, segment, offset: 0, ranges: 0, version, waited_us: 0, meta };
    let bytes = Message::new(Role::Pull, 1 << 20, reference).encode();
    pair.nodes[1].node.fabric_event(now, FabricEvent::Message { link, bytes: &bytes }, None);
    pair.settle();
    assert!(pair.downs.iter().any(|why| why.contains("BY_REFERENCE for request 0x100000")), "{:?}", pair.downs);
    assert_eq!(pair.failed_with(r), FailureCode::PeerLost);
    expect_free(&mut pair, w);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

#[test]
fn ranges_in_too_many_pieces_of_memory_are_refused() {
    let mut pair = Pair::new();
    let (w, r) = published(&mut pair);
    // Pieces of one byte.
    let pieces: Vec<_> = (0..1024).map(|n| ArenaRange { offset: 8192 + n, len: 1 }).collect();
    pair.world.write(w.arena, 8192, &vec![9; 1024]);
    let meta = bytes(1024).with_metadata(70).unwrap();
    let push = Push { meta, ranges: 1024, offset: ARENA_BYTES / 2, ..push_of("x/crumbs") };
    pair.push_ranges(w, 100, push, &pieces);
    pair.settle();
    pair.replies(w);
    // The last one begins in the middle: 4,033 pieces in all.
    let all = [part("0", 0, 64), part("crumbs", 0, 1024), part("crumbs", 0, 1024), part("crumbs", 0, 1024)];
    gather(&mut pair, r, 1, &[&all[..], &[part("crumbs", 64, 960)]].concat());
    pair.settle();
    let (lease, _, _, got) = pair.fetched(r);
    assert_eq!(got, [vec![0; 64], vec![9; 4 * 1024 - 64]].concat());
    pair.release(r, lease);
    gather(&mut pair, r, 2, &[&all[..], &[part("crumbs", 0, 1024)]].concat());
    pair.settle();
    let failure = pair.failed(r);
    assert!(failure.code == FailureCode::Invalid && failure.text.contains("4097 pieces"), "{failure}");
    expect_free(&mut pair, w);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}
