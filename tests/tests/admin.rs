//! What `transferctl` shows an operator of real sidecars, and what it changes in them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};
use transfer_proto::v1;
use transfer_tests::{Scene, Sidecar, Spec, poll, programs};

const CALL_TIMEOUT: Duration = Duration::from_secs(30);

fn transferctl(sidecar: &Sidecar, arguments: &[&str]) -> Command {
    let mut command = Command::new(programs::transferctl());
    command.args(arguments).arg("--admin").arg(sidecar.admin_socket());
    command
}

/// Returns the output of `transferctl`, stdout before stderr. The exit code has to be `code`.
#[track_caller]
fn says(sidecar: &Sidecar, code: i32, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } =
        transferctl(sidecar, arguments).output().expect("transferctl can be started");
    let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(code), "{arguments:?}: {said}");
    said
}

#[track_caller]
fn shows(sidecar: &Sidecar, arguments: &[&str], words: &[&str]) {
    let said = says(sidecar, 0, arguments);
    for word in words {
        assert!(said.contains(word), "{arguments:?} says nothing of {word:?}: {said}");
    }
}

/// Returns the objects that `transferctl` prints with `--json`, one per line.
#[track_caller]
fn objects(sidecar: &Sidecar, arguments: &[&str]) -> Vec<serde_json::Value> {
    let said = says(sidecar, 0, &[arguments, &["--json"]].concat());
    said.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
}

#[test]
fn each_list_is_shown_to_people_and_to_programs() {
    let scene = Scene::two();
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    let before = UNIX_EPOCH.elapsed().expect("it is later");
    giver.push("layer/w", Spec::bytes(4096, 1)).version(7).get();
    giver.push("other", Spec::bytes(64, 2)).get();
    let after = UNIX_EPOCH.elapsed().expect("it is later");
    taker.fetch("layer/w").hold("w").get();
    let waiting = taker.fetch("layer/w").at_least(9).start();
    scene.a().until("it waits there", |s| s.links.iter().any(|l| l.serves == 1));
    let (a, b) = (scene.a(), scene.b());

    shows(
        a,
        &["status"],
        &["node       a", "state      serving", "workers    1 connected", "links      1 up; 1 request of peers"],
    );
    shows(a, &["sessions"], &["giver", "16 MiB", "1 worker"]);
    shows(a, &["peers"], &["b", "up", "1 peer"]);
    shows(a, &["links"], &["b", "4 KiB", "1 link"]);
    shows(a, &["tensors", "--prefix", "layer"], &["layer/w", "giver", "u8[4096]", "1 tensor, 4 KiB"]);
    shows(a, &["tensors", "--limit", "1"], &["1 tensor,", "there are more"]);
    shows(a, &["segments", "--kind", "arena"], &["arena", "giver", "1 segment, 16 MiB"]);
    shows(b, &["transfers"], &["fetch", "layer/w", "taker", "node \"a\" to send", "1 transfer in flight"]);
    shows(b, &["transfers", "--older-than", "1h"], &["0 transfers in flight"]);
    shows(b, &["quarantine"], &["0 landing slots in quarantine"]);

    let links = objects(b, &["links"]);
    assert_eq!((&links[0]["peer"], &links[0]["bytes_in"]), (&"a".into(), &4096.into()), "{links:?}");
    let mut keys: Vec<_> = objects(a, &["tensors", "--page-size", "1"]).iter().map(|t| t["key"].to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["\"layer/w\"", "\"other\""]);
    // When a tensor was published is known to a tenth of a second, rounded down.
    let tenth = Duration::from_millis(100);
    for row in a.admin().tensors("").expect("it answers") {
        let published = Duration::from_nanos(row.published_at_unix_ns);
        assert!(published + 2 * tenth > before && published <= after, "{row:?}, between {before:?} and {after:?}");
        let told = &objects(a, &["tensors", "--prefix", &row.key])[0]["published_at"];
        let (day, time) = told.as_str().and_then(|told| told.split_once('T')).expect("a date and a time");
        assert!(day.starts_with("20") && time.ends_with('Z'), "{told}");
        shows(a, &["tensors", "--prefix", &row.key], &["published at", day]);
    }
    let kinds: Vec<_> = objects(b, &["segments"]).iter().map(|s| s["kind"].clone()).collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    assert_eq!(objects(b, &["transfers"])[0]["peer"], "a");
    assert_eq!(objects(a, &["sessions"])[0]["worker"], "giver");
    assert_eq!(objects(a, &["peers"])[0]["state"], "up");
    assert_eq!(objects(b, &["quarantine"]), [serde_json::Value::Null; 0]);

    let looks = says(b, 0, &["watch", "--every", "1ms", "--times", "3", "links"]);
    assert_eq!(looks.matches("1 link\n").count(), 3, "{looks}");

    shows(a, &["delete", "other"], &["deleted \"other\" of worker giver: 1 version, 64 B"]);
    let gone = says(a, 6, &["delete", "other"]);
    assert!(gone.contains("\"other\" is not published at this sidecar"), "{gone}");
    shows(a, &["log-level"], &["info"]);
    shows(a, &["log-level", "debug"], &["debug (before: info)"]);
    let loud = says(a, 2, &["log-level", "loud"]);
    assert!(loud.contains("\"loud\"") && loud.contains("error, warn, info"), "{loud}");
    shows(a, &["evict"], &["idle landing slots of 0 keys"]);
    shows(a, &["events", "--after", "0", "--limit", "3"], &["session opened", "first"]);
    let events = objects(a, &["events", "--after", "0", "--limit", "5"]);
    let numbers: Vec<_> = events.iter().map(|e| e["sequence"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);

    giver.push("layer/w", Spec::bytes(64, 3)).version(9).get();
    waiting.get();
    drop((giver, taker));
    scene.end();
}

#[test]
fn a_draining_sidecar_finishes_what_runs_takes_nothing_new_and_ends_with_0() {
    let mut scene = Scene::two();
    let (mut there, mut here) = (scene.a().worker("there"), scene.b().worker("here"));
    here.push("own", Spec::bytes(64, 1)).get();
    // This barrier runs until the other worker arrives. It lives at node b, which is being drained.
    let meeting = here.meet("end", 2, 1, CALL_TIMEOUT);
    scene.b().until("one is there", |s| s.sessions.iter().any(|s| s.operations == 1));
    let (far, near) = (there.fetch("own").at_least(9).start(), here.fetch("own").at_least(9).start());
    scene
        .b()
        .until("both wait", |s| s.links.iter().any(|l| l.serves == 1) && s.sessions.iter().any(|s| s.operations == 2));

    let mut drain = transferctl(scene.b(), &["drain", "--json"]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut progress = BufReader::new(drain.stdout.take().expect("a pipe")).lines();
    let first = progress.next().expect("a line").expect("it can be read");
    assert!(first.contains("\"step\":\"finishing\""), "{first}");
    // Both fetches wait for a version of a key of node b. Node b publishes nothing new, so both fail.
    far.trouble().expect("Draining", &["\"b\" is draining"]);
    near.trouble().expect("Draining", &["\"b\" is draining"]);
    // Node b takes no new operation, neither from its own worker nor from the other node's.
    here.push("new", Spec::bytes(64, 2)).trouble().expect("Draining", &["takes nothing new"]);
    there.fetch("own").trouble().expect("Draining", &["\"b\" is draining"]);
    there.push("for/here", Spec::bytes(64, 3)).to("here").trouble().expect("Draining", &["\"b\" is draining"]);
    let socket = scene.b().socket();
    let socket = socket.to_str().expect("a path");
    let fetch = ["fetch", "--socket", socket, "own", "-"];
    let turned_away = Command::new(programs::transferctl()).args(fetch).output().expect("transferctl can be started");
    let words = String::from_utf8_lossy(&turned_away.stderr);
    assert!(!turned_away.status.success() && words.contains("draining"), "{words}");
    let status = scene.b().status();
    assert_eq!((status.state(), status.reasons.len()), (v1::State::Draining, 1), "{:?}", status.reasons);
    shows(scene.b(), &["status"], &["state      draining", "1 operation of its workers"]);

    assert_eq!(there.meet("end", 2, 1, CALL_TIMEOUT).get().round, 0);
    assert_eq!(meeting.get().round, 0);
    let last = progress.last().expect("a line").expect("it can be read");
    assert!(last.contains("\"step\":\"finished\""), "{last}");
    assert_eq!(drain.wait().expect("it ends").code(), Some(0));
    assert_eq!(scene.nodes[1].wait().code(), Some(0));
    there.push("on", Spec::bytes(64, 4)).get();
}

#[test]
fn a_drain_ends_at_its_deadline_whatever_is_left() {
    let mut scene = Scene::one();
    let mut worker = scene.a().worker("worker");
    let meeting = worker.meet("never", 2, 1, CALL_TIMEOUT);
    scene.a().until("it waits", |s| s.sessions.iter().any(|s| s.operations == 1));
    let said = says(scene.a(), 1, &["drain", "--deadline", "100ms"]);
    assert!(said.contains("overdue") && said.contains("1 operation of its workers"), "{said}");
    assert_eq!(scene.nodes[0].wait().code(), Some(0));
    drop(meeting);
}

#[test]
fn a_sidecar_without_its_directory_says_that_it_is_degraded() {
    let mut scene = Scene::two();
    let reason = |sidecar: &Sidecar| sidecar.status().reasons.join("\n");
    scene.b().until("it has attached to the directory", |s| s.state() == v1::State::Serving);
    assert_eq!(reason(scene.b()), "");
    scene.nodes[0].kill();
    scene.b().until("it is degraded", |s| s.state() == v1::State::Degraded);
    let why = reason(scene.b());
    assert!(why.contains("the directory at http://") && why.contains("out of reach"), "{why}");
    shows(scene.b(), &["status"], &["state      degraded", "out of reach"]);
    scene.nodes[0].restart();
    scene.b().until("it is well again", |s| s.state() == v1::State::Serving);
    let told = poll(|| {
        let said = says(scene.b(), 0, &["events", "--after", "0", "--limit", "5"]);
        let kinds = ["directory lost", "directory attached"];
        if kinds.iter().all(|kind| said.contains(kind)) { Ok(()) } else { Err(said) }
    });
    told.unwrap_or_else(|said| panic!("{said}"));
}

/// An unknown method gets the same answer at the admin socket and over TCP, where no administration is allowed.
#[test]
fn unknown_method_is_unimplemented_on_the_admin_socket_and_over_tcp() {
    let scene = Scene::two();
    let unheard = |channel| async move {
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.expect("it is connected");
        let path = tonic::codegen::http::uri::PathAndQuery::from_static("/transfer.v1.Admin/Unheard");
        let codec = tonic_prost::ProstCodec::<v1::StatusRequest, v1::StatusResponse>::default();
        grpc.unary(tonic::Request::new(v1::StatusRequest {}), path, codec).await.expect_err("nobody serves it")
    };
    let admin = scene.a().admin();
    let url = format!("http://{}", scene.a().address());
    let over_tcp = admin.call(|_| async {
        let endpoint = tonic::transport::Endpoint::from_shared(url).expect("an address");
        unheard(endpoint.connect().await.expect("it listens")).await
    });
    for status in [admin.call(unheard), over_tcp] {
        assert_eq!(status.code(), tonic::Code::Unimplemented, "{status:?}");
        assert!(status.message().contains("/transfer.v1.Admin/Unheard"), "{status:?}");
    }
    let peers = v1::PeersRequest { page_token: "garbage".into(), ..Default::default() };
    let refused = admin.call(|channel| async { v1::admin_client::AdminClient::new(channel).peers(peers).await });
    let refused = refused.expect_err("no page has that token");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused:?}");
    let (node, address) = ("old".into(), "127.0.0.1:1".into());
    let hello = v1::Hello { node, address, incarnation: 1, version: 0, ..v1::Hello::default() };
    let item = v1::NodeItem { item: Some(v1::node_item::Item::Hello(hello)) };
    let update = tokio_stream::once(v1::NodeUpdate { items: vec![item] });
    let refused =
        admin.call(|channel| async { v1::directory_client::DirectoryClient::new(channel).attach(update).await });
    let refused = refused.expect_err("it speaks another version");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("node \"old\" version 0"), "{refused:?}");
    scene.end();
}

/// A push without a receiver is counted as published, although it finishes no transfer.
#[test]
fn status_counts_pushes_that_stay_on_their_node() {
    let scene = Scene::one();
    let mut worker = scene.a().worker("worker");
    for seed in 0..3 {
        worker.push("w", Spec::bytes(1000, seed)).get();
    }
    shows(scene.a(), &["status"], &["published here          3"]);
    let status: serde_json::Value = serde_json::from_str(&says(scene.a(), 0, &["status", "--json"])).expect("JSON");
    assert_eq!(
        (&status["counters"]["published"]["transfers"], &status["counters"]["finished"]),
        (&3.into(), &[(); 0][..].into())
    );
    drop(worker);
    scene.end();
}
