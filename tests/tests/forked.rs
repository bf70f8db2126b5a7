//! Workers that fork: a child leaves its parent's session alone, and can have a session of its own.

use transfer_tests::calls::number;
use transfer_tests::order::Order;
use transfer_tests::{Scene, Spec, Worker};

const LEN: u64 = 1 << 20;

/// The giver's arena has room for four versions, so it reuses returned memory all the time.
// Promise: forks, seen to fail
#[test]
fn a_child_drops_what_it_inherits_and_its_parent_reads_on() {
    let scene = Scene::one();
    for is_async in [false, true] {
        let mut giver = Worker::of(scene.a(), "giver").arena_bytes(4 * LEN).start();
        let taker = Worker::of(scene.a(), "taker");
        let mut taker = if is_async { taker.with_async_client().start() } else { taker.start() };
        giver.push("k", Spec::bytes(LEN, 1)).get();
        taker.fetch("k").hold("leased").get();
        giver.push("k", Spec::bytes(LEN, 2)).get();
        taker.fetch("k").hold("looked up").get();
        let fork = Order::Fork(scene.a().socket(), "k".into());
        assert_eq!(taker.order(fork, number).get(), 0, "it says more in its log");
        for version in 3..=20 {
            giver.push("k", Spec::bytes(LEN, version)).get();
            for (held, seed) in [("leased", 1), ("looked up", 2)] {
                assert_eq!(taker.read(held), Spec::bytes(LEN, seed).sum(), "{held} has changed with version {version}");
            }
            assert_eq!(taker.fetch("k").get().sum, Spec::bytes(LEN, version).sum());
        }
        for held in ["leased", "looked up"] {
            taker.release(held);
        }
        scene.a().until("its memory is back", |s| s.counters.as_ref().is_some_and(|c| c.blobs == 1));
        drop((giver, taker));
        scene.a().until("all have left", |s| s.sessions.is_empty());
    }
    scene.end();
}
