//! Sidecars that die, violate the protocol, or do not read; threads that share a client.
#![allow(clippy::unwrap_used, reason = "test")]

mod sidecar;

use sidecar::{Honest, Script, Sidecar, Wire, failed, report};
use std::thread;
use std::time::{Duration, Instant};
use transfer_client::{BlockingClient, DType, Error, FailureCode, SessionEnd};
use transfer_core::memory::{LocalSlice, SegmentId};
use transfer_core::op::{Answer, Command, FetchedTensor, LeaseId, OpId, Reply, Request};
use transfer_core::tensor::{TensorMeta, Version};
use transfer_memory::segment::{Lock, Pages, PinnedBudget, Segment, SegmentOptions};

fn start(script: impl Script, arena_bytes: u64) -> (Sidecar, BlockingClient) {
    let (sidecar, socket) = Sidecar::start(script);
    let client = BlockingClient::from_socket(socket).arena_bytes(arena_bytes).call().unwrap();
    (sidecar, client)
}

/// A sidecar that passes one segment, and hands out the range that the fetched key describes.
fn landing() -> impl Script {
    let options = SegmentOptions { len: 8192, pages: Pages::Base, lock: Lock::No };
    let segment = Segment::create("landing", &options, &PinnedBudget::new(8192)).unwrap();
    segment.mapping().copy_in(4096, b"landed").unwrap();
    segment.seal_writers().unwrap();
    let mut passed = false;
    move |wire: &mut Wire, request: Request| {
        let Request::Command { op, command: Command::Fetch(fetch) } = request else { return };
        if !passed {
            passed = true;
            wire.pass(SegmentId(40), &segment);
        }
        let meta = TensorMeta::of(DType::U8, &[6]).unwrap();
        let (id, offset, len) = match fetch.key.as_str() {
            "outside" => (40, 8190, 6),
            "short" => (40, 4096, 5),
            "unknown" => (41, 4096, 6),
            _ => (40, 4096, 6),
        };
        let slice = LocalSlice { segment: SegmentId(id), offset, len };
        let (lease, version) = (LeaseId(1), Version(1));
        wire.reply(&Reply::Answer {
            op,
            answer: Answer::Fetched {
                lease,
                tensor: FetchedTensor {
                    version,
                    meta,
                    slice,
                    ranges: 0,
                    is_part: false,
                    publication: 0,
                    report: report(6),
                },
            },
        });
    }
}

#[test]
fn segments_are_mapped_when_named_and_invalid_ones_end_the_session() {
    for wrong in ["outside", "short", "unknown"] {
        let (_sidecar, client) = start(landing(), 0);
        assert_eq!(client.fetch("right").call().unwrap().as_bytes(), b"landed");
        let held = client.fetch("right").call().unwrap();
        let e = client.fetch(wrong).call().unwrap_err();
        assert!(matches!(e, Error::SidecarGone(_)) && !e.can_retry(), "{e}");
        assert_eq!(client.fetch("right").call().unwrap_err(), e);
        assert_eq!(held.as_bytes(), b"landed");
    }
}

#[test]
fn unasked_answers_end_the_session() {
    let wrong = [
        |_: OpId| Reply::Answer { op: OpId(77), answer: Answer::Deleted },
        |op: OpId| Reply::Answer {
            op,
            answer: Answer::Pushed { version: Version(1), link_rate: 0, report: report(0) },
        },
        |_: OpId| Reply::Returned { pushed: OpId(77), offset: 64 },
    ];
    for wrong in wrong {
        let (_sidecar, client) = start(
            move |wire: &mut Wire, request: Request| {
                let Request::Command { op, command: Command::Fetch(_) } = request else { return };
                wire.reply(&wrong(op));
            },
            4096,
        );
        let _unpushed = client.allocate(DType::U8, [1]).unwrap();
        let e = client.fetch("k").call().unwrap_err();
        assert!(matches!(e, Error::SidecarGone(SessionEnd::Unasked { .. } | SessionEnd::NotLent(_))), "{e}");
    }
}

// Promise: dead-sidecar, seen to fail
#[test]
fn calls_fail_and_memory_stays_readable_when_the_sidecar_dies() {
    let (mut sidecar, client) = start(Honest::default(), 1 << 20);
    let mut t = client.allocate(DType::U8, [9]).unwrap();
    t.as_mut_bytes().copy_from_slice(b"immutable");
    client.push_tensor("k", t).call().unwrap();
    let held = client.fetch("k").call().unwrap();
    let (leader, follower) = thread::scope(|scope| {
        let waiting = || scope.spawn(|| client.fetch("never").call().unwrap_err());
        let (a, b) = (waiting(), waiting());
        sidecar.wait_until(|heard| heard.requests == 4);
        sidecar.kill();
        (a.join().unwrap(), b.join().unwrap())
    });
    assert_eq!(
        (&leader, &follower),
        (&Error::SidecarGone(SessionEnd::Closed), &Error::SidecarGone(SessionEnd::Closed))
    );
    assert!(leader.to_string().contains("connect again"), "{leader}");
    // Later calls fail at once, and return the tensor, which was not sent.
    let t = client.allocate(DType::U8, [9]).unwrap();
    let e = client.push_tensor("k", t).call().unwrap_err();
    assert_eq!(e.error(), &leader);
    assert!(e.into_tensor().is_some());
    assert_eq!(client.fetch_many(["a", "b"]).call()[1].as_ref().unwrap_err(), &leader);
    let full = client.allocate_wait(DType::U8, [1 << 20]).timeout(Duration::from_secs(20)).call();
    assert_eq!(full.unwrap_err(), leader);
    assert_eq!(held.clone().as_bytes(), b"immutable");
}

#[test]
fn threads_share_a_client() {
    let (sidecar, client) = start(Honest::default(), 1 << 20);
    const ROUNDS: u64 = 500;
    // Pairs of threads that play ping-pong: each waits for the other's version.
    thread::scope(|scope| {
        for pair in 0..3 {
            for side in 0..2 {
                let client = client.clone();
                scope.spawn(move || {
                    let (own, other) = (format!("{pair}.{side}"), format!("{pair}.{}", 1 - side));
                    for round in 1..=ROUNDS {
                        let mut t = client.allocate(DType::U64, []).unwrap();
                        t.as_mut_slice::<u64>().unwrap()[0] = round;
                        client.push_tensor(&own, t).version(round).call().unwrap();
                        let t = client.fetch(&other).at_least(round).call().unwrap();
                        assert!(t.as_slice::<u64>().unwrap()[0] >= round);
                    }
                });
            }
        }
    });
    sidecar.wait_until(|heard| heard.leases == 0 && heard.pushed == 6);
}

#[test]
fn calls_wait_for_room_in_a_full_ring() {
    let (sidecar, client) = start(Honest::default(), 1 << 20);
    sidecar.set_deaf(true);
    let waiter = thread::spawn({
        let client = client.clone();
        move || {
            let tensors = (0..2000).map(|i| (format!("key-{i}"), client.allocate(DType::U8, [1]).unwrap()));
            let results = client.push_many(tensors.collect::<Vec<_>>()).version(4).call();
            assert!(results.into_iter().all(|r| r.unwrap().version == 4));
        }
    });
    thread::sleep(Duration::from_millis(50));
    assert!(!waiter.is_finished());
    sidecar.set_deaf(false);
    waiter.join().unwrap();

    // Both rings are full many times over, and the leases are released into a full ring.
    let keys: Vec<_> = (0..2000).map(|i| format!("key-{i}")).collect();
    let fetched: Vec<_> = client.fetch_many(&keys).call().into_iter().map(Result::unwrap).collect();
    assert!(fetched.iter().all(|t| t.version() == 4));
    sidecar.set_deaf(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            sidecar.set_deaf(false);
        });
        drop(fetched);
    });
    let _ = client.fetch("key-0").call().unwrap();
    sidecar.wait_until(|heard| heard.leases == 0);
}

#[test]
fn waits_for_a_full_ring_end_at_their_deadline() {
    let (sidecar, client) = start(Honest::default(), 1 << 20);
    sidecar.set_deaf(true);
    let tensors: Vec<_> = (0..500).map(|i| (format!("k{i}"), client.allocate(DType::U8, [1]).unwrap())).collect();
    let started = Instant::now();
    let results = client.push_many(tensors).timeout(Duration::from_millis(50)).call();
    assert!(started.elapsed() >= Duration::from_millis(50));
    let (sent, not_sent): (Vec<_>, Vec<_>) =
        results.into_iter().map(|r| r.unwrap_err().into_parts()).partition(|(_, tensor)| tensor.is_none());
    assert!(!sent.is_empty() && !not_sent.is_empty());
    assert!(not_sent.iter().all(|(e, _)| matches!(e, Error::NoAnswer { .. })));
    // When the sidecar reads again, all calls end, and so do the abandoned pushes.
    sidecar.set_deaf(false);
    client.fetch("k0").call().unwrap();
    let sent = sent.len() as i64;
    sidecar.wait_until(|heard| heard.pushed == sent && heard.cancelled.len() as i64 == sent);
}

#[test]
fn a_batch_has_a_result_for_each_in_order() {
    let script = |wire: &mut Wire, request: Request| match request {
        Request::Command { op, command: Command::Push(push) } if push.key.as_str() == "b" => {
            wire.reply(&failed(op, FailureCode::KeyOwned, false))
        }
        Request::Command { op, command: Command::Push(push) } => {
            let version = push.version.unwrap();
            wire.reply(&Reply::Answer { op, answer: Answer::Pushed { version, link_rate: 0, report: report(1) } });
        }
        _ => {}
    };
    let (sidecar, client) = start(script, 4096);
    let tensor = || client.allocate(DType::U8, [1]).unwrap();
    let batch = [("a", tensor()), ("b", tensor()), ("", tensor()), ("d", tensor())];
    let results = client.push_many(batch).version(9).call();
    assert_eq!(results[0].as_ref().unwrap().version, 9);
    assert_eq!(results[1].as_ref().unwrap_err().error().failure_code(), Some(FailureCode::KeyOwned));
    assert!(matches!(results[2].as_ref().unwrap_err().error(), Error::Name(_)));
    assert_eq!(results[3].as_ref().unwrap().version, 9);
    assert!(results.into_iter().filter_map(Result::err).all(|e| e.into_tensor().is_some()));
    assert_eq!(client.push_many(Vec::<(&str, _)>::new()).call().len(), 0);
    assert!(sidecar.heard().doorbells <= 1);
}

#[test]
fn the_socket_closes_with_the_last_user() {
    let (sidecar, client) = start(Honest::default(), 1 << 20);
    client.push_tensor("k", client.allocate(DType::U8, [1]).unwrap()).call().unwrap();
    let held = client.fetch("k").call().unwrap();
    drop(client);
    thread::sleep(Duration::from_millis(20));
    assert_eq!((sidecar.heard().leases, sidecar.heard().closed), (1, false));
    drop(held);
    sidecar.wait_until(|heard| heard.closed);
}
