//! One trace from worker to worker: the trace context of a push travels with its tensor, and the spans of both
//! sidecars for each transfer reach a collector.

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use std::net::TcpListener;
use std::time::Duration;
use transfer_client::{BlockingClient, DType, TraceContext};
use transfer_tests::http::get;
use transfer_tests::{Carrier, Collector, Scene, SeenSpan, Sidecar, poll};

const LEN: u64 = 1000;
const PRODUCER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const CONSUMER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-01";
const UNSAMPLED: &str = "00-5bf92f3577b34da6a3ce929d0e0e4736-2222222222222222-00";

fn context(text: &str) -> TraceContext {
    text.parse().expect("a traceparent")
}

fn worker(sidecar: &Sidecar, name: &str) -> BlockingClient {
    let connect = BlockingClient::connect(sidecar.socket()).name(name).arena_bytes(4 << 20);
    connect.call().expect("a session")
}

fn scene(collector: &str, more: &[&str]) -> Scene {
    let watched = ["--pool-bytes", "16MiB", "--http-listen", "127.0.0.1:0", "--otlp-endpoint", collector];
    Scene::two_with(&[&watched[..], more].concat())
}

/// Returns how many spans of a sidecar had this outcome.
fn counted(sidecar: &Sidecar, outcome: &str) -> u64 {
    let name = format!("transfer_otlp_spans_total{{outcome=\"{outcome}\"}} ");
    let answer = get(&sidecar.http(), "/metrics").body;
    let line = answer.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("no {name} in {answer}")).parse().expect("a number")
}

fn one<'a>(spans: &'a [SeenSpan], node: &str, name: &str) -> &'a SeenSpan {
    let found: Vec<_> = spans.iter().filter(|s| s.node == node && s.name == name).collect();
    assert_eq!(found.len(), 1, "{name} at {node}: {spans:#?}");
    found[0]
}

// Promise: traces, seen to fail
#[test]
fn spans_of_both_sidecars_join_the_workers_trace() {
    let collector = Collector::start();
    let scene = scene(&collector.endpoint(), &["--log", "info,transfer_span=debug"]);
    let (giver, taker) = (worker(scene.a(), "giver"), worker(scene.b(), "taker"));
    let (producer, consumer) = (context(PRODUCER), context(CONSUMER));

    // Fetches from the other node, with and without a trace context, and a fetch on the own node.
    giver.push_bytes("k", DType::U8, [LEN], &[7; LEN as usize]).trace(producer).call().expect("a push");
    let there = taker.fetch("k").trace(consumer).call().expect("a fetch");
    assert_eq!(there.report().origin, Some(producer));
    let again = taker.fetch("k").call().expect("a fetch");
    let here = giver.fetch("k").call().expect("a fetch");
    assert_eq!((again.report().origin, here.report().origin), (Some(producer), Some(producer)));
    let spans = collector.of_key("k", 5);
    assert!(spans.iter().all(|s| s.trace == PRODUCER[3..35] && s.failed.is_none()), "{spans:#?}");
    assert!(spans.iter().all(|s| s.service == "transferd" && s.start_ns <= s.end_ns), "{spans:#?}");
    let (p, c) = (PRODUCER[36..52].to_owned(), CONSUMER[36..52].to_owned());
    let (push, serve) = (one(&spans, "a", "push"), one(&spans, "a", "serve"));
    assert_eq!((&push.parent, push.kind, &push.links[..]), (&p, SpanKind::Producer, &[][..]));
    assert_eq!((&serve.parent, serve.kind, &serve.links[..]), (&c, SpanKind::Server, &[p.clone()][..]));
    assert_eq!(one(&spans, "a", "fetch").parent, p, "what it brings is the parent of one that says nothing");
    let (traced, untraced): (Vec<_>, Vec<_>) = spans.iter().filter(|s| s.node == "b").partition(|s| s.parent == c);
    let ([traced], [untraced]) = (&traced[..], &untraced[..]) else { panic!("{spans:#?}") };
    assert_eq!((&traced.name[..], traced.kind, &traced.links[..]), ("fetch", SpanKind::Client, &[p.clone()][..]));
    assert_eq!((&untraced.parent, &untraced.links[..]), (&p, &[][..]));
    let fabric = Carrier::chosen().name();
    let copied = there.report().copied.to_string();
    let expected = [
        ("version", "1"),
        ("worker", "taker"),
        ("peer", "a"),
        ("fabric", fabric),
        ("bytes", "1000"),
        ("copied_bytes", &copied),
        ("outcome", "ok"),
    ];
    for (name, value) in expected {
        assert_eq!(traced.attributes.get(&format!("transfer.{name}")).map(String::as_str), Some(value), "{name}");
    }

    // A push to the other node.
    giver.push_bytes("gift", DType::U8, [LEN], &[8; LEN as usize]).to("taker").trace(producer).call().expect("a push");
    assert_eq!(taker.fetch("gift").trace(consumer).call().expect("a fetch").report().origin, Some(producer));
    let spans = collector.of_key("gift", 3);
    let land = one(&spans, "b", "land");
    assert_eq!((&land.parent, land.kind), (&p, SpanKind::Consumer));
    assert_eq!((&land.attributes["transfer.worker"][..], &land.attributes["transfer.peer"][..]), ("giver", "a"));
    assert_eq!((&one(&spans, "a", "push").parent, &one(&spans, "b", "fetch").parent), (&p, &c));

    // The span of a failed fetch names the error.
    taker.fetch("none").trace(consumer).timeout(Duration::from_millis(1)).call().expect_err("nobody pushes it");
    let failed = &collector.of_key("none", 1)[0];
    assert_eq!((failed.failed.as_deref(), &failed.parent), (Some("UnknownKey"), &c));
    assert_eq!(failed.attributes["error.type"], "UnknownKey");

    let lines = poll(|| Some(scene.b().log()).filter(|log| log.contains("none") && log.contains(CONSUMER)).ok_or(()));
    lines.expect("the log names the trace, too");
    let sent = |sidecar: &Sidecar| collector.spans().iter().filter(|s| s.node == sidecar.name()).count() as u64;
    for sidecar in [scene.a(), scene.b()] {
        // A scrape may lag behind by a moment.
        let all = poll(|| Some(counted(sidecar, "exported")).filter(|n| *n == sent(sidecar)).ok_or(()));
        assert_eq!(all, Ok(sent(sidecar)));
        assert_eq!((counted(sidecar, "failed"), counted(sidecar, "dropped")), (0, 0));
    }
    drop((there, again, here, giver, taker));
    scene.end();
}

// Promise: unsampled-traces, seen to fail
#[test]
fn trace_origin_decides_sampling() {
    let collector = Collector::start();
    let scene = scene(&collector.endpoint(), &[]);
    let (giver, taker) = (worker(scene.a(), "giver"), worker(scene.b(), "taker"));
    let push = |key: &str| giver.push_bytes(key, DType::U8, [LEN], &[7; LEN as usize]);
    let origin = |key: &str| taker.fetch(key).call().expect("a fetch").report().origin;
    // Without a trace context, each span is a trace of its own, and the other node gets no context.
    push("own").call().expect("a push");
    assert_eq!(origin("own"), None);
    // A context that is not sampled travels, and is not collected.
    push("unsampled").trace(context(UNSAMPLED)).call().expect("a push");
    assert_eq!(origin("unsampled"), Some(context(UNSAMPLED)));
    // The current span of a program that uses OpenTelemetry is the context of its pushes by default. A fetched context
    // can be converted for a link.
    {
        let span = transfer_client::to_span(context(PRODUCER));
        let _current = Context::new().with_remote_span_context(span).attach();
        push("current").call().expect("a push");
    }
    assert_eq!(origin("current"), Some(context(PRODUCER)));
    assert_eq!(transfer_client::from_span(&transfer_client::to_span(context(CONSUMER))), Some(context(CONSUMER)));

    assert!(collector.of_key("current", 2).iter().all(|s| s.trace == PRODUCER[3..35]));
    let own = collector.of_key("own", 2);
    assert!(own.iter().all(|s| s.parent.is_empty()), "{own:#?}");
    assert_ne!(own[0].trace, own[1].trace);
    drop((giver, taker));
    // The sidecars send their remaining spans when they end.
    scene.end();
    assert!(collector.spans().iter().all(|s| s.attributes["transfer.key"] != "unsampled"));
}

/// One collector takes connections and never answers, and the other one cannot be reached.
// Promise: span-collectors, seen to fail
#[test]
fn dead_collector_costs_only_spans() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let closed = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("it was bound");
    let endpoints = [silent.local_addr().expect("it is bound"), closed].map(|address| format!("http://{address}"));
    let watched = ["--pool-bytes", "16MiB", "--http-listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    let with = |endpoint| [&watched[..], &["--otlp-endpoint", endpoint]].concat();
    let mut scene = Scene::with(&[&with(&endpoints[0]), &with(&endpoints[1])]);
    let (giver, taker) = (worker(scene.a(), "giver"), worker(scene.b(), "taker"));
    // More spans than the queue has room for, while the collector takes none.
    let tensors = || (0..500).map(|n| (format!("k{n}"), giver.allocate(DType::U8, [8]).expect("room")));
    for _ in 0..40 {
        let pushed = giver.push_many(tensors()).call();
        assert!(pushed.iter().all(Result::is_ok), "{pushed:?}");
    }
    let dropped = poll(|| Some(counted(scene.a(), "dropped")).filter(|n| *n > 0).ok_or(()));
    assert!(dropped.is_ok(), "the queue has a bound");
    for n in 0..20 {
        taker.fetch(format!("k{n}")).call().expect("a fetch");
    }
    let failed = poll(|| Some(counted(scene.b(), "failed")).filter(|n| *n > 0).ok_or(()));
    assert!(failed.is_ok(), "what the collector has not taken is counted");
    assert_eq!((counted(scene.a(), "exported"), counted(scene.b(), "exported")), (0, 0));
    let said = poll(|| Some(scene.b().log()).filter(|log| log.contains("the collector does not take spans")).ok_or(()));
    assert!(said.is_ok(), "{}", scene.b().log());
    drop((giver, taker));
    for sidecar in scene.nodes.iter_mut().rev() {
        assert_eq!(sidecar.terminate().code(), Some(0), "{}", sidecar.name());
    }
    drop(silent);
}
