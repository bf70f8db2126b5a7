//! A version stays as it is while a worker reads it, also if the sidecar has no descriptors left or has ended the
//! reader's session.

use std::sync::Arc;
use std::time::Duration;
use transfer_core::op::{Answer, Command, Fetch, LeaseId, OpId, Reply, Request};
use transfer_core::tensor::{Key, Name, Select};
use transfer_core::wire::Writer;
use transfer_core::wire::session::{read_reply, write_request};
use transfer_memory::ring::MAX_RECORD_BYTES;
use transfer_memory::session::{FromSidecar, SessionError, WorkerEnd, WorkerOptions};
use transfer_memory::socket::SocketError;
use transfer_memory::view::Bytes;
use transfer_tests::status::Seen;
use transfer_tests::{Scene, Spec, WAIT_LIMIT, Worker, pattern, poll};

const LEN: u64 = 1 << 20;

fn blobs(n: u64) -> impl Fn(&Seen) -> bool {
    move |s| s.counters.as_ref().is_some_and(|c| c.blobs == n)
}

/// The giver's arena has room for four versions, so it reuses returned memory all the time.
// Promise: reads-stay, seen to fail
#[test]
fn reader_keeps_its_versions_while_the_sidecar_has_no_descriptors() {
    let scene = Scene::one();
    let mut giver = Worker::of(scene.a(), "giver").arena_bytes(4 * LEN).start();
    let (mut taker, mut other) = (scene.a().worker("taker"), scene.a().worker("other"));
    giver.push("k", Spec::bytes(LEN, 1)).get();
    other.push("elsewhere", Spec::bytes(LEN, 100)).get();
    taker.fetch("k").hold("leased").get();
    taker.fetch("k").hold("looked up").get();

    // The limit allows standard input, output and error, and no further descriptor.
    scene.a().limit_descriptors(Some(3));
    // The sidecar has to pass the memory of this tensor to the reader, which takes a descriptor.
    let waiting = taker.fetch("elsewhere").start();
    let said = poll(|| if scene.a().log().contains("cannot be passed") { Ok(()) } else { Err(scene.a().log()) });
    assert_eq!(said, Ok(()), "it says what is missing");
    for version in 2..=50 {
        giver.push("k", Spec::bytes(LEN, version)).get();
        for held in ["leased", "looked up"] {
            assert_eq!(taker.read(held), Spec::bytes(LEN, 1).sum(), "{held} has changed with version {version}");
        }
    }
    scene.a().limit_descriptors(None);
    assert_eq!(waiting.get().sum, Spec::bytes(LEN, 100).sum(), "what has waited comes");
    assert_eq!(taker.read("leased"), Spec::bytes(LEN, 1).sum());
    for held in ["leased", "looked up"] {
        taker.release(held);
    }
    scene.a().until("its memory is back", blobs(2));
    drop((giver, taker, other));
    scene.end();
}

/// The worker breaks the protocol, and continues to read after its session has ended.
// Promise: reads-stay, seen to fail
#[test]
fn a_reader_that_is_thrown_out_keeps_what_it_reads() {
    let scene = Scene::one();
    let mut giver = Worker::of(scene.a(), "giver").arena_bytes(4 * LEN).start();
    giver.push("k", Spec::bytes(LEN, 1)).get();
    let name = Name::new("bare").expect("a name");
    let options = WorkerOptions { name, arena_bytes: 0, timeout: WAIT_LIMIT };
    let mut bare = WorkerEnd::connect(&scene.a().socket(), &options).expect("it may come in");
    let say = |bare: &mut WorkerEnd, request: &Request| {
        let mut record = Writer::new();
        write_request(&mut record, request);
        assert!(bare.submission.try_push(record.as_slice()).expect("the sidecar keeps to the rules"));
        bare.submission.publish();
        bare.socket.ring().expect("the session goes on");
    };
    let key = Key::new("k").expect("a key");
    let (select, timeout) = (Select::Latest, WAIT_LIMIT);
    let fetch = Fetch { key, select, timeout, require: None, trace: None, watches: false, excerpt: None, base: None };
    say(&mut bare, &Request::Command { op: OpId(1), command: Command::Fetch(fetch) });
    let mut buffer = [0; MAX_RECORD_BYTES];
    let slice = poll(|| match bare.completion.try_pop(&mut buffer).expect("the sidecar keeps to the rules") {
        Some(record) => match read_reply(record) {
            Ok(Reply::Answer { answer: Answer::Fetched { tensor, .. }, .. }) => Ok(tensor.slice),
            other => panic!("{other:?}"),
        },
        None => Err("no reply"),
    });
    let slice = slice.expect("it is there");
    while bare.segments.get(slice.segment).is_none() {
        match bare.socket.try_receive().expect("the session goes on") {
            Some(FromSidecar::Segment(passed)) => drop(bare.segments.adopt(passed).expect("it can be mapped")),
            other => assert!(other.is_some(), "its memory was passed before the reply"),
        }
    }
    let view: Bytes = bare.segments.view(slice, Arc::new(())).expect("it lies there");
    assert_eq!(pattern::sum(&view), Spec::bytes(LEN, 1).sum());

    say(&mut bare, &Request::Release { lease: LeaseId(77) });
    let ended = poll(|| match bare.socket.receive(std::time::Instant::now() + Duration::from_secs(1)) {
        Err(SessionError::Socket(SocketError::Closed)) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(ended, Ok(()), "it is thrown out");
    scene.a().until("it has no session", |s| s.sessions.iter().all(|s| s.worker != "bare"));
    for version in 2..=20 {
        giver.push("k", Spec::bytes(LEN, version)).get();
        assert_eq!(pattern::sum(&view), Spec::bytes(LEN, 1).sum(), "it has changed with version {version}");
    }
    // The name of the worker is free again meanwhile.
    drop(scene.a().worker("bare"));
    assert_eq!(pattern::sum(&view), Spec::bytes(LEN, 1).sum());
    scene.a().until("the newest is there, and what is read", blobs(2));
    drop((view, bare));
    scene.a().until("its memory is back", blobs(1));
    drop(giver);
    scene.end();
}
