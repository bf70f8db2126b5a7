//! Workers that connect and leave, and the refusals that they get.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Node, SOON, name, wait_for};
use std::time::Instant;
use transfer_memory::session::{RefusalCode, SessionError, WorkerEnd, WorkerOptions};
use transfer_server::config::{DirectoryPlace, Size};

fn refused<T>(attempt: Result<T, SessionError>) -> (RefusalCode, String) {
    match attempt {
        Err(SessionError::Refused(refusal)) => (refusal.code, refusal.text),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was let in"),
    }
}

#[test]
fn a_name_is_taken_once() {
    let a = Node::start("a");
    let b = Node::join("b", &a);
    let first = a.worker("trainer").unwrap();
    assert_eq!(first.end.node, name("a"));
    let (code, text) = refused(a.worker("trainer"));
    assert_eq!(code, RefusalCode::NameTaken);
    assert!(text.contains("trainer") && text.contains("on this node"), "{text}");
    let (code, text) = refused(b.worker("trainer"));
    assert_eq!(code, RefusalCode::NameTaken);
    assert!(text.contains("trainer") && text.contains("node a"), "{text}");
    // The name is free again on all nodes when its worker has gone.
    drop(first);
    wait_for("the name is free", || b.worker("trainer").is_ok());
}

#[test]
fn worker_may_reconnect_at_once() {
    let a = Node::start("a");
    for _ in 0..20 {
        drop(a.worker("trainer").unwrap());
    }
}

#[test]
fn memory_is_bounded() {
    let node = Node::try_start("a", |c| {
        c.pool_bytes = Size(1 << 20);
        c.pinned_limit = Size(4 << 20);
        // A board would take half of the limit.
        c.board_entries = 0;
        c.max_arena_bytes = Size(64 << 20);
    })
    .unwrap();
    let socket = node.sidecar.addresses().socket.clone();
    let connect = |worker: &str, arena_bytes| {
        WorkerEnd::connect(&socket, &WorkerOptions { name: name(worker), arena_bytes, timeout: SOON })
    };
    let (code, text) = refused(connect("w", 65 << 20));
    assert_eq!(code, RefusalCode::ArenaTooLarge, "{text}");
    assert!(text.contains("65 MiB") && text.contains("64 MiB at most (--max-arena-bytes)"), "{text}");
    let (code, text) = refused(connect("w", 5 << 20));
    assert_eq!(code, RefusalCode::NoMemory);
    assert!(text.contains(&(4 << 20).to_string()), "{text}");
    // The refused worker left nothing behind.
    let fits = connect("w", 1 << 20).unwrap();
    let (code, _) = refused(connect("x", 1 << 20));
    assert_eq!(code, RefusalCode::NoMemory);
    drop(fits);
    wait_for("its memory is back", || connect("x", 1 << 20).is_ok());
}

/// A worker that was thrown out may still read, so it counts until it closes its socket.
// Promise: bounded-sessions, seen to fail
#[test]
fn sessions_of_a_user_are_bounded() {
    let a = Node::try_start("a", |c| c.limits.limits = vec!["sessions_per_user=2".parse().unwrap()]).unwrap();
    let mut thrown_out = a.worker("thrown-out").unwrap();
    let other = a.worker("other").unwrap();
    let full = |worker| {
        let (code, text) = refused(a.worker(worker));
        assert_eq!(code, RefusalCode::TooManySessions, "{text}");
        assert!(text.contains("has 2 sessions") && text.contains("limits.sessions_per_user"), "{text}");
    };
    full("third");
    thrown_out.talks_nonsense();
    // The worker's name is free, and its place is not.
    full("thrown-out");
    drop(thrown_out);
    // The admitted worker stays, because its place would not be free at once either.
    let let_in = |worker: &str| {
        let mut session = None;
        wait_for("a place is free", || {
            session = a.worker(worker).ok();
            session.is_some()
        });
        session
    };
    let third = let_in("third");
    full("fourth");
    drop(other);
    let fourth = let_in("fourth");
    full("fifth");
    drop((third, fourth));
}

/// This node grants the name until the directory answers.
#[test]
fn worker_is_admitted_without_the_directory() {
    let a = Node::start("a");
    let url = a.url();
    a.sidecar.stop();
    let b = Node::try_start("b", |c| c.directory = DirectoryPlace::At(url.clone())).unwrap();
    let first = b.worker("trainer").unwrap();
    let (code, _) = refused(b.worker("trainer"));
    assert_eq!(code, RefusalCode::NameTaken);
    drop(first);
}

#[test]
fn workers_are_told_that_their_sidecar_stops() {
    let a = Node::start("a");
    let worker = a.worker("trainer").unwrap();
    a.sidecar.stop();
    let ended = loop {
        match worker.end.socket.receive(Instant::now() + SOON) {
            Ok(_) => {}
            Err(e) => break e,
        }
    };
    assert!(ended.to_string().contains("closed"), "{ended}");
}

#[test]
fn silent_connections_do_not_keep_others_out() {
    let a = Node::start("a");
    let socket = a.sidecar.addresses().socket.clone();
    let silent: Vec<_> =
        (0..8).map(|_| transfer_memory::socket::Socket::connect(&socket, Instant::now() + SOON).unwrap()).collect();
    assert!(a.worker("trainer").is_ok());
    drop(silent);
}
