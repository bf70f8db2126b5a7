//! The notices of this worker: they announce new versions to waiting workers of the same user before the sidecar has
//! read the push. `transfer_memory::board` explains how.
//!
//! A push is announced only where its version is known in advance: no other command that changes the key may be under
//! way, and the version must stay on this node, in one piece, until it is replaced or deleted.
//!
//! A worker has [`MAX_NOTICES`]. When all have a key, a new key gets the notice of one that was not announced lately. A reader must
//! not find the new key's version under the old key. So the notice changes hands only when the board does not name it: no announced push
//! of the old key is under way, and the board says so. If the board still names it, the sidecar is asked to
//! [change that](transfer_core::op::Request::Unannounce), the old key is not announced meanwhile, and the new key gets a notice after a
//! later push.

use super::look_up::Changes;
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::sync::Arc;
use transfer_core::fabric::FabricKind;
use transfer_core::op::{Announced, Command, MAX_NOTICES, Push, announced_ticket};
use transfer_core::tensor::{Key, TensorMeta, Until, Version};
use transfer_memory::board::{BoardReader, NoticeWriter};

/// The notices of a session.
#[derive(Debug)]
pub(crate) struct Notices {
    pub(super) session: u64,
    /// The length of the arena. What lies behind it is registered memory, which no other process can read.
    arena_bytes: u64,
    /// `None` if the sidecar has no board.
    writer: Option<NoticeWriter>,
    /// The board, in the same case.
    board: Option<Arc<BoardReader>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the last announcement.
    count: u64,
    by_key: HashMap<Key, Notice>,
    /// The key of each notice.
    keys: Vec<Key>,
    /// The next notice to be looked at when all have a key.
    hand: usize,
}

#[derive(Debug)]
struct Notice {
    at: u16,
    /// The lowest version that the next push may have.
    next: u64,
    /// The number of announced pushes that have no answer yet.
    under_way: u32,
    /// Whether a worker waits for the key, as far as is known.
    is_wanted: bool,
    /// Whether the key was announced, or waited for, since the notice was looked at.
    is_in_use: bool,
    going: Going,
}

/// Whether the notice is wanted for another key. If so, this key is not announced until the board has ceased to name the notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Going {
    No,
    /// The sidecar will be asked. Until then the notice keeps its key: else the request could end a later announcement of the key.
    Wanted,
    /// The request is in the ring.
    Asked,
}

impl Notice {
    /// A push has got this version. Announced pushes without an answer may have higher ones.
    fn comes_after(&mut self, version: Version) {
        let next = version.0.saturating_add(1);
        self.next = if self.under_way == 0 { next } else { self.next.max(next) };
    }
}

/// The most notices that are looked at for a new key. The next key goes on behind them.
const NOTICES_PER_SEARCH: usize = 32;

impl State {
    /// Finds a notice for a new key, among this many. `is_named` tells whether the board names the notice of a key. Adds the keys to
    /// `let_go` whose notices the board shall not name any longer.
    fn take(&mut self, key: &Key, most: u16, is_named: impl Fn(&Key) -> bool, let_go: &mut Vec<Key>) -> Option<u16> {
        if let Some(at) = u16::try_from(self.keys.len()).ok().filter(|at| *at < most) {
            self.keys.push(key.clone());
            return Some(at);
        }
        for _ in 0..NOTICES_PER_SEARCH.min(self.keys.len()) {
            let at = self.hand % self.keys.len();
            self.hand = at + 1;
            let old = self.keys[at].clone();
            let Some(notice) = self.by_key.get_mut(&old) else { continue };
            if notice.under_way > 0 || notice.going == Going::Wanted || std::mem::take(&mut notice.is_in_use) {
                continue;
            }
            if is_named(&old) {
                if notice.going == Going::No {
                    notice.going = Going::Wanted;
                    let_go.push(old);
                }
                continue;
            }
            self.by_key.remove(&old);
            self.keys[at] = key.clone();
            return u16::try_from(at).ok();
        }
        None
    }
}

/// A change of a notice, made together with a command to the sidecar.
#[derive(Debug)]
pub(crate) enum Change {
    /// The notice shows this version.
    Show { at: u16, ticket: u64, version: Version, meta: TensorMeta, offset: u64 },
    /// The notice shows no version.
    Clear { at: u16 },
}

impl Change {
    fn at(&self) -> u16 {
        match self {
            Change::Show { at, .. } | Change::Clear { at } => *at,
        }
    }
}

/// Notices whose update has begun. [`NoticeUpdate::finish`] ends it.
#[must_use]
pub(crate) struct NoticeUpdate<'a> {
    writer: &'a NoticeWriter,
    changes: SmallVec<[Change; 1]>,
    /// No other thread changes a notice meanwhile.
    _state: MutexGuard<'a, State>,
}

impl Notices {
    pub(crate) fn new(session: u64, arena_bytes: u64, shared: Option<(NoticeWriter, Arc<BoardReader>)>) -> Notices {
        let (writer, board) = shared.unzip();
        Notices { session, arena_bytes, writer, board, state: Mutex::default() }
    }

    fn is_named(&self, key: &Key) -> bool {
        self.board.as_ref().is_none_or(|board| board.may_name_a_notice(key))
    }

    /// Announces a push that is about to be written into the ring, if that is possible, and sets its version. The
    /// caller makes the returned change together with the push, or calls [`Notices::forget`].
    pub(crate) fn announce(&self, push: &mut Push, changes: &Changes) -> Option<Change> {
        push.announced = None;
        self.writer.as_ref()?;
        let mut state = self.state.lock();
        let State { count, by_key, .. } = &mut *state;
        let notice = by_key.get_mut(&push.key)?;
        let at = notice.at;
        // This push is one of those that change the key.
        let is_alone = changes.count_of(&push.key) == notice.under_way + 1;
        let is_plain = push.to.is_none()
            && push.ranges == 0
            && push.offset < self.arena_bytes
            && !push.takeover
            && !push.more_follow
            && push.trace.is_none()
            && matches!(push.require, None | Some(FabricKind::Local))
            && !matches!(push.retention.until, Until::Fetched(_))
            && NoticeWriter::fits(&push.meta);
        let version = push.version.unwrap_or(Version(notice.next.max(1)));
        let ticket = announced_ticket(self.session, *count + 1);
        let Some(ticket) = ticket.filter(|_| {
            is_plain && is_alone && notice.is_wanted && notice.going == Going::No && version.0 >= notice.next
        }) else {
            return Some(Change::Clear { at });
        };
        *count += 1;
        notice.under_way += 1;
        notice.is_in_use = true;
        notice.next = version.0.saturating_add(1);
        push.announced = Some(Announced { notice: at, count: *count });
        push.version = Some(version);
        Some(Change::Show { at, ticket, version, meta: push.meta.clone(), offset: push.offset })
    }

    /// Undoes [`Notices::announce`]: the push was not written into the ring. `version` is what its caller had asked
    /// for.
    pub(crate) fn forget(&self, push: &mut Push, version: Option<Version>) {
        if push.announced.take().is_some() {
            let announced = std::mem::replace(&mut push.version, version);
            if let Some(notice) = self.state.lock().by_key.get_mut(&push.key) {
                notice.under_way = notice.under_way.saturating_sub(1);
                notice.next = announced.map_or(notice.next, |version| version.0);
            }
        }
    }

    /// Returns the change for another command that changes a key and is about to be written into the ring.
    pub(crate) fn change(&self, command: &Command) -> Option<Change> {
        let (key, ends) = match command {
            Command::Delete { key, .. } => (key, true),
            Command::TakeBack(take_back) => (&take_back.key, false),
            _ => return None,
        };
        self.writer.as_ref()?;
        let mut state = self.state.lock();
        let notice = state.by_key.get_mut(key)?;
        // Versions of a deleted key begin anew, at one that the sidecar knows.
        if ends {
            (notice.is_wanted, notice.next) = (false, 0);
        }
        Some(Change::Clear { at: notice.at })
    }

    /// Records that the sidecar is asked to let go of the notice of this key: the request is in the ring.
    pub(crate) fn asked(&self, key: &Key) {
        if let Some(notice) = self.state.lock().by_key.get_mut(key) {
            notice.going = Going::Asked;
        }
    }

    /// Begins the update of all notices that are about to change, before the sidecar can read the commands.
    pub(crate) fn begin_update(&self, changes: &mut SmallVec<[Change; 1]>) -> Option<NoticeUpdate<'_>> {
        let writer = self.writer.as_ref().filter(|_| !changes.is_empty())?;
        let state = self.state.lock();
        let mut changes = std::mem::take(changes);
        // The last one of each notice counts.
        let mut i = 0;
        while i < changes.len() {
            let at = changes[i].at();
            if changes[i + 1..].iter().any(|later| later.at() == at) {
                changes.remove(i);
            } else {
                writer.begin_update(at);
                i += 1;
            }
        }
        Some(NoticeUpdate { writer, changes, _state: state })
    }

    /// Wakes the waiters of these notices.
    pub(crate) fn wake(&self, notices: &[u16]) {
        if let Some(writer) = &self.writer {
            notices.iter().for_each(|at| writer.wake(*at));
        }
    }

    /// Records the version that a push has got.
    pub(crate) fn pushed(&self, push: &Push, version: Version) {
        if self.writer.is_some()
            && let Some(notice) = self.state.lock().by_key.get_mut(&push.key)
        {
            notice.under_way = notice.under_way.saturating_sub(u32::from(push.announced.is_some()));
            notice.comes_after(version);
        }
    }

    /// Withdraws the announcement of a push that has failed.
    pub(crate) fn failed(&self, push: &Push) {
        if push.announced.is_none() {
            return;
        }
        let Some(writer) = &self.writer else { return };
        let mut state = self.state.lock();
        if let Some(notice) = state.by_key.get_mut(&push.key) {
            notice.under_way = notice.under_way.saturating_sub(1);
            notice.is_wanted = false;
            writer.begin_update(notice.at);
            writer.clear(notice.at);
            writer.wake(notice.at);
        }
    }

    /// Records that a worker waits for the version after this push. Returns the keys whose notices are wanted for others: the caller
    /// tells the sidecar.
    pub(crate) fn watched(&self, push: &Push) -> Vec<Key> {
        let mut let_go = Vec::new();
        let (Some(_), Some(version)) = (&self.writer, push.version) else { return let_go };
        let mut state = self.state.lock();
        let next = version.0.saturating_add(1);
        let is_asked = state.by_key.get(&push.key).is_some_and(|notice| notice.going == Going::Asked);
        let is_done = is_asked && !self.is_named(&push.key);
        if let Some(notice) = state.by_key.get_mut(&push.key) {
            (notice.is_wanted, notice.is_in_use) = (true, true);
            if is_done {
                notice.going = Going::No;
            }
            notice.comes_after(version);
        } else if let Some(at) = state.take(&push.key, MAX_NOTICES, |key| self.is_named(key), &mut let_go) {
            let (under_way, is_wanted, is_in_use, going) = (0, true, true, Going::No);
            state.by_key.insert(push.key.clone(), Notice { at, next, under_way, is_wanted, is_in_use, going });
        }
        let_go
    }
}

impl NoticeUpdate<'_> {
    /// Publishes the changes, now that the sidecar can read the commands. Returns the notices whose waiters are to be
    /// woken.
    pub(crate) fn finish(self) -> SmallVec<[u16; 1]> {
        for change in &self.changes {
            match change {
                Change::Show { at, ticket, version, meta, offset } => {
                    self.writer.publish(*at, *ticket, *version, meta, *offset);
                }
                Change::Clear { at } => self.writer.clear(*at),
            }
        }
        self.changes.iter().map(Change::at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// The request that ends one announcement of a key must not end a later one. So the key keeps its notice until the request is in
    /// the ring.
    #[test]
    fn notice_changes_hands_once_the_sidecar_is_asked_and_the_board_does_not_name_it() {
        let key = |text: &str| Key::new(text).unwrap();
        let notices = Notices::new(1, u64::MAX, None);
        let (is_named, mut ordered) = (Cell::new(true), Vec::new());
        let mut take = |of: &str| {
            let mut let_go = Vec::new();
            let at = notices.state.lock().take(&key(of), 1, |_| is_named.get(), &mut let_go);
            ordered.extend(let_go);
            (at, ordered.len())
        };
        assert_eq!(take("old"), (Some(0), 0));
        let old = Notice { at: 0, next: 1, under_way: 1, is_wanted: true, is_in_use: true, going: Going::No };
        notices.state.lock().by_key.insert(key("old"), old);
        let has = |change: fn(&mut Notice)| change(notices.state.lock().by_key.get_mut(&key("old")).unwrap());
        assert_eq!(take("new"), (None, 0), "a push is under way");
        has(|old| old.under_way = 0);
        assert_eq!(take("new"), (None, 0), "it is in use");
        assert_eq!(take("new"), (None, 1), "the sidecar is about to be asked");
        is_named.set(false);
        assert_eq!(take("new"), (None, 1), "the request is not in the ring");
        is_named.set(true);
        notices.asked(&key("old"));
        assert_eq!(take("new"), (None, 1), "the board names it, and the sidecar is asked once");
        is_named.set(false);
        assert_eq!(take("new"), (Some(0), 1));
        assert!(notices.state.lock().by_key.is_empty());
    }
}
