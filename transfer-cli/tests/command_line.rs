//! `transferctl` as a process: exit codes, messages, and files through a real sidecar.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn transferctl(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transferctl"));
    // What the caller's environment says is not what is tested.
    command.args(arguments).env_remove("TRANSFER_ADMIN").env_remove("TRANSFER_SOCKET");
    command
}

#[track_caller]
fn ends_with(arguments: &[&str], code: i32, words: &[&str]) -> String {
    let Output { status, stdout, stderr } = transferctl(arguments).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(code), "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{arguments:?} says nothing of {word:?}: {said}");
    }
    said
}

#[test]
fn wrong_use_ends_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data");
    std::fs::write(&file, [0u8; 10]).unwrap();
    let file = file.to_str().unwrap();
    ends_with(&[], 2, &["Usage"]);
    ends_with(&["juggle"], 2, &["juggle"]);
    ends_with(&["status", "--admin", "ftp://x"], 2, &["--admin", "ftp://x", "http://HOST:PORT"]);
    ends_with(&["push", "k", file, "--dtype", "f33"], 2, &["f33", "bf16"]);
    ends_with(&["push", "k", file, "--dtype", "f32"], 2, &["10 bytes", "f32", "--shape"]);
    ends_with(&["push", "k", file, "--dtype", "f32", "--shape", "2,2"], 2, &["10 bytes", "f32[2, 2]", "16"]);
    ends_with(&["fetch", "k", "-", "--timeout", "soon"], 2, &["soon", "10s"]);
    ends_with(&["bench", "--transferd", "/nowhere/transferd"], 2, &["/nowhere/transferd"]);
}

#[test]
fn a_sidecar_that_cannot_be_reached_ends_with_3() {
    let directory = tempfile::tempdir().unwrap();
    let nobody = directory.path().join("nobody.sock");
    let nobody = nobody.to_str().unwrap();
    ends_with(&["status", "--admin", nobody], 3, &[nobody, "because", "--admin-socket"]);
    ends_with(&["tensors", "--admin", "http://127.0.0.1:1"], 3, &["http://127.0.0.1:1", "--listen"]);
    ends_with(&["fetch", "--socket", nobody, "k", "-"], 3, &[nobody, "transferd"]);
    let file = env!("CARGO_BIN_EXE_transferctl");
    ends_with(&["push", "--socket", nobody, "k", file], 3, &[nobody]);
}

#[test]
fn a_missing_file_ends_with_1() {
    ends_with(&["push", "k", "/nowhere/data"], 1, &["/nowhere/data", "No such file"]);
    ends_with(&["push", "k", "/"], 1, &["no regular file"]);
}

/// A sidecar in a directory of its own; ended when dropped.
struct Sidecar {
    directory: tempfile::TempDir,
    child: Child,
}

impl Sidecar {
    /// `None` where the sidecar's program has not been built: `cargo test` of this package alone does not build it.
    fn start() -> Option<Sidecar> {
        let program: PathBuf = Path::new(env!("CARGO_BIN_EXE_transferctl")).with_file_name("transferd");
        if !program.is_file() {
            eprintln!("skipped: there is no {}; `cargo build` builds it", program.display());
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let mut command = Command::new(&program);
        command.arg("--socket").arg(path("worker.sock")).arg("--admin-socket").arg(path("admin.sock"));
        command.arg("--ready-file").arg(path("ready")).args(["--node", "test", "--pool-bytes", "1MiB"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let sidecar = Sidecar { directory, child };
        sidecar.wait_for(|| sidecar.path("ready").is_file());
        Some(sidecar)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    #[track_caller]
    fn wait_for(&self, mut done: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < until, "nothing has happened");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `push` that holds its tensor; ended when dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_goes_through_a_sidecar_and_comes_back() {
    let Some(sidecar) = Sidecar::start() else { return };
    let (socket, admin) = (sidecar.text("worker.sock"), sidecar.text("admin.sock"));
    let (from, to) = (sidecar.text("from"), sidecar.text("to"));
    let bytes: Vec<u8> = (0..64 * 128 * 4u32).map(|i| (i * 7 % 251) as u8).collect();
    std::fs::write(&from, &bytes).unwrap();

    let push =
        ["push", "--socket", &socket, "--name", "holder", "layer0/w", &from, "--dtype", "f32", "--shape", "64,128"];
    let push = [&push[..], &["--version", "7"]].concat();
    let holder = transferctl(&push).stdout(Stdio::null()).spawn().unwrap();
    let holder = Holder(holder);

    let fetch = ["fetch", "--socket", &socket, "layer0/w"];
    ends_with(
        &[&fetch[..], &[&to, "--at-least", "7"]].concat(),
        0,
        &["version 7", "f32[64, 128]", "32 KiB", "copied=0 B"],
    );
    assert_eq!(std::fs::read(&to).unwrap(), bytes);

    let Output { status, stdout, stderr } = transferctl(&[&fetch[..], &["-"]].concat()).output().unwrap();
    assert_eq!((status.code(), stdout), (Some(0), bytes));
    assert!(String::from_utf8_lossy(&stderr).contains("fabric=local"));

    ends_with(&["status", "--admin", &admin], 0, &["test", "holder", "1 published"]);
    let json = ends_with(&["status", "--admin", &admin, "--json"], 0, &[]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["counters"]["tensors"], 1);
    ends_with(&["tensors", "--admin", &admin], 0, &["layer0/w", "holder", "f32[64, 128]", "1 tensors, 32 KiB"]);
    let line = ends_with(&["tensors", "--admin", &admin, "--json", "--prefix", "layer"], 0, &[]);
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["version"], &line["dtype"]), (&7.into(), &"f32".into()));
    ends_with(&["tensors", "--admin", &admin, "--prefix", "other"], 0, &["0 tensors"]);

    // A version that will not come, a name that is taken, and a tensor that goes with its worker.
    ends_with(&[&fetch[..], &[&to, "--exactly", "3"]].concat(), 1, &["layer0/w", "--at-least"]);
    ends_with(&["push", "--socket", &socket, "--name", "holder", "k", &from], 1, &["holder"]);
    drop(holder);
    sidecar.wait_for(|| {
        let said = transferctl(&["tensors", "--admin", &admin]).output().unwrap();
        String::from_utf8_lossy(&said.stdout).starts_with("0 tensors")
    });
    ends_with(&[&fetch[..], &[&to, "--timeout", "100ms"]].concat(), 1, &["layer0/w", "--timeout"]);
}

#[test]
fn a_push_ends_after_its_time() {
    let Some(sidecar) = Sidecar::start() else { return };
    let (socket, empty) = (sidecar.text("worker.sock"), sidecar.text("empty"));
    std::fs::write(&empty, []).unwrap();
    ends_with(&["push", "--socket", &socket, "nothing", &empty, "--hold", "50ms"], 0, &["u8[0]", "0 B"]);
}
