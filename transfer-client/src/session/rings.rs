//! Rings that are put off. A thread that asks the sidecar of its own process for something, and then waits for the answer, turns the
//! engine while it waits, and takes its request then. To ring first would turn it once more, for this request alone.

use super::state::Session;
use std::cell::Cell;
use std::ptr;

thread_local! {
    static PUT_OFF: Cell<Option<PutOff>> = const { Cell::new(None) };
}

/// The rings of one session that this thread puts off.
#[derive(Debug, Clone, Copy)]
struct PutOff {
    /// Compared, and never read through.
    session: *const Session,
    is_owed: bool,
}

/// Restores what was put off before, also where a step panics.
struct Restore(Option<PutOff>);

impl Drop for Restore {
    fn drop(&mut self) {
        PUT_OFF.set(self.0);
    }
}

/// Whether this thread rings the session's sidecar later. If so, it is noted that it has to.
pub(super) fn is_put_off(session: &Session) -> bool {
    match PUT_OFF.get() {
        Some(put_off) if ptr::eq(put_off.session, session) => {
            PUT_OFF.set(Some(PutOff { is_owed: true, ..put_off }));
            true
        }
        _ => false,
    }
}

impl Session {
    /// Takes a step after which this thread waits. Returns whether the sidecar has to be [rung](Session::pay_ring) for it, unless this
    /// thread turns it.
    pub(super) fn put_off_ring<T>(&self, step: impl FnOnce() -> T) -> (T, bool) {
        if self.inside.is_none() {
            return (step(), false);
        }
        let restore = Restore(PUT_OFF.replace(Some(PutOff { session: self, is_owed: false })));
        let stepped = step();
        let is_owed = PUT_OFF.get().is_some_and(|put_off| put_off.is_owed);
        drop(restore);
        (stepped, is_owed)
    }

    /// Rings the sidecar, if that is owed.
    pub(super) fn pay_ring(&self, is_owed: bool) {
        if is_owed {
            self.ring();
        }
    }
}
