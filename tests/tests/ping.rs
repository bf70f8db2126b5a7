//! `transferctl ping`: round trips between two sidecars, over the data plane and by datagrams.

use transfer_proto::v1::{self, peering_client::PeeringClient};
use transfer_tests::{Carrier, Ctl, Scene, Sidecar, http, poll};
use transfer_verbs::choose::{self, Wanted};
use transfer_verbs::{
    Access, AddressHandle, Buffer, Completion, CompletionQueue, Data, Datagram, DatagramAttributes, DatagramRequest,
    Destination, MemoryRegion, ProtectionDomain, QueuePair, QueuePairOptions, ReadyToSend, SendList,
};

/// Runs `transferctl ping` against this sidecar. Returns its output; the exit code has to be `code`.
#[track_caller]
fn ping(sidecar: &Sidecar, code: i32, arguments: &[&str]) -> String {
    Ctl::of(sidecar, &[&["ping"], arguments].concat()).ends(code, &[]).text()
}

/// No worker is connected, and no link is there before the first ping.
// Promise: ping
#[test]
fn round_trips_are_counted_and_the_fabric_is_named() {
    let scene = Scene::two();
    let (a, b) = (scene.a(), scene.b());
    let fabric = Carrier::chosen().name();
    let said = ping(a, 0, &["b", "-c", "3", "-i", "10ms"]);
    assert!(said.starts_with("ping b: link ") && said.contains(&format!(" over {fabric}; ")), "{said}");
    assert_eq!(said.matches("answer of b: seq=").count(), 3, "{said}");
    assert!(said.contains("3 sent, 3 answered, 0% loss") && said.contains("rtt min/avg/max/mdev = "), "{said}");

    // The other way, by the address, and with or without its port. On one host only the port tells nodes apart.
    let address = a.address();
    let host = address.rsplit_once(':').expect("an address has a port").0;
    let said = ping(b, 0, &[&address, "-c", "1", "--json"]);
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect();
    assert_eq!((&lines[0]["sequence"], &lines[0]["fabric"]), (&1.into(), &fabric.into()), "{said}");
    let trip = lines[0]["round_trip_ns"].as_u64().expect("a number");
    assert!(trip > 0);
    let totals = &lines[1];
    assert_eq!((&totals["node"], &totals["sent"], &totals["answered"]), (&"a".into(), &1.into(), &1.into()), "{said}");
    assert_eq!((&totals["min_ns"], &totals["max_ns"], &totals["mdev_ns"]), (&trip.into(), &trip.into(), &0.into()));
    let said = ping(b, 2, &[host, "-c", "1"]);
    assert!(said.contains("a, b are all at"), "{said}");

    let said = ping(a, 2, &["c", "-c", "1"]);
    assert!(said.contains("\"c\"") && said.contains("there are: a, b"), "{said}");
    let said = ping(a, 2, &["a", "-c", "1"]);
    assert!(said.contains("is this node itself"), "{said}");
    scene.end();
}

// Promise: ping, seen to fail
#[test]
fn a_slower_fabric_has_its_reasons() {
    let arguments = ["--listen", "127.0.0.1:0", "--shm", "off", "--verbs", "off"];
    let scene = Scene::exactly(&[&arguments, &arguments]);
    let said = ping(scene.a(), 0, &["b", "-c", "1"]);
    assert!(said.contains(" over tcp; fallback reason: "), "{said}");
    assert!(said.contains("node a has no shm: ") && said.contains("node a has no verbs: "), "{said}");
    scene.end();
}

// Promise: ping
#[test]
fn pings_that_are_not_answered_are_lost() {
    let mut scene = Scene::two();
    ping(scene.a(), 0, &["b", "-c", "1"]);
    scene.b().freeze();
    let said = ping(scene.a(), 3, &["b", "-c", "2", "-i", "1ms", "-W", "100ms"]);
    assert!(said.contains("node b has not answered within 100ms"), "{said}");
    assert!(said.contains("2 sent, 0 answered, 100% loss") && !said.contains("rtt"), "{said}");
    scene.b().go_on();
    // A late answer to one of those is none to this one.
    let said = ping(scene.a(), 0, &["b", "-c", "1", "-W", "9s"]);
    assert!(said.contains("1 sent, 1 answered, 0% loss"), "{said}");

    scene.nodes[1].kill();
    let said = ping(scene.a(), 3, &["b", "-c", "1"]);
    assert!(said.contains("1 sent, 0 answered, 100% loss") && said.contains("node b"), "{said}");
    scene.nodes[1].restart();
    scene.note_idle_of(1);
    let said = ping(scene.a(), 0, &["b", "-c", "1", "-W", "9s"]);
    assert!(said.contains("1 sent, 1 answered"), "{said}");
    scene.end();
}

#[test]
fn an_interrupted_ping_prints_its_statistics() {
    let scene = Scene::two();
    let mut ping = Ctl::of(scene.a(), &["ping", "b", "-i", "1ms"]).hold_until("seq=2 ");
    assert_eq!(ping.interrupt(), Some(0), "it goes on without a count");
    ping.until("0% loss");
    ping.until("rtt ");
    scene.end();
}

/// Arguments without a device, and with one.
const WITHOUT: [&str; 6] = ["--listen", "127.0.0.1:0", "--shm", "off", "--verbs", "off"];
const WITH: [&str; 4] = ["--listen", "127.0.0.1:0", "--shm", "off"];

// Promise: datagram-ping
#[test]
fn datagrams_without_a_device_are_refused_with_the_reason() {
    let scene = Scene::exactly(&[&WITHOUT, &WITHOUT]);
    for (name, sidecar) in [("a", scene.a()), ("b", scene.b())] {
        let said = ping(sidecar, 4, &[if name == "a" { "b" } else { "a" }, "--ud", "-c", "1"]);
        assert!(said.contains(&format!("node {name} has no verbs: it was started with --verbs off")), "{said}");
        assert!(said.contains("--verbs auto or on") && !said.contains("statistics"), "{said}");
    }
    // The same words as for this node itself, and for one that nobody knows.
    ping(scene.a(), 2, &["a", "--ud", "-c", "1"]);
    ping(scene.a(), 2, &["c", "--ud", "-c", "1"]);
    // A link needs no device.
    ping(scene.a(), 0, &["b", "-c", "1"]);
    scene.end();
}

/// Calls `Echo` of a sidecar.
fn echo(sidecar: &Sidecar, request: v1::EchoRequest) -> Result<v1::EchoResponse, tonic::Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let endpoint =
        tonic::transport::Endpoint::from_shared(format!("http://{}", sidecar.address())).expect("an address");
    let answer = runtime.block_on(async {
        let channel = endpoint.connect().await.expect("it listens");
        PeeringClient::new(channel).echo(request).await
    });
    answer.map(tonic::Response::into_inner)
}

// Promise: datagram-ping
// Promise: item-prepare-buffers
#[test]
fn calls_for_echoes_are_checked() {
    let scene = Scene::exactly(&[&WITHOUT]);
    let from = v1::DatagramEndpoint { address_kind: 3, gid: vec![1; 16], ..v1::DatagramEndpoint::default() };
    let right = v1::EchoRequest { node: "x".to_owned(), to: "a".to_owned(), from: Some(from.clone()) };
    let refused = |request: v1::EchoRequest, code: tonic::Code, words: &str| {
        let status = echo(scene.a(), request).expect_err("it is refused");
        assert!(status.code() == code && status.message().contains(words), "{status:?}");
    };
    use tonic::Code::{FailedPrecondition, InvalidArgument};
    refused(v1::EchoRequest { node: "a".to_owned(), ..right.clone() }, InvalidArgument, "two sidecars have the name a");
    refused(v1::EchoRequest { node: String::new(), ..right.clone() }, InvalidArgument, "node");
    refused(v1::EchoRequest { to: "b".to_owned(), ..right.clone() }, FailedPrecondition, "this is node a, not b");
    refused(v1::EchoRequest { from: None, ..right.clone() }, InvalidArgument, "no queue pair");
    let short = v1::DatagramEndpoint { gid: vec![1; 15], ..from };
    refused(v1::EchoRequest { from: Some(short), ..right.clone() }, InvalidArgument, "15 bytes");
    refused(right, FailedPrecondition, "node a has no verbs");
    scene.end();
}

// Promise: datagram-ping
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn datagrams_are_echoed_between_two_sidecars() {
    let scene = Scene::exactly(&[&WITH, &WITH]);
    let (a, b) = (scene.a(), scene.b());
    let said = ping(a, 0, &["b", "--ud", "-c", "3", "-i", "10ms", "-W", "9s"]);
    assert!(said.starts_with("ping b: datagrams from rxe0 port 1, GID ::ffff:10.77.0.1, queue pair "), "{said}");
    assert!(said.contains(" to rxe0 port 1, GID ::ffff:10.77.0.1, queue pair "), "{said}");
    assert_eq!(said.matches("answer of b: seq=").count(), 3, "{said}");
    assert_eq!(said.matches("ping b: ").count(), 1, "the queue pairs are the same ones: {said}");
    assert!(said.contains("3 sent, 3 answered, 0% loss") && said.contains("rtt min/avg/max/mdev = "), "{said}");

    let said = Ctl::of(b, &["ping", &a.address(), "--ud", "-c", "1", "-W", "9s", "--json"]).ends(0, &[]);
    let (said, lines) = (said.text(), said.json_lines());
    let [one, totals] = &lines[..] else { panic!("{said}") };
    assert!(one["round_trip_ns"].as_u64().is_some_and(|took| took > 0), "{said}");
    let (from, to) = (&one["from"], &one["to"]);
    for end in [from, to] {
        assert_eq!((&end["device"], &end["port"]), (&"rxe0".into(), &1.into()), "{said}");
        assert_eq!((&end["gid"], &end["lid"]), (&"::ffff:10.77.0.1".into(), &0.into()), "{said}");
    }
    assert_ne!(from["queue_pair"], to["queue_pair"], "{said}");
    assert_eq!((&totals["node"], &totals["answered"]), (&"a".into(), &1.into()), "{said}");
    assert!(scene.nodes.iter().all(|node| node.status().links.is_empty()), "datagrams need no link");
    scene.end();
}

// Promise: datagram-ping
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn the_node_without_datagrams_is_named() {
    let scene = Scene::exactly(&[&WITH, &WITHOUT]);
    for sidecar in [scene.a(), scene.b()] {
        let other = if sidecar.name() == "a" { "b" } else { "a" };
        let said = ping(sidecar, 4, &[other, "--ud", "-c", "1"]);
        assert!(said.contains("node b has no verbs: it was started with --verbs off"), "{said}");
    }
    scene.end();
}

// Promise: datagram-ping
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn datagrams_that_are_not_echoed_are_lost() {
    let mut scene = Scene::exactly(&[&WITH, &WITH]);
    ping(scene.a(), 0, &["b", "--ud", "-c", "1", "-W", "9s"]);
    scene.b().freeze();
    let said = ping(scene.a(), 3, &["b", "--ud", "-c", "3", "-i", "1ms", "-W", "300ms"]);
    assert!(said.contains("node b has not echoed a datagram within 300ms"), "{said}");
    assert!(said.contains("3 sent, 0 answered, 100% loss") && !said.contains("rtt"), "{said}");
    scene.b().go_on();
    // A late echo of one of those is none of this one.
    let said = ping(scene.a(), 0, &["b", "--ud", "-c", "1", "-W", "9s"]);
    assert!(said.contains("1 sent, 1 answered, 0% loss"), "{said}");

    scene.nodes[1].kill();
    let said = ping(scene.a(), 3, &["b", "--ud", "-c", "2", "-i", "1ms", "-W", "300ms"]);
    assert!(said.contains("2 sent, 0 answered, 100% loss"), "{said}");
    // Its queue pair is another one then.
    scene.nodes[1].restart();
    scene.note_idle_of(1);
    let again = poll(|| {
        let said = Ctl::of(scene.a(), &["ping", "b", "--ud", "-c", "1", "-W", "9s"]).run();
        if said.code == 0 { Ok(()) } else { Err(said.text()) }
    });
    assert_eq!(again, Ok(()));
    scene.end();
}

/// A queue pair of a process that is no sidecar.
struct Stranger {
    pair: QueuePair<ReadyToSend, Datagram>,
    queue: CompletionQueue,
    memory: std::sync::Arc<Buffer>,
    region: MemoryRegion,
    to: AddressHandle,
    endpoint: v1::DatagramEndpoint,
}

impl Stranger {
    fn new() -> Stranger {
        let chosen = choose::port(&Wanted::default()).expect("a device");
        let domain = ProtectionDomain::new(&chosen.context).expect("a domain");
        let queue = CompletionQueue::new(&chosen.context, 64, None).expect("a queue");
        let memory = Buffer::new(4096).expect("memory");
        let region = MemoryRegion::register(&domain, memory.clone(), Access::default()).expect("a region");
        let options = QueuePairOptions {
            send_queue: queue.clone(),
            receive_queue: queue.clone(),
            shared_receives: None,
            max_send: 32,
            max_receive: 32,
            max_send_elements: 1,
            max_receive_elements: 1,
            max_inline: 0,
        };
        let port = chosen.port.number;
        let attributes = DatagramAttributes { port, pkey_index: 0, queue_key: 7 };
        let pair = QueuePair::<_, Datagram>::of_kind(&domain, &options).expect("a queue pair");
        let pair = pair.init(&attributes).expect("INIT").ready_to_receive().expect("RTR");
        let pair = pair.ready_to_send(0).expect("RTS");
        let gid = chosen.gid.clone().expect("an address");
        let gid_index = u8::try_from(gid.index).expect("an index");
        let destination = Destination { gid: Some(gid.gid), gid_index, ..Destination::default() };
        let to = AddressHandle::new(&domain, port, &destination).expect("a way");
        let endpoint = v1::DatagramEndpoint {
            device: chosen.context.device_name().to_owned(),
            port: port.into(),
            address_kind: v1::AddressKind::RoceV2Ipv4.into(),
            gid: gid.gid.0.to_vec(),
            lid: 0,
            queue_pair: pair.number(),
            queue_key: 7,
        };
        Stranger { pair, queue, memory, region, to, endpoint }
    }

    fn send(&mut self, bytes: &[u8], to: &v1::DatagramEndpoint) {
        self.memory.write(0, bytes).expect("there is room");
        let mut list = SendList::<Datagram>::default();
        list.push(DatagramRequest {
            work_id: 0,
            signaled: true,
            data: Data::Gather(&[self.region.element(0, bytes.len()).expect("there is room")]),
            immediate: None,
            to: &self.to,
            queue_pair: to.queue_pair,
            queue_key: to.queue_key,
        });
        self.pair.post_send(&mut list).expect("it is posted");
        let gone = || self.queue.poll(&mut [Completion::EMPTY]).map_or(Err(()), |n| (n > 0).then_some(()).ok_or(()));
        poll(gone).expect("it leaves");
    }
}

/// A stranger who may be a peer knows the queue pair and its key, and has a token. Its datagrams are dropped or echoed
/// to itself, and those of others go on.
// Promise: datagram-ping
// Promise: attacker-with-datagrams
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn datagrams_of_a_stranger_do_no_harm() {
    let watched = [&WITH[..], &["--http-listen", "127.0.0.1:0"]].concat();
    let scene = Scene::exactly(&[&WITH, &watched]);
    let mut stranger = Stranger::new();
    let from = Some(stranger.endpoint.clone());
    let request = v1::EchoRequest { node: "stranger".to_owned(), to: "b".to_owned(), from };
    let told = echo(scene.b(), request.clone()).expect("it may be a peer");
    let to = told.endpoint.expect("a queue pair");
    let right = [&b"TVPING\x01r"[..], &told.token, &[5; 8]].concat();
    let answer = [&b"TVPING\x01a"[..], &told.token, &[5; 8]].concat();
    let stolen = [&b"TVPING\x01r"[..], &[0; 16], &[5; 8]].concat();
    ping(scene.a(), 0, &["b", "--ud", "-c", "1", "-W", "9s"]);
    for _ in 0..50 {
        for bytes in [&[][..], &right[..31], &[0x55; 4096], &[0; 32], &answer, &stolen, &right] {
            stranger.send(bytes, &to);
        }
    }
    // An endpoint of a group, or one that is none, is not admitted.
    for gid in [vec![0xff; 16], vec![0; 16]] {
        let from = Some(v1::DatagramEndpoint { gid, ..stranger.endpoint.clone() });
        let status = echo(scene.b(), v1::EchoRequest { from, ..request.clone() }).expect_err("it is refused");
        assert!(status.message().contains("GID"), "{status:?}");
    }
    let said = ping(scene.a(), 0, &["b", "--ud", "-c", "3", "-i", "1ms", "-W", "9s"]);
    assert!(said.contains("3 sent, 3 answered, 0% loss"), "{said}");
    for outcome in ["answered", "malformed", "unasked_answer", "unknown_token"] {
        let name = format!("transfer_datagrams_total{{outcome=\"{outcome}\"}} ");
        // A scrape may be a tenth of a second old.
        let counted = poll(|| {
            let metrics = http::get(&scene.b().http(), "/metrics").body;
            let count = metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok());
            count.filter(|count| *count > 0.0).ok_or(count)
        });
        counted.unwrap_or_else(|count| panic!("{name}is {count:?}"));
    }
    scene.end();
}
