//! The slowest pace of a copy.

use super::error::CopyError;
use std::time::{Duration, Instant};

/// The interval in which [`MIN_BYTES_PER_INTERVAL`] have to come. Also the time for which a piece may take to come, from its request
/// on.
pub(super) const INTERVAL: Duration = Duration::from_secs(30);

/// The bytes that have to come in each interval, except for the last.
const MIN_BYTES_PER_INTERVAL: u64 = 1 << 20;

/// The bytes of a copy in the present interval. A copy that is slower keeps its slot from others for no good reason.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    /// The bytes that had come at its beginning.
    before: u64,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Pace {
        Pace { since: now, before: 0 }
    }

    /// Notes that a piece has come, `bytes` of the file in all.
    pub(super) fn moved(&mut self, now: Instant, bytes: u64) -> Result<(), CopyError> {
        if now.duration_since(self.since) < INTERVAL {
            return Ok(());
        }
        let came = bytes - self.before;
        if came < MIN_BYTES_PER_INTERVAL {
            return Err(CopyError::Slow { came, least: MIN_BYTES_PER_INTERVAL, seconds: INTERVAL.as_secs() });
        }
        (self.since, self.before) = (now, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: copy-folder
    #[test]
    fn a_copy_that_hardly_moves_is_over_after_two_intervals() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.moved(start + INTERVAL, MIN_BYTES_PER_INTERVAL).unwrap();
        // Pieces that come just before its time-out.
        let gap = INTERVAL - Duration::from_secs(1);
        pace.moved(start + INTERVAL + gap, MIN_BYTES_PER_INTERVAL + 1000).unwrap();
        let slow = pace.moved(start + INTERVAL + 2 * gap, MIN_BYTES_PER_INTERVAL + 2000).unwrap_err();
        assert!(matches!(slow, CopyError::Slow { came: 2000, .. }), "{slow}");
    }
}
