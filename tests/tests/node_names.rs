//! Two sidecars with one node name: the first keeps the name while it is alive, unless the second is told to replace
//! it.

use std::process::{Command, Output};
use transfer_tests::{Scene, Sidecar, Spec, programs};

fn small(seed: u64) -> Spec {
    Spec::bytes(1000, seed)
}

fn attached(sidecar: &Sidecar) -> bool {
    sidecar.status().directory.as_ref().is_some_and(|d| d.attached)
}

/// Returns a folder and the arguments for a second sidecar in b's cluster.
fn second(scene: &Scene) -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("http://{}", scene.a().address());
    let words = ["--listen", "127.0.0.1:0", "--pool-bytes", "16MiB", "--directory", &url].map(str::to_owned);
    (folder, words.to_vec())
}

fn start(folder: &tempfile::TempDir, arguments: &[String], more: &[&str]) -> Sidecar {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
    Sidecar::start(folder.path(), "b", &arguments)
}

/// Without certificates a sidecar of the same host attaches at the directory's Unix socket, and nowhere before that.
#[test]
fn sidecar_attaches_once_at_its_start() {
    let folder = tempfile::tempdir().expect("a folder");
    // The directory names its socket, whatever the characters of the path.
    let folder = folder.path().join("L\u{e4}ufe");
    std::fs::create_dir(&folder).expect("a folder");
    let common = ["--listen", "127.0.0.1:0", "--pool-bytes", "16MiB"];
    let mut a = Sidecar::start(&folder, "a", &common);
    let url = format!("http://{}", a.address());
    let mut b = Sidecar::start(&folder, "b", &[&common[..], &["--directory", &url]].concat());
    b.until("it is attached", |s| s.directory.as_ref().is_some_and(|d| d.attached));
    let log = a.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("node attached") && line.contains("node=b")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(!log.contains("replaced"), "{log}");
    // It has proved its user there.
    let mut worker = b.worker("worker");
    worker.push("k", small(1)).get();
    drop(worker);
    assert!(b.terminate().success() && a.terminate().success());
}

// Promise: name-of-a-node, seen to fail
#[test]
fn second_sidecar_of_a_live_name_is_refused() {
    let mut scene = Scene::two().with_bystanders();
    let before = scene.b().status().directory.as_ref().map(|d| d.attachments);
    for _ in 0..3 {
        let (folder, arguments) = second(&scene);
        let socket = folder.path().join("b.sock");
        let mut command = Command::new(programs::transferd());
        let output = command.args(["--node", "b", "--socket"]).arg(&socket).args(&arguments).output();
        let Output { status, stderr, .. } = output.expect("it can be started");
        let text = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(1), "{text}");
        let said = text.lines().find(|line| line.starts_with("transferd: ")).expect("it says why");
        for words in ["\"b\"", &scene.b().address(), "running and answers", "another --node", "--replace"] {
            assert!(said.contains(words), "{words:?}: {said}");
        }
        assert!(!socket.exists());
    }
    scene.others_go_on();
    let after = scene.b().status().directory.as_ref().map(|d| d.attachments);
    assert!(before.is_some() && before == after, "{before:?} {after:?}");
    scene.end();
}

/// The name of the directory's host is refused even with `--replace`.
#[test]
fn directory_host_name_is_refused() {
    let scene = Scene::two();
    let (folder, arguments) = second(&scene);
    let socket = folder.path().join("a.sock");
    let mut command = Command::new(programs::transferd());
    let output = command.args(["--node", "a", "--replace", "--socket"]).arg(&socket).args(&arguments).output();
    let Output { status, stderr, .. } = output.expect("it can be started");
    let text = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("hosts this directory") && text.contains("another --node"), "{text}");
    scene.end();
}

// Promise: name-of-a-node, seen to fail
#[test]
fn replacing_sidecar_takes_and_keeps_the_name() {
    let mut scene = Scene::two();
    let mut old = scene.b().worker("old");
    old.push("k", small(1)).get();
    let (folder, arguments) = second(&scene);
    let mut newcomer = start(&folder, &arguments, &["--replace"]);
    newcomer.until("it is attached", |s| s.directory.as_ref().is_some_and(|d| d.attached));
    // The replaced sidecar tries again and is refused by the same rule. Its workers keep working.
    scene.b().until("it knows why", |s| {
        s.directory
            .as_ref()
            .is_some_and(|d| !d.attached && d.why_not.contains("--replace") && d.why_not.contains("\"b\""))
    });
    old.push("k", small(2)).get();
    let (mut new, mut far) = (newcomer.worker("new"), scene.a().worker("far"));
    new.push("k", small(3)).get();
    assert_eq!(far.fetch("k").get().sum, small(3).sum());
    new.push("k", small(4)).get();
    assert!(attached(&newcomer));
    drop((old, new, far));
    newcomer.until("all have left", |s| s.sessions.is_empty());
    assert_eq!(newcomer.terminate().code(), Some(0));
    // The name is free, and the replaced sidecar takes it back.
    scene.b().until("it is attached", |s| s.directory.as_ref().is_some_and(|d| d.attached));
    scene.b().until("all have left", |s| s.sessions.is_empty());
    scene.note_idle_of(1);
    scene.end();
}

/// The sidecar is killed and restarted at once. The directory may not have seen its old stream end.
// Promise: name-of-a-node
#[test]
fn restarted_sidecar_regains_its_name() {
    let mut scene = Scene::two();
    for round in 0..5 {
        scene.nodes[1].kill();
        scene.nodes[1].restart();
        scene.b().until("it is attached", |s| s.directory.as_ref().is_some_and(|d| d.attached));
        let (mut giver, mut far) = (scene.b().worker("giver"), scene.a().worker("far"));
        giver.push("k", small(round)).get();
        assert_eq!(far.fetch("k").at_least(1).get().sum, small(round).sum());
    }
    scene.note_idle_of(1);
    scene.end();
}

/// The sidecar that has the name does not answer. The second sidecar takes the name, and keeps it when the first one
/// runs again.
// Promise: name-of-a-node, seen to fail
#[test]
fn silent_sidecar_loses_its_name() {
    let mut scene = Scene::two();
    let (folder, arguments) = second(&scene);
    scene.b().freeze();
    let mut newcomer = start(&folder, &arguments, &[]);
    newcomer.until("it is attached", |s| s.directory.as_ref().is_some_and(|d| d.attached));
    scene.b().go_on();
    scene.b().until("it knows why", |s| {
        s.directory.as_ref().is_some_and(|d| !d.attached && d.why_not.contains("running and answers"))
    });
    assert!(attached(&newcomer));
    let (mut giver, mut far) = (newcomer.worker("giver"), scene.a().worker("far"));
    giver.push("k", small(1)).get();
    assert_eq!(far.fetch("k").get().sum, small(1).sum());
    drop((giver, far));
    newcomer.until("all have left", |s| s.sessions.is_empty());
    assert_eq!(newcomer.terminate().code(), Some(0));
    scene.b().until("it is attached", |s| s.directory.as_ref().is_some_and(|d| d.attached));
    scene.note_idle_of(1);
    scene.end();
}
