//! Deadlines of calls.

use std::time::{Duration, Instant};

/// The sidecar keeps every deadline itself and reports it. If it does not answer within this time after a deadline, it
/// counts as stuck.
pub(crate) const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// The moment `timeout` after `started`. An unlimited timeout is a year.
pub(crate) fn deadline(started: Instant, timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(366 * 24 * 3600);
    started + timeout.min(YEAR)
}
