//! A real etcd says which host leads: it and the hosts are killed and stopped.

use super::chaos::chaos;
use super::{Cluster, DEADLINE, goes_on, prepare, small, stop_the_host_that_leads};
use rand::Rng;
use std::time::{Duration, Instant};
use transfer_tests::ctl::Ctl;
use transfer_tests::{Authority, Etcd, Sidecar, http, poll};

/// The metric that says whether etcd answers a node.
fn answers(node: &Sidecar) -> bool {
    http::get(&node.http(), "/metrics").body.lines().any(|line| line == "transfer_directory_coordinator_answers 1")
}

/// What `transferctl doctor` says of the directory.
fn doctor(node: &Sidecar) -> String {
    let said = Ctl::of(node, &["doctor"]).run();
    let text = String::from_utf8_lossy(&said.out).into_owned();
    text.lines().filter(|line| line.contains("directory") || line.contains("etcd")).collect::<Vec<_>>().join("\n")
}

/// The host that leads is killed, and then an orderly end and a move.
// Promise: directory-by-etcd
#[test]
fn another_host_leads_as_etcd_says_when_one_is_killed_moves_or_ends() {
    let etcd = Etcd::start(1, None);
    let mut cluster = Cluster::by_etcd(&etcd, 2, &[]);
    let [mut d, mut e] = prepare(&cluster);
    let first = cluster.leader(None);
    let term = cluster.shown(first, first);
    cluster.nodes[first].kill();
    goes_on(&mut d, &mut e);
    let second = cluster.leader(Some(first));
    // The dead host's lease has ended before.
    let shown = String::from_utf8_lossy(&Ctl::of(&cluster.nodes[second], &["directory"]).run().out).into_owned();
    assert!(shown.contains("as etcd:http://127.0.0.1:") && !shown.contains("NOT"), "{shown}");
    cluster.nodes[first].restart();
    cluster.all_attached();
    let knows_all = |s: &transfer_tests::status::Seen| s.directory.as_ref().is_some_and(|d| d.hosts.len() == 3);
    cluster.nodes[second].until("it knows all hosts again", knows_all);
    assert_eq!(cluster.leader(None), second, "a host that comes back stands by");
    assert!(cluster.shown(second, second) > term, "the term rises when another host leads");
    let third = 3 - first - second;
    let name = cluster.nodes[third].name().to_owned();
    let said = Ctl::of(&cluster.nodes[second], &["directory", "move", "d"]).run();
    assert!(said.code != 0 && said.err.contains("\"a\", \"b\", \"c\""), "{}", said.err);
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
    let hosts = etcd.ctl(&["get", "--prefix", "--keys-only", "/cluster/hosts/"]);
    assert!(!hosts.contains(&format!("/cluster/hosts/{name}")), "a host that has ended leaves no key: {hosts}");
    assert!(!etcd.ctl(&["get", "--prefix", "/cluster/"]).contains("moved"), "no key of a tensor is in etcd");
}

// Promise: one-leading-host
#[test]
fn host_that_was_stopped_grants_nothing_while_etcd_has_named_another() {
    let etcd = Etcd::start(1, None);
    stop_the_host_that_leads(&Cluster::by_etcd(&etcd, 2, &[]));
}

/// The member of etcd that leads is stopped, and goes on; then one is killed, and comes back.
// Promise: directory-by-etcd
#[test]
fn members_of_etcd_are_stopped_and_killed_and_no_call_fails() {
    let mut etcd = Etcd::start(3, None);
    let cluster = Cluster::by_etcd(&etcd, 2, &[]);
    let [mut d, mut e] = prepare(&cluster);
    let stopped = etcd.leader();
    etcd.freeze(stopped);
    goes_on(&mut d, &mut e);
    cluster.all_attached();
    etcd.go_on(stopped);
    let killed = etcd.leader();
    etcd.kill(killed);
    d.push("killed", small(7)).timeout(DEADLINE).get();
    assert_eq!(e.fetch("killed").timeout(DEADLINE).get().sum, small(7).sum());
    cluster.all_attached();
    etcd.restart(killed);
    e.push("back", small(8)).timeout(DEADLINE).get();
    assert_eq!(d.fetch("back").timeout(DEADLINE).get().sum, small(8).sum());
    e.push("killed", small(9)).timeout(DEADLINE).trouble().expect("KeyOwned", &["worker-d"]);
}

/// All members of etcd are stopped. Nodes go on alone, say so, and meet again.
// Promise: directory-by-etcd
#[test]
fn nodes_go_on_while_no_member_of_etcd_answers() {
    let etcd = Etcd::start(1, None);
    let cluster = Cluster::by_etcd(&etcd, 2, &["--http-listen", "127.0.0.1:0"]);
    let [mut d, mut e] = prepare(&cluster);
    assert!(cluster.nodes.iter().all(|node| poll(|| answers(node).then_some(()).ok_or(())).is_ok()));
    etcd.freeze(0);
    // No host leads beyond its promise.
    cluster.nodes[4].until("it is cut off", |s| s.directory.as_ref().is_some_and(|d| !d.attached));
    assert_eq!(e.fetch("old").timeout(DEADLINE).get().sum, small(1).sum());
    d.push("alone", small(2)).timeout(2 * DEADLINE).get();
    for node in &cluster.nodes {
        poll(|| (!answers(node)).then_some(()).ok_or(())).expect("a metric says that etcd is away");
        let text = doctor(node);
        assert!(text.contains("does not answer") && text.contains("etcd:http://"), "{text}");
        let reasons = node.status().reasons.join("\n");
        assert!(reasons.contains("does not answer"), "{reasons}");
    }
    etcd.go_on(0);
    cluster.all_attached();
    assert_eq!(e.fetch("alone").timeout(DEADLINE).get().sum, small(2).sum());
    e.push("old", small(9)).timeout(DEADLINE).trouble().expect("KeyOwned", &["worker-d"]);
    for node in &cluster.nodes {
        poll(|| answers(node).then_some(()).ok_or(())).expect("a metric says that etcd is back");
    }
}

/// Another program has written under the prefix.
// Promise: directory-by-etcd
#[test]
fn keys_of_another_program_are_named_and_do_no_harm() {
    let etcd = Etcd::start(1, None);
    for key in ["leader", "hosts/x", "hosts/a/b", "nodes/not a name", "nodes/", "newest"] {
        etcd.ctl(&["put", &format!("/cluster/{key}"), "\u{1b}[31mgarbage"]);
    }
    let folder = tempfile::Builder::new().prefix("transfer-test-").tempdir().expect("a folder");
    let directory = etcd.directory("/cluster");
    let node = Sidecar::start(
        folder.path(),
        "a",
        &["--pool-bytes", "4MiB", "--listen", "127.0.0.1:0", "--directory", &directory, "--directory-host"],
    );
    node.until("it names the value", |s| {
        s.directory.as_ref().is_some_and(|d| d.why_not.contains("garbage") && d.why_not.contains("prefix"))
    });
    assert!(!node.status().directory.clone().expect("its directory").why_not.contains('\u{1b}'));
    // A host's record, which no lease ends.
    etcd.ctl(&["put", "/cluster/leader", "x 127.0.0.1:1 5 leads"]);
    node.until("it names the value", |s| {
        s.directory.as_ref().is_some_and(|d| d.why_not.contains("\"x 127.0.0.1:1 5 leads without a lease\""))
    });
    etcd.ctl(&["del", "/cluster/leader"]);
    node.until("it leads", |s| s.directory.as_ref().is_some_and(|d| d.attached && d.hosted_here));
    let hosts = node.status().directory.clone().expect("its directory").hosts;
    assert_eq!(hosts.iter().map(|host| &*host.node).collect::<Vec<_>>(), ["a"]);
    let mut worker = node.worker("w");
    worker.push("k", small(1)).get();
    // The key is deleted while it leads: it leads again.
    let deleted_at = Instant::now();
    etcd.ctl(&["del", "/cluster/leader"]);
    node.until("it attaches again", |s| s.directory.as_ref().is_some_and(|d| d.attached && d.attachments > 1));
    worker.push("new", small(2)).timeout(DEADLINE).get();
    // For all that it knows another host may have had the key.
    assert!(deleted_at.elapsed() >= Duration::from_secs(2), "nothing new for a whole lease");
}

/// etcd asks for certificates, and for a user with a password.
// Promise: directory-by-etcd
#[test]
fn etcd_is_asked_over_tls_and_with_a_password() {
    let folder = tempfile::Builder::new().prefix("transfer-test-").tempdir().expect("a folder");
    let authority = Authority::new(folder.path(), "ca");
    let identity = authority.identity(&["127.0.0.1"]);
    let mut etcd = Etcd::start(1, Some(identity.clone()));
    for words in [
        vec!["role", "add", "root"],
        vec!["user", "add", "root:secret"],
        vec!["user", "grant-role", "root", "root"],
        vec!["role", "add", "transfer"],
        vec!["role", "grant-permission", "transfer", "--prefix=true", "readwrite", "/cluster/"],
        vec!["user", "add", "transfer:right"],
        vec!["user", "grant-role", "transfer", "transfer"],
        vec!["auth", "enable"],
    ] {
        etcd.ctl(&words);
    }
    let (directory, password) = (etcd.directory("/cluster"), folder.path().join("password"));
    let wrong = format!("{:032x}", rand::rng().random::<u128>());
    std::fs::write(&password, format!("{wrong}\n")).expect("a file");
    let [text_of_cert, text_of_key, text_of_ca] =
        [&identity.cert, &identity.key, &identity.ca].map(|path| path.to_str().expect("text").to_owned());
    let password_file = password.to_str().expect("text");
    let common = ["--pool-bytes", "4MiB", "--listen", "127.0.0.1:0", "--directory", &directory, "--directory-host"];
    let tls = ["--etcd-ca", &text_of_ca, "--etcd-cert", &text_of_cert, "--etcd-key", &text_of_key];
    let user = ["--etcd-user", "transfer", "--etcd-password-file", password_file];
    let node = Sidecar::start(folder.path(), "a", &[&common[..], &tls, &user].concat());
    let says = |words: &'static [&'static str]| {
        move |s: &transfer_tests::status::Seen| {
            s.directory.as_ref().is_some_and(|d| words.iter().all(|word| d.coordinator_why_not.contains(word)))
        }
    };
    node.until("it says that the password is wrong", says(&["\"transfer\"", "log in", "password"]));
    let said = Ctl::of(&node, &["doctor"]).run();
    let command = std::fs::read(format!("/proc/{}/cmdline", node.process_id())).expect("its command line");
    let texts = [
        said.out,
        said.err.into_bytes(),
        command,
        node.log().into_bytes(),
        format!("{:?}", node.status()).into_bytes(),
    ];
    for text in texts {
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(!text.is_empty() && !text.contains(&wrong), "a password is shown: {text}");
    }
    std::fs::write(&password, "right\n").expect("a file");
    node.until("it leads", |s| s.directory.as_ref().is_some_and(|d| d.attached && d.hosted_here));
    // A member that is started again has forgotten whom it has let in.
    etcd.kill(0);
    node.until("etcd does not answer", |s| s.directory.as_ref().is_some_and(|d| !d.coordinator_why_not.is_empty()));
    etcd.restart(0);
    node.until("it leads again", |s| {
        s.directory.as_ref().is_some_and(|d| d.attached && d.coordinator_why_not.is_empty())
    });
    // A node without a certificate, and one that expects another authority.
    let other = Authority::new(folder.path(), "other");
    let other = other.identity(&["nobody"]).ca;
    // And one that calls etcd by a name which its certificate has not.
    let elsewhere = directory.replace("127.0.0.1", "localhost");
    for (name, directory, tls) in [
        ("b", &directory, vec!["--etcd-ca", &text_of_ca]),
        ("c", &directory, vec!["--etcd-ca", other.to_str().expect("text")]),
        ("d", &elsewhere, tls.to_vec()),
    ] {
        let common = ["--pool-bytes", "4MiB", "--listen", "127.0.0.1:0", "--directory", directory, "--directory-host"];
        let node = Sidecar::start(folder.path(), name, &[&common[..], &tls, &user].concat());
        node.until("it says why not", |s| {
            s.directory
                .as_ref()
                .is_some_and(|d| d.coordinator_why_not.to_lowercase().contains("certificate") && !d.attached)
        });
    }
}

/// The hosts as in the test without etcd; and before each round a member of etcd is stopped or killed, and comes back.
// Promise: directory-by-etcd
#[test]
fn nothing_fails_while_hosts_nodes_and_members_of_etcd_are_killed_and_stopped() {
    let etcd = std::cell::RefCell::new(Etcd::start(3, None));
    let down = std::cell::Cell::new(None);
    chaos(
        |others| Cluster::by_etcd(&etcd.borrow(), others, &[]),
        |random| {
            match down.take() {
                Some((member, true)) => etcd.borrow_mut().restart(member),
                Some((member, false)) => etcd.borrow().go_on(member),
                None => {}
            }
            etcd.borrow().until_it_answers();
            let (member, kills) = (random.random_range(0..3), random.random_bool(0.5));
            println!("member {member} of etcd is {}", if kills { "killed" } else { "stopped" });
            match kills {
                true => etcd.borrow_mut().kill(member),
                false => etcd.borrow().freeze(member),
            }
            down.set(Some((member, kills)));
        },
    );
}
