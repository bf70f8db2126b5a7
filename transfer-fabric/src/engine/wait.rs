//! Decides between polling and sleeping, and names the descriptors that end a sleep.

use crate::epoll::Token;
use std::time::{Duration, Instant};

/// How the data-plane thread waits for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PollStrategy {
    /// Never sleep. The lowest latency, at the price of one core.
    Busy,
    /// Sleep as soon as there is nothing to do.
    Event,
    /// Poll for up to this long before sleeping, but only while work arrives in shorter intervals than that, so that an
    /// idle or slow sidecar costs nothing.
    Adaptive(Duration),
}

impl Default for PollStrategy {
    fn default() -> Self {
        PollStrategy::Adaptive(Duration::from_micros(20))
    }
}

/// Decides whether to keep polling or to sleep.
pub(super) struct Pace {
    pub(super) strategy: PollStrategy,
    last_active: Instant,
    /// A running mean of the time between two pieces of work.
    gap: Duration,
}

/// The newest interval has the weight 1 / `MEMORY` in the mean.
const MEMORY: u32 = 8;

impl Pace {
    pub(super) fn new(strategy: PollStrategy) -> Pace {
        Pace { strategy, last_active: Instant::now(), gap: Duration::from_secs(1) }
    }

    /// Records that a round had work.
    pub(super) fn active(&mut self, now: Instant) {
        let interval = now.saturating_duration_since(self.last_active).min(Duration::from_secs(1));
        self.gap = (self.gap * (MEMORY - 1) + interval) / MEMORY;
        self.last_active = now;
    }

    /// Returns whether to sleep now, after a round without work.
    pub(super) fn should_sleep(&self, now: Instant) -> bool {
        match self.strategy {
            PollStrategy::Busy => false,
            PollStrategy::Event => true,
            PollStrategy::Adaptive(limit) => {
                self.gap > limit || now.saturating_duration_since(self.last_active) > limit
            }
        }
    }
}

/// A ready descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    /// The bell: a command has come. It must be read to reset it.
    Bell,
    /// A fabric. Every round polls it anyway.
    Fabric,
    /// The socket of this session.
    Socket(u64),
    /// The process of this session has ended.
    Process(u64),
}

const FABRIC: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
const PROCESS: u64 = 1 << 63;

impl Token for Ready {
    fn to_u64(self) -> u64 {
        match self {
            Ready::Fabric => FABRIC,
            Ready::Bell => BELL,
            Ready::Process(session) => session | PROCESS,
            Ready::Socket(session) => session & !PROCESS,
        }
    }

    fn from_u64(number: u64) -> Ready {
        match number {
            FABRIC => Ready::Fabric,
            BELL => Ready::Bell,
            n if n & PROCESS != 0 => Ready::Process(n & !PROCESS),
            n => Ready::Socket(n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adaptive_polls_only_while_work_comes_fast() {
        let limit = Duration::from_micros(20);
        let mut pace = Pace::new(PollStrategy::Adaptive(limit));
        let mut now = Instant::now();
        assert!(pace.should_sleep(now), "nothing has come yet");
        for _ in 0..200 {
            now += Duration::from_micros(5);
            pace.active(now);
        }
        assert!(!pace.should_sleep(now + Duration::from_micros(10)));
        assert!(pace.should_sleep(now + Duration::from_micros(30)), "too long since the last work");
        for _ in 0..100 {
            now += Duration::from_millis(1);
            pace.active(now);
        }
        assert!(pace.should_sleep(now), "work comes slowly");
    }
}
