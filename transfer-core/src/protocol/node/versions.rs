//! Versions: which waiters they answer, and what follows when they end.

use super::Node;
use super::endings::ENDS_PER_ROUND;
use crate::op::Reply;
use crate::protocol::action::HostAction;
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
    /// Resolves "the latest" for a request that arrives now. It includes a version that has landed here and whose slot
    /// is being closed, because the sender may know that the version is here.
    pub(super) fn resolve_latest(&self, record: RecordId, select: Select) -> Select {
        let landed = self.landing_flow(record).filter(|flow| flow.holds_unpublished());
        match (select, landed) {
            (Select::Latest, Some(flow)) => Select::AtLeast(Version(flow.next_version.saturating_sub(1))),
            _ => select,
        }
    }

    /// Returns the flow through which the key's versions land here.
    fn landing_flow(&self, record: RecordId) -> Option<&InFlow> {
        let Owner::Landed(landed) = self.keys.record(record)?.owner() else { return None };
        self.landing.flow(landed.flow?)
    }

    /// Returns whether versions of this key land here by a device that acknowledges a write to the sender before it is
    /// reported here.
    #[must_use]
    pub fn lands_unheard(&self, key: &Key) -> bool {
        let Some(Owner::Landed(landed)) = self.keys.owner(key) else { return false };
        let link = landed.flow.and_then(|(link, _)| self.links.get(link));
        link.is_some_and(|link| link.limits().acknowledges_unheard)
    }

    /// Makes a blob the newest version of its key. The caller's reference becomes the publication's.
    pub(super) fn publish(&mut self, now: Time, record: RecordId, blob: BlobId, version: Version) {
        for ended in self.keys.publish(now, record, blob, version, &mut self.actions) {
            self.unhold(ended);
        }
        self.serve_waiters(now, record);
    }

    /// Answers all waiters of a key whose version is published or can never be. If the key's owner may have announced a
    /// newer version than this node knows, its submission ring is read first.
    pub(super) fn serve_waiters(&mut self, now: Time, record: RecordId) {
        self.serve(now, record, Concerned::All);
    }

    /// Answers the waiters of a key that an event concerns, as `serve_waiters` does. For the others nothing has
    /// changed, so they are not looked at.
    pub(super) fn serve(&mut self, now: Time, record: RecordId, concerned: Concerned) {
        if !self.keys.is_awaited(record) {
            return;
        }
        match self.may_be_behind(record, None) {
            true => self.keys.ask_later(record, concerned),
            false => self.serve_now(now, record, concerned),
        }
    }

    /// Answers the waiters of a key that an event concerns, with the versions that this node knows.
    pub(super) fn serve_now(&mut self, now: Time, record: RecordId, concerned: Concerned) {
        if !self.keys.is_awaited(record) {
            return;
        }
        if let Concerned::One(waiter) = concerned {
            self.serve_waiter(now, record, waiter);
            return;
        }
        // These waiters take no other version.
        for version in self.keys.exactly_awaited(record, concerned) {
            while let Some(first) = self.keys.first_exactly(record, version)
                && self.serve_waiter(now, record, first)
            {}
        }
        while let Some(first) = self.keys.first_rising(record)
            && self.serve_waiter(now, record, first)
        {}
    }

    /// Answers one waiter if its version is published or can never be. Returns `false` if it keeps waiting.
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
                    match self.needs_copy(op.session, blob) {
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

    /// Returns the tenant of a waiter.
    pub(super) fn reader_of(&self, waiter: Waiter) -> Option<Tenant> {
        match waiter {
            Waiter::Local(id) => self.sessions.tenant_of(self.sessions.op(id)?.session),
            Waiter::Remote(link, index) => self.transfers.serve(link, index).map(Serve::reader),
        }
    }

    fn hand_over_waited(&mut self, now: Time, record: RecordId, op: &Op, blob: BlobId) {
        match self.hand_over(now, op.session, op.id, (&op.key, blob, op.excerpt()), op.require, op.since) {
            Ok(report) => {
                let version = self.keys.blob(blob).map_or(Version(0), |b| b.version);
                self.note_handed_over(now, op.session, &op.key, version, report, self.trace_of(op));
                self.read_stream_here(op.session, &op.key, op.select());
                self.keys.want_on_board(record);
                self.fetched_here(now, record, blob);
            }
            Err(failure) => self.refuse(op.session, op.id, failure),
        }
    }

    /// Counts a fetch by a worker of this sidecar, if fetches of the version are counted.
    pub(super) fn fetched_here(&mut self, now: Time, record: RecordId, blob: BlobId) {
        if !self.keys.blob(blob).is_some_and(Blob::counts_fetches) {
            return;
        }
        let Some(key) = self.keys.record(record).map(|r| r.key().clone()) else { return };
        self.keys.fetch_begins(&key, blob);
        self.fetch_ends(now, record, blob, true);
    }

    /// Ends a fetch that was begun. It is counted if it went `well`; otherwise another reader may fetch in its place.
    fn fetch_ends(&mut self, now: Time, record: RecordId, blob: BlobId, well: bool) {
        let Some((version, has_ended)) = self.keys.fetch_ends(record, blob, well, &mut self.actions) else { return };
        if has_ended {
            self.unhold(blob);
            self.tell_unfetched(record);
        }
        self.serve(now, record, Concerned::Version(version));
    }

    /// Tells the owner of a key how many versions of it are left, if it wants to know.
    pub(super) fn tell_unfetched(&mut self, record: RecordId) {
        if let Some((session, number, left)) = self.keys.unfetched(record) {
            self.actions.push(HostAction::Reply { session, reply: Reply::Unfetched { number, left: Some(left) } });
        }
    }

    /// Ends a fetch of a key that may have ended meanwhile.
    pub(super) fn fetch_of_ends(&mut self, now: Time, key: &Key, blob: BlobId, well: bool) {
        if let Some(record) = self.keys.find(key) {
            self.fetch_ends(now, record, blob, well);
        }
    }

    /// Ends all versions of a key: nobody finds one from now on. Their memory is returned in as many rounds as that takes.
    pub(super) fn end_versions(&mut self, record: RecordId) {
        let (newest, older) = self.keys.take_all_versions(record, &mut self.actions);
        if let Some(older) = older {
            self.end_older_ones(older);
        }
        if let Some(newest) = newest {
            self.unhold(newest);
        }
    }

    /// Ends the versions of a key that do not outlive their worker, from this one on, as far as one round goes. Returns
    /// where to go on; `None`: none is left but those that outlive it.
    pub(super) fn end_older(&mut self, record: RecordId, from: u64) -> Option<u64> {
        let (ending, next) = self.keys.take_older_but_outliving(record, from, ENDS_PER_ROUND, &mut self.actions);
        for blob in ending {
            self.unhold(blob);
        }
        next
    }

    /// Ends those versions of a key, all in this round. Returns whether some are left.
    fn end_but_outliving(&mut self, record: RecordId, mut from: Option<u64>) -> bool {
        while let Some(version) = from {
            from = self.end_older(record, version);
        }
        if let Some(newest) = self.keys.take_newest_but_outliving(record, &mut self.actions) {
            self.unhold(newest);
        }
        self.keys.record(record).is_some_and(|r| r.count() > 0)
    }

    /// Handles the end of the session or the flow that owns a key. The key stays if versions outlive that end. `from`: the
    /// older versions below this one were looked at; `None`: all were.
    pub(super) fn owner_left(&mut self, now: Time, id: RecordId, (owner, tenant): (Name, Tenant), from: Option<u64>) {
        let claiming = self.keys.record(id).is_none_or(|r| matches!(r.owner(), Owner::Claiming(_)));
        if claiming {
            return self.end_key(now, id);
        }
        let stream = self.stream_of(id, Some((&owner, tenant)));
        if !self.end_but_outliving(id, from) {
            return self.end_key_of(now, id, stream);
        }
        let Some(before) = self.keys.outlive(id, owner, &mut self.actions) else { return };
        self.stream_ended(now, id, stream);
        self.stays_with_parent(now, id);
        if let Owner::Landed(landed) = before {
            self.landed_key_ended(&landed);
        }
        self.serve_waiters(now, id);
    }

    /// Handles the end of a key's owner while a takeover of the key waits for the directory's answer. Its older versions that do
    /// not outlive it have ended. `of`: the name and the tenant of the session that has ended.
    pub(super) fn former_owner_left(&mut self, now: Time, id: RecordId, of: (Name, Tenant)) {
        let before = self.keys.record(id).and_then(|r| match r.owner() {
            Owner::Claiming(claiming) => claiming.before.as_ref(),
            _ => None,
        });
        let of = match before {
            Some(Owner::Landed(landed)) => (landed.owner.clone(), landed.tenant),
            _ => of,
        };
        let stream = self.stream_of(id, Some((&of.0, of.1)));
        let (owner, domain) = of;
        let left = self.end_but_outliving(id, None).then_some(Outlived { owner, domain });
        let stays = left.is_some();
        self.keys.former_owner_left(id, left, &mut self.actions);
        self.stream_ended(now, id, stream);
        if stays {
            self.stays_with_parent(now, id);
        }
    }

    /// Handles the loss of a key, or of its owner's name, while a takeover of the key waits for the directory's answer: all
    /// versions end. Returns the former owner.
    pub(super) fn former_owner_lost(&mut self, now: Time, id: RecordId) -> Option<Owner> {
        let before = self.keys.no_former_owner(id);
        let names = before.as_ref().and_then(|before| self.owner_name(before).zip(self.owner_tenant(before)));
        let stream = names.and_then(|of| self.stream_of(id, Some(of)));
        self.end_versions(id);
        self.stream_ended(now, id, stream);
        before
    }

    /// Returns whether a session has the name and the tenant of the worker that a key's versions have outlived. The
    /// versions are then its own.
    pub(super) fn is_heir(&self, session: SessionId, outlived: &Outlived) -> bool {
        self.sessions.get(session).is_some_and(|s| *s.name() == outlived.owner && s.tenant() == outlived.domain)
    }
}
