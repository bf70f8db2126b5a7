//! Fetches into the memory of a worker: when they end, if the peer goes on writing, is silent, or says something else.

use super::pair::{bytes, key, name};
use super::solo::{ARENA, LINK, SESSION, Solo};
use crate::fabric::DownReason;
use crate::memory::SegmentId;
use crate::op::{
    Answer, Command, Destination, Failure, FailureCode, Fetch, FetchInto, MAX_LANDING_RANGES, OpId, Otherwise, Reply,
    Request,
};
use crate::protocol::WorkerMemory;
use crate::tensor::{Retention, Select, TensorMeta, Version};
use crate::wire::landing::{Header, SlotGrant};
use crate::wire::message::{Body, Role};
use crate::wire::ranges::ArenaRange;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);

fn fetch_into(solo: &mut Solo, offset: u64, meta: TensorMeta) -> OpId {
    let ranges = vec![ArenaRange { offset, len: meta.len_bytes() }];
    fetch_to(solo, Destination { ranges, meta, otherwise: Otherwise::Fail })
}

fn fetch_to(solo: &mut Solo, to: Destination) -> OpId {
    let op = solo.op();
    let fetch = Fetch {
        key: key("k"),
        select: Select::Latest,
        timeout: TIMEOUT,
        require: None,
        trace: None,
        watches: false,
        excerpt: None,
        base: None,
    };
    solo.command(op, Command::FetchInto(FetchInto { fetch, to }));
    solo.node.located(solo.now, &key("k"), &name("there"), 1);
    solo.drain();
    op
}

fn index(solo: &Solo) -> u32 {
    let request = solo.sent.iter().rev().find(|m| matches!(m.body, Body::TensorRequest { .. }));
    request.expect("the peer was asked").index
}

fn describe(solo: &mut Solo, len: u64) {
    let body = Body::MetaDataUpdate { version: Version(2), metadata_id: 1, meta: bytes(len) };
    solo.hear(Role::Pull, index(solo), body);
}

/// Grants the body, and then the header.
fn grant(solo: &mut Solo) -> SlotGrant {
    solo.grant();
    match solo.sent.last().map(|m| &m.body) {
        Some(Body::TensorReRequest { slot }) => slot.clone(),
        other => panic!("the peer is told of the slot: {other:?}"),
    }
}

fn ranges(slot: &SlotGrant) -> Vec<(u64, u64)> {
    slot.body.iter().map(|range| (range.address, range.len)).collect()
}

/// Returns a node whose fetch has told the peer of its memory.
fn told() -> (Solo, OpId, SlotGrant) {
    let mut solo = Solo::new(|_| {});
    let op = fetch_into(&mut solo, 128, bytes(100));
    describe(&mut solo, 100);
    let slot = grant(&mut solo);
    assert_eq!((slot.capacity, slot.remote.len), (100, 64));
    assert_eq!(ranges(&slot), [(128, 100)], "it lies in the arena");
    (solo, op, slot)
}

fn land(solo: &mut Solo, slot: &SlotGrant) {
    let (index, name, retention) = (index(solo), 0, Retention::default());
    solo.land(&Header {
        slot: slot.number,
        index,
        metadata_id: 1,
        version: Version(2),
        body_len: 100,
        pieces: 2,
        waited_us: 0,
        name,
        retention,
        packed: false,
        deltas_follow: false,
        is_delta: false,
        spreads: false,
        identity: None,
    });
}

fn answer(solo: &mut Solo) -> Option<Answer> {
    let reply = solo.replies.pop()?;
    assert!(solo.replies.is_empty());
    match reply {
        Reply::Answer { answer, .. } => Some(answer),
        other => panic!("{other:?}"),
    }
}

fn pass(solo: &mut Solo, time: Duration) {
    solo.now = solo.now + time;
    solo.node.timeout(solo.now);
    solo.drain();
}

fn code(answer: Option<Answer>) -> (&'static str, FailureCode) {
    match answer {
        Some(Answer::Torn { failure: Failure { code, .. } }) => ("torn", code),
        Some(Answer::Failed { failure: Failure { code, .. }, kept: false }) => ("untouched", code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn landed_version_is_answered_when_header_and_body_are_closed() {
    let (mut solo, _, slot) = told();
    land(&mut solo, &slot);
    assert_eq!(answer(&mut solo), None, "a late packet could still change it");
    solo.revoke();
    match answer(&mut solo) {
        Some(Answer::Landed { version: Version(2), report }) => assert_eq!(report.bytes, 100),
        other => panic!("{other:?}"),
    }
    assert_eq!(solo.node.state().snapshot(solo.now).slots, 0);
}

// Promise: into-memory
#[test]
fn fetch_that_is_given_up_ends_when_its_memory_is_closed() {
    let (mut solo, op, slot) = told();
    solo.request(Request::Cancel { op });
    assert!(matches!(solo.sent.last().unwrap().body, Body::Cancel));
    // The peer goes on writing: that is no violation, and changes nothing.
    land(&mut solo, &slot);
    solo.request(Request::Cancel { op });
    assert!(solo.replies.is_empty() && solo.has_to_revoke());
    solo.revoke();
    assert_eq!(code(answer(&mut solo)), ("torn", FailureCode::Cancelled));
    solo.hear(Role::Pull, index(&solo), Body::Cancelled);
    assert!(solo.ended.is_none() && solo.replies.is_empty());

    let (mut solo, ..) = told();
    pass(&mut solo, TIMEOUT);
    assert!(solo.replies.is_empty() && !solo.has_to_revoke(), "the peer may be writing");
    solo.hear(Role::Pull, index(&solo), Body::Cancelled);
    assert!(solo.replies.is_empty() && solo.has_to_revoke());
    solo.revoke();
    assert_eq!(code(answer(&mut solo)), ("torn", FailureCode::Deadline));
}

// Promise: into-memory
#[test]
fn link_of_a_peer_that_does_not_confirm_is_ended_a_second_after_the_deadline() {
    let (mut solo, ..) = told();
    pass(&mut solo, TIMEOUT);
    pass(&mut solo, Duration::from_millis(999));
    assert!(solo.ended.is_none() && solo.replies.is_empty());
    pass(&mut solo, Duration::from_millis(1));
    assert!(matches!(&solo.ended, Some(DownReason::Closed(why)) if why.contains("not closed")), "{:?}", solo.ended);
    assert!(solo.replies.is_empty(), "the link is not drained yet");
    pass(&mut solo, TIMEOUT);
    solo.lose_link();
    solo.node.timeout(solo.now);
    solo.drain();
    assert_eq!(code(answer(&mut solo)), ("torn", FailureCode::Deadline));
}

#[test]
fn memory_that_the_peer_was_not_told_of_is_untouched() {
    let mut solo = Solo::new(|_| {});
    let op = fetch_into(&mut solo, 128, bytes(100));
    describe(&mut solo, 100);
    solo.request(Request::Cancel { op });
    assert!(solo.replies.is_empty(), "its grant is on the way");
    solo.hear(Role::Pull, index(&solo), Body::Cancelled);
    solo.grant();
    solo.revoke();
    assert_eq!(code(answer(&mut solo)), ("untouched", FailureCode::Cancelled));
    // Before it is opened at all, the fetch ends at once.
    let op = fetch_into(&mut solo, 128, bytes(100));
    solo.request(Request::Cancel { op });
    assert_eq!(code(answer(&mut solo)), ("untouched", FailureCode::Cancelled));
}

#[test]
fn error_of_the_peer_closes_the_memory_first() {
    let (mut solo, ..) = told();
    solo.hear(Role::Pull, index(&solo), Body::ErrorStatus(Failure::new(FailureCode::PoolFull, "no room to pack")));
    assert!(solo.replies.is_empty() && solo.ended.is_none());
    solo.revoke();
    assert_eq!(code(answer(&mut solo)), ("torn", FailureCode::PoolFull));
    assert_eq!(solo.node.state().snapshot(solo.now).slots, 0);
    let (mut solo, ..) = told();
    solo.lose_link();
    solo.node.timeout(solo.now);
    solo.drain();
    assert_eq!(code(answer(&mut solo)), ("torn", FailureCode::PeerLost));
}

#[test]
fn another_answer_than_the_write_is_a_violation() {
    for body in [
        Body::MetaDataUpdate { version: Version(2), metadata_id: 1, meta: bytes(100) },
        Body::Unchanged { version: Version(2) },
        Body::Cancelled,
    ] {
        let (mut solo, ..) = told();
        solo.hear(Role::Pull, index(&solo), body.clone());
        assert!(matches!(solo.ended, Some(DownReason::Violation(_))), "{body:?}");
        assert!(solo.replies.is_empty(), "{body:?}: the link is not drained yet");
    }
}

#[test]
fn arena_of_a_worker_that_is_gone_stays_until_its_range_is_closed() {
    let (mut solo, ..) = told();
    solo.node.session_closed(solo.now, SESSION, "it died");
    solo.node.timeout(solo.now);
    solo.drain();
    assert!(solo.node.sessions.arena(ARENA).is_some(), "the peer may write there");
    solo.hear(Role::Pull, index(&solo), Body::Cancelled);
    solo.revoke();
    assert_eq!(solo.node.sessions.arena(ARENA), None);
}

#[test]
fn version_that_does_not_fit_is_refused_and_memory_stays_within_the_arena() {
    let mut solo = Solo::new(|_| {});
    fetch_into(&mut solo, 128, bytes(99));
    describe(&mut solo, 100);
    assert_eq!(code(answer(&mut solo)), ("untouched", FailureCode::Invalid));
    assert!(!solo.has_to_grant());
    for (offset, len) in [(u64::MAX, 1), ((1 << 20) - 8, 9), (0, u64::MAX / 2)] {
        fetch_into(&mut solo, offset, bytes(len));
        assert_eq!(code(answer(&mut solo)), ("untouched", FailureCode::Invalid), "{offset} {len}");
    }
}

#[test]
fn nothing_lands_in_an_arena_that_was_brought_along() {
    let mut solo = Solo::new(|_| {});
    solo.node.arena_is_returned(ARENA);
    fetch_into(&mut solo, 128, bytes(100));
    describe(&mut solo, 100);
    let slot = grant(&mut solo);
    assert_eq!((slot.remote.len, ranges(&slot)), (164, Vec::new()));
    land(&mut solo, &slot);
    solo.revoke();
    assert!(matches!(answer(&mut solo), Some(Answer::Fetched { .. })));
    assert_eq!(solo.node.landing.slots_of(LINK).unwrap().len(), 0);
}

fn scattered(offsets: &[(u64, u64)], len: u64, otherwise: Otherwise) -> Destination {
    let ranges = offsets.iter().map(|(offset, len)| ArenaRange { offset: *offset, len: *len }).collect();
    Destination { ranges, meta: bytes(len), otherwise }
}

// Promise: into-memory, seen to fail
#[test]
fn fetch_into_several_ranges_ends_when_all_of_them_are_closed() {
    for gives_up in [false, true] {
        let mut solo = Solo::new(|_| {});
        let op = fetch_to(&mut solo, scattered(&[(512, 30), (128, 50), (0, 20)], 100, Otherwise::Fail));
        describe(&mut solo, 100);
        let slot = grant(&mut solo);
        assert_eq!((slot.capacity, ranges(&slot)), (100, vec![(512, 30), (128, 50), (0, 20)]));
        let mut keys: Vec<_> = slot.body.iter().map(|range| range.key().0).chain([slot.remote.key().0]).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 4, "each has a grant of its own");
        if gives_up {
            solo.request(Request::Cancel { op });
            solo.hear(Role::Pull, index(&solo), Body::Cancelled);
        } else {
            land(&mut solo, &slot);
        }
        for closed in 1..=4 {
            assert_eq!(answer(&mut solo), None, "{closed} of 4 are not closed");
            assert!(solo.revoke_last(), "{closed}");
        }
        match answer(&mut solo) {
            Some(Answer::Landed { version: Version(2), .. }) if !gives_up => {}
            torn => assert_eq!((code(torn), gives_up), (("torn", FailureCode::Cancelled), true)),
        }
        assert!(!solo.has_to_revoke());
        assert_eq!(solo.node.state().snapshot(solo.now).slots, 0);
    }
}

// Promise: registered-memory, seen to fail
#[test]
fn registered_memory_that_is_released_ends_when_no_peer_can_write_there() {
    let [first, second] = [SegmentId(900), SegmentId(901)];
    for gives_up in [false, true] {
        let mut solo = Solo::new(|_| {});
        let memory = WorkerMemory::Registered { session: SESSION, len: 40 };
        let places = [first, second].map(|segment| solo.node.memory_of_worker(segment, memory).expect("a place"));
        let to = scattered(&[(places[0], 40), (0, 20), (places[1], 40)], 100, Otherwise::Fail);
        let op = fetch_to(&mut solo, to);
        describe(&mut solo, 100);
        let slot = grant(&mut solo);
        assert_eq!(ranges(&slot), [(0, 40), (0, 20), (0, 40)]);
        solo.node.memory_of_worker(first, WorkerMemory::Released);
        solo.drain();
        if gives_up {
            solo.request(Request::Cancel { op });
            solo.hear(Role::Pull, index(&solo), Body::Cancelled);
        } else {
            land(&mut solo, &slot);
        }
        for closed in 1..=4 {
            assert_eq!(solo.unused, [], "{closed} of 4 are not closed: the peer may be writing");
            assert!(solo.revoke_last(), "{closed}");
        }
        assert!(answer(&mut solo).is_some());
        assert_eq!(solo.unused, [first], "the other one is not released");
        solo.node.memory_of_worker(second, WorkerMemory::Released);
        solo.drain();
        assert_eq!(solo.unused, [first, second]);
    }
    // The link is gone: nobody can write there.
    let mut solo = Solo::new(|_| {});
    let memory = WorkerMemory::Registered { session: SESSION, len: 100 };
    let place = solo.node.memory_of_worker(first, memory).expect("a place");
    fetch_to(&mut solo, scattered(&[(place, 100)], 100, Otherwise::Fail));
    describe(&mut solo, 100);
    grant(&mut solo);
    solo.node.memory_of_worker(first, WorkerMemory::Released);
    solo.drain();
    assert_eq!(solo.unused, []);
    solo.lose_link();
    assert_eq!(solo.unused, [first]);
}

#[test]
fn ranges_are_of_the_own_arena_apart_and_as_long_as_the_version() {
    const END: u64 = 1 << 20;
    let many: Vec<_> = (0..=MAX_LANDING_RANGES as u64).map(|n| (n * 64, 4)).collect();
    let cases: [(&[(u64, u64)], &str); 8] = [
        (&[], "0 ranges are named, 1 to 24"),
        (&many, "25 ranges are named, 1 to 24"),
        (&[(0, 50), (END - 49, 50)], "the arena has 1048576 bytes"),
        (&[(0, 50), (u64::MAX - 10, 50)], "the arena has 1048576 bytes"),
        (&[(0, 50), (64, 49)], "have 99 bytes, the version has 100"),
        (&[(0, 50), (64, 51)], "have 101 bytes, the version has 100"),
        (&[(64, 50), (50, 15), (0, 35)], "ranges overlap: 15 bytes at 50, and 64"),
        (&[(64, 100), (0, 0)], "a range is empty"),
    ];
    for (ranges, says) in cases {
        let mut solo = Solo::new(|_| {});
        fetch_to(&mut solo, scattered(ranges, 100, Otherwise::LandBeside));
        match answer(&mut solo) {
            Some(Answer::Failed { failure, .. }) => assert!(failure.text.contains(says), "{failure}"),
            other => panic!("{ranges:?}: {other:?}"),
        }
    }
    let mut solo = Solo::new(|_| {});
    fetch_to(&mut solo, scattered(&[(END - 50, 50), (0, 25), (25, 25)], 100, Otherwise::Fail));
    describe(&mut solo, 100);
    assert_eq!(grant(&mut solo).body.len(), 3);
}

#[test]
fn version_of_another_layout_lands_beside_if_that_is_asked_for() {
    let mut solo = Solo::new(|_| {});
    fetch_to(&mut solo, scattered(&[(128, 50), (0, 49)], 99, Otherwise::LandBeside));
    describe(&mut solo, 100);
    let slot = grant(&mut solo);
    assert_eq!((slot.remote.len, ranges(&slot)), (164, Vec::new()));
    land(&mut solo, &slot);
    solo.revoke();
    assert!(matches!(answer(&mut solo), Some(Answer::Fetched { .. })));
}

// Promise: bounded-operations, seen to fail
#[test]
fn ranges_of_the_fetches_of_one_worker_are_bounded() {
    let mut solo = Solo::new(|config| config.max_ops_per_session = 4);
    let three = || scattered(&[(0, 30), (128, 30), (256, 40)], 100, Otherwise::Fail);
    let op = fetch_to(&mut solo, three());
    // Two more are open than there are fetches, so that three would be five. It lands beside, and is copied by the worker.
    for (to, in_place) in [(three(), 0), (scattered(&[(512, 100)], 100, Otherwise::Fail), 1)] {
        let second = fetch_to(&mut solo, to);
        describe(&mut solo, 100);
        assert_eq!(grant(&mut solo).body.len(), in_place);
        solo.request(Request::Cancel { op: second });
        solo.hear(Role::Pull, index(&solo), Body::Cancelled);
        solo.revoke();
        assert!(answer(&mut solo).is_some());
    }
    solo.request(Request::Cancel { op });
    assert!(answer(&mut solo).is_some());
    fetch_to(&mut solo, three());
    describe(&mut solo, 100);
    assert_eq!(grant(&mut solo).body.len(), 3, "the first one has ended");
}
