//! Workers and sidecars in containers: namespaces of their own (user, pid, ipc, net, mount), and one shared directory.
//! They work as on one host, and users are kept apart as they are there.
//!
//! Needs `unshare` of util-linux, and root, as in a container that may create others. Elsewhere these tests report that
//! they are not run.

use std::process::Command;
use transfer_tests::container::{Container, namespaces};
use transfer_tests::status::operations_of;
use transfer_tests::{Scene, Sidecar, Spec, Worker};

/// An arbitrary user id.
const UID: u32 = 54_321;

/// Returns whether containers can be made here, and reports the reason if not.
fn can_be_run() -> bool {
    let root = rustix::process::geteuid().is_root();
    let tried =
        Command::new("unshare").args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "true"]).output();
    let why = match tried {
        _ if !root => "only root can make containers here".to_owned(),
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    transfer_tests::not_run(&why);
    false
}

fn until_gone(sidecar: &Sidecar, worker: &str) {
    sidecar.until("it is gone", |s| s.sessions.iter().all(|s| s.worker != worker));
}

/// A tensor goes by reference between two containers, each with a worker, through a sidecar in a third container, and
/// to a worker outside of all containers.
// Promise: no-copy-on-a-node, seen to fail
#[test]
fn workers_in_containers_share_tensors_by_reference() {
    if !can_be_run() {
        return;
    }
    let scene = Scene::contained(&[]);
    let spec = Spec::bytes(3 << 20, 1);
    let mut giver = Worker::of(scene.a(), "giver").contained(Container::new()).start();
    let mut near = Worker::of(scene.a(), "near").contained(Container::new()).start();
    let mut outside = scene.a().worker("outside");
    let pushed = giver.push("w", spec.clone()).get();
    let written = pushed.place.expect("in the arena");
    for taker in [&mut near, &mut outside] {
        let fetched = taker.fetch("w").hold("w").get();
        assert_eq!(fetched.sum, spec.sum());
        assert_eq!((fetched.report.fabric.as_str(), fetched.report.copied), ("local", 0), "{}", fetched.report.text);
        let read = fetched.place.expect("in a mapping");
        assert_eq!((written.inode, written.offset), (read.inode, read.offset), "other memory");
        assert!(!read.writable, "the reader could write");
    }
    // The other direction, with a fetch that waits.
    let waiting = giver.fetch("back").start();
    scene.a().until("it waits", |s| operations_of(s, "giver") == 1);
    outside.push("back", spec.clone()).get();
    let back = waiting.get();
    assert_eq!((back.sum, back.report.copied), (spec.sum(), 0));
    let mine = std::process::id();
    let apart = [mine, scene.a().process_id(), giver.process_id(), near.process_id()].map(namespaces);
    for (i, own) in apart.iter().enumerate() {
        for other in &apart[..i] {
            assert!(own.iter().zip(other).all(|(own, other)| own != other), "{own:?} and {other:?}");
        }
    }
    drop((giver, near, outside));
    scene.end();
}

/// A worker is killed inside its container, where the sidecar cannot see its process id. Its leases and keys end
/// nevertheless.
// Promise: worker-that-is-hard-to-watch, seen to fail
#[test]
fn a_worker_s_death_is_noticed() {
    if !can_be_run() {
        return;
    }
    let scene = Scene::contained(&[]);
    let mut taker = scene.a().worker("taker");
    for _ in 0..2 {
        let mut victim = Worker::of(scene.a(), "victim").contained(Container::new()).start();
        taker.push("theirs", Spec::bytes(1000, 1)).get();
        victim.push("w", Spec::bytes(1 << 20, 2)).get();
        victim.fetch("theirs").hold("theirs").get();
        taker.fetch("w").hold("w").get();
        let pending = victim.fetch("nowhere").start();
        scene.a().until("it waits", |s| operations_of(s, "victim") == 1);
        victim.kill();
        drop(pending);
        until_gone(scene.a(), "victim");
        assert_eq!(taker.read("w"), Spec::bytes(1 << 20, 2).sum(), "what is being read stays");
        taker.release("w");
    }
    drop(taker);
    scene.end();
}

/// Root of a container that another user has made is that user outside.
// Promise: other-tenants, seen to fail
#[test]
fn another_user_s_container_gets_nothing() {
    if !can_be_run() {
        return;
    }
    // The socket admits only its own user.
    let scene = Scene::contained(&["--socket-mode", "600"]);
    let stranger = || Worker::of(scene.a(), "stranger").contained(Container::of_user(UID));
    stranger().try_start().expect_err("it may not come in").expect("Connect", &["ermission denied"]);
    scene.end();

    // The socket admits every user, so tensors are kept apart by tenant.
    let scene = Scene::contained(&["--socket-mode", "666", "--pool-bytes", "1MiB"]);
    let mut giver = scene.a().worker("giver");
    giver.push("w", Spec::bytes(1000, 1)).get();
    let mut stranger = Worker::of(scene.a(), "stranger").contained(Container::of_user(UID)).start();
    stranger.fetch("w").trouble().expect("PermissionDenied", &["user id 0"]);
    stranger.push("x", Spec::bytes(1000, 2)).get();
    giver.fetch("x").trouble().expect("PermissionDenied", &["this worker to user id 0"]);
    assert_eq!(stranger.fetch("x").get().sum, Spec::bytes(1000, 2).sum());
    drop((giver, stranger));
    until_gone(scene.a(), "stranger");
    // The pool of the other tenant stays, so this scene does not end with the check for leftovers.
    drop(scene);
}
