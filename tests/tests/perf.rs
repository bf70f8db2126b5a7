//! `transferctl perf`: what is refused on any host, and, on a device, every operation between two processes.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use transfer_tests::Ctl;
use transfer_tests::ctl::Holder;

fn perf(line: &str) -> Ctl {
    Ctl::new(&["perf"].into_iter().chain(line.split_whitespace()).collect::<Vec<_>>())
}

// Promise: perf-figures
#[test]
fn impossible_tests_are_refused_without_a_device() {
    for (line, words) in [
        (
            "read bw -c UC",
            "--connection does not go with read bw -c UC: unreliable queue pairs have no READ; RC is right",
        ),
        ("atomic lat host -c ud", "a datagram queue pair has SEND only; `perf send` is right, or RC"),
        ("write bw -c UD", "a datagram queue pair has SEND only"),
        ("send bw -c UD -R", "--rdma_cm does not go with send bw -c UD"),
        ("write lat -e", "--events does not go with write lat -c RC"),
        ("write bw --use-srq", "only SEND uses receives"),
        ("send lat -q 2", "--qp does not go with send lat"),
        ("write bw -Q 200", "--cq-mod 200: 1 to 128 would be right; the most is --tx-depth"),
        ("atomic bw -s 16", "--size 16: 8 would be right: an atomic operation works on one word"),
        ("write bw -m 1500", "--mtu 1500: 256, 512, 1024, 2048 or 4096 would be right"),
        ("read bw -I 64", "--inline_size does not go with read bw"),
        ("write bw -s 0", "--size 0: 1 to 1073741824 would be right"),
        ("write lat --sweep verb,events", "--events does not go with write lat"),
    ] {
        perf(line).ends(2, &[words]);
    }
    for line in ["write", "tell bw", "write bw -D 1 -n 5", "write bw -q 0", "write bw --sweep size", "write bw --svg f"]
    {
        assert_eq!(perf(line).run().code, 2, "{line}");
    }
}

/// A server on a free port, and its address.
fn server(line: &str) -> (Holder, SocketAddr) {
    let holder = perf(&format!("{line} -p 0")).hold_until("listening at ");
    let words = holder.said.last().expect("it says where").trim_start_matches("listening at ");
    let address = words.split([',', ' ']).next().unwrap_or_default().parse().expect("an address");
    (holder, address)
}

/// Runs a test between two processes, and returns its results.
fn between_two(line: &str) -> Vec<Value> {
    let (mut server, address) = server(line);
    let said = perf(&format!("{line} {} -p {} --json", address.ip(), address.port())).run();
    assert_eq!(said.code, 0, "{line}: {}", said.text());
    server.until("served 127.0.0.1");
    assert_eq!(server.ended(), Some(0), "{line}");
    let value: Value = serde_json::from_slice(&said.out).expect("JSON");
    value["results"].as_array().expect("a list").clone()
}

// Promise: perf-figures, seen to fail
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn every_operation_of_every_kind_moves_its_bytes() {
    for (line, iterations) in [
        ("write bw -s 10000 -n 40 -q 2 -l 4", 80),
        ("write bw -s 300 -n 40 -I 300 -e -R", 40),
        ("write bw -c UC -s 5000 -n 20", 20),
        ("write lat -s 5000 -n 20", 20),
        ("write lat -c UC -s 1 -n 20 -I 8", 20),
        ("read bw -s 100000 -n 20 -t 8 -e", 20),
        ("read lat -s 64 -n 20", 20),
        ("send bw -s 3000 -n 200 -q 2 --use-srq -r 64 -e", 400),
        ("send bw -c UC -s 3000 -n 20", 20),
        ("send bw -c UD -s 1024 -n 50 -e", 50),
        ("send lat -s 4097 -n 20 -e -R", 20),
        ("send lat -c UD -s 64 -n 20 -r 1", 20),
        ("atomic bw -n 50 -q 2", 100),
        ("atomic bw -A CMP_AND_SWAP -n 50 -e", 50),
        ("atomic lat -n 20", 20),
    ] {
        let results = between_two(line);
        let [result] = &results[..] else { panic!("{line}: {results:?}") };
        assert_eq!(
            (result["iterations"].as_u64(), &result["matches"]),
            (Some(iterations), &Value::Bool(true)),
            "{line}"
        );
        let figure = if line.contains(" bw") { "bw_average_mib_s" } else { "t_typical_us" };
        assert!(result[figure].as_f64().is_some_and(|figure| figure > 0.0), "{line}: {result}");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn sizes_durations_and_sweeps_run_in_one_session() {
    let results = between_two("send bw -c UD -a -n 5");
    let sizes: Vec<_> = results.iter().filter_map(|result| result["bytes"].as_u64()).collect();
    assert_eq!((sizes[0], sizes[1], sizes.last()), (2, 4, Some(&4096)), "a datagram is one packet");
    let results = between_two("write bw -D 1 -s 64 -Q 7");
    assert!(results[0]["iterations"].as_u64().is_some_and(|iterations| iterations > 1), "{results:?}");

    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("sweep.svg");
    let (mut server, address) = server("write bw --sweep verb,size");
    let line = format!(
        "write bw 127.0.0.1 -p {} -n 5 --rounds 2 --sweep verb=write/read/send,size=64/8192 --svg {}",
        address.port(),
        svg.display()
    );
    perf(&line).ends(0, &["64 B, write", "8 KiB, send"]);
    server.until("12 runs");
    assert_eq!(server.ended(), Some(0));
    assert!(std::fs::read_to_string(&svg).expect("a chart").contains("operation"));
}

// Promise: perf-strangers
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn strangers_and_other_clients_do_not_end_a_server() {
    let (mut server, address) = server("send lat -s 64 -n 5");
    assert!(address.ip().is_loopback());
    for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"tr-perf\x01\xff\xff\xff\xff", b"tr-perf\x01\0\0\0\x02{}"] {
        let mut stranger = TcpStream::connect(address).expect("it listens");
        stranger.write_all(words).expect("it reads");
        // It is closed at once.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    let client = |line: &str| perf(&format!("{line} 127.0.0.1 -p {}", address.port()));
    let differs = "the server was started for send lat -c RC, and the client for send lat -c UD";
    client("send lat -c UD").ends(1, &[differs]);
    client("send bw").ends(1, &["and the client for send bw -c RC"]);
    client("send lat -s 64 -n 5").ends(0, &["t_typical[usec]"]);
    server.until("1 run");
    assert_eq!(server.ended(), Some(0));
    client("send lat").ends(1, &["cannot reach a server at 127.0.0.1", "--listen ADDRESS"]);
}

// Promise: perf-strangers
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn an_end_that_is_killed_ends_the_other_one() {
    for line in ["send bw -e -a -n 40", "write lat -a -n 40", "send lat -e -a -n 40"] {
        for client_is_killed in [true, false] {
            let (server, address) = server(line);
            let mut client = perf(&format!("{line} 127.0.0.1 -p {}", address.port())).hold_until("#bytes");
            // The first of many sizes is done.
            client.until(" 2 ");
            let (killed, mut other) = if client_is_killed { (client, server) } else { (server, client) };
            drop(killed);
            assert_eq!(other.ended(), Some(1), "{line}");
        }
    }
}
