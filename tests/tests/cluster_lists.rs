//! Lists and fetches that cover all nodes, and how they name the nodes that are missing.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use transfer_tests::{Ctl, Scene, Sidecar, Spec, Worker, poll};

const ARGUMENTS: &[&str] = &["--pool-bytes", "16MiB", "--listen", "127.0.0.1:0"];

/// Returns three nodes, and a worker at each that has published `job/NODE`, `job/deep/NODE` and `other/NODE`.
fn three() -> (Scene, Vec<Worker>) {
    let scene = Scene::with(&[ARGUMENTS; 3]);
    let workers = scene.nodes.iter().enumerate().map(|(i, node)| published(node, i as u64)).collect();
    (scene, workers)
}

fn published(node: &Sidecar, seed: u64) -> Worker {
    let name = node.name();
    let mut worker = node.worker(&format!("worker-{name}"));
    for (i, prefix) in ["job", "job/deep", "other"].iter().enumerate() {
        worker.push(&format!("{prefix}/{name}"), Spec::bytes(1000 + i as u64, 10 * seed + i as u64)).get();
    }
    worker
}

/// Returns the nodes and keys of a list, sorted.
fn listed(said: &transfer_tests::ctl::Said) -> Vec<(String, String)> {
    let text = |line: &serde_json::Value, field: &str| line[field].as_str().unwrap().to_owned();
    let mut listed: Vec<_> = said.json_lines().iter().map(|line| (text(line, "node"), text(line, "key"))).collect();
    listed.sort();
    listed
}

fn of(nodes: &[&str], prefixes: &[&str]) -> Vec<(String, String)> {
    let of_node = |node: &&str| {
        let node = (*node).to_owned();
        prefixes.iter().map(move |prefix| (node.clone(), format!("{prefix}/{node}")))
    };
    let mut all: Vec<_> = nodes.iter().flat_map(of_node).collect();
    all.sort();
    all
}

/// Returns the names of the files below a folder, one folder deep, sorted.
fn names(folder: &Path) -> Vec<String> {
    let below = |path: &Path| path.read_dir().unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>();
    let deep = below(folder).into_iter().flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] });
    let mut names: Vec<_> = deep.map(|path| path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn tensors_of_all_nodes_are_in_one_list() {
    let (scene, workers) = three();
    for node in &scene.nodes {
        let said = Ctl::of(node, &["tensors", "--cluster", "--json"]).ends(0, &[]);
        assert_eq!(listed(&said), of(&["a", "b", "c"], &["job", "job/deep", "other"]), "{}", said.text());
        let said = Ctl::of(node, &["tensors", "--cluster", "--prefix", "job/deep", "--json"]).ends(0, &[]);
        assert_eq!(listed(&said), of(&["a", "b", "c"], &["job/deep"]));
        // The list of one owner, who is a worker of node c.
        let said = Ctl::of(node, &["tensors", "--cluster", "--owner", "worker-c", "--json"]).ends(0, &[]);
        assert_eq!(listed(&said), of(&["c"], &["job/deep", "job", "other"]));
    }
    // The table for people has one row per tensor, in the order of the nodes.
    let said =
        Ctl::of(&scene.nodes[1], &["tensors", "--cluster", "--prefix", "job/"]).ends(0, &["6 tensors", "5.9 KiB"]);
    let first = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    let text = String::from_utf8(said.out).unwrap();
    let column: Vec<_> = text.lines().map(first).collect();
    assert_eq!(column, ["node", "a", "a", "b", "b", "c", "c", "6"], "{text}");
    // The list is read in pages of one tensor, and cut after four.
    let few = ["tensors", "--cluster", "--page-size", "1", "--limit", "4"];
    Ctl::of(scene.a(), &few).ends(0, &["4 tensors", "there are more"]);
    let none = ["tensors", "--cluster", "--prefix", "nothing"];
    Ctl::of(scene.a(), &none).ends(0, &["0 tensors"]);
    // Without `--cluster` the list is that of one node.
    let said = Ctl::of(&scene.nodes[1], &["tensors", "--json"]).ends(0, &[]);
    assert_eq!(said.json_lines().len(), 3);
    let watched = ["watch", "--times", "2", "--every", "10ms", "tensors", "--cluster"];
    Ctl::of(&scene.nodes[1], &watched).ends(0, &["9 tensors"]);
    drop(workers);
    scene.end();
}

#[test]
fn a_prefix_is_fetched_from_all_nodes() {
    let (scene, workers) = three();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (node, out) in scene.nodes.iter().zip(["from-a", "from-b", "from-c"]) {
        Ctl::of(node, &["fetch", "--prefix", "job", "--verify", &at(out)]).ends(0, &["6 tensors fetched"]);
        assert_eq!(names(at(out).as_ref()), ["a", "b", "c", "deep/a", "deep/b", "deep/c"]);
        assert_eq!(fs::read(at(&format!("{out}/c"))).unwrap().len(), 1000);
    }
    let same = |name: &str| {
        fs::read(at(&format!("from-a/{name}"))).unwrap() == fs::read(at(&format!("from-b/{name}"))).unwrap()
    };
    assert!(["a", "b", "c", "deep/a", "deep/b", "deep/c"].iter().all(|name| same(name)));
    Ctl::of(&scene.nodes[1], &["fetch", "--prefix", "job", &at("job.safetensors")]).ends(0, &["6 tensors fetched"]);
    Ctl::of(&scene.nodes[1], &["fetch", "--prefix", "job", "--one-node", &at("own")]).ends(0, &["2 tensors fetched"]);
    assert_eq!(names(at("own").as_ref()), ["b", "deep/b"]);
    Ctl::of(&scene.nodes[1], &["fetch", "--prefix", "nothing", &at("no")])
        .ends(6, &["no key begins with \"nothing/\"", "any node"]);
    drop(workers);
    scene.end();
}

// Promise: lists-of-all-nodes, seen to fail
#[test]
fn a_node_that_is_lost_is_named() {
    let (mut scene, mut workers) = three();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let list = ["tensors", "--cluster", "--prefix", "job/", "--json"];
    scene.nodes[2].kill();
    let said = Ctl::of(&scene.nodes[1], &list).ends(9, &["node c is missing in the list", "1 of 3 could not be asked"]);
    assert_eq!(listed(&said), of(&["a", "b"], &["job/deep", "job"]));
    // The node stays missing after the directory has noticed its loss.
    let noticed = poll(|| {
        let said = Ctl::of(scene.a(), &list).ends(9, &["node c is missing in the list"]);
        if said.err.contains("it was lost") { Ok(said) } else { Err(said) }
    });
    let said = noticed.unwrap_or_else(|said| panic!("{}", said.text()));
    assert!(said.err.contains("has not come back") && said.err.contains("Start those nodes again"), "{}", said.err);

    let fetch = ["fetch", "--prefix", "job", &at("some")];
    Ctl::of(&scene.nodes[1], &fetch).ends(9, &["4 tensors fetched", "node c is missing"]);
    assert_eq!(names(at("some").as_ref()), ["a", "b", "deep/a", "deep/b"]);
    // A single file needs the tensors of all nodes, unless only one node is asked for.
    Ctl::of(&scene.nodes[1], &["fetch", "--prefix", "job", &at("all.safetensors")]).ends(9, &["node c is missing"]);
    assert!(!Path::new(&at("all.safetensors")).exists());
    let one = ["fetch", "--prefix", "job", "--one-node", &at("one.safetensors")];
    Ctl::of(&scene.nodes[1], &one).ends(0, &["2 tensors fetched"]);
    // No known key has this prefix, but the missing node may have one.
    Ctl::of(&scene.nodes[1], &["fetch", "--prefix", "nothing", &at("no")]).ends(9, &["node c is missing"]);

    // The node comes back.
    drop(workers.pop());
    scene.nodes[2].restart();
    workers.push(published(&scene.nodes[2], 2));
    let back = poll(|| {
        let said = Ctl::of(&scene.nodes[1], &list).run();
        if said.code == 0 && listed(&said).len() == 6 { Ok(()) } else { Err(said) }
    });
    back.unwrap_or_else(|said| panic!("{}", said.text()));
    // A node that its operator has ended is not reported as missing.
    drop(workers);
    assert!(scene.nodes[2].terminate().success());
    Ctl::of(&scene.nodes[1], &["tensors", "--cluster"]).ends(0, &[]);
}

/// The list waits for the node's answer until the time limit of that request, and then lists the other nodes.
// Promise: lists-of-all-nodes
#[test]
fn a_node_that_does_not_answer_is_named() {
    let scene = Scene::with(&[ARGUMENTS; 2]);
    let workers: Vec<_> = scene.nodes.iter().enumerate().map(|(i, node)| published(node, i as u64)).collect();
    scene.nodes[1].freeze();
    let list = ["tensors", "--cluster", "--prefix", "job/", "--json"];
    let said = Ctl::of(scene.a(), &list).ends(9, &["node b is missing in the list"]);
    assert_eq!(listed(&said), of(&["a"], &["job/deep", "job"]));
    scene.nodes[1].go_on();
    drop(workers);
}

// Promise: lists-of-all-nodes
#[test]
fn node_without_its_directory_lists_itself_and_says_so() {
    let mut scene = Scene::with(&[ARGUMENTS; 2]);
    let worker = published(&scene.nodes[1], 1);
    scene.nodes[0].kill();
    let list = ["tensors", "--cluster", "--prefix", "job/", "--json"];
    let said =
        Ctl::of(&scene.nodes[1], &list).ends(9, &["every other node is missing in the list", "the directory at http"]);
    assert_eq!(listed(&said), of(&["b"], &["job/deep", "job"]));
    drop(worker);
}
