//! Streams: keys whose versions are read in order, each by all readers. A reader waits for the version that follows what it has
//! read, of the same writer, and hears when that one has ended or has lost the key.

use super::Node;
use crate::fabric::LinkId;
use crate::op::{Failure, FailureCode};
use crate::protocol::ids::{RecordId, SessionId};
use crate::protocol::keys::{EndedStream, Owner, Record, Waiter};
use crate::protocol::sessions::Writer;
use crate::protocol::tenant::Tenant;
use crate::tensor::{Key, Name, Select};
use crate::time::Time;

impl Node {
    /// Describes a key whose versions are a stream, before it ends. `of`: its owner, where that one is gone already.
    pub(super) fn stream_of(&self, id: RecordId, of: Option<(&Name, Tenant)>) -> Option<EndedStream> {
        let owner = self.keys.record(id)?.owner();
        let (name, tenant) = of.or_else(|| self.owner_name(owner).zip(self.owner_tenant(owner)))?;
        Some(EndedStream { owner: name.clone(), tenant, last: self.keys.last_of_stream(id)? })
    }

    /// Remembers the end of a stream, and fails those who wait for what follows its last version.
    pub(super) fn stream_ended(&mut self, now: Time, id: RecordId, stream: Option<EndedStream>) {
        let Some(stream) = stream else { return };
        let Some(key) = self.keys.record(id).map(|r| r.key().clone()) else { return };
        for waiter in self.keys.stream_ended(id, stream.clone()) {
            let Some((reader, select)) = self.reader_of(waiter).zip(self.keys.select_of(id, waiter)) else { continue };
            self.keys.take_waiter(id, waiter);
            let failure = stream.failure(reader, &key, select);
            match waiter {
                Waiter::Local(op) => self.fail_op(op, failure),
                Waiter::Remote(link, index) => self.end_serve(now, link, index, failure),
            }
        }
    }

    /// Returns the failure of a fetch that follows a stream which has ended.
    pub(super) fn ended_stream(&self, reader: Tenant, key: &Key, select: Select) -> Option<Failure> {
        self.keys.ended_stream(key, select).map(|stream| stream.failure(reader, key, select))
    }

    /// Notes whose version a worker has read here, if it may be one of a stream: readers ask for exactly one.
    pub(super) fn read_stream_here(&mut self, session: SessionId, key: &Key, select: Select) {
        let owner = self.keys.owner(key).filter(|_| select.is_exact());
        if let Some(writer) = owner.and_then(|owner| self.owner_name(owner)).cloned() {
            self.sessions.read_stream(session, key, Writer::Here(writer));
        }
    }

    /// As [`Node::read_stream_here`], of a version that came over a link.
    pub(super) fn read_stream_of_peer(&mut self, session: SessionId, key: &Key, select: Select, link: LinkId) {
        let peer = self.links.get(link).filter(|_| select.is_exact()).map(|l| l.peer().name.clone());
        if let Some(peer) = peer {
            self.sessions.read_stream(session, key, Writer::At(peer));
        }
    }

    /// Returns the failure of a fetch that follows another writer's versions than those of the key's owner here.
    pub(super) fn other_stream(&self, session: SessionId, key: &Key, select: Select) -> Option<Failure> {
        let writer = matches!(select, Select::Following(_)).then(|| self.sessions.writer_of(session, key)).flatten()?;
        let owner = self.keys.owner(key).filter(|owner| matches!(owner, Owner::Session(_) | Owner::Landed(_)))?;
        let (name, tenant) = self.owner_name(owner).zip(self.owner_tenant(owner))?;
        let before = match writer {
            Writer::Here(before) if before == name => return None,
            Writer::Here(before) => format!("of worker {before:?}"),
            Writer::At(node) => format!("from node {node:?}"),
        };
        // Only its own tenant hears whose the key is.
        let text = match self.sessions.tenant_of(session) == Some(tenant) {
            true => format!(
                "{select} of key {key:?} does not come: what this worker has read was {before}, and the key is now that of worker \
                 {name:?} at this node"
            ),
            false => format!("{select} of key {key:?} does not come: its writer has ended, or has given it up"),
        };
        Some(Failure::new(FailureCode::VersionGone, text))
    }

    /// Fails the fetches that have waited for a key's owner, and follow the versions of another one.
    pub(super) fn end_other_streams(&mut self, record: RecordId) {
        let Some(key) = self.keys.record(record).map(Record::key).cloned() else { return };
        for waiter in self.keys.following(record) {
            let (Waiter::Local(op), Some(select)) = (waiter, self.keys.select_of(record, waiter)) else { continue };
            let Some(session) = self.sessions.op(op).map(|op| op.session) else { continue };
            if let Some(failure) = self.other_stream(session, &key, select) {
                self.fail_op(op, failure);
            }
        }
    }
}
