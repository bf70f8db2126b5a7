//! Two sidecars exchange tensors, and either of them is restarted.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Node, SOON, Worker, wait_for};
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::op::Answer;
use transfer_server::config::DirectoryPlace;

#[track_caller]
fn pushed(answer: &Answer) {
    assert!(matches!(answer, Answer::Pushed { .. }), "{answer:?}");
}

#[test]
fn fetch_waits_for_its_push_and_works_in_both_directions() {
    let a = Node::start("a");
    let b = Node::join("b", &a);
    let (mut at_a, mut at_b) = (a.worker("ps").unwrap(), b.worker("trainer").unwrap());
    let waiting = std::thread::spawn(move || {
        let got = at_b.fetch("w", SOON);
        (at_b, got)
    });
    std::thread::sleep(Duration::from_millis(50));
    let bytes: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
    pushed(&at_a.push("w", &bytes));
    let (mut at_b, got) = waiting.join().unwrap();
    assert_eq!(got, Ok((bytes, FabricKind::Tcp)));
    pushed(&at_b.push("g", &[1, 2, 3]));
    assert_eq!(at_a.fetch("g", SOON), Ok((vec![1, 2, 3], FabricKind::Tcp)));
    // A worker of the same node needs no fabric.
    let mut other = b.worker("other").unwrap();
    assert_eq!(other.fetch("g", SOON), Ok((vec![1, 2, 3], FabricKind::Local)));
    // A worker cannot push another owner's key.
    let Answer::Failed { failure, .. } = at_a.push("g", &[1]) else { panic!() };
    assert!(failure.text.contains("trainer"), "{}", failure.text);
}

#[test]
fn simultaneous_fetches_of_both_nodes_succeed() {
    for _ in 0..5 {
        let a = Node::start("a");
        let b = Node::join("b", &a);
        let (mut at_a, mut at_b) = (a.worker("x").unwrap(), b.worker("y").unwrap());
        pushed(&at_a.push("from-a", &[1]));
        pushed(&at_b.push("from-b", &[2]));
        // A worker's tensors end with it, so both workers stay until both fetches are done.
        let fetches = [(at_a, "from-b"), (at_b, "from-a")].map(|(mut worker, key)| {
            std::thread::spawn(move || {
                let got = worker.fetch(key, SOON);
                (worker, got)
            })
        });
        let got = fetches.map(|fetch| fetch.join().unwrap());
        for ((_, got), byte) in got.into_iter().zip([2, 1]) {
            assert_eq!(got, Ok((vec![byte], FabricKind::Tcp)));
        }
    }
}

/// Starts a node again with the same name and the same addresses.
fn restart(node: Node, directory: DirectoryPlace) -> Node {
    let addresses = node.sidecar.addresses().clone();
    node.sidecar.stop();
    let mut again = None;
    wait_for("the port is free", || {
        again = Node::try_start(addresses.node.as_str(), |c| {
            c.listen = addresses.grpc;
            c.directory = directory.clone();
        })
        .ok();
        again.is_some()
    });
    again.unwrap()
}

#[test]
fn restarted_directory_host_learns_keys_and_workers_again() {
    let a = Node::start("a");
    let b = Node::join("b", &a);
    let mut at_b = b.worker("trainer").unwrap();
    pushed(&at_b.push("w", &[1, 2, 3]));
    let a = restart(a, DirectoryPlace::Embedded);
    // Only b enters its worker and its key again.
    let mut at_a = a.worker("ps").unwrap();
    assert_eq!(at_a.fetch("w", SOON), Ok((vec![1, 2, 3], FabricKind::Tcp)));
    pushed(&at_a.push("v", &[4]));
    assert_eq!(at_b.fetch("v", SOON), Ok((vec![4], FabricKind::Tcp)));
}

#[test]
fn restarted_peer_is_reached_as_a_new_incarnation() {
    let a = Node::start("a");
    let b = Node::join("b", &a);
    let mut at_a = a.worker("ps").unwrap();
    let mut at_b = b.worker("trainer").unwrap();
    pushed(&at_b.push("w", &[1]));
    assert_eq!(at_a.fetch("w", SOON), Ok((vec![1], FabricKind::Tcp)));
    let b = restart(b, DirectoryPlace::At(a.url()));
    let mut at_b: Worker = b.worker("trainer").unwrap();
    pushed(&at_b.push("x", &[2]));
    assert_eq!(at_a.fetch("x", SOON), Ok((vec![2], FabricKind::Tcp)));
    // The version that the earlier incarnation published ended with it.
    assert!(at_a.fetch("w", Duration::from_millis(200)).is_err());
}
