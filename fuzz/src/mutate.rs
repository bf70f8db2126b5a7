//! Mutations of bytes.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore};

/// Numbers at the limits of field types.
const EDGES: [u64; 16] =
    [0, 1, 2, 7, 63, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0xffff, 0x1_0000, 0x7fff_ffff, 0xffff_ffff, 1 << 63, u64::MAX];

/// Returns one input of `pool`, changed in one or a few ways, and at most `max_len` long.
pub fn one(pool: &[Vec<u8>], max_len: usize, random: &mut SmallRng) -> Vec<u8> {
    let mut bytes = pool.choose(random).cloned().unwrap_or_default();
    for _ in 0..1 << random.random_range(0..4) {
        change(&mut bytes, pool, random);
    }
    bytes.truncate(max_len);
    bytes
}

fn change(bytes: &mut Vec<u8>, pool: &[Vec<u8>], random: &mut SmallRng) {
    let len = bytes.len();
    let at = if len == 0 { 0 } else { random.random_range(0..len) };
    match random.random_range(0..10) {
        0 if len > 0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 if len > 0 => bytes[at] = random.random(),
        2 => put(bytes, at, EDGES.choose(random).copied().unwrap_or(0), random),
        // A number near the present one, or near the length.
        3 => {
            let near = if random.random() { len as u64 } else { bytes.get(at).copied().unwrap_or(0).into() };
            put(bytes, at, near.wrapping_add(random.random_range(0..5)).wrapping_sub(2), random);
        }
        4 => bytes.truncate(at),
        5 => {
            let more = random.random_range(1..64);
            let mut tail = vec![0; more];
            random.fill_bytes(&mut tail);
            bytes.extend(tail);
        }
        6 if len > 0 => {
            let end = (at + random.random_range(1..32)).min(len);
            bytes.drain(at..end);
        }
        7 if len > 0 => {
            let end = (at + random.random_range(1..64)).min(len);
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
        // The beginning of one input and the end of another.
        8 => {
            let other = pool.choose(random).map_or(&[][..], Vec::as_slice);
            bytes.truncate(at);
            bytes.extend(other.get(at.min(other.len())..).unwrap_or(&[]));
        }
        _ if len > 0 => {
            let end = (at + random.random_range(1..16)).min(len);
            random.fill_bytes(&mut bytes[at..end]);
        }
        _ => {}
    }
}

/// Overwrites a number of 1, 2, 4 or 8 bytes, preferably where a field begins.
fn put(bytes: &mut [u8], at: usize, number: u64, random: &mut SmallRng) {
    let width = 1 << random.random_range(0..4);
    let at = if random.random() { at & !(width - 1) } else { at };
    let bytes_of = if random.random_ratio(7, 8) {
        number.to_le_bytes()
    } else {
        number.rotate_right(8 * width as u32).to_be_bytes()
    };
    for (to, from) in bytes.iter_mut().skip(at).zip(bytes_of).take(width) {
        *to = from;
    }
}
