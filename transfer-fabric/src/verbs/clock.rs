//! The timer of a sleeping thread, and the rounds that probe idle peers.

use super::device_error;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::time::{Duration, Instant};
use transfer_core::fabric::FabricError;

#[derive(Debug)]
pub(super) struct Clock {
    timer: OwnedFd,
    timer_set_for: Option<Instant>,
    /// The time of the next round of probes.
    probe_at: Option<Instant>,
}

impl Clock {
    pub(super) fn new() -> Result<Clock, FabricError> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        let timer = timer.map_err(device_error("timerfd_create"))?;
        Ok(Clock { timer, timer_set_for: None, probe_at: None })
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
        if alarm == self.timer_set_for {
            return;
        }
        self.timer_set_for = alarm;
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = alarm.map_or(zero, |at| {
            let after = at.saturating_duration_since(Instant::now());
            // Zero would switch the timer off.
            let tv_nsec = i64::from(after.subsec_nanos()).max(1);
            Timespec { tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX), tv_nsec }
        });
        // Fails only for times that are not normalised. Setting the timer also clears an expiry that was not read.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: zero, it_value });
    }
}
