//! `transferd` as a process: its output and its exit.
#![allow(clippy::unwrap_used, reason = "a test")]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use transfer_core::tensor::Name;
use transfer_memory::session::{WorkerEnd, WorkerOptions};

fn transferd(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transferd"));
    command.args(["--lock", "no"]).args(arguments).current_dir(dir);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRANSFER_")) {
        command.env_remove(name);
    }
    command
        .env("TRANSFER_SOCKET", "worker.sock")
        .env("TRANSFER_POOL_BYTES", "1MiB")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Sends a signal. An empty machine has no program that does.
fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn sidecar_reports_readiness_and_ends_on_a_signal() {
    for ending in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        let arguments = ["--node", "a", "--listen", "127.0.0.1:0", "--ready-file", "ready"];
        let mut child = transferd(dir.path(), &arguments).env("TRANSFER_ADMIN_SOCKET", "admin.sock").spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        assert!(line.starts_with("transferd ready node=a incarnation="), "{line}");
        assert_eq!(std::fs::read_to_string(dir.path().join("ready")).unwrap(), line);
        for word in ["socket=worker.sock", "admin=admin.sock", "data=127.0.0.1:"] {
            assert!(line.contains(word), "{word} in {line}");
        }
        let grpc = line.split_whitespace().find_map(|w| w.strip_prefix("grpc=")).unwrap();
        let grpc: SocketAddr = grpc.parse().unwrap();
        assert!(std::net::TcpStream::connect(grpc).is_ok());

        signal(&child, ending);
        assert_eq!(child.wait().unwrap().code(), Some(0), "after {ending:?}");
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn killed_sidecar_leaves_sockets_that_its_successor_replaces() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut child = transferd(dir.path(), &["--node", "a", "--admin-socket", "admin.sock"]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("transferd ready"), "{line}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(dir.path().join("worker.sock").exists() && dir.path().join("admin.sock").exists());
    }
}

#[test]
fn exit_codes_of_a_bad_command_line_and_a_bad_path_differ() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["--pool-bytes", "64MB"], 2, "64MiB"),
        (&["--listen", "0.0.0.0:0"], 2, "--insecure"),
        (&["--socket", "file"], 1, "no socket"),
        (&["--socket", "file/worker.sock"], 1, "file"),
    ];
    for (arguments, code, word) in cases {
        let output = transferd(dir.path(), arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(word) && output.stdout.is_empty(), "{arguments:?}: {error}");
    }
}

/// The usual soft limit of a shell is 1,024, which a hundred workers use up.
#[test]
fn sidecar_raises_its_descriptor_limit_to_the_hard_limit() {
    let dir = tempfile::tempdir().unwrap();
    let shell = "ulimit -n 512 && ulimit -S -n 128 && exec \"$0\" \"$@\"";
    let plain = transferd(dir.path(), &["--node", "a", "--admin-socket", "admin.sock"]);
    let mut child = Command::new("sh");
    child.args(["-c", shell]).arg(plain.get_program()).args(plain.get_args()).current_dir(dir.path());
    child.env("TRANSFER_SOCKET", "worker.sock").env("TRANSFER_POOL_BYTES", "1MiB");
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("transferd ready"), "{line}");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["512", "512"], "{files}");
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// As when a supervisor keeps standard error as a pipe and does not read it.
// Promise: log-readers, seen to fail
#[test]
fn full_pipe_of_the_log_holds_up_no_worker() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = transferd(dir.path(), &["--node", "a", "--log", "debug", "--log-limit", "0"]).spawn().unwrap();
    let log = child.stderr.take().unwrap();
    // The least that a pipe holds.
    rustix::pipe::fcntl_setpipe_size(&log, 4096).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("transferd ready"), "{line}");
    let name = Name::new("trainer\nred").unwrap();
    for n in 0..100 {
        let options = WorkerOptions { name: name.clone(), arena_bytes: 4096, timeout: Duration::from_secs(60) };
        // The name is free once the data plane has ended the session before, which it also logs.
        let until = Instant::now() + Duration::from_secs(60);
        while let Err(e) = WorkerEnd::connect(&dir.path().join("worker.sock"), &options) {
            assert!(Instant::now() < until, "worker {n}: {e}");
        }
    }
    let mut lines = BufReader::new(log).lines().map(Result::unwrap);
    let opened = lines.by_ref().filter(|line| line.contains("session open")).take(100);
    opened.for_each(|line| assert!(line.contains(r"\nred session="), "{line}"));
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
