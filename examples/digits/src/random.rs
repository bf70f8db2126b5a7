//! A small random generator, the same on every machine and in every release.
//!
//! The example promises weights that are equal bit for bit, so it cannot use a library's generator, which may change.

/// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Makes a generator whose whole sequence follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Makes a separate generator for one purpose, so that drawing more numbers for it does not change the numbers of
    /// another.
    #[must_use]
    pub fn for_purpose(seed: u64, purpose: &[u64]) -> Random {
        let mut random = Random::new(seed);
        for word in purpose {
            random = Random::new(random.next_u64() ^ word);
        }
        random
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A uniform number in `0..bound`. The bias is below `bound / 2^64`, which does not affect training.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A uniform number in `0..1`, made of 24 bits, which a `f32` holds exactly.
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// A uniform number in `-limit..limit`.
    pub fn symmetric(&mut self, limit: f32) -> f32 {
        (self.unit() * 2.0 - 1.0) * limit
    }

    /// Puts `items` into random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_equals_the_published_one() {
        // The first outputs for seed 1234567, as in the reference implementation's test vectors.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
        assert_eq!(random.next_u64(), 9_817_491_932_198_370_423);
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            assert!(random.below(7) < 7);
            let x = random.symmetric(0.5);
            assert!((-0.5..0.5).contains(&x));
        }
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
