//! Tests of memory that a worker has registered: it is sent from where it lies, things land there, and no other process reads it.

use super::pair::{POOL_BYTES, Pair, Worker, bytes, key, name};
use crate::fabric::FabricKind;
use crate::memory::SegmentId;
use crate::op::{
    Answer, Command, Destination, Fetch, FetchInto, FetchedTensor, OpId, Otherwise, Push, Reply, Report, Request,
};
use crate::protocol::{Tenant, WorkerMemory};
use crate::sim::MemoryId;
use crate::tensor::{Excerpt, Select, Slice, TensorMeta};
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
    for copied in [LEN, 0] {
        let (got, _, report) = take(&mut pair, far);
        assert_eq!((got, report.copied), (vec![7; LEN as usize], 0), "it is sent from where it lies");
        let (got, segment, report) = take(&mut pair, near);
        assert!(got == [7; LEN as usize] && report.copied == copied, "no other process reads it: {report}");
        assert_ne!(segment, REGISTERED);
    }
    // It is returned by the place by which the worker names it.
    push(&mut pair, w, 2, bytes(8), place);
    let replies = pair.replies(w);
    assert!(replies.iter().any(|r| matches!(r, Reply::Returned { pushed: OpId(1), offset } if *offset == place)));
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

fn pool_used(pair: &Pair, tenant: Tenant) -> u64 {
    let status = pair.nodes[0].node.state().snapshot(pair.world.now());
    status.pools.iter().filter(|pool| pool.domain == tenant).map(|pool| pool.used).sum()
}

/// The reports of the fetches of these workers, whose leases are given back.
fn reports(pair: &mut Pair, readers: &[Worker]) -> Vec<u64> {
    let mut copied = Vec::new();
    for r in readers {
        let replies = pair.replies(*r);
        let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else {
            panic!("{replies:?}")
        };
        assert_eq!(pair.memories[r.node].read(tensor.slice).unwrap(), [7; LEN as usize]);
        copied.push(tensor.report.copied);
        pair.release(*r, *lease);
    }
    pair.settle();
    copied
}

// Promise: shared-copy, seen to fail
#[test]
fn readers_of_a_node_share_one_copy_of_registered_memory() {
    let mut pair = Pair::new();
    let w = pair.worker(0, "w");
    let near = [pair.worker(0, "a"), pair.worker(0, "b"), pair.worker(0, "c"), pair.worker(0, "d")];
    let stranger = pair.worker_of(Tenant::User(1), 0, "stranger");
    let (memory, place) = register(&mut pair, w, REGISTERED);
    pair.world.write(memory, 0, &[7; LEN as usize]);
    let shared = Push { readable_by: vec![name("1")], ..Push::new(key("k"), bytes(LEN), place) };
    pair.command(w, OpId(1), Command::Push(shared));
    pair.settle();
    pair.replies(w);
    // All ask while it is being made. The first one gives up, and the next one counts the copy.
    pair.hold_copies = true;
    let first = pair.fetch(near[0], "k", Select::Latest);
    for r in &near[1..] {
        pair.fetch(*r, "k", Select::Latest);
    }
    pair.settle();
    assert_eq!(pair.held_copies(), 1);
    pair.request(near[0], Request::Cancel { op: first });
    pair.settle();
    pair.replies(near[0]);
    pair.copy_all();
    pair.settle();
    let mut copied = reports(&mut pair, &near[1..]);
    copied.sort_unstable();
    assert_eq!(copied, [0, 0, LEN], "one copy for all who share it");
    // It stays for those who ask later, also for a part of it.
    pair.fetch(near[0], "k", Select::Latest);
    pair.settle();
    assert_eq!(reports(&mut pair, &near[..1]), [0]);
    let part = Some(Box::new(Excerpt::slice(Slice::new([(64..192).into()])).unwrap()));
    pair.fetch_part(near[0], "k", Select::Latest, part);
    pair.settle();
    assert_eq!(pair.held_copies(), 0, "the part is read out of the copy");
    let (lease, ..) = pair.fetched(near[0]);
    pair.release(near[0], lease);
    // Each tenant has its own, in its own pool.
    pair.hold_copies = false;
    for copied in [LEN, 0] {
        pair.fetch(stranger, "k", Select::Latest);
        pair.settle();
        assert_eq!(reports(&mut pair, &[stranger]), [copied]);
    }
    assert!(pool_used(&pair, Tenant::User(0)) >= LEN && pool_used(&pair, Tenant::User(1)) >= LEN);
    // It ends with the version, also while somebody reads it.
    pair.fetch(near[0], "k", Select::Latest);
    pair.settle();
    push(&mut pair, w, 2, bytes(8), place);
    let replies = pair.replies(w);
    assert!(replies.iter().any(|r| matches!(r, Reply::Returned { pushed: OpId(1), .. })), "{replies:?}");
    assert_eq!(pool_used(&pair, Tenant::User(1)), 0);
    assert_eq!(reports(&mut pair, &near[..1]), [0]);
    assert_eq!(pool_used(&pair, Tenant::User(0)), 0);
    let [a, b, c, d] = near;
    pair.ends_clean(&[(w, "w"), (a, "a"), (b, "b"), (c, "c"), (d, "d"), (stranger, "stranger")]);
}

// Promise: shared-copy, seen to fail
#[test]
fn shared_copies_make_room_for_what_needs_it() {
    const HALF: u64 = POOL_BYTES / 2;
    let mut pair = Pair::new();
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    let memory = pair.world.memory(POOL_BYTES as usize);
    pair.nodes[0].register(REGISTERED, &memory).unwrap();
    let registered = WorkerMemory::Registered { session: w.session, len: POOL_BYTES };
    let place = pair.nodes[0].node.memory_of_worker(REGISTERED, registered).unwrap();
    for (n, text) in ["x", "y", "z"].into_iter().enumerate() {
        let push = Push::new(key(text), bytes(HALF), place);
        pair.command(w, OpId(n as u64), Command::Push(push));
    }
    pair.settle();
    pair.replies(w);
    let fetch = |pair: &mut Pair, text: &str| {
        pair.fetch(near, text, Select::Latest);
        pair.settle();
        let replies = pair.replies(near);
        let [Reply::Answer { answer: Answer::Fetched { lease, tensor }, .. }] = &replies[..] else {
            panic!("{replies:?}")
        };
        pair.release(near, *lease);
        pair.settle();
        tensor.report.copied
    };
    let copied = ["x", "y", "y", "z", "y", "x"].map(|text| fetch(&mut pair, text));
    assert_eq!(copied, [HALF, HALF, 0, HALF, 0, HALF], "the oldest goes first");
    assert_eq!(pair.events[0], [], "nobody has waited for room");
    // What comes from another node, too, finds room.
    pair.push(far, "f", bytes(HALF + 64), 3, None);
    pair.settle();
    pair.replies(far);
    assert_eq!(fetch(&mut pair, "f"), 0);
    pair.ends_clean(&[(w, "w"), (near, "near"), (far, "far")]);
}

// Promise: shared-copy, seen to fail
#[test]
fn peers_that_are_sent_a_copy_of_registered_memory_share_it() {
    let mut pair = Pair::new();
    let (w, near, far) = (pair.worker(0, "w"), pair.worker(0, "near"), pair.worker(1, "far"));
    let (memory, place) = register(&mut pair, w, REGISTERED);
    pair.nodes[0].node.arena_is_unreadable(REGISTERED, FabricKind::Sim);
    pair.world.write(memory, 0, &[7; LEN as usize]);
    push(&mut pair, w, 1, bytes(LEN), place);
    pair.replies(w);
    pair.hold_copies = true;
    for r in [far, near] {
        pair.fetch(r, "k", Select::Latest);
        pair.settle();
    }
    assert_eq!(pair.held_copies(), 1);
    pair.copy_all();
    pair.settle();
    assert_eq!(reports(&mut pair, &[far, near]), [LEN, 0]);
    pair.hold_copies = false;
    pair.fetch(far, "k", Select::Latest);
    pair.settle();
    assert_eq!(reports(&mut pair, &[far]), [0]);
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
        base: None,
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
