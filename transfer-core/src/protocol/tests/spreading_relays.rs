//! Tests of versions that spread through their readers: a node that sends on what it has, while the rest comes.

use super::pair::bytes;
use super::solo::{KEY, LINK, OURS, Solo};
use super::spreading::{
    CHUNK, CHUNKS, DIGEST, LEN, OTHER, OTHER_NAME, OWNER_NAME, THERE, asked, come, digests, fetch, has_fetched,
    identity, land, last, proves, reader, reader_of, redirect, redirect_without_digests, slot, write,
};
use crate::op::{Answer, OpId, Reply, Request};
use crate::tensor::{Retention, Select, Version};
use crate::time::Time;
use crate::wire::landing::Header;
use crate::wire::message::{Body, Role};
use std::time::Duration;

/// Lets the other node ask for a chunk of this publication of the owner.
fn relay(solo: &mut Solo, index: u32, version: u64, number: u64) {
    solo.at = OTHER;
    let body = Body::ChunkRequest {
        key: KEY,
        tenant: OURS,
        owner: THERE,
        incarnation: 1,
        version: Version(version),
        identity: identity(4),
        offset: number * CHUNK,
        slot: slot(if number == CHUNKS - 1 { LEN - number * CHUNK } else { CHUNK }),
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
    relay(&mut solo, 3, 1, 0);
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("ERROR_STATUS", 3), "version 1 does not come");
    relay(&mut solo, 4, 2, 0);
    assert_ne!(solo.sent.last().unwrap().index, 4, "version 2 may come");
    solo.request(Request::Cancel { op: asked });
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("ERROR_STATUS", 4), "nobody waits for it any more");
}

// Promise: spreading, seen to fail
#[test]
fn node_sends_the_chunks_that_it_has_while_others_come() {
    let mut solo = reader();
    redirect_without_digests(&mut solo, [OWNER_NAME; 3], LEN);
    for (index, number) in [(30, 1), (31, 0)] {
        relay(&mut solo, index, 1, number);
    }
    land(&mut solo, LINK, 0);
    assert_eq!(solo.headers.iter().map(|h| (h.index, h.body_len)).collect::<Vec<_>>(), [(31, CHUNK)]);
    // Not before its slot is closed.
    write(&mut solo, LINK, 1);
    assert_eq!(solo.headers.len(), 1);
    solo.revoke();
    solo.grant();
    assert_eq!(solo.headers.len(), 2);
    // One that is here already, and one that is none.
    relay(&mut solo, 32, 1, 0);
    assert_eq!((solo.headers.len(), solo.headers[2].identity), (3, Some(identity(4))));
    relay(&mut solo, 33, 1, 9);
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("ERROR_STATUS", 33));
    for number in 2..CHUNKS {
        land(&mut solo, LINK, number);
    }
    // It is kept.
    let Some(Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }) = solo.replies.pop() else { panic!() };
    solo.request(Request::Release { lease });
    relay(&mut solo, 34, 1, 7);
    assert_eq!((solo.headers.len(), solo.headers[3].body_len, &solo.ended), (4, 104, &None));
}

// Promise: spreading, seen to fail
#[test]
fn chunk_of_another_node_is_sent_on_only_when_it_is_compared() {
    for digest in [DIGEST, [0; 16]] {
        let mut solo = reader();
        redirect(&mut solo, [OTHER_NAME; 3]);
        relay(&mut solo, 30, 1, 0);
        land(&mut solo, OTHER, 0);
        relay(&mut solo, 31, 1, 0);
        assert_eq!(solo.headers.len(), 0);
        proves(&mut solo, digest);
        assert_eq!(solo.headers.len(), if digest == DIGEST { 2 } else { 0 });
        assert_eq!(solo.ended, None);
    }
}

// Promise: spreading, seen to fail
#[test]
fn requests_that_wait_for_chunks_end_with_the_search() {
    let mut solo = reader();
    redirect(&mut solo, [OWNER_NAME; 3]);
    relay(&mut solo, 30, 1, 7);
    solo.request(Request::Cancel { op: OpId(1) });
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("ERROR_STATUS", 30));
}

// Promise: spreading, seen to fail
#[test]
fn late_version_takes_the_place_of_no_newer_one() {
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    // Meanwhile the owner has published a newer one, and answers the next fetch itself.
    solo.now = Time(1000);
    fetch(&mut solo, Select::AtLeast(Version(2)));
    solo.at = LINK;
    solo.grant();
    let index = solo.last("TENSOR_REQUEST").index;
    solo.hear(Role::Pull, index, Body::MetaDataUpdate { version: Version(2), metadata_id: 2, meta: bytes(LEN) });
    solo.revoke();
    solo.grant();
    let Body::TensorReRequest { slot } = solo.last("TENSOR_RE_REQUEST").body.clone() else { unreachable!() };
    solo.land(&Header {
        slot: slot.number,
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
    come(&mut solo, OTHER, 0..CHUNKS);
    assert_eq!(has_fetched(&solo), 2);
    fetch(&mut solo, Select::Latest);
    let Body::TensorRequest { held, .. } = solo.last("TENSOR_REQUEST").body else { unreachable!() };
    assert_eq!(held, Some(identity(5)), "the newer one is the base of the next delta");
}

/// Gives the version back that the worker has fetched.
fn release(solo: &mut Solo) {
    let Some(Reply::Answer { answer: Answer::Fetched { lease, .. }, .. }) = solo.replies.pop() else { panic!() };
    solo.request(Request::Release { lease });
}

/// Lets the other node ask for a chunk, and returns whether it is sent.
fn is_sent(solo: &mut Solo, index: u32, number: u64) -> bool {
    let before = solo.headers.len();
    relay(solo, index, 1, number);
    let is_sent = solo.headers.len() > before;
    assert!(is_sent || (last(solo), solo.sent.last().unwrap().index) == ("ERROR_STATUS", index));
    solo.placed();
    is_sent
}

// Promise: spreading, seen to fail
#[test]
fn node_that_keeps_no_version_serves_those_that_are_in_the_middle_of_it() {
    for has_asked in [true, false] {
        let mut solo = reader_of(Solo::new(|config| config.base_bytes = 0));
        redirect_without_digests(&mut solo, [OWNER_NAME; 3], LEN);
        land(&mut solo, LINK, 0);
        assert!(!has_asked || is_sent(&mut solo, 30, 0));
        for number in 1..CHUNKS {
            land(&mut solo, LINK, number);
        }
        release(&mut solo);
        // It is held from one request to the next, and not for ever.
        for (index, number) in [(31, 1), (32, 2), (33, 3)] {
            assert_eq!(is_sent(&mut solo, index, number), has_asked);
            solo.wait(Duration::from_secs(9));
        }
        solo.wait(Duration::from_secs(2));
        assert!(!is_sent(&mut solo, 34, 4));
        assert_eq!(solo.ended, None);
    }
}

// Promise: spreading, seen to fail
#[test]
fn node_whose_owner_has_died_serves_the_version_that_it_has() {
    let mut solo = reader();
    redirect_without_digests(&mut solo, [OWNER_NAME; 3], LEN);
    for number in 0..CHUNKS {
        land(&mut solo, LINK, number);
    }
    release(&mut solo);
    solo.at = LINK;
    solo.lose_link();
    assert!(is_sent(&mut solo, 30, 0));
    solo.wait(Duration::from_secs(11));
    assert!(!is_sent(&mut solo, 31, 1));
}

// Promise: spreading, seen to fail
#[test]
fn node_whose_owner_has_died_serves_the_version_that_it_is_receiving() {
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    come(&mut solo, OTHER, 0..2);
    relay(&mut solo, 30, 1, 6);
    solo.at = LINK;
    solo.lose_link();
    assert!(is_sent(&mut solo, 31, 0));
    relay(&mut solo, 32, 1, 7);
    come(&mut solo, OTHER, 2..CHUNKS);
    assert_eq!(solo.headers.iter().map(|h| h.index).collect::<Vec<_>>(), [31, 30, 32]);
    solo.placed();
    release(&mut solo);
    assert!(is_sent(&mut solo, 33, 3));
    // Those that wait for what does not come any more are told.
    let mut solo = reader();
    redirect(&mut solo, [OTHER_NAME; 3]);
    relay(&mut solo, 30, 1, 6);
    solo.at = LINK;
    solo.lose_link();
    solo.request(Request::Cancel { op: OpId(1) });
    assert_eq!((last(&solo), solo.sent.last().unwrap().index), ("ERROR_STATUS", 30));
}

// Promise: spreading, seen to fail
#[test]
fn node_that_has_sent_all_is_not_to_blame_for_late_digests() {
    let mut solo = reader();
    let index = redirect_without_digests(&mut solo, [OTHER_NAME; 3], LEN);
    for number in 0..CHUNKS {
        land(&mut solo, OTHER, number);
    }
    let asks = asked(&solo).len();
    for _ in 0..60 {
        solo.wait(Duration::from_millis(500));
    }
    let is_blamed = solo.sent.iter().any(|message| message.body.name() == "SOURCE_FAILED");
    assert_eq!((is_blamed, asked(&solo).len()), (false, asks));
    // They come.
    digests(&mut solo, index, 0, CHUNKS);
    for _ in 0..CHUNKS {
        proves(&mut solo, DIGEST);
    }
    assert_eq!(has_fetched(&solo), 1);
}
