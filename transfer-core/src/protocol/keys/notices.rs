//! Notices: a worker shows the newest version of a key itself, in a notice. A worker that waits for the key learns of
//! the version directly from the owner.
//!
//! A key is *watched* once a worker that can watch a notice has waited for it here. The owner is told so after its next
//! push, and *announces* the versions that follow: it writes each one into a notice, in memory that the workers of its
//! tenant can read, and then pushes it as usual. The board names the notice instead of a version. So look-ups and
//! waiters find an announced version before this node has heard of it.
//!
//! - **An announced version is held from its push on**, by the ticket that readers put into their hazard pointers,
//!   whatever the result of the push. If the push is refused, the range is returned when no hazard pointer names the
//!   ticket.
//! - **No question gets an older version than one that a reader has found.** When a question arrives, the pushes of all
//!   versions announced before it are in their owners' submission rings. So a question about a key with a notice is
//!   answered after one more look at all rings: [`Keys::take_asked`].

use super::board::{OnBoard, Standing, Ticket};
use super::{Concerned, Keys, Owner};
use crate::protocol::action::Actions;
use crate::protocol::action::NoticeAt;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, RecordId};
use crate::protocol::rules::Broken;
use crate::protocol::tenant::Tenant;
use crate::tensor::Key;

/// A notice that the board names.
pub(super) struct Noticed {
    /// The ticket of the board entry that names the notice.
    pub(super) entry: u64,
    /// The ticket of the newest announced version that this node knows of.
    pub(super) ticket: u64,
    at: NoticeAt,
    domain: Tenant,
}

impl Keys {
    /// Adds a reference to an announced version, which its ticket holds.
    pub(crate) fn hold_announced(&mut self, blob: BlobId, ticket: u64, at: NoticeAt) {
        let Some(domain) = self.hold(blob).map(|b| b.domain) else { return };
        self.boards.tickets.insert(ticket, Ticket { record: None, blob: Some(blob), domain });
        self.boards.announced.insert(blob, (ticket, at));
    }

    /// Ends the ticket of an announced version that is not the newest of its key. No reader finds the version: its
    /// worker has written over the notice, or the board does not name the notice.
    fn end_announced(&mut self, blob: BlobId, actions: &mut Actions) {
        if let Some((ticket, _)) = self.boards.announced.remove(&blob) {
            self.end_ticket(ticket, actions);
        }
    }

    /// Handles an announced push that is refused, or whose worker is gone. The notice may still show the version, so
    /// the board stops naming the notice.
    pub(crate) fn refuse_announced(&mut self, key: &Key, blob: BlobId, actions: &mut Actions) {
        let Some((_, at)) = self.boards.announced.get(&blob).copied() else { return };
        if let Some(record) = self.find(key)
            && self.boards.noticed.get(&record).is_some_and(|noticed| noticed.at == at)
        {
            self.hide(record, actions);
        }
        self.end_announced(blob, actions);
    }

    /// Makes the board show the newest version of this key itself, if it names a notice of this session. Nobody finds a version in
    /// the notice from then on.
    pub(crate) fn unannounce(&mut self, key: &Key, session: SessionId, actions: &mut Actions) {
        if let Some(record) = self.find(key)
            && self.boards.noticed.get(&record).is_some_and(|noticed| noticed.at.session == session)
        {
            self.hide(record, actions);
            self.show(record, actions);
        }
    }

    /// Whether this version was announced, and its ticket has not been withdrawn.
    pub(crate) fn is_announced(&self, blob: BlobId) -> bool {
        self.boards.announced.contains_key(&blob)
    }

    /// Makes the board name the notice of the newest version, in place of the key's previous entry.
    pub(super) fn show_notice(
        &mut self,
        record: RecordId,
        blob: BlobId,
        ticket: u64,
        at: NoticeAt,
        actions: &mut Actions,
    ) {
        let Some(r) = self.records.get(record) else { return };
        let (before, noticed) = (self.on_board(record), self.boards.noticed.get(&record));
        if noticed.is_some_and(|n| n.ticket == ticket) {
            return;
        }
        if before == OnBoard::Never || !self.can_be_shown(r, blob, self.place_of(record, before)) {
            self.hide(record, actions);
            return self.end_announced(blob, actions);
        }
        if let Some(noticed) = self.boards.noticed.get_mut(&record)
            && noticed.at == at
        {
            let old = std::mem::replace(&mut noticed.ticket, ticket);
            return self.replace_announced(old, actions);
        }
        let Some(entry) = self.take_place(record, blob, Some(at), actions) else { return };
        let Some(domain) = self.blobs.get(blob).map(|b| b.domain) else { return };
        self.set_on_board(record, OnBoard::Noticed);
        let noticed = self.boards.noticed.insert(record, Noticed { entry, ticket, at, domain });
        match (before, noticed) {
            (OnBoard::Shown(shown), _) => self.take_off_board(shown, actions),
            (_, Some(old)) => {
                self.take_off_board(old.entry, actions);
                self.replace_announced(old.ticket, actions);
            }
            _ => {}
        }
    }

    /// Returns the tenant on whose board a key already has an entry.
    fn place_of(&self, record: RecordId, on_board: OnBoard) -> Option<Tenant> {
        match on_board {
            OnBoard::Shown(shown) => self.boards.tickets.get(&shown).map(|t| t.domain),
            OnBoard::Noticed => self.boards.noticed.get(&record).map(|noticed| noticed.domain),
            OnBoard::Unasked | OnBoard::Wanted | OnBoard::Never => None,
        }
    }

    fn replace_announced(&mut self, ticket: u64, actions: &mut Actions) {
        if let Some(blob) = self.boards.tickets.get(&ticket).and_then(|t| t.blob) {
            self.end_announced(blob, actions);
        }
    }

    /// Removes the entry that names the notice of this key from the board.
    pub(super) fn hide_notice(&mut self, record: RecordId, actions: &mut Actions) {
        if let Some(noticed) = self.boards.noticed.remove(&record) {
            self.take_off_board(noticed.entry, actions);
            self.replace_announced(noticed.ticket, actions);
        }
    }

    /// Whether to tell the worker that has just published this version that its next versions are watched.
    pub(crate) fn is_watched(&self, record: RecordId, blob: BlobId) -> bool {
        let r = self.records.get(record).filter(|r| r.watched && r.on_board != Standing::Never);
        // A key whose versions cannot be shown gains nothing from a notice.
        r.is_some_and(|r| self.can_be_shown(r, blob, self.place_of(record, self.on_board(record))))
            && !self.is_announced(blob)
    }

    /// Whether there may be a newer version of this key than this node has heard of: an announced one, whose push is in
    /// the owner's ring.
    pub(crate) fn may_be_behind(&self, record: RecordId, asks: Option<SessionId>) -> bool {
        let asks_the_owner = !self.rules.breaks(Broken::AnswersAtOnce);
        let r = self.records.get(record).filter(|r| asks_the_owner && r.on_board == Standing::Noticed);
        // The owner's own questions come behind its pushes in the same ring.
        r.is_some_and(|r| !matches!(r.owner, Owner::Session(owner) if Some(owner) == asks))
    }

    /// Queues a question about a key with a notice, until all rings have been looked at.
    pub(crate) fn ask_later(&mut self, record: RecordId, concerned: Concerned) {
        self.boards.asked.push((record, concerned));
    }

    /// How many questions about keys with a notice wait for an answer.
    pub(crate) fn asked(&self) -> usize {
        self.boards.asked.len()
    }

    /// Removes the first `count` questions about keys with a notice, and returns them to be answered. Everything that
    /// was in the workers' rings when the last of these questions was asked has been read by then.
    pub(crate) fn take_asked(&mut self, count: usize) -> Vec<(RecordId, Concerned)> {
        let count = count.min(self.boards.asked.len());
        self.boards.asked.drain(..count).collect()
    }

    /// Whether a question about this key waits for an answer; for tests.
    #[cfg(test)]
    pub(super) fn is_asked(&self, record: RecordId) -> bool {
        self.boards.asked.iter().any(|(asked, _)| *asked == record)
    }

    /// Checks the invariants of notices, which hold whenever no action is pending; for tests.
    #[cfg(test)]
    pub(super) fn check_notices(&self) -> Result<(), String> {
        for (record, noticed) in &self.boards.noticed {
            let Some(r) = self.records.get(*record) else {
                return Err("the notice of a key that is gone".into());
            };
            if r.on_board != Standing::Noticed || !self.boards.tickets.contains_key(&noticed.entry) {
                return Err(format!("key {:?} has a notice and is {:?}", r.key, r.on_board));
            }
        }
        for (blob, (ticket, _)) in &self.boards.announced {
            if self.boards.tickets.get(ticket).is_none_or(|t| t.blob != Some(*blob)) {
                return Err(format!("announced ticket {ticket:#x} does not hold its version"));
            }
        }
        Ok(())
    }
}
