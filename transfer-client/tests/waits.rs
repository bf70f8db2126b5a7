//! Calls that wait: what wakes them, and what does not.
#![allow(clippy::unwrap_used, reason = "test")]

mod sidecar;
mod thread;
mod woken;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use fork::Fork;
use sidecar::{Honest, Sidecar, Wire};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};
use thread::{Thread, becomes, is_running};
use transfer_client::{BlockingClient, DType, FailureCode};
use transfer_core::op::{Command, Request};
use woken::Woken;

/// Longer than any test.
const TEST_LIMIT: Duration = Duration::from_secs(600);

/// The threads that make deltas are those of one test at a time.
static DELTAS: Mutex<()> = Mutex::new(());

/// A sidecar that stops where it is told to, and the versions that were pushed to it.
struct Stopping {
    client: BlockingClient,
    sent: Arc<Mutex<Vec<u64>>>,
    has_stopped: Receiver<()>,
    goes_on: Sender<()>,
    _sidecar: Sidecar,
}

impl Stopping {
    fn start() -> Stopping {
        let sent = Arc::<Mutex<Vec<u64>>>::default();
        let ((stops, has_stopped), (goes_on, go)) = (channel(), channel());
        let (mut honest, pushed) = (Honest::default(), sent.clone());
        let script = move |wire: &mut Wire, request: Request| {
            match &request {
                Request::Command { command: Command::Push(push), .. } => {
                    pushed.lock().unwrap().push(push.version.unwrap().0);
                }
                Request::Command { command: Command::Delete { key }, .. } if key.as_str() == "stop" => {
                    stops.send(()).unwrap();
                    // It is an error where the test has failed.
                    let _ = go.recv();
                }
                _ => {}
            }
            sidecar::Script::request(&mut honest, wire, request);
        };
        let (sidecar, socket) = Sidecar::start(script);
        let client = BlockingClient::from_socket(socket).name("trainer-0").arena_bytes(64 << 20).call().unwrap();
        Stopping { client, sent, has_stopped, goes_on, _sidecar: sidecar }
    }

    /// Stops it: it reads nothing that is sent afterwards.
    fn stop(&self) -> impl Sized {
        let mut stop = self.client.delete("stop").timeout(TEST_LIMIT).begin();
        assert!(stop.poll(Waker::noop()).is_continue());
        self.has_stopped.recv_timeout(TEST_LIMIT).unwrap();
        stop
    }
}

#[test]
fn a_push_that_finds_room_for_a_part_of_what_it_needs_is_not_woken_by_itself() {
    const COLUMN: u64 = 512 << 10;
    let (_sidecar, socket) = Sidecar::start(Honest::default());
    let client = BlockingClient::from_socket(socket).name("trainer-0").arena_bytes(1 << 20).call().unwrap();
    let column: ArrayRef = Arc::new(Int64Array::from(vec![7; COLUMN as usize / 8]));
    let batch = RecordBatch::try_from_iter([("column", column)]).unwrap();
    // There is room for its column, and not for its description.
    let held = client.allocate(DType::U8, [(1 << 20) - COLUMN - 64]).unwrap();
    let free = client.arena_free_bytes();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut push = client.push_batch("batch", &batch).timeout(TEST_LIMIT).begin();
    for _ in 0..3 {
        assert!(matches!(push.poll(&waker), ControlFlow::Continue(_)), "there is no room");
        assert_eq!(woken.count(), 0, "nothing was freed");
    }
    drop(push);
    assert_eq!(client.arena_free_bytes(), free, "a push that is given up leaves no memory behind");

    let mut push = client.push_batch("batch", &batch).timeout(TEST_LIMIT).begin();
    assert!(push.poll(&waker).is_continue());
    drop(held);
    assert!(woken.count() > 0);
    assert_eq!(push.wait(TEST_LIMIT).expect("there is room").unwrap().report.copied, COLUMN);
}

// Promise: forks, seen to fail
#[test]
fn what_a_forked_child_drops_wakes_no_thread_of_its_parent() {
    let stopping = Stopping::start();
    let client = &stopping.client;
    let held = client.allocate(DType::U8, [32 << 20]).unwrap();
    let frozen = client.allocate(DType::U8, [16 << 20]).unwrap().freeze();
    // Nothing comes from it.
    let _stop = stopping.stop();
    let (begins, began) = channel();
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || {
            begins.send(Thread::current()).unwrap();
            client.allocate_wait(DType::U8, [64 << 20]).timeout(TEST_LIMIT).call().map(drop)
        });
        let thread = began.recv().unwrap();
        let before = thread.wait_until_asleep();
        match fork::fork().unwrap() {
            Fork::Child => {
                drop((held, frozen));
                std::process::exit(0);
            }
            Fork::Parent(child) => assert_eq!(fork::waitpid(child).unwrap(), 0, "the child has ended well"),
        }
        thread.assert_asleep();
        assert_eq!(thread.sleeps(), before, "it was not woken");
        drop((held, frozen));
        waits.join().unwrap().expect("there is room");
    });
}

// Promise: deltas, seen to fail
#[test]
fn a_push_goes_on_once_another_thread_has_sent_it_and_before_its_answer_comes() {
    let _alone = DELTAS.lock().unwrap_or_else(|e| e.into_inner());
    let stopping = Stopping::start();
    let client = &stopping.client;
    let tensor = || client.allocate(DType::U8, [16 << 20]).unwrap();
    client.push_tensor("w", tensor()).version(1).call().unwrap();
    // Where the delta is made before its caller sleeps, there is nothing to see.
    let seen = (2..20).any(|version| {
        let _stop = stopping.stop();
        let mut push =
            client.push_tensor("w", tensor()).version(version).delta_of(version - 1).timeout(TEST_LIMIT).begin();
        let ControlFlow::Continue(at) = push.poll(Waker::noop()) else { panic!("it has no answer yet") };
        assert!(at > Instant::now() + TEST_LIMIT / 2, "it does not poll");
        let (begins, began) = channel();
        std::thread::scope(|scope| {
            let waits = scope.spawn(move || {
                begins.send(Thread::current()).unwrap();
                push.wait(TEST_LIMIT).expect("it has ended").map(|pushed| pushed.version)
            });
            let thread = began.recv().unwrap();
            let before = thread.wait_until_asleep();
            let is_in_time = is_running("transfer-push");
            let is_sent = becomes(|| !is_running("transfer-push"));
            let goes_on = !is_in_time || becomes(|| thread.sleeps() > before);
            stopping.goes_on.send(()).unwrap();
            assert_eq!(waits.join().unwrap().unwrap(), version);
            assert!(
                is_sent && goes_on,
                "sent: {is_sent}; its caller has gone on, and sleeps until there is an answer: {goes_on}"
            );
            is_in_time
        })
    });
    assert!(seen);
}

// Promise: deltas, seen to fail
#[test]
fn a_call_behind_a_delta_whose_time_is_over_is_not_sent_and_those_behind_it_keep_their_order() {
    let _alone = DELTAS.lock().unwrap_or_else(|e| e.into_inner());
    // The first has made its delta, and waits for room in the ring; the second one waits for the first.
    for late in [2, 3] {
        let stopping = Stopping::start();
        let client = &stopping.client;
        let tensor = || client.allocate(DType::U8, [(1 << 20) + 64]).unwrap();
        client.push_tensor("w", tensor()).version(1).call().unwrap();
        let free = client.arena_free_bytes();
        let _stop = stopping.stop();
        // They fill the ring, and are shorter than a push.
        let mut fills: Vec<_> = (0..1000).map(|_| client.delete("x").timeout(TEST_LIMIT).begin()).collect();
        fills.iter_mut().for_each(|fill| assert!(fill.poll(Waker::noop()).is_continue()));

        let mut pushes = [2, 3, 4].map(|version| {
            let timeout = if version == late { Duration::from_secs(1) } else { TEST_LIMIT };
            let push = client.push_tensor("w", tensor()).version(version).delta_of(1).timeout(timeout);
            let mut push = push.begin();
            assert!(push.poll(Waker::noop()).is_continue());
            (version, push)
        });
        let (_, push) = &mut pushes[late as usize - 2];
        let e = push.wait(TEST_LIMIT).expect("it has ended").unwrap_err();
        assert_eq!(e.error().failure_code(), Some(FailureCode::Deadline), "{e}");
        assert!(e.to_string().contains("not sent"), "{e}");

        stopping.goes_on.send(()).unwrap();
        for (version, push) in pushes.iter_mut().filter(|(version, _)| *version != late) {
            assert_eq!(push.wait(TEST_LIMIT).expect("it has ended").unwrap().version, *version);
        }
        assert!(fills.iter_mut().any(|fill| fill.poll(Waker::noop()).is_continue()), "the ring was full");
        drop((fills, pushes, e));
        // An answer that follows all that was sent.
        client.delete("w").call().unwrap();
        let expected: Vec<u64> = (1..=4).filter(|version| *version != late).collect();
        assert_eq!(*stopping.sent.lock().unwrap(), expected);
        assert!(client.arena_free_bytes() > free, "the versions, and that which was not sent, are free");
    }
}
