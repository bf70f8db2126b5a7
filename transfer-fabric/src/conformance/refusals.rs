//! Writes that fail their check. They touch no memory, both sides report the link as dead, and a new link works.

use super::Rig;
use super::pair::{Heard, Link, Pair};
use transfer_core::fabric::{DownReason, Fabric, Isolation};
use transfer_core::memory::{RailKeys, RemoteKey, RemoteSlice};

const LEN: u64 = 1 << 17;
const HALF: u64 = LEN / 2;

/// Writes to `remote` after a valid write, and expects the link to die.
fn refused<R: Rig>(pair: &mut Pair<R>, link: Link, remote: RemoteSlice) {
    let good = pair.grant(1, link, Pair::<R>::slice(0, 64));
    let before = pair.fill(1, 0, LEN, 1);
    let bytes = pair.fill(0, 0, LEN, 2);
    pair.post_write(0, link, &[Pair::<R>::slice(0, 64)], good, None).unwrap();
    pair.post_write(0, link, &[Pair::<R>::slice(0, remote.len)], remote, None).unwrap();
    pair.post_write(0, link, &[Pair::<R>::slice(64, 64)], good, None).unwrap();
    pair.dead(link);
    let now = pair.read(1, 0, LEN);
    assert!(now[64..] == before[64..], "a refused write touched memory");
    // On several rails, the valid write may be cut short, if another rail is refused first.
    let placed = (0..64).take_while(|at| now[*at] == bytes[*at]).count();
    assert!(now[placed..64] == before[placed..64], "a write behind a refused one was placed");
    let again = pair.connect(1);
    pair.works(again);
}

/// Writes to `remote`, which is not open, over `link`. Where each grant has a key of its own, the write is refused.
/// Where all grants into a segment share one key, a device cannot tell: the write is placed, and the link still works.
/// The user of the fabric has to know that.
fn refused_where_grants_are_apart<R: Rig>(pair: &mut Pair<R>, link: Link, remote: RemoteSlice) {
    if pair.fabric(1).capabilities().isolation == Isolation::Grant {
        return refused(pair, link, remote);
    }
    let bytes = pair.fill(0, 0, remote.len, 3);
    let work = pair.post_write(0, link, &[Pair::<R>::slice(0, remote.len)], remote, None).unwrap();
    pair.write_done(0, link, work);
    // A write with an immediate, which tells that the memory can be read.
    let own = pair.grant(1, link, Pair::<R>::slice(0, 64));
    let work = pair.post_write(0, link, &[Pair::<R>::slice(0, 64)], own, Some(1)).unwrap();
    assert_eq!(pair.immediate(1, link), 1);
    pair.write_done(0, link, work);
    assert!(pair.read(1, HALF, remote.len) == bytes);
    pair.works(link);
}

/// Returns `remote` with keys that open nothing.
fn unknown(remote: RemoteSlice) -> RemoteSlice {
    let keys = remote.keys.all().map(|key| key.map(|key| RemoteKey(key.0 ^ 0x5555_0000)));
    RemoteSlice { keys: RailKeys::new(&keys).unwrap(), ..remote }
}

pub fn unknown_key_is_refused<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    for len in [1, 4096, HALF] {
        let link = pair.connect(0);
        let remote = pair.grant(1, link, Pair::<R>::slice(HALF, HALF));
        refused(&mut pair, link, RemoteSlice { len, ..unknown(remote) });
    }
}

pub fn key_of_another_link_is_checked<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let (link, other) = (pair.connect(0), pair.connect(0));
    let remote = pair.grant(1, other, Pair::<R>::slice(HALF, HALF));
    refused_where_grants_are_apart(&mut pair, link, remote);
    // The other link still works, and its grant is still in force.
    pair.works(other);
    let work = pair.post_write(0, other, &[Pair::<R>::slice(0, HALF)], remote, None).unwrap();
    pair.write_done(0, other, work);
}

// Promise: writes-of-peers, seen to fail
pub fn write_out_of_bounds_is_refused<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let inside = [(0, 1), (-1, 0), (4096, 0), (-(HALF as i64), 0)];
    // Past the segment's end, across it, and before its start.
    let outside = [(HALF as i64, 0), (HALF as i64 - 4095, 0), (-(HALF as i64) - 1, 0)];
    let checked = pair.fabric(1).capabilities().checks_bounds;
    if !checked {
        println!("not tried: this fabric says that it does not check the bounds of a grant inside its segment");
    }
    for (shift, grow) in inside.into_iter().filter(|_| checked).chain(outside) {
        let link = pair.connect(0);
        let remote = pair.grant(1, link, Pair::<R>::slice(HALF, 4096));
        let address = remote.address.wrapping_add_signed(shift);
        refused(&mut pair, link, RemoteSlice { address, len: 4096 + grow, ..remote });
    }
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(HALF, 4096));
    refused(&mut pair, link, RemoteSlice { address: u64::MAX - 63, len: 64, ..remote });
}

// Promise: writes-of-peers, seen to fail
pub fn revoked_key_is_checked<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(HALF, HALF));
    // The key works before it is revoked.
    let work = pair.post_write(0, link, &[Pair::<R>::slice(0, HALF)], remote, None).unwrap();
    pair.write_done(0, link, work);
    pair.revoke(1, link, remote);
    refused_where_grants_are_apart(&mut pair, link, remote);
}

pub fn key_of_a_dead_link_is_checked<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(HALF, HALF));
    pair.fabric(1).disconnect(link.0[1], DownReason::Closed("test".into()));
    pair.dead(link);
    let again = pair.connect(0);
    refused_where_grants_are_apart(&mut pair, again, remote);
}

pub fn a_refused_write_raises_no_immediate<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(HALF, HALF));
    let closed = unknown(remote);
    pair.post_write(0, link, &[Pair::<R>::slice(0, HALF)], closed, Some(9)).unwrap();
    pair.post_send(0, link, b"behind it").unwrap();
    pair.dead(link);
    let id = link.0[1];
    let leaked = |h: &Heard| matches!(h, Heard::Immediate(l, _) | Heard::Message(l, _) if *l == id);
    assert!(!pair.sides[1].heard.iter().any(leaked));
}
