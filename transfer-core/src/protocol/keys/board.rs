//! The versions that boards show. A board is a table in shared memory in which the workers of one tenant look up
//! published versions, without asking the sidecar.
//!
//! A board counts as one more reader. Each version that it shows has a reference of its own, named by a *ticket*. After
//! the board has stopped showing a version, the host of the board calls [`Keys::withdrawn`] once no hazard pointer
//! names the ticket, and the reference ends. So memory that a worker found on a board is returned in the same way as
//! memory that was handed to a worker.
//!
//! A version is shown when it is published, if its key was fetched here before and no worker here waits for it. A
//! waiter has asked already, so a stream of versions that all have waiters does not pay for being shown. A version that
//! is fetched after its publication is shown from then on.
//!
//! A board shows only the newest version of a key, because it answers only fetches of the newest version. It never
//! shows a version whose fetches are counted, whose body has several ranges or metadata, or whose push carries a trace.
//! It does not show the keys that a peer pushes here either: for them, only the sidecar can say which version is the
//! newest.

use super::notices::Noticed;
use super::{Concerned, Keys, Owner, Record};
use crate::memory::LocalSlice;
use crate::protocol::action::Actions;
use crate::protocol::action::{HostAction, NoticeAt, Shown};
use crate::protocol::ids::{BlobId, RecordId};
use crate::protocol::tenant::Tenant;
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// As [`OnBoard`], in one byte of the record. The ticket is in [`Boards::shown`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Standing {
    #[default]
    Unasked,
    Wanted,
    Shown,
    Noticed,
    Never,
}

/// Whether a board shows a key's newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnBoard {
    /// No worker here has fetched the key yet.
    Unasked,
    /// The newest version is not shown. The next one is, if it can be shown and no worker here waits for it.
    Wanted,
    /// The board shows it, under this ticket.
    Shown(u64),
    /// The owner shows it, in a notice that the board names; see [`Boards::noticed`].
    Noticed,
    /// The key does not fit on the board.
    Never,
}

/// What a ticket stands for.
pub(super) struct Ticket {
    /// The key whose board entry has this ticket. `None`: the ticket is that of an announced version, which may not be
    /// published yet.
    pub(super) record: Option<RecordId>,
    /// The version that the ticket holds. `None`: the board entry names a notice, and holds no version.
    pub(super) blob: Option<BlobId>,
    pub(super) domain: Tenant,
}

/// All boards of a node.
#[derive(Default)]
pub(super) struct Boards {
    /// The boards are closed: nothing is shown any more.
    closed: bool,
    /// How many more keys each board can take. It is one too low while a key has both its new entry and its old one.
    free: BTreeMap<Tenant, i64>,
    /// The tickets of versions that are shown, and of those that hazard pointers may still name.
    pub(super) tickets: HashMap<u64, Ticket>,
    /// The last ticket that was given out.
    last: u64,
    /// The tickets of the keys whose newest version the board shows. A board has places for few of a node's keys.
    shown: HashMap<RecordId, u64>,
    /// The keys for which the board names a notice.
    pub(super) noticed: HashMap<RecordId, Noticed>,
    /// The ticket and the notice of each announced version that is, or is about to become, the newest of its key.
    pub(super) announced: HashMap<BlobId, (u64, NoticeAt)>,
    /// Questions about keys with a notice that wait for an answer; see [`Keys::take_asked`].
    pub(super) asked: Vec<(RecordId, Concerned)>,
}

impl Keys {
    /// Adds the board of this tenant, with places for this many keys.
    pub(crate) fn add_board(&mut self, domain: Tenant, places: usize) {
        self.boards.free.insert(domain, i64::try_from(places).unwrap_or(i64::MAX));
    }

    /// Whether there is a board for the workers of this tenant.
    pub(crate) fn has_board(&self, domain: Tenant) -> bool {
        self.boards.free.contains_key(&domain)
    }

    /// Whether a board shows the newest version of a key.
    pub(super) fn on_board(&self, record: RecordId) -> OnBoard {
        match self.records.get(record).map_or(Standing::Unasked, |r| r.on_board) {
            Standing::Unasked => OnBoard::Unasked,
            Standing::Wanted => OnBoard::Wanted,
            Standing::Shown => self.boards.shown.get(&record).map_or(OnBoard::Wanted, |ticket| OnBoard::Shown(*ticket)),
            Standing::Noticed => OnBoard::Noticed,
            Standing::Never => OnBoard::Never,
        }
    }

    pub(super) fn set_on_board(&mut self, record: RecordId, now: OnBoard) {
        let Some(r) = self.records.get_mut(record) else { return };
        let before = std::mem::replace(
            &mut r.on_board,
            match now {
                OnBoard::Unasked => Standing::Unasked,
                OnBoard::Wanted => Standing::Wanted,
                OnBoard::Shown(_) => Standing::Shown,
                OnBoard::Noticed => Standing::Noticed,
                OnBoard::Never => Standing::Never,
            },
        );
        match now {
            OnBoard::Shown(ticket) => drop(self.boards.shown.insert(record, ticket)),
            _ if before == Standing::Shown => drop(self.boards.shown.remove(&record)),
            _ => {}
        }
    }

    /// Notes that a worker of this sidecar has fetched the key: its newest version is worth showing from now on.
    pub(crate) fn want_on_board(&mut self, record: RecordId) {
        if self.on_board(record) == OnBoard::Unasked && !self.boards.free.is_empty() {
            self.set_on_board(record, OnBoard::Wanted);
        }
    }

    /// Shows the newest version of a key in place of its previous one, if it is wanted on the board and can be shown.
    pub(crate) fn show(&mut self, record: RecordId, actions: &mut Actions) {
        let Some(r) = self.records.get(record) else { return };
        if let Some(blob) = r.current
            && let Some((ticket, at)) = self.boards.announced.get(&blob).copied()
        {
            return self.show_notice(record, blob, ticket, at, actions);
        }
        if self.on_board(record) == OnBoard::Noticed {
            // The owner no longer uses the notice: it has not announced the newest version.
            self.hide(record, actions);
        }
        let Some(r) = self.records.get(record) else { return };
        let before = match self.on_board(record) {
            OnBoard::Wanted => None,
            OnBoard::Shown(ticket) => Some(ticket),
            OnBoard::Unasked | OnBoard::Never | OnBoard::Noticed => return,
        };
        let shown = before.and_then(|ticket| self.boards.tickets.get(&ticket));
        if shown.is_some_and(|t| t.blob == r.current) {
            return;
        }
        let new = r.current.filter(|blob| self.can_be_shown(r, *blob, shown.map(|t| t.domain)));
        let now = match new {
            Some(blob) => {
                self.hold(blob);
                self.take_place(record, blob, None, actions).map(OnBoard::Shown)
            }
            None => Some(OnBoard::Wanted),
        };
        if let Some(now) = now {
            self.set_on_board(record, now);
        }
        if let Some(ticket) = before {
            self.take_off_board(ticket, actions);
        }
    }

    /// Adds a board entry with a new ticket, for a version or for the notice in which the owner shows it. The caller
    /// then removes the key's previous entry. Returns the ticket.
    pub(super) fn take_place(
        &mut self,
        record: RecordId,
        blob: BlobId,
        notice: Option<NoticeAt>,
        actions: &mut Actions,
    ) -> Option<u64> {
        let (b, r) = (self.blobs.get(blob)?, self.records.get(record)?);
        self.boards.last += 1;
        let (ticket, domain) = (self.boards.last, b.domain);
        if let Some(free) = self.boards.free.get_mut(&domain) {
            *free -= 1;
        }
        // An entry that names a notice holds no version: each announced version has a ticket of its own.
        let held = notice.is_none().then_some(blob);
        self.boards.tickets.insert(ticket, Ticket { record: Some(record), blob: held, domain });
        let (key, version, meta) = (r.key.clone(), b.version, b.meta.clone());
        let slice = LocalSlice { len: meta.len_bytes(), ..b.slice() };
        let shown = Shown { domain, ticket, key, version, meta, slice, notice };
        actions.push(HostAction::Show(shown));
        Some(ticket)
    }

    /// Whether all workers of the version's tenant may find it on the board. `before`: the tenant on whose board the
    /// key already has an entry.
    pub(super) fn can_be_shown(&self, record: &Record, blob: BlobId, before: Option<Tenant>) -> bool {
        let Some(b) = self.blobs.get(blob) else { return false };
        let has_place =
            self.boards.free.get(&b.domain).is_some_and(|free| *free > 0 || before.is_some_and(|d| d == b.domain));
        // A board entry does not carry the trace that a push belongs to.
        let is_plain = b.is_in_one_piece() && b.meta.metadata_bytes() == 0 && b.trace().is_none();
        let is_plain = is_plain && b.source.is_arena() && !b.is_registered();
        let is_free = !b.counts_fetches() && !b.before_epoch && !record.more_follow();
        has_place && is_plain && is_free && matches!(record.owner, Owner::Session(_)) && !self.boards.closed
    }

    /// Removes a key from the board: fetches of it have to ask the sidecar.
    pub(crate) fn hide(&mut self, record: RecordId, actions: &mut Actions) {
        match self.on_board(record) {
            OnBoard::Shown(ticket) => {
                self.set_on_board(record, OnBoard::Wanted);
                self.take_off_board(ticket, actions);
            }
            OnBoard::Noticed => {
                self.set_on_board(record, OnBoard::Wanted);
                self.hide_notice(record, actions);
            }
            OnBoard::Unasked | OnBoard::Wanted | OnBoard::Never => {}
        }
    }

    /// Removes all keys from the boards, and shows none from then on.
    pub(crate) fn close_boards(&mut self, actions: &mut Actions) {
        self.boards.closed = true;
        for record in self.records.ids(|r| matches!(r.on_board, Standing::Shown | Standing::Noticed)) {
            self.hide(record, actions);
        }
    }

    /// Removes an entry from the board, which frees its place.
    pub(super) fn take_off_board(&mut self, ticket: u64, actions: &mut Actions) {
        let Some(domain) = self.boards.tickets.get(&ticket).map(|t| t.domain) else { return };
        if let Some(free) = self.boards.free.get_mut(&domain) {
            *free += 1;
        }
        self.end_ticket(ticket, actions);
    }

    /// Ends a ticket that readers can no longer find, once no hazard pointer names it.
    pub(super) fn end_ticket(&mut self, ticket: u64, actions: &mut Actions) {
        if let Some(domain) = self.boards.tickets.get(&ticket).map(|t| t.domain) {
            actions.push(HostAction::Withdraw { domain, ticket });
        }
    }

    /// Handles the end of a ticket that no reader can find and no hazard pointer names. Returns the version that it
    /// held, which the caller releases.
    pub(crate) fn withdrawn(&mut self, ticket: u64) -> Option<BlobId> {
        self.boards.tickets.remove(&ticket)?.blob
    }

    /// Handles a ticket that did not fit on the board and was not shown. Returns the version that it held, which the
    /// caller releases.
    pub(crate) fn not_shown(&mut self, ticket: u64, actions: &mut Actions) -> Option<BlobId> {
        let Ticket { record: Some(record), blob, domain } = *self.boards.tickets.get(&ticket)? else { return None };
        let on_board = self.on_board(record);
        let is_noticed = on_board == OnBoard::Noticed
            && self.boards.noticed.get(&record).is_some_and(|noticed| noticed.entry == ticket);
        // Otherwise the ticket was withdrawn meanwhile, and `withdrawn` handles it.
        if on_board != OnBoard::Shown(ticket) && !is_noticed {
            return None;
        }
        self.set_on_board(record, OnBoard::Never);
        self.boards.tickets.remove(&ticket);
        if let Some(free) = self.boards.free.get_mut(&domain) {
            *free += 1;
        }
        if blob.is_none() {
            self.hide_notice(record, actions);
        }
        blob
    }

    /// Returns how many references there are to a published version besides its publication, as far as this node knows.
    /// While a version is shown, readers that found it on the board are not counted.
    pub(crate) fn readers_of(&self, record: RecordId, blob: BlobId) -> u32 {
        let refs = self.blobs.get(blob).map_or(0, |b| b.holders().saturating_sub(1));
        let is_shown = match self.on_board(record) {
            OnBoard::Shown(ticket) => self.boards.tickets.get(&ticket).is_some_and(|t| t.blob == Some(blob)),
            OnBoard::Noticed => self.boards.announced.contains_key(&blob),
            OnBoard::Unasked | OnBoard::Wanted | OnBoard::Never => false,
        };
        refs.saturating_sub(u32::from(is_shown))
    }

    /// Checks the invariants of boards, which hold whenever no action is pending; for tests.
    #[cfg(test)]
    pub(super) fn check_boards(&self) -> Result<(), String> {
        for id in self.records.ids(|r| matches!(r.on_board, Standing::Shown | Standing::Noticed)) {
            let Some(r) = self.records.get(id) else { continue };
            let number = match (self.on_board(id), self.boards.noticed.get(&id)) {
                (OnBoard::Shown(number), _) => number,
                (OnBoard::Noticed, Some(noticed)) => noticed.ticket,
                _ => return Err(format!("key {:?} is noticed, and no notice is known", r.key)),
            };
            let ticket = self.boards.tickets.get(&number);
            if ticket.is_none_or(|t| t.blob.is_none() || t.blob != r.current) {
                return Err(format!("key {:?}: ticket {number} shows what is not its newest version", r.key));
            }
            if !matches!(r.owner, Owner::Session(_) | Owner::Claiming(_)) || self.boards.closed {
                return Err(format!("key {:?} is shown, and its fetches have to ask", r.key));
            }
        }
        let is_gone = |t: &&Ticket| t.blob.is_some_and(|blob| self.blobs.get(blob).is_none());
        if let Some(t) = self.boards.tickets.values().find(is_gone) {
            return Err(format!("a ticket holds blob {:?}, which is gone", t.blob));
        }
        let is_lost = |id: &&RecordId| self.records.get(**id).is_none_or(|r| r.on_board != Standing::Shown);
        if let Some(id) = self.boards.shown.keys().find(is_lost) {
            return Err(format!("the ticket of {id:?}, which is not shown"));
        }
        self.check_notices()
    }

    /// Returns how many tickets have not been reported as withdrawn; for tests.
    #[cfg(test)]
    pub(crate) fn tickets(&self) -> usize {
        self.boards.tickets.len()
    }
}
