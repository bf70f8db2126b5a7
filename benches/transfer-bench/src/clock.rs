//! CLOCK_MONOTONIC, which is the same in all processes of a machine: moments of different processes can be compared.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The current moment, in nanoseconds since a fixed one.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The clock counts from the machine's start, so neither is negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Sleeps until that moment. Returns at once if it has passed.
pub fn sleep_until_ns(moment: u64) {
    let left = moment.saturating_sub(now_ns());
    if left > 0 {
        std::thread::sleep(Duration::from_nanos(left));
    }
}
