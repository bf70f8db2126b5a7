//! Programs that only tests need. `scripts/test-tools.sh` installs them.

use std::path::{Path, PathBuf};

/// Returns the path of Prometheus' tool that checks metrics and rules.
///
/// # Panics
/// If it is missing.
#[must_use]
pub fn promtool() -> PathBuf {
    found(&["promtool"])
}

/// Returns the path of a browser that can run without a screen.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn browser() -> PathBuf {
    found(&["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"])
}

/// Returns the path of etcd, version 3.
///
/// # Panics
/// If it is missing.
#[must_use]
pub fn etcd() -> PathBuf {
    found(&["etcd"])
}

/// Returns the path of etcd's command-line tool.
///
/// # Panics
/// If it is missing.
#[must_use]
pub fn etcdctl() -> PathBuf {
    found(&["etcdctl"])
}

fn found(names: &[&str]) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // target/tools lies beside target/debug.
    let beside = std::env::current_exe().ok();
    let beside = beside.iter().flat_map(|test| test.ancestors().skip(1).map(|folder| folder.join("tools")));
    let folders: Vec<PathBuf> = beside.chain(std::env::split_paths(&path)).collect();
    let in_folders = |name: &&str| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
    names.iter().find_map(in_folders).unwrap_or_else(|| panic!("{names:?} is missing: run scripts/test-tools.sh"))
}

/// Returns the path of a file of this repository.
#[must_use]
pub fn of_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}
