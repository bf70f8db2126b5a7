//! Where the programs under test are.
//!
//! Beside the test, where cargo puts them; or in the folder that `TRANSFER_TEST_PROGRAMS` names, where all of them are ready: a machine that
//! cannot build, as the guest of tests/rdma-vm, has them from elsewhere.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The folder that names where everything is ready.
fn ready() -> Option<PathBuf> {
    std::env::var_os("TRANSFER_TEST_PROGRAMS").map(PathBuf::from)
}

/// The folder of this test's profile: `target/debug`, for instance.
fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let deps = test.parent().expect("a test lies in a folder");
    // Tests lie in deps/ beside the programs.
    let folder = if deps.ends_with("deps") { deps.parent().expect("deps/ lies in a folder") } else { deps };
    folder.to_owned()
}

/// `transfer-test-worker`. Cargo has built it together with the test.
#[must_use]
pub fn worker() -> PathBuf {
    existing(&ready().unwrap_or_else(folder), "transfer-test-worker")
}

/// `transfer-test-worst`. Cargo has built it together with the test.
#[must_use]
pub fn worst() -> PathBuf {
    existing(&ready().unwrap_or_else(folder), "transfer-test-worst")
}

/// [`worker`] where every user can run it: a copy in `folder`, since the target folder may lie in somebody's home. It is called as logs are,
/// which may stay when a scene ends.
///
/// # Panics
/// Where it cannot be copied.
#[must_use]
pub fn worker_for_all(folder: &Path) -> PathBuf {
    for_all(&worker(), folder, "worker.log")
}

/// A copy of any program in `folder`, for the same reasons.
///
/// # Panics
/// Where it cannot be copied.
#[must_use]
pub fn for_all(program: &Path, folder: &Path, name: &str) -> PathBuf {
    let copy = folder.join(name);
    // By another process: while this one had it open for writing, a child that another test starts at that moment would have it, too.
    let status = Command::new("cp").arg(program).arg(&copy).status().expect("cp can be started");
    assert!(status.success(), "the program can be copied");
    copy
}

/// `transferd`, up to date with its sources.
#[must_use]
pub fn transferd() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("transferd")).clone()
}

/// `transferctl`, up to date with its sources.
#[must_use]
pub fn transferctl() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("transferctl")).clone()
}

/// `transfer-bench`, up to date with its sources. It needs `transferd` beside it.
#[must_use]
pub fn transfer_bench() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("transfer-bench")).clone()
}

/// `digits`, up to date with its sources.
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

/// Builds one of them where cargo has not done so already: a test of this package does not make cargo build the programs of others, and
/// an old one must not pass for the new.
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
    // With the features that `cargo test --workspace` gives it: a test among the targets makes cargo count what packages need for their
    // tests, and with other features everything below would be built again.
    build.args(["--workspace", "--bin", name, "--test", "e2e"]);
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_one_package(&name.to_string_lossy())) {
        build.env_remove(name);
    }
    // Not by eprintln!, which shows only in tests that fail: this may take a while, and cargo says what it builds.
    let words: Vec<_> = build.get_args().map(|word| word.to_string_lossy()).collect();
    let _ = writeln!(std::io::stderr(), "\nthe program under test: cargo {}", words.join(" "));
    let status = build.stdin(Stdio::null()).status().expect("cargo can be started");
    assert!(status.success(), "{build:?} ended with {status}");
    existing(&folder, name)
}

/// Whether cargo sets this variable for the one package that it runs. Build scripts that read such a variable run again where it has
/// changed, and what depends on them is built again.
fn is_of_one_package(variable: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_", "CARGO_TARGET_TMPDIR"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}
