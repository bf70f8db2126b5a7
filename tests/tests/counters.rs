//! Counters and barriers of the whole job: on one node and between two, with several workers at once, and with deaths.

use std::time::Duration;
use transfer_tests::status::operations_of;
use transfer_tests::{Carrier, Change, Scene, Trouble, Worker};

const CALL_TIMEOUT: Duration = Duration::from_secs(30);

fn named(scene: &Scene, node: usize) -> u64 {
    scene.nodes[node].status().status.counters.unwrap_or_default().named
}

#[test]
fn workers_of_one_node_count_together() {
    let scene = Scene::one().with_bystanders();
    let mut workers: Vec<Worker> = (0..3).map(|i| scene.a().worker(&format!("w{i}"))).collect();
    assert_eq!(workers[0].open("steps").get(), "a");
    let adding: Vec<_> = workers.iter_mut().map(|w| w.count("steps", Change::Add(2), 100)).collect();
    for added in adding {
        let last = added.get();
        assert_eq!((last.path.as_str(), last.fabric.as_str()), ("here", "local"));
    }
    assert_eq!(workers[1].count("steps", Change::Get, 1).get().old, 600);
    // A counter of another name is another counter, and so is a barrier of the same name.
    assert_eq!(workers[1].count("other", Change::Get, 1).get().old, 0);
    assert_eq!(workers[1].meet("steps", 1, 1, CALL_TIMEOUT).get().round, 0);
    // The counter stays after all its workers have gone.
    drop(workers);
    let mut late = scene.a().worker("late");
    assert_eq!(late.count("steps", Change::Add(u64::MAX), 1).get().old, 600);
    assert!(!late.count("steps", Change::Swap(600, 7), 1).get().swapped);
    let swapped = late.count("steps", Change::Swap(599, 7), 1).get();
    assert_eq!((swapped.old, swapped.swapped), (599, true));
    assert_eq!(late.count("steps", Change::Get, 1).get().old, 7);
    assert_eq!(named(&scene, 0), 3);
    drop(late);
    scene.end();
}

#[test]
fn workers_of_two_nodes_count_together() {
    let scene = Scene::two().with_bystanders();
    let mut workers: Vec<Worker> = Vec::new();
    for i in 0..2 {
        workers.push(scene.a().worker(&format!("a{i}")));
        workers.push(scene.b().worker(&format!("b{i}")));
    }
    assert_eq!(workers[1].open("steps").get(), "b", "who names it first is its home");
    assert_eq!(workers[0].open("steps").get(), "b");
    let adding: Vec<_> = workers.iter_mut().map(|w| w.count("steps", Change::Add(1), 100)).collect();
    let paths: Vec<String> = adding.into_iter().map(|added| added.get().path).collect();
    // RDMA has atomic operations: the home's processor takes no part in them, so the home's own workers have to go
    // through the device, too.
    let right = match Carrier::chosen().has_device() {
        false => ["message", "here", "message", "here"],
        true => ["one-sided", "device", "one-sided", "device"],
    };
    assert_eq!(paths, right);
    for w in &mut workers {
        assert_eq!(w.count("steps", Change::Get, 1).get().old, 400);
    }
    let over = workers[0].count("steps", Change::Swap(400, 0), 1).get();
    assert_eq!((over.swapped, over.fabric.as_str()), (true, Carrier::chosen().name()));
    assert_eq!((named(&scene, 0), named(&scene, 1)), (0, 1));
    // All workers open one name at once, and get one counter.
    let opening: Vec<_> = workers.iter_mut().map(|w| w.open("race")).collect();
    let homes: Vec<String> = opening.into_iter().map(|home| home.get()).collect();
    assert!(homes.iter().all(|home| *home == homes[0]), "{homes:?}");
    drop(workers);
    scene.end();
}

// Promise: barriers-and-counters, seen to fail
#[test]
fn barrier_releases_all_members_in_each_round() {
    let scene = Scene::two().with_bystanders();
    let mut workers: Vec<Worker> = Vec::new();
    for i in 0..2 {
        workers.push(scene.a().worker(&format!("a{i}")));
        workers.push(scene.b().worker(&format!("b{i}")));
    }
    let meeting: Vec<_> = workers.iter_mut().map(|w| w.meet("epoch", 4, 20, CALL_TIMEOUT)).collect();
    let met: Vec<_> = meeting.into_iter().map(|met| met.get()).collect();
    assert!(met.iter().all(|met| met.round == 19), "{met:?}");
    assert_eq!(met.iter().map(|met| met.led).sum::<u64>(), 20, "one of each round is the last");
    // A worker that gives another number of members gets an error, and the barrier is unaffected.
    workers[0].meet("epoch", 3, 1, CALL_TIMEOUT).trouble().expect("Invalid", &["\"epoch\"", "4 members", "3"]);
    workers[1].meet("epoch", 0, 1, CALL_TIMEOUT).trouble().expect("Invalid", &["\"epoch\"", "at least 1"]);
    let meeting: Vec<_> = workers.iter_mut().map(|w| w.meet("epoch", 4, 1, CALL_TIMEOUT)).collect();
    assert!(meeting.into_iter().all(|met| met.get().round == 20));
    drop(workers);
    scene.end();
}

/// Waits in a barrier of two that no other worker comes to, and returns the error. The wait needs time to ask the
/// directory for the barrier's home. If the time was too short for that, it fails with `DirectoryUnreachable`, and is
/// repeated with twice the time.
fn gives_up(worker: &mut Worker, barrier: &str) -> Trouble {
    let mut late = (0..8).map(|n| worker.meet(barrier, 2, 1, Duration::from_millis(50 << n)).trouble());
    late.find(|late| late.kind != "DirectoryUnreachable").expect("it is told where")
}

/// A worker that gives up or dies leaves the barrier, and the others wait for another member in its place.
// Promise: barriers-and-counters, seen to fail
#[test]
fn a_worker_that_gives_up_or_dies_in_a_barrier_does_not_count() {
    let mut scene = Scene::two().with_bystanders();
    let (mut first, mut second) = (scene.a().worker("first"), scene.b().worker("second"));
    // One wait is at the barrier's home, the other at the other node.
    for w in [&mut first, &mut second] {
        let late = gives_up(w, "pair");
        late.expect("Deadline", &["\"pair\"", "2 members", "withdrawn"]);
        assert!(late.can_retry, "{late}");
    }
    // A message withdraws the arrival of the other node's worker. The next one follows it on the same link.
    assert_eq!(first.meet("alone", 1, 1, CALL_TIMEOUT).get().round, 0);
    assert_eq!(second.meet("alone", 1, 1, CALL_TIMEOUT).get().round, 1);
    let waits = first.meet("pair", 2, 1, CALL_TIMEOUT);
    scene.a().until("one waits", |s| operations_of(s, "first") == 1);
    for node in 0..2 {
        let mut doomed = scene.nodes[node].worker("doomed");
        let _dies = doomed.meet("triple", 3, 1, CALL_TIMEOUT);
        scene.nodes[node].until("it waits", |s| operations_of(s, "doomed") == 1);
        doomed.kill();
        scene.nodes[node].until("it is gone", |s| s.sessions.iter().all(|s| s.worker != "doomed"));
    }
    let mut third = scene.b().worker("third");
    let triple = [second.meet("triple", 3, 1, CALL_TIMEOUT), third.meet("triple", 3, 1, CALL_TIMEOUT)];
    scene.b().until("both wait", |s| operations_of(s, "second") == 1 && operations_of(s, "third") == 1);
    let mut fourth = scene.a().worker("fourth");
    assert_eq!(fourth.meet("triple", 3, 1, CALL_TIMEOUT).get().round, 0);
    assert!(triple.into_iter().all(|met| met.get().round == 0));
    assert_eq!(second.meet("pair", 2, 1, CALL_TIMEOUT).get().round, 0);
    assert_eq!(waits.get().round, 0);
    scene.others_go_on();
    drop((first, second, third, fourth));
    scene.end();
}

/// The home's sidecar dies and comes back: no call hangs, nothing counts twice, and the next worker that opens the name
/// gets a new counter.
#[test]
fn counter_of_a_restarted_home_is_reported_lost() {
    let mut scene = Scene::two().with_bystanders_at([0, 0]);
    let (mut near, mut far) = (scene.a().worker("near"), scene.b().worker("far"));
    assert_eq!(far.open("steps").get(), "b");
    assert_eq!(near.count("steps", Change::Add(5), 1).get().old, 0);
    assert_eq!(far.meet("alone", 1, 1, CALL_TIMEOUT).get().round, 0);
    let _gone = far.meet("epoch", 2, 1, CALL_TIMEOUT);
    scene.b().until("the barrier has a home", |s| {
        operations_of(s, "far") == 1 && s.counters.as_ref().is_some_and(|c| c.named == 3)
    });
    let again = near.meet("alone", 2, 1, CALL_TIMEOUT).trouble();
    again.expect("Invalid", &["\"alone\"", "1 members"]);
    // Adds until the home is gone.
    let storm = near.count("steps", Change::Add(1), u64::MAX);
    gives_up(&mut near, "other").expect("Deadline", &["\"other\""]);
    scene.nodes[1].kill();
    let trouble = storm.trouble();
    assert!(["OutcomeUnknown", "PeerLost", "PeerUnreachable"].contains(&trouble.kind.as_str()), "{trouble}");
    assert_eq!(trouble.can_retry, trouble.kind != "OutcomeUnknown", "{trouble}");
    let gone = near.count("steps", Change::Get, 1).trouble();
    gone.expect("PeerUnreachable", &["node \"b\""]);
    scene.nodes[1].restart();
    let mut back = scene.b().worker("far");
    let lost = transfer_tests::poll(|| match near.count("steps", Change::Add(1), 1).trouble() {
        lost if lost.kind == "CounterLost" => Ok(lost),
        other => Err(other),
    });
    lost.unwrap().expect("CounterLost", &["\"steps\"", "node \"b\"", "open it again"]);
    // The name is free, and the next worker that asks becomes its home.
    assert_eq!(near.open("steps").get(), "a");
    assert_eq!(near.count("steps", Change::Add(1), 1).get().old, 0);
    assert_eq!(back.count("steps", Change::Get, 1).get().old, 1);
    assert_eq!(back.meet("alone", 1, 1, CALL_TIMEOUT).get().round, 0, "a new barrier");
    scene.others_go_on();
    drop((near, far, back));
    scene.note_idle_of(1);
    scene.end();
}
