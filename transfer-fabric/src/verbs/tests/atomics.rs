//! Operations on words, in cases that the conformance suite leaves out because devices answer them in different ways.

use super::*;

const LEN: u64 = 1 << 16;

fn word(offset: u64) -> LocalSlice {
    Pair::<VerbsRig>::slice(offset, 8)
}

fn local_op(pair: &mut Pair<VerbsRig>, word: LocalSlice, op: AtomicOp) -> u64 {
    pair.atomics(1).post_local_atomic(WorkId(6), word, op).unwrap();
    pair.hear(1, "LocalAtomicDone", |heard| match heard {
        Heard::LocalAtomicDone(WorkId(6), old) => Some(old.clone().unwrap()),
        _ => None,
    })
}

/// A grant for atomic operations cannot be written. A grant for writes can neither be read nor operated on. Either
/// ends with its revoke.
#[test]
#[ignore = "needs an RDMA device: make test-rdma runs it in the guest"]
fn a_grant_opens_what_it_is_for() {
    let mut pair = Pair::new(VerbsRig(config()), LEN);
    for case in 0..4 {
        let link = pair.connect(0);
        let words = pair.grant_words(1, link, word(64));
        let range = pair.grant(1, link, word(128));
        let id = link.0[0];
        match case {
            0 => pair.fabric(0).post_write(id, WorkId(1), &[word(0)], words, None).unwrap(),
            1 => pair.atomics(0).post_atomic(id, WorkId(1), range, AtomicOp::FetchAdd(1)).unwrap(),
            2 => pair.atomics(0).post_atomic(id, WorkId(1), range, AtomicOp::Load).unwrap(),
            _ => {
                pair.revoke(1, link, words);
                pair.atomics(0).post_atomic(id, WorkId(1), words, AtomicOp::FetchAdd(1)).unwrap();
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
    assert!(pair.atomics(1).post_local_atomic(WorkId(1), word(0), AtomicOp::Load).is_err());
    let memory = pair.sides[1].memory.clone();
    pair.fabric(1).register(Pair::<VerbsRig>::SEGMENT, memory).unwrap();
    assert_eq!(local_op(&mut pair, word(0), AtomicOp::Load), 3);
}
