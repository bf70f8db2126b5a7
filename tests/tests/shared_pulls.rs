//! Workers of one node that fetch the same version of another node: it comes once.

use transfer_tests::status::finished;
use transfer_tests::{Carrier, Scene, Spec, Worker, poll};

/// As many as the processes of an engine on one host usually are.
const WORKERS: usize = 8;

// Promise: one-pull-for-a-node
#[test]
fn eight_workers_of_a_node_get_one_copy_over_the_link() {
    const LEN: u64 = 4 << 20;
    let scene = Scene::two();
    let mut giver = scene.a().worker("giver");
    let mut takers: Vec<Worker> = (0..WORKERS).map(|n| scene.b().worker(&format!("taker-{n}"))).collect();
    for version in 1..=3 {
        let waiting: Vec<_> = takers.iter_mut().map(|taker| taker.fetch("w").at_least(version).start()).collect();
        let all_wait = poll(|| match scene.b().status().counters.as_ref().map_or(0, |counters| counters.operations) {
            operations if operations == WORKERS as u64 => Ok(()),
            operations => Err(operations),
        });
        all_wait.expect("all wait");
        let spec = Spec::bytes(LEN, version);
        giver.push("w", spec.clone()).get();
        for fetch in waiting {
            let fetched = fetch.get();
            assert_eq!((fetched.version, fetched.sum), (version, spec.sum()));
            assert_eq!(fetched.report.bytes, LEN);
        }
    }
    let carried = finished(&scene.b().status(), Carrier::chosen().kind());
    match Carrier::chosen() {
        // By reference nothing moves, and those who came after the first was asked for have a reference of their own.
        Carrier::Shm => assert!(carried.transfers <= 6, "{carried:?}"),
        _ => assert_eq!((carried.transfers, carried.bytes), (3, 3 * LEN)),
    }
    drop((giver, takers));
    scene.end();
}
