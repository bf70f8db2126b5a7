//! What is shown on boards: tables in shared memory, in which the workers of one user look up what is published here, without asking.
//!
//! A board is one more reader. What is shown has a reference of its own, named by a *ticket*; when the version is shown no more, whoever
//! keeps the board says [`Keys::withdrawn`] once no worker has marked that ticket as read, and the reference ends with that. So memory
//! that somebody found on a board is given back as memory that was handed over is.
//!
//! A version is shown when it is published, if its key was fetched here before and nobody waits for it: who waits has asked already, and a
//! stream of versions that are all waited for costs no showing. What is fetched after it was published is shown from then on.
//!
//! What is shown is only ever the newest version of its key, for a board answers fetches that ask for the newest and knows of nothing
//! else: no versions that are counted, none of many ranges, none whose push told its trace, none that a peer lands in, where "the
//! newest" takes a question.

use super::notices::Noticed;
use super::{Concerned, Keys, Owner, Record, Source};
use crate::memory::LocalSlice;
use crate::protocol::action::Actions;
use crate::protocol::action::{HostAction, NoticeAt, Shown};
use crate::protocol::ids::{BlobId, RecordId};
use crate::protocol::tenant::Tenant;
use hashbrown::HashMap;
use std::collections::BTreeMap;

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
    /// By its owner, in a notice that the board names; see [`Boards::noticed`].
    Noticed,
    /// It does not fit.
    Never,
}

/// What a ticket holds.
pub(super) struct Ticket {
    /// Whose showing it is. `None`: of a version that its worker has announced, which may be none of its key's yet.
    pub(super) record: Option<RecordId>,
    /// `None`: it names a notice on the board, and no version.
    pub(super) blob: Option<BlobId>,
    pub(super) domain: Tenant,
}

/// All boards of a node.
#[derive(Default)]
pub(super) struct Boards {
    /// Nothing is shown any more.
    closed: bool,
    /// How many more keys each board takes. One too few for as long as a key has its new place and its old one.
    free: BTreeMap<Tenant, i64>,
    /// Those that are shown, and those that somebody may still have marked.
    pub(super) tickets: HashMap<u64, Ticket>,
    /// The last one that was given out.
    last: u64,
    /// The keys of which the board names a notice.
    pub(super) noticed: HashMap<RecordId, Noticed>,
    /// What workers have announced, and is the newest of its key or is to be.
    pub(super) announced: HashMap<BlobId, (u64, NoticeAt)>,
    /// Keys with a notice of which somebody has asked; see [`Keys::take_asked`].
    pub(super) asked: Vec<(RecordId, Concerned)>,
}

impl Keys {
    /// Somebody keeps a board for the workers of this user, with places for so many keys.
    pub(crate) fn add_board(&mut self, domain: Tenant, places: usize) {
        self.boards.free.insert(domain, i64::try_from(places).unwrap_or(i64::MAX));
    }

    /// Whether somebody keeps a board for the workers of this user.
    pub(crate) fn has_board(&self, domain: Tenant) -> bool {
        self.boards.free.contains_key(&domain)
    }

    /// A worker of this sidecar has fetched the key: its newest version is worth showing from here on.
    pub(crate) fn want_on_board(&mut self, record: RecordId) {
        if let Some(r) = self.records.get_mut(record)
            && r.on_board == OnBoard::Unasked
            && !self.boards.free.is_empty()
        {
            r.on_board = OnBoard::Wanted;
        }
    }

    /// Shows the newest version of a key, where it is wanted and can be, in the place of what was shown of it before.
    pub(crate) fn show(&mut self, record: RecordId, actions: &mut Actions) {
        let Some(r) = self.records.get(record) else { return };
        if let Some(blob) = r.current
            && let Some((ticket, at)) = self.boards.announced.get(&blob).copied()
        {
            return self.show_notice(record, blob, ticket, at, actions);
        }
        if r.on_board == OnBoard::Noticed {
            // Its owner has taken the notice down: the newest version is not one that it has announced.
            self.hide(record, actions);
        }
        let Some(r) = self.records.get(record) else { return };
        let before = match r.on_board {
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
        if let (Some(r), Some(now)) = (self.records.get_mut(record), now) {
            r.on_board = now;
        }
        if let Some(ticket) = before {
            self.take_off_board(ticket, actions);
        }
    }

    /// Shows a version, or the notice where its owner does, by a new ticket. What its key has on the board is to be taken off behind that.
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
        // A notice shows other versions as well, each by a ticket of its own.
        let held = notice.is_none().then_some(blob);
        self.boards.tickets.insert(ticket, Ticket { record: Some(record), blob: held, domain });
        let (key, version, meta) = (r.key.clone(), b.version, b.meta.clone());
        let slice = LocalSlice { len: meta.len_bytes(), ..b.slice };
        let shown = Shown { domain, ticket, key, version, meta, slice, notice };
        actions.push(HostAction::Show(Box::new(shown)));
        Some(ticket)
    }

    /// Whether everybody of its user may find this version by looking. `before`: on which board the key has a place already.
    pub(super) fn can_be_shown(&self, record: &Record, blob: BlobId, before: Option<Tenant>) -> bool {
        let Some(b) = self.blobs.get(blob) else { return false };
        let has_place =
            self.boards.free.get(&b.domain).is_some_and(|free| *free > 0 || before.is_some_and(|d| d == b.domain));
        // A board tells nothing of the trace that a push belongs to.
        let is_plain = b.ranges.is_none() && b.meta.metadata_bytes() == 0 && b.trace.is_none();
        let is_plain = is_plain && matches!(b.source, Source::Arena(_));
        let is_free = !b.counts_fetches() && !b.before_epoch && !record.more_follow;
        has_place && is_plain && is_free && matches!(record.owner, Owner::Session(_)) && !self.boards.closed
    }

    /// Shows a key no more: fetches of it have to ask.
    pub(crate) fn hide(&mut self, record: RecordId, actions: &mut Actions) {
        let Some(r) = self.records.get_mut(record) else { return };
        match r.on_board {
            OnBoard::Shown(ticket) => {
                r.on_board = OnBoard::Wanted;
                self.take_off_board(ticket, actions);
            }
            OnBoard::Noticed => {
                r.on_board = OnBoard::Wanted;
                self.hide_notice(record, actions);
            }
            OnBoard::Unasked | OnBoard::Wanted | OnBoard::Never => {}
        }
    }

    /// Shows nothing any more.
    pub(crate) fn close_boards(&mut self, actions: &mut Actions) {
        self.boards.closed = true;
        for record in self.records.ids(|r| matches!(r.on_board, OnBoard::Shown(_) | OnBoard::Noticed)) {
            self.hide(record, actions);
        }
    }

    /// Ends a showing, which has a place on the board.
    pub(super) fn take_off_board(&mut self, ticket: u64, actions: &mut Actions) {
        let Some(domain) = self.boards.tickets.get(&ticket).map(|t| t.domain) else { return };
        if let Some(free) = self.boards.free.get_mut(&domain) {
            *free += 1;
        }
        self.end_ticket(ticket, actions);
    }

    /// Nobody finds what this ticket names any more: it ends with its last mark.
    pub(super) fn end_ticket(&mut self, ticket: u64, actions: &mut Actions) {
        if let Some(domain) = self.boards.tickets.get(&ticket).map(|t| t.domain) {
            actions.push(HostAction::Withdraw { domain, ticket });
        }
    }

    /// Nobody has marked what was shown by this ticket, and nobody can find it any more. Returns the version that it held, to be unheld.
    pub(crate) fn withdrawn(&mut self, ticket: u64) -> Option<BlobId> {
        self.boards.tickets.remove(&ticket)?.blob
    }

    /// A ticket does not fit on the board, and was not shown. Returns the version that it held, to be unheld.
    pub(crate) fn not_shown(&mut self, ticket: u64, actions: &mut Actions) -> Option<BlobId> {
        let Ticket { record: Some(record), blob, domain } = *self.boards.tickets.get(&ticket)? else { return None };
        let r = self.records.get_mut(record)?;
        let is_noticed = r.on_board == OnBoard::Noticed
            && self.boards.noticed.get(&record).is_some_and(|noticed| noticed.entry == ticket);
        // Else it is withdrawn by now, which is answered for itself.
        if r.on_board != OnBoard::Shown(ticket) && !is_noticed {
            return None;
        }
        r.on_board = OnBoard::Never;
        self.boards.tickets.remove(&ticket);
        if let Some(free) = self.boards.free.get_mut(&domain) {
            *free += 1;
        }
        if blob.is_none() {
            self.hide_notice(record, actions);
        }
        blob
    }

    /// How many hold a published version besides its key, as far as this node knows: who found it on the board is not among them as long as
    /// it is shown.
    pub(crate) fn readers_of(&self, record: &Record, blob: BlobId) -> u32 {
        let refs = self.blobs.get(blob).map_or(0, |b| b.holders().saturating_sub(1));
        let is_shown = match record.on_board {
            OnBoard::Shown(ticket) => self.boards.tickets.get(&ticket).is_some_and(|t| t.blob == Some(blob)),
            OnBoard::Noticed => self.boards.announced.contains_key(&blob),
            OnBoard::Unasked | OnBoard::Wanted | OnBoard::Never => false,
        };
        refs.saturating_sub(u32::from(is_shown))
    }

    /// What has to hold of boards whenever no action is left; for tests.
    #[cfg(test)]
    pub(super) fn check_boards(&self) -> Result<(), String> {
        for id in self.records.ids(|r| matches!(r.on_board, OnBoard::Shown(_) | OnBoard::Noticed)) {
            let Some(r) = self.records.get(id) else { continue };
            let number = match (r.on_board, self.boards.noticed.get(&id)) {
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
        self.check_notices()
    }

    /// How many tickets have not come back; for tests.
    #[cfg(test)]
    pub(crate) fn tickets(&self) -> usize {
        self.boards.tickets.len()
    }
}
