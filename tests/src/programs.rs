//! The paths of the programs under test.
//!
//! They lie beside the test, where cargo puts them; or, ready to run, in the folder that `TRANSFER_TEST_PROGRAMS`
//! names. A machine that cannot build, such as the guest of tests/rdma-vm, gets them from elsewhere.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Returns the folder that `TRANSFER_TEST_PROGRAMS` names.
fn ready() -> Option<PathBuf> {
    std::env::var_os("TRANSFER_TEST_PROGRAMS").map(PathBuf::from)
}

/// Returns the folder of this test's profile: `target/debug`, for instance.
fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let deps = test.parent().expect("a test lies in a folder");
    // Tests lie in deps/, beside which the programs lie.
    let folder = if deps.ends_with("deps") { deps.parent().expect("deps/ lies in a folder") } else { deps };
    folder.to_owned()
}

/// Returns the path of `transfer-test-worker`. Cargo has built it together with the test.
#[must_use]
pub fn worker() -> PathBuf {
    existing(&ready().unwrap_or_else(folder), "transfer-test-worker")
}

/// Returns the path of `transfer-test-worst`. Cargo has built it together with the test.
#[must_use]
pub fn worst() -> PathBuf {
    existing(&ready().unwrap_or_else(folder), "transfer-test-worst")
}

/// Copies [`worker`] into `folder`, where every user can run it: the target folder may lie in a user's home. The copy
/// is named like a log, which may stay when a scene ends.
///
/// # Panics
/// If it cannot be copied.
#[must_use]
pub fn worker_for_all(folder: &Path) -> PathBuf {
    for_all(&worker(), folder, "worker.log")
}

/// Copies a program into `folder`, where every user can run it.
///
/// # Panics
/// If it cannot be copied.
#[must_use]
pub fn for_all(program: &Path, folder: &Path, name: &str) -> PathBuf {
    let copy = folder.join(name);
    // Another process copies the file. While this process had the copy open for writing, a child that another test
    // starts at that moment would inherit the descriptor, and the copy could not be run.
    let status = Command::new("cp").arg(program).arg(&copy).status().expect("cp can be started");
    assert!(status.success(), "the program can be copied");
    copy
}

/// Returns the path of `transferd`, up to date with its sources.
#[must_use]
pub fn transferd() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("transferd")).clone()
}

/// Returns the path of `transferctl`, up to date with its sources.
#[must_use]
pub fn transferctl() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("transferctl")).clone()
}

/// Returns the path of `transfer-bench`, up to date with its sources. It needs `transferd` beside it.
#[must_use]
pub fn transfer_bench() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("transfer-bench")).clone()
}

/// Returns the path of `digits`, up to date with its sources.
#[must_use]
pub fn digits() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("digits")).clone()
}

fn existing(folder: &Path, name: &str) -> PathBuf {
    let program = folder.join(name);
    assert!(program.exists(), "{} is missing", program.display());
    program
}

/// Builds a program if it is not up to date. A test of this package does not make cargo build the programs of other
/// packages, and an old program must not pass for a new one.
fn built(name: &str) -> PathBuf {
    if let Some(ready) = ready() {
        return existing(&ready, name);
    }
    let folder = folder();
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = folder.parent().expect("a profile's folder lies in the target folder");
    let mut build = Command::new(cargo);
    build.current_dir(root).args(["build", "--profile", profile, "--target-dir"]).arg(target);
    // With the features that `cargo test --workspace` gives the program: with a test among the targets, cargo counts
    // what packages need for their tests. With other features everything below would be built again.
    build.args(["--workspace", "--bin", name, "--test", "e2e"]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_one_package(&name.to_string_lossy())) {
        build.env_remove(name);
    }
    // eprintln! shows only in tests that fail. The build may take a while, and cargo reports its progress.
    let words: Vec<_> = build.get_args().map(|word| word.to_string_lossy()).collect();
    let _ = writeln!(std::io::stderr(), "\nthe program under test: cargo {}", words.join(" "));
    let status = build.stdin(Stdio::null()).status().expect("cargo can be started");
    assert!(status.success(), "{build:?} ended with {status}");
    existing(&folder, name)
}

/// Returns whether cargo sets this variable for the one package that it runs. Build scripts that read such a variable
/// run again if it has changed, and everything that depends on them is built again.
fn is_of_one_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_", "CARGO_TARGET_TMPDIR"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}
