//! More than two nodes, and keys and workers that move between them.

use transfer_tests::{Carrier, Scene, Spec};

fn three() -> Scene {
    let arguments = ["--pool-bytes", "16MiB", "--listen", "127.0.0.1:0"];
    Scene::with(&[&arguments, &arguments, &arguments])
}

// Promise: finished-push
#[test]
fn three_nodes_exchange_in_all_directions() {
    let scene = three();
    let mut workers: Vec<_> = scene.nodes.iter().map(|node| node.worker(&format!("worker-{}", node.name()))).collect();
    // All workers fetch before any of them has pushed, so links are made from both sides at once.
    let mut waiting = Vec::new();
    for worker in &mut workers {
        for j in 0..3 {
            waiting.push((j, worker.fetch(&format!("from-{j}")).start()));
        }
    }
    for (i, worker) in workers.iter_mut().enumerate() {
        worker.push(&format!("from-{i}"), Spec::bytes(100_000, i as u64)).get();
    }
    for (from, fetch) in waiting {
        assert_eq!(fetch.get().sum, Spec::bytes(100_000, from).sum());
    }
    for i in 0..3 {
        for (j, to) in ["worker-a", "worker-b", "worker-c"].into_iter().enumerate() {
            let spec = Spec::bytes(50_000, (10 * i + j) as u64);
            workers[i].push(&format!("{i}-to-{j}"), spec.clone()).to(to).get();
            let fetched = workers[j].fetch(&format!("{i}-to-{j}")).get();
            assert_eq!((fetched.sum, fetched.report.fabric.as_str()), (spec.sum(), "local"));
        }
    }
    drop(workers);
    scene.end();
}

/// A key is deleted on one node and published on another. Readers that fetched it from the first node find the second.
// Promise: one-owner, seen to fail
#[test]
fn key_can_move_between_nodes() {
    let scene = three();
    let mut workers: Vec<_> = scene.nodes.iter().map(|node| node.worker(&format!("worker-{}", node.name()))).collect();
    for round in 0..6_u64 {
        let owner = (round % 3) as usize;
        let spec = Spec::bytes(10_000, round);
        let pushed = transfer_tests::poll(|| workers[owner].push("w", spec.clone()).version(round + 1).start().wait());
        pushed.expect("the key is free");
        for (i, worker) in workers.iter_mut().enumerate() {
            let fetched = worker.fetch("w").at_least(round + 1).get();
            assert_eq!(fetched.sum, spec.sum(), "round {round}");
            let by = if i == owner { "local" } else { Carrier::chosen().name() };
            assert_eq!(fetched.report.fabric, by);
        }
        workers[owner].delete("w").expect("it is its own");
    }
    drop(workers);
    scene.end();
}

/// A worker ends on one node and connects again at another. Pushes to it follow.
#[test]
fn pushes_follow_a_worker_that_moves() {
    let scene = three();
    let mut giver = scene.a().worker("giver");
    for round in 0..6_u64 {
        let node = &scene.nodes[(round % 3) as usize];
        let started = transfer_tests::poll(|| transfer_tests::Worker::of(node, "nomad").try_start());
        let mut nomad = started.expect("its name is free");
        let spec = Spec::bytes(10_000, round);
        // The giver's node remembers the worker's last node until that node says that the worker is gone.
        let pushed =
            transfer_tests::poll(|| giver.push("w", spec.clone()).version(round + 1).to("nomad").start().wait());
        pushed.unwrap_or_else(|trouble| panic!("round {round}: {trouble}"));
        assert_eq!(nomad.fetch("w").get().sum, spec.sum());
        assert!(nomad.close().success());
    }
    drop(giver);
    scene.end();
}
