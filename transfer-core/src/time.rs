//! Time, as a parameter.
//!
//! The core reads no clock. Its driver passes a [`Time`]: nanoseconds since a fixed moment that the driver chooses. The
//! engine uses `CLOCK_MONOTONIC`, the simulator its virtual clock. Only differences have a meaning.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment, in nanoseconds since the driver's own epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// A moment that never comes. It is the deadline of a wait that has none.
    pub const NEVER: Time = Time(u64::MAX);

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, rhs: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, rhs: Duration) -> Time {
        Time(self.0.saturating_sub(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}
