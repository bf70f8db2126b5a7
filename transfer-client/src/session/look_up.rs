//! Look-ups of versions that are published on this host, without asking the sidecar.
//!
//! The fetches and commands of one worker keep their order: while a push, a deletion or a taking back of a key has no
//! answer, a fetch of that key asks the sidecar.

use super::Session;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use transfer_core::fabric::FabricKind;
use transfer_core::op::{FetchedTensor, Report, Request};
use transfer_core::tensor::{Key, Select};
use transfer_memory::board::{HazardPointer, Lookup, NotHeld, NoticeState, Watch, hash_of};

/// The number of attempts of a look-up whose version is replaced meanwhile. Then the fetch asks the sidecar.
const LOOK_UP_ATTEMPTS: usize = 3;

/// The number of counters of commands under way. If keys share a counter, their fetches ask the sidecar a little more
/// often than necessary.
const CHANGE_COUNTERS: usize = 32;

/// The commands of this session under way that change a key.
#[derive(Debug, Default)]
pub(crate) struct Changes([AtomicU32; CHANGE_COUNTERS]);

/// One command under way; see [`Changes::begin`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change(usize);

impl Changes {
    fn of(key: &Key) -> usize {
        (hash_of(key.as_str()) % CHANGE_COUNTERS as u64) as usize
    }

    /// Records that a command that changes this key is about to be sent.
    pub(crate) fn begin(&self, key: &Key) -> Change {
        let at = Changes::of(key);
        self.0[at].fetch_add(1, Ordering::SeqCst);
        Change(at)
    }

    /// Records that the command has its answer.
    pub(crate) fn end(&self, Change(at): Change) {
        self.0[at].fetch_sub(1, Ordering::SeqCst);
    }

    fn is_any_of(&self, key: &Key) -> bool {
        self.count_of(key) > 0
    }

    /// The number of commands under way that may change this key.
    pub(crate) fn count_of(&self, key: &Key) -> u32 {
        self.0[Changes::of(key)].load(Ordering::SeqCst)
    }
}

/// The result of a look-up.
pub(crate) enum Looked {
    /// The version. It does not change until [`Session::clear_hazard`].
    Found(HazardPointer, FetchedTensor),
    /// The owner announces the key's versions. The announced version is too old, or is about to change.
    Watch(Watch, NoticeState),
    /// Ask the sidecar.
    Nothing,
}

impl Session {
    /// Looks the version for a fetch up, on the board or in a notice that it names. The version does not change until
    /// [`Session::clear_hazard`].
    pub(crate) fn look_up(
        &self,
        key: &Key,
        select: Select,
        require: Option<FabricKind>,
    ) -> Option<(HazardPointer, FetchedTensor)> {
        match self.look(key, select, require) {
            Looked::Found(hazard, tensor) => Some((hazard, tensor)),
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
        for _ in 0..LOOK_UP_ATTEMPTS {
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
            // If its segment is not mapped here, the sidecar passes it with the answer to a fetch.
            if !self.segments.holds(snapshot.slice) || !select.takes(snapshot.version) {
                return Looked::Nothing;
            }
            match board.hold(&snapshot) {
                Ok(hazard) => {
                    let bytes = snapshot.slice.len;
                    board.count(bytes);
                    let [queued, waited, in_flight] = [Duration::ZERO; 3];
                    let report = Report {
                        fabric: FabricKind::Local,
                        bytes,
                        copied: 0,
                        verified: 0,
                        relayed: 0,
                        delta: 0,
                        queued,
                        waited,
                        in_flight,
                        origin: None,
                    };
                    let (version, meta, slice) = (snapshot.version, snapshot.meta, snapshot.slice);
                    let tensor =
                        FetchedTensor { version, meta, slice, ranges: 0, is_part: false, publication: 0, report };
                    return Looked::Found(hazard, tensor);
                }
                Err(NotHeld::NoHazardPointer) => return Looked::Nothing,
                Err(NotHeld::Gone { tell }) => self.tell_cleared(tell),
            }
        }
        Looked::Nothing
    }

    /// Clears a hazard pointer: the version is not read any longer.
    pub(crate) fn clear_hazard(&self, hazard: &HazardPointer) {
        if self.is_forked() {
            return;
        }
        let waits = self.board.as_ref().is_some_and(|board| board.release(hazard));
        self.tell_cleared(waits.then_some(hazard.ticket()));
    }

    fn tell_cleared(&self, ticket: Option<u64>) {
        if let Some(ticket) = ticket {
            self.say(std::iter::once(Request::Unmarked { ticket }));
            self.wait_for_backlog();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_counts_for_its_key_until_it_is_answered() {
        let (changes, key) = (Changes::default(), Key::new("k").unwrap());
        let (first, second) = (changes.begin(&key), changes.begin(&key));
        changes.end(first);
        assert!(changes.is_any_of(&key));
        changes.end(second);
        assert!(!changes.is_any_of(&key));
    }
}
