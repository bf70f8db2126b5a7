//! Calls that are polled again after their result. They have no other one, and do nothing more: what a call held may be its
//! caller's by then.

use std::ops::ControlFlow;
use std::task::Waker;
use std::time::Duration;
use transfer_client::{BlockingClient, DType, Error};
use transfer_tests::{Scene, WAIT_LIMIT, poll};

/// More fetches than the ring to the sidecar has room for, by keys as long as they may be.
const FETCHES: usize = 1500;

// Promise: range-reuse, seen to fail
#[test]
fn push_that_was_not_sent_is_not_sent_later() {
    let scene = Scene::one();
    let client = BlockingClient::connect(scene.a().socket()).name("w").arena_bytes(8 << 20);
    let client = client.call().expect("a session");
    scene.a().freeze();
    let mut fetches = Vec::new();
    for i in 0..FETCHES {
        let mut fetch = client.fetch(format!("{i}/{}", "k".repeat(200))).timeout(WAIT_LIMIT).begin();
        assert!(fetch.poll(Waker::noop()).is_continue());
        fetches.push(fetch);
    }
    let tensor = client.allocate(DType::U8, [8]).expect("room");
    let mut push = client.push_tensor("late", tensor).timeout(Duration::from_millis(1)).begin();
    let ended = poll(|| match push.poll(Waker::noop()) {
        ControlFlow::Break(result) => Ok(result),
        ControlFlow::Continue(_) => Err("it waits for room in the ring"),
    });
    let refused = ended.expect("its time is over").expect_err("nobody took it");
    let (error, tensor) = refused.into_parts();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error}");
    let tensor = tensor.expect("it was not sent, so its memory is this worker's");

    scene.a().go_on();
    drop(fetches);
    // Behind this answer, the ring has room.
    client.push_tensor("other", tensor).call().expect("an answer");
    assert!(push.poll(Waker::noop()).is_continue(), "it has had its result");
    client.delete("other").call().expect("an answer");
    assert_eq!(scene.a().admin().tensors("").expect("a list"), [], "nothing else was published");
}
