//! Operations on words: of the peer, and on the own ones through the same device.

use super::*;

const LEN: u64 = 1 << 16;

fn word(offset: u64) -> LocalSlice {
    Pair::<VerbsRig>::slice(offset, 8)
}

/// Polls both sides until something is answered by one of them.
fn until<T>(pair: &mut Pair<VerbsRig>, side: usize, mut answer: impl FnMut(&FabricEvent<'_>) -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let mut found = None;
        pair.fabric(1 - side).poll(&mut |_| ());
        pair.fabric(side).poll(&mut |event| found = found.take().or(answer(&event)));
        if let Some(found) = found {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "nothing happens");
    }
}

fn open(pair: &mut Pair<VerbsRig>, link: crate::conformance::pair::Link, range: LocalSlice) -> RemoteSlice {
    let id = link.0[1];
    pair.fabric(1).grant(id, range, GrantAccess::Atomic, 1).unwrap();
    let remote = until(pair, 1, |event| match event {
        FabricEvent::Granted { remote, .. } => Some(*remote),
        _ => None,
    });
    // Behind the bind.
    pair.post_send(1, link, b"open").unwrap();
    until(pair, 0, |event| matches!(event, FabricEvent::Message { .. }).then_some(()));
    remote
}

fn remote_op(
    pair: &mut Pair<VerbsRig>,
    link: crate::conformance::pair::Link,
    remote: RemoteSlice,
    op: AtomicOp,
) -> u64 {
    let id = link.0[0];
    pair.fabric(0).post_atomic(id, WorkId(5), remote, op).unwrap();
    until(pair, 0, |event| match event {
        FabricEvent::AtomicDone { old, work: WorkId(5), .. } => Some(*old),
        _ => None,
    })
}

fn local_op(pair: &mut Pair<VerbsRig>, word: LocalSlice, op: AtomicOp) -> u64 {
    pair.fabric(1).post_local_atomic(WorkId(6), word, op).unwrap();
    until(pair, 1, |event| match event {
        FabricEvent::LocalAtomicDone { old, work: WorkId(6) } => Some(old.clone().unwrap()),
        _ => None,
    })
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn both_sides_change_the_same_word() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    assert!(pair.fabric(0).capabilities().atomics);
    let link = pair.connect(0);
    let remote = open(&mut pair, link, word(4096));
    assert_eq!(remote_op(&mut pair, link, remote, AtomicOp::FetchAdd(5)), 0);
    assert_eq!(local_op(&mut pair, word(4096), AtomicOp::FetchAdd(u64::MAX)), 5);
    assert_eq!(remote_op(&mut pair, link, remote, AtomicOp::Load), 4);
    let swap = |expected, new| AtomicOp::CompareSwap { expected, new };
    assert_eq!(remote_op(&mut pair, link, remote, swap(3, 100)), 4);
    assert_eq!(local_op(&mut pair, word(4096), swap(4, 100)), 4);
    assert_eq!(remote_op(&mut pair, link, remote, swap(100, 7)), 100);
    assert_eq!(local_op(&mut pair, word(4096), AtomicOp::Load), 7);
    assert_eq!(pair.read(1, 4096, 8), 7_u64.to_ne_bytes());
    // Under load from both sides nothing is lost.
    for round in 0..50 {
        let id = link.0[0];
        for _ in 0..10 {
            pair.fabric(0).post_atomic(id, WorkId(1), remote, AtomicOp::FetchAdd(1)).unwrap();
            pair.fabric(1).post_local_atomic(WorkId(1), word(4096), AtomicOp::FetchAdd(1)).unwrap();
        }
        let mut left = [10, 10];
        while left != [0, 0] {
            for (side, left) in left.iter_mut().enumerate() {
                pair.fabric(side).poll(&mut |event| match event {
                    FabricEvent::AtomicDone { .. } | FabricEvent::LocalAtomicDone { old: Ok(_), .. } => *left -= 1,
                    other => panic!("{other:?} in round {round}"),
                });
            }
        }
    }
    assert_eq!(local_op(&mut pair, word(4096), AtomicOp::Load), 7 + 50 * 20);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn what_is_no_word_is_refused() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    let link = pair.connect(0);
    for bad in [(4, 8), (0, 7), (0, 12)] {
        let range = Pair::<VerbsRig>::slice(bad.0, bad.1);
        let granted = pair.fabric(1).grant(link.0[1], range, GrantAccess::Atomic, 1);
        assert_eq!(granted, Err(PostError::BadLocalSlice(range)));
        assert!(pair.fabric(1).post_local_atomic(WorkId(1), range, AtomicOp::Load).is_err());
    }
    let remote = open(&mut pair, link, Pair::<VerbsRig>::slice(0, 64));
    for bad in [RemoteSlice { address: remote.address + 4, len: 8, ..remote }, RemoteSlice { len: 16, ..remote }] {
        let posted = pair.fabric(0).post_atomic(link.0[0], WorkId(1), bad, AtomicOp::Load);
        assert!(matches!(posted, Err(PostError::Limit { .. })), "{posted:?}");
    }
    assert_eq!(remote_op(&mut pair, link, remote.sub(56, 8).unwrap(), AtomicOp::Load), 0);
}

/// A grant for operations cannot be written through, one for writing cannot be read or operated on, and either ends with its revoke.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_grant_opens_what_it_is_for() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    for case in 0..4 {
        let link = pair.connect(0);
        let words = open(&mut pair, link, word(64));
        let range = pair.grant(1, link, word(128));
        let id = link.0[0];
        match case {
            0 => pair.fabric(0).post_write(id, WorkId(1), &[word(0)], words, None).unwrap(),
            1 => pair.fabric(0).post_atomic(id, WorkId(1), range, AtomicOp::FetchAdd(1)).unwrap(),
            2 => pair.fabric(0).post_atomic(id, WorkId(1), range, AtomicOp::Load).unwrap(),
            _ => {
                pair.revoke(1, link, words.key());
                pair.fabric(0).post_atomic(id, WorkId(1), words, AtomicOp::FetchAdd(1)).unwrap();
            }
        }
        let reason = pair.dead(link)[0].clone();
        assert!(matches!(reason, DownReason::Refused(_)), "case {case}: {reason:?}");
        assert_eq!(pair.read(1, 64, 128), [0; 128], "case {case}");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn words_of_a_segment_that_is_gone_are_refused() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    assert_eq!(local_op(&mut pair, word(0), AtomicOp::FetchAdd(3)), 0);
    pair.fabric(1).deregister(Pair::<VerbsRig>::SEGMENT).unwrap();
    assert!(pair.fabric(1).post_local_atomic(WorkId(1), word(0), AtomicOp::Load).is_err());
    let memory = pair.sides[1].memory.clone();
    pair.fabric(1).register(Pair::<VerbsRig>::SEGMENT, memory).unwrap();
    assert_eq!(local_op(&mut pair, word(0), AtomicOp::Load), 3);
}
