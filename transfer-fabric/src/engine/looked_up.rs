//! The counts of fetches that workers have answered by look-ups on boards. Workers count in memory that they can
//! write, so implausible counts are ignored.

use std::time::Instant;

/// The counts of one worker that were taken so far.
#[derive(Debug)]
pub(super) struct LookedUp {
    at: Instant,
    /// The worker's two words, as far as they are counted.
    fetches: u64,
    bytes: u64,
    /// The most bytes that the counted fetches can have brought, beyond the bytes that are counted.
    reach: u64,
}

impl LookedUp {
    pub(super) fn new(at: Instant) -> LookedUp {
        LookedUp { at, fetches: 0, bytes: 0, reach: 0 }
    }

    /// Returns the fetches and bytes since the last call. `said` holds the current values of the worker's two words,
    /// and `longest` is an upper bound of the length of a published tensor, in bytes.
    ///
    /// No worker looks up more than one tensor per nanosecond. A word that rose faster, or fell, starts a new count.
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
        // The rest is counted with its fetch, because the two words are not read at the same moment.
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
    fn plausible_counts_are_counted_once() {
        let start = Instant::now();
        let mut looked_up = LookedUp::new(start);
        let mut take = |micros, said| looked_up.take(start + Duration::from_micros(micros), said, 100);
        assert_eq!(take(1, (3, 300)), (3, 300));
        assert_eq!(take(2, (3, 300)), (0, 0));
        // 100 of these bytes belong to a fetch that is not counted yet.
        assert_eq!(take(3, (4, 500)), (1, 100));
        assert_eq!(take(4, (5, 500)), (1, 100));
        assert_eq!(take(5, (5, 500)), (0, 0));
    }

    #[test]
    fn implausible_counts_are_ignored() {
        let start = Instant::now();
        let mut looked_up = LookedUp::new(start);
        let mut take = |micros, said| looked_up.take(start + Duration::from_micros(micros), said, 100);
        assert_eq!(take(1, (u64::MAX, u64::MAX)), (0, 0));
        assert_eq!(take(2, (10, 0)), (11, 1), "it wraps around");
        assert_eq!(take(3, (2, 7)), (0, 0), "it fell");
        assert_eq!(take(4, (3, u64::MAX)), (1, 100), "no tensor is as long");
    }
}
