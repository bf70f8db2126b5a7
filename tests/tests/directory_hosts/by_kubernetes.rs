//! Lease objects of Kubernetes say which host leads: hosts are killed and stopped, and the API server fails in every way that it has.

use super::chaos::chaos;
use super::{Cluster, DEADLINE, goes_on, prepare, small, stop_the_host_that_leads};
use rand::Rng;
use serde_json::json;
use transfer_tests::ctl::Ctl;
use transfer_tests::kubernetes::{Kubernetes, Mode};
use transfer_tests::{Sidecar, http, poll};

/// The directory's name.
const NAME: &str = "cluster";

/// The metric that says whether Kubernetes answers a node.
fn answers(node: &Sidecar) -> bool {
    http::get(&node.http(), "/metrics").body.lines().any(|line| line == "transfer_directory_coordinator_answers 1")
}

/// The host that leads is killed, and then an orderly end and a move.
// Promise: directory-by-kubernetes
#[test]
fn another_host_leads_as_kubernetes_says_when_one_is_killed_moves_or_ends() {
    let kubernetes = Kubernetes::start();
    let mut cluster = Cluster::by_kubernetes(&kubernetes, NAME, 2, &[]);
    let [mut d, mut e] = prepare(&cluster);
    let first = cluster.leader(None);
    let term = cluster.shown(first, first);
    let lease = kubernetes.lease(NAME).expect("a Lease");
    assert_eq!(lease["spec"]["holderIdentity"], cluster.nodes[first].name(), "as kubectl shows it");
    cluster.nodes[first].kill();
    goes_on(&mut d, &mut e);
    let second = cluster.leader(Some(first));
    let shown = String::from_utf8_lossy(&Ctl::of(&cluster.nodes[second], &["directory"]).run().out).into_owned();
    assert!(shown.contains("as kubernetes:training/cluster says") && !shown.contains("NOT"), "{shown}");
    cluster.nodes[first].restart();
    cluster.all_attached();
    let knows_all = |s: &transfer_tests::status::Seen| s.directory.as_ref().is_some_and(|d| d.hosts.len() == 3);
    cluster.nodes[second].until("it knows all hosts again", knows_all);
    assert_eq!(cluster.leader(None), second, "a host that comes back stands by");
    assert!(cluster.shown(second, second) > term, "the term rises when another host leads");
    let third = 3 - first - second;
    let name = cluster.nodes[third].name().to_owned();
    let said = Ctl::of(&cluster.nodes[second], &["directory", "move", &name]).run();
    assert_eq!(
        (said.code, &*said.out),
        (0, format!("node {name} leads the directory now\n").as_bytes()),
        "{}",
        said.err
    );
    assert_eq!(cluster.leader(None), third);
    d.push("moved", small(5)).timeout(DEADLINE).get();
    assert!(cluster.nodes[third].terminate().success());
    e.push("ended", small(6)).timeout(DEADLINE).get();
    assert_eq!(d.fetch("ended").timeout(DEADLINE).get().sum, small(6).sum());
    assert_ne!(cluster.leader(Some(third)), third);
    let names = kubernetes.names();
    assert!(!names.contains(&format!("{NAME}-host-{name}")), "a host that has ended leaves no Lease: {names:?}");
    let nodes = kubernetes.lease(&format!("{NAME}-nodes")).expect("a Lease").to_string();
    assert!(nodes.contains("\\\"d\\\"") && !nodes.contains("moved"), "names of nodes, and no key of a tensor: {nodes}");
}

// Promise: one-leading-host
#[test]
fn host_that_was_stopped_grants_nothing_while_kubernetes_has_named_another() {
    let kubernetes = Kubernetes::start();
    stop_the_host_that_leads(&Cluster::by_kubernetes(&kubernetes, NAME, 2, &[]));
}

/// Answers are lost, of which some are to what was done; and the token is replaced. The host that leads goes on.
// Promise: directory-by-kubernetes
#[test]
fn host_goes_on_where_answers_are_lost_and_with_a_new_token() {
    let kubernetes = Kubernetes::start();
    let cluster = Cluster::by_kubernetes(&kubernetes, NAME, 2, &["--directory-takeover", "15s"]);
    let [mut d, mut e] = prepare(&cluster);
    let first = cluster.leader(None);
    kubernetes.set_mode(Mode::LosesAnswers);
    kubernetes.rotate_token();
    for i in 0..8 {
        // A node that comes is written, too.
        let folder = tempfile::Builder::new().prefix("transfer-test-").tempdir().expect("a folder");
        let settings = kubernetes.arguments(NAME);
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        let common = ["--pool-bytes", "4MiB", "--listen", "127.0.0.1:0", "--directory-takeover", "15s"];
        let node = Sidecar::start(folder.path(), &format!("New {i}"), &[&common[..], &settings].concat());
        node.until("it attaches", |s| s.directory.as_ref().is_some_and(|d| d.attached));
        let (key, spec) = (format!("key-{i}"), small(i));
        d.push(&key, spec.clone()).timeout(DEADLINE).get();
        assert_eq!(e.fetch(&key).timeout(DEADLINE).get().sum, spec.sum());
    }
    assert_eq!(cluster.leader(None), first);
    for node in &cluster.nodes {
        assert_eq!(node.status().directory.as_ref().map(|d| d.attachments), Some(1), "it stays attached");
    }
}

/// The API server fails in each way that it has. Nodes go on alone, say why, and meet again.
// Promise: directory-by-kubernetes
#[test]
fn nodes_go_on_while_the_api_server_refuses_or_is_silent() {
    let kubernetes = Kubernetes::start();
    let cluster = Cluster::by_kubernetes(&kubernetes, NAME, 2, &["--http-listen", "127.0.0.1:0"]);
    let [mut d, mut e] = prepare(&cluster);
    let says_why = |words: &'static [&'static str]| {
        move |s: &transfer_tests::status::Seen| {
            let why = s.directory.as_ref().map(|d| d.coordinator_why_not.as_str()).unwrap_or_default();
            words.iter().all(|word| why.contains(word))
        }
    };
    kubernetes.set_mode(Mode::Silent);
    // No host leads beyond its promise.
    cluster.nodes[4].until("it is cut off", |s| s.directory.as_ref().is_some_and(|d| !d.attached));
    assert_eq!(e.fetch("old").timeout(DEADLINE).get().sum, small(1).sum());
    d.push("alone", small(2)).timeout(2 * DEADLINE).get();
    for node in &cluster.nodes {
        node.until("it says why", says_why(&["no answer within"]));
        poll(|| (!answers(node)).then_some(()).ok_or(())).expect("a metric says that Kubernetes is away");
    }
    let said = Ctl::of(&cluster.nodes[0], &["doctor"]).run();
    let text = String::from_utf8_lossy(&said.out).into_owned();
    assert!(text.contains("kubernetes:training/cluster does not answer"), "{text}");
    for (status, words) in [
        (401, &["401", "kubernetes-token-file", "service account"][..]),
        (403, &["403", "get, list, create, update and delete", "training"]),
        (404, &["404", "told to fail"]),
        (429, &["429", "told to fail"]),
        (503, &["503", "told to fail"]),
    ] {
        kubernetes.set_mode(Mode::Fails(status));
        cluster.nodes[..3].iter().for_each(|node| node.until("it says why", says_why(words)));
    }
    kubernetes.set_mode(Mode::Normal);
    cluster.all_attached();
    assert_eq!(e.fetch("alone").timeout(DEADLINE).get().sum, small(2).sum());
    e.push("old", small(9)).timeout(DEADLINE).trouble().expect("KeyOwned", &["worker-d"]);
    // Other nodes look now and then.
    for node in &cluster.nodes[..3] {
        poll(|| answers(node).then_some(()).ok_or(())).expect("a metric says that Kubernetes is back");
    }
    // A token that is not accepted any more.
    kubernetes.forget_tokens();
    cluster.nodes[0].until("it says why", says_why(&["401", "Unauthorized"]));
    kubernetes.rotate_token();
    cluster.nodes[0]
        .until("the new one is read", |s| s.directory.as_ref().is_some_and(|d| d.coordinator_why_not.is_empty()));
    assert!(
        cluster.nodes.iter().all(|node| !node.log().contains("secret-") && !text.contains("secret-")),
        "no token is shown"
    );
}

/// The Lease belongs to another program; then it is deleted by hand while a host leads.
// Promise: directory-by-kubernetes
#[test]
fn lease_of_another_program_is_named_and_a_deleted_one_made_again() {
    let kubernetes = Kubernetes::start();
    kubernetes.put(NAME, json!({"holderIdentity": "scheduler\u{1b}[31m", "leaseDurationSeconds": 15}));
    let folder = tempfile::Builder::new().prefix("transfer-test-").tempdir().expect("a folder");
    let settings = kubernetes.arguments(NAME);
    let settings: Vec<_> = settings.iter().map(String::as_str).collect();
    let common = ["--pool-bytes", "4MiB", "--listen", "127.0.0.1:0", "--directory-host"];
    let node = Sidecar::start(folder.path(), "a", &[&common[..], &settings].concat());
    node.until("it names the holder", |s| {
        s.directory.as_ref().is_some_and(|d| d.why_not.contains("held by scheduler") && d.why_not.contains("name"))
    });
    assert!(!node.status().directory.clone().expect("its directory").why_not.contains('\u{1b}'));
    kubernetes.delete(NAME);
    node.until("it leads", |s| s.directory.as_ref().is_some_and(|d| d.attached && d.hosted_here));
    let mut worker = node.worker("w");
    worker.push("k", small(1)).get();
    kubernetes.delete(NAME);
    node.until("it attaches again", |s| s.directory.as_ref().is_some_and(|d| d.attached && d.attachments > 1));
    worker.push("new", small(2)).timeout(DEADLINE).get();
    assert!(kubernetes.lease(NAME).is_some());
}

/// The hosts as in the test without Kubernetes; and before each round the API server begins to fail, or ends it.
// Promise: directory-by-kubernetes
#[test]
fn nothing_fails_while_hosts_and_nodes_are_killed_and_answers_are_lost() {
    let kubernetes = Kubernetes::start();
    chaos(
        |others| Cluster::by_kubernetes(&kubernetes, NAME, others, &[]),
        |random| {
            let mode = if random.random_bool(0.5) { Mode::LosesAnswers } else { Mode::Normal };
            println!("{mode:?}");
            kubernetes.set_mode(mode);
            kubernetes.rotate_token();
        },
    );
}
