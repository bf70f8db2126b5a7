//! The timer of a sleeping thread, and the rounds that probe idle peers.

use crate::timer::Timer;
use rustix::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use transfer_core::fabric::FabricError;

#[derive(Debug)]
pub(super) struct Clock {
    timer: Timer,
    /// The time of the next round of probes.
    probe_at: Option<Instant>,
}

impl Clock {
    pub(super) fn new() -> Result<Clock, FabricError> {
        Ok(Clock { timer: Timer::new()?, probe_at: None })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }

    /// Starts the rounds of probes, because there are links that may become idle. Rounds come twice in an interval, so
    /// a link that was idle for one whole round was idle for no longer than the interval.
    pub(super) fn start_probing(&mut self, interval: Duration) {
        if self.probe_at.is_none() {
            self.probe_at = Some(Instant::now() + interval / 2);
        }
    }

    /// Returns whether this deadline or a round of probes is due.
    pub(super) fn rings(&self, now: Instant, deadline: Option<Instant>) -> bool {
        self.probing(now) || deadline.is_some_and(|at| at <= now)
    }

    /// Returns whether it is time for a round of probes.
    pub(super) fn probing(&self, now: Instant) -> bool {
        self.probe_at.is_some_and(|at| at <= now)
    }

    /// Sets the time of the next round of probes, after one that was due. Probes continue while there are `links`.
    pub(super) fn set(&mut self, now: Instant, links: bool, interval: Duration) {
        if self.probing(now) {
            self.probe_at = links.then(|| now + interval / 2);
        }
    }

    /// Makes the descriptor readable at this deadline or at the next round of probes, and not before.
    pub(super) fn arm(&mut self, deadline: Option<Instant>) {
        let alarm = deadline.into_iter().chain(self.probe_at).min();
        if alarm != self.timer.set_for() {
            self.timer.set(alarm);
        }
    }
}
