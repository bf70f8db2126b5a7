//! Tests of memory that a worker has registered: it is sent from where it lies, things land there, and no other process reads it.

use super::pair::{Pair, Worker, bytes, key};
use crate::fabric::FabricKind;
use crate::memory::SegmentId;
use crate::op::{Answer, Command, Destination, Fetch, FetchInto, FetchedTensor, OpId, Otherwise, Push, Reply, Report};
use crate::protocol::WorkerMemory;
use crate::sim::MemoryId;
use crate::tensor::{Select, TensorMeta};
use crate::wire::ranges::ArenaRange;
use std::time::Duration;

const REGISTERED: SegmentId = SegmentId(900);
const LEN: u64 = 1000;

/// Registers memory of a worker. Returns it, and its place.
fn register(pair: &mut Pair, w: Worker, segment: SegmentId) -> (MemoryId, u64) {
    let memory = pair.world.memory(LEN as usize);
    pair.nodes[w.node].register(segment, &memory).unwrap();
    let place =
        pair.nodes[w.node].node.memory_of_worker(segment, WorkerMemory::Registered { session: w.session, len: LEN });
    (memory, place.unwrap())
}

fn push(pair: &mut Pair, w: Worker, n: u64, meta: TensorMeta, place: u64) {
    pair.command(w, OpId(n), Command::Push(Push::new(key("k"), meta, place)));
    pair.settle();
}

fn take(pair: &mut Pair, r: Worker) -> (Vec<u8>, SegmentId, Report) {
    pair.fetch(r, "k", Select::Latest);
    pair.settle();
    let replies = pair.replies(r);
    let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else { panic!("{replies:?}") };
    let FetchedTensor { slice, report, .. } = tensor;
    let got = pair.memories[r.node].read(*slice).unwrap();
    pair.release(r, *lease);
    pair.settle();
    (got, slice.segment, *report)
}

// Promise: registered-memory, seen to fail
#[test]
fn version_is_sent_from_registered_memory_and_copied_for_workers_of_its_node() {
    let mut pair = Pair::new();
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    let (memory, place) = register(&mut pair, w, REGISTERED);
    pair.world.write(memory, 0, &[7; LEN as usize]);
    push(&mut pair, w, 1, bytes(LEN), place);
    assert!(matches!(pair.replies(w)[..], [Reply::Answer { answer: Answer::Pushed { .. }, .. }]));
    for _ in 0..2 {
        let (got, _, report) = take(&mut pair, far);
        assert_eq!((got, report.copied), (vec![7; LEN as usize], 0), "it is sent from where it lies");
        let (got, segment, report) = take(&mut pair, near);
        assert!(got == [7; LEN as usize] && report.copied == LEN, "no other process reads it: {report}");
        assert_ne!(segment, REGISTERED);
    }
    // It is returned by the place by which the worker names it.
    push(&mut pair, w, 2, bytes(8), place);
    let replies = pair.replies(w);
    assert!(replies.iter().any(|r| matches!(r, Reply::Returned { pushed: OpId(1), offset } if *offset == place)));
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

// Promise: registered-memory, seen to fail
#[test]
fn version_of_another_node_lands_in_registered_memory() {
    let mut pair = Pair::new();
    let (w, r) = (pair.worker(0, "w"), pair.worker(1, "r"));
    let (memory, place) = register(&mut pair, r, REGISTERED);
    pair.push(w, "k", bytes(LEN), 9, None);
    pair.settle();
    let fetch = Fetch {
        key: key("k"),
        select: Select::Latest,
        timeout: Duration::from_secs(5),
        require: None,
        trace: None,
        watches: false,
        excerpt: None,
    };
    let to = |offset| Destination {
        ranges: vec![ArenaRange { offset, len: LEN }],
        meta: bytes(LEN),
        otherwise: Otherwise::Fail,
    };
    pair.command(r, OpId(500), Command::FetchInto(FetchInto { fetch: fetch.clone(), to: to(place) }));
    pair.settle();
    let replies = pair.replies(r);
    assert!(matches!(replies[..], [Reply::Answer { answer: Answer::Landed { .. }, .. }]), "{replies:?}");
    assert_eq!(pair.world.read(memory, 0, LEN), vec![9; LEN as usize]);
    // One byte further it is no memory of the worker's.
    pair.command(r, OpId(501), Command::FetchInto(FetchInto { fetch, to: to(place + 1) }));
    pair.settle();
    let replies = pair.replies(r);
    let [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] = &replies[..] else { panic!("{replies:?}") };
    assert!(failure.text.contains("a range has 1000 bytes at"), "{}", failure.text);
    pair.ends_clean(&[(w, "w"), (r, "r")]);
}

// Promise: registered-memory
#[test]
fn what_a_fabric_cannot_read_of_registered_memory_is_copied_before_it_is_sent() {
    let mut pair = Pair::new();
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    let (memory, place) = register(&mut pair, w, REGISTERED);
    pair.nodes[0].node.arena_is_unreadable(REGISTERED, FabricKind::Sim);
    pair.world.write(memory, 0, &[7; LEN as usize]);
    push(&mut pair, w, 1, bytes(LEN), place);
    let (got, _, report) = take(&mut pair, far);
    assert_eq!((got, report.copied), (vec![7; LEN as usize], LEN));
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}

// Promise: registered-memory, seen to fail
#[test]
fn registered_memory_that_is_sent_ends_when_that_has_ended() {
    let mut pair = Pair::new();
    let (w, far) = (pair.worker(0, "w"), pair.worker(1, "far"));
    let (memory, place) = register(&mut pair, w, REGISTERED);
    pair.world.write(memory, 0, &[7; LEN as usize]);
    push(&mut pair, w, 1, bytes(LEN), place);
    pair.replies(w);
    // It is published, whatever its worker says.
    pair.nodes[0].node.memory_of_worker(REGISTERED, WorkerMemory::Released);
    let (got, ..) = take(&mut pair, far);
    assert_eq!((got, &pair.unused[..]), (vec![7; LEN as usize], &[][..]));
    pair.push(w, "k", bytes(8), 1, None);
    pair.settle();
    assert_eq!(pair.unused, [REGISTERED]);
    // That of a worker that is gone ends with its arena.
    let (_, place) = register(&mut pair, w, SegmentId(901));
    pair.command(w, OpId(77), Command::Push(Push::new(key("l"), bytes(8), place)));
    pair.settle();
    let now = pair.world.now();
    pair.nodes[0].node.session_evicted(now, w.session, "it has left");
    pair.nodes[0].node.memory_of_worker(SegmentId(901), WorkerMemory::Released);
    pair.settle();
    let arena = SegmentId(u32::try_from(w.session.0).unwrap());
    assert_eq!(pair.unused[1..], [arena, SegmentId(901)]);
    pair.ends_clean(&[(w, "w"), (far, "far")]);
}

// Promise: registered-memory
#[test]
fn registered_memory_ends_with_its_release_or_with_its_arena() {
    let mut pair = Pair::new();
    let w = pair.worker(0, "w");
    let (_, first) = register(&mut pair, w, REGISTERED);
    let (_, second) = register(&mut pair, w, SegmentId(901));
    assert!(second > first + LEN, "no range goes on in another memory");
    pair.nodes[0].node.memory_of_worker(REGISTERED, WorkerMemory::Released);
    pair.settle();
    assert_eq!(pair.unused, [REGISTERED]);
    push(&mut pair, w, 1, bytes(8), first);
    let replies = pair.replies(w);
    let [Reply::Answer { answer: Answer::Failed { failure, .. }, .. }] = &replies[..] else { panic!("{replies:?}") };
    assert!(failure.text.contains("or within registered memory"), "{}", failure.text);
    let (_, third) = register(&mut pair, w, SegmentId(902));
    assert!(third > second + LEN, "no place is used twice");
    pair.leave(w, "w");
    pair.settle();
    let arena = SegmentId(u32::try_from(w.session.0).unwrap());
    assert_eq!(pair.unused[1..], [arena, SegmentId(901), SegmentId(902)]);
    let late = WorkerMemory::Registered { session: w.session, len: LEN };
    assert_eq!(pair.nodes[0].node.memory_of_worker(SegmentId(903), late), None);
    pair.ends_clean(&[]);
}
