//! A device's own events. In a program of its own: while a port is down, no other test could use it.

#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use transfer_verbs::{AsyncSource, choose};

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_port_that_goes_down_and_up_is_told() {
    let chosen = choose::port(&choose::Wanted::default()).unwrap();
    let netdev = chosen.gid.and_then(|gid| gid.netdev).unwrap();
    let mut events = chosen.context.async_events().unwrap();
    assert!(events.next().unwrap().is_none());
    for state in ["down", "up"] {
        assert!(Command::new("ip").args(["link", "set", &netdev, state]).status().unwrap().success());
    }
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let ready = poll(
            &mut [PollFd::from_borrowed_fd(events.as_fd(), PollFlags::IN)],
            Some(&Timespec { tv_sec: 10, tv_nsec: 0 }),
        );
        assert!(ready.unwrap() > 0, "only {seen:?}");
        // The port's addresses change too.
        seen.extend(events.next().unwrap().filter(|event| event.words().contains("active")));
    }
    assert!(seen.iter().all(|event| event.source == AsyncSource::Port(1) && !event.is_fatal()), "{seen:?}");
    let words: Vec<_> = seen.iter().map(|event| event.words()).collect();
    assert_eq!(words, ["a port is no longer active", "a port has become active"]);
}
