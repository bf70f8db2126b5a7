//! Notices: where a worker itself shows the newest version of a key, so that a worker that waits for it hears of it from its owner and from
//! nobody in between.
//!
//! A key is *watched* from when a worker that can do so has waited for it here. Its owner hears that behind its next push, and *announces* the
//! versions that follow: it writes into a notice, in memory that the workers of its user read, and then pushes as ever. The board names the
//! notice in the place of a version. So who looks up and who waits finds what was announced before this node has heard of it.
//!
//! - **What is announced is held from its push on**, by the ticket that its readers mark, whatever becomes of the push: one that is refused comes
//!   back when nobody reads it any more.
//! - **Who asks hears of nothing older than what others have found.** What was announced before somebody asked is in its owner's submission ring
//!   by then. So a question about a key with a notice is answered when all rings have been looked at once more: [`Keys::take_asked`].

use super::board::{OnBoard, Ticket};
use super::{Concerned, Keys, Owner};
use crate::protocol::action::Actions;
use crate::protocol::action::NoticeAt;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, RecordId};
use crate::protocol::tenant::Tenant;
use crate::tensor::Key;

/// A notice that the board names.
pub(super) struct Noticed {
    /// The ticket of its place on the board.
    pub(super) entry: u64,
    /// The ticket of the newest version that this node knows of.
    pub(super) ticket: u64,
    at: NoticeAt,
    domain: Tenant,
}

impl Keys {
    /// From here on the ticket holds what its worker has announced.
    pub(crate) fn hold_announced(&mut self, blob: BlobId, ticket: u64, at: NoticeAt) {
        let Some(domain) = self.hold(blob).map(|b| b.domain) else { return };
        self.boards.tickets.insert(ticket, Ticket { record: None, blob: Some(blob), domain });
        self.boards.announced.insert(blob, (ticket, at));
    }

    /// It is not the newest version of its key, or not any more: nobody finds it, for its worker has written over the notice, or nobody is shown
    /// the way there.
    fn end_announced(&mut self, blob: BlobId, actions: &mut Actions) {
        if let Some((ticket, _)) = self.boards.announced.remove(&blob) {
            self.end_ticket(ticket, actions);
        }
    }

    /// A push is refused, or its worker is gone. Its notice may show the version still: nobody is shown the way there from here on.
    pub(crate) fn refuse_announced(&mut self, key: &Key, blob: BlobId, actions: &mut Actions) {
        let Some((_, at)) = self.boards.announced.get(&blob).copied() else { return };
        if let Some(record) = self.find(key)
            && self.boards.noticed.get(&record).is_some_and(|noticed| noticed.at == at)
        {
            self.hide(record, actions);
        }
        self.end_announced(blob, actions);
    }

    /// Whether a version is one that its worker has announced.
    pub(super) fn is_announced(&self, blob: BlobId) -> bool {
        self.boards.announced.contains_key(&blob)
    }

    /// Names the notice of the newest version on the board, in the place of what was shown of its key before.
    pub(super) fn show_notice(
        &mut self,
        record: RecordId,
        blob: BlobId,
        ticket: u64,
        at: NoticeAt,
        actions: &mut Actions,
    ) {
        let Some(r) = self.records.get(record) else { return };
        let (before, noticed) = (r.on_board, self.boards.noticed.get(&record));
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
        let (Some(b), Some(r)) = (self.blobs.get(blob), self.records.get_mut(record)) else { return };
        r.on_board = OnBoard::Noticed;
        let domain = b.domain;
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

    /// On which board a key has a place already.
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

    /// The board names the notice of this key no more.
    pub(super) fn hide_notice(&mut self, record: RecordId, actions: &mut Actions) {
        if let Some(noticed) = self.boards.noticed.remove(&record) {
            self.take_off_board(noticed.entry, actions);
            self.replace_announced(noticed.ticket, actions);
        }
    }

    /// Whether the worker that has just published this version is to be told that the next ones are watched.
    pub(crate) fn is_watched(&self, record: RecordId, blob: BlobId) -> bool {
        let r = self.records.get(record).filter(|r| r.watched && r.on_board != OnBoard::Never);
        // Of a key whose versions cannot be shown it would be no use.
        r.is_some_and(|r| self.can_be_shown(r, blob, self.place_of(record, r.on_board))) && !self.is_announced(blob)
    }

    /// Whether there may be a newer version of this key than this node has heard of: announced, and in its owner's ring.
    pub(crate) fn may_be_behind(&self, record: RecordId, asks: Option<SessionId>) -> bool {
        let r = self.records.get(record).filter(|r| r.on_board == OnBoard::Noticed);
        // Its owner's own questions are in the same ring.
        r.is_some_and(|r| !matches!(r.owner, Owner::Session(owner) if Some(owner) == asks))
    }

    /// Somebody waits for an answer about a key with a notice.
    pub(crate) fn ask_later(&mut self, record: RecordId, concerned: Concerned) {
        self.boards.asked.push((record, concerned));
    }

    /// How many questions about keys with a notice wait for an answer.
    pub(crate) fn asked(&self) -> usize {
        self.boards.asked.len()
    }

    /// The first `count` questions about keys with a notice, which can be answered: everything was taken that was in the workers' rings when
    /// the last of these was asked.
    pub(crate) fn take_asked(&mut self, count: usize) -> Vec<(RecordId, Concerned)> {
        let count = count.min(self.boards.asked.len());
        self.boards.asked.drain(..count).collect()
    }

    /// Whether a question about this key waits for an answer; for tests.
    #[cfg(test)]
    pub(super) fn is_asked(&self, record: RecordId) -> bool {
        self.boards.asked.iter().any(|(asked, _)| *asked == record)
    }

    /// What has to hold of notices whenever no action is left; for tests.
    #[cfg(test)]
    pub(super) fn check_notices(&self) -> Result<(), String> {
        for (record, noticed) in &self.boards.noticed {
            let Some(r) = self.records.get(*record) else {
                return Err("the notice of a key that is gone".into());
            };
            if r.on_board != OnBoard::Noticed || !self.boards.tickets.contains_key(&noticed.entry) {
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
