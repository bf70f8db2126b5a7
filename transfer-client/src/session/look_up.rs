//! Looking for what is published on this host, without asking.
//!
//! Fetches of one worker keep their order with what it has commanded: behind a push, a deletion or a taking back of a key that has no
//! answer yet, a fetch of that key asks.

use super::{Landed, Session};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Command, Report};
use transfer_core::tensor::{Key, Select};
use transfer_memory::board::{Mark, NotHeld, hash_of};

/// How often a fetch looks, where what it found is replaced meanwhile. Then it asks.
const TRIES: usize = 3;

/// How many counters there are of what is under way. Keys that share one only ask a little more often than they had to.
const CHANGES: usize = 32;

/// What is under way that changes a key, as far as this session has commanded it.
#[derive(Debug, Default)]
pub(crate) struct Changes([AtomicU32; CHANGES]);

/// One of them; see [`Changes::begin`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change(usize);

impl Changes {
    fn of(key: &Key) -> usize {
        (hash_of(key.as_str()) % CHANGES as u64) as usize
    }

    /// Something that changes this key is about to be commanded.
    pub(crate) fn begin(&self, key: &Key) -> Change {
        let at = Changes::of(key);
        self.0[at].fetch_add(1, Ordering::SeqCst);
        Change(at)
    }

    /// It has its answer.
    pub(crate) fn end(&self, Change(at): Change) {
        self.0[at].fetch_sub(1, Ordering::SeqCst);
    }

    fn is_any_of(&self, key: &Key) -> bool {
        self.0[Changes::of(key)].load(Ordering::SeqCst) > 0
    }
}

impl Session {
    /// What the board shows, where that is an answer to this fetch. It stays as it is until [`Session::unmark`].
    pub(crate) fn look_up(&self, key: &Key, select: Select, require: Option<FabricKind>) -> Option<(Mark, Landed)> {
        let board = self.board.as_ref()?;
        let may_be = matches!(require, None | Some(FabricKind::Local));
        if !may_be || self.over.load(Ordering::SeqCst) || self.changes.is_any_of(key) {
            return None;
        }
        for _ in 0..TRIES {
            let seen = board.find(key).filter(|seen| select.takes(seen.version))?;
            // Where its memory is not known here the sidecar passes it, with the answer to a question.
            self.segments.get(seen.slice.segment)?.ptr_at(seen.slice.offset, seen.slice.len).ok()?;
            match board.hold(&seen) {
                Ok(mark) => {
                    let bytes = seen.slice.len;
                    board.count(bytes);
                    let [queued, waited, flew] = [Duration::ZERO; 3];
                    let report =
                        Report { fabric: FabricKind::Local, bytes, copied: 0, queued, waited, flew, origin: None };
                    let (version, meta, slice) = (seen.version, seen.meta, seen.slice);
                    return Some((mark, Landed { version, meta, slice, ranges: 0, report }));
                }
                Err(NotHeld::NoMark) => return None,
                Err(NotHeld::Gone { tell }) => self.tell_unmarked(tell),
            }
        }
        None
    }

    /// What was looked up is not read any more.
    pub(crate) fn unmark(&self, mark: Mark) {
        let waits = self.board.as_ref().is_some_and(|board| board.release(mark));
        self.tell_unmarked(waits.then_some(mark.ticket()));
    }

    fn tell_unmarked(&self, ticket: Option<u64>) {
        if let Some(ticket) = ticket {
            self.say(std::iter::once(Command::Unmarked { ticket }));
            self.wait_for_backlog();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_counts_for_its_key_until_it_has_its_answer() {
        let (changes, key) = (Changes::default(), Key::new("k").unwrap());
        let (first, second) = (changes.begin(&key), changes.begin(&key));
        changes.end(first);
        assert!(changes.is_any_of(&key));
        changes.end(second);
        assert!(!changes.is_any_of(&key));
    }
}
