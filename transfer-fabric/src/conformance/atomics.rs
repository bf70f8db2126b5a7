//! Atomic operations on words of the peer, and on a side's own words, by the device that also serves peers. A fabric
//! without atomics must refuse them.

use super::Rig;
use super::pair::{Heard, Link, Pair};
use transfer_core::fabric::{AtomicOp, DownReason, Fabric, GrantAccess, PostError, WorkId};
use transfer_core::memory::{LocalSlice, RemoteSlice};

const LEN: u64 = 1 << 16;

/// The offset of the word.
const AT: u64 = 128;

/// Returns a connected pair, and a word of side 1 that is granted to side 0. Returns `None` if the fabric has no
/// atomic operations.
fn words<R: Rig>(rig: R) -> Option<(Pair<R>, Link, RemoteSlice)> {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    if !pair.fabric(0).capabilities().atomics {
        // Such a fabric refuses the grant, and its link still works.
        let (id, word) = (link.0[0], Pair::<R>::slice(AT, 8));
        let refused = pair.fabric(0).grant(id, word, GrantAccess::Atomic, 1);
        assert!(matches!(refused, Err(PostError::Unsupported { .. })), "{refused:?}");
        assert!(pair.fabric(0).atomics().is_none());
        pair.works(link);
        return None;
    }
    let remote = pair.grant_words(1, link, Pair::<R>::slice(AT, 8));
    Some((pair, link, remote))
}

fn set<R: Rig>(pair: &mut Pair<R>, value: u64) {
    pair.rig.write(&pair.sides[1].memory, AT, &value.to_ne_bytes());
}

fn value<R: Rig>(pair: &mut Pair<R>) -> u64 {
    let mut bytes = [0; 8];
    pair.rig.read(&pair.sides[1].memory, AT, &mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Does an operation of side 0 on side 1's word. Returns the value that the word held before.
fn remotely<R: Rig>(pair: &mut Pair<R>, link: Link, remote: RemoteSlice, op: AtomicOp) -> u64 {
    let (work, id) = (pair.new_work(), link.0[0]);
    pair.atomics(0).post_atomic(id, work, remote, op).unwrap();
    pair.hear(0, "AtomicDone", |h| match h {
        Heard::AtomicDone(l, w, old) if (*l, *w) == (id, work) => Some(*old),
        _ => None,
    })
}

fn locally<R: Rig>(pair: &mut Pair<R>, word: LocalSlice, op: AtomicOp) -> u64 {
    let work = pair.new_work();
    pair.atomics(1).post_local_atomic(work, word, op).unwrap();
    pair.hear(1, "LocalAtomicDone", |h| match h {
        Heard::LocalAtomicDone(w, old) if *w == work => Some(old.clone().unwrap()),
        _ => None,
    })
}

pub fn words_are_read_added_to_and_swapped<R: Rig>(rig: R) {
    let Some((mut pair, link, remote)) = words(rig) else { return };
    set(&mut pair, 40);
    let swap = |expected, new| AtomicOp::CompareSwap { expected, new };
    assert_eq!(remotely(&mut pair, link, remote, AtomicOp::Load), 40);
    assert_eq!(remotely(&mut pair, link, remote, AtomicOp::FetchAdd(2)), 40);
    assert_eq!(remotely(&mut pair, link, remote, swap(41, 7)), 42, "it is not what was expected");
    assert_eq!(value(&mut pair), 42);
    assert_eq!(remotely(&mut pair, link, remote, swap(42, u64::MAX)), 42);
    assert_eq!(remotely(&mut pair, link, remote, AtomicOp::FetchAdd(3)), u64::MAX);
    assert_eq!(value(&mut pair), 2, "adding wraps");
    pair.works(link);
}

pub fn own_words_are_operated_on_by_the_device<R: Rig>(rig: R) {
    let Some((mut pair, link, remote)) = words(rig) else { return };
    let word = Pair::<R>::slice(AT, 8);
    assert_eq!(locally(&mut pair, word, AtomicOp::FetchAdd(5)), 0);
    assert_eq!(remotely(&mut pair, link, remote, AtomicOp::FetchAdd(6)), 5);
    assert_eq!(locally(&mut pair, word, AtomicOp::CompareSwap { expected: 10, new: 1 }), 11);
    assert_eq!(locally(&mut pair, word, AtomicOp::CompareSwap { expected: 11, new: 100 }), 11);
    assert_eq!(remotely(&mut pair, link, remote, AtomicOp::Load), 100);
    assert_eq!(locally(&mut pair, word, AtomicOp::Load), 100);
    for bad in [Pair::<R>::slice(AT + 4, 8), Pair::<R>::slice(AT, 4), Pair::<R>::slice(LEN, 8)] {
        assert!(pair.atomics(1).post_local_atomic(WorkId(1), bad, AtomicOp::FetchAdd(1)).is_err(), "{bad}");
    }
    // Local operations need no peer.
    pair.kill(0);
    assert_eq!(locally(&mut pair, word, AtomicOp::FetchAdd(1)), 100);
}

/// Both sides add as fast as they can. No add is lost, and no two adds return the same value.
pub fn adds_from_both_sides_all_count<R: Rig>(rig: R) {
    let Some((mut pair, link, remote)) = words(rig) else { return };
    const EACH: u64 = 200;
    let (word, id) = (Pair::<R>::slice(AT, 8), link.0[0]);
    let (mut far, mut near) = (0, 0);
    let mut seen = Vec::new();
    pair.until("all adds", |pair| {
        while far < EACH {
            let work = pair.new_work();
            match pair.atomics(0).post_atomic(id, work, remote, AtomicOp::FetchAdd(1)) {
                Ok(()) => far += 1,
                Err(PostError::Full(_)) => break,
                Err(e) => panic!("{e}"),
            }
        }
        // The near side has at most 8 adds in flight.
        let done = pair.sides[1].heard.iter().filter(|h| matches!(h, Heard::LocalAtomicDone(..))).count() as u64;
        if near < EACH && near < done + 8 {
            let work = pair.new_work();
            pair.atomics(1).post_local_atomic(work, word, AtomicOp::FetchAdd(1)).unwrap();
            near += 1;
        }
        let heard = pair.sides.iter().flat_map(|side| &side.heard);
        let olds = heard.filter_map(|h| match h {
            Heard::AtomicDone(_, _, old) => Some(*old),
            Heard::LocalAtomicDone(_, old) => Some(old.clone().unwrap()),
            _ => None,
        });
        seen = olds.collect();
        seen.len() as u64 == 2 * EACH
    });
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..2 * EACH));
    assert_eq!(value(&mut pair), 2 * EACH);
}

/// Posts an operation that must be refused, either at once or by the death of the link. The word keeps its value.
fn refused<R: Rig>(mut pair: Pair<R>, link: Link, remote: RemoteSlice) {
    set(&mut pair, 9);
    let (work, id) = (pair.new_work(), link.0[0]);
    if pair.atomics(0).post_atomic(id, work, remote, AtomicOp::FetchAdd(1)).is_ok() {
        let [_, there] = pair.dead(link);
        assert!(!matches!(there, DownReason::Closed(_)), "{there}");
        assert!(!pair.sides[0].heard.iter().any(|h| matches!(h, Heard::AtomicDone(..))));
    }
    assert_eq!(value(&mut pair), 9);
    let again = pair.connect(0);
    pair.works(again);
}

pub fn word_without_a_grant_is_refused<R: Rig>(rig: R) {
    let Some((mut pair, link, _)) = words(rig) else { return };
    // The range is open to writes only.
    let writable = pair.grant(1, link, Pair::<R>::slice(AT, 8));
    refused(pair, link, writable);
}

pub fn word_with_a_revoked_grant_is_refused<R: Rig>(rig: R) {
    let Some((mut pair, link, remote)) = words(rig) else { return };
    assert_eq!(remotely(&mut pair, link, remote, AtomicOp::FetchAdd(1)), 0);
    pair.revoke(1, link, remote);
    refused(pair, link, remote);
}

pub fn words_are_aligned<R: Rig>(rig: R) {
    let Some((mut pair, link, _)) = words(rig) else { return };
    for bad in [Pair::<R>::slice(AT + 4, 8), Pair::<R>::slice(AT, 12)] {
        let granted = pair.fabric(1).grant(link.0[1], bad, GrantAccess::Atomic, 1);
        assert!(!matches!(granted, Ok(()) | Err(PostError::Full(_))), "{bad}: {granted:?}");
    }
    let two = pair.grant_words(1, link, Pair::<R>::slice(AT, 16));
    let Some(between) = two.sub(4, 8) else { panic!("{two:?} has 16 bytes") };
    refused(pair, link, between);
}
