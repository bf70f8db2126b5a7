//! Boards and notices: how workers find versions without a request, and when requests for announced keys are answered.

use super::Node;
use crate::op::{Announced, Failure, FailureCode, MAX_NOTICES, Push, Reply, announced_ticket};
use crate::protocol::action::HostAction;
use crate::protocol::action::NoticeAt;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, RecordId};
use crate::protocol::keys::{Owner, Record};
use crate::protocol::sessions::Op;
use crate::protocol::tenant::Tenant;
use crate::time::Time;

impl Node {
    /// Registers a board with places for `places` keys, for the workers of this tenant.
    pub fn add_board(&mut self, domain: Tenant, places: usize) {
        self.keys.add_board(domain, places);
    }

    /// Ends a ticket: workers can no longer find what it named, and no hazard pointer holds it. The host calls this
    /// once after each [`HostAction::Withdraw`].
    pub fn withdrawn(&mut self, ticket: u64) {
        if let Some(blob) = self.keys.withdrawn(ticket) {
            self.unhold(blob);
        }
    }

    /// Ends a ticket that [`HostAction::Show`] could not put on the board: the key's description is too long, or all
    /// places that the key could have are taken.
    pub fn not_shown(&mut self, ticket: u64) {
        if let Some(blob) = self.keys.not_shown(ticket, &mut self.actions) {
            self.unhold(blob);
        }
    }

    /// Returns the ticket of the version that a push has announced, and the notice that shows it. `None` if the push
    /// announces nothing. The error says why the announcement is invalid.
    pub(super) fn announced(&mut self, session: SessionId, push: &Push) -> Result<Option<(u64, NoticeAt)>, Failure> {
        let Some(Announced { notice, count }) = push.announced else { return Ok(None) };
        let Some(s) = self.sessions.get(session) else { return Ok(None) };
        let (before, tenant) = (s.announced(), s.tenant());
        let invalid = |text: String| Err(Failure::new(FailureCode::Invalid, text));
        let Some(ticket) = announced_ticket(session.0, count).filter(|_| count > before) else {
            return invalid(format!("announcement {count} of this worker does not follow {before}"));
        };
        self.sessions.announce(session, count);
        if notice >= MAX_NOTICES {
            return invalid(format!("notice {notice} is none: a worker has {MAX_NOTICES}"));
        }
        if !self.keys.has_board(tenant) {
            return invalid("a version is announced, and this sidecar has no board".to_owned());
        }
        if push.ranges > 0 || push.to.is_some() {
            return invalid("only a tensor of one range that stays at its own sidecar can be announced".to_owned());
        }
        Ok(Some((ticket, NoticeAt { session, notice })))
    }

    /// Tells a worker that the next versions of the key that it has just published are watched.
    pub(super) fn tell_watched(&mut self, record: RecordId, op: &Op, blob: BlobId) {
        if self.keys.is_watched(record, blob) {
            let reply = Reply::Watched { pushed: op.id };
            self.actions.push(HostAction::Reply { session: op.session, reply });
        }
    }

    /// Returns whether the key's owner may have announced a newer version than this node knows. The announcement may
    /// still be in the owner's submission ring.
    pub(super) fn may_be_behind(&self, record: RecordId, asks: Option<SessionId>) -> bool {
        #[cfg(test)]
        if self.config.broken == Some(crate::protocol::broken::Broken::AnswersAtOnce) {
            return false;
        }
        self.keys.may_be_behind(record, asks)
    }

    /// Returns how many requests about keys with a notice wait for an answer.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.keys.asked()
    }

    /// Answers the first `count` requests about keys with a notice. The caller must first take everything that was in
    /// the workers' rings when the last of these requests was made. Requests about keys of a worker that `is_held`, whose
    /// ring was not read to that point, wait for the next call.
    pub fn answer_asked(&mut self, now: Time, count: usize, is_held: impl Fn(SessionId) -> bool) {
        for (record, concerned) in self.keys.take_asked(count) {
            match self.keys.record(record).map(Record::owner) {
                Some(Owner::Session(owner)) if is_held(*owner) => self.keys.ask_later(record, concerned),
                _ => self.serve_now(now, record, concerned),
            }
        }
    }
}
