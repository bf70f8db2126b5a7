//! Writes and messages arrive complete and in order.

use super::Rig;
use super::pair::{Heard, Link, Pair};
use transfer_core::fabric::{Fabric, PostError, WorkId};
use transfer_core::memory::LocalSlice;

const LEN: u64 = 1 << 20;
const GUARD: u64 = 64;

/// Writes `len` bytes, checks them, and checks that nothing around them changed.
fn write_and_check<R: Rig>(pair: &mut Pair<R>, link: Link, side: usize, len: u64) {
    let to = 1 - side;
    let bytes = pair.fill(side, 0, len, len + 1);
    let around = pair.fill(to, 0, len + 2 * GUARD, len + 2);
    let remote = pair.grant(to, link, Pair::<R>::slice(GUARD, len));
    // As few writes as the fabric allows. The last one raises the immediate.
    let max = pair.fabric(side).capabilities().max_write_bytes;
    let mut at = 0;
    let work = loop {
        let part = max.min(len - at);
        let last = at + part == len;
        let remote = remote.sub(at, part).unwrap();
        let slice = Pair::<R>::slice(at, part);
        let work = pair.post_write(side, link, &[slice], remote, last.then_some(len as u32)).unwrap();
        at += part;
        if last {
            break work;
        }
    };
    assert_eq!(pair.immediate(to, link), len as u32);
    pair.write_done(side, link, work);
    let now = pair.read(to, 0, len + 2 * GUARD);
    let (guard, end) = (GUARD as usize, (GUARD + len) as usize);
    assert!(now[guard..end] == bytes, "{len} bytes arrived changed");
    assert!(now[..guard] == around[..guard] && now[end..] == around[end..], "a write of {len} bytes went outside");
    pair.revoke(to, link, remote);
}

pub fn writes_of_many_sizes<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let powers = (0..19).flat_map(|i| [(1 << i) - 1, 1 << i, (1 << i) + 1]);
    for (i, len) in powers.chain([0, 100, 5000, 65_536 - 48, 65_536 - 96, 300_001]).enumerate() {
        write_and_check(&mut pair, link, i % 2, len);
    }
}

pub fn a_large_write<R: Rig>(rig: R) {
    let len = 64 << 20;
    let mut pair = Pair::new(rig, len + 2 * GUARD);
    let link = pair.connect(0);
    write_and_check(&mut pair, link, 0, len);
}

pub fn gather_lists_are_placed_in_order<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let max = pair.fabric(0).capabilities().max_sge;
    let source = pair.fill(0, 0, LEN, 3);
    for count in (1..=max).filter(|n| *n < 5 || n.is_power_of_two() || *n == max) {
        // The lengths differ and some are zero. The places are not in order.
        let lens = (0..count as u64).map(|i| (i * 37 + 1) % 900 * u64::from(i % 5 != 3));
        let sgl: Vec<LocalSlice> =
            lens.enumerate().map(|(i, len)| Pair::<R>::slice((i as u64 * 7919 * 64) % (LEN - 1024), len)).collect();
        let gathered: Vec<u8> =
            sgl.iter().flat_map(|s| source[s.offset as usize..(s.offset + s.len) as usize].iter().copied()).collect();
        let len = gathered.len() as u64;
        let remote = pair.grant(1, link, Pair::<R>::slice(128, len));
        let work = pair.post_write(0, link, &sgl, remote, None).unwrap();
        pair.write_done(0, link, work);
        assert!(pair.read(1, 128, len) == gathered, "{count} elements");
        pair.revoke(1, link, remote);
    }
    let remote = pair.grant(1, link, Pair::<R>::slice(0, 64));
    pair.post_write(0, link, &[], remote.sub(0, 0).unwrap(), Some(77)).unwrap();
    assert_eq!(pair.immediate(1, link), 77);
}

/// When an immediate is reported, its own write and all earlier writes are placed.
pub fn immediates_come_after_what_was_written<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(0, LEN));
    let bytes = pair.fill(0, 0, LEN, 4);
    let (parts, part) = (64_u64, LEN / 64);
    for i in 0..parts {
        let immediate = (i % 4 == 3).then_some(i as u32);
        let remote = remote.sub(i * part, part).unwrap();
        pair.post_write(0, link, &[Pair::<R>::slice(i * part, part)], remote, immediate).unwrap();
    }
    for i in (3..parts).step_by(4) {
        assert_eq!(pair.immediate(1, link), i as u32);
        let end = (i + 1) * part;
        assert!(pair.read(1, 0, end) == bytes[..end as usize]);
    }
}

// Promise: finished-push-to, seen to fail
pub fn completion_means_placed<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(0, LEN));
    let bytes = pair.fill(0, 0, LEN, 5);
    let part = LEN / 16;
    let mut works = Vec::new();
    for i in 0..16 {
        let slice = Pair::<R>::slice(i * part, part);
        works.push(pair.post_write(0, link, &[slice], remote.sub(i * part, part).unwrap(), None).unwrap());
    }
    for (i, work) in works.into_iter().enumerate() {
        // Writes complete in posting order, so the next completion is this one.
        let id = link.0[0];
        let next = pair.hear(0, "WriteDone", |h| match h {
            Heard::WriteDone(l, work) if *l == id => Some(*work),
            _ => None,
        });
        assert_eq!(next, work);
        let end = (i as u64 + 1) * part;
        assert!(pair.read(1, 0, end) == bytes[..end as usize]);
    }
}

pub fn messages_arrive_in_order<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(1);
    let max = pair.fabric(0).capabilities().max_message_bytes;
    let slots = pair.fabric(0).capabilities().receive_slots as usize;
    let lens = [0, 1, 7, 48, 64, max - 1, max];
    for batch in 0..20 {
        let count = slots.min(50);
        let messages: Vec<Vec<u8>> =
            (0..count).map(|i| super::pair::pattern(lens[(i + batch) % lens.len()] as u64, i as u64)).collect();
        let works: Vec<WorkId> = messages.iter().map(|m| pair.post_send(0, link, m).unwrap()).collect();
        for message in messages {
            let next = pair.hear(1, "Message", |h| match h {
                Heard::Message(_, bytes) => Some(bytes.clone()),
                _ => None,
            });
            assert!(next == message);
        }
        for work in works {
            let next = pair.hear(0, "SendDone", |h| match h {
                Heard::SendDone(_, work) => Some(*work),
                _ => None,
            });
            assert_eq!(next, work);
        }
    }
}

pub fn limits_are_reported<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let capabilities = pair.fabric(0).capabilities().clone();
    assert!(capabilities.max_message_bytes >= transfer_core::fabric::Capabilities::MIN_MESSAGE_BYTES);
    let remote = pair.grant(1, link, Pair::<R>::slice(0, LEN));
    let too_many = vec![Pair::<R>::slice(0, 1); capabilities.max_sge + 1];
    let len = too_many.len() as u64;
    let posted = pair.post_write(0, link, &too_many, remote.sub(0, len).unwrap(), None);
    assert!(matches!(posted, Err(PostError::Limit { .. })), "{posted:?}");
    let too_long = vec![0; capabilities.max_message_bytes + 1];
    let posted = pair.post_send(0, link, &too_long);
    assert!(matches!(posted, Err(PostError::Limit { .. })), "{posted:?}");
    // The lengths must add up.
    for len in [63, 65] {
        let posted = pair.post_write(0, link, &[Pair::<R>::slice(0, len)], remote.sub(0, 64).unwrap(), None);
        assert!(matches!(posted, Err(PostError::Limit { .. })), "{posted:?}");
    }
    pair.works(link);
}

pub fn a_full_queue_recovers<R: Rig>(rig: R) {
    let mut pair = Pair::new(rig, LEN);
    let link = pair.connect(0);
    let remote = pair.grant(1, link, Pair::<R>::slice(0, 64));
    let mut works = Vec::new();
    for _ in 0..3 {
        let posted = loop {
            match pair.post_write(0, link, &[Pair::<R>::slice(0, 64)], remote, None) {
                Ok(work) => works.push(work),
                Err(error) => break error,
            }
            assert!(works.len() < 1_000_000, "the send queue never fills");
        };
        assert_eq!(posted, PostError::Full(link.0[0]));
        // Messages may share the room of writes or have their own. Either way the post succeeds or reports `Full`.
        let sent = pair.post_send(0, link, b"m");
        assert!(sent.is_ok() || sent == Err(PostError::Full(link.0[0])), "{sent:?}");
        for work in works.drain(..) {
            let next = pair.hear(0, "WriteDone", |h| match h {
                Heard::WriteDone(_, work) => Some(*work),
                _ => None,
            });
            assert_eq!(next, work);
        }
    }
    pair.works(link);
}

pub fn both_directions_at_once<R: Rig>(rig: R) {
    let len = 16 << 20;
    let mut pair = Pair::new(rig, 2 * len);
    let link = pair.connect(0);
    let sent = [0, 1].map(|side| pair.fill(side, 0, len, side as u64 + 6));
    for side in 0..2 {
        let remote = pair.grant(1 - side, link, Pair::<R>::slice(len, len));
        for (i, part) in [0..len / 2, len / 2..len].into_iter().enumerate() {
            let (offset, len) = (part.start, part.end - part.start);
            let remote = remote.sub(offset, len).unwrap();
            pair.post_write(side, link, &[Pair::<R>::slice(offset, len)], remote, Some(i as u32)).unwrap();
        }
    }
    for side in 0..2 {
        assert_eq!((pair.immediate(side, link), pair.immediate(side, link)), (0, 1));
        assert!(pair.read(side, len, len) == sent[1 - side]);
    }
}
