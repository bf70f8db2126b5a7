//! The allocator against a model, and its utilisation on a published trace.

use super::*;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// What is lent, kept by a plain ordered map.
struct Checked {
    allocator: Allocator,
    lent: Vec<Allocation>,
    by_offset: BTreeMap<u64, u64>,
}

impl Checked {
    fn new(len: u64) -> Checked {
        Checked { allocator: Allocator::new(len), lent: Vec::new(), by_offset: BTreeMap::new() }
    }

    fn allocate(&mut self, len: u64) -> bool {
        match self.allocator.allocate(len) {
            Ok(range) => {
                let (start, end) = (range.offset(), range.offset() + range.padded_len());
                assert_eq!(start % ALIGNMENT, 0);
                assert!(end <= self.allocator.len_bytes());
                assert_eq!(range.len(), len);
                if let Some((offset, len)) = self.by_offset.range(..end).next_back() {
                    assert!(offset + len <= start, "{offset}+{len} overlaps {start}..{end}");
                }
                self.by_offset.insert(start, range.padded_len());
                self.lent.push(range);
                true
            }
            Err(AllocError::NoRoom { largest_free, .. }) => {
                assert!(largest_free < len.max(1), "{len} refused with {largest_free} free in one piece");
                false
            }
            Err(AllocError::TooLong { .. }) => {
                assert!(len.max(1) > self.allocator.len_bytes());
                false
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn free(&mut self, index: usize) {
        let range = self.lent.swap_remove(index % self.lent.len());
        assert_eq!(self.by_offset.remove(&range.offset()), Some(range.padded_len()));
        self.allocator.free(range).unwrap();
    }

    /// Splits a range into parts of these lengths and a rest.
    fn split(&mut self, index: usize, lens: &[u64]) {
        let index = index % self.lent.len();
        let whole = self.lent[index].padded_len();
        let mut lens: Vec<u64> = lens.to_vec();
        let padded = |lens: &[u64]| lens.iter().map(|len| len.next_multiple_of(ALIGNMENT).max(ALIGNMENT)).sum::<u64>();
        while padded(&lens) >= whole {
            lens.pop();
        }
        lens.push(whole - padded(&lens));
        let range = self.lent.swap_remove(index);
        // Lengths that do not fill the range leave it as it is.
        let NotLent(range) = self.allocator.split(range, &[&lens[..], &[1]].concat()).unwrap_err();
        let mut at = range.offset();
        self.by_offset.remove(&at);
        for (part, len) in self.allocator.split(range, &lens).unwrap().into_iter().zip(&lens) {
            assert_eq!((part.offset(), part.len()), (at, *len));
            self.by_offset.insert(at, part.padded_len());
            at += part.padded_len();
            self.lent.push(part);
        }
    }

    /// Walks everything: what the allocator lists is what the model says.
    fn audit(&self) {
        let (mut at, mut free, mut longest, mut used, mut was_free) = (0, 0, 0, 0, false);
        for span in self.allocator.iter() {
            assert_eq!(span.offset, at);
            assert!(span.len > 0 && !(span.free && was_free));
            if span.free {
                free += span.len;
                longest = longest.max(span.len);
            } else {
                assert_eq!(self.by_offset.get(&span.offset), Some(&span.len));
                used += 1;
            }
            at += span.len;
            was_free = span.free;
        }
        assert_eq!(at, self.allocator.len_bytes());
        assert_eq!(used, self.lent.len());
        assert_eq!(self.allocator.count(), used as u64);
        assert_eq!((self.allocator.free_bytes(), self.allocator.largest_free()), (free, longest));
        assert_eq!(self.allocator.used_bytes() + free, at);
    }

    fn free_all(&mut self) {
        while !self.lent.is_empty() {
            self.free(self.lent.len() / 2);
        }
        self.audit();
        let all = Span { offset: 0, len: self.allocator.len_bytes(), free: true };
        assert_eq!(self.allocator.iter().collect::<Vec<_>>(), [all]);
    }
}

/// A length of at least 64 bytes, its logarithm uniform up to `1 << max_bits`.
fn log_uniform(rng: &mut StdRng, max_bits: f64) -> u64 {
    rng.random_range(6.0..max_bits).exp2() as u64
}

#[test]
fn random_operations_agree_with_the_model() {
    let operations = if cfg!(debug_assertions) { 300_000 } else { 4_000_000 };
    for (seed, region, max_bits) in [(1, 1 << 24, 16.0), (2, 1 << 34, 30.0), (3, 1 << 40, 40.0), (4, 1 << 18, 8.0)] {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut checked = Checked::new(region);
        for step in 0..operations / 4 {
            // The share of allocations swings, so that the region is nearly full at times and nearly empty at others.
            let lean = if (step / 5_000) % 2 == 0 { 0.6 } else { 0.4 };
            if !checked.lent.is_empty() && step % 64 == 0 {
                checked.split(rng.random_range(0..usize::MAX), &[log_uniform(&mut rng, 8.0), 0, 65]);
            } else if checked.lent.is_empty() || rng.random_bool(lean) {
                checked.allocate(log_uniform(&mut rng, max_bits));
            } else {
                checked.free(rng.random_range(0..usize::MAX));
            }
            if step % 20_000 == 0 {
                checked.audit();
            }
        }
        checked.audit();
        checked.free_all();
    }
}

proptest! {
    #[test]
    fn any_operations_agree_with_the_model(
        region in 0_u64..20_000,
        operations in prop::collection::vec(prop_oneof![(0_u64..3_000).prop_map(Ok), any::<usize>().prop_map(Err)], 0..200),
    ) {
        let mut checked = Checked::new(region);
        for operation in operations {
            match operation {
                Ok(len) => { checked.allocate(len); }
                Err(_) if checked.lent.is_empty() => {}
                Err(index) if index % 3 == 0 => checked.split(index / 3, &[1, 100, 0, 64]),
                Err(index) => checked.free(index),
            }
            checked.audit();
        }
        while !checked.lent.is_empty() {
            checked.free(0);
        }
        prop_assert_eq!(checked.allocator.largest_free(), region / ALIGNMENT * ALIGNMENT);
    }
}

/// The trace: `StdRng::seed_from_u64(seed)`, lengths with a uniform logarithm from 64 B to `1 << max_bits`. Each step allocates;
/// before it, allocations picked uniformly from all that live are freed while more than `load` of the region would be used. The
/// load is 0.7 until five regions' worth of bytes were allocated, and then rises by 0.02 with each further region's worth.
///
/// Returns the share of the region that was used when the first allocation failed.
fn used_at_first_failure(seed: u64, region: u64, max_bits: f64) -> f64 {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut allocator = Allocator::new(region);
    let mut lent: Vec<Allocation> = Vec::new();
    let mut total = 0;
    loop {
        let len = log_uniform(&mut rng, max_bits);
        total += len;
        let load = 0.7 + (total as f64 / region as f64 - 5.0).max(0.0) * 0.02;
        while (allocator.used_bytes() + len) as f64 > load * region as f64 {
            let victim = lent.swap_remove(rng.random_range(0..lent.len()));
            allocator.free(victim).unwrap();
        }
        match allocator.allocate(len) {
            Ok(range) => lent.push(range),
            Err(_) => return allocator.used_bytes() as f64 / region as f64,
        }
    }
}

/// Measured: 0.92 to 0.93 both for lengths up to 2 MiB in 1 GiB and for lengths up to 16 MiB in 8 GiB. It depends on how long the
/// longest request is compared with the region: 0.89 to 0.92 for a 256th, 0.77 to 0.81 for a 64th (16 MiB in 1 GiB).
#[test]
fn nine_tenths_are_used_before_the_first_failure() {
    for (region, max_bits) in [(1 << 30, 21.0), (8 << 30, 24.0)] {
        for seed in 0..4 {
            let used = used_at_first_failure(seed, region, max_bits);
            assert!(used >= 0.9, "{used:.3} of {region} bytes with seed {seed}");
        }
    }
}

#[test]
fn a_foreign_allocation_is_refused_and_comes_back() {
    let (mut ours, mut theirs) = (Allocator::new(4096), Allocator::new(4096));
    let (a, b) = (ours.allocate(100).unwrap(), theirs.allocate(100).unwrap());
    assert_eq!((a.offset(), a.record), (b.offset(), b.record));
    let NotLent(b) = ours.free(b).unwrap_err();
    assert_eq!((ours.used_bytes(), theirs.used_bytes()), (128, 128));
    ours.free(a).unwrap();
    theirs.free(b).unwrap();
    assert_eq!((ours.largest_free(), theirs.largest_free()), (4096, 4096));
}

#[test]
fn odd_lengths() {
    let mut none = Allocator::new(63);
    assert_eq!((none.len_bytes(), none.largest_free(), none.iter().count()), (0, 0, 0));
    assert_eq!(none.allocate(0), Err(AllocError::TooLong { len_bytes: 0, region_bytes: 0 }));
    let mut two = Allocator::new(128 + 63);
    assert_eq!(two.allocate(129), Err(AllocError::TooLong { len_bytes: 129, region_bytes: 128 }));
    assert!(matches!(two.allocate(u64::MAX), Err(AllocError::TooLong { .. })));
    let (a, b) = (two.allocate(0).unwrap(), two.allocate(64).unwrap());
    assert!(a.is_empty() && !b.is_empty() && a.offset() != b.offset());
    assert_eq!(two.allocate(0), Err(AllocError::NoRoom { len_bytes: 0, free_bytes: 0, largest_free: 0 }));
    two.free(a).unwrap();
    two.free(b).unwrap();
    assert_eq!((two.count(), two.free_bytes()), (0, 128));
    let whole = two.allocate(128).unwrap();
    two.free(whole).unwrap();
    // The largest region there can be.
    let mut vast = Allocator::new(u64::MAX);
    let range = vast.allocate(1 << 60).unwrap();
    assert_eq!(vast.free_bytes(), !63 - (1 << 60));
    vast.free(range).unwrap();
    assert_eq!(vast.largest_free(), !63);
}

#[test]
fn a_million_small_allocations_take_few_bytes_each() {
    let mut checked = Checked::new(1 << 40);
    for _ in 0..1_000_000 {
        assert!(checked.allocate(64));
    }
    assert!(checked.allocator.record_bytes() <= 48 << 20);
    let bytes = checked.allocator.record_bytes();
    checked.free_all();
    assert_eq!(checked.allocator.record_bytes(), bytes);
}
