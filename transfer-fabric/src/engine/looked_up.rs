//! How many fetches workers have answered by looking at a board. They count them in memory that they write, so what cannot be is not taken for
//! a count.

use std::time::Instant;

/// What one worker has counted, as far as it was taken up.
#[derive(Debug)]
pub(super) struct LookedUp {
    at: Instant,
    /// Its two words at that time.
    fetches: u64,
    bytes: u64,
    /// How many bytes the fetches that were taken up can have brought and have not.
    reach: u64,
}

impl LookedUp {
    pub(super) fn new(at: Instant) -> LookedUp {
        LookedUp { at, fetches: 0, bytes: 0, reach: 0 }
    }

    /// What has come since the last call, in fetches and bytes. `said`: the words now. `longest`: no tensor that is shown is longer, in bytes.
    ///
    /// Nobody looks up more than one tensor a nanosecond. A word that went on faster, or went back, is the beginning of a new count.
    pub(super) fn take(&mut self, now: Instant, said: (u64, u64), longest: u64) -> (u64, u64) {
        let passed = now.saturating_duration_since(self.at).as_nanos();
        let fetches = said.0.wrapping_sub(self.fetches);
        self.at = now;
        self.fetches = said.0;
        if u128::from(fetches) > passed {
            (self.bytes, self.reach) = (said.1, 0);
            return (0, 0);
        }
        self.reach = self.reach.saturating_add(fetches.saturating_mul(longest));
        // The rest comes with the fetch that it belongs to: the words are not read at one moment.
        let bytes = said.1.wrapping_sub(self.bytes).min(self.reach);
        self.reach -= bytes;
        self.bytes = self.bytes.wrapping_add(bytes);
        (fetches, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_can_be_is_counted_once() {
        let start = Instant::now();
        let mut looked_up = LookedUp::new(start);
        let mut take = |micros, said| looked_up.take(start + Duration::from_micros(micros), said, 100);
        assert_eq!(take(1, (3, 300)), (3, 300));
        assert_eq!(take(2, (3, 300)), (0, 0));
        // The bytes of a fetch that is not counted yet.
        assert_eq!(take(3, (4, 500)), (1, 100));
        assert_eq!(take(4, (5, 500)), (1, 100));
        assert_eq!(take(5, (5, 500)), (0, 0));
    }

    #[test]
    fn what_cannot_be_is_not_counted() {
        let start = Instant::now();
        let mut looked_up = LookedUp::new(start);
        let mut take = |micros, said| looked_up.take(start + Duration::from_micros(micros), said, 100);
        assert_eq!(take(1, (u64::MAX, u64::MAX)), (0, 0));
        assert_eq!(take(2, (10, 0)), (11, 1), "it goes on over the end of its word");
        assert_eq!(take(3, (2, 7)), (0, 0), "it went back");
        assert_eq!(take(4, (3, u64::MAX)), (1, 100), "no tensor is as long");
    }
}
