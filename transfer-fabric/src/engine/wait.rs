//! Decides between polling and sleeping, and names the descriptors that end a sleep.

use crate::epoll::{Epoll, Events, Token};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the data-plane thread waits for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PollStrategy {
    /// Never sleep. The lowest latency, at the price of one core.
    Busy,
    /// Sleep as soon as there is nothing to do.
    Event,
    /// Poll for up to this long before sleeping, but only while the times without work are shorter than that, so that
    /// an idle or slow sidecar costs nothing, and only while no other thread takes the core.
    Adaptive(Duration),
}

/// How long the default polls: five wake-ups across cores of 40 µs, which is what a message between two sidecars costs
/// if every process on its path sleeps. A shorter time would end the polling because of the sleeps of the others.
const POLL_FOR: Duration = Duration::from_micros(200);

impl Default for PollStrategy {
    fn default() -> Self {
        PollStrategy::Adaptive(POLL_FOR)
    }
}

/// Decides whether to keep polling or to sleep.
#[derive(Debug)]
pub(super) struct Pace {
    pub(super) strategy: PollStrategy,
    /// The end of the last round that had work. Time spent on work is no time without work, however long it was.
    idle_since: Instant,
    /// A running mean of the times without work.
    gap: Duration,
    /// The last round without work, unless the thread has slept since.
    polled: Option<Instant>,
    /// Until then the thread does not poll, because another thread needs its core.
    crowded_until: Option<Instant>,
}

/// The newest time without work has the weight 1 / `MEAN_WEIGHT` in the mean.
const MEAN_WEIGHT: u32 = 8;

/// No time without work counts more than this many times the polling time, so that a busy moment after a long pause is
/// noticed within a few messages.
const MAX_IDLE_FACTOR: u32 = 4;

/// How long the thread does not poll after another thread has taken its core. A thread that polls can lose its core
/// for a slice of the scheduler, some milliseconds; one that sleeps is woken before threads that compute.
const CROWDED_PAUSE: Duration = Duration::from_millis(100);

impl Pace {
    pub(super) fn new(strategy: PollStrategy) -> Pace {
        let gap = Duration::from_secs(1);
        Pace { strategy, idle_since: Instant::now(), gap, polled: None, crowded_until: None }
    }

    /// Records a round that had work.
    pub(super) fn worked(&mut self, began: Instant, ended: Instant) {
        let idle = began.saturating_duration_since(self.idle_since);
        // Rounds that follow each other directly say nothing about waiting.
        if !idle.is_zero()
            && let PollStrategy::Adaptive(limit) = self.strategy
        {
            let most = limit * MAX_IDLE_FACTOR;
            self.gap = (self.gap.min(most) * (MEAN_WEIGHT - 1) + idle.min(most)) / MEAN_WEIGHT;
        }
        self.idle_since = ended;
        self.polled = None;
    }

    /// Returns whether to sleep now, after a round without work that began at `now`.
    pub(super) fn should_sleep(&mut self, now: Instant) -> bool {
        let limit = match self.strategy {
            PollStrategy::Busy => return false,
            PollStrategy::Event => return true,
            PollStrategy::Adaptive(limit) => limit,
        };
        // A round without work takes a few microseconds, unless another thread runs instead.
        let last = self.polled.replace(now);
        if last.is_some_and(|last| now.saturating_duration_since(last) > limit) {
            self.crowded_until = Some(now + CROWDED_PAUSE);
        }
        self.gap > limit
            || now.saturating_duration_since(self.idle_since) > limit
            || self.crowded_until.is_some_and(|until| now < until)
    }

    /// Records that the thread has slept, or has left the engine to another one.
    pub(super) fn slept(&mut self) {
        self.polled = None;
    }
}

/// How long waiters are away between two turns of the engine.
#[derive(Debug)]
pub(super) struct Absence {
    began: Option<Instant>,
    /// A running mean.
    mean: Duration,
}

/// An absence is short below this: less than the wake-up of a thread.
const SHORT_ABSENCE: Duration = Duration::from_micros(20);

/// Waiters are frequent while they are away for less than this.
const FREQUENT_INTERVAL: Duration = Duration::from_micros(100);

impl Absence {
    pub(super) fn new() -> Absence {
        Absence { began: None, mean: FREQUENT_INTERVAL * MAX_IDLE_FACTOR }
    }

    pub(super) fn begin(&mut self, now: Instant) {
        self.began = Some(now);
    }

    /// A waiter has asked for the engine at `now`. The time for which it then waits for the lock does not count as absence.
    pub(super) fn end(&mut self, now: Instant) {
        if let Some(began) = self.began.take() {
            let away = now.saturating_duration_since(began);
            self.mean = (self.mean * (MEAN_WEIGHT - 1) + away.min(FREQUENT_INTERVAL * MAX_IDLE_FACTOR)) / MEAN_WEIGHT;
        }
    }

    /// Whether a waiter is likely to be back soon, if not at once.
    pub(super) fn is_frequent(&self) -> bool {
        self.mean < FREQUENT_INTERVAL
    }

    /// Whether the next one is likely to be short.
    pub(super) fn is_short(&self) -> bool {
        self.mean < SHORT_ABSENCE
    }
}

/// Where the keeper sleeps: it listens to what the engine sleeps on, or does not, while a thread that waits sleeps there. Were both
/// to sleep on the same descriptors, each event would wake both.
#[derive(Debug)]
pub(super) struct KeeperBed {
    epoll: Epoll<Ready>,
    sleeper: Arc<Epoll<Ready>>,
    listens: Mutex<bool>,
}

impl KeeperBed {
    pub(super) fn new(sleeper: &Arc<Epoll<Ready>>) -> Result<KeeperBed, Errno> {
        let epoll = Epoll::new()?;
        epoll.add(sleeper, Ready::Engine)?;
        Ok(KeeperBed { epoll, sleeper: sleeper.clone(), listens: Mutex::new(true) })
    }

    /// Listens from now on, also to what is there by now; or does not.
    pub(super) fn listen(&self, listens: bool) {
        let mut before = self.listens.lock();
        if std::mem::replace(&mut *before, listens) != listens {
            self.epoll.watch(&self.sleeper, Ready::Engine, listens);
        }
    }

    #[cfg(test)]
    pub(super) fn listens(&self) -> bool {
        *self.listens.lock()
    }

    /// Sleeps until it hears something.
    pub(super) fn sleep(&self, timeout: Option<Duration>) -> Events<Ready> {
        self.epoll.wait(timeout)
    }
}

/// A ready descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    /// What the engine sleeps on, in the keeper's bed.
    Engine,
    /// The bell: a command has come. It must be read to reset it.
    Bell,
    /// The fabric at this place.
    Fabric(u8),
    /// The socket of this session.
    Socket(u64),
    /// The process of this session has ended.
    Process(u64),
}

const BELL: u64 = u64::MAX;
const ENGINE: u64 = u64::MAX - 1;
/// The fabric at place 0. Each of the others is one less.
const FABRIC: u64 = u64::MAX - 2;
const LAST_FABRIC: u64 = FABRIC - u8::MAX as u64;
const PROCESS: u64 = 1 << 63;

impl Token for Ready {
    fn to_u64(self) -> u64 {
        match self {
            Ready::Fabric(place) => FABRIC - u64::from(place),
            Ready::Engine => ENGINE,
            Ready::Bell => BELL,
            Ready::Process(session) => session | PROCESS,
            Ready::Socket(session) => session & !PROCESS,
        }
    }

    fn from_u64(number: u64) -> Ready {
        match number {
            ENGINE => Ready::Engine,
            BELL => Ready::Bell,
            n if n >= LAST_FABRIC => Ready::Fabric((FABRIC - n) as u8),
            n if n & PROCESS != 0 => Ready::Process(n & !PROCESS),
            n => Ready::Socket(n),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(200);

    /// A pace and a clock.
    struct Clock {
        pace: Pace,
        now: Instant,
    }

    impl Clock {
        fn new() -> Clock {
            let pace = Pace::new(PollStrategy::Adaptive(LIMIT));
            Clock { now: pace.idle_since, pace }
        }

        /// Work that comes after `idle`, and takes `busy`.
        fn work(&mut self, idle: Duration, busy: Duration) {
            self.pace.slept();
            let began = self.now + idle;
            self.now = began + busy;
            self.pace.worked(began, self.now);
        }

        fn should_sleep_after(&mut self, idle: Duration) -> bool {
            self.pace.should_sleep(self.now + idle)
        }
    }

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn adaptive_polls_only_while_work_comes_fast() {
        let mut clock = Clock::new();
        assert!(clock.should_sleep_after(us(1)), "nothing has come yet");
        for _ in 0..20 {
            clock.work(us(50), us(5));
        }
        assert!(!clock.should_sleep_after(us(10)));
        clock.pace.slept();
        assert!(clock.should_sleep_after(us(300)), "too long since the last work");
        for _ in 0..20 {
            clock.work(us(1000), us(5));
        }
        assert!(clock.should_sleep_after(us(1)), "work comes slowly");
    }

    #[test]
    fn adaptive_counts_only_time_without_work() {
        let mut clock = Clock::new();
        for _ in 0..20 {
            clock.work(us(50), us(2000));
        }
        assert!(!clock.should_sleep_after(us(10)), "each piece of work was long, and the waits were short");
    }

    #[test]
    fn adaptive_sees_no_wait_between_rounds_that_follow_directly() {
        let mut clock = Clock::new();
        for _ in 0..20 {
            clock.work(us(1000), us(5));
            (0..20).for_each(|_| clock.work(us(0), us(5)));
        }
        assert!(clock.should_sleep_after(us(1)), "every wait was long");
    }

    #[test]
    fn adaptive_leaves_its_core_to_a_thread_that_has_taken_it() {
        let mut clock = Clock::new();
        (0..20).for_each(|_| clock.work(us(50), us(5)));
        assert!(!clock.should_sleep_after(us(10)));
        assert!(clock.should_sleep_after(us(3000)), "another thread ran for a slice");
        (0..20).for_each(|_| clock.work(us(50), us(5)));
        assert!(clock.should_sleep_after(us(1)), "it may still need the core");
        (0..2000).for_each(|_| clock.work(us(50), us(5)));
        assert!(!clock.should_sleep_after(us(1)), "the core was not taken again");
    }
}
