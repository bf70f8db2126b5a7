//! Versions: which waiters they answer, and what follows when they end.

use crate::protocol::ids::{BlobId, RecordId, SessionId};
use crate::protocol::keys::{Blob, Concerned, Owner, Picked, Record, Waiter};
use crate::protocol::node::Node;
use crate::protocol::node::flows::Answering;
use crate::protocol::sessions::Op;
use crate::tensor::{Key, Version};
use crate::time::Time;

impl Node {
    /// Answers the first `count` requests about keys with a notice. The caller must first take everything that was in
    /// the workers' rings when the last of these requests was made. Requests about keys of a worker that `is_held`, whose
    /// ring was not read to that point, wait for the next call.
    pub fn answer_asked(&mut self, now: Time, count: usize, is_held: impl Fn(SessionId) -> bool) {
        answering!(self).answer_asked(now, count, is_held)
    }
}

impl Answering<'_> {
    /// Answers the first `count` requests about keys with a notice. The caller must first take everything that was in
    /// the workers' rings when the last of these requests was made. Requests about keys of a worker that `is_held`, whose
    /// ring was not read to that point, wait for the next call.
    fn answer_asked(&mut self, now: Time, count: usize, is_held: impl Fn(SessionId) -> bool) {
        for (record, concerned) in self.keys.take_asked(count) {
            match self.keys.record(record).map(Record::owner) {
                Some(Owner::Session(owner)) if is_held(*owner) => self.keys.ask_later(record, concerned),
                _ => self.serve_now(now, record, concerned),
            }
        }
    }

    /// Ends a series of pushes that publish a key again, because its last push has failed. The highest of the other
    /// versions is the newest.
    pub(in crate::protocol::node) fn no_more_follow(&mut self, session: SessionId, key: &Key) {
        if let Some(record) = self.keys.no_more_follow(key, session, self.actions) {
            self.serve_waiters(self.common.latest, record);
        }
    }

    /// Makes a blob the newest version of its key. The caller's reference becomes the publication's.
    pub(in crate::protocol::node) fn publish(&mut self, now: Time, record: RecordId, blob: BlobId, version: Version) {
        for ended in self.keys.publish(now, record, blob, version, self.actions) {
            memory!(self).release(ended);
        }
        self.serve_waiters(now, record);
    }

    /// Answers all waiters of a key whose version is published or can never be. If the key's owner may have announced a
    /// newer version than this node knows, its submission ring is read first.
    pub(in crate::protocol::node) fn serve_waiters(&mut self, now: Time, record: RecordId) {
        self.serve(now, record, Concerned::All);
    }

    /// Answers the waiters of a key that an event concerns, as `serve_waiters` does. For the others nothing has
    /// changed, so they are not looked at.
    pub(in crate::protocol::node) fn serve(&mut self, now: Time, record: RecordId, concerned: Concerned) {
        if !self.keys.is_awaited(record) {
            return;
        }
        match self.keys.may_be_behind(record, None) {
            true => self.keys.ask_later(record, concerned),
            false => self.serve_now(now, record, concerned),
        }
    }

    /// Answers the waiters of a key that an event concerns, with the versions that this node knows.
    fn serve_now(&mut self, now: Time, record: RecordId, concerned: Concerned) {
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
        self.common.step();
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
                    match lookup!(self).needs_copy(op.session, blob) {
                        true => self.hand_over_copy(now, op, blob),
                        false => self.hand_over_waited(now, record, &op, blob),
                    }
                }
            }
            (Picked::Blob(blob), Waiter::Remote(link, index)) => self.serve_published(now, link, index, blob),
            (Picked::Gone(newest), waiter) => {
                let key = self.keys.record(record).map(|r| r.key().clone());
                let Some((key, reader)) = key.zip(lookup!(self).reader_of(waiter)) else { return true };
                let failure = access!(self).version_gone(record, reader, &key, select, newest);
                match waiter {
                    Waiter::Local(id) => self.fail_op(id, failure),
                    Waiter::Remote(link, index) => self.end_serve(now, link, index, failure),
                }
            }
        }
        true
    }

    fn hand_over_waited(&mut self, now: Time, record: RecordId, op: &Op, blob: BlobId) {
        match memory!(self).hand_over(now, op.session, op.id, (&op.key, blob, op.excerpt()), op.require, op.since) {
            Ok(report) => {
                let version = self.keys.blob(blob).map_or(Version(0), |b| b.version);
                let trace = access!(self).trace_of(op);
                replies!(self).note_handed_over(now, op.session, &op.key, version, report, trace);
                memory!(self).read_stream_here(op.session, &op.key, op.select());
                self.keys.want_on_board(record);
                self.fetched_here(now, record, blob);
            }
            Err(failure) => replies!(self).refuse(op.session, op.id, failure),
        }
    }

    /// Counts a fetch by a worker of this sidecar, if fetches of the version are counted.
    pub(in crate::protocol::node) fn fetched_here(&mut self, now: Time, record: RecordId, blob: BlobId) {
        if !self.keys.blob(blob).is_some_and(Blob::counts_fetches) {
            return;
        }
        let Some(key) = self.keys.record(record).map(|r| r.key().clone()) else { return };
        self.keys.fetch_begins(&key, blob);
        self.fetch_ends(now, record, blob, true);
    }

    /// Ends a fetch that was begun. It is counted if it went `well`; otherwise another reader may fetch in its place.
    fn fetch_ends(&mut self, now: Time, record: RecordId, blob: BlobId, well: bool) {
        let Some((version, has_ended)) = self.keys.fetch_ends(record, blob, well, self.actions) else { return };
        if has_ended {
            memory!(self).release(blob);
            replies!(self).tell_unfetched(record);
        }
        self.serve(now, record, Concerned::Version(version));
    }

    /// Ends a fetch of a key that may have ended meanwhile.
    pub(in crate::protocol::node) fn fetch_of_ends(&mut self, now: Time, key: &Key, blob: BlobId, well: bool) {
        if let Some(record) = self.keys.find(key) {
            self.fetch_ends(now, record, blob, well);
        }
    }
}
