//! What is shown on boards: tables in shared memory, in which the workers of one user look up what is published here, without asking.
//!
//! A board is one more reader. What is shown has a reference of its own, named by a *ticket*; when the version is shown no more, whoever
//! keeps the board says [`Node::withdrawn`] once no worker has marked that ticket as read, and the reference ends with that. So memory
//! that somebody found on a board is given back as memory that was handed over is.
//!
//! A version is shown when it is published, if its key was fetched here before and nobody waits for it: who waits has asked already, and a
//! stream of versions that are all waited for costs no showing. What is fetched after it was published is shown from then on.
//!
//! What is shown is only ever the newest version of its key, for a board answers fetches that ask for the newest and knows of nothing
//! else: no versions that are counted, none of many ranges, none whose push told its trace, none that a peer lands in, where "the
//! newest" takes a question.

use super::node::Node;
use super::slab::Id;
use super::store::{Blob, Owner, Record, Source};
use super::{Action, Domain};
use crate::memory::LocalSlice;
use crate::tensor::{Key, TensorMeta, Until, Version};
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// A version to be shown on a board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// On the board of which user.
    pub domain: Domain,
    /// Names this showing of this version. Never 0, and never used again.
    pub ticket: u64,
    /// Its key. What was shown under the same key before is to be shown no more from the same moment on.
    pub key: Key,
    /// Which version it is.
    pub version: Version,
    /// Element type and shape.
    pub meta: TensorMeta,
    /// Where it lies.
    pub slice: LocalSlice,
}

/// Whether a key's newest version is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum OnBoard {
    /// Nobody here has fetched the key yet.
    #[default]
    Unasked,
    /// Its newest version is not, and the next one is to be, if it can be and nobody waits for it.
    Wanted,
    /// By this ticket.
    Shown(u64),
    /// It does not fit.
    Never,
}

/// What a ticket holds.
struct Ticket {
    record: Id<Record>,
    blob: Id<Blob>,
    domain: Domain,
}

/// All boards of a node.
#[derive(Default)]
pub(super) struct Boards {
    /// How many more keys each board takes.
    free: BTreeMap<Domain, usize>,
    /// Those that are shown, and those that somebody may still have marked.
    tickets: HashMap<u64, Ticket>,
    /// The last one that was given out.
    last: u64,
}

impl Node {
    /// Somebody keeps a board for the workers of this user, with places for so many keys.
    pub fn add_board(&mut self, domain: Domain, places: usize) {
        self.boards.free.insert(domain, places);
    }

    /// A worker of this sidecar has fetched the key: its newest version is worth showing from here on.
    pub(super) fn want_on_board(&mut self, record: Id<Record>) {
        if let Some(r) = self.store.records.get_mut(record)
            && r.on_board == OnBoard::Unasked
            && !self.boards.free.is_empty()
        {
            r.on_board = OnBoard::Wanted;
        }
    }

    /// Shows the newest version of a key, where it is wanted and can be, in the place of what was shown of it before.
    pub(super) fn show(&mut self, record: Id<Record>) {
        let Some(r) = self.store.records.get(record) else { return };
        let before = match r.on_board {
            OnBoard::Wanted => None,
            OnBoard::Shown(ticket) => Some(ticket),
            OnBoard::Unasked | OnBoard::Never => return,
        };
        let shown = before.and_then(|ticket| self.boards.tickets.get(&ticket));
        if shown.is_some() && shown.map(|t| t.blob) == r.published {
            return;
        }
        let new = r.published.filter(|blob| self.can_be_shown(r, *blob, shown.map(|t| t.domain)));
        if let Some(blob) = new
            && let Some(b) = self.store.blobs.get_mut(blob)
            && let Some(r) = self.store.records.get_mut(record)
        {
            b.refs += 1;
            self.boards.last += 1;
            let (ticket, domain) = (self.boards.last, b.domain);
            if let Some(free) = self.boards.free.get_mut(&domain) {
                *free = free.saturating_sub(1);
            }
            r.on_board = OnBoard::Shown(ticket);
            self.boards.tickets.insert(ticket, Ticket { record, blob, domain });
            let (key, version, meta) = (r.key.clone(), b.version, b.meta.clone());
            let slice = LocalSlice { len: meta.len_bytes(), ..b.slice };
            self.actions.push_back(Action::Show(Box::new(Shown { domain, ticket, key, version, meta, slice })));
        } else if let Some(r) = self.store.records.get_mut(record) {
            r.on_board = OnBoard::Wanted;
        }
        if let Some(ticket) = before {
            self.take_off_board(ticket);
        }
    }

    /// Whether everybody of its user may find this version by looking. `before`: on which board the key has a place already.
    fn can_be_shown(&self, record: &Record, blob: Id<Blob>, before: Option<Domain>) -> bool {
        let Some(b) = self.store.blobs.get(blob) else { return false };
        let has_place =
            self.boards.free.get(&b.domain).is_some_and(|free| *free > 0 || before.is_some_and(|d| d == b.domain));
        // A board tells nothing of the trace that a push belongs to.
        let is_plain = b.ranges.is_none() && b.meta.metadata_bytes() == 0 && b.trace.is_none();
        let is_plain = is_plain && matches!(b.source, Source::Arena(_));
        let is_free = !matches!(b.retention.until, Until::Fetched(_)) && !b.past;
        has_place && is_plain && is_free && matches!(record.owner, Owner::Session(_)) && !self.draining
    }

    /// Shows a key no more: fetches of it have to ask.
    pub(super) fn hide(&mut self, record: Id<Record>) {
        if let Some(r) = self.store.records.get_mut(record)
            && let OnBoard::Shown(ticket) = r.on_board
        {
            r.on_board = OnBoard::Wanted;
            self.take_off_board(ticket);
        }
    }

    /// Shows nothing any more.
    pub(super) fn hide_all(&mut self) {
        for record in self.store.records.ids(|r| matches!(r.on_board, OnBoard::Shown(_))) {
            self.hide(record);
        }
    }

    fn take_off_board(&mut self, ticket: u64) {
        let Some(domain) = self.boards.tickets.get(&ticket).map(|t| t.domain) else { return };
        if let Some(free) = self.boards.free.get_mut(&domain) {
            *free += 1;
        }
        self.actions.push_back(Action::Withdraw { domain, ticket });
        #[cfg(test)]
        if self.config.broken == Some(super::Broken::ForgetsMarks) {
            self.withdrawn(ticket);
        }
    }

    /// Nobody has marked what was shown by this ticket, and nobody can find it any more. Follows each [`Action::Withdraw`], once.
    pub fn withdrawn(&mut self, ticket: u64) {
        if let Some(Ticket { blob, .. }) = self.boards.tickets.remove(&ticket) {
            self.unhold(blob);
        }
    }

    /// What [`Action::Show`] asked for does not fit on the board, and was not shown: the key's description is too long, or the places that
    /// it could have are taken.
    pub fn not_shown(&mut self, ticket: u64) {
        let Some(Ticket { record, blob, domain }) = self.boards.tickets.remove(&ticket) else { return };
        if let Some(r) = self.store.records.get_mut(record)
            && r.on_board == OnBoard::Shown(ticket)
        {
            r.on_board = OnBoard::Never;
            if let Some(free) = self.boards.free.get_mut(&domain) {
                *free += 1;
            }
            self.unhold(blob);
        } else {
            // It is withdrawn by now, which is answered for itself.
            self.boards.tickets.insert(ticket, Ticket { record, blob, domain });
        }
    }

    /// How many hold a published version besides its key, as far as this node knows: who found it on the board is not among them as long as
    /// it is shown.
    pub(super) fn readers_of(&self, record: &Record, blob: Id<Blob>) -> u32 {
        let refs = self.store.blobs.get(blob).map_or(0, |b| b.refs.saturating_sub(1));
        let is_shown = match record.on_board {
            OnBoard::Shown(ticket) => self.boards.tickets.get(&ticket).is_some_and(|t| t.blob == blob),
            OnBoard::Unasked | OnBoard::Wanted | OnBoard::Never => false,
        };
        refs.saturating_sub(u32::from(is_shown))
    }

    /// What has to hold of boards whenever no action is left; for tests.
    #[cfg(test)]
    pub(super) fn check_boards(&self) -> Result<(), String> {
        for id in self.store.records.ids(|r| matches!(r.on_board, OnBoard::Shown(_))) {
            let Some(r) = self.store.records.get(id) else { continue };
            let OnBoard::Shown(number) = r.on_board else { continue };
            let ticket = self.boards.tickets.get(&number);
            if ticket.is_none_or(|t| Some(t.blob) != r.published) {
                return Err(format!("key {:?}: ticket {number} shows what is not its newest version", r.key));
            }
            if !matches!(r.owner, Owner::Session(_) | Owner::Claiming(_)) || self.draining {
                return Err(format!("key {:?} is shown, and its fetches have to ask", r.key));
            }
        }
        match self.boards.tickets.values().find(|t| self.store.blobs.get(t.blob).is_none()) {
            Some(t) => Err(format!("a ticket holds blob {:?}, which is gone", t.blob)),
            None => Ok(()),
        }
    }

    /// How many tickets have not come back; for tests.
    #[cfg(test)]
    pub(super) fn tickets(&self) -> usize {
        self.boards.tickets.len()
    }
}
