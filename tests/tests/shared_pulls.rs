//! Workers of one node that fetch the same version of another node: it comes once.

use std::time::Duration;
use transfer_client::{BlockingClient, BundleTensor};
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

// Promise: one-pull-for-a-node
#[test]
fn workers_of_a_node_get_one_copy_of_a_bundle() {
    let scene = Scene::two();
    let connect = |node: usize, name: &str| {
        let connect = BlockingClient::connect(scene.nodes[node].socket()).name(name).arena_bytes(16 << 20);
        connect.call().expect("the sidecar takes workers")
    };
    let (giver, takers) = (connect(0, "giver"), [connect(1, "one"), connect(1, "other")]);
    let elements = vec![7_u8; 1 << 20];
    for version in 1..=3 {
        let mut waiting = takers.each_ref().map(|taker| taker.fetch_bundle("s").at_least(version).begin());
        for fetch in &mut waiting {
            assert!(fetch.wait(Duration::from_millis(20)).is_none());
        }
        let tensor = BundleTensor::from_slice([1 << 20], &elements).expect("a tensor");
        giver.push_bundle("s", [("w", tensor)]).version(version).call().expect("pushed");
        for mut fetch in waiting {
            let bundle = fetch.wait(Duration::from_secs(20)).expect("it is there").expect("fetched");
            assert_eq!(bundle.version(), version);
        }
    }
    let carried = finished(&scene.b().status(), Carrier::chosen().kind());
    if Carrier::chosen().kind() != Carrier::Shm.kind() {
        assert_eq!(carried.transfers, 3, "{carried:?}");
    }
    drop((giver, takers));
    scene.end();
}
