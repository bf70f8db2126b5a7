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
//!   by then. So a question about a key with a notice is answered when all rings have been looked at once more: [`Node::answer_asked`].

use super::board::{OnBoard, Ticket};
use super::ids::{BlobId, RecordId};
use super::node::Node;
use super::ops::Op;
use super::store::Owner;
use super::waiters::Concerned;
use super::{HostAction, SessionId, Tenant};
use crate::op::{Announced, Failure, FailureCode, MAX_NOTICES, Push, Reply, announced_ticket};
use crate::tensor::Key;
use crate::time::Time;

/// A notice: whose it is, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoticeAt {
    /// The worker that writes it.
    pub session: SessionId,
    /// Its number among those of that worker.
    pub notice: u16,
}

/// A notice that the board names.
pub(super) struct Noticed {
    /// The ticket of its place on the board.
    pub(super) entry: u64,
    /// The ticket of the newest version that this node knows of.
    pub(super) ticket: u64,
    at: NoticeAt,
    domain: Tenant,
}

impl Node {
    /// The ticket of what a push says that it has announced.
    pub(super) fn announced(&mut self, session: SessionId, push: &Push) -> Result<Option<u64>, Failure> {
        let Some(Announced { notice, count }) = push.announced else { return Ok(None) };
        let Some(s) = self.sessions.get_mut(&session) else { return Ok(None) };
        let invalid = |text: String| Err(Failure::new(FailureCode::Invalid, text));
        let Some(ticket) = announced_ticket(session.0, count).filter(|_| count > s.announced) else {
            return invalid(format!("announcement {count} of this worker does not follow {}", s.announced));
        };
        s.announced = count;
        if notice >= MAX_NOTICES {
            return invalid(format!("notice {notice} is none: a worker has {MAX_NOTICES}"));
        }
        if !self.boards.free.contains_key(&s.domain) {
            return invalid("a version is announced, and this sidecar has no board".to_owned());
        }
        if push.ranges > 0 || push.to.is_some() {
            return invalid("only a tensor of one range that stays at its own sidecar can be announced".to_owned());
        }
        Ok(Some(ticket))
    }

    /// From here on the ticket holds what its worker has announced.
    pub(super) fn hold_announced(&mut self, blob: BlobId, ticket: u64, at: NoticeAt) {
        let Some(b) = self.store.blobs.get_mut(blob) else { return };
        b.refs += 1;
        self.boards.tickets.insert(ticket, Ticket { record: None, blob: Some(blob), domain: b.domain });
        self.boards.announced.insert(blob, (ticket, at));
    }

    /// It is not the newest version of its key, or not any more: nobody finds it, for its worker has written over the notice, or nobody is shown
    /// the way there.
    pub(super) fn end_announced(&mut self, blob: BlobId) {
        if let Some((ticket, _)) = self.boards.announced.remove(&blob) {
            self.end_ticket(ticket);
        }
    }

    /// A push is refused, or its worker is gone. Its notice may show the version still: nobody is shown the way there from here on.
    pub(super) fn refuse_announced(&mut self, key: &Key, blob: BlobId) {
        let Some((_, at)) = self.boards.announced.get(&blob).copied() else { return };
        if let Some(record) = self.store.find(key.as_str())
            && self.boards.noticed.get(&record).is_some_and(|noticed| noticed.at == at)
        {
            self.hide(record);
        }
        self.end_announced(blob);
    }

    /// Whether a version that is about to be published is one that its worker has announced.
    pub(super) fn is_announced(&self, blob: BlobId) -> bool {
        self.boards.announced.contains_key(&blob)
    }

    /// Names the notice of the newest version on the board, in the place of what was shown of its key before.
    pub(super) fn show_notice(&mut self, record: RecordId, blob: BlobId, ticket: u64, at: NoticeAt) {
        let Some(r) = self.store.records.get(record) else { return };
        let (before, noticed) = (r.on_board, self.boards.noticed.get(&record));
        if noticed.is_some_and(|n| n.ticket == ticket) {
            return;
        }
        if before == OnBoard::Never || !self.can_be_shown(r, blob, self.place_of(record, before)) {
            self.hide(record);
            return self.end_announced(blob);
        }
        if let Some(noticed) = self.boards.noticed.get_mut(&record)
            && noticed.at == at
        {
            let old = std::mem::replace(&mut noticed.ticket, ticket);
            return self.replace_announced(old);
        }
        let Some(entry) = self.take_place(record, blob, Some(at)) else { return };
        let (Some(b), Some(r)) = (self.store.blobs.get(blob), self.store.records.get_mut(record)) else { return };
        r.on_board = OnBoard::Noticed;
        let domain = b.domain;
        let noticed = self.boards.noticed.insert(record, Noticed { entry, ticket, at, domain });
        match (before, noticed) {
            (OnBoard::Shown(shown), _) => self.take_off_board(shown),
            (_, Some(old)) => {
                self.take_off_board(old.entry);
                self.replace_announced(old.ticket);
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

    fn replace_announced(&mut self, ticket: u64) {
        if let Some(blob) = self.boards.tickets.get(&ticket).and_then(|t| t.blob) {
            self.end_announced(blob);
        }
    }

    /// The board names the notice of this key no more.
    pub(super) fn hide_notice(&mut self, record: RecordId) {
        if let Some(noticed) = self.boards.noticed.remove(&record) {
            self.take_off_board(noticed.entry);
            self.replace_announced(noticed.ticket);
        }
    }

    /// Tells a worker that the next versions of what it has just published are watched.
    pub(super) fn tell_watched(&mut self, record: RecordId, op: &Op, blob: BlobId) {
        let Some(r) = self.store.records.get(record).filter(|r| r.watched && r.on_board != OnBoard::Never) else {
            return;
        };
        // Of a key whose versions cannot be shown it would be no use.
        if self.can_be_shown(r, blob, self.place_of(record, r.on_board)) && !self.is_announced(blob) {
            let reply = Reply::Watched { pushed: op.id };
            self.actions.push(HostAction::Reply { session: op.session, reply });
        }
    }

    /// Whether there may be a newer version of this key than this node has heard of: announced, and in its owner's ring.
    pub(super) fn may_be_behind(&self, record: RecordId, asks: Option<SessionId>) -> bool {
        let Some(r) = self.store.records.get(record).filter(|r| r.on_board == OnBoard::Noticed) else { return false };
        #[cfg(test)]
        if self.config.broken == Some(super::Broken::AnswersAtOnce) {
            return false;
        }
        // Its owner's own questions are in the same ring.
        !matches!(r.owner, Owner::Session(owner) if Some(owner) == asks)
    }

    /// Somebody waits for an answer about a key with a notice.
    pub(super) fn ask_later(&mut self, record: RecordId, concerned: Concerned) {
        self.boards.asked.push((record, concerned));
    }

    /// How many questions about keys with a notice wait for an answer.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.boards.asked.len()
    }

    /// Answers the first `count` questions about keys with a notice. To be called when everything has been taken that was in the workers' rings
    /// when the last of these was asked.
    pub fn answer_asked(&mut self, now: Time, count: usize) {
        let count = count.min(self.boards.asked.len());
        let asked: Vec<_> = self.boards.asked.drain(..count).collect();
        for (record, concerned) in asked {
            self.serve_now(now, record, concerned);
        }
    }

    /// What has to hold of notices whenever no action is left; for tests.
    #[cfg(test)]
    pub(super) fn check_notices(&self) -> Result<(), String> {
        for (record, noticed) in &self.boards.noticed {
            let Some(r) = self.store.records.get(*record) else {
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
