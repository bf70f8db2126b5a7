//! Calls the admin service from a client in another language, generated from nothing but the .proto files:
//! `tests/python/admin.py`.
//!
//! The test needs `python3` with `venv`. The first run installs the packages of `tests/python/requirements.txt` with
//! pip, into a folder under `target/`.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use transfer_tests::{Scene, Spec};

fn run(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{said}");
    said
}

/// Returns a Python interpreter with the packages that the client needs, and installs them if they are missing.
fn python(folder: &Path) -> PathBuf {
    let requirements = folder.join("requirements.txt");
    let wanted = fs::read_to_string(&requirements).expect("the requirements can be read");
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    fs::create_dir_all(&home).expect("a folder can be made");
    let lock = File::create(home.with_extension("lock")).expect("a file can be made");
    flock(&lock, FlockOperation::LockExclusive).expect("a file can be locked");
    let (python, installed) = (home.join("bin/python"), home.join("installed.txt"));
    if fs::read_to_string(&installed).ok().as_ref() != Some(&wanted) {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home));
        run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements));
        fs::write(&installed, wanted).expect("a file can be written");
    }
    python
}

#[test]
fn python_client_makes_every_call() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let python = python(&folder);
    let mut scene = Scene::two();
    let mut giver = scene.a().worker("giver");
    for i in 0..300 {
        giver.push(&format!("many/{i:03}"), Spec::bytes(64, i)).get();
    }
    giver.push("sole", Spec::bytes(64, 1)).get();
    // Makes a link that has carried a tensor.
    let mut taker = scene.b().worker("taker");
    taker.fetch("sole").hold("sole").get();
    assert!(taker.close().success());
    scene.b().until("it is alone", |s| s.sessions.is_empty());
    let waiting = giver.fetch("never").start();
    scene.a().until("the fetch waits", |s| s.sessions.iter().any(|s| s.operations == 1));

    let generated = tempfile::tempdir().expect("a folder can be made");
    // Calls that change something are refused over TCP without certificates.
    let [a, b] = [scene.a(), scene.b()].map(|node| format!("unix:{}", node.admin_socket().display()));
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    let said = run(Command::new(python).arg(folder.join("admin.py")).arg(protos).arg(generated.path()).args([&a, &b]));
    assert!(said.contains("every call was made"), "{said}");
    assert_eq!(scene.nodes[1].wait().code(), Some(0), "a sidecar that was drained ends as one that was told to");
    drop(waiting);
    drop(giver);
}
