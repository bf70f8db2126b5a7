//! Separation of users: every operation, by a worker of the same user and by a worker of another user, on one node and
//! between two, over each fabric; over verbs in the guest that has a device. The core's own matrix
//! (`transfer-core/src/protocol/tests/tenants.rs`) covers the orders of events.
//!
//! Only root can start a worker as another user. Without root, these tests report that they did not run.

use crate::other_user::{UID, can_be_others};
use std::time::Duration;
use transfer_tests::{Carrier, Change, Scene, Spec, Worker, programs};

/// Starts two sidecars of root, which accept workers of all users.
fn scene(carrier: Carrier, more: &[&str]) -> Scene {
    let arguments = [&["--socket-mode", "666", "--pool-bytes", "4MiB", "--listen", "127.0.0.1:0"], more].concat();
    Scene::over(carrier, &[&arguments, &arguments])
}

/// Returns the carriers and nodes with which the operations are tried: the owner's node and the other node, over each
/// fabric that needs no device, or over the fabric with a device that `TRANSFER_TEST_FABRIC` names.
fn places() -> impl Iterator<Item = (Carrier, usize)> {
    let carriers = match Carrier::chosen() {
        over_a_device if over_a_device.has_device() => vec![over_a_device],
        _ => Carrier::ALL.into_iter().filter(|carrier| !carrier.has_device()).collect(),
    };
    carriers.into_iter().flat_map(|carrier| [(carrier, 0), (carrier, 1)])
}

// Promise: other-tenants, seen to fail
// Promise: attacker-as-worker
#[test]
fn keys_and_counters_of_another_user_are_refused() {
    if !can_be_others() {
        return;
    }
    for (carrier, node) in places() {
        let scene = scene(carrier, &[]);
        let program = programs::worker_for_all(scene.folder());
        let (mut owner, mut friend) = (scene.a().worker("owner"), scene.nodes[node].worker("friend"));
        let mut stranger = Worker::of(&scene.nodes[node], "stranger").user(UID, program).start();
        let here = format!("over {} at node {node}", carrier.name());
        let denied = |trouble: transfer_tests::Trouble| {
            assert_eq!(trouble.kind, "PermissionDenied", "{here}: {trouble}");
            assert!(!trouble.can_retry && trouble.fault == "Caller", "{here}: {trouble}");
        };
        owner.push("w", Spec::bytes(1000, 1)).get();
        // A fetch is refused, and so is a fetch that waits for a later push.
        denied(stranger.fetch("w").trouble());
        denied(stranger.fetch("w").exactly(1).trouble());
        let waiting = stranger.fetch("later").start();
        let node_of = &scene.nodes[node];
        node_of.until("it waits", |s| transfer_tests::status::operations_of(s, "stranger") == 1);
        owner.push("later", Spec::bytes(1000, 2)).get();
        denied(waiting.trouble());
        // A takeover is refused because of its tenant, and a plain push because the key has an owner.
        denied(stranger.push("w", Spec::bytes(10, 3)).takeover().trouble());
        stranger.push("w", Spec::bytes(10, 3)).trouble().expect("KeyOwned", &["\"w\"", "\"owner\""]);
        // A push into another user's pool.
        denied(stranger.push("theirs", Spec::bytes(1000, 4)).to("owner").trouble());
        // Counters and barriers.
        owner.open("steps").get();
        owner.count("steps", Change::Add(1), 3).get();
        denied(stranger.open("steps").trouble());
        let arrived = owner.meet("step", 2, 1, Duration::from_secs(20));
        scene.a().until("it waits there", |s| transfer_tests::status::operations_of(s, "owner") == 1);
        denied(stranger.meet("step", 2, 1, Duration::from_secs(20)).trouble());
        // A worker of the same user has access to all of it, and finds it unchanged.
        friend.meet("step", 2, 1, Duration::from_secs(20)).get();
        arrived.get();
        friend.open("steps").get();
        assert_eq!(friend.count("steps", Change::Add(1), 1).get().old, 3, "{here}");
        assert_eq!(friend.fetch("w").get().sum, Spec::bytes(1000, 1).sum(), "{here}");
        friend.push("to", Spec::bytes(1000, 5)).to("owner").get();
        assert_eq!(owner.fetch("to").get().sum, Spec::bytes(1000, 5).sum(), "{here}");
        // The stranger cannot delete the key either: at the owner's node it lacks the permission, and at the other
        // node the key does not exist.
        let trouble = stranger.delete("w").expect_err("it is not its own");
        assert_eq!(trouble.kind, if node == 0 { "PermissionDenied" } else { "NotOwner" }, "{here}: {trouble}");
        friend.push("w", Spec::bytes(1000, 6)).takeover().get();
        assert_eq!(owner.fetch("w").at_least(1).get().sum, Spec::bytes(1000, 6).sum(), "{here}");
        // The stranger has its own keys.
        stranger.push("mine", Spec::bytes(1000, 7)).get();
        assert_eq!(stranger.fetch("mine").get().sum, Spec::bytes(1000, 7).sum());
        denied(friend.fetch("mine").trouble());
    }
}

/// A tenant with a name covers several user ids, so nodes whose user ids differ agree on the tenant.
#[test]
fn configured_tenant_spans_several_users() {
    if !can_be_others() {
        return;
    }
    let root = rustix::process::getgid().as_raw().to_string();
    let group = format!("train=@{root},{UID}");
    let scene = scene(Carrier::Tcp, &["--tenants", &group, "--reserve", "prod/=train"]);
    let program = programs::worker_for_all(scene.folder());
    let mut giver = scene.a().worker("giver");
    let mut taker = Worker::of(scene.b(), "taker").user(UID, program.clone()).start();
    let mut stranger = Worker::of(scene.b(), "stranger").user(UID + 1, program.clone()).start();
    giver.push("prod/w", Spec::bytes(1000, 1)).get();
    assert_eq!(taker.fetch("prod/w").get().sum, Spec::bytes(1000, 1).sum());
    // On the owner's node, the tensor is handed over by reference to any user of the tenant.
    let mut near = Worker::of(scene.a(), "near").user(UID, program.clone()).start();
    for _ in 0..3 {
        let fetched = near.fetch("prod/w").get();
        assert_eq!((fetched.sum, fetched.report.copied), (Spec::bytes(1000, 1).sum(), 0));
    }
    let words = ["tenant train", &format!("user id {}", UID + 1)];
    stranger.fetch("prod/w").trouble().expect("PermissionDenied", &words);
    stranger.push("prod/x", Spec::bytes(10, 1)).trouble().expect("PermissionDenied", &["prod/", "train"]);
    let status = scene.b().status();
    let tenant = |name| status.sessions.iter().find(|s| s.worker == name).map(|s| (s.uid, s.tenant.clone()));
    assert_eq!(tenant("taker"), Some((u32::MAX, "train".to_owned())));
    assert_eq!(tenant("stranger"), Some((UID + 1, (UID + 1).to_string())));
}

/// Two sidecars of two users on one host, without certificates: the other user's sidecar is trusted for its own user
/// only.
// Promise: tenants-of-a-sidecar, seen to fail
// Promise: attacker-as-another-user
// Promise: item-connect
#[test]
fn sidecar_of_another_user_speaks_only_for_its_user() {
    if !can_be_others() {
        return;
    }
    let mut scene = scene(Carrier::Tcp, &[]);
    let program = programs::worker_for_all(scene.folder());
    scene.nodes.pop();
    let mut theirs = scene.sidecar_of(UID, "b", &[&["--socket-mode", "666"][..], &Carrier::Tcp.arguments()].concat());
    let (mut ours, mut mine) =
        (scene.a().worker("ours"), Worker::of(scene.a(), "mine").user(UID, program.clone()).start());
    ours.push("ours", Spec::bytes(1000, 1)).get();
    mine.push("mine", Spec::bytes(1000, 2)).get();
    let mut there = Worker::of(&theirs, "there").user(UID, program).start();
    assert_eq!(there.fetch("mine").get().sum, Spec::bytes(1000, 2).sum());
    // Root connects to that user's sidecar at its own risk. The first sidecar does not believe what that sidecar says
    // in root's name.
    let mut root = theirs.worker("root");
    root.fetch("ours").trouble().expect("PermissionDenied", &["node \"b\"", "tenant 0", &UID.to_string()]);
    root.push("theirs", Spec::bytes(10, 1)).trouble().expect("PermissionDenied", &["\"b\"", "tenant 0"]);
    drop((root, there));
    assert!(theirs.terminate().success());
}

/// A shared tensor is copied: the reader gets the bytes, and none of the owner's memory.
// Promise: shared-with-a-tenant, seen to fail
// Promise: attacker-as-worker
#[test]
fn shared_tensors_are_copied() {
    if !can_be_others() {
        return;
    }
    for (carrier, node) in places() {
        let share = format!("models/={UID}");
        let scene = scene(carrier, &["--share", &share]);
        let program = programs::worker_for_all(scene.folder());
        let mut owner = scene.a().worker("owner");
        let mut reader = Worker::of(&scene.nodes[node], "reader").user(UID, program.clone()).start();
        let mut stranger = Worker::of(&scene.nodes[node], "stranger").user(UID + 1, program).start();
        // The tensor is longer than one piece of a copy.
        let spec = |seed| Spec::bytes(3_000_001, seed);
        owner.push("models/w", spec(1)).get();
        owner.push("w", spec(2)).readable_by(UID).get();
        owner.push("x", spec(3)).get();
        for (key, seed) in [("models/w", 1), ("w", 2)] {
            let fetched = reader.fetch(key).hold(key).get();
            assert_eq!(fetched.sum, spec(seed).sum());
            // A device writes into the reader's own pool, and no CPU copies.
            let by_a_device = node == 1 && carrier.has_device();
            let least = if by_a_device { 0 } else { 3_000_001 };
            assert!(fetched.report.copied >= least, "{}", fetched.report.text);
            stranger.fetch(key).trouble().expect("PermissionDenied", &["user id 0"]);
            // The owner pushes the next version, and the copy stays.
            owner.push(key, spec(9)).get();
            assert_eq!(reader.read(key), spec(seed).sum());
            reader.release(key);
        }
        reader.fetch("x").trouble().expect("PermissionDenied", &["user id 0"]);
        // The version that replaced it is not shared.
        reader.fetch("w").trouble().expect("PermissionDenied", &["user id 0"]);
        let inodes = |worker: &Worker| -> Vec<String> {
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", worker.process_id())).expect("maps");
            let memfds = maps.lines().filter(|line| line.contains("memfd:"));
            memfds.map(|line| line.split_whitespace().nth(4).unwrap_or_default().to_owned()).collect()
        };
        let (theirs, own) = (inodes(&owner), inodes(&reader));
        assert!(!theirs.is_empty() && !own.is_empty());
        assert!(own.iter().all(|inode| !theirs.contains(inode)), "memory of another tenant is mapped");
        owner.push("w", spec(1)).readable_by("evil").trouble().expect("Invalid", &["evil", "--tenants"]);
    }
}
