//! The end of a stream: those who wait for what follows its last version fail.

use crate::protocol::ids::RecordId;
use crate::protocol::keys::{EndedStream, Record, Waiter};
use crate::protocol::node::flows::Answering;
use crate::time::Time;

impl Answering<'_> {
    /// Remembers the end of a stream, and fails those who wait for what follows its last version.
    pub(in crate::protocol::node) fn stream_ended(&mut self, now: Time, id: RecordId, stream: Option<EndedStream>) {
        let Some(stream) = stream else { return };
        let Some(key) = self.keys.record(id).map(|r| r.key().clone()) else { return };
        for waiter in self.keys.stream_ended(id, stream.clone()) {
            let Some((reader, select)) = lookup!(self).reader_of(waiter).zip(self.keys.select_of(id, waiter)) else {
                continue;
            };
            self.keys.take_waiter(id, waiter);
            let failure = stream.failure(reader, &key, select);
            match waiter {
                Waiter::Local(op) => self.fail_op(op, failure),
                Waiter::Remote(link, index) => self.end_serve(now, link, index, failure),
            }
        }
    }

    /// Fails the fetches that have waited for a key's owner, and follow the versions of another one.
    pub(in crate::protocol::node) fn end_other_streams(&mut self, record: RecordId) {
        let Some(key) = self.keys.record(record).map(Record::key).cloned() else { return };
        for waiter in self.keys.following(record) {
            let (Waiter::Local(op), Some(select)) = (waiter, self.keys.select_of(record, waiter)) else { continue };
            let Some(session) = self.sessions.op(op).map(|op| op.session) else { continue };
            if let Some(failure) = lookup!(self).other_stream(session, &key, select) {
                self.fail_op(op, failure);
            }
        }
    }
}
