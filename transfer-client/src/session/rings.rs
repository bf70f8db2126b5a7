//! Rings that are put off. A thread that asks the sidecar of its own process for something, and then waits for the answer, turns the
//! engine while it waits, and takes its request then. To ring first would turn it once more, for this request alone.

use super::state::Session;
use std::cell::Cell;
use std::{ptr, thread};

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

/// Restores what was put off before. Rings where a step panics: nobody waits then.
struct Restore<'a> {
    session: &'a Session,
    before: Option<PutOff>,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        let is_owed = PUT_OFF.replace(self.before).is_some_and(|put_off| put_off.is_owed);
        if thread::panicking() {
            self.session.pay_ring(is_owed);
        }
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
        let before = PUT_OFF.get();
        // What is owed when a step waits for something else, that wait pays, and this one once more.
        let is_owed = before.is_some_and(|before| ptr::eq(before.session, self) && before.is_owed);
        PUT_OFF.set(Some(PutOff { session: self, is_owed }));
        let restore = Restore { session: self, before };
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
