//! A directory with three hosts, of which one leads: it dies, is stopped, lets another one lead, or is restarted with all other
//! nodes in turn.

#[path = "directory_hosts/by_etcd.rs"]
mod by_etcd;
#[path = "directory_hosts/by_kubernetes.rs"]
mod by_kubernetes;
#[path = "directory_hosts/chaos.rs"]
mod chaos;

use std::time::Duration;
use transfer_tests::ctl::Ctl;
use transfer_tests::kubernetes::Kubernetes;
use transfer_tests::port::ReservedPort;
use transfer_tests::{Change, Etcd, Sidecar, Spec, Worker, poll};

/// Enough for a host to take over.
const DEADLINE: Duration = Duration::from_secs(10);

fn small(seed: u64) -> Spec {
    Spec::bytes(1000, seed)
}

/// The hosts a, b and c, and the nodes d, e and so on, which host nothing.
struct Cluster {
    nodes: Vec<Sidecar>,
    _ports: Vec<ReservedPort>,
    _folder: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Cluster {
        Cluster::with(&[])
    }

    fn with(more: &[&str]) -> Cluster {
        Cluster::of(2, more)
    }

    /// With so many nodes that host nothing.
    fn of(others: usize, more: &[&str]) -> Cluster {
        let folder = tempfile::Builder::new().prefix("transfer-test-").tempdir().expect("a folder");
        let ports: Vec<_> = (0..3).map(|_| ReservedPort::any()).collect();
        let listens: Vec<_> = ports.iter().map(|port| port.address().to_string()).collect();
        let directory = format!("static:a={},b={},c={}", listens[0], listens[1], listens[2]);
        Cluster::made(folder, ports, &["--directory", &directory], &[], others, more)
    }

    /// As this etcd says.
    fn by_etcd(etcd: &Etcd, others: usize, more: &[&str]) -> Cluster {
        Cluster::named(&["--directory", &etcd.directory("/cluster")], others, more)
    }

    /// As the Leases of this name say.
    fn by_kubernetes(kubernetes: &Kubernetes, name: &str, others: usize, more: &[&str]) -> Cluster {
        let settings = kubernetes.arguments(name);
        Cluster::named(&settings.iter().map(String::as_str).collect::<Vec<_>>(), others, more)
    }

    fn named(directory: &[&str], others: usize, more: &[&str]) -> Cluster {
        let folder = tempfile::Builder::new().prefix("transfer-test-").tempdir().expect("a folder");
        let ports: Vec<_> = (0..3).map(|_| ReservedPort::any()).collect();
        let cluster = Cluster::made(folder, ports, directory, &["--directory-host"], others, more);
        // They are there before any of them is asked for the others.
        let shows_all = |node: &Sidecar| {
            node.until("it knows all hosts", |s| s.directory.as_ref().is_some_and(|d| d.hosts.len() == 3));
        };
        cluster.nodes.iter().for_each(shows_all);
        cluster
    }

    fn made(
        folder: tempfile::TempDir,
        ports: Vec<ReservedPort>,
        directory: &[&str],
        of_hosts: &[&str],
        others: usize,
        more: &[&str],
    ) -> Cluster {
        let listens: Vec<_> = ports.iter().map(|port| port.address().to_string()).collect();
        let listens = listens.into_iter().chain(std::iter::repeat_n("127.0.0.1:0".to_owned(), others));
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned).into_iter().chain((5..).map(|i| format!("n{i}")));
        let nodes = listens.zip(names).enumerate().map(|(i, (listen, name))| {
            let mut arguments = vec!["--pool-bytes", "4MiB", "--listen", &listen];
            arguments.extend(directory);
            arguments.extend(of_hosts.iter().filter(|_| i < 3));
            arguments.extend(more);
            Sidecar::start(folder.path(), &name, &arguments)
        });
        let cluster = Cluster { nodes: nodes.collect(), _ports: ports, _folder: folder };
        cluster.all_attached();
        cluster
    }

    fn all_attached(&self) {
        for node in &self.nodes {
            node.until("it is attached", |s| s.directory.as_ref().is_some_and(|d| d.attached));
        }
    }

    /// Returns the host that leads, other than `not`.
    fn leader(&self, not: Option<usize>) -> usize {
        let leads = |node: &Sidecar| {
            let state = node.status().directory.clone().expect("a sidecar shows its directory");
            state.attached && state.hosted_here
        };
        poll(|| (0..3).find(|i| Some(*i) != not && leads(&self.nodes[*i])).ok_or("no host leads"))
            .expect("one of the hosts leads")
    }

    /// Returns the host that leads, as a node knows it.
    fn leader_at(&self, node: usize) -> String {
        let said = Ctl::of(&self.nodes[node], &["directory", "--json"]).run();
        let shown: serde_json::Value = serde_json::from_slice(&said.out).expect("JSON");
        shown["leader"].as_str().expect("a name").to_owned()
    }

    /// Runs `transferctl directory` at a node, which says that this host leads. Returns the term that it shows.
    fn shown(&self, node: usize, leader: usize) -> u64 {
        let said = Ctl::of(&self.nodes[node], &["directory", "--json"]).run();
        assert_eq!(said.code, 0, "{}", said.err);
        let shown: serde_json::Value = serde_json::from_slice(&said.out).expect("JSON");
        assert_eq!(shown["leader"], self.nodes[leader].name(), "{shown}");
        let hosts: Vec<_> = shown["hosts"].as_array().expect("its hosts").iter().map(|host| &host["node"]).collect();
        assert_eq!(hosts, ["a", "b", "c"]);
        let said = Ctl::of(&self.nodes[node], &["directory"]).run();
        let text = String::from_utf8_lossy(&said.out).into_owned();
        let row = text.lines().find(|line| line.contains("leads")).expect("a host leads");
        assert!(row.trim_start().starts_with(self.nodes[leader].name()), "{text}");
        shown["term"].as_u64().expect("a number")
    }

    fn worker(&self, node: usize) -> Worker {
        self.nodes[node].worker(&format!("worker-{}", self.nodes[node].name()))
    }
}

/// Uses what needs the directory while another host takes over: nothing fails, what was entered before is known, and no
/// key gets a second owner.
fn goes_on(d: &mut Worker, e: &mut Worker) {
    // The new host is asked for a key that is d's before d may have recited it.
    e.push("old", small(9)).timeout(DEADLINE).trouble().expect("KeyOwned", &["\"old\"", "worker-d"]);
    e.push("new", small(2)).timeout(DEADLINE).get();
    assert_eq!(d.fetch("new").timeout(DEADLINE).get().sum, small(2).sum());
    d.push("new", small(9)).timeout(DEADLINE).trouble().expect("KeyOwned", &["\"new\"", "worker-e"]);
    d.push("to", small(3)).to("worker-e").timeout(DEADLINE).get();
    assert_eq!(e.open("after").get(), "e", "a new counter has one home");
    assert_eq!(d.open("after").get(), "e");
    assert_eq!(d.open("steps").get(), "d", "a home is known to the next host");
    e.count("steps", Change::Add(2), 1).get();
    assert_eq!(d.count("steps", Change::Get, 1).get().old, 3);
}

fn prepare(cluster: &Cluster) -> [Worker; 2] {
    let (mut d, mut e) = (cluster.worker(3), cluster.worker(4));
    d.push("old", small(1)).get();
    assert_eq!(e.fetch("old").get().sum, small(1).sum());
    assert_eq!(d.open("steps").get(), "d");
    d.count("steps", Change::Add(1), 1).get();
    [d, e]
}

/// The host that leads is killed.
// Promise: directory-takeover, seen to fail
#[test]
fn another_host_takes_over_when_the_one_that_leads_is_killed() {
    let mut cluster = Cluster::start();
    let [mut d, mut e] = prepare(&cluster);
    let first = cluster.leader(None);
    let term = cluster.shown(3, first).min(cluster.shown(first, first));
    assert_eq!(term, 0, "a node that hosts nothing has promised nothing");
    let term = cluster.shown(first, first);
    cluster.nodes[first].kill();
    goes_on(&mut d, &mut e);
    let second = cluster.leader(Some(first));
    assert!(cluster.shown(second, second) > term, "the term rises when another host leads");
    cluster.shown(4, second);
    cluster.nodes[first].restart();
    cluster.all_attached();
    assert_eq!(cluster.leader(None), second, "a host that comes back stands by");
    let mut far = cluster.worker(first);
    assert_eq!(far.fetch("old").get().sum, small(1).sum());
}

/// The host that leads is stopped, as by a debugger, and goes on later. Its connections stay open meanwhile.
// Promise: one-leading-host
#[test]
fn host_that_was_stopped_grants_nothing_when_it_goes_on() {
    stop_the_host_that_leads(&Cluster::start());
}

fn stop_the_host_that_leads(cluster: &Cluster) {
    let [mut d, mut e] = prepare(cluster);
    let first = cluster.leader(None);
    let mut at_first = cluster.worker(first);
    at_first.push("warm", small(4)).get();
    cluster.nodes[first].freeze();
    goes_on(&mut d, &mut e);
    let second = cluster.leader(Some(first));
    assert_ne!(second, first);
    // It was asked while it was stopped, so it may answer before it looks at its clock.
    let asked = at_first.push("new", small(8)).timeout(DEADLINE).start();
    cluster.nodes[first].go_on();
    asked.trouble().expect("KeyOwned", &["\"new\"", "worker-e"]);
    cluster.all_attached();
    assert_eq!(cluster.leader(None), second);
    at_first.push("later", small(5)).timeout(DEADLINE).get();
    assert_eq!(e.fetch("later").timeout(DEADLINE).get().sum, small(5).sum());
}

/// All hosts are restarted, one after the other, while two workers of other nodes go on: no call fails.
// Promise: directory-takeover
#[test]
fn hosts_are_restarted_one_after_the_other_and_no_call_fails() {
    let mut cluster = Cluster::start();
    let [mut d, mut e] = prepare(&cluster);
    for host in 0..3 {
        let ended = cluster.nodes[host].terminate();
        assert!(ended.success(), "{ended:?}");
        for round in 0..3_u64 {
            let (key, spec) = (format!("{host}-{round}"), small(round));
            d.push(&key, spec.clone()).timeout(DEADLINE).get();
            assert_eq!(e.fetch(&key).timeout(DEADLINE).get().sum, spec.sum());
        }
        cluster.nodes[host].restart();
        cluster.all_attached();
    }
    assert_eq!(e.fetch("old").get().sum, small(1).sum());
    e.push("old", small(9)).trouble().expect("KeyOwned", &["worker-d"]);
}

/// The host that leads is told to let another one lead, and then stopped. Promises last 12 s, so no call that has 10 s has waited for the
/// end of one.
// Promise: directory-move, seen to fail
#[test]
fn directory_moves_to_another_host_at_once() {
    let mut cluster = Cluster::with(&["--directory-takeover", "30s"]);
    let [mut d, mut e] = prepare(&cluster);
    let first = cluster.leader(None);
    let other = (first + 1) % 3;
    let name = cluster.nodes[other].name().to_owned();
    // A host that has asked for votes itself follows a moment later.
    let leader = cluster.nodes[first].name();
    let knows_it =
        || Some(()).filter(|()| cluster.leader_at(other) == leader).ok_or("it knows no leader, or another one");
    poll(knows_it).expect("it follows");
    let moves = |node: usize, to: &[&str]| Ctl::of(&cluster.nodes[node], &[&["directory", "move"], to].concat()).run();
    for (node, to, words) in [
        (first, vec!["d"], ["\"d\"", "\"a\", \"b\", \"c\""]),
        (first, vec!["no name"], ["no name", "node"]),
        (other, vec![], [&*name, cluster.nodes[first].name()]),
        (3, vec![&*name], ["\"d\"", cluster.nodes[first].name()]),
    ] {
        let said = moves(node, &to);
        assert!(said.code != 0 && words.iter().all(|word| said.err.contains(word)), "{to:?}: {}", said.err);
    }
    let said = moves(first, &[&name]);
    assert_eq!(
        (said.code, &*said.out),
        (0, format!("node {name} leads the directory now\n").as_bytes()),
        "{}",
        said.err
    );
    assert_eq!(cluster.leader(Some(first)), other);
    goes_on(&mut d, &mut e);
    assert!(cluster.nodes[other].terminate().success());
    d.push("later", small(6)).timeout(DEADLINE).get();
    assert_eq!(e.fetch("later").timeout(DEADLINE).get().sum, small(6).sum());
}
