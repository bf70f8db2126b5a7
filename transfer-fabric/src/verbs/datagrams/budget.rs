//! The number of datagrams that are looked at in a time.

use std::time::{Duration, Instant};

/// At most this many in each interval. The device drops what comes beyond, because no receive is posted for it.
pub(super) const DATAGRAMS: u32 = 64;
const INTERVAL: Duration = Duration::from_millis(10);

/// What is left of the present interval.
#[derive(Debug)]
pub(super) struct Budget {
    since: Instant,
    left: u32,
}

impl Budget {
    pub(super) fn new(now: Instant) -> Budget {
        Budget { since: now, left: DATAGRAMS }
    }

    /// Returns how many datagrams may be looked at now.
    pub(super) fn left(&mut self, now: Instant) -> u32 {
        if now.saturating_duration_since(self.since) >= INTERVAL {
            *self = Budget::new(now);
        }
        self.left
    }

    /// Takes the datagrams that were looked at.
    pub(super) fn take(&mut self, datagrams: u32) {
        self.left = self.left.saturating_sub(datagrams);
    }

    /// Returns when the next interval begins.
    pub(super) fn next(&self) -> Instant {
        self.since + INTERVAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: datagram-ping, seen to fail
    #[test]
    fn a_flood_is_looked_at_in_part() {
        let start = Instant::now();
        let (mut budget, mut looked) = (Budget::new(start), 0);
        for micros in 0..1_000_000 {
            let left = budget.left(start + Duration::from_micros(micros));
            budget.take(left.min(1));
            looked += left.min(1);
        }
        assert_eq!(looked, 100 * DATAGRAMS);
    }

    #[test]
    fn an_interval_that_is_used_up_has_an_end() {
        let start = Instant::now();
        let mut budget = Budget::new(start);
        budget.take(DATAGRAMS + 1);
        assert_eq!(budget.left(budget.next() - Duration::from_nanos(1)), 0);
        assert_eq!(budget.left(budget.next()), DATAGRAMS);
    }
}
