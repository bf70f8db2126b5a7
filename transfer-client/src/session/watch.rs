//! Waiting for the next version of a key on its owner's notice, without asking the sidecar.

use super::Session;
use super::look_up::Looked;
use crate::session::deadline;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Failure, FailureCode, FetchedTensor};
use transfer_core::tensor::{Key, Select};
use transfer_memory::board::{HazardPointer, NoticeState, Watch};

/// The longest sleep on a notice before a check. Every change wakes the sleeper, with one exception: when a sidecar is
/// killed, the kernel wakes one sleeper, which wakes the others, and that one may have been stopped.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The longest update of a notice before the sidecar is asked, because the worker may have been stopped. Usually an
/// update takes a microsecond.
const UPDATE_TIMEOUT: Duration = Duration::from_millis(10);

/// The end of a wait.
#[expect(clippy::large_enum_variant, reason = "it is returned once for each slice of a wait, and not kept")]
pub(crate) enum WaitEnd {
    /// The version. It does not change until [`Session::clear_hazard`].
    Found(HazardPointer, FetchedTensor),
    /// The version did not come in time.
    TimedOut(Failure),
    /// The version has not come so far.
    Waits,
    /// Ask the sidecar. `waited` is the time spent so far.
    Ask { waited: Duration },
}

impl Session {
    /// Whether this worker can wait on a notice, if the key's owner announces its pushes.
    pub(crate) fn watches(&self) -> bool {
        self.board.is_some() && Watch::is_possible()
    }

    /// Looks a key up. Waits on its owner's notice while the announced version is too old, at most for `time`, and until the call's
    /// own time-out. `began` is when the call began to wait: a version that is there takes no look at the clock.
    pub(crate) fn watch(
        &self,
        key: &Key,
        select: Select,
        require: Option<FabricKind>,
        (began, timeout): (&mut Option<Instant>, Duration),
        time: Duration,
    ) -> WaitEnd {
        let (mut is_late, mut was_down) = (false, false);
        // Zero if the thread has not slept: polling does not count against the caller's time-out.
        let mut waited = Duration::ZERO;
        let mut until = None;
        loop {
            let (watch, look) = match self.look(key, select, require) {
                Looked::Found(hazard, mut tensor) => {
                    tensor.report.waited = began.map_or(Duration::ZERO, |began| began.elapsed());
                    return WaitEnd::Found(hazard, tensor);
                }
                // The backlog is written by the thread that reads the socket, and a thread that sleeps on a notice does
                // not read it.
                Looked::Watch(watch, look) if self.watches() && !self.backlog.load(Ordering::SeqCst) => (watch, look),
                Looked::Watch(..) | Looked::Nothing => return WaitEnd::Ask { waited },
            };
            if is_late {
                let Some(newest) = &look.snapshot else { return WaitEnd::Ask { waited } };
                let text =
                    format!("key {key:?} is at {}; {select} was not published within {timeout:?}", newest.version);
                return WaitEnd::TimedOut(Failure::new(FailureCode::Deadline, text));
            }
            if look.is_open() && was_down {
                return WaitEnd::Ask { waited };
            }
            was_down = look.is_open();
            let now = Instant::now();
            let started = *began.get_or_insert(now);
            let limit = deadline(started, timeout);
            let until = *until.get_or_insert_with(|| deadline(now, time));
            if now >= until && now < limit {
                return WaitEnd::Waits;
            }
            let again = now + if was_down { UPDATE_TIMEOUT } else { LOOK_AGAIN };
            is_late = !self.sleep_on(&watch, &look, limit.min(until).min(again)) && Instant::now() >= limit;
            waited = started.elapsed();
        }
    }

    /// Sleeps on a notice. `false`: `limit` came first.
    fn sleep_on(&self, watch: &Watch, look: &NoticeState, limit: Instant) -> bool {
        let Some(board) = &self.board else { return true };
        let now = Instant::now();
        let spin = self.spin.lock().now();
        if !spin.is_zero() {
            let end = (now + spin).min(limit);
            while watch.is_as(look) && watch.is_named(board) {
                if Instant::now() >= end {
                    self.spin.lock().lost();
                    return watch.wait(board, look, &self.alarm, limit);
                }
                std::hint::spin_loop();
            }
            self.spin.lock().won();
            return true;
        }
        watch.wait(board, look, &self.alarm, limit)
    }
}
