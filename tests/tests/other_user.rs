//! Workers of another user connect where the socket's mode admits them, and read only their own tensors.
//!
//! Only root can start processes as another user, so these tests need to run as root, as they do in a container.
//! Without root, they report that they did not run.

use transfer_tests::{Scene, Spec, Worker, programs};

/// The user id of the other user, which has no meaning of its own.
pub(crate) const UID: u32 = 54_321;

/// Returns whether this process can start workers as another user. If not, it reports why the test did not run.
pub(crate) fn can_be_others() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        transfer_tests::not_run("only root can start a worker as another user");
    }
    root
}

// Promise: other-tenants, seen to fail
// Promise: attacker-as-worker
#[test]
fn another_user_s_tensors_cannot_be_read() {
    if !can_be_others() {
        return;
    }
    let mut scene = Scene::with(&[&["--socket-mode", "666", "--pool-bytes", "1MiB"]]);
    let program = programs::worker_for_all(scene.folder());
    let stranger = |scene: &Scene| Worker::of(scene.a(), "stranger").user(UID, program.clone()).start();
    // The stranger's landing pool stays after the stranger has left.
    assert!(stranger(&scene).close().success());
    scene.note_idle_of(0);
    let mut scene = scene.with_bystanders();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.a().worker("taker"));
    let mut stranger = stranger(&scene);
    let status = scene.a().status();
    let uid = |name| status.sessions.iter().find(|s| s.worker == name).map(|s| s.uid);
    assert_eq!((uid("stranger"), uid("giver")), (Some(UID), Some(0)));
    assert_eq!(status.pools.len(), 2, "one for each");

    giver.push("w", Spec::bytes(1000, 1)).get();
    let (words, reversed) =
        (["to user id 0", "this worker to user id 54321"], ["to user id 54321", "this worker to user id 0"]);
    let trouble = stranger.fetch("w").trouble();
    trouble.expect("PermissionDenied", &words);
    assert!(!trouble.can_retry && trouble.fault == "Caller", "{trouble}");
    // A fetch that waits for a version is refused, too.
    let waiting = stranger.fetch("w").at_least(2).start();
    scene.a().until("it waits", |s| transfer_tests::status::operations_of(s, "stranger") == 1);
    giver.push("w", Spec::bytes(1000, 2)).get();
    waiting.trouble().expect("PermissionDenied", &words);
    assert_eq!(taker.fetch("w").get().sum, Spec::bytes(1000, 2).sum());
    // The stranger can read its own tensor, and the taker cannot. The stranger cannot push to a key of the other user.
    stranger.push("theirs", Spec::bytes(1000, 3)).get();
    assert_eq!(stranger.fetch("theirs").get().sum, Spec::bytes(1000, 3).sum());
    taker.fetch("theirs").trouble().expect("PermissionDenied", &reversed);
    stranger.push("w", Spec::bytes(10, 4)).trouble().expect("KeyOwned", &["\"w\"", "\"giver\""]);
    // None of the giver's memory was passed to the stranger, which has mapped only its own arena and rings.
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", stranger.process_id())).expect("maps");
    let theirs = |maps: &str| maps.lines().filter(|l| l.contains("memfd:")).map(inode).collect::<Vec<_>>();
    let giver_maps = std::fs::read_to_string(format!("/proc/{}/maps", giver.process_id())).expect("maps");
    let (mine, others) = (theirs(&maps), theirs(&giver_maps));
    assert!(!mine.is_empty() && !others.is_empty());
    assert!(mine.iter().all(|inode| !others.contains(inode)), "{maps}");
    scene.others_go_on();
    drop((giver, taker, stranger));
    scene.end();
}

fn inode(line: &str) -> String {
    line.split_whitespace().nth(4).unwrap_or_default().to_owned()
}

/// Tensors that land for different users lie in different segments.
// Promise: other-tenants, seen to fail
#[test]
fn landing_pools_are_separate_per_user() {
    if !can_be_others() {
        return;
    }
    let arguments = ["--socket-mode", "666", "--pool-bytes", "8MiB"];
    let mut scene = Scene::two_with(&arguments);
    let program = programs::worker_for_all(scene.folder());
    let start = |scene: &Scene, node: usize, name: &str| {
        Worker::of(&scene.nodes[node], name).user(UID, program.clone()).start()
    };
    for node in 0..2 {
        assert!(start(&scene, node, "first").close().success());
        scene.note_idle_of(node);
    }
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let mut stranger = start(&scene, 1, "stranger");
    giver.push("w", Spec::bytes(3 << 20, 1)).to("taker").get();
    let fetched = taker.fetch("w").hold("w").get();
    stranger.fetch("w").trouble().expect("PermissionDenied", &["user id 0", &UID.to_string()]);
    let used = |scene: &Scene, uid: u32| {
        scene.b().status().pools.iter().find(|p| p.uid == uid).map(|p| p.used_bytes).expect("a pool")
    };
    assert!(used(&scene, 0) >= 3 << 20);
    assert_eq!(used(&scene, UID), 0);
    // The use of one user's pool does not affect the other user's pool.
    let mut sender = start(&scene, 0, "sender");
    sender.push("x", Spec::bytes(3 << 20, 2)).to("stranger").get();
    let theirs = stranger.fetch("x").get();
    assert_eq!(theirs.sum, Spec::bytes(3 << 20, 2).sum());
    let (a, b) = (fetched.place.expect("mapped"), theirs.place.expect("mapped"));
    assert_ne!(a.inode, b.inode, "one segment for both");
    assert!(used(&scene, UID) >= 3 << 20);
    drop((giver, taker, sender, stranger));
    scene.end();
}

// Promise: other-tenants, seen to fail
// Promise: attacker-as-another-user
#[test]
fn socket_mode_refuses_other_users() {
    if !can_be_others() {
        return;
    }
    let scene = Scene::with(&[&["--socket-mode", "600", "--pool-bytes", "1MiB"]]).with_bystanders();
    let stranger = Worker::of(scene.a(), "stranger").user(UID, programs::worker_for_all(scene.folder())).try_start();
    stranger.expect_err("it may not come in").expect("Connect", &["ermission denied", "a.sock"]);
    scene.end();
}

/// Another user may read at the admin socket if the socket's mode admits it, and may change nothing.
// Promise: readers-change-nothing, seen to fail
// Promise: attacker-as-another-user
#[test]
fn another_user_may_only_read_at_the_admin_socket() {
    use std::os::unix::process::CommandExt;
    if !can_be_others() {
        return;
    }
    let scene = Scene::with(&[&["--socket-mode", "666", "--pool-bytes", "1MiB"]]);
    let program = programs::for_all(&programs::transferctl(), scene.folder(), "transferctl.log");
    let socket = scene.a().admin_socket();
    let transferctl = |command: &[&str]| {
        let mut process = std::process::Command::new(&program);
        process.args(command).arg("--admin").arg(&socket).uid(UID).gid(UID);
        let output = process.output().expect("it can be started");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = transferctl(&["status"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = transferctl(&["poll", "event"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("user id {UID} may read here and nothing else")), "{said}");
    scene.end();
}
