//! The example as a user runs it.

use std::path::Path;
use std::process::Command;

#[test]
fn more_records_than_memory_are_sorted() {
    let program = Path::new(env!("CARGO_BIN_EXE_terasort"));
    let folder = program.parent().expect("it lies in a folder");
    // A test of this package does not make cargo build the programs of others.
    let profile = folder.file_name().and_then(|name| name.to_str()).expect("the folder of a profile");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "transfer-server", "--bin", "transferd", "--profile"]);
    build.arg(if profile == "debug" { "dev" } else { profile });
    build.arg("--target-dir").arg(folder.parent().expect("it lies in the target folder"));
    if !folder.join("transferd").exists() {
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo starts").success());
    }
    let output = Command::new(program).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.lines().any(|line| line.starts_with("valid: 671089 records ascend")), "{said}");
}
