//! Versions that come and go: who is served with them, and what ends with them.

use super::Node;
use crate::protocol::ids::SessionId;
use crate::protocol::ids::{BlobId, RecordId};
use crate::protocol::keys::{Blob, Concerned, Outlived, Owner, Picked, Waiter};
use crate::protocol::landing::InFlow;
use crate::protocol::sessions::Op;
use crate::protocol::tenant::Tenant;
use crate::protocol::transfers::Serve;
use crate::tensor::{Key, Name, Select, Version};
use crate::time::Time;

impl Node {
    /// What "the latest" means for a request that comes now: what has landed here and is being closed to its sender belongs to it,
    /// for the sender may know that it is here.
    pub(super) fn resolve_latest(&self, record: RecordId, select: Select) -> Select {
        let landed = self.landing_flow(record).filter(|flow| flow.holds_unpublished());
        match (select, landed) {
            (Select::Latest, Some(flow)) => Select::AtLeast(Version(flow.next_version.saturating_sub(1))),
            _ => select,
        }
    }

    /// The flow in which the key's versions land here.
    fn landing_flow(&self, record: RecordId) -> Option<&InFlow> {
        let Owner::Landed(landed) = self.keys.record(record)?.owner() else { return None };
        self.landing.flow(landed.flow?)
    }

    /// Whether versions of this key land here by a device that says so to the sender before it says so here.
    #[must_use]
    pub fn lands_unheard(&self, key: &Key) -> bool {
        let Some(Owner::Landed(landed)) = self.keys.owner(key) else { return false };
        let link = landed.flow.and_then(|(link, _)| self.links.get(link));
        link.is_some_and(|link| link.limits().acknowledges_unheard)
    }

    /// Makes a blob the newest version of its key. The caller's reference becomes the publication's.
    pub(super) fn publish(&mut self, now: Time, record: RecordId, blob: BlobId, version: Version) {
        for ended in self.keys.publish(record, blob, version, &mut self.actions) {
            self.unhold(ended);
        }
        self.serve_waiters(now, record);
    }

    /// Answers everybody whose version is there, or can never be; where there may be a newer one than this node has heard of, after a look
    /// at what its owner has said.
    pub(super) fn serve_waiters(&mut self, now: Time, record: RecordId) {
        self.serve(now, record, Concerned::All);
    }

    /// The same, for those whom an event concerns. The others need not be looked at: for them nothing is different.
    pub(super) fn serve(&mut self, now: Time, record: RecordId, concerned: Concerned) {
        if !self.keys.is_awaited(record) {
            return;
        }
        match self.may_be_behind(record, None) {
            true => self.ask_later(record, concerned),
            false => self.serve_now(now, record, concerned),
        }
    }

    /// The same, with what this node knows.
    pub(super) fn serve_now(&mut self, now: Time, record: RecordId, concerned: Concerned) {
        if !self.keys.is_awaited(record) {
            return;
        }
        if let Concerned::One(waiter) = concerned {
            self.serve_waiter(now, record, waiter);
            return;
        }
        // They take no other version.
        for version in self.keys.exactly_awaited(record, concerned) {
            while let Some(first) = self.keys.first_exactly(record, version)
                && self.serve_waiter(now, record, first)
            {}
        }
        while let Some(first) = self.keys.first_rising(record)
            && self.serve_waiter(now, record, first)
        {}
    }

    /// Answers one of those who wait, if its version is there, or can never be. `false` where it goes on waiting.
    fn serve_waiter(&mut self, now: Time, record: RecordId, waiter: Waiter) -> bool {
        self.step();
        let Some(select) = self.keys.select_of(record, waiter) else { return false };
        let is_there = match waiter {
            Waiter::Local(id) => self.sessions.op(id).is_some(),
            Waiter::Remote(link, index) => self.transfers.serve(link, index).is_some(),
        };
        let picked = self.keys.pick(record, select);
        if is_there && picked == Picked::NotYet {
            return false;
        }
        self.keys.take_waiter(record, waiter);
        match (picked, waiter) {
            (Picked::NotYet, _) => {}
            (Picked::Blob(blob), Waiter::Local(id)) => {
                if let Some(op) = self.sessions.finish(id) {
                    match self.is_of_another(op.session, blob) {
                        true => self.hand_over_copy(now, op, blob),
                        false => self.hand_over_waited(now, record, &op, blob),
                    }
                }
            }
            (Picked::Blob(blob), Waiter::Remote(link, index)) => self.serve_published(now, link, index, blob),
            (Picked::Gone(newest), waiter) => {
                let key = self.keys.record(record).map(|r| r.key().clone());
                let Some((key, reader)) = key.zip(self.reader_of(waiter)) else { return true };
                let failure = self.version_gone(record, reader, &key, select, newest);
                match waiter {
                    Waiter::Local(id) => self.fail_op(id, failure),
                    Waiter::Remote(link, index) => self.end_serve(now, link, index, failure),
                }
            }
        }
        true
    }

    /// The tenant for whom somebody waits.
    fn reader_of(&self, waiter: Waiter) -> Option<Tenant> {
        match waiter {
            Waiter::Local(id) => self.sessions.tenant_of(self.sessions.op(id)?.session),
            Waiter::Remote(link, index) => self.transfers.serve(link, index).map(Serve::reader),
        }
    }

    fn hand_over_waited(&mut self, now: Time, record: RecordId, op: &Op, blob: BlobId) {
        match self.hand_over(now, op.session, op.id, blob, op.require, op.since) {
            Ok(report) => {
                let version = self.keys.blob(blob).map_or(Version(0), |b| b.version);
                self.note_handed_over(now, op.session, &op.key, version, report, self.trace_of(op));
                self.keys.want_on_board(record);
                self.fetched_here(now, record, blob);
            }
            Err(failure) => self.refuse(op.session, op.id, failure),
        }
    }

    /// A worker of this sidecar has fetched it.
    pub(super) fn fetched_here(&mut self, now: Time, record: RecordId, blob: BlobId) {
        if !self.keys.blob(blob).is_some_and(Blob::counts_fetches) {
            return;
        }
        let Some(key) = self.keys.record(record).map(|r| r.key().clone()) else { return };
        self.keys.fetch_begins(&key, blob);
        self.fetch_ends(now, record, blob, true);
    }

    /// The end of a fetch that was begun: counted where it went `well`, else others may have it.
    fn fetch_ends(&mut self, now: Time, record: RecordId, blob: BlobId, well: bool) {
        let Some((version, has_ended)) = self.keys.fetch_ends(record, blob, well, &mut self.actions) else { return };
        if has_ended {
            self.unhold(blob);
        }
        self.serve(now, record, Concerned::Version(version));
    }

    /// The same, of a key that may have ended meanwhile.
    pub(super) fn fetch_of_ends(&mut self, now: Time, key: &Key, blob: BlobId, well: bool) {
        if let Some(record) = self.keys.find(key) {
            self.fetch_ends(now, record, blob, well);
        }
    }

    /// Ends all versions of a key, or all but those that outlive their worker. Whether some are left.
    pub(super) fn end_versions(&mut self, record: RecordId, but_outliving: bool) -> bool {
        let (ending, left) = self.keys.versions_to_end(record, but_outliving);
        for blob in ending {
            if self.keys.take_version(record, blob, &mut self.actions) {
                self.unhold(blob);
            }
        }
        left
    }

    /// The session, or the flow, that owns a key is gone: what outlives it stays, and the key with it.
    pub(super) fn owner_left(&mut self, now: Time, id: RecordId, owner: Name) {
        let claiming = self.keys.record(id).is_none_or(|r| matches!(r.owner(), Owner::Claiming(_)));
        if claiming || !self.end_versions(id, true) {
            return self.end_key(now, id);
        }
        let Some(before) = self.keys.outlive(id, owner, &mut self.actions) else { return };
        if let Owner::Landed(landed) = before {
            self.landed_key_ended(&landed);
        }
        self.serve_waiters(now, id);
    }

    /// The owner of a key that another is taking over is gone before the directory has answered.
    pub(super) fn former_owner_left(&mut self, id: RecordId, owner: Name, domain: Tenant) {
        let left = self.end_versions(id, true).then_some(Outlived { owner, domain });
        self.keys.former_owner_left(id, left, &mut self.actions);
    }

    /// Whether a key's versions have outlived a worker of this session's name and user: then they are this one's.
    pub(super) fn is_heir(&self, session: SessionId, outlived: &Outlived) -> bool {
        self.sessions.get(session).is_some_and(|s| *s.name() == outlived.owner && s.tenant() == outlived.domain)
    }
}
