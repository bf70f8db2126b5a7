//! `transferctl doctor` on real sidecars: it moves real bytes, says which way they took, and finds what is wrong.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use transfer_tests::{Carrier, Ctl, Scene};

fn two() -> Scene {
    let arguments: &[&str] = &["--listen", "127.0.0.1:0", "--pool-bytes", "16MiB"];
    Scene::over(Carrier::Tcp, &[arguments, arguments])
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The findings of one check.
fn of<'a>(json: &'a Value, check: &str) -> Vec<&'a Value> {
    json["checks"].as_array().unwrap().iter().filter(|found| found["check"] == check).collect()
}

#[test]
fn one_node_is_well_and_hands_over_by_reference() {
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
    // Each failure and each warning says what to do.
    let checks = json["checks"].as_array().unwrap();
    let silent = checks.iter().filter(|found| found["verdict"] == "fail" && found["advice"].is_null());
    assert_eq!(silent.count(), 0, "{json}");
    Ctl::of(scene.a(), &["doctor", "--bytes", "0"]).ends(0, &["worker socket"]);
    // Nothing of it stays.
    scene.end();
}

#[test]
fn between_two_nodes_bytes_go_both_ways() {
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
fn without_the_other_s_socket_something_published_there_is_fetched() {
    let scene = two();
    let address = format!("http://{}", scene.b().address());
    let with = ["doctor", "--with", &address];
    Ctl::of(scene.a(), &with).ends(0, &["warn  bytes between", "none were moved", "transferctl push KEY FILE"]);
    let file = scene.folder().join("data.log");
    std::fs::write(&file, vec![7; 300_000]).unwrap();
    // A fetch would take that away from whom it is for.
    let counted = Ctl::of(scene.b(), &["push", "counted", text(&file), "--until", "fetched:1"]).hold();
    Ctl::of(scene.a(), &with).ends(0, &["none were moved"]);
    let plain = Ctl::of(scene.b(), &["push", "plain", text(&file)]).hold();
    Ctl::of(scene.a(), &with).ends(0, &["from it, which was \"plain\": 293.0 KiB tcp"]);
    drop((counted, plain));
    scene.end();
}

#[test]
fn what_is_wrong_ends_with_8() {
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
    // A node that hangs: bytes that do not arrive are found, and waited for no longer than it takes.
    let (other, socket) = (scene.b().admin_socket(), scene.b().socket());
    scene.nodes[1].kill();
    let with = ["doctor", "--with", text(&other), "--with-socket", text(&socket)];
    Ctl::of(scene.a(), &with).ends(8, &["FAIL  other node"]);
    scene.nodes[1].restart();
}
