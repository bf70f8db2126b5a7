//! The bell that wakes the keeper of an exchange, and what it is told.

use parking_lot::{Condvar, Mutex};
use std::time::Instant;

/// Wakes the keeper.
#[derive(Debug, Default)]
pub(super) struct Bell {
    state: Mutex<BellState>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct BellState {
    rung: bool,
    /// Whether all handles of the exchange were dropped.
    left: bool,
    /// Whether the keeper has ended.
    done: bool,
}

impl Bell {
    pub(super) fn ring(&self) {
        self.state.lock().rung = true;
        self.rung.notify_one();
    }

    /// All handles of the exchange were dropped.
    pub(super) fn leave(&self) {
        self.state.lock().left = true;
        self.ring();
    }

    /// The keeper has ended.
    pub(super) fn done(&self) {
        self.state.lock().done = true;
    }

    pub(super) fn is_done(&self) -> bool {
        self.state.lock().done
    }

    pub(super) fn has_left(&self) -> bool {
        self.state.lock().left
    }

    /// Sleeps until the bell rings, or this moment.
    pub(super) fn wait(&self, until: Instant) {
        let mut state = self.state.lock();
        while !state.rung && !self.rung.wait_until(&mut state, until).timed_out() {}
        state.rung = false;
    }
}
