//! A descriptor that becomes readable at a given time.

use crate::device;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::time::Instant;
use transfer_core::fabric::FabricError;

#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    set_for: Option<Instant>,
}

impl Timer {
    pub(crate) fn new() -> Result<Timer, FabricError> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK);
        Ok(Timer { fd: fd.map_err(device("timerfd_create"))?, set_for: None })
    }

    /// Returns the time for which the timer is set.
    pub(crate) fn set_for(&self) -> Option<Instant> {
        self.set_for
    }

    /// Sets the timer, or switches it off. An expired timer stays readable until it is set again.
    pub(crate) fn set(&mut self, at: Option<Instant>) {
        self.set_for = at;
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = at.map_or(zero, |at| {
            let after = at.saturating_duration_since(Instant::now());
            // Zero would switch the timer off.
            let tv_nsec = i64::from(after.subsec_nanos()).max(1);
            Timespec { tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX), tv_nsec }
        });
        // Fails only for times that are not normalised.
        let _ = timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: zero, it_value });
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
