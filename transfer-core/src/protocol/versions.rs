//! The versions of a key: the newest, those that stay beside it, which of them answers a fetch, and when each one ends.
//!
//! Versions rise within an *epoch*: the time in which one session, or one flow, owns the key. With the first version of a new epoch,
//! what stays of the ones before can only be asked for exactly.

use super::ids::{BlobId, RecordId};
use super::node::Node;
use super::ops::Op;
use super::push_in::InFlow;
use super::store::{Outlived, Owner, Record};
use super::waiters::{Concerned, Waiter};
use super::{SessionId, Tenant};
use crate::tensor::{Key, Life, Name, Select, Until, Version};
use crate::time::Time;

/// What there is for a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Picked {
    /// This version.
    Blob(BlobId),
    /// Nothing any more: the key is at this version.
    Gone(Version),
    /// Nothing yet.
    NotYet,
}

impl Node {
    /// The newest version that answers `select`.
    pub(super) fn pick(&self, record: RecordId, select: Select) -> Picked {
        let Some(r) = self.store.records.get(record) else { return Picked::NotYet };
        // Where others are fetching all that there are, one comes back if they fail.
        let mut promised = false;
        let older = r.older.as_deref();
        let candidate = match select {
            Select::Exactly(version) => older.and_then(|older| older.exactly(version)),
            Select::Latest | Select::AtLeast(_) => {
                promised = older.is_some_and(|older| older.has_promised(select));
                older.and_then(|older| older.newest_free(select))
            }
        };
        for id in r.current.into_iter().chain(candidate) {
            let Some(b) = self.store.blobs.get(id) else { continue };
            if !select.takes(b.version) || b.before_epoch && !matches!(select, Select::Exactly(_)) {
                continue;
            }
            if b.fetches_left > 0 {
                return Picked::Blob(id);
            }
            promised = true;
        }
        match self.newest_version(record) {
            Some(Version(newest)) if !promised && select.missed(Version(newest.saturating_add(1))) => {
                Picked::Gone(Version(newest))
            }
            _ => Picked::NotYet,
        }
    }

    /// The version that a key is at.
    fn newest_version(&self, record: RecordId) -> Option<Version> {
        let r = self.store.records.get(record)?;
        match r.current.and_then(|id| self.store.blobs.get(id)) {
            Some(b) => Some(b.version),
            None => r.next_version.checked_sub(1).map(Version),
        }
    }

    /// What "the latest" means for a request that comes now: what has landed here and is being closed to its sender belongs to it,
    /// for the sender may know that it is here.
    pub(super) fn resolve_latest(&self, record: RecordId, select: Select) -> Select {
        let landed = self.landing_flow(record).filter(|flow| !flow.landed.is_empty());
        match (select, landed) {
            (Select::Latest, Some(flow)) => Select::AtLeast(Version(flow.next_version.saturating_sub(1))),
            _ => select,
        }
    }

    /// The flow in which the key's versions land here.
    fn landing_flow(&self, record: RecordId) -> Option<&InFlow> {
        let Some(Owner::Landed(landed)) = self.store.records.get(record).map(|r| &r.owner) else { return None };
        let (link, id) = landed.flow?;
        self.links.get(&link)?.flows_in.get(id)
    }

    /// Whether versions of this key land here by a device that says so to the sender before it says so here.
    #[must_use]
    pub fn lands_unheard(&self, key: &Key) -> bool {
        let Some(record) = self.store.find(key.as_str()) else { return false };
        let Some(Owner::Landed(landed)) = self.store.records.get(record).map(|r| &r.owner) else { return false };
        let link = landed.flow.and_then(|(link, _)| self.links.get(&link));
        link.is_some_and(|link| link.limits.acknowledges_unheard)
    }

    /// Makes a blob the newest version of its key. The caller's reference becomes the publication's.
    pub(super) fn publish(&mut self, now: Time, record: RecordId, blob: BlobId, version: Version) {
        if let Some(b) = self.store.blobs.get_mut(blob) {
            b.version = version;
        }
        let Some(r) = self.store.records.get_mut(record) else { return };
        r.next_version = version.0.saturating_add(1);
        let epoch_begins = std::mem::take(&mut r.epoch_begins);
        let before = r.current.replace(blob);
        if before.is_none() {
            self.store.published_count += 1;
        }
        let mut ended = Vec::new();
        if let Some((id, b)) = before.and_then(|id| Some((id, self.store.blobs.get(id)?))) {
            if b.retention.until == Until::Replaced || b.version == version {
                ended.push(id);
            } else {
                ended.extend(r.stays_beside(id, b));
            }
        }
        if let Some(older) = &mut r.older {
            if epoch_begins {
                older.end_epoch();
            }
            ended.extend(older.remove(version));
        }
        r.tidy_older();
        // Before anybody hears of the new version: who has heard of it does not find the one before. Where somebody here waits for it,
        // nobody has to look for it; whoever comes later has it shown.
        if !self.is_announced(blob) && self.store.records.get(record).is_some_and(Record::is_awaited_here) {
            self.hide(record);
        } else {
            self.show(record);
        }
        for id in ended {
            self.unhold(id);
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
        if self.store.records.get(record).is_none_or(|r| r.waiters.is_none()) {
            return;
        }
        match self.may_be_behind(record, None) {
            true => self.ask_later(record, concerned),
            false => self.serve_now(now, record, concerned),
        }
    }

    /// The same, with what this node knows.
    pub(super) fn serve_now(&mut self, now: Time, record: RecordId, concerned: Concerned) {
        let newest = self.newest_version(record);
        let Some(waiters) = self.store.records.get_mut(record).and_then(|r| r.waiters.as_mut()) else { return };
        let exactly = match concerned {
            Concerned::One(waiter) => {
                self.serve_waiter(now, record, waiter);
                return;
            }
            Concerned::Version(version) => vec![version],
            Concerned::All => newest.map_or_else(Vec::new, |newest| waiters.exactly_until(newest)),
        };
        // They take no other version.
        for version in exactly {
            while let Some(waiters) = self.store.records.get(record).and_then(|r| r.waiters.as_ref())
                && let Some(first) = waiters.first_exactly(version)
                && self.serve_waiter(now, record, first)
            {}
        }
        while let Picked::Blob(blob) = self.pick(record, Select::Latest)
            && let Some(version) = self.store.blobs.get(blob).map(|b| b.version)
            && let Some(waiters) = self.store.records.get(record).and_then(|r| r.waiters.as_ref())
            && let Some(first) = waiters.first_rising(version)
        {
            if !self.serve_waiter(now, record, first) {
                break;
            }
        }
    }

    /// Answers one of those who wait, if its version is there, or can never be. `false` where it goes on waiting.
    fn serve_waiter(&mut self, now: Time, record: RecordId, waiter: Waiter) -> bool {
        self.step();
        let Some(r) = self.store.records.get(record) else { return false };
        let Some(select) = r.waiters.as_ref().and_then(|waiters| waiters.select(waiter)) else { return false };
        let is_there = match waiter {
            Waiter::Local(id) => self.ops.get(id).is_some(),
            Waiter::Remote(link, index) => self.links.get(&link).is_some_and(|l| l.serves.contains_key(&index)),
        };
        let picked = self.pick(record, select);
        if is_there && picked == Picked::NotYet {
            return false;
        }
        let Some(r) = self.store.records.get_mut(record) else { return false };
        r.forget_waiter(waiter);
        let key = r.key.clone();
        match (picked, waiter) {
            (Picked::NotYet, _) => {}
            (Picked::Blob(blob), Waiter::Local(id)) => {
                if let Some(op) = self.finish_op(id) {
                    match self.is_of_another(op.session, blob) {
                        true => self.hand_over_copy(now, op, blob),
                        false => self.hand_over_waited(now, record, &op, blob),
                    }
                }
            }
            (Picked::Blob(blob), Waiter::Remote(link, index)) => self.serve_published(now, link, index, blob),
            (Picked::Gone(newest), Waiter::Local(id)) => {
                let session = self.ops.get(id).and_then(|op| self.sessions.get(&op.session));
                if let Some(reader) = session.map(|s| s.domain) {
                    let failure = self.version_gone(record, reader, &key, select, newest);
                    self.fail_op(id, failure);
                }
            }
            (Picked::Gone(newest), Waiter::Remote(link, index)) => {
                if let Some(reader) = self.links.get(&link).and_then(|l| l.serves.get(&index)).map(|s| s.reader) {
                    let failure = self.version_gone(record, reader, &key, select, newest);
                    self.end_serve(now, link, index, failure);
                }
            }
        }
        true
    }

    fn hand_over_waited(&mut self, now: Time, record: RecordId, op: &Op, blob: BlobId) {
        match self.hand_over(now, op.session, op.id, blob, op.require, op.since) {
            Ok(report) => {
                let version = self.store.blobs.get(blob).map_or(Version(0), |b| b.version);
                self.note_handed_over(now, op.session, &op.key, version, report, self.trace_of(op));
                self.want_on_board(record);
                self.fetched_here(now, record, blob);
            }
            Err(failure) => self.refuse(op.session, op.id, failure),
        }
    }

    /// A worker of this sidecar has fetched it.
    pub(super) fn fetched_here(&mut self, now: Time, record: RecordId, blob: BlobId) {
        if self.store.blobs.get(blob).is_none_or(|b| !matches!(b.retention.until, Until::Fetched(_))) {
            return;
        }
        let Some(key) = self.store.records.get(record).map(|r| r.key.clone()) else { return };
        self.fetch_begins(&key, blob);
        self.fetch_ends(now, record, blob, true);
    }

    /// Somebody is about to get it: where fetches are counted, nobody else gets this one.
    pub(super) fn fetch_begins(&mut self, key: &Key, blob: BlobId) {
        if let Some(b) = self.store.blobs.get_mut(blob)
            && let Until::Fetched(_) = b.retention.until
        {
            b.fetches_left = b.fetches_left.saturating_sub(1);
            b.under_way += 1;
            if b.fetches_left == 0
                && let Some(record) = self.store.find(key.as_str())
            {
                self.store.has_fetches(record, blob, false);
            }
        }
    }

    /// The end of what [`Node::fetch_begins`] began: counted where it went `well`, else others may have it.
    pub(super) fn fetch_ends(&mut self, now: Time, record: RecordId, blob: BlobId, well: bool) {
        let Some(b) = self.store.blobs.get_mut(blob) else { return };
        let Until::Fetched(_) = b.retention.until else { return };
        b.under_way = b.under_way.saturating_sub(1);
        let version = b.version;
        if !well {
            b.fetches_left += 1;
            self.store.has_fetches(record, blob, true);
            self.serve(now, record, Concerned::Version(version));
        } else if b.fetches_left == 0 && b.under_way == 0 {
            self.end_version(record, blob);
            // Who waited for exactly this one waits in vain.
            self.serve(now, record, Concerned::Version(version));
        }
    }

    /// Nobody can fetch this version any more. Its readers go on reading. `false` where it had ended before.
    pub(super) fn end_version(&mut self, record: RecordId, blob: BlobId) -> bool {
        let found = self.take_version(record, blob);
        if found {
            self.unhold(blob);
        }
        found
    }

    /// Takes a version out of its key, with the reference that publishing it was.
    pub(super) fn take_version(&mut self, record: RecordId, blob: BlobId) -> bool {
        let Some(r) = self.store.records.get_mut(record) else { return false };
        if r.current == Some(blob) {
            r.current = None;
            self.store.published_count -= 1;
            self.hide(record);
            return true;
        }
        let (Some(older), Some(b)) = (&mut r.older, self.store.blobs.get_mut(blob)) else { return false };
        if older.exactly(b.version) != Some(blob) {
            return false;
        }
        b.before_epoch |= older.is_before_epoch(b.version);
        older.remove(b.version);
        r.tidy_older();
        true
    }

    /// Ends all versions of a key, or all but those that outlive their worker. Whether some are left.
    pub(super) fn end_versions(&mut self, record: RecordId, but_outliving: bool) -> bool {
        let Some(r) = self.store.records.get(record) else { return false };
        let all: Vec<_> = r.versions().collect();
        let mut left = false;
        for id in all {
            if but_outliving && self.store.blobs.get(id).is_some_and(|b| b.retention.life == Life::Sidecar) {
                left = true;
            } else {
                self.end_version(record, id);
            }
        }
        left
    }

    /// The session, or the flow, that owns a key is gone: what outlives it stays, and the key with it.
    pub(super) fn owner_left(&mut self, now: Time, id: RecordId, owner: Name) {
        let claiming = self.store.records.get(id).is_none_or(|r| matches!(r.owner, Owner::Claiming(_)));
        if claiming || !self.end_versions(id, true) {
            return self.end_key(now, id);
        }
        let Some(r) = self.store.records.get_mut(id) else { return };
        let Some(domain) = r.newest().and_then(|b| self.store.blobs.get(b)).map(|b| b.domain) else { return };
        r.begin_epoch();
        let outlived = Owner::Outlived(Box::new(Outlived { owner, domain }));
        let Some(before) = self.store.set_owner(id, outlived) else { return };
        self.hide(id);
        if let Owner::Landed(landed) = before {
            self.landed_key_ended(&landed);
        }
        self.serve_waiters(now, id);
    }

    /// The owner of a key that another is taking over is gone before the directory has answered.
    pub(super) fn former_owner_left(&mut self, id: RecordId, owner: Name, domain: Tenant) {
        let left = self.end_versions(id, true);
        self.hide(id);
        self.store.change_owner(id, |current| {
            if let Owner::Claiming(claiming) = current {
                claiming.before = left.then(|| Owner::Outlived(Box::new(Outlived { owner, domain })));
            }
        });
    }

    /// Whether a key's versions have outlived a worker of this session's name and user: then they are this one's.
    pub(super) fn is_heir(&self, session: SessionId, outlived: &Outlived) -> bool {
        self.sessions.get(&session).is_some_and(|s| s.name == outlived.owner && s.domain == outlived.domain)
    }

    /// The end of a fetch by a peer of `key`.
    pub(super) fn remote_fetch_ends(&mut self, now: Time, key: &Key, blob: BlobId, well: bool) {
        if let Some(record) = self.store.find(key.as_str()) {
            self.fetch_ends(now, record, blob, well);
        }
    }
}
