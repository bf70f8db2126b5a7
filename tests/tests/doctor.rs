//! `transferctl doctor` on real sidecars: it moves real bytes, says which path they took, and finds problems.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use transfer_tests::{Carrier, Ctl, Scene, poll};

fn two() -> Scene {
    let arguments: &[&str] = &["--listen", "127.0.0.1:0", "--pool-bytes", "16MiB"];
    Scene::over(Carrier::Tcp, &[arguments, arguments])
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the findings of one check.
fn of<'a>(json: &'a Value, check: &str) -> Vec<&'a Value> {
    json["checks"].as_array().unwrap().iter().filter(|found| found["check"] == check).collect()
}

#[test]
fn healthy_node_passes_and_moves_bytes_by_reference() {
    let scene = two();
    let said = Ctl::of(scene.a(), &["doctor", "--json", "--bytes", "1MiB"]).ends(0, &[]);
    let json: Value = serde_json::from_slice(&said.out).unwrap();
    let bytes = of(&json, "bytes here");
    assert_eq!((bytes.len(), &bytes[0]["verdict"]), (1, &"ok".into()), "{json}");
    let found = bytes[0]["found"].as_str().unwrap();
    assert!(found.contains("1 MiB by reference, copied=0 B"), "{found}");
    for (check, verdict) in [("worker socket", "ok"), ("data port", "ok"), ("kernel", "ok"), ("sidecar", "ok")] {
        assert!(of(&json, check).iter().all(|found| found["verdict"] == verdict), "{check}: {json}");
        assert!(!of(&json, check).is_empty(), "{check}: {json}");
    }
    // Each failure comes with advice.
    let checks = json["checks"].as_array().unwrap();
    let silent = checks.iter().filter(|found| found["verdict"] == "fail" && found["advice"].is_null());
    assert_eq!(silent.count(), 0, "{json}");
    Ctl::of(scene.a(), &["doctor", "--bytes", "0"]).ends(0, &["worker socket"]);
    // Nothing that the doctor published is left.
    scene.end();
}

#[test]
fn bytes_between_two_nodes_go_both_ways() {
    let scene = two();
    let (other, socket) = (scene.b().admin_socket(), scene.b().socket());
    let with = ["doctor", "--with", text(&other), "--with-socket", text(&socket), "--bytes", "1MiB"];
    let said = Ctl::of(scene.a(), &with).ends(0, &["from it: 1 MiB tcp", "to it: 1 MiB tcp", "node b at unix:"]);
    let text = said.text();
    for words in ["ok    clocks", "ok    its data port", "ok    MTU", "iB/s)", "because", "--verbs off"] {
        assert!(text.contains(words), "nothing of {words:?}: {text}");
    }
    scene.end();
}

#[test]
fn doctor_without_the_other_socket_uses_a_worker_or_a_tensor_there() {
    let scene = two();
    let address = format!("http://{}", scene.b().address());
    let with = ["doctor", "--with", &address];
    Ctl::of(scene.a(), &with).ends(0, &["warn  bytes between", "none were moved", "transferctl push KEY FILE"]);
    let nowhere = scene.folder().join("nowhere.sock");
    let without = ["doctor", "--with", &address, "--socket", text(&nowhere)];
    Ctl::of(scene.a(), &without).ends(8, &["no worker socket can be used, neither here", "nowhere.sock", "--socket"]);
    let file = scene.folder().join("data.log");
    std::fs::write(&file, vec![7; 300_000]).unwrap();
    // With a worker at the other node, bytes go both ways, and nothing of them stays.
    let taker = scene.b().worker("taker");
    Ctl::of(scene.a(), &with).ends(0, &["to it, to its worker \"taker\": 4 MiB tcp", "from it: 4 MiB tcp"]);
    assert!(taker.close().success());
    // The worker has left, and the doctor sees that soon. It does not fetch a key whose retention counts fetches,
    // because that would use up the fetch of its real reader.
    Ctl::of(scene.b(), &["push", "counted", text(&file), "--until", "fetched:1", "--outlive"]).ends(0, &[]);
    let says = |words: &str| {
        let said = poll(|| match Ctl::of(scene.a(), &with).run().text() {
            said if said.contains(words) => Ok(()),
            said => Err(said),
        });
        said.unwrap_or_else(|said| panic!("{words:?} is missing in {said}"));
    };
    says("none were moved");
    Ctl::of(scene.b(), &["push", "plain", text(&file), "--outlive"]).ends(0, &[]);
    says("from it, which was \"plain\": 293.0 KiB tcp");
    for key in ["counted", "plain"] {
        Ctl::of(scene.b(), &["delete", key]).ends(0, &[]);
    }
    scene.end();
}

#[test]
fn problems_end_with_exit_code_8() {
    let mut scene = two();
    let nowhere = scene.folder().join("nowhere.sock");
    let here = scene.a().admin_socket();
    let ctl = |words: &[&str]| Ctl::of(scene.a(), &[&["doctor", "--bytes", "64KiB"], words].concat());
    ctl(&["--socket", text(&nowhere)]).ends(8, &["FAIL  worker socket", "nothing is at", "--socket"]);
    let file = scene.folder().join("a.ready");
    ctl(&["--socket", text(&file)]).ends(8, &["FAIL  worker socket", "is no socket"]);
    ctl(&["--admin", text(&nowhere)]).ends(8, &["FAIL  sidecar", "--admin-socket"]);
    ctl(&["--with", "http://127.0.0.1:1"]).ends(8, &["FAIL  other node", "http://127.0.0.1:1"]);
    ctl(&["--with", text(&here)]).ends(8, &["FAIL  other node", "it is this one"]);
    ctl(&["--certificate", text(&file)]).ends(8, &["FAIL  certificate", "a.ready", "PEM"]);
    ctl(&["--with-socket", "/x"]).ends(2, &["--with"]);
    // The doctor asks one sidecar, and the worker socket belongs to another one. No bytes are moved, since they would
    // say nothing about the first.
    let (b, its_socket) = (scene.b().admin_socket(), scene.b().socket());
    let said = ctl(&["--socket", text(&its_socket)]).ends(8, &["FAIL  worker socket", "of another sidecar, of node b"]);
    assert!(!said.text().contains("bytes here"), "{}", said.text());
    let (own, with) = (scene.a().socket(), ["--with", text(&b), "--with-socket"]);
    ctl(&[&with[..], &[text(&own)]].concat()).ends(8, &["FAIL  bytes between", "is node a, and not the one at unix:"]);
    // The other node is gone, and the doctor reports that.
    let (other, socket) = (scene.b().admin_socket(), scene.b().socket());
    scene.nodes[1].kill();
    let with = ["doctor", "--with", text(&other), "--with-socket", text(&socket)];
    Ctl::of(scene.a(), &with).ends(8, &["FAIL  other node"]);
    scene.nodes[1].restart();
}
