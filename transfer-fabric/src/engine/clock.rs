//! The clock of an engine: the time of its node, and the clocks of its host.

use std::time::{Duration, Instant, SystemTime};
use transfer_core::time::Time;

/// Converts between the time of an engine's node, which begins with the engine, and the clocks of the host. Nothing else
/// does. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    began: Instant,
}

impl Clock {
    /// Makes the clock of an engine that begins now.
    pub(super) fn begin() -> Clock {
        Clock { began: Instant::now() }
    }

    /// Returns the node's time at a moment of the monotonic clock.
    pub(super) fn time(self, at: Instant) -> Time {
        Time::default() + at.saturating_duration_since(self.began)
    }

    /// Returns the time since the engine began.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        self.began.elapsed()
    }

    /// Returns when a moment of the node was by the host's clock, as that is set now: after the clock was set, all moments
    /// before are told by the new setting. A moment that is still to come counts as now.
    #[must_use]
    pub fn wall_clock(self, at: Time) -> SystemTime {
        let ago = self.time(Instant::now()).since(at);
        SystemTime::now().checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_of_the_node_is_the_same_on_the_wall_whenever_it_is_asked_for() {
        let clock = Clock { began: Instant::now() - Duration::from_secs(1000) };
        let (before, at, after) = (SystemTime::now(), clock.time(Instant::now()), SystemTime::now());
        assert!(at >= Time::default() + Duration::from_secs(1000), "{at:?}");
        // The two clocks are read one after the other.
        let slack = Duration::from_secs(5);
        for (moment, ago) in [(at, 0), (Time::default() + Duration::from_secs(900), 100), (Time::default(), 1000)] {
            let (found, ago) = (clock.wall_clock(moment), Duration::from_secs(ago));
            assert!(found + ago + slack >= before && found + ago <= after + slack, "{moment:?} was {found:?}");
        }
        assert!(clock.wall_clock(Time::NEVER) >= before, "what is still to come counts as now");
    }
}
