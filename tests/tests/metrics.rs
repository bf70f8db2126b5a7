//! Tests of the metrics: the values are right, Prometheus accepts them, and the dashboard and the alerts query only
//! metrics that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use transfer_tests::http::{get, say};
use transfer_tests::{Carrier, Scene, Sidecar, Spec, WAIT_LIMIT, poll, tools};

const WATCHED: [&str; 4] = ["--pool-bytes", "16MiB", "--http-listen", "127.0.0.1:0"];

/// Scrapes a sidecar, and returns all samples by name and labels.
fn scrape(sidecar: &Sidecar) -> BTreeMap<String, f64> {
    let answer = get(&sidecar.http(), "/metrics");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let samples = answer.body.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
        (name.to_owned(), value.parse().unwrap_or_else(|e| panic!("{line}: {e}")))
    });
    let samples: Vec<_> = samples.collect();
    let by_name: BTreeMap<_, _> = samples.iter().cloned().collect();
    assert_eq!(by_name.len(), samples.len(), "no sample comes twice");
    by_name
}

/// Waits until a sidecar says that it is ready: it attaches to the directory after it has started, and an answer may be a
/// tenth of a second old.
#[track_caller]
fn becomes_ready(sidecar: &Sidecar) {
    let ready = poll(|| match get(&sidecar.http(), "/readyz") {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer),
    });
    ready.expect("it is ready");
}

fn promtool(arguments: &[&str], folder: &Path, input: &str) {
    let mut command = Command::new(tools::promtool());
    command.args(arguments).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool can be started");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "promtool {arguments:?}: {}", String::from_utf8_lossy(&said));
}

/// Carries out transfers of every kind, and checks the counters of both sides.
// Promise: metrics, seen to fail
#[test]
fn transfers_are_counted_on_both_sides() {
    let scene = Scene::two_with(&WATCHED);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    const LEN: u64 = 300_000;
    let before = scrape(scene.b());
    for version in 1..=5 {
        giver.push("pulled", Spec::bytes(LEN, version)).get();
        taker.fetch("pulled").exactly(version).get();
        giver.push("pushed", Spec::bytes(LEN, version)).to("taker").get();
        taker.fetch("pushed").exactly(version).get();
    }
    for _ in 0..5 {
        taker.fetch("nothing").timeout(std::time::Duration::from_millis(1)).trouble();
    }
    let fabric = Carrier::chosen().name();
    let of = |name: &str, operation: &str, peer: &str| {
        let carried = if peer.is_empty() { "local" } else { fabric };
        format!("transfer_{name}_total{{operation=\"{operation}\",fabric=\"{carried}\",peer=\"{peer}\"}}")
    };
    // A scrape may lag behind by a moment.
    let all = |sidecar, name: String| {
        let seen = poll(|| Some(scrape(sidecar)).filter(|s| s.get(&name) == Some(&5.0)).ok_or(()));
        seen.unwrap_or_else(|()| panic!("{name} is never 5"))
    };
    let (a, b) = (all(scene.a(), of("transfers", "push", "b")), all(scene.b(), of("transfers", "fetch", "")));
    #[rustfmt::skip]
    let expected = [
        (&a, "push", "", 5), (&a, "serve", "b", 5), (&a, "push", "b", 5), (&a, "fetch", "b", 0), (&a, "land", "b", 0),
        (&b, "fetch", "a", 5), (&b, "land", "a", 5), (&b, "fetch", "", 5), (&b, "push", "a", 0), (&b, "serve", "a", 0),
    ];
    for (samples, operation, peer, times) in expected {
        let (transfers, bytes) = (of("transfers", operation, peer), of("bytes", operation, peer));
        assert_eq!(samples.get(&transfers), Some(&f64::from(times)), "{transfers}");
        assert_eq!(samples.get(&bytes), Some(&(f64::from(times) * LEN as f64)), "{bytes}");
    }
    // Both sides count the bytes that a CPU copied: none over RDMA, and each byte about twice over the other fabrics.
    let copied = [(&a, "serve", "b"), (&a, "push", "b"), (&b, "fetch", "a"), (&b, "land", "a")];
    for (samples, operation, peer) in copied {
        let (copied, bytes) = (of("copied_bytes", operation, peer), of("bytes", operation, peer));
        let per_byte = samples[&copied] / samples[&bytes];
        let right = if fabric == "verbs" { per_byte == 0.0 } else { (1.9..2.2).contains(&per_byte) };
        assert!(right, "{copied}: {per_byte} for each byte");
    }
    for (samples, operation, peer) in [(&a, "push", "b"), (&a, "serve", "b"), (&b, "fetch", "a")] {
        let labels = format!("{{operation=\"{operation}\",fabric=\"{fabric}\",peer=\"{peer}\"}}");
        assert_eq!(samples[&format!("transfer_flight_seconds_count{labels}")], 5.0, "{labels}");
        assert!(samples[&format!("transfer_flight_seconds_sum{labels}")] > 0.0, "{labels}");
    }
    assert_eq!(all(scene.b(), "transfer_failures_total{code=\"UnknownKey\"}".into())["transfer_operations"], 0.0);
    assert_eq!(
        (a["transfer_link_up{peer=\"b\",fabric=\"tcp\"}".replace("tcp", fabric).as_str()], a["transfer_links"]),
        (1.0, 1.0)
    );
    assert!(b["transfer_ring_submissions_total"] >= before["transfer_ring_submissions_total"] + 11.0);
    // Counters only grow.
    for (name, value) in scrape(scene.b()) {
        if name.split('{').next().is_some_and(|n| n.ends_with("_total") || n.ends_with("_count")) {
            assert!(b.get(&name).is_none_or(|earlier| value >= *earlier), "{name} has shrunk");
        }
    }
    drop((giver, taker));
    scene.end();
}

/// Checks the metrics, the alert rules and their tests with `promtool`. Every metric that an alert or the dashboard
/// names is in a real scrape.
// Promise: metrics, seen to fail
#[test]
fn prometheus_accepts_the_metrics_and_rules() {
    let scene = Scene::two_with(&WATCHED);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    giver.push("k", Spec::bytes(1000, 1)).get();
    taker.fetch("k").get();
    let packaging = tools::of_repository("packaging");
    let mut names = BTreeSet::new();
    for (sidecar, operation) in [(scene.a(), "serve"), (scene.b(), "fetch")] {
        // A scrape may be older than the transfer.
        let counted = format!("transfer_flight_seconds_count{{operation=\"{operation}\"");
        let body = poll(|| match get(&sidecar.http(), "/metrics").body {
            body if body.contains(&counted) => Ok(body),
            body => Err(body),
        });
        let body = body.unwrap_or_else(|body| panic!("no {counted} in {body}"));
        promtool(&["check", "metrics"], &packaging, &body);
        names.extend(
            body.lines().filter(|l| !l.starts_with('#')).filter_map(|l| Some(l.split(['{', ' ']).next()?.to_owned())),
        );
    }
    promtool(&["check", "rules", "alerts.yml"], &packaging.join("prometheus"), "");
    promtool(&["test", "rules", "alerts_test.yml"], &packaging.join("prometheus"), "");
    let read = |path: &str| std::fs::read_to_string(packaging.join(path)).expect("the file is there");
    let (rules, dashboard) = (read("prometheus/alerts.yml"), read("grafana/transfer.json"));
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("the dashboard is JSON");
    let mut asked =
        rules.lines().filter_map(|l| l.trim().strip_prefix("expr: ")).map(str::to_owned).collect::<Vec<_>>();
    let alerts = asked.len();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        asked.extend(targets.iter().filter_map(|t| Some(t["expr"].as_str()?.to_owned())));
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    asked.extend(variables.iter().filter_map(|v| Some(v["definition"].as_str()?.to_owned())));
    assert!(alerts >= 10 && asked.len() > alerts + 20, "{alerts} alerts, {} in all", asked.len());
    for expression in &asked {
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let mut unknown = words.filter(|word| word.starts_with("transfer_") && !names.contains(*word));
        assert_eq!(unknown.next(), None, "no such metric, in {expression}");
    }
    drop((giver, taker));
    scene.end();
}

/// A worker's name and a key with quotes and line breaks do not appear in the metrics. The status shows the name as it
/// is.
#[test]
fn strange_name_adds_no_metric() {
    let scene = Scene::two_with(&WATCHED);
    let name = "\"}\n\\ 1\nevil_total 7";
    let mut strange = scene.a().worker(name);
    strange.push("k\"}\n", Spec::bytes(100, 1)).get();
    let body = get(&scene.a().http(), "/metrics").body;
    assert!(!body.contains("evil"), "workers and keys are no labels");
    let status: serde_json::Value =
        serde_json::from_str(&get(&scene.a().http(), "/api/status").body).expect("the status is JSON");
    let sessions = status["sessions"].as_array().expect("a list");
    assert!(sessions.iter().any(|s| s["worker"] == name), "{sessions:?}");
    drop(strange);
    scene.end();
}

/// A client that sends nothing, half of a request or nonsense does not keep other clients from scraping.
// Promise: http-listen, seen to fail
#[test]
fn bad_clients_do_not_block_scrapes() {
    let scene = Scene::with(&[&WATCHED]);
    let address = scene.a().http();
    becomes_ready(scene.a());
    for (request, status) in [
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 405),
        ("DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        ("GET /api/history?since=yesterday HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        ("\0\0\0\0\r\n\r\n", 400),
        ("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
    ] {
        let answer = say(&address, request);
        assert_eq!(answer.status, status, "{request:?}: {}", answer.body);
    }
    let endless = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert!((400..500).contains(&say(&address, &endless).status));
    // More connections than the server has room for. It closes those that were silent longest to admit new ones.
    let silent: Vec<_> = (0..100)
        .map(|n| {
            let mut stream = TcpStream::connect(&address).expect("somebody listens");
            if n % 2 == 0 {
                stream.write_all(b"GET /metrics HTTP/1.1\r\n").expect("it is taken");
            }
            stream
        })
        .collect();
    assert_eq!(get(&address, "/healthz").body, "ok\n");
    assert!(scrape(scene.a())["transfer_directory_attached"] > 0.0);
    let mut one = &silent[0];
    one.set_read_timeout(Some(WAIT_LIMIT)).expect("a socket has a timeout");
    // The read ends with the end of the stream, or with the report of a time-out.
    let _ = one.read_to_end(&mut Vec::new());
    drop(silent);
    scene.end();
}

/// A sidecar that has lost its directory is not ready, but still healthy.
#[test]
fn readiness_follows_the_directory() {
    let mut scene = Scene::two_with(&WATCHED);
    becomes_ready(scene.b());
    scene.nodes[0].kill();
    let lost = poll(|| match get(&scene.b().http(), "/readyz") {
        answer if answer.status == 503 => Ok(answer.body),
        answer => Err(answer),
    });
    let why = lost.expect("it is noticed");
    assert!(why.contains("not attached to the directory"), "{why}");
    assert_eq!(get(&scene.b().http(), "/healthz").status, 200);
    let detached = poll(|| match scrape(scene.b())["transfer_directory_attached"] {
        0.0 => Ok(()),
        other => Err(other),
    });
    assert_eq!(detached, Ok(()));
}

/// A sidecar whose log filter enables `transfer_span` writes one line for each transfer, with every field of a span. A
/// sidecar without this filter writes none.
// Promise: transfer-records, seen to fail
#[test]
fn transfers_leave_span_records_if_enabled() {
    let told = ["--pool-bytes", "16MiB", "--http-listen", "127.0.0.1:0", "--log-format", "json"];
    let wanted = [&told[..], &["--listen", "127.0.0.1:0", "--log", "info,transfer_span=debug"]].concat();
    let unwanted = [&told[..], &["--listen", "127.0.0.1:0"]].concat();
    let scene = Scene::with(&[&unwanted, &wanted]);
    let (mut giver, mut taker) = (scene.a().worker("giver"), scene.b().worker("taker"));
    for version in 1..=50 {
        giver.push("w", Spec::bytes(1000, version)).get();
        taker.fetch("w").exactly(version).get();
    }
    taker.push("own", Spec::bytes(500, 1)).get();
    taker.fetch("own").get();
    taker.push("gift", Spec::bytes(700, 1)).to("giver").get();
    taker.fetch("nothing").timeout(std::time::Duration::from_millis(1)).trouble();
    let spans = |sidecar: &Sidecar| -> Vec<serde_json::Value> {
        let log = sidecar.log();
        let lines = log.lines().filter(|l| l.ends_with('}')).map(serde_json::from_str::<serde_json::Value>);
        lines.map(|l| l.expect("a line is JSON")).filter(|l| l["target"] == "transfer_span").collect()
    };
    let all = poll(|| Some(spans(scene.b())).filter(|s| s.len() == 54).ok_or_else(|| spans(scene.b()).len()));
    let all = all.expect("one for each transfer, whatever the limit of lines");
    let fabric = Carrier::chosen().name();
    let of = |key: &str, operation: &str| {
        all.iter().filter(|s| s["key"] == key && s["operation"] == operation).cloned().collect::<Vec<_>>()
    };
    let fetched = of("w", "fetch");
    assert_eq!(fetched.len(), 50);
    for (span, version) in fetched.iter().zip(1..) {
        let named =
            (&span["version"], &span["worker"], &span["peer"], &span["fabric"], &span["bytes"], &span["outcome"]);
        assert_eq!(
            named,
            (&version.into(), &"taker".into(), &"a".into(), &fabric.into(), &1000.into(), &"ok".into()),
            "{span}"
        );
        assert!(span["took_us"].as_f64() >= span["in_flight_us"].as_f64(), "{span}");
    }
    assert_eq!(
        (of("own", "fetch")[0]["fabric"].as_str(), of("own", "push")[0]["copied"].as_u64()),
        (Some("local"), Some(0))
    );
    assert_eq!(
        (of("gift", "push")[0]["peer"].as_str(), of("gift", "push")[0]["version"].as_u64()),
        (Some("a"), Some(1))
    );
    assert_eq!(of("nothing", "fetch")[0]["outcome"], "UnknownKey");
    assert_eq!(spans(scene.a()).len(), 0, "nobody asked there");
    assert_eq!(scrape(scene.b())["transfer_spans_dropped_total"], 0.0);
    drop((giver, taker));
    scene.end();
}
