//! `transferctl ping`: round trips between two sidecars over the data plane.

use transfer_tests::{Carrier, Ctl, Scene, Sidecar};

/// Runs `transferctl ping` against this sidecar. Returns its output; the exit code has to be `code`.
#[track_caller]
fn ping(sidecar: &Sidecar, code: i32, arguments: &[&str]) -> String {
    Ctl::of(sidecar, &[&["ping"], arguments].concat()).ends(code, &[]).text()
}

/// No worker is connected, and no link is there before the first ping.
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

#[test]
fn a_slower_fabric_has_its_reasons() {
    let arguments = ["--listen", "127.0.0.1:0", "--shm", "off", "--verbs", "off"];
    let scene = Scene::exactly(&[&arguments, &arguments]);
    let said = ping(scene.a(), 0, &["b", "-c", "1"]);
    assert!(said.contains(" over tcp; no better one, because: "), "{said}");
    assert!(said.contains("node a has no shm: ") && said.contains("node a has no verbs: "), "{said}");
    scene.end();
}

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
