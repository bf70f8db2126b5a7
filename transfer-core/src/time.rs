//! Time, as a parameter.
//!
//! The core reads no clock. Whoever drives it passes a [`Time`]: nanoseconds since some fixed moment of the driver's choosing
//! (the engine uses `CLOCK_MONOTONIC`, the simulator its virtual clock). Only differences mean anything.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment: nanoseconds since the driver's own epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// A moment that never comes; the deadline of something that waits without one.
    pub const NEVER: Time = Time(u64::MAX);

    /// The time from `earlier` to `self`; zero if `earlier` is later.
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
