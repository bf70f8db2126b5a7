//! Tests of limits: how much one peer, one worker or one slow consumer can take of a node.

use super::pair::{POOL_BYTES, Pair, bytes, key, name};
use super::solo::{LINK, SESSION, Solo};
use crate::fabric::{Capabilities, DownReason, FabricKind, LinkId};
use crate::memory::{RemoteKey, RemoteSlice};
use crate::op::{Answer, Command, FailureCode, Fetch, OpId, Reply, Request};
use crate::protocol::transfers::MAX_CALLS_PER_LINK;
use crate::protocol::{BufferAsk, PeerInfo};
use crate::tensor::{Select, Version};
use crate::time::Time;
use crate::wire::landing::{SlotGrant, SlotNumber};
use crate::wire::message::{Body, Role};
use std::time::Duration;

fn failure(solo: &mut Solo) -> (FailureCode, String) {
    let replies = std::mem::take(&mut solo.replies);
    let [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] = &replies[..] else { panic!("{replies:?}") };
    (failure.code, failure.text.clone())
}

#[test]
fn fetches_that_wait_at_one_peer_have_a_quota_and_the_error_says_it() {
    let mut solo = Solo::new(|config| config.max_requests_per_link = 2);
    // Fetches of the same would share a request.
    let mut versions = (1..).map(|v| Select::AtLeast(Version(v)));
    let mut fetch = |solo: &mut Solo| solo.fetch(versions.next().unwrap());
    let first = fetch(&mut solo);
    fetch(&mut solo);
    assert_eq!(solo.replies, []);
    fetch(&mut solo);
    let (code, text) = failure(&mut solo);
    assert_eq!(code, FailureCode::Busy);
    assert!(text.contains("2 requests to node \"there\"") && text.contains("the limit is 2"), "{text}");
    // A cancelled request counts until the peer has confirmed with CANCELLED.
    solo.request(Request::Cancel { op: first });
    solo.replies.clear();
    fetch(&mut solo);
    assert_eq!(failure(&mut solo).0, FailureCode::Busy);
    let index = solo.last("CANCEL").index;
    solo.hear(Role::Pull, index, Body::Cancelled);
    fetch(&mut solo);
    assert_eq!(solo.replies, []);
}

#[test]
fn requests_of_one_peer_have_a_quota_and_the_error_says_it() {
    let mut solo = Solo::new(|config| config.max_requests_per_link = 2);
    solo.push(None, Duration::from_secs(1));
    solo.replies.clear();
    let later = Select::AtLeast(crate::tensor::Version(9));
    for index in 0..3 {
        let (key, slot) = (super::solo::KEY, None);
        let body = Body::TensorRequest {
            key,
            select: later,
            metadata_id: 0,
            tenant: super::solo::OURS,
            excerpt: None,
            slot,
            held: None,
            direct: false,
            trace: None,
        };
        solo.hear(Role::Pull, index, body);
    }
    let Body::ErrorStatus(failure) = &solo.last("ERROR_STATUS").body else { unreachable!() };
    assert_eq!((failure.code, solo.last("ERROR_STATUS").index), (FailureCode::Busy, 2));
    assert!(failure.text.contains("at most 2 requests of a peer"), "{failure}");
    assert_eq!(solo.ended, None);
}

// Promise: bounded-operations, seen to fail
#[test]
fn operations_of_one_worker_have_a_quota_and_the_error_says_it() {
    let mut solo = Solo::new(|config| config.max_ops_per_session = 3);
    let ops: Vec<OpId> = (0..3).map(|_| solo.fetch(Select::Latest)).collect();
    solo.fetch(Select::Latest);
    let (code, text) = failure(&mut solo);
    assert_eq!(code, FailureCode::Busy);
    assert!(text.contains("3 operations waiting, the limit"), "{text}");
    solo.request(Request::Cancel { op: ops[0] });
    solo.replies.clear();
    solo.fetch(Select::Latest);
    assert_eq!(solo.replies, []);
}

/// The one link gets half of the 64 cells. The others are kept for later links.
// Promise: slow-peers, seen to fail
#[test]
fn a_peer_that_drains_slowly_leaves_header_cells_to_others() {
    const OTHER: LinkId = LinkId(8);
    let mut solo = Solo::new(|_| {});
    let peer = PeerInfo {
        name: name("elsewhere"),
        incarnation: 1,
        receive_slots: 1 << 20,
        vouches: crate::protocol::Vouches::ForAll,
        passed_over: Vec::new(),
    };
    for wanted in [32, 21] {
        // The writes that the first link has posted are not placed.
        solo.push(None, Duration::from_secs(1));
        for index in 0..64 {
            let index = index + 100 * wanted;
            let body = Body::TensorRequest {
                key: super::solo::KEY,
                select: Select::Latest,
                metadata_id: 0,
                tenant: super::solo::OURS,
                excerpt: None,
                slot: None,
                held: None,
                direct: false,
                trace: None,
            };
            solo.hear(Role::Pull, index, body);
            let remote = RemoteSlice::new(0, 256, RemoteKey(index));
            let slot = SlotGrant { number: SlotNumber(index), capacity: 64, remote, body: Vec::new() };
            solo.hear(Role::Pull, index, Body::TensorReRequest { slot });
        }
        assert_eq!(solo.writes.len(), wanted as usize);
        // With another link, the first link's share is smaller.
        if wanted == 32 {
            solo.node.link_up(solo.now, OTHER, peer.clone(), FabricKind::Sim, Capabilities::new());
            let slots = solo.node.credits(OTHER).map(|(_, _, slots)| slots);
            assert_eq!(slots, Some(1 << 14), "whatever it says");
            while !solo.writes.is_empty() {
                solo.placed();
            }
        }
    }
}

// Promise: slow-peers, seen to fail
#[test]
fn calls_whose_ping_is_not_answered_are_bounded() {
    let mut solo = Solo::new(|_| {});
    for token in 0..200 {
        let ask = BufferAsk {
            flow: 7,
            key: key("other"),
            meta: bytes(8),
            target: name("me"),
            owner: name("you"),
            tenant: name("0"),
        };
        solo.node.prepare_buffers(LINK, token, vec![ask]);
        solo.drain();
        solo.answer();
        solo.grant();
        // The peer ends the flow and does not answer the PING.
        solo.hear(Role::Push, 7, Body::BufferRelease);
        solo.revoke();
        assert!(solo.node.transfers.calls() <= MAX_CALLS_PER_LINK, "{}", solo.node.transfers.calls());
    }
    assert_eq!(solo.node.transfers.calls(), MAX_CALLS_PER_LINK);
}

/// A second operation of the same number is refused, and the first one continues.
// Promise: bounded-operations, seen to fail
#[test]
fn an_operation_under_way_cannot_be_begun_again() {
    let mut solo = Solo::new(|config| config.max_ops_per_session = 3);
    solo.fetch(Select::Latest);
    let fetch = |seconds| {
        Command::Fetch(Fetch {
            key: key("k"),
            select: Select::Latest,
            timeout: Duration::from_secs(seconds),
            require: None,
            trace: None,
            watches: false,
            excerpt: None,
            base: None,
        })
    };
    for n in 0..10 {
        solo.command(OpId(1), fetch(1 + n));
    }
    let replies = std::mem::take(&mut solo.replies);
    assert_eq!(replies.len(), 10);
    for reply in &replies {
        let Reply::Answer { answer: Answer::Failed { failure, .. }, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(failure.code, FailureCode::Invalid);
        assert!(failure.text.contains("operation 1 ") && failure.text.contains("under way"), "{failure}");
    }
    assert_eq!(solo.node.state().snapshot(Time(0)).operations, 1);
    solo.request(Request::Cancel { op: OpId(1) });
    assert_eq!((solo.node.state().snapshot(Time(0)).operations, solo.replies.len()), (0, 1));
    // The number is free again.
    solo.command(OpId(1), fetch(1));
    assert_eq!((solo.node.state().snapshot(Time(0)).operations, solo.replies.len()), (1, 1));
}

#[test]
fn a_push_to_a_consumer_that_does_not_drain_waits_and_fails_with_its_deadline() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "ps"));
    // The flow has two slots. Both versions are read and not released.
    let mut leases = Vec::new();
    for fill in 1..3 {
        pair.push(w, "k", bytes(100), fill, Some("ps"));
        pair.settle();
        pair.fetch(r, "k", Select::Latest);
        pair.settle();
        leases.push(pair.fetched(r).0);
    }
    pair.replies(w);
    let used = |pair: &Pair| pair.nodes[1].node.state().snapshot(Time(0)).pools.iter().map(|p| p.used).sum::<u64>();
    let before = used(&pair);
    for fill in 3..6 {
        pair.push(w, "k", bytes(100), fill, Some("ps"));
    }
    pair.settle();
    assert_eq!(pair.replies(w), [], "they wait");
    pair.wait(Duration::from_secs(2));
    let replies = pair.replies(w);
    assert_eq!(replies.len(), 3);
    for reply in &replies {
        let Reply::Answer { answer: Answer::Failed { failure, .. }, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(failure.code, FailureCode::PoolFull);
        assert!(failure.text.contains("still being read"), "{failure}");
    }
    assert_eq!(used(&pair), before);
    // Once the reader releases them, the next push succeeds.
    for lease in leases {
        pair.release(r, lease);
    }
    pair.push(w, "k", bytes(100), 9, Some("ps"));
    pair.settle();
    assert!(pair.replies(w).iter().any(|r| matches!(r, Reply::Answer { answer: Answer::Pushed { .. }, .. })));
    pair.ends_clean(&[(w, "w"), (r, "ps")]);
}

#[test]
fn push_queue_does_not_grow_with_expired_pushes() {
    let mut solo = Solo::new(|_| {});
    solo.push(Some("you"), Duration::from_secs(1000));
    for _ in 0..1000 {
        solo.push(Some("you"), Duration::from_nanos(1));
        solo.now = Time(solo.now.0 + 10);
        solo.node.timeout(solo.now);
        solo.drain();
    }
    assert_eq!(solo.replies.len(), 1000);
    assert!(solo.node.longest_queue() <= 65, "{}", solo.node.longest_queue());
}

#[test]
fn queue_for_room_does_not_grow_with_cancelled_fetches() {
    let mut solo = Solo::new(|_| {});
    // The pool is full, so all requests for room wait behind the first one.
    let user = crate::protocol::Tenant::User(0);
    let fill = solo.node.landing.pool_bytes(user);
    let (taken, _) = solo.node.landing.allocate(user, fill).unwrap();
    for n in 0..1000 {
        let op = solo.fetch(Select::Latest);
        let index = solo.last("TENSOR_REQUEST").index;
        let meta = bytes(POOL_BYTES / 2);
        solo.hear(Role::Pull, index, Body::MetaDataUpdate { version: crate::tensor::Version(1), metadata_id: 1, meta });
        if n > 0 {
            solo.request(Request::Cancel { op });
            solo.hear(Role::Pull, index, Body::Cancelled);
        }
    }
    assert!(solo.node.longest_queue() <= 65, "{}", solo.node.longest_queue());
    solo.node.landing.free(user, taken);
    solo.node.session_closed(solo.now, SESSION, "the end");
    solo.drain();
}

#[test]
fn a_peer_that_asks_and_never_takes_the_answers_loses_its_link() {
    let mut solo = Solo::new(|config| config.max_queued_per_link = 100);
    for _ in 0..10_000 {
        // The peer gives only the credits that a bare ACK needs.
        solo.hear_greedily(u16::from(solo.node.credits(LINK).is_some_and(|(credits, _, _)| credits == 0)), Body::Ping);
        if solo.ended.is_some() {
            break;
        }
    }
    let Some(DownReason::Violation(why)) = &solo.ended else { panic!("{:?}", solo.ended) };
    assert!(why.contains("100 messages and writes wait for it, the limit"), "{why}");
}
