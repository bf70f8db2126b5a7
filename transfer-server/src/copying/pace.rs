//! The slowest pace of a copy.

use super::error::CopyError;
use std::time::{Duration, Instant};

/// The interval in which [`LEAST_BYTES`] have to come. Also the time for which a piece may take to come, from its request
/// on.
pub(super) const INTERVAL: Duration = Duration::from_secs(30);

/// The bytes that have to come in each interval, except for the last.
const LEAST_BYTES: u64 = 1 << 20;

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
        if came < LEAST_BYTES {
            return Err(CopyError::Slow { came, least: LEAST_BYTES, seconds: INTERVAL.as_secs() });
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
        pace.moved(start + INTERVAL, LEAST_BYTES).unwrap();
        // Pieces that come just before its time-out.
        let gap = INTERVAL - Duration::from_secs(1);
        pace.moved(start + INTERVAL + gap, LEAST_BYTES + 1000).unwrap();
        let slow = pace.moved(start + INTERVAL + 2 * gap, LEAST_BYTES + 2000).unwrap_err();
        assert!(matches!(slow, CopyError::Slow { came: 2000, .. }), "{slow}");
    }
}
