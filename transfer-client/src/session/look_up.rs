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
use transfer_memory::board::{HazardPointer, Lookup, NotHeld, NoticeState, Watch, hash_of};

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
        self.count_of(key) > 0
    }

    /// How much is under way that may change this key.
    pub(crate) fn count_of(&self, key: &Key) -> u32 {
        self.0[Changes::of(key)].load(Ordering::SeqCst)
    }
}

/// What looking for a key has brought.
pub(crate) enum Looked {
    /// It stays as it is until [`Session::clear_hazard`].
    Found(HazardPointer, Landed),
    /// Its owner announces it, and what it has announced is older than what is wanted, or is about to change.
    Watch(Watch, NoticeState),
    /// The sidecar knows.
    Nothing,
}

impl Session {
    /// What the board shows, or a notice that it names, where that is an answer to this fetch. It stays as it is until [`Session::clear_hazard`].
    pub(crate) fn look_up(
        &self,
        key: &Key,
        select: Select,
        require: Option<FabricKind>,
    ) -> Option<(HazardPointer, Landed)> {
        match self.look(key, select, require) {
            Looked::Found(hazard, landed) => Some((hazard, landed)),
            Looked::Watch(..) | Looked::Nothing => None,
        }
    }

    pub(super) fn look(&self, key: &Key, select: Select, require: Option<FabricKind>) -> Looked {
        let Some(board) = &self.board else { return Looked::Nothing };
        if self.is_forked() {
            return Looked::Nothing;
        }
        let may_be = matches!(require, None | Some(FabricKind::Local));
        if !may_be || self.over.load(Ordering::SeqCst) || !board.is_honoured() || self.changes.is_any_of(key) {
            return Looked::Nothing;
        }
        for _ in 0..TRIES {
            let snapshot = match board.find(key, |segment| self.segments.get(segment)) {
                Some(Lookup::Version(snapshot)) => snapshot,
                Some(Lookup::Notice(watch)) => match watch.look() {
                    NoticeState { snapshot: Some(snapshot), .. } if select.takes(snapshot.version) => snapshot,
                    look if look.is_open()
                        || look.snapshot.as_ref().is_some_and(|snapshot| select.awaits(snapshot.version)) =>
                    {
                        return Looked::Watch(watch, look);
                    }
                    _ => return Looked::Nothing,
                },
                None => return Looked::Nothing,
            };
            // Where its memory is not known here the sidecar passes it, with the answer to a question.
            let known = self.segments.get(snapshot.slice.segment);
            let is_there = known.is_some_and(|memory| memory.ptr_at(snapshot.slice.offset, snapshot.slice.len).is_ok());
            if !is_there || !select.takes(snapshot.version) {
                return Looked::Nothing;
            }
            match board.hold(&snapshot) {
                Ok(hazard) => {
                    let bytes = snapshot.slice.len;
                    board.count(bytes);
                    let [queued, waited, flew] = [Duration::ZERO; 3];
                    let report =
                        Report { fabric: FabricKind::Local, bytes, copied: 0, queued, waited, flew, origin: None };
                    let (version, meta, slice) = (snapshot.version, snapshot.meta, snapshot.slice);
                    return Looked::Found(hazard, Landed { version, meta, slice, ranges: 0, report });
                }
                Err(NotHeld::NoHazardPointer) => return Looked::Nothing,
                Err(NotHeld::Gone { tell }) => self.tell_cleared(tell),
            }
        }
        Looked::Nothing
    }

    /// What was looked up is not read any more.
    pub(crate) fn clear_hazard(&self, hazard: &HazardPointer) {
        if self.is_forked() {
            return;
        }
        let waits = self.board.as_ref().is_some_and(|board| board.release(hazard));
        self.tell_cleared(waits.then_some(hazard.ticket()));
    }

    fn tell_cleared(&self, ticket: Option<u64>) {
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
