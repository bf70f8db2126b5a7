//! Tests of deltas: what is encoded and applied is the version, and what is no delta is refused.

use super::*;
use proptest::prelude::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

fn encode_all(base: &[u8], new: &[u8]) -> Encoded {
    encode_bytes(base, new, u64::MAX).unwrap()
}

/// Changes elements of this width, each with this probability, and `run` of them together.
fn change(bytes: &mut [u8], width: usize, density: f64, run: usize, rng: &mut SmallRng) {
    for group in bytes.chunks_mut(width * run) {
        if rng.random_bool(density) {
            rng.fill(group);
        }
    }
}

/// A version and the next one.
fn versions(len: usize, width: usize, density: f64, run: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut base = vec![0; len];
    rng.fill(&mut base[..]);
    let mut new = base.clone();
    change(&mut new, width, density, run, &mut rng);
    (base, new)
}

/// The most bytes that a delta may take in the worst case: all blocks are sent whole.
fn worst(len: usize) -> usize {
    head_bytes(len as u64) as usize + len
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // Promise: deltas, seen to fail
    #[test]
    fn version_is_what_its_delta_makes_of_the_base(
        len in prop_oneof![0..200_usize, Just(BLOCK_BYTES), Just(BLOCK_BYTES * 2 + 77), 100_000..300_000_usize],
        width in prop_oneof![Just(1_usize), Just(2), Just(4), Just(8)],
        density in prop_oneof![Just(0.0), Just(1.0), 0.0..0.1_f64, 0.0..=1.0_f64],
        run in prop_oneof![Just(1_usize), 1..500_usize],
        seed: u64,
    ) {
        let (base, new) = versions(len, width, density, run, seed);
        let delta = encode_all(&base, &new);
        prop_assert!(delta.bytes.len() <= worst(len));
        prop_assert!(apply(&base, &delta.bytes).unwrap() == new);
        if base != new && !base.is_empty() {
            // Onto the version itself, or another base, a delta makes the version or nothing.
            let mut other = base.clone();
            other[seed as usize % len] ^= 1;
            for base in [&new, &other] {
                prop_assert!(apply(base, &delta.bytes).is_ok_and(|made| made == new) || apply(base, &delta.bytes) == Err(NotApplied::OtherBytes));
            }
        }
    }
}

// Promise: deltas, seen to fail
#[test]
fn delta_of_another_base_is_refused() {
    let (base, new) = versions(1 << 20, 2, 0.03, 1, 1);
    let delta = encode_all(&base, &new).bytes;
    let mut other = base.clone();
    // Where the version has not changed.
    let same = (0..base.len()).find(|at| base[*at] == new[*at]).unwrap();
    other[same] ^= 1;
    assert_eq!(apply(&other, &delta), Err(NotApplied::OtherBytes));
    assert!(matches!(apply(&base[1..], &delta), Err(NotApplied::Malformed(_))));
}

#[test]
fn thousand_deltas_follow_each_other() {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut version = vec![0; 5000];
    let mut made = version.clone();
    for _ in 0..1000 {
        let base = version.clone();
        change(&mut version, 2, 0.03, 1, &mut rng);
        made = apply(&made, &encode_all(&base, &version).bytes).unwrap();
        assert!(made == version);
    }
}

// Promise: deltas, seen to fail
#[test]
fn elements_that_rise_or_fall_by_one_are_short() {
    let mut rng = SmallRng::seed_from_u64(9);
    for (others, bytes) in [(0.0, 1.3), (0.1, 1.6), (0.4, 2.5), (0.9, 3.1)] {
        let base: Vec<u8> = (0..1 << 20).map(|_| rng.random()).collect();
        let mut new = base.clone();
        let mut changed = 0;
        for element in new.as_chunks_mut::<2>().0 {
            if !rng.random_bool(0.03) {
                continue;
            }
            changed += 1;
            // They go round at the ends, and from one exponent to the next.
            let step = [1, u16::MAX, rng.random_range(2..u16::MAX)];
            let step = if rng.random_bool(others) { step[2] } else { step[changed % 2] };
            *element = u16::from_le_bytes(*element).wrapping_add(step).to_le_bytes();
        }
        new[..2].copy_from_slice(&u16::from_le_bytes([base[0], base[1]]).wrapping_sub(1).to_le_bytes());
        let delta = encode_all(&base, &new).bytes;
        assert!(apply(&base, &delta).unwrap() == new);
        let each = delta.len() as f64 / changed as f64;
        assert!(each < bytes, "{each} bytes for each element, where {others} are others");
    }
}

#[test]
fn steps_in_runs_are_short_and_few_steps_take_no_longer_form() {
    let base: Vec<u8> = (0..BLOCK_BYTES).map(|n| (n * 7 + n / 256) as u8).collect();
    let stepped = |places: &mut dyn Iterator<Item = usize>| {
        let mut new = base.clone();
        for at in places {
            let element = &mut new.as_chunks_mut::<2>().0[at];
            *element = u16::from_le_bytes(*element).wrapping_add(1).to_le_bytes();
        }
        let delta = encode_all(&base, &new).bytes;
        assert!(apply(&base, &delta).unwrap() == new);
        delta.len() - head_bytes(base.len() as u64) as usize
    };
    // A gap and a bit for each, in place of its two bytes.
    let len = stepped(&mut (0..BLOCK_BYTES / 2).filter(|at| at % 64 < 50));
    let count = BLOCK_BYTES / 128 * 50;
    assert!(len < count * 12 / 10, "{len} bytes for {count} elements");
    // Its number, a gap and a byte.
    assert_eq!(stepped(&mut std::iter::once(3)), 4 + 1 + 1);
}

// Promise: deltas
#[test]
fn deltas_in_a_chain_are_applied_together() {
    let mut rng = SmallRng::seed_from_u64(3);
    for len in [0, 1, 5000, BLOCK_BYTES * section::BLOCKS + 4321] {
        let mut versions = vec![vec![0; len]];
        let mut deltas = Vec::new();
        for n in 0..=MAX_CHAIN {
            let mut next = versions[n].clone();
            // Unchanged, sparse, in runs, and so dense that blocks are sent whole.
            change(&mut next, 2, [0.0, 0.03, 0.01, 0.9][n % 4], [1, 1, 50, 1][n % 4], &mut rng);
            deltas.push(encode_all(&versions[n], &next).bytes);
            versions.push(next);
        }
        for first in 0..=MAX_CHAIN {
            assert!(apply(&versions[first], &deltas[first..].concat()).unwrap() == versions[MAX_CHAIN + 1]);
        }
        let long = [&deltas[..], &deltas[..1]].concat().concat();
        assert!(matches!(apply(&versions[0], &long), Err(NotApplied::Malformed(_))), "one more than a chain has");
        let turned: Vec<_> = deltas[1..3].iter().rev().flatten().copied().collect();
        assert!(len <= 5000 || apply(&versions[1], &turned) == Err(NotApplied::OtherBytes), "out of order");
        let cut = &deltas[..2].concat();
        assert!(matches!(apply(&versions[0], &cut[..cut.len() - 1]), Err(NotApplied::Malformed(_))));
    }
}

#[test]
fn payloads_of_nans_and_signs_of_zeros_are_changes() {
    let bytes = |floats: [u32; 4]| floats.iter().flat_map(|float| float.to_le_bytes()).collect::<Vec<_>>();
    let base = bytes([0x7fc0_0001, 0x0000_0000, 0xffc0_0000, 0x7f80_0000]);
    let new = bytes([0x7fc0_0002, 0x8000_0000, 0x7fc0_0000, 0x7f80_0000]);
    assert_eq!(apply(&base, &encode_all(&base, &new).bytes).unwrap(), new);
}

#[test]
fn what_has_changed_too_much_has_no_delta() {
    let (base, new) = versions(32 << 20, 2, 0.5, 1, 3);
    match encode_bytes(&base, &new, 16 << 20) {
        Err(TooDense(Density { changed, of })) => {
            assert!(of < (32 << 20) / 100, "a sample of {of} bytes");
            assert!((of * 4 / 10..of * 6 / 10).contains(&changed), "{changed} of {of}");
        }
        other => panic!("{other:?}"),
    }
}

/// Not even where nothing has changed is a delta longer than its limit: that of an empty version would be.
#[test]
fn no_delta_is_longer_than_its_limit() {
    for (len, limit) in [(0, 0), (64, 32), (64, 36)] {
        let version = vec![7; len];
        let made = encode_bytes(&version, &version, limit);
        assert_eq!(made.is_ok(), head_bytes(len as u64) <= limit, "{made:?} for {len} bytes and the limit {limit}");
    }
}

/// The bound is H(p) for each element, and 16 bits for each changed one.
#[test]
fn deltas_are_nearly_as_short_as_can_be() {
    let len = 64 << 20;
    let p = 0.03_f64;
    let entropy = -p * p.log2() - (1.0 - p) * (1.0 - p).log2();
    for (run, most) in [(1, 1.1), (100, 1.05)] {
        let (base, new) = versions(len, 2, p, run, 5);
        let bound = (len / 2) as f64 * (entropy + 16.0 * p) / 8.0;
        let delta = encode_all(&base, &new).bytes.len() as f64;
        assert!(delta <= bound * most, "{run}: {} of the bound", delta / bound);
    }
}

// Promise: bytes-from-outside, seen to fail
#[test]
fn fuzz_delta() {
    let base: Vec<u8> = (0..300_u32).map(|n| (n * 7) as u8).collect();
    let change = |places: &[usize]| {
        let mut new = base.clone();
        places.iter().for_each(|place| new[*place] ^= 0x5a);
        encode_all(&base, &new).bytes
    };
    let whole: Vec<usize> = (0..300).collect();
    let chain = [change(&[7]), change(&[8])].concat();
    let mut steps = base.clone();
    steps.as_chunks_mut::<2>().0.iter_mut().step_by(9).for_each(|element| {
        *element = u16::from_le_bytes(*element).wrapping_add(1).to_le_bytes();
    });
    let steps = encode_all(&base, &steps).bytes;
    let examples =
        [steps, chain, change(&[]), change(&[7, 150, 299]), change(&(20..90).collect::<Vec<_>>()), change(&whole)];
    transfer_fuzz::Target::new("delta", examples).run(|bytes| match apply(&base, bytes) {
        Ok(made) => {
            assert_eq!(made.len(), base.len());
            "a version".into()
        }
        Err(e) => e.to_string(),
    });
}
