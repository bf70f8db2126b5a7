//! Files that are larger than an arena may be are pushed in pieces. A fetch returns the whole file, or fails.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use transfer_tests::{Carrier, Ctl, Scene};

/// Starts two nodes on which an arena has at most 16 MiB.
fn two() -> Scene {
    let arguments: &[&str] = &["--listen", "127.0.0.1:0", "--pool-bytes", "64MiB", "--max-arena-bytes", "16MiB"];
    Scene::over(Carrier::Tcp, &[arguments, arguments])
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 7 + i / 977 + seed * 31) % 251) as u8).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

// Promise: files-in-pieces
#[test]
fn a_file_that_is_larger_than_an_arena_comes_back_whole() {
    let scene = two();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let large = bytes(1, 5_000_123 * 4);
    fs::write(at("large"), &large).unwrap();
    let file = at("large");
    let push = ["push", "big", text(&file), "--dtype", "f32", "--verify"];
    let mut holder = Ctl::of(scene.a(), &push).hold();
    assert!(holder.said.iter().any(|line| line.contains("tensors pushed")), "{:?}", holder.said);
    let said = Ctl::of(scene.a(), &["tensors", "--json"]).ends(0, &["big/.transferctl-pieces/00000"]);
    let longest = said.json_lines().iter().map(|line| line["len_bytes"].as_u64().unwrap()).max();
    assert!(longest <= Some(16 << 20), "{longest:?}");

    for (node, name) in [(scene.a(), "here"), (scene.b(), "there")] {
        let said = Ctl::of(node, &["fetch", "big", text(&at(name)), "--verify", "--json"]).ends(0, &[]).json_lines();
        assert_eq!((&said[0]["bytes"], &said[0]["dtype"]), (&large.len().into(), &"f32".into()), "{said:?}");
        assert!(fs::read(at(name)).unwrap() == large, "{name}");
    }
    let said = Ctl::of(scene.b(), &["fetch", "big", "-", "--quiet"]).ends(0, &[]);
    assert!(said.out == large);
    assert_eq!(holder.interrupt(), Some(0));
    // No piece stays published.
    scene.a().until("nobody is there", |s| s.sessions.is_empty());
    Ctl::of(scene.a(), &["tensors"]).ends(0, &["0 tensors"]);
    scene.end();
}

#[test]
fn a_directory_with_large_files_comes_back_and_pieces_have_no_files() {
    let scene = two();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("run")).unwrap();
    let files =
        [("run/a", 18_000_000), ("run/b", 10), ("run/c", 9_000_000), ("run/d", 9_000_000), ("run/e", 20_000_000)];
    for (i, (name, len)) in files.iter().enumerate() {
        fs::write(at(name), bytes(i, *len)).unwrap();
    }
    let _holder = Ctl::of(scene.a(), &["push", "job", text(&at("run"))]).hold();
    Ctl::of(scene.b(), &["fetch", "--prefix", "job", text(&at("copy"))]).ends(0, &["5 tensors fetched"]);
    let mut names: Vec<_> = at("copy").read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    for (i, (name, len)) in files.iter().enumerate() {
        assert!(fs::read(at(&name.replace("run", "copy"))).unwrap() == bytes(i, *len), "{name}");
    }
    // One fetch writes all five tensors into one file, which is pushed again. Some of its tensors are larger than an
    // arena.
    Ctl::of(scene.b(), &["fetch", "--prefix", "job", text(&at("job.safetensors"))]).ends(0, &["5 tensors fetched"]);
    let _second = Ctl::of(scene.a(), &["push", "again", text(&at("job.safetensors"))]).hold();
    Ctl::of(scene.b(), &["fetch", "--prefix", "again", text(&at("again"))]).ends(0, &["5 tensors fetched"]);
    assert!(fs::read(at("again/e")).unwrap() == bytes(4, 20_000_000));
}

/// A newer version is pushed in pieces. A fetch returns one of the two versions or fails. It never mixes their pieces.
// Promise: files-in-pieces, seen to fail
#[test]
fn pieces_of_two_versions_are_never_mixed() {
    let scene = two();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (old, new) = (bytes(1, 18_000_000), bytes(2, 18_000_000));
    fs::write(at("old"), &old).unwrap();
    fs::write(at("new"), &new).unwrap();
    Ctl::of(scene.a(), &["push", "k", text(&at("old")), "--outlive"]).ends(0, &[]);
    // Imitates a push that was killed before it wrote its list: one piece belongs to another version.
    let file = at("new");
    let piece = ["push", "--prefix", "k/.transferctl-pieces", text(&file)];
    Ctl::of(scene.a(), &piece).ends(1, &["a piece of a larger file"]);
    // The other piece is as long as the piece that it replaces.
    let list = ["tensors", "--prefix", "k/.transferctl-pieces/00001", "--json"];
    let len = Ctl::of(scene.a(), &list).ends(0, &[]).json_lines()[0]["len_bytes"].as_u64().unwrap();
    let mut intruder = scene.a().worker("intruder");
    intruder.push("k/.transferctl-pieces/00001", transfer_tests::Spec::bytes(len, 3)).takeover().get();
    for node in [scene.a(), scene.b()] {
        let said = Ctl::of(node, &["fetch", "k", text(&at("out"))]).ends(6, &["00001", "version 1", "fetch it again"]);
        assert!(!at("out").exists(), "{}", said.text());
    }
    drop(intruder);
    // A complete push of the newer version makes the key readable again.
    Ctl::of(scene.a(), &["push", "k", text(&at("new")), "--outlive", "--takeover", "--version", "9"]).ends(0, &[]);
    for node in [scene.a(), scene.b()] {
        Ctl::of(node, &["fetch", "k", text(&at("out")), "--force"]).ends(0, &["version 9"]);
        assert!(fs::read(at("out")).unwrap() == new);
    }
}

#[test]
fn unsplittable_push_is_refused() {
    let scene = two();
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    fs::write(&large, bytes(1, 18_000_000)).unwrap();
    let said = Ctl::of(scene.a(), &["push", "k", "-"]).run_with(&fs::read(&large).unwrap());
    assert!(said.code == 2 && said.err.contains("in pieces from a file only"), "{}", said.text());
    // A push with an explicit `--arena-bytes` does not split the file.
    let asked = ["push", "k", text(&large), "--arena-bytes", "512KiB", "--to", "nobody"];
    Ctl::of(scene.a(), &asked).ends(2, &["does not fit into --arena-bytes"]);
    scene.end();
}
