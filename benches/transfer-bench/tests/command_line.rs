//! `transfer-bench` as a process: exit codes and messages for invalid command lines.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

#[track_caller]
fn ends_with(arguments: &[&str], code: i32, words: &[&str]) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_transfer-bench")).args(arguments).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(code), "{arguments:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{arguments:?} says nothing of {word:?}: {said}");
    }
}

/// The kernel would end the program by SIGXFSZ.
// Promise: file-size-limit, seen to fail
#[test]
fn a_file_beyond_the_limit_of_file_sizes_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_transfer-bench");
    let mut command = Command::new("sh");
    let Output { status, stderr, .. } = command
        .args(["-c", "ulimit -f 0; exec \"$0\" man \"$1\"", program, directory.path().to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(1), "{status}: {said}");
    assert!(said.contains(directory.path().to_str().unwrap()) && said.contains("File too large"), "{said}");
}

#[test]
fn wrong_use_ends_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data");
    std::fs::write(&file, [0u8; 10]).unwrap();
    let file = file.to_str().unwrap();
    ends_with(&["--transferd", "/nowhere/transferd"], 2, &["/nowhere/transferd"]);
    ends_with(&["sweep", "--min", "much"], 2, &["--min", "much", "64MiB"]);
    ends_with(&["tcp", "--min", "4KiB"], 2, &["--min", "suite sweep"]);
    for suites in [&["tcp"][..], &["sweep", "scale"], &[]] {
        ends_with(&[suites, &["--svg", "x.svg"]].concat(), 2, &["--svg", "suite sweep", "suite scale"]);
    }
    ends_with(&["scale", "--svg", "/nowhere/x.svg"], 1, &["cannot write /nowhere/x.svg"]);
    // The errors come before any process is started: this file is no program.
    let sweep = ["sweep", "--transferd", file];
    ends_with(&[&sweep[..], &["--min", "8KiB", "--max", "4KiB"]].concat(), 2, &["--min 8 KiB", "--max 4 KiB"]);
    ends_with(&[&sweep[..], &["--max", "900TiB"]].concat(), 2, &["900 TiB", "available"]);
    ends_with(
        &[&sweep[..], &["--svg", "/nowhere/x.svg"]].concat(),
        1,
        &["cannot write /nowhere/x.svg", "No such file"],
    );
}
