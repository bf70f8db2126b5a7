//! `transferctl fetch --slice`: slices of tensors, and of tensors of a state, become files.

#![allow(clippy::unwrap_used)]

use safetensors::{Dtype, SafeTensors};
use std::fs;
use std::path::Path;
use transfer_client::{BlockingClient, BundleTensor};
use transfer_tests::{Carrier, Ctl, Scene};

const ROWS: u16 = 100;
const COLUMNS: u16 = 40;

fn two(more: &[&str]) -> Scene {
    let arguments = [&["--listen", "127.0.0.1:0", "--pool-bytes", "64MiB"], more].concat();
    Scene::over(Carrier::Tcp, &[&arguments, &arguments])
}

/// The elements of some rows and columns of a matrix whose elements are their numbers, as bytes.
fn elements(rows: impl Iterator<Item = u16>, columns: impl Iterator<Item = u16> + Clone) -> Vec<u8> {
    rows.flat_map(|row| columns.clone().flat_map(move |column| (row * COLUMNS + column).to_le_bytes())).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

// Promise: slices-that-do-not-fit
#[test]
fn slice_of_a_tensor_becomes_a_file_of_its_elements() {
    let scene = two(&[]);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("w"), elements(0..ROWS, 0..COLUMNS)).unwrap();
    let holder = Ctl::of(scene.a(), &["push", "w", text(&at("w")), "--shape", "100,40", "--dtype", "u16"]).hold();
    for (node, fabric) in [(scene.a(), "local"), (scene.b(), "tcp")] {
        let fetch = |out: &str, more: &[&str]| Ctl::of(node, &[&["fetch", "w", out], more].concat());
        let out = at("out");
        let said = fetch(text(&out), &["--slice", "10:20,-4:", "--verify", "--force", "--json"]).ends(0, &[]);
        assert_eq!(fs::read(&out).unwrap(), elements(10..20, 36..40));
        let line = &said.json_lines()[0];
        assert_eq!((&line["shape"], &line["bytes"]), (&serde_json::json!([10, 4]), &80.into()), "{line}");
        assert_eq!((&line["fabric"], &line["verified"]), (&fabric.into(), &true.into()), "{line}");
        let said = fetch("-", &["--slice", "-1, ::13", "--quiet"]).ends(0, &[]);
        assert_eq!(said.out, elements(99..100, (0..COLUMNS).step_by(13)));
        let file = at("one.safetensors");
        fetch(text(&file), &["--slice=[5:7]", "--force"]).ends(0, &["\"w\" version", "u16[2, 40]"]);
        let file = fs::read(file).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        let view = read.tensor("w").unwrap();
        assert_eq!((view.dtype(), view.shape(), view.data()), (Dtype::U16, &[2, 40][..], &elements(5..7, 0..40)[..]));

        // What does not fit names shape, slice and what would be right, and leaves no file.
        let none = at("none");
        let none = text(&none);
        let fits = ["\"w\"", "slice [0:101] does not fit shape [100, 40]", "-100 to 100 would fit"];
        fetch(none, &["--slice", "0:101"]).ends(1, &fits);
        fetch(none, &["--slice", "0,0,0"]).ends(1, &["it has 3 dimensions, at most 2 would fit"]);
        fetch(none, &["--slice", "0..4"]).ends(2, &["\"0..4\"", "START:STOP:STEP", "0:1024,-512:"]);
        fetch(none, &["--slice", "0:1", "--slice", "1:2"]).ends(2, &["--slice NAME=SLICE"]);
        assert!(!at("none").exists());
    }
    Ctl::of(scene.a(), &["fetch", "--prefix", "w", text(&at("none")), "--slice", "0:1"]).ends(2, &["--prefix"]);
    drop(holder);
    scene.end();
}

#[test]
fn slices_of_a_state_become_files_under_their_names() {
    let scene = two(&[]);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let pusher = BlockingClient::connect(scene.a().socket()).name("pusher").arena_bytes(1 << 20).call().unwrap();
    let matrix: Vec<u16> = (0..ROWS * COLUMNS).collect();
    let shape = [ROWS.into(), COLUMNS.into()];
    let tensors = ["layer/w", "layer/v", "a=b"].map(|name| (name, BundleTensor::from_slice(shape, &matrix).unwrap()));
    pusher.push_bundle("state", tensors).call().unwrap();
    for node in [scene.a(), scene.b()] {
        let fetch = |out: &str, more: &[&str]| Ctl::of(node, &[&["fetch", "state", out], more].concat());
        let some = ["--slice", "layer/w=:,1", "--slice", "a=b=", "--force", "--verify"];
        let out = at("folder");
        fetch(text(&out), &some).ends(0, &["2 tensors fetched", "\"layer/w\"", "u16[100]", "verified"]);
        assert_eq!(fs::read(out.join("layer/w")).unwrap(), elements(0..ROWS, 1..2));
        assert_eq!(fs::read(out.join("a=b")).unwrap(), elements(0..ROWS, 0..COLUMNS));
        assert!(!out.join("layer/v").exists());
        let file = at("state.safetensors");
        fetch(text(&file), &some).ends(0, &["2 tensors fetched"]);
        let file = fs::read(file).unwrap();
        let read = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.tensor("layer/w").unwrap().data(), elements(0..ROWS, 1..2));
        assert_eq!(read.tensor("a=b").unwrap().shape(), [100, 40]);
        // One alone is a file, or the standard output.
        let said = fetch("-", &["--slice", "layer/v=3", "--quiet"]).ends(0, &[]);
        assert_eq!(said.out, elements(3..4, 0..COLUMNS));

        let none = at("none");
        let none = text(&none);
        fetch(none, &["--slice", "layer/x=0"]).ends(1, &["\"state\"", "\"layer/x\""]);
        fetch(none, &["--slice", "layer/w=100"]).ends(1, &["index 100 lies outside of dimension 0"]);
        fetch("-", &some[..4]).ends(2, &["the standard output takes one slice"]);
        assert!(!at("none").exists());
    }
    drop(pusher);
    scene.end();
}

#[test]
fn slice_of_a_file_in_pieces_is_refused() {
    let scene = two(&["--max-arena-bytes", "2MiB"]);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("large"), vec![7; 5 << 20]).unwrap();
    let holder = Ctl::of(scene.a(), &["push", "large", text(&at("large"))]).hold();
    for node in [scene.a(), scene.b()] {
        let refused = ["\"large\" was pushed in pieces", "without --slice"];
        Ctl::of(node, &["fetch", "large", text(&at("out")), "--slice", "0:8"]).ends(2, &refused);
    }
    assert!(!at("out").exists());
    drop(holder);
    scene.end();
}
