//! How a key ends at this node, or outlives the worker that owned it.

use super::endings::{ENDS_PER_ROUND, Ending};
use crate::protocol::directory::DirectoryRequest;
use crate::protocol::ids::{BlobId, RecordId};
use crate::protocol::keys::{EndedStream, Older, Outlived, Owner, Waiter};
use crate::protocol::node::flows::Ownership;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Life, Name};
use crate::time::Time;

impl Ownership<'_> {
    /// Ends a key at this node and its entry in the directory. Readers of its versions keep reading.
    pub(in crate::protocol::node) fn end_key(&mut self, now: Time, id: RecordId) {
        let stream = lookup!(self).stream_of(id, None);
        self.end_key_of(now, id, stream);
    }

    /// As [`Ownership::end_key`], of a key that was this stream.
    fn end_key_of(&mut self, now: Time, id: RecordId, stream: Option<EndedStream>) {
        let Some(key) = self.keys.record(id).map(|r| r.key().clone()) else { return };
        let Some(before) = self.keys.let_go(id) else { return };
        answering!(self).stream_ended(now, id, stream);
        if let Owner::Landed(landed) = before {
            room!(self).landed_key_ended(&landed);
        }
        self.actions.ask_directory(DirectoryRequest::Unclaim { key });
        self.end_versions(id);
        self.owner_gone(now, id);
    }

    /// Redirects the waiters of a key that no longer has an owner here. A remembered location of the key is still true:
    /// a worker of this node has claimed the key in vain, and the directory knows nothing newer.
    pub(in crate::protocol::node) fn owner_gone(&mut self, now: Time, id: RecordId) {
        let Some(key) = self.keys.record(id).map(|r| r.key().clone()) else { return };
        for waiter in self.keys.take_waiters(id) {
            match waiter {
                Waiter::Local(op) => fetching!(self).start_fetch(now, op),
                Waiter::Remote(link, index) => answering!(self).not_owner(now, link, index, &key),
            }
        }
        self.keys.tidy(id, self.actions);
    }

    /// Ends versions that nobody finds any more: some in this event, and the others in the rounds that follow.
    fn end_older_ones(&mut self, mut older: Older) {
        for _ in 0..ENDS_PER_ROUND {
            let Some(blob) = older.pop() else { return };
            memory!(self).release(blob);
        }
        if !older.is_empty() {
            self.endings.later(Ending::Versions(older));
        }
    }

    /// Remembers a key whose owner has left, if versions stay only as long as the key's parent.
    fn stays_with_parent(&mut self, now: Time, id: RecordId) {
        let Some(record) = self.keys.record(id) else { return };
        let mut lives = record.versions().filter_map(|blob| Some(self.keys.blob(blob)?.retention().life));
        if lives.any(|life| life == Life::Parent)
            && let Some(parent) = record.key().parent()
        {
            self.parents.add(now, parent, record.key().clone());
        }
    }

    /// Ends a key whose version cannot be read back from disk.
    pub(in crate::protocol::node) fn spilled_is_lost(&mut self, now: Time, key: &Key, blob: BlobId) {
        if let Some(record) = self.keys.find(key).filter(|id| self.keys.is_current(*id, blob)) {
            self.end_key(now, record);
        }
    }

    /// Ends all versions of a key: nobody finds one from now on. Their memory is returned in as many rounds as that takes.
    pub(in crate::protocol::node) fn end_versions(&mut self, record: RecordId) {
        let (newest, older) = self.keys.take_all_versions(record, self.actions);
        if let Some(older) = older {
            self.end_older_ones(older);
        }
        if let Some(newest) = newest {
            memory!(self).release(newest);
        }
    }

    /// Ends the versions of a key that do not outlive their worker, from this one on, as far as one round goes. Returns
    /// where to go on; `None`: none is left but those that outlive it.
    pub(in crate::protocol::node) fn end_older(&mut self, record: RecordId, from: u64) -> Option<u64> {
        let (ending, next) = self.keys.take_older_but_outliving(record, from, ENDS_PER_ROUND, self.actions);
        for blob in ending {
            memory!(self).release(blob);
        }
        next
    }

    /// Ends those versions of a key, all in this round. Returns whether some are left.
    fn end_but_outliving(&mut self, record: RecordId, mut from: Option<u64>) -> bool {
        while let Some(version) = from {
            from = self.end_older(record, version);
        }
        if let Some(newest) = self.keys.take_newest_but_outliving(record, self.actions) {
            memory!(self).release(newest);
        }
        self.keys.record(record).is_some_and(|r| r.count() > 0)
    }

    /// Handles the end of the session or the flow that owns a key. The key stays if versions outlive that end. `from`: the
    /// older versions below this one were looked at; `None`: all were.
    pub(in crate::protocol::node) fn owner_left(
        &mut self,
        now: Time,
        id: RecordId,
        (owner, tenant): (Name, Tenant),
        from: Option<u64>,
    ) {
        let claiming = self.keys.record(id).is_none_or(|r| matches!(r.owner(), Owner::Claiming(_)));
        if claiming {
            return self.end_key(now, id);
        }
        let stream = lookup!(self).stream_of(id, Some((&owner, tenant)));
        if !self.end_but_outliving(id, from) {
            return self.end_key_of(now, id, stream);
        }
        let Some(before) = self.keys.outlive(id, owner, self.actions) else { return };
        answering!(self).stream_ended(now, id, stream);
        self.stays_with_parent(now, id);
        if let Owner::Landed(landed) = before {
            room!(self).landed_key_ended(&landed);
        }
        answering!(self).serve_waiters(now, id);
    }

    /// Handles the end of a key's owner while a takeover of the key waits for the directory's answer. Its older versions that do
    /// not outlive it have ended. `of`: the name and the tenant of the session that has ended.
    pub(in crate::protocol::node) fn former_owner_left(&mut self, now: Time, id: RecordId, of: (Name, Tenant)) {
        let before = self.keys.record(id).and_then(|r| match r.owner() {
            Owner::Claiming(claiming) => claiming.before.as_ref(),
            _ => None,
        });
        let of = match before {
            Some(Owner::Landed(landed)) => (landed.owner.clone(), landed.tenant),
            _ => of,
        };
        let stream = lookup!(self).stream_of(id, Some((&of.0, of.1)));
        let (owner, domain) = of;
        let left = self.end_but_outliving(id, None).then_some(Outlived { owner, domain });
        let stays = left.is_some();
        self.keys.former_owner_left(id, left, self.actions);
        answering!(self).stream_ended(now, id, stream);
        if stays {
            self.stays_with_parent(now, id);
        }
    }

    /// Handles the loss of a key, or of its owner's name, while a takeover of the key waits for the directory's answer: all
    /// versions end. Returns the former owner.
    pub(in crate::protocol::node) fn former_owner_lost(&mut self, now: Time, id: RecordId) -> Option<Owner> {
        let before = self.keys.no_former_owner(id);
        let names =
            before.as_ref().and_then(|before| self.sessions.owner_name(before).zip(self.sessions.owner_tenant(before)));
        let stream = names.and_then(|of| lookup!(self).stream_of(id, Some(of)));
        self.end_versions(id);
        answering!(self).stream_ended(now, id, stream);
        before
    }
}
