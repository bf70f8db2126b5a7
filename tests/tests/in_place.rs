//! Weights that are updated in place: no reader ever sees half an update.

use transfer_tests::calls::update_and_watch;
use transfer_tests::order::{Answer, InPlace, Order, UpdateOrder};
use transfer_tests::{Scene, Spec};

/// The number of versions that each test publishes.
const LAST: u64 = 3000;

/// Two readers at the writer's sidecar and two at the other one check every element of each fetched version twice,
/// while the writer updates as fast as it can.
fn nobody_sees_a_torn_tensor(way: InPlace) {
    let scene = Scene::two();
    let mut writer = scene.a().worker("writer");
    let mut readers: Vec<_> =
        (0..4).map(|i| if i < 2 { scene.a() } else { scene.b() }.worker(&format!("reader-{i}"))).collect();
    // Large enough that writing a version takes longer than handing one over.
    let order = UpdateOrder { key: "weights".into(), way, len: 4096, last: LAST };
    for seen in update_and_watch(&mut writer, &mut readers, &order) {
        assert!(seen > LAST / 100, "a reader who sees {seen} of {LAST} versions shows nothing");
    }
    // The key can still be fetched, at its last version.
    assert_eq!(writer.fetch("weights").get().version, LAST);
    drop((writer, readers));
    scene.end();
}

// Promise: updates-in-place, seen to fail
#[test]
fn a_snapshot_is_never_torn() {
    nobody_sees_a_torn_tensor(InPlace::Snapshot);
}

// Promise: updates-in-place, seen to fail
#[test]
fn gated_update_is_never_torn() {
    nobody_sees_a_torn_tensor(InPlace::TakeBack);
}

// Promise: updates-in-place, seen to fail
#[test]
fn double_buffered_update_is_never_torn() {
    nobody_sees_a_torn_tensor(InPlace::TwoBuffers);
}

/// A reader keeps its version: the call waits until its deadline, and then the version is published again.
#[test]
fn a_gate_waits_for_its_readers_and_no_longer_than_its_deadline() {
    let scene = Scene::one();
    let (mut writer, mut reader) = (scene.a().worker("writer"), scene.a().worker("reader"));
    writer.push("w", Spec::bytes(1000, 1)).get();
    reader.fetch("w").hold("w").get();
    let take = |writer: &mut transfer_tests::Worker, millis| {
        let order = Order::TakeBack("w".into(), std::time::Duration::from_millis(millis));
        writer.order(order, |a| matches!(a, Answer::Done).then_some(()))
    };
    take(&mut writer, 50).trouble().expect("Deadline", &["version 1", "published again"]);
    assert_eq!(reader.fetch("w").get().version, 1);
    let taking = take(&mut writer, 60_000);
    let waiting = |n| move |s: &transfer_tests::status::Seen| s.sessions.iter().map(|s| s.operations).sum::<u64>() == n;
    scene.a().until("the call waits", waiting(1));
    let next = reader.fetch("w").start();
    scene.a().until("a fetch waits, too", waiting(2));
    assert!(taking.now().is_none() && next.now().is_none());
    reader.release("w");
    taking.get();
    writer.push("w", Spec::bytes(1000, 2)).get();
    assert_eq!(next.get().sum, Spec::bytes(1000, 2).sum());
    drop((writer, reader));
    scene.end();
}
