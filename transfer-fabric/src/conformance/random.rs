//! Thousands of random operations from a fixed seed. The content of each write is checked.
//!
//! Each side grants the other a few slots. The peer writes a slot with an immediate that names it. The slot's owner
//! checks the content, sometimes revokes the grant, makes a new grant, and tells the peer by message that the slot is
//! free and with which key.

use super::pair::{Heard, Link, Pair, pattern};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use transfer_core::fabric::{Fabric, GrantAccess, PostError};
use transfer_core::memory::{LocalSlice, RailKeys, RemoteKey, RemoteSlice};

const SLOTS: u64 = 12;
const SLOT_BYTES: u64 = 200_000;
/// How many operations there are, unless `TRANSFER_CONFORMANCE_OPERATIONS` says another number. On an emulated processor
/// all of them take a minute.
const OPERATIONS: u32 = 4_000;

fn operations() -> u32 {
    match std::env::var("TRANSFER_CONFORMANCE_OPERATIONS") {
        Ok(text) => text.parse().expect("TRANSFER_CONFORMANCE_OPERATIONS is a number"),
        Err(_) => OPERATIONS,
    }
}

/// The offset of the sources, which lie behind the slots.
const SOURCES: u64 = SLOTS * SLOT_BYTES;

struct End {
    /// Slots of the peer that may be written.
    free: VecDeque<(u32, RemoteSlice)>,
    /// The length and seed of the pattern that each of this side's slots must hold when its immediate arrives.
    expected: Vec<Option<(u64, u64)>>,
    /// The keys and tags of this side's slots.
    keys: Vec<(RemoteKey, u64)>,
    /// The number of tags that `next_tag` has returned.
    grants: u64,
    /// Messages to send.
    queue: VecDeque<FreeMessage>,
}

impl End {
    /// Returns a new tag for a grant of that slot.
    fn next_tag(&mut self, slot: u32) -> u64 {
        self.grants += 1;
        self.grants << 32 | u64::from(slot)
    }
}

pub fn mixed_operations<R: super::Rig>(rig: R) {
    let mut pair = Pair::new(rig, 2 * SOURCES);
    let link = pair.connect(0);
    let mut rng = StdRng::seed_from_u64(42);
    let mut ends: Vec<End> = (0..2)
        .map(|side| {
            let keys = (0..SLOTS).map(|slot| {
                let remote = pair.grant(side, link, Pair::<R>::slice(slot * SLOT_BYTES, SLOT_BYTES));
                ((remote.key(), pair.tag_of(side, link, remote)), free_message(slot as u32, remote))
            });
            let (keys, queue) = keys.collect();
            End { free: VecDeque::new(), expected: vec![None; SLOTS as usize], keys, grants: 0, queue }
        })
        .collect();
    let (mut written, operations) = (0, operations());
    while written < operations || ends.iter().any(|end| end.expected.iter().any(Option::is_some)) {
        for side in 0..2 {
            send_queued(&mut pair, link, side, &mut ends[side]);
            if written < operations && rng.random_bool(0.7) {
                written += u32::from(write_one(&mut pair, link, side, &mut ends, &mut rng));
            }
        }
        if rng.random_bool(0.5) {
            pair.round();
        }
        for side in 0..2 {
            for event in std::mem::take(&mut pair.sides[side].heard) {
                hear(&mut pair, link, side, &mut ends, &mut rng, event);
            }
        }
    }
}

/// The message, of seven words, that tells the peer that it may write a slot.
type FreeMessage = [u8; 56];

fn free_message(slot: u32, remote: RemoteSlice) -> FreeMessage {
    let mut words = [0; 7];
    words[..3].copy_from_slice(&[slot.into(), remote.address, remote.len]);
    for (word, key) in words[3..].iter_mut().zip(remote.keys.all()) {
        *word = key.map_or(u64::MAX, |key| key.0.into());
    }
    let mut message = [0; 56];
    for (to, word) in message.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&u64::to_ne_bytes(word));
    }
    message
}

fn free_of(message: &[u8]) -> (u32, RemoteSlice) {
    let words: Vec<u64> = message.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    let keys: Vec<_> = words[3..].iter().map(|key| u32::try_from(*key).ok().map(RemoteKey)).collect();
    (words[0] as u32, RemoteSlice { address: words[1], len: words[2], keys: RailKeys::new(&keys).unwrap() })
}

fn send_queued<R: super::Rig>(pair: &mut Pair<R>, link: Link, side: usize, end: &mut End) {
    while let Some(message) = end.queue.front() {
        match pair.post_send(side, link, message) {
            Ok(_) => end.queue.pop_front(),
            Err(PostError::Full(_)) => return,
            Err(error) => panic!("{error}"),
        };
    }
}

/// Writes a pattern of random length into a free slot of the peer, gathered from random pieces.
fn write_one<R: super::Rig>(pair: &mut Pair<R>, link: Link, side: usize, ends: &mut [End], rng: &mut StdRng) -> bool {
    let Some((slot, remote)) = ends[side].free.pop_front() else { return false };
    let len = match rng.random_range(0..4) {
        0 => rng.random_range(0..100),
        1 => rng.random_range(0..5_000),
        _ => rng.random_range(0..=SLOT_BYTES),
    };
    let seed = rng.random_range(1..1 << 20);
    let bytes = pattern(len, seed);
    // Each slot has its own source, so that a source does not change while its write is in flight.
    let source = SOURCES + u64::from(slot) * SLOT_BYTES;
    pair.rig.write(&pair.sides[side].memory, source, &bytes);
    let max = pair.fabric(side).capabilities().max_sge.min(9);
    let mut cuts: Vec<u64> = (1..rng.random_range(1..=max)).map(|_| rng.random_range(0..=len)).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    let sgl: Vec<LocalSlice> = cuts.windows(2).map(|w| Pair::<R>::slice(source + w[0], w[1] - w[0])).collect();
    let target = remote.sub(0, len).unwrap();
    // Sometimes as two writes; the second one raises the immediate.
    let posted = if sgl.len() > 1 && rng.random_bool(0.3) {
        let first = sgl[0].len;
        let head = pair.post_write(side, link, &sgl[..1], target.sub(0, first).unwrap(), None);
        head.and_then(|_| {
            let rest = target.sub(first, len - first).unwrap();
            pair.post_write(side, link, &sgl[1..], rest, Some(slot))
        })
    } else {
        pair.post_write(side, link, &sgl, target, Some(slot))
    };
    match posted {
        Ok(_) => ends[1 - side].expected[slot as usize] = Some((len, seed)),
        Err(PostError::Full(_)) => {
            ends[side].free.push_back((slot, remote));
            return false;
        }
        Err(error) => panic!("{error}"),
    }
    true
}

fn hear<R: super::Rig>(pair: &mut Pair<R>, link: Link, side: usize, ends: &mut [End], rng: &mut StdRng, event: Heard) {
    match event {
        Heard::Immediate(_, slot) => {
            let (len, seed) = ends[side].expected[slot as usize].take().unwrap();
            let start = u64::from(slot) * SLOT_BYTES;
            assert!(pair.read(side, start, len) == pattern(len, seed), "slot {slot} of side {side}, {len} bytes");
            let tag = ends[side].next_tag(slot);
            if rng.random_bool(0.3) {
                let (key, old) = ends[side].keys[slot as usize];
                pair.fabric(side).revoke(link.0[side], key, old).unwrap();
            } else {
                // The slot gets a second grant of the same range. The first one stays until the link ends.
            }
            let range = Pair::<R>::slice(start, SLOT_BYTES);
            if let Err(error) = pair.fabric(side).grant(link.0[side], range, GrantAccess::Write, tag) {
                panic!("{error}: {:?}", pair.dead(link));
            }
        }
        Heard::Granted(_, tag, remote) => {
            let slot = tag as u32;
            ends[side].keys[slot as usize] = (remote.key(), tag);
            ends[side].queue.push_back(free_message(slot, remote));
        }
        Heard::Message(_, bytes) => {
            ends[side].free.push_back(free_of(&bytes));
        }
        Heard::WriteDone(..) | Heard::SendDone(..) | Heard::Revoked(..) => {}
        // This test does not use references.
        Heard::References(..) | Heard::SegmentCame(..) => {}
        other => panic!("{other:?}"),
    }
}
