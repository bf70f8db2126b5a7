//! Completion channels.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use transfer_verbs::*;

use crate::setup::{ends_with, fresh};

pub(crate) fn readable(fd: BorrowedFd<'_>, seconds: i64) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap() > 0
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn an_armed_queue_wakes_its_channel_once() {
    let channels = std::cell::RefCell::new(Vec::new());
    let (mut a, mut b) = ends_with(
        |context| {
            channels.borrow_mut().push(CompletionChannel::new(context).unwrap());
            channels.borrow().last().cloned()
        },
        |_, _| (),
    );
    let channel = channels.into_inner().pop().unwrap();
    assert_eq!(channel.take_events().unwrap(), 0);
    assert!(!readable(channel.as_fd(), 0));
    // More events than are acknowledged together, and some left over for the end.
    for round in 0..70 {
        b.queue.arm().unwrap();
        for _ in 0..2 {
            b.receive(round, 0, 8);
            a.run(SendKind::Send { data: Data::Inline(&[b"wake up"]), immediate: None });
        }
        assert!(readable(channel.as_fd(), 30), "round {round}");
        assert_eq!(channel.take_events().unwrap(), 1, "round {round}");
        b.done();
        b.done();
        assert!(!readable(channel.as_fd(), 0), "it is not armed");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_queue_with_an_event_that_nobody_took_ends() {
    let (mut a, b) = ends_with(|context| Some(CompletionChannel::new(context).unwrap()), |_, _| ());
    a.queue.arm().unwrap();
    let (address, key) = (b.at(0), b.region.remote_key());
    a.run(SendKind::Write { data: Data::Inline(&[b"x"]), address, key, immediate: None });
    drop((a, b));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_queue_is_made_larger() {
    let queue = fresh().queue;
    let before = queue.capacity();
    assert!(before >= 256);
    queue.resize(before * 2).unwrap();
    assert!(queue.capacity() >= before * 2);
    assert!(matches!(queue.resize(u32::MAX).unwrap_err(), VerbsError::Limit { limit_name: "max_cqe", .. }));
}
