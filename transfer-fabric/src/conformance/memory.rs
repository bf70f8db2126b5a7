//! Registration and grants.

use super::Rig;
use super::pair::{Heard, Pair};
use transfer_core::fabric::{Fabric, FabricError, GrantAccess, Isolation, PostError, WorkId};
use transfer_core::memory::{LocalSlice, RemoteKey, RemoteSlice, SegmentId};

const LEN: u64 = 1 << 16;

pub fn registers_once<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let id = Pair::<R>::SEGMENT;
    let memory = pair.sides[0].memory.clone();
    let other = SegmentId(9);
    let fabric = pair.fabric(0);
    assert_eq!(fabric.register(id, memory.clone()), Err(FabricError::AlreadyRegistered(id)));
    assert_eq!(fabric.deregister(other), Err(FabricError::UnknownSegment(other)));
    fabric.deregister(id).unwrap();
    assert_eq!(fabric.deregister(id), Err(FabricError::UnknownSegment(id)));
    fabric.register(id, memory).unwrap();
    let link = pair.connect(0);
    pair.works(link);
}

pub fn slices_are_checked<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(0, LEN));
    let elsewhere = LocalSlice { segment: SegmentId(9), offset: 0, len: 1 };
    let slices = [(LEN, 1), (0, LEN + 1), (1, LEN), (u64::MAX, 1), (1, u64::MAX)].map(|(o, l)| Pair::<R>::slice(o, l));
    for bad in slices.into_iter().chain([elsewhere]) {
        let refused = PostError::BadLocalSlice(bad);
        assert_eq!(pair.fabric(0).grant(link.0[0], bad, GrantAccess::Write, 1), Err(refused.clone()));
        let remote = transfer_core::memory::RemoteSlice { len: bad.len.min(LEN), ..remote };
        let posted = pair.fabric(0).post_write(link.0[0], WorkId(1), &[bad], remote, None);
        assert!(
            posted == Err(refused) || bad.len > LEN && matches!(posted, Err(PostError::Limit { .. })),
            "{posted:?}"
        );
    }
    // None of these writes was posted.
    pair.works(link);
}

pub fn grants_are_reported<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let mut keys = Vec::new();
    for i in 0..100 {
        // Grants may overlap.
        let range = Pair::<R>::slice(i * 64, 4096 + i);
        let remote = pair.grant((i % 2) as usize, link, range);
        assert_eq!(remote.len, range.len);
        keys.push((remote.key(), i % 2));
    }
    if pair.fabric(0).capabilities().isolation == Isolation::Grant {
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), 100);
    }
}

pub fn every_revoke_is_reported<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(0, 64));
    pair.revoke(1, link, remote);
    // A revoked grant, and grants that never existed.
    pair.revoke(1, link, remote);
    pair.revoke(0, link, RemoteSlice::new(0, 64, RemoteKey(0x1234)));
    pair.works(link);
}

/// Adjacent grants, and two grants of one range. Each ends on its own, and the event names the grant that ended. All
/// of them may share one key.
pub fn grants_end_one_by_one<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let ranges = [(0, 4096), (4096, 4096), (8192, 4096), (8192, 4096)].map(|(at, len)| Pair::<R>::slice(at, len));
    let grants = ranges.map(|range| (range, pair.grant(1, link, range)));
    for at in [1, 3, 0] {
        let (range, remote) = grants[at];
        pair.revoke(1, link, remote);
        // The third grant is still open, and works as before.
        let (range, remote) = if range.offset == 8192 { (range, grants[2].1) } else { grants[2] };
        let bytes = pair.fill(0, 0, 4096, at as u64);
        let work = pair.post_write(0, link, &[Pair::<R>::slice(0, 4096)], remote, Some(at as u32)).unwrap();
        assert_eq!(pair.immediate(1, link), at as u32);
        pair.write_done(0, link, work);
        assert!(pair.read(1, range.offset, 4096) == bytes);
    }
    pair.revoke(1, link, grants[2].1);
    let left = |h: &Heard| matches!(h, Heard::Revoked(..));
    assert!(!pair.sides[1].heard.iter().any(left), "{:?}", pair.sides[1].heard);
    pair.works(link);
}

/// Memory in several ranges, as a fetch into the caller's memory opens it: its owner has it back when each revoke is reported, or the
/// link has ended. The peer was not told, and goes on writing.
// Promise: into-memory, seen to fail
pub fn closed_memory_is_its_owners_again<R: Rig>(rig: R) {
    close_under_writes(rig, true);
}

/// The same, but for an owner that does not wait until its memory is closed. It panics where grants take time to end.
#[cfg(test)]
pub fn memory_is_returned_before_it_is_closed<R: Rig>(rig: R) {
    close_under_writes(rig, false);
}

fn close_under_writes<R: Rig>(rig: R, waits: bool) {
    const RANGES: u64 = 6;
    const LEN_OF_EACH: u64 = 4096;
    let mut pair = Pair::new(rig, LEN);
    if pair.fabric(1).capabilities().isolation != Isolation::Grant {
        println!("not tried: with one key for a segment, no revoke closes anything");
        return;
    }
    let link = pair.connect(0);
    let range = |n: u64| Pair::<R>::slice(2 * n * LEN_OF_EACH, LEN_OF_EACH);
    let grants: Vec<_> = (0..RANGES).map(|n| pair.grant(1, link, range(n))).collect();
    pair.fill(0, 0, LEN, 1);
    let mut next = 0;
    let mut write = |pair: &mut Pair<R>| {
        let from = Pair::<R>::slice(0, LEN_OF_EACH);
        // A full queue, and a link that has ended, take nothing.
        let _ = pair.post_write(0, link, &[from], grants[next % grants.len()], None);
        next += 1;
    };
    (0..RANGES).for_each(|_| write(&mut pair));
    for remote in &grants {
        let (key, tag) = (remote.key(), pair.tag_of(1, link, *remote));
        pair.fabric(1).revoke(link.0[1], key, tag).unwrap();
    }
    let is_down = |h: &Heard| matches!(h, Heard::Down(..));
    pair.until("the end of the grants, or of the link", |pair| {
        write(pair);
        let heard = &pair.sides[1].heard;
        let revoked = heard.iter().filter(|h| matches!(h, Heard::Revoked(..))).count();
        !waits || revoked == grants.len() || heard.iter().any(is_down)
    });
    let own = pair.fill(1, 0, LEN, 2);
    // A write that comes now ends the link.
    pair.until("the end of the link", |pair| {
        write(pair);
        pair.sides.iter().all(|side| side.heard.iter().any(is_down))
    });
    assert!(pair.read(1, 0, LEN) == own, "memory that is its owner's again was written by a peer");
    let again = pair.connect(1);
    pair.works(again);
}

pub fn deregistering_takes_grants_back<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let (extra, id) = (pair.rig.memory(4096), SegmentId(2));
    pair.fabric(1).register(id, extra.clone()).unwrap();
    let remote = pair.grant(1, link, LocalSlice { segment: id, offset: 0, len: 4096 });
    pair.fill(0, 0, 4096, 1);
    pair.fabric(1).deregister(id).unwrap();
    // The segment is registered again under its number, but stays closed to the old key.
    pair.fabric(1).register(id, extra.clone()).unwrap();
    pair.post_write(0, link, &[Pair::<R>::slice(0, 4096)], remote, Some(1)).unwrap();
    pair.dead(link);
    let mut now = vec![1; 4096];
    pair.rig.read(&extra, 0, &mut now);
    assert!(now.iter().all(|byte| *byte == 0));
    let again = pair.connect(0);
    pair.works(again);
}

pub fn read_only_memory_is_not_granted<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let Some(memory) = pair.rig.read_only_memory(4096) else { return };
    let link = pair.connect(0);
    let id = SegmentId(2);
    pair.fabric(0).register(id, memory).unwrap();
    let range = LocalSlice { segment: id, offset: 0, len: 4096 };
    assert_eq!(pair.fabric(0).grant(link.0[0], range, GrantAccess::Write, 1), Err(PostError::BadLocalSlice(range)));
    // It may still be the source of a write.
    let remote = pair.grant(1, link, Pair::<R>::slice(0, 4096));
    let work = pair.post_write(0, link, &[range], remote, None).unwrap();
    pair.write_done(0, link, work);
}
